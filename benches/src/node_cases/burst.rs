//! `burst-100`, `storm-500`: many calls at once, one subject after the other in every round.
//!
//! The memory of the plugins' processes is sampled in a round of its own that is not timed, because looking at a
//! hundred processes takes as much time as running them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::ours_waiting;
use crate::bench::{Bench, BenchError, Burst, together};
use crate::case_size::CaseSize;
use crate::foreign_cpu::Disturbance;
use crate::plugin_exec::Verb;
use crate::process_cost;
use crate::round::until_one_counts;
use crate::subject::{Attachment, Role, kernel_calls_alone};

/// The reading of a daemon's memory in a burst.
pub(crate) const WITH_ALL_STARTED: &str = "the daemon and all that it started, at most";

/// The rate of as many programs of three instructions at once.
const SPAWN_ALONE: &str = "spawn alone, at once";
/// The rate of as many kernel calls of an ADD at once, each by a thread that exists.
const KERNEL_CALLS_ALONE: &str = "kernel calls alone, at once";
/// The rate of both together.
const SPAWN_AND_KERNEL_CALLS: &str = "spawn and kernel calls, at once (its ADD)";

/// Runs `burst-100`.
pub(crate) fn hundred(bench: &mut Bench, settings: &CaseSize) -> Result<(), BenchError> {
    ours_waiting::after_the_others(bench, |bench| run(bench, settings, "burst-100"))
}

/// Runs `storm-500`.
pub(crate) fn storm(bench: &mut Bench, settings: &CaseSize) -> Result<(), BenchError> {
    run(bench, settings, "storm-500")
}

fn run(bench: &mut Bench, settings: &CaseSize, case: &'static str) -> Result<(), BenchError> {
    // The program that has least to do stands for all that are no plugins.
    let called = (0..bench.subjects.len()).filter(|&who| bench.subjects[who].role != Role::Floor);
    let called: Vec<usize> = called.collect();
    for round in 0..settings.warmup + settings.rounds {
        let counts = round >= settings.warmup;
        for &who in &called {
            until_one_counts(|| {
                let pods = bench.attachments(who, settings.at_once)?;
                one_round(bench, case, who, pods, counts)
            })?;
            if bench.subjects[who].role == Role::Bare {
                until_one_counts(|| limits(bench, case, who, settings.at_once, counts))?;
            }
        }
    }
    for who in called {
        let pods = bench.attachments(who, settings.at_once)?;
        plugins_memory(bench, case, who, pods)?;
    }
    bench.nothing_allocated(case)
}

/// Attaches these pods at once and detaches them at once; false where others had the processors, so that it is not counted.
pub(crate) fn one_round(
    bench: &mut Bench,
    case: &'static str,
    who: usize,
    mut pods: Vec<Attachment>,
    counts: bool,
) -> Result<bool, BenchError> {
    let round = bench.begin_round(Disturbance::StolenOrForeign)?;
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
        let name = bench.subjects[who].name_at_once().to_owned();
        bench.results.figure_mut(case, &name, Verb::Add.name())?.saw_daemon(memory);
    }
    let burst = bench.at_once(who, Verb::Del, &pods)?;
    record(bench, case, who, Verb::Del, burst, &mut pods, counts)?;
    let is_kept = bench.end_round(case, round)?;
    bench.put_away(pods)?;
    Ok(is_kept)
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
        let figure = bench.results.figure_mut(case, subject.name_at_once(), verb.name())?;
        right.iter().for_each(|done| figure.series.record(done.answer.latency));
        figure.cpu.add(cpu);
        // A burst of which some failed was faster than one that did all of its work.
        if right.len() == pods.len() {
            figure.rates.push(rate);
            if subject.role == Role::Bare && verb == Verb::Add {
                bench.results.read(case, subject.name_at_once(), SPAWN_AND_KERNEL_CALLS, "/s", rate);
            }
        }
    }
    Ok(())
}

/// The two parts of such a burst alone: as many programs of three instructions at once, and as many times the kernel calls of an ADD
/// without a program. False where others had the processors, so that it is not counted.
fn limits(
    bench: &mut Bench,
    case: &'static str,
    who: usize,
    count: usize,
    counts: bool,
) -> Result<bool, BenchError> {
    let pods = bench.attachments(who, count)?;
    let round = bench.begin_round(Disturbance::StolenOrForeign)?;
    let subject = &bench.subjects[who];
    let spawns = pods.iter().map(|pod| subject.spawn_alone(Verb::Add, pod)).collect();
    let spawns = together(subject, spawns)?;
    let calls = pods.iter().map(|pod| kernel_calls_alone(&bench.node, Verb::Add, pod)).collect();
    let calls = together(subject, calls)?;
    let name = subject.name_at_once().to_owned();
    for (what, burst) in [(SPAWN_ALONE, spawns), (KERNEL_CALLS_ALONE, calls)] {
        let whole = burst.done.iter().all(|done| done.as_ref().is_ok_and(|done| done.answer.success));
        if !whole {
            bench.results.fail(case, &name, format!("{what}: a call failed"));
        } else if counts {
            bench.results.read(case, &name, what, "/s", burst.rate());
        }
    }
    let is_kept = bench.end_round(case, round)?;
    bench.put_away(pods)?;
    Ok(is_kept)
}

/// The largest memory of all plugin processes of a burst together, sampled as fast as possible.
///
/// Where a daemon serves them, also the largest memory of that one and of all that it has started: a peer's may execute plugins itself.
pub(crate) fn plugins_memory(
    bench: &mut Bench,
    case: &'static str,
    who: usize,
    mut pods: Vec<Attachment>,
) -> Result<(), BenchError> {
    let mut others: Vec<_> = bench.subjects.iter().filter_map(|s| Some(s.daemon.as_ref()?.pid)).collect();
    others.extend(&bench.of_nobody);
    let served_by = bench.subjects[who].daemon.as_ref().map(|daemon| daemon.pid);
    let over = AtomicBool::new(false);
    let (burst, (peak, served)) = thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let (mut peak, mut served) = (0, 0);
            while !over.load(Ordering::Relaxed) {
                peak = peak.max(process_cost::memory_of_descendants(&others).unwrap_or(0));
                if let Some(daemon) = served_by {
                    served = served.max(process_cost::memory_of_family(daemon).unwrap_or(0));
                }
                thread::sleep(Duration::from_millis(2));
            }
            (peak, served)
        });
        let burst = bench.at_once(who, Verb::Add, &pods);
        over.store(true, Ordering::Relaxed);
        (burst, sampler.join().unwrap_or_default())
    });
    record(bench, case, who, Verb::Add, burst?, &mut pods, false)?;
    let name = bench.subjects[who].name_at_once().to_owned();
    bench.results.figure_mut(case, &name, Verb::Add.name())?.saw_plugins(peak);
    if served_by.is_some() {
        bench.results.read(case, &name, WITH_ALL_STARTED, "MiB", served as f64 / 1024.0);
    }
    let burst = bench.at_once(who, Verb::Del, &pods)?;
    record(bench, case, who, Verb::Del, burst, &mut pods, false)?;
    bench.put_away(pods)
}
