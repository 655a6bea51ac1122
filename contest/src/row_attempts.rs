//! How often a row is run: once, unless what went wrong tells of a busy machine.
//!
//! A wrong answer is final. A run in which the reference failed says nothing of the subject, and is silently made again. One in which only
//! the subject ran out of time is made again too, but what it found stays in the report.

use serde_json::Value;

use crate::diff::{Difference, STEP};
use crate::implementation::Verdict;
use crate::link_removal;
use crate::run_row::Outcome;

/// The most runs of one row.
const MOST_RUNS: usize = 3;

/// Whose faults a run has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The reference did something else than the row says, or ran out of time.
    Reference,
    /// The subject ran out of time, and has answered nothing wrong.
    TimeLimit,
    /// The subject was wrong.
    Subject,
}

/// Takes the outcome of a first run, and makes further ones as long as load may explain what the last has found.
pub(crate) fn until_final<E>(
    first: Outcome,
    mut again: impl FnMut() -> Result<Outcome, E>,
) -> Result<Outcome, E> {
    let (mut last, mut earlier) = (first, Vec::new());
    for run in 1..MOST_RUNS {
        match last.cause {
            None | Some(Cause::Subject) => break,
            Some(Cause::Reference) => {}
            Some(Cause::TimeLimit) => {
                earlier.extend(last.faults.iter().map(|fault| format!("run {run}: {fault}")));
            }
        }
        last = again()?;
        last.runs = run + 1;
    }
    last.earlier = earlier;
    Ok(last)
}

/// Whether a call did not end, or a link lived on for too long, in all that was seen of one implementation.
pub(crate) fn ran_out_of_time(seen: &Value) -> bool {
    match seen {
        Value::Object(map) => {
            let links = map.get(link_removal::SEEN_AS).is_some_and(|links| links != link_removal::IN_TIME);
            links || map.values().any(ran_out_of_time)
        }
        Value::String(text) => *text == Verdict::Hung.to_string(),
        _ => false,
    }
}

/// Whether the subject's faults are a time limit's. With `settled` its interfaces came to rest before they were compared.
pub(crate) fn cause_in_subject(faults: &[Difference], settled: bool) -> Cause {
    let is_late = |fault: &Difference| {
        let is_state = ["added", "removed"].iter().any(|step| fault.path.split(STEP).next() == Some(step));
        is_late_answer(fault) || fault.path == link_removal::SEEN_AS || is_state && !settled
    };
    let is_wrong = |fault: &Difference| match [&fault.reference, &fault.subject].map(answer) {
        [reference, "ok"] => is_error(reference),
        [_, subject] => is_error(subject) && !is_late_answer(fault),
    };
    if faults.iter().any(is_late) && !faults.iter().any(is_wrong) { Cause::TimeLimit } else { Cause::Subject }
}

/// Whether the subject did not end, or asked for another call later (CNI codes 11 and 50), where the reference did not.
fn is_late_answer(fault: &Difference) -> bool {
    let subject = answer(&fault.subject);
    ["code 11", "code 50"].contains(&subject) || subject == Verdict::Hung.to_string()
}

fn answer(seen: &Option<Value>) -> &str {
    seen.as_ref().and_then(Value::as_str).unwrap_or_default()
}

fn is_error(answer: &str) -> bool {
    answer.starts_with("code ") || answer.starts_with("no error object")
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use serde_json::json;

    use super::*;

    fn outcome(cause: Option<Cause>) -> Outcome {
        let faults = cause.map(|cause| format!("{cause:?}")).into_iter().collect();
        let adds = [String::new(), String::new()];
        Outcome { faults, cause, runs: 1, earlier: Vec::new(), allowed: Vec::new(), adds }
    }

    /// The last outcome of runs with these causes.
    fn after(causes: &[Option<Cause>]) -> Outcome {
        let mut runs = causes.iter().copied().map(outcome);
        let first = runs.next().unwrap();
        let Ok(last) = until_final(first, || Ok::<_, Infallible>(runs.next().unwrap()));
        assert_eq!(runs.count(), 0);
        last
    }

    fn fault(path: &str, reference: &str, subject: &str) -> Difference {
        Difference { path: path.into(), reference: Some(json!(reference)), subject: Some(json!(subject)) }
    }

    #[test]
    fn a_wrong_answer_is_final() {
        let last = after(&[Some(Cause::Subject)]);
        assert_eq!((last.faults.len(), last.runs), (1, 1));
        let last = after(&[Some(Cause::Reference), Some(Cause::Subject)]);
        assert_eq!((last.faults.len(), last.runs, last.earlier.len()), (1, 2, 0));
    }

    #[test]
    fn a_run_in_which_the_reference_failed_is_made_again_without_a_word() {
        let last = after(&[Some(Cause::Reference), Some(Cause::Reference), None]);
        assert_eq!((last.faults.len(), last.earlier.len()), (0, 0));
        assert_eq!(after(&[Some(Cause::Reference); MOST_RUNS]).faults.len(), 1);
    }

    #[test]
    fn what_ran_out_of_time_first_is_kept_when_a_later_run_passes() {
        let last = after(&[Some(Cause::TimeLimit), None]);
        assert_eq!((last.faults.len(), last.runs), (0, 2));
        assert_eq!(last.earlier, ["run 1: TimeLimit"]);
        assert_eq!(after(&[Some(Cause::TimeLimit); MOST_RUNS]).faults.len(), 1);
    }

    #[test]
    fn only_a_time_limit_is_explained_by_load() {
        let of = |faults: &[Difference], settled| cause_in_subject(faults, settled);
        let hung = Verdict::Hung.to_string();
        let wrong = fault("add > verdict", "ok", "code 7");
        assert_eq!(of(std::slice::from_ref(&wrong), true), Cause::Subject);
        assert_eq!(of(&[fault("add > verdict", "code 999", "ok")], true), Cause::Subject);
        for late in ["code 11", "code 50", &hung] {
            // CHECK and STATUS are not called then, whatever the reference answers.
            let not_called = Difference { subject: None, ..fault("status", "code 1", "") };
            assert_eq!(of(&[fault("add > verdict", "ok", late), not_called], true), Cause::TimeLimit);
            assert_eq!(of(&[fault("status", "ok", late), wrong.clone()], true), Cause::Subject);
        }
        let links = fault(link_removal::SEEN_AS, link_removal::IN_TIME, "there for 4 s");
        assert_eq!(of(&[links], true), Cause::TimeLimit);
        let state = fault("added > pod > interfaces > eth0 > operstate", "UP", "DOWN");
        assert_eq!(of(std::slice::from_ref(&state), true), Cause::Subject);
        assert_eq!(of(&[state], false), Cause::TimeLimit);
    }

    #[test]
    fn a_call_that_does_not_end_is_found_wherever_it_was_made() {
        assert!(ran_out_of_time(&json!({"check": {"macvlan": Verdict::Hung.to_string()}})));
        assert!(ran_out_of_time(&json!({link_removal::SEEN_AS: "there for 4 s"})));
        let in_time = json!({"add": {"verdict": "code 7"}, link_removal::SEEN_AS: link_removal::IN_TIME});
        assert!(!ran_out_of_time(&in_time));
    }
}
