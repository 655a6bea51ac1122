//! How a plugin treats real VFs (`type: sriov`): behaviours that users rely on, judged alike for every
//! implementation. VFs, PFs and drivers are the machine's own, so the test node uses the machine's network; only
//! `/run` and `/var/lib` are private.
//!
//! Cases run one after the other, and all of one implementation before any of another, because its daemon looks
//! after the VFs that it knows whoever else is at work.

use std::thread;
use std::time::Instant;

use crate::implementation::Implementation;
use crate::report::{Mark, Row};

mod attach;
mod many_at_once;
pub mod nic;
mod refusals;
mod teardown;
mod testbed;
mod vfio;

use nic::Nic;
use testbed::{Fault, VfTestbed};

/// A behaviour that every implementation should have.
#[derive(Debug, Clone, Copy)]
pub struct Behaviour {
    /// The group of the behaviour in the report.
    pub group: &'static str,
    /// What must hold, as a sentence.
    pub title: &'static str,
    judge: fn(&mut VfTestbed<'_>) -> Result<(), Fault>,
}

/// All behaviours, in the report's order.
pub fn all() -> Vec<Behaviour> {
    [attach::CASES, refusals::CASES, teardown::CASES, many_at_once::CASES, vfio::CASES].concat()
}

/// The result of one case.
struct Verdict {
    right: bool,
    said: String,
}

/// Judges the subject, and then the peer, by these cases on two NICs of this machine, and reports a row for each.
/// Only the subject can fail.
pub fn run(
    cases: &[Behaviour],
    nics: &[Nic; 2],
    subject: &Implementation,
    peer: Option<&Implementation>,
    mut report_row: impl FnMut(&Row) + Send,
) {
    let Some(peer) = peer else {
        judge_all(cases, nics, subject, |case, verdict| report_row(&row(case, &verdict, None)));
        return;
    };
    let mut ours = Vec::new();
    judge_all(cases, nics, subject, |_, verdict| ours.push(verdict));
    let mut ours = ours.iter();
    judge_all(cases, nics, peer, |case, theirs| {
        ours.next().into_iter().for_each(|ours| report_row(&row(case, ours, Some(&theirs))));
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

/// Judges on a thread of its own, which can't leave the test node that it enters.
fn judge_all(
    cases: &[Behaviour],
    nics: &[Nic; 2],
    implementation: &Implementation,
    mut said: impl FnMut(&Behaviour, Verdict) + Send,
) {
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut testbed = VfTestbed::new(implementation, nics);
            for case in cases {
                let verdict = match &mut testbed {
                    Ok(testbed) => judge(case, testbed),
                    Err(fault) => {
                        Verdict { right: false, said: format!("the case could not be run: {fault}") }
                    }
                };
                said(case, verdict);
            }
            // The next one makes its own; a VF that is left would be in its way.
            testbed::remove_vfs(nics).ok();
        });
    });
}

fn judge(case: &Behaviour, testbed: &mut VfTestbed<'_>) -> Verdict {
    let begun = Instant::now();
    let judged = (case.judge)(testbed);
    let took = begun.elapsed().as_millis();
    let cleared = testbed.clear(judged.is_ok());
    match judged.and(cleared) {
        Ok(()) => Verdict { right: true, said: format!("({took} ms)") },
        Err(fault) => Verdict { right: false, said: fault.to_string() },
    }
}
