//! `pod-start`: how long a daemon takes until it is ready on a node that is full of pods.

use std::time::Instant;

use super::{BY_WATCH, PodBench, names_of};
use crate::bench::BenchError;
use crate::case_size::CaseSize;
use crate::plugin_exec::Verb;
use crate::subject::Subject;

const CASE: &str = "pod-start";
/// The reading of the time.
pub(crate) const READY: &str = "start until ready";

/// Runs it: `at_once` pods.
pub(crate) fn run(run: &mut PodBench, settings: &CaseSize) -> Result<(), BenchError> {
    let Some(alone) = alone(run)? else { return Ok(()) };
    let who = run.bench.subjects.len();
    run.bench.subjects.push(alone);
    let done = starts(run, who, settings);
    run.bench.subjects.pop();
    done?;
    run.bench.nothing_allocated(CASE)
}

/// Ours with a daemon of its own, which can be stopped without anybody else's calls failing.
fn alone(run: &PodBench) -> Result<Option<Subject>, BenchError> {
    let Some(own) = &run.own else { return Ok(None) };
    let Some(ours) = run.bench.subjects.iter().find(|subject| subject.name == BY_WATCH) else {
        return Ok(None);
    };
    Ok(Some(Subject {
        name: "ours-alone".to_owned(),
        role: ours.role,
        binary: ours.binary.clone(),
        version: ours.version.clone(),
        config: ours.config.clone(),
        environment: own.environment(),
        daemon: Some(own.start()?),
        interfaces: ours.interfaces,
    }))
}

fn starts(run: &mut PodBench, who: usize, settings: &CaseSize) -> Result<(), BenchError> {
    let mut pods = run.pods(who, settings.at_once)?;
    let burst = run.bench.at_once(who, Verb::Add, &pods)?;
    for (pod, done) in pods.iter_mut().zip(burst.done) {
        run.bench.added(CASE, who, pod, done);
    }
    for _ in 0..settings.rounds {
        run.bench.subjects[who].daemon = None; // it ends
        let started = Instant::now();
        let Some(own) = &run.own else { break };
        let daemon = own.start()?;
        let took = started.elapsed().as_secs_f64() * 1e3;
        run.bench.subjects[who].daemon = Some(daemon);
        run.bench.results.read(CASE, BY_WATCH, READY, "ms", took);
    }
    // It has them all: each goes by its record.
    let burst = run.bench.at_once(who, Verb::Del, &pods)?;
    for (pod, done) in pods.iter().zip(burst.done) {
        run.bench.deleted(CASE, who, pod, done);
    }
    let names = names_of(&pods);
    run.bench.put_away(pods)?;
    run.forget(&names)
}
