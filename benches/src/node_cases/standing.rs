//! `add-standing`: how long an ADD takes on a node that is full of pods, against the same on an empty one.
//!
//! What a full node makes slower is the kernel's: longer lists of links, of namespaces and of sysctls.

use std::thread;
use std::time::Duration;

use crate::bench::{Bench, BenchError};
use crate::case_size::CaseSize;
use crate::foreign_cpu::Disturbance;
use crate::plugin_exec::Verb;
use crate::round::until_one_counts;
use crate::subject::Attachment;

/// The pause between two ADDs, so that the after-effects of one are not in the latency of the next.
const PAUSE: Duration = Duration::from_millis(2);
/// So many pods are deleted at once.
const AT_ONCE: usize = 50;

const CASE: &str = "add-standing";

/// The ADDs of an empty node.
pub(crate) const NONE: &str = "ADD beside none";
/// The ADDs of a full one.
pub(crate) const MANY: &str = "ADD beside many";

/// Runs `add-standing`: an ADD on an empty node, and one beside many pods that stand.
pub(crate) fn run(bench: &mut Bench, settings: &CaseSize) -> Result<(), BenchError> {
    for round in 0..settings.warmup + settings.rounds {
        for who in 0..bench.subjects.len() {
            if bench.subjects[who].is_plugin() {
                let counts = round >= settings.warmup;
                for (standing, what) in [(0, NONE), (settings.at_once, MANY)] {
                    let what = counts.then_some(what);
                    until_one_counts(|| one_round(bench, who, settings.calls, standing, what))?;
                }
            }
        }
    }
    bench.nothing_allocated(CASE)
}

/// ADDs beside so many pods; false where others had the processors meanwhile, so that they are not counted.
fn one_round(
    bench: &mut Bench,
    who: usize,
    calls: usize,
    standing: usize,
    what: Option<&'static str>,
) -> Result<bool, BenchError> {
    let standing = bench.attached(CASE, who, standing)?;
    let round = bench.begin_round(Disturbance::StolenOrForeign)?;
    let mut pods = adds(bench, who, calls, what)?;
    let is_kept = bench.end_round(CASE, round)?;
    pods.extend(standing);
    delete(bench, who, pods)?;
    Ok(is_kept)
}

/// Makes ADDs, one at a time.
fn adds(
    bench: &mut Bench,
    who: usize,
    count: usize,
    what: Option<&'static str>,
) -> Result<Vec<Attachment>, BenchError> {
    let mut pods = bench.attachments(who, count)?;
    for attachment in &mut pods {
        let done = bench.subjects[who].job(&bench.node, Verb::Add, attachment).run();
        thread::sleep(PAUSE);
        if let (Some(done), Some(what)) = (bench.added(CASE, who, attachment, done), what) {
            let name = &bench.subjects[who].name;
            bench.results.figure_mut(CASE, name, what)?.series.record(done.answer.latency);
        }
    }
    Ok(pods)
}

fn delete(bench: &mut Bench, who: usize, pods: Vec<Attachment>) -> Result<(), BenchError> {
    for some in pods.chunks(AT_ONCE) {
        for (attachment, done) in some.iter().zip(bench.at_once(who, Verb::Del, some)?.done) {
            bench.deleted(CASE, who, attachment, done);
        }
    }
    bench.put_away(pods)
}
