//! `burst-100`, `storm-500`: many calls at once, one subject after the other in every round.
//!
//! The memory of the plugins' processes is sampled in a round of its own that is not timed, because looking at a
//! hundred processes takes as much time as running them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::bench::{Bench, BenchError, Burst};
use crate::case_size::CaseSize;
use crate::plugin_exec::Verb;
use crate::process_cost;
use crate::subject::Attachment;

/// Runs `burst-100`.
pub(crate) fn hundred(bench: &mut Bench, settings: &CaseSize) -> Result<(), BenchError> {
    run(bench, settings, "burst-100")
}

/// Runs `storm-500`.
pub(crate) fn storm(bench: &mut Bench, settings: &CaseSize) -> Result<(), BenchError> {
    run(bench, settings, "storm-500")
}

fn run(bench: &mut Bench, settings: &CaseSize, case: &'static str) -> Result<(), BenchError> {
    for round in 0..settings.warmup + settings.rounds {
        for who in 0..bench.subjects.len() {
            one_round(bench, case, who, settings.at_once, round >= settings.warmup)?;
        }
    }
    for who in 0..bench.subjects.len() {
        plugins_memory(bench, case, who, settings.at_once)?;
    }
    bench.nothing_allocated(case)
}

fn one_round(
    bench: &mut Bench,
    case: &'static str,
    who: usize,
    at_once: usize,
    counts: bool,
) -> Result<(), BenchError> {
    let mut pods = bench.attachments(who, at_once)?;
    if let Some(daemon) = &bench.subjects[who].daemon {
        process_cost::reset_peak(daemon.pid).map_err(BenchError::process("the daemon's memory peak"))?;
    }
    let burst = bench.at_once(who, Verb::Add, &pods)?;
    let memory = match &bench.subjects[who].daemon {
        Some(daemon) => {
            Some(process_cost::memory_of(daemon.pid).map_err(BenchError::process("the daemon's memory"))?)
        }
        None => None,
    };
    record(bench, case, who, Verb::Add, burst, &mut pods, counts)?;
    if counts {
        let name = bench.subjects[who].name.clone();
        bench.results.figure_mut(case, &name, Verb::Add.name())?.saw_daemon(memory);
    }
    let burst = bench.at_once(who, Verb::Del, &pods)?;
    record(bench, case, who, Verb::Del, burst, &mut pods, counts)?;
    bench.put_away(pods)
}

fn record(
    bench: &mut Bench,
    case: &'static str,
    who: usize,
    verb: Verb,
    burst: Burst,
    pods: &mut [Attachment],
    counts: bool,
) -> Result<(), BenchError> {
    let (rate, cpu) = (burst.rate(), burst.cpu);
    let mut right = Vec::new();
    for (attachment, done) in pods.iter_mut().zip(burst.done) {
        right.extend(match verb {
            Verb::Add => bench.added(case, who, attachment, done),
            Verb::Del => bench.deleted(case, who, attachment, done),
        });
    }
    if counts {
        let subject = &bench.subjects[who];
        let figure = bench.results.figure_mut(case, &subject.name, subject.what(verb))?;
        right.iter().for_each(|done| figure.series.record(done.answer.latency));
        figure.cpu.add(cpu);
        // A burst of which some failed was faster than one that did all of its work.
        if right.len() == pods.len() {
            figure.rates.push(rate);
        }
    }
    Ok(())
}

/// The largest memory of all plugin processes of a burst together, sampled as fast as possible.
fn plugins_memory(
    bench: &mut Bench,
    case: &'static str,
    who: usize,
    at_once: usize,
) -> Result<(), BenchError> {
    let mut pods = bench.attachments(who, at_once)?;
    let daemons: Vec<_> = bench.subjects.iter().filter_map(|s| Some(s.daemon.as_ref()?.pid)).collect();
    let over = AtomicBool::new(false);
    let (burst, peak) = thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut peak = 0;
            while !over.load(Ordering::Relaxed) {
                peak = peak.max(process_cost::memory_of_descendants(&daemons).unwrap_or(0));
                thread::sleep(Duration::from_millis(2));
            }
            peak
        });
        let burst = bench.at_once(who, Verb::Add, &pods);
        over.store(true, Ordering::Relaxed);
        (burst, sampler.join().unwrap_or(0))
    });
    record(bench, case, who, Verb::Add, burst?, &mut pods, false)?;
    let name = bench.subjects[who].name.clone();
    bench.results.figure_mut(case, &name, Verb::Add.name())?.saw_plugins(peak);
    let burst = bench.at_once(who, Verb::Del, &pods)?;
    record(bench, case, who, Verb::Del, burst, &mut pods, false)?;
    bench.put_away(pods)
}
