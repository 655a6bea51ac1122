//! The table of cases: their names, what they show, and how much of it is done.

use std::time::Duration;

use crate::bench::{Bench, BenchError};
use crate::case_size::CaseSize;
use crate::node_cases;
use crate::vf::{self, VfBench};

/// A procedure that yields the figures of one or two cases.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Procedure {
    /// The case runs on the private node.
    Node(fn(&mut Bench, &CaseSize) -> Result<(), BenchError>),
    /// The case runs with VFs of this machine.
    Vfs(fn(&mut VfBench, &CaseSize) -> Result<(), BenchError>),
}

/// One case of the suite.
#[derive(Debug)]
pub(crate) struct Case {
    /// The name that `--only` takes.
    pub(crate) name: &'static str,
    /// What the case shows, for `--list` and the report.
    pub(crate) about: &'static str,
    /// The size of the case.
    pub(crate) settings: CaseSize,
    /// The size of the case with `--quick`.
    pub(crate) quick: CaseSize,
    /// The procedure that measures it.
    pub(crate) procedure: Procedure,
    /// The case whose procedure measures this one too.
    pub(crate) beside: Option<&'static str>,
}

const fn settings(warmup: usize, calls: usize, rounds: usize, at_once: usize, seconds: u64) -> CaseSize {
    CaseSize { warmup, calls, rounds, at_once, time: Duration::from_secs(seconds) }
}

/// All cases, in the order in which they are run.
pub(crate) const CASES: &[Case] = &[
    Case {
        name: "add-one",
        about: "ADD of macvlan + host-local, one at a time, 20 of each subject in turn",
        settings: settings(20, 400, 0, 1, 0),
        quick: settings(1, 4, 0, 1, 0),
        procedure: Procedure::Node(node_cases::one_at_a_time::run),
        beside: None,
    },
    Case {
        name: "del-one",
        about: "DEL, one at a time, 20 of each subject in turn",
        settings: settings(20, 400, 0, 1, 0),
        quick: settings(1, 4, 0, 1, 0),
        procedure: Procedure::Node(node_cases::one_at_a_time::run),
        beside: Some("add-one"),
    },
    Case {
        name: "burst-100",
        about: "100 ADDs at once, then 100 DELs at once",
        settings: settings(1, 0, 10, 100, 0),
        quick: settings(0, 0, 1, 8, 0),
        procedure: Procedure::Node(node_cases::burst::hundred),
        beside: None,
    },
    Case {
        name: "add-under-del",
        about: "ADD while 50 DELs a second run, against ADD when nothing else happens",
        settings: settings(0, 150, 4, 100, 0),
        quick: settings(0, 5, 1, 5, 0),
        procedure: Procedure::Node(node_cases::add_under_del::run),
        beside: None,
    },
    Case {
        name: "silence",
        about: "the last DEL's answer → the last link gone, 100 pods, namespaces kept and removed",
        settings: settings(0, 0, 5, 100, 0),
        quick: settings(0, 0, 1, 5, 0),
        procedure: Procedure::Node(node_cases::link_removal::run),
        beside: None,
    },
    Case {
        name: "storm-500",
        about: "500 ADDs at once: none fails, and what memory that takes",
        settings: settings(0, 0, 2, 500, 0),
        quick: settings(0, 0, 1, 12, 0),
        procedure: Procedure::Node(node_cases::burst::storm),
        beside: None,
    },
    Case {
        name: "idle",
        about: "CPU time and memory of a daemon that nobody calls",
        settings: settings(0, 0, 1, 0, 20),
        quick: settings(0, 0, 1, 0, 1),
        procedure: Procedure::Node(node_cases::idle::run),
        beside: None,
    },
    Case {
        name: "function-add",
        about: "ADD of a VF as it is, and with a VLAN and a rate, one at a time, all of each subject in turn",
        settings: settings(1, 0, 3, 1, 0),
        quick: settings(0, 0, 1, 1, 0),
        procedure: Procedure::Vfs(vf::one_at_a_time::run),
        beside: None,
    },
    Case {
        name: "function-del",
        about: "DEL of them, and the time from its answer until the VF can be lent again",
        settings: settings(1, 0, 3, 1, 0),
        quick: settings(0, 0, 1, 1, 0),
        procedure: Procedure::Vfs(vf::one_at_a_time::run),
        beside: Some("function-add"),
    },
    Case {
        name: "function-burst",
        about: "all VFs of one NIC at once, against one after the other by the floor",
        settings: settings(1, 0, 3, 7, 0),
        quick: settings(0, 0, 1, 2, 0),
        procedure: Procedure::Vfs(vf::burst::run),
        beside: None,
    },
    Case {
        name: "function-vfio",
        about: "ADD of a VF that vfio-pci has, and of a macvlan on its NIC; until it can be given again; a reset",
        settings: settings(1, 0, 10, 1, 0),
        quick: settings(0, 0, 1, 1, 0),
        procedure: Procedure::Vfs(vf::vfio::run),
        beside: None,
    },
];

/// The cases of these names, with VFs or without; all of them when no name is given. The error holds the names
/// that are no case.
pub(crate) fn chosen(names: &[String], vfs: bool) -> Result<Vec<&'static Case>, Vec<String>> {
    let all = || CASES.iter().filter(|c| matches!(c.procedure, Procedure::Vfs(_)) == vfs);
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
