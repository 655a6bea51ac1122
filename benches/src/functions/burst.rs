//! `function-burst`: many VFs of one NIC at once by a plugin; by the floor one after the other, which is all that the
//! kernel's one lock for links lets anybody hope for.

use std::time::Instant;

use super::{Functions, Lent, Wanted, rest};
use crate::bench::{BenchError, together};
use crate::cases::Settings;
use crate::exec::Verb;
use crate::subject::{Attachment, Role};

const CASE: &str = "function-burst";

/// Runs it.
pub(crate) fn run(vfs: &mut Functions, settings: &Settings) -> Result<(), BenchError> {
    for round in 0..settings.warmup + settings.rounds {
        let subjects = vfs.subjects.len();
        for at in 0..subjects {
            let who = if round % 2 == 1 { subjects - 1 - at } else { at };
            let count = vfs.homes(who).len().min(settings.at_once);
            one_round(vfs, who, count, round >= settings.warmup)?;
        }
    }
    Ok(())
}

fn one_round(vfs: &mut Functions, who: usize, count: usize, counts: bool) -> Result<(), BenchError> {
    let mut pods = vfs.pods(who, count)?;
    let all: Vec<Lent<'_>> =
        (0..count).map(|at| vfs.lent(who, at, Wanted::AsItIs)).collect::<Result<_, _>>()?;
    let is_floor = vfs.subjects[who].role == Role::Floor;
    rest();
    let (outcomes, took) = if is_floor { in_a_row(&all, &mut pods)? } else { at_once(&all, &mut pods)? };
    for (lent, pod) in all.iter().zip(&pods) {
        let deleted = lent.call(Verb::Del, pod);
        // Whether it was right shows in `function-del`; here it is only to be home again.
        drop(deleted);
        lent.ready(pod)?;
    }
    let name = vfs.subjects[who].name.clone();
    let right = outcomes.iter().all(Result::is_ok);
    for why in outcomes.into_iter().filter_map(Result::err) {
        vfs.results.fail(CASE, &name, format!("ADD: {why}"));
    }
    if counts && right {
        let what = if is_floor { ONE_AFTER_THE_OTHER } else { AT_ONCE };
        vfs.results.read(CASE, &name, what, "ms", took * 1e3);
    }
    Ok(())
}

/// What is read of a plugin.
pub(crate) const AT_ONCE: &str = "all at once, first start → last answer";
/// What is read of the floor.
pub(crate) const ONE_AFTER_THE_OTHER: &str = "kernel calls of all, one after the other";

type Outcomes = (Vec<Result<(), String>>, f64);

fn at_once(all: &[Lent<'_>], pods: &mut [Attachment]) -> Result<Outcomes, BenchError> {
    let jobs = all.iter().zip(pods.iter()).map(|(lent, pod)| lent.job(Verb::Add, pod)).collect();
    let Some(first) = all.first() else { return Ok((Vec::new(), 0.0)) };
    let burst = together(first.subject, jobs)?;
    let took = burst.took().as_secs_f64();
    let added = all.iter().zip(pods).zip(burst.done).map(|((lent, pod), done)| lent.added(pod, done));
    Ok((added.map(|outcome| outcome.map(drop).map_err(|e| e.to_string())).collect(), took))
}

fn in_a_row(all: &[Lent<'_>], pods: &mut [Attachment]) -> Result<Outcomes, BenchError> {
    let begun = Instant::now();
    let taken: Vec<_> = all.iter().zip(pods).map(|(lent, pod)| lent.floor(pod).take()).collect();
    let took = begun.elapsed().as_secs_f64();
    Ok((taken.into_iter().map(|outcome| outcome.map_err(|e| e.to_string())).collect(), took))
}
