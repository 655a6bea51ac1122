//! `pod-burst-100`: many pods at once, one subject after the other in every round.

use super::{PodBench, names_of};
use crate::bench::BenchError;
use crate::case_size::CaseSize;
pub(crate) use crate::node_cases::burst::WITH_ALL_STARTED;
use crate::node_cases::burst::{one_round, plugins_memory};
use crate::round::until_one_counts;

const CASE: &str = "pod-burst-100";

/// Runs it.
pub(crate) fn run(run: &mut PodBench, settings: &CaseSize) -> Result<(), BenchError> {
    for round in 0..settings.warmup + settings.rounds {
        for who in 0..run.bench.subjects.len() {
            until_one_counts(|| {
                let pods = run.pods(who, settings.at_once)?;
                let names = names_of(&pods);
                let is_kept = one_round(&mut run.bench, CASE, who, pods, round >= settings.warmup)?;
                run.forget(&names)?;
                Ok(is_kept)
            })?;
        }
    }
    for who in 0..run.bench.subjects.len() {
        let pods = run.pods(who, settings.at_once)?;
        let names = names_of(&pods);
        plugins_memory(&mut run.bench, CASE, who, pods)?;
        run.forget(&names)?;
    }
    run.bench.nothing_allocated(CASE)
}
