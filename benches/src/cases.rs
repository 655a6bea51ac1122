//! The table of cases: their names, what they show, and how much of it is done.

use std::time::Duration;

use crate::bench::{Bench, BenchError};
use crate::course;
use crate::vfs::{self, Functions};

/// How much is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Settings {
    /// Calls (one at a time) or rounds (many at once) that are made first and not counted.
    pub(crate) warmup: usize,
    /// Calls of each subject that are counted.
    pub(crate) calls: usize,
    /// Rounds that are counted.
    pub(crate) rounds: usize,
    /// Calls at once; in `add-under-del` the number of DELs.
    pub(crate) at_once: usize,
    /// How long an idle daemon is watched.
    pub(crate) time: Duration,
}

/// One procedure; two cases may be two sides of it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Course {
    /// On the private node.
    Node(fn(&mut Bench, &Settings) -> Result<(), BenchError>),
    /// With VFs of this machine.
    Functions(fn(&mut Functions, &Settings) -> Result<(), BenchError>),
}

/// A case.
#[derive(Debug)]
pub(crate) struct Case {
    /// What `--only` takes.
    pub(crate) name: &'static str,
    /// What it shows.
    pub(crate) about: &'static str,
    /// How much is done.
    pub(crate) settings: Settings,
    /// How much is done with `--quick`.
    pub(crate) quick: Settings,
    /// How.
    pub(crate) course: Course,
    /// The case whose course measures this one too.
    pub(crate) beside: Option<&'static str>,
}

const fn settings(warmup: usize, calls: usize, rounds: usize, at_once: usize, seconds: u64) -> Settings {
    Settings { warmup, calls, rounds, at_once, time: Duration::from_secs(seconds) }
}

/// All cases, in the order in which they are run.
pub(crate) const CASES: &[Case] = &[
    Case {
        name: "add-one",
        about: "ADD of macvlan + host-local, one at a time, 20 of each subject in turn",
        settings: settings(20, 400, 0, 1, 0),
        quick: settings(1, 4, 0, 1, 0),
        course: Course::Node(course::one::run),
        beside: None,
    },
    Case {
        name: "del-one",
        about: "DEL, one at a time, 20 of each subject in turn",
        settings: settings(20, 400, 0, 1, 0),
        quick: settings(1, 4, 0, 1, 0),
        course: Course::Node(course::one::run),
        beside: Some("add-one"),
    },
    Case {
        name: "burst-100",
        about: "100 ADDs at once, then 100 DELs at once",
        settings: settings(1, 0, 10, 100, 0),
        quick: settings(0, 0, 1, 8, 0),
        course: Course::Node(course::burst::hundred),
        beside: None,
    },
    Case {
        name: "add-under-del",
        about: "ADD while 50 DELs a second run, against ADD when nothing else happens",
        settings: settings(0, 150, 4, 100, 0),
        quick: settings(0, 5, 1, 5, 0),
        course: Course::Node(course::contention::run),
        beside: None,
    },
    Case {
        name: "silence",
        about: "the last DEL's answer → the last link gone, 100 pods, namespaces kept and removed",
        settings: settings(0, 0, 5, 100, 0),
        quick: settings(0, 0, 1, 5, 0),
        course: Course::Node(course::silence::run),
        beside: None,
    },
    Case {
        name: "storm-500",
        about: "500 ADDs at once: none fails, and what memory that takes",
        settings: settings(0, 0, 2, 500, 0),
        quick: settings(0, 0, 1, 12, 0),
        course: Course::Node(course::burst::storm),
        beside: None,
    },
    Case {
        name: "idle",
        about: "CPU time and memory of a daemon that nobody calls",
        settings: settings(0, 0, 1, 0, 20),
        quick: settings(0, 0, 1, 0, 1),
        course: Course::Node(course::idle::run),
        beside: None,
    },
    Case {
        name: "function-add",
        about: "ADD of a VF as it is, and with a VLAN and a rate, one at a time, all of each subject in turn",
        settings: settings(1, 0, 3, 1, 0),
        quick: settings(0, 0, 1, 1, 0),
        course: Course::Functions(vfs::one::run),
        beside: None,
    },
    Case {
        name: "function-del",
        about: "DEL of them, and the time from its answer until the VF can be lent again",
        settings: settings(1, 0, 3, 1, 0),
        quick: settings(0, 0, 1, 1, 0),
        course: Course::Functions(vfs::one::run),
        beside: Some("function-add"),
    },
    Case {
        name: "function-burst",
        about: "all VFs of one NIC at once, against one after the other by the floor",
        settings: settings(1, 0, 3, 7, 0),
        quick: settings(0, 0, 1, 2, 0),
        course: Course::Functions(vfs::burst::run),
        beside: None,
    },
    Case {
        name: "function-vfio",
        about: "ADD of a VF that vfio-pci has, and of a macvlan on its NIC; until it can be given again; a reset",
        settings: settings(1, 0, 10, 1, 0),
        quick: settings(0, 0, 1, 1, 0),
        course: Course::Functions(vfs::vfio::run),
        beside: None,
    },
];

/// The cases of that name, with VFs or without; all of them when none is named. The names that are no such
/// case's are the error.
pub(crate) fn chosen(names: &[String], vfs: bool) -> Result<Vec<&'static Case>, Vec<String>> {
    let all = || CASES.iter().filter(|c| matches!(c.course, Course::Functions(_)) == vfs);
    let unknown: Vec<_> = names.iter().filter(|n| !all().any(|c| c.name == n.as_str())).cloned().collect();
    if !unknown.is_empty() {
        return Err(unknown);
    }
    Ok(all().filter(|c| names.is_empty() || names.iter().any(|n| n == c.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_that_does_not_exist_is_named() {
        assert_eq!(chosen(&["idle".to_owned(), "fast".to_owned()], false).unwrap_err(), ["fast"]);
        assert_eq!(chosen(&["idle".to_owned()], false).unwrap().len(), 1);
        assert_eq!(chosen(&["idle".to_owned()], true).unwrap_err(), ["idle"]);
        assert_eq!(chosen(&[], false).unwrap().len() + chosen(&[], true).unwrap().len(), CASES.len());
    }

    #[test]
    fn the_names_of_cases_are_unique() {
        for (at, case) in CASES.iter().enumerate() {
            assert!(CASES[at + 1..].iter().all(|other| other.name != case.name));
        }
    }
}
