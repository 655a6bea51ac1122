//! How a plugin treats real VFs (`type: sriov`): behaviours that users rely on, each judged alike for
//! whoever is judged. A VF is the machine's own, with its PF and its driver, so that the stage is the
//! machine's network; only `/run` and `/var/lib` are a stage's.
//!
//! Cases are one after the other, and all of one implementation before any of another: its daemon looks after the
//! VFs that it knows, whoever else is at work.

use std::thread;
use std::time::Instant;

use crate::implementation::Implementation;
use crate::report::{Mark, Row};

mod crowd;
mod ends;
mod lending;
pub mod nic;
mod refusals;
mod user_space;
mod world;

use nic::Nic;
use world::{Fault, World};

/// Something that a plugin should do.
#[derive(Debug, Clone, Copy)]
pub struct Behaviour {
    /// What it is about.
    pub group: &'static str,
    /// What must hold, as a sentence.
    pub title: &'static str,
    judge: fn(&mut World<'_>) -> Result<(), Fault>,
}

/// All of them.
pub fn all() -> Vec<Behaviour> {
    [lending::CASES, refusals::CASES, ends::CASES, crowd::CASES, user_space::CASES].concat()
}

/// How a case came out.
struct Verdict {
    right: bool,
    said: String,
}

/// Puts the subject, and then the peer, to these cases on two NICs of this machine, and tells a row of each.
/// Only the subject's can fail.
pub fn run(
    cases: &[Behaviour],
    nics: &[Nic; 2],
    subject: &Implementation,
    peer: Option<&Implementation>,
    mut tell: impl FnMut(&Row) + Send,
) {
    let Some(peer) = peer else {
        judge_all(cases, nics, subject, |case, verdict| tell(&row(case, &verdict, None)));
        return;
    };
    let mut ours = Vec::new();
    judge_all(cases, nics, subject, |_, verdict| ours.push(verdict));
    let mut ours = ours.iter();
    judge_all(cases, nics, peer, |case, theirs| {
        ours.next().into_iter().for_each(|ours| tell(&row(case, ours, Some(&theirs))));
    });
}

fn row(case: &Behaviour, ours: &Verdict, theirs: Option<&Verdict>) -> Row {
    let sign = |verdict: &Verdict| format!("{} {}", if verdict.right { '✓' } else { '✗' }, verdict.said);
    Row {
        group: case.group,
        title: case.title.to_owned(),
        mark: if ours.right { Mark::Passed } else { Mark::Failed },
        reference: theirs.map(sign).unwrap_or_default(),
        subject: sign(ours),
        notes: if ours.right { Vec::new() } else { vec![ours.said.clone()] },
    }
}

/// Judges on a thread of its own, which can't leave the stage that it enters.
fn judge_all(
    cases: &[Behaviour],
    nics: &[Nic; 2],
    implementation: &Implementation,
    mut said: impl FnMut(&Behaviour, Verdict) + Send,
) {
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut world = World::new(implementation, nics);
            for case in cases {
                let verdict = match &mut world {
                    Ok(world) => judge(case, world),
                    Err(fault) => {
                        Verdict { right: false, said: format!("the case could not be run: {fault}") }
                    }
                };
                said(case, verdict);
            }
            // The next one makes its own; a VF that is left would be in its way.
            world::unfurnish(nics).ok();
        });
    });
}

fn judge(case: &Behaviour, world: &mut World<'_>) -> Verdict {
    let begun = Instant::now();
    let judged = (case.judge)(world);
    let took = begun.elapsed().as_millis();
    let cleared = world.clear(judged.is_ok());
    match judged.and(cleared) {
        Ok(()) => Verdict { right: true, said: format!("({took} ms)") },
        Err(fault) => Verdict { right: false, said: fault.to_string() },
    }
}
