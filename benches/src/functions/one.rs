//! `function-add`, `function-del`: the whole life of one VF in one pod after the other, the subjects taking turns of
//! all their VFs each.

use std::time::Instant;

use super::{Functions, Wanted, rest};
use crate::bench::{BenchError, CallFailure};
use crate::cases::Settings;
use crate::exec::Verb;
use crate::results::Figure;
use crate::statistics::StatisticsError;
use crate::subject::{Done, Role};

pub(super) const ADD: &str = "function-add";
pub(super) const DEL: &str = "function-del";
const VLAN: u16 = 100;

/// What the calls of a turn are called.
struct Names {
    add: &'static str,
    del: &'static str,
    ready: &'static str,
}

const AS_IT_IS: Names = Names { add: "ADD", del: "DEL", ready: "ready again" };
const ON_VLAN: Names =
    Names { add: "ADD, other settings", del: "DEL, other settings", ready: "ready again, other settings" };

/// Runs it.
pub(crate) fn run(vfs: &mut Functions, settings: &Settings) -> Result<(), BenchError> {
    for round in 0..settings.warmup + settings.rounds {
        let subjects = vfs.subjects.len();
        for at in 0..subjects {
            let who = if round % 2 == 1 { subjects - 1 - at } else { at };
            let counts = round >= settings.warmup;
            for vf in 0..vfs.homes(who).len() {
                life(vfs, who, vf, Wanted::AsItIs, counts)?;
                if vfs.subjects[who].role != Role::Floor {
                    life(vfs, who, vf, Wanted::OnVlan(VLAN), counts)?;
                }
            }
        }
    }
    Ok(())
}

/// ADD, DEL, and home again.
fn life(
    vfs: &mut Functions,
    who: usize,
    vf: usize,
    wanted: Wanted,
    counts: bool,
) -> Result<(), BenchError> {
    let names = if wanted == Wanted::AsItIs { &AS_IT_IS } else { &ON_VLAN };
    for mut pod in vfs.pods(who, 1)? {
        let lent = vfs.lent(who, vf, wanted)?;
        rest();
        let done = lent.call(Verb::Add, &pod);
        let added = lent.added(&mut pod, done);
        rest();
        let done = lent.call(Verb::Del, &pod);
        let answered = done.as_ref().map_or_else(|_| Instant::now(), |done| done.answer.finished);
        let deleted = lent.deleted(&pod, done);
        let begun = if lent.subject.role == Role::Floor { Instant::now() } else { answered };
        let ready = lent.ready(&pod)?;
        let added = vfs.record(ADD, who, names.add, Verb::Add, added, counts)?;
        let deleted = vfs.record(DEL, who, names.del, Verb::Del, deleted, counts)?;
        let is_told = vfs.subjects[who].role != Role::Peer;
        if is_told && added && deleted && counts {
            vfs.figure(DEL, who, names.ready)?.series.record(ready - begun);
        }
    }
    Ok(())
}

impl Functions {
    /// Keeps a call, or why it does not count; answers whether it was right.
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
