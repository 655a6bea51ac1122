//! `function-burst`: many VFs of one NIC at once by a plugin. The floor takes them one after the other, which is
//! all that the kernel's one lock for links allows.

use std::time::Instant;

use super::{VfBench, VfInPod, VfRequest, let_machine_settle};
use crate::bench::{BenchError, together};
use crate::case_size::CaseSize;
use crate::plugin_exec::Verb;
use crate::round::until_one_counts;
use crate::subject::{Attachment, Role};

const CASE: &str = "function-burst";

/// Runs `function-burst`.
pub(crate) fn run(bench: &mut VfBench, settings: &CaseSize) -> Result<(), BenchError> {
    for round in 0..settings.warmup + settings.rounds {
        let subjects = bench.subjects.len();
        for at in 0..subjects {
            let who = if round % 2 == 1 { subjects - 1 - at } else { at };
            let count = bench.vfs_of(who).len().min(settings.at_once);
            until_one_counts(|| one_round(bench, who, count, round >= settings.warmup))?;
        }
    }
    Ok(())
}

/// So many VFs at once; false where the hypervisor had the processors meanwhile, so that they are not counted.
fn one_round(bench: &mut VfBench, who: usize, count: usize, counts: bool) -> Result<bool, BenchError> {
    let mut pods = bench.pods(who, count)?;
    let round = bench.begin_round()?;
    let all: Vec<VfInPod<'_>> =
        (0..count).map(|at| bench.vf_in_pod(who, at, VfRequest::Unchanged)).collect::<Result<_, _>>()?;
    let is_floor = bench.subjects[who].role == Role::Floor;
    let_machine_settle();
    let (outcomes, took) = if is_floor { in_a_row(&all, &mut pods)? } else { at_once(&all, &mut pods)? };
    for (lent, pod) in all.iter().zip(&pods) {
        let deleted = lent.call(Verb::Del, pod);
        // `function-del` shows whether DEL was right; here the VF only has to be on the host again.
        drop(deleted);
        lent.ready(pod)?;
    }
    let name = bench.subjects[who].name.clone();
    let right = outcomes.iter().all(Result::is_ok);
    for why in outcomes.into_iter().filter_map(Result::err) {
        bench.results.fail(CASE, &name, format!("ADD: {why}"));
    }
    if counts && right {
        let what = if is_floor { ONE_AFTER_THE_OTHER } else { AT_ONCE };
        bench.results.read(CASE, &name, what, "ms", took * 1e3);
    }
    bench.end_round(CASE, round)
}

/// The name of a plugin's figure.
pub(crate) const AT_ONCE: &str = "all at once, first start → last answer";
/// The name of the floor's figure.
pub(crate) const ONE_AFTER_THE_OTHER: &str = "kernel calls of all, one after the other";

type Outcomes = (Vec<Result<(), String>>, f64);

fn at_once(all: &[VfInPod<'_>], pods: &mut [Attachment]) -> Result<Outcomes, BenchError> {
    let jobs = all.iter().zip(pods.iter()).map(|(lent, pod)| lent.job(Verb::Add, pod)).collect();
    let Some(first) = all.first() else { return Ok((Vec::new(), 0.0)) };
    let burst = together(first.subject, jobs)?;
    let took = burst.took().as_secs_f64();
    let added = all.iter().zip(pods).zip(burst.done).map(|((lent, pod), done)| lent.added(pod, done));
    Ok((added.map(|outcome| outcome.map(drop).map_err(|e| e.to_string())).collect(), took))
}

fn in_a_row(all: &[VfInPod<'_>], pods: &mut [Attachment]) -> Result<Outcomes, BenchError> {
    let begun = Instant::now();
    let taken: Vec<_> = all.iter().zip(pods).map(|(lent, pod)| lent.floor(pod).take()).collect();
    let took = begun.elapsed().as_secs_f64();
    Ok((taken.into_iter().map(|outcome| outcome.map_err(|e| e.to_string())).collect(), took))
}
