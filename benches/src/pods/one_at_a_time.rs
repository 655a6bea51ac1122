//! `pod-add`, `pod-del`: one pod at a time, the subjects in turn.

use std::time::Duration;

use super::{PodBench, names_of};
use crate::bench::BenchError;
use crate::case_size::CaseSize;
use crate::node_cases::one_at_a_time::{Course, in_scores, one_round};

/// The pause lets network-status be written, which is not part of any answer.
const PODS: Course = Course { add: "pod-add", del: "pod-del", pause: Duration::from_millis(25) };

/// Runs both.
pub(crate) fn run(run: &mut PodBench, settings: &CaseSize) -> Result<(), BenchError> {
    in_scores(settings.warmup + settings.calls, |first, count| {
        let mut pods = Vec::new();
        for who in 0..run.bench.subjects.len() {
            pods.push(run.pods(who, count)?);
        }
        let is_kept = one_round(&mut run.bench, &PODS, &mut pods, first, settings.warmup)?;
        let pods: Vec<_> = pods.into_iter().flatten().collect();
        let names = names_of(&pods);
        run.bench.put_away(pods)?;
        run.forget(&names)?;
        Ok(is_kept)
    })?;
    run.bench.nothing_allocated(PODS.del)
}
