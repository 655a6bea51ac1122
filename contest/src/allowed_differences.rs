//! Differences that are intended, each with the place where it may appear and the reason.

use serde_json::Value;

use crate::diff::{Difference, STEP};

/// The condition under which a difference at an allowed place is the intended one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// It is intended whatever the values are.
    Any,
    /// The reference answers an error with code 999 ("internal", which it uses for every error that it does not
    /// classify), the subject an error with another code.
    Unsorted,
    /// Only the subject has something there.
    OnlySubject,
    /// Only the reference has something there.
    OnlyReference,
    /// The reference answers an error, and the subject succeeds.
    Succeeds,
    /// The reference succeeds, and the subject answers an error with a code.
    Refuses,
}

/// One intended difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllowedDifference {
    /// Path as [`crate::diff`] writes it; a step `*` stands for any one step. Everything below it is covered.
    pub path: &'static str,
    /// The further condition.
    pub when: When,
    /// The reason why the difference is intended.
    pub reason: &'static str,
}

impl AllowedDifference {
    /// Allows whatever differs at or below `path`.
    pub const fn any(path: &'static str, reason: &'static str) -> AllowedDifference {
        AllowedDifference { path, when: When::Any, reason }
    }

    /// Whether this allowance covers a difference.
    pub fn covers(&self, difference: &Difference) -> bool {
        let mut steps = difference.path.split(STEP);
        let here =
            self.path.split(STEP).all(|wanted| steps.next().is_some_and(|s| wanted == "*" || wanted == s));
        here && self.when.holds(difference)
    }
}

impl When {
    fn holds(self, difference: &Difference) -> bool {
        let code = |v: &Option<Value>| {
            v.as_ref().and_then(Value::as_str).and_then(|s| s.strip_prefix("code ")).map(str::to_owned)
        };
        let ok = |v: &Option<Value>| v.as_ref().and_then(Value::as_str) == Some("ok");
        match self {
            When::Any => true,
            When::Unsorted => {
                code(&difference.reference).as_deref() == Some("999") && code(&difference.subject).is_some()
            }
            When::OnlySubject => difference.reference.is_none() && difference.subject.is_some(),
            When::OnlyReference => difference.subject.is_none() && difference.reference.is_some(),
            When::Succeeds => code(&difference.reference).is_some() && ok(&difference.subject),
            When::Refuses => ok(&difference.reference) && code(&difference.subject).is_some(),
        }
    }
}

/// An error of ADD or CHECK, or one of STATUS, may have another code than the reference's 999. One of DEL is not among them: DEL succeeds
/// where anything can be removed, and a row says where it can't.
const fn unsorted(path: &'static str) -> AllowedDifference {
    AllowedDifference { path, when: When::Unsorted, reason: SORTED }
}

/// The reason for which an error has a code of its own.
pub const SORTED: &str =
    "the reference gives 999 to every error that it does not sort; a code of the specification says more";

/// What may differ on every row, because the design has decided so.
pub const EVERYWHERE: &[AllowedDifference] = &[
    unsorted("add > verdict"),
    unsorted("check"),
    unsorted("status"),
    // Of a probe, which has a name of its own.
    unsorted("* > found"),
    AllowedDifference {
        path: "added > pod > interfaces > * > addresses > * > nodad",
        when: When::OnlySubject,
        reason: "an IPv6 address is usable when ADD answers: no waiting for the kernel's duplicate address detection",
    },
    AllowedDifference {
        path: "added > pod > interfaces > * > addresses > * > optimistic",
        when: When::OnlySubject,
        reason: "an IPv6 address is usable when ADD answers: no waiting for the kernel's duplicate address detection",
    },
    AllowedDifference::any(
        "added > pod > sysctl > * > ipv6/conf > ndisc_notify",
        "where a pod has IPv4 addresses only it is set with their announcement, some 10 to 100 ms after the answer: until an IPv6 \
         address comes there is nothing that the kernel could announce, and no message sets it",
    ),
];

/// The reason why a difference is intended; `None` when it is not.
pub fn reason(difference: &Difference, row: &[AllowedDifference]) -> Option<&'static str> {
    row.iter()
        .chain(EVERYWHERE)
        .find(|allowance| allowance.covers(difference))
        .map(|allowance| allowance.reason)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn difference(path: &str, reference: Value, subject: Value) -> Difference {
        Difference { path: path.into(), reference: Some(reference), subject: Some(subject) }
    }

    #[test]
    fn an_allowance_covers_its_place_and_all_below_and_nothing_beside() {
        let allowance = AllowedDifference::any("added > pod > * > mtu", "why");
        assert!(allowance.covers(&difference("added > pod > eth0 > mtu > deep", json!(1), json!(2))));
        assert!(!allowance.covers(&difference("added > pod > eth0", json!(1), json!(2))));
        assert!(!allowance.covers(&difference("added > pod > eth0 > mac", json!(1), json!(2))));
    }

    #[test]
    fn another_code_of_del_is_allowed_nowhere_but_where_the_row_says_so() {
        let of = |path: &str, row: &[AllowedDifference]| {
            reason(&difference(path, json!("code 999"), json!("code 7")), row).is_some()
        };
        for path in ["add > verdict", "check > macvlan", "status", "probe link gone > found > macvlan"] {
            assert!(of(path, &[]), "{path}");
        }
        for path in ["del > macvlan", "del again > macvlan", "probe link gone > del > macvlan"] {
            assert!(!of(path, &[]), "{path}");
        }
        let row = [AllowedDifference { path: "del", when: When::Unsorted, reason: "why" }];
        assert!(of("del > macvlan", &row) && !of("del again > macvlan", &row));
    }

    #[test]
    fn an_unsorted_error_may_become_a_sorted_one_but_never_a_success() {
        assert!(reason(&difference("add > verdict", json!("code 999"), json!("code 7")), &[]).is_some());
        assert!(reason(&difference("add > verdict", json!("code 999"), json!("ok")), &[]).is_none());
        assert!(reason(&difference("add > verdict", json!("code 4"), json!("code 7")), &[]).is_none());
        assert!(
            reason(&difference("add > verdict", json!("code 999"), json!("no error object (exit 2)")), &[])
                .is_none()
        );
    }
}
