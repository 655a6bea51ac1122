//! `add-one`, `del-one`: one call at a time, the subjects taking turns (A B C A B C …).
//!
//! Pods are made a score at a time and put away together, so that no namespace dies while a call is timed; a score
//! of DELs takes less than the time after which ours removes a link by itself, so that no removal is timed either.

use std::thread;
use std::time::Duration;

use crate::bench::{Bench, BenchError, CpuMark};
use crate::cases::Settings;
use crate::exec::Verb;
use crate::results::{Figure, Results};
use crate::statistics::StatisticsError;
use crate::subject::{Attachment, Done, Subject};

/// Turns between two cleanings.
const TURNS: usize = 20;
/// Between two calls, so that one subject's after-effects are not another's latency.
const PAUSE: Duration = Duration::from_millis(2);

const ADD: &str = "add-one";
const DEL: &str = "del-one";

/// Runs it.
pub(crate) fn run(bench: &mut Bench, settings: &Settings) -> Result<(), BenchError> {
    let turns = settings.warmup + settings.calls;
    for first in (0..turns).step_by(TURNS) {
        let count = TURNS.min(turns - first);
        let mut pods = Vec::new();
        for who in 0..bench.subjects.len() {
            pods.push(bench.attachments(who, count)?);
        }
        take_turns(bench, Verb::Add, &mut pods, first, settings.warmup)?;
        take_turns(bench, Verb::Del, &mut pods, first, settings.warmup)?;
        bench.put_away(pods.into_iter().flatten().collect())?;
    }
    bench.nothing_allocated(DEL)
}

/// Makes one call for each pod, one at a time; turns below number `warmup` are made and not counted.
fn take_turns(
    bench: &mut Bench,
    verb: Verb,
    pods: &mut [Vec<Attachment>],
    first: usize,
    warmup: usize,
) -> Result<(), BenchError> {
    for turn in 0..pods.first().map_or(0, Vec::len) {
        for (who, pods) in pods.iter_mut().enumerate() {
            let attachment = &mut pods[turn];
            let subject = &bench.subjects[who];
            let job = subject.job(&bench.node, verb, attachment);
            let before = CpuMark::now(subject)?;
            let done = job.run();
            // Within the pause the daemon does what it does off the answer's path: that is the call's cost too.
            thread::sleep(PAUSE);
            let cpu = before.until(CpuMark::now(subject)?, 1);
            let done = match verb {
                Verb::Add => bench.added(ADD, who, attachment, done),
                Verb::Del => bench.deleted(DEL, who, attachment, done),
            };
            if let (Some(done), true) = (done, first + turn >= warmup) {
                record(&mut bench.results, &bench.subjects[who], verb, &done)?.cpu.add(cpu);
            }
        }
    }
    Ok(())
}

fn record<'a>(
    results: &'a mut Results,
    subject: &Subject,
    verb: Verb,
    done: &Done,
) -> Result<&'a mut Figure, StatisticsError> {
    let case = if verb == Verb::Add { ADD } else { DEL };
    if let Some((spawn, kernel)) = done.parts {
        results.figure_mut(case, &subject.name, "of it: spawn")?.series.record(spawn);
        results.figure_mut(case, &subject.name, "of it: kernel calls")?.series.record(kernel);
    }
    let figure = results.figure_mut(case, &subject.name, subject.what(verb))?;
    figure.series.record(done.answer.latency);
    figure.rates.push(1.0 / done.answer.latency.as_secs_f64().max(1e-9));
    Ok(figure)
}
