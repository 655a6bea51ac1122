//! `silence`: how long after the last DEL's answer the last link is really gone. It is measured with the
//! namespaces kept, and with the namespaces removed at that moment, as runtimes do.
//!
//! The links are counted by their master's multicast memberships, so only macvlans are seen: a subject whose
//! links do not show there is a failure, not a zero.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use super::ours_waiting;
use crate::bench::{Bench, BenchError};
use crate::case_size::CaseSize;
use crate::foreign_cpu::Disturbance;
use crate::node::{Node, NodeError};
use crate::plugin_exec::Verb;
use crate::round::until_one_counts;
use crate::subject::{Attachment, Done};

/// The time after which a link counts as one that stays.
const LIMIT: Duration = Duration::from_secs(60);

const CASE: &str = "silence";

/// Runs `silence`: how long links live on after the last DEL is answered.
pub(crate) fn run(bench: &mut Bench, settings: &CaseSize) -> Result<(), BenchError> {
    ours_waiting::after_the_others(bench, |bench| rounds(bench, settings))
}

fn rounds(bench: &mut Bench, settings: &CaseSize) -> Result<(), BenchError> {
    for round in 0..settings.warmup + settings.rounds {
        for who in 0..bench.subjects.len() {
            if bench.subjects[who].is_plugin() {
                for kept in [true, false] {
                    let counts = round >= settings.warmup;
                    until_one_counts(|| one_round(bench, who, settings.at_once, kept, counts))?;
                }
            }
        }
    }
    bench.nothing_allocated(CASE)
}

/// One burst of DELs until no link is left; false where the hypervisor had the processors meanwhile, so that it is not counted.
fn one_round(
    bench: &mut Bench,
    who: usize,
    count: usize,
    kept: bool,
    counts: bool,
) -> Result<bool, BenchError> {
    let pods = bench.attached(CASE, who, count)?;
    let name = bench.subjects[who].name.clone();
    let seen = bench.node.links_left()?;
    if seen != count {
        bench.results.fail(CASE, &name, format!("{count} pods were attached and {seen} macvlans are seen"));
    }
    let round = bench.begin_round(Disturbance::Stolen)?;
    let burst = bench.at_once(who, Verb::Del, &pods)?;
    let (started, answered) = (burst.started, burst.finished);
    for (attachment, done) in pods.iter().zip(&burst.done) {
        if let Some(why) = refusal(done) {
            bench.results.fail(CASE, &name, format!("DEL {}: {why}", attachment.id));
        }
    }
    let (gone, left) = if kept { (bench.node.until_quiet(LIMIT)?, pods) } else { remove(&bench.node, pods)? };
    if counts {
        let readings = if kept {
            ["kept: last answer → last link gone", "kept: first DEL → last link gone"]
        } else {
            ["removed: last answer → last link gone", "removed: first DEL → last link gone"]
        };
        bench.results.read(CASE, &name, readings[0], "ms", between(answered, gone));
        bench.results.read(CASE, &name, readings[1], "ms", between(started, gone));
    }
    let is_kept = bench.end_round(CASE, round)?;
    bench.put_away(left)?;
    Ok(is_kept)
}

/// Removes the namespaces; returns the time at which the last link was gone, and the pods that are left, which
/// are none.
fn remove(node: &Node, pods: Vec<Attachment>) -> Result<(Instant, Vec<Attachment>), NodeError> {
    // Watched while they are removed: what was gone before must not be charged with the removal.
    let gone = thread::scope(|scope| {
        scope.spawn(move || pods.into_iter().for_each(|attachment| attachment.pod.remove()));
        node.until_quiet(LIMIT)
    })?;
    Ok((gone, Vec::new()))
}

/// Why a call failed, if it did.
fn refusal(done: &io::Result<Done>) -> Option<String> {
    match done {
        Ok(done) if done.answer.success => None,
        Ok(done) => Some(done.answer.complaint()),
        Err(e) => Some(e.to_string()),
    }
}

fn between(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64() * 1e3
}
