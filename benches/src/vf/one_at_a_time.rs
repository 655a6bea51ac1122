//! `function-add`, `function-del`: one VF in one pod after the other, from ADD until it is ready again. The
//! subjects take turns of all their VFs each.

use std::time::Instant;

use super::{VfBench, VfRequest, let_machine_settle};
use crate::bench::{BenchError, CallFailure};
use crate::case_size::CaseSize;
use crate::plugin_exec::Verb;
use crate::results::Figure;
use crate::round::until_one_counts;
use crate::statistics::StatisticsError;
use crate::subject::{Done, Role};

pub(super) const ADD: &str = "function-add";
pub(super) const DEL: &str = "function-del";
const VLAN: u16 = 100;

/// The names of one turn's figures.
struct Names {
    add: &'static str,
    del: &'static str,
    ready: &'static str,
}

const AS_IT_IS: Names = Names { add: "ADD", del: "DEL", ready: "ready again" };
const ON_VLAN: Names =
    Names { add: "ADD, other settings", del: "DEL, other settings", ready: "ready again, other settings" };

/// Runs `function-add` and `function-del`.
pub(crate) fn run(bench: &mut VfBench, settings: &CaseSize) -> Result<(), BenchError> {
    for round in 0..settings.warmup + settings.rounds {
        let subjects = bench.subjects.len();
        for at in 0..subjects {
            let who = if round % 2 == 1 { subjects - 1 - at } else { at };
            until_one_counts(|| one_round(bench, who, round >= settings.warmup))?;
        }
    }
    Ok(())
}

/// All VFs of a subject, one after the other; false where the hypervisor had the processors meanwhile, so that they are not counted.
fn one_round(bench: &mut VfBench, who: usize, counts: bool) -> Result<bool, BenchError> {
    let round = bench.begin_round()?;
    for vf in 0..bench.vfs_of(who).len() {
        add_and_del(bench, who, vf, VfRequest::Unchanged, counts)?;
        if bench.subjects[who].role != Role::Floor {
            add_and_del(bench, who, vf, VfRequest::WithVlan(VLAN), counts)?;
        }
    }
    bench.end_round(ADD, round)
}

/// Measures ADD, DEL, and the time until the VF is ready again.
fn add_and_del(
    bench: &mut VfBench,
    who: usize,
    vf: usize,
    wanted: VfRequest,
    counts: bool,
) -> Result<(), BenchError> {
    let names = if wanted == VfRequest::Unchanged { &AS_IT_IS } else { &ON_VLAN };
    for mut pod in bench.pods(who, 1)? {
        let lent = bench.vf_in_pod(who, vf, wanted)?;
        let_machine_settle();
        let done = lent.call(Verb::Add, &pod);
        let added = lent.added(&mut pod, done);
        let_machine_settle();
        let done = lent.call(Verb::Del, &pod);
        let answered = done.as_ref().map_or_else(|_| Instant::now(), |done| done.answer.finished);
        let deleted = lent.deleted(&pod, done);
        let begun = if lent.subject.role == Role::Floor { Instant::now() } else { answered };
        let ready = lent.ready(&pod)?;
        let added = bench.record(ADD, who, names.add, Verb::Add, added, counts)?;
        let deleted = bench.record(DEL, who, names.del, Verb::Del, deleted, counts)?;
        let is_told = bench.subjects[who].role != Role::Peer;
        if is_told && added && deleted && counts {
            bench.figure(DEL, who, names.ready)?.series.record(ready - begun);
        }
    }
    Ok(())
}

impl VfBench {
    /// Keeps a call, or the reason why it does not count; returns whether it was right.
    pub(super) fn record(
        &mut self,
        case: &'static str,
        who: usize,
        what: &'static str,
        verb: Verb,
        outcome: Result<Done, CallFailure>,
        counts: bool,
    ) -> Result<bool, BenchError> {
        let name = self.subjects[who].name.clone();
        match outcome {
            Err(why) => {
                self.results.fail(case, &name, format!("{}: {why}", verb.name()));
                return Ok(false);
            }
            Ok(_) if !counts => {}
            Ok(done) => {
                if let Some((spawn, kernel)) = done.parts {
                    self.results.figure_mut(case, &name, "of it: spawn")?.series.record(spawn);
                    self.results.figure_mut(case, &name, "of it: kernel calls")?.series.record(kernel);
                }
                self.results.figure_mut(case, &name, what)?.series.record(done.answer.latency);
            }
        }
        Ok(true)
    }

    pub(super) fn figure(
        &mut self,
        case: &'static str,
        who: usize,
        what: &'static str,
    ) -> Result<&mut Figure, StatisticsError> {
        self.results.figure_mut(case, &self.subjects[who].name, what)
    }
}
