//! The table of cases: their names, what they show, and how much of it is done.

use std::time::Duration;

use crate::bench::{Bench, BenchError};
use crate::case_size::CaseSize;
use crate::node_cases;
use crate::pods::{self, PodBench};
use crate::switches::{self, SwitchBench};
use crate::vf::{self, VfBench};

/// A procedure that yields the figures of one or two cases.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Procedure {
    /// The case runs on the private node.
    Node(fn(&mut Bench, &CaseSize) -> Result<(), BenchError>),
    /// The case runs on the private node, which is one of a cluster.
    Pods(fn(&mut PodBench, &CaseSize) -> Result<(), BenchError>),
    /// The case runs with switches of vhost-user ports.
    Switches(fn(&mut SwitchBench, &CaseSize) -> Result<(), BenchError>),
    /// The case runs with VFs of this machine.
    Vfs(fn(&mut VfBench, &CaseSize) -> Result<(), BenchError>),
}

/// Where a case runs: the cases of one place are a suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// On the private node.
    Node,
    /// On the private node, which is one of a cluster.
    Cluster,
    /// With switches of vhost-user ports.
    Switches,
    /// With VFs of this machine.
    Vfs,
}

impl Procedure {
    fn place(self) -> Place {
        match self {
            Procedure::Node(_) => Place::Node,
            Procedure::Pods(_) => Place::Cluster,
            Procedure::Switches(_) => Place::Switches,
            Procedure::Vfs(_) => Place::Vfs,
        }
    }
}

/// One case of the suite.
#[derive(Debug)]
pub(crate) struct Case {
    /// The name that `--only` takes.
    pub(crate) name: &'static str,
    /// What the case shows, for `--list` and the report; [`CaseSize::spelled`] puts its numbers in.
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

impl Case {
    /// The size of the case, in a smoke test or in a whole run.
    pub(crate) fn size(&self, quick: bool) -> &CaseSize {
        if quick { &self.quick } else { &self.settings }
    }

    /// What the case shows, with the numbers of calls that are really made.
    pub(crate) fn title(&self, quick: bool) -> String {
        self.size(quick).spelled(self.about)
    }
}

const fn settings(warmup: usize, calls: usize, rounds: usize, at_once: usize, seconds: u64) -> CaseSize {
    CaseSize { warmup, calls, rounds, at_once, time: Duration::from_secs(seconds) }
}

/// All cases, in the order in which they are run.
pub(crate) const CASES: &[Case] = &[
    Case {
        name: "add-one",
        about: "{calls} ADDs of macvlan + host-local by each subject, one at a time, at most 20 of each in turn",
        settings: settings(20, 400, 0, 1, 0),
        quick: settings(1, 4, 0, 1, 0),
        procedure: Procedure::Node(node_cases::one_at_a_time::run),
        beside: None,
    },
    Case {
        name: "del-one",
        about: "{calls} DELs by each subject, one at a time, at most 20 of each in turn; ours answers when the interface is silent, \
                ours-wait and the other plugins when the link is gone",
        settings: settings(20, 400, 0, 1, 0),
        quick: settings(1, 4, 0, 1, 0),
        procedure: Procedure::Node(node_cases::one_at_a_time::run),
        beside: Some("add-one"),
    },
    Case {
        name: "burst-100",
        about: "{at_once} ADDs at once, then {at_once} DELs at once, by each subject; ours answers a DEL when the interface is silent, \
                ours-wait and the other plugins when the link is gone; rounds: {rounds}",
        settings: settings(1, 0, 10, 100, 0),
        quick: settings(0, 0, 1, 8, 0),
        procedure: Procedure::Node(node_cases::burst::hundred),
        beside: None,
    },
    Case {
        name: "add-under-del",
        about: "ADD while {at_once} DELs run, 50 a second, against ADD when nothing else happens",
        settings: settings(0, 150, 4, 100, 0),
        quick: settings(0, 5, 1, 5, 0),
        procedure: Procedure::Node(node_cases::add_under_del::run),
        beside: None,
    },
    Case {
        name: "add-standing",
        about: "ADD, one at a time, beside {at_once} pods that stand, against ADD beside none; rounds: {rounds}",
        settings: settings(0, 60, 3, 250, 0),
        quick: settings(0, 3, 1, 6, 0),
        procedure: Procedure::Node(node_cases::standing::run),
        beside: None,
    },
    Case {
        name: "add-vhost-user",
        about: "{calls} ADDs of a vhost-user port of our switch, one at a time, and as many of a macvlan by the same daemon",
        settings: settings(20, 200, 0, 1, 0),
        quick: settings(0, 4, 0, 1, 0),
        procedure: Procedure::Node(node_cases::vhost_user::run),
        beside: None,
    },
    Case {
        name: "silence",
        about: "the last DEL's answer → the last link gone, {at_once} pods, namespaces kept and removed",
        settings: settings(0, 0, 5, 100, 0),
        quick: settings(0, 0, 1, 5, 0),
        procedure: Procedure::Node(node_cases::link_removal::run),
        beside: None,
    },
    Case {
        name: "storm-500",
        about: "{at_once} ADDs at once: none fails, and what memory that takes",
        settings: settings(0, 0, 2, 500, 0),
        quick: settings(0, 0, 1, 12, 0),
        procedure: Procedure::Node(node_cases::burst::storm),
        beside: None,
    },
    Case {
        name: "idle",
        about: "CPU time and memory of a daemon that nobody calls",
        settings: settings(0, 0, 1, 0, 65),
        quick: settings(0, 0, 1, 0, 1),
        procedure: Procedure::Node(node_cases::idle::run),
        beside: None,
    },
    Case {
        name: "pod-add",
        about: "ADD of a pod with its default macvlan and one macvlan definition, one at a time, 20 of each subject in turn",
        settings: settings(20, 200, 0, 1, 0),
        quick: settings(0, 4, 0, 1, 0),
        procedure: Procedure::Pods(pods::one_at_a_time::run),
        beside: None,
    },
    Case {
        name: "pod-del",
        about: "DEL of such pods, one at a time",
        settings: settings(20, 200, 0, 1, 0),
        quick: settings(0, 4, 0, 1, 0),
        procedure: Procedure::Pods(pods::one_at_a_time::run),
        beside: Some("pod-add"),
    },
    Case {
        name: "pod-burst-100",
        about: "ADD of 100 such pods at once, then 100 DELs at once",
        settings: settings(1, 0, 5, 100, 0),
        quick: settings(0, 0, 1, 8, 0),
        procedure: Procedure::Pods(pods::burst::run),
        beside: None,
    },
    Case {
        name: "pod-requests",
        about: "requests to the API server, by its audit log, until the answer of a pod's ADD and in all",
        settings: settings(0, 20, 0, 1, 0),
        quick: settings(0, 2, 0, 1, 0),
        procedure: Procedure::Pods(pods::requests::run),
        beside: None,
    },
    Case {
        name: "pod-idle",
        about: "the memory of a daemon that watches 500 pods and 200 definitions",
        settings: settings(0, 500, 1, 200, 10),
        quick: settings(0, 5, 1, 2, 1),
        procedure: Procedure::Pods(pods::idle::run),
        beside: None,
    },
    Case {
        name: "pod-start",
        about: "a daemon's start with 200 such pods on its node, until it is ready",
        settings: settings(0, 0, 5, 200, 0),
        quick: settings(0, 0, 1, 4, 0),
        procedure: Procedure::Pods(pods::start::run),
        beside: None,
    },
    Case {
        name: "switch-64",
        about: "frames of 64 bytes between two pods, both ways, as fast as one core forwards; rounds: {rounds}",
        settings: settings(0, 0, 5, 0, 3),
        quick: settings(0, 0, 1, 0, 1),
        procedure: Procedure::Switches(switches::cases::short_frames),
        beside: None,
    },
    Case {
        name: "switch-1518",
        about: "frames of 1518 bytes between two pods, both ways; rounds: {rounds}",
        settings: settings(0, 0, 5, 0, 3),
        quick: settings(0, 0, 1, 0, 1),
        procedure: Procedure::Switches(switches::cases::long_frames),
        beside: None,
    },
    Case {
        name: "switch-lengths",
        about: "frames of 128 bytes, and of each length twice the one before, both ways; lengths: {calls}, rounds: {rounds}",
        settings: settings(0, 4, 3, 0, 3),
        // Further lengths say nothing of whether it works.
        quick: settings(0, 1, 1, 0, 1),
        procedure: Procedure::Switches(switches::lengths::run),
        beside: None,
    },
    Case {
        name: "switch-features",
        about: "frames of 64 bytes with spoof check, VLAN, rates, and all of them; rounds: {rounds}",
        settings: settings(0, 0, 5, 0, 3),
        quick: settings(0, 0, 1, 0, 1),
        procedure: Procedure::Switches(switches::cases::features),
        beside: None,
    },
    Case {
        name: "switch-threads",
        about: "frames between ports of two threads, against frames between ports of one; rounds: {rounds}",
        settings: settings(0, 0, 5, 0, 1),
        quick: settings(0, 0, 1, 0, 1),
        procedure: Procedure::Switches(switches::two_threads::run),
        beside: None,
    },
    Case {
        name: "switch-latency",
        about: "one frame under way each way: the time of one, polling and adaptive; rounds: {rounds}",
        settings: settings(0, 0, 5, 0, 2),
        quick: settings(0, 0, 1, 0, 1),
        procedure: Procedure::Switches(switches::cases::latency),
        beside: None,
    },
    Case {
        name: "switch-one-frame",
        about: "single frames from one pod to the other, the next when the last is there: {calls}, then {at_once} after pauses; rounds: {rounds}",
        settings: settings(0, 100_000, 5, 500, 0),
        quick: settings(0, 200, 1, 5, 0),
        procedure: Procedure::Switches(switches::one_frame::run),
        beside: None,
    },
    Case {
        name: "switch-neighbours",
        about: "{calls} such frames beside neighbours that behave, stall, flood and break the rules; rounds: {rounds}",
        settings: settings(0, 10_000, 5, 500, 0),
        quick: settings(0, 50, 1, 25, 0),
        procedure: Procedure::Switches(switches::neighbours::run),
        beside: None,
    },
    Case {
        name: "switch-idle",
        about: "the processor time of a switch with {at_once} ports and two pods that send nothing",
        settings: settings(0, 0, 3, 64, 10),
        quick: settings(0, 0, 1, 64, 1),
        procedure: Procedure::Switches(switches::cases::idle),
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
        about: "all VFs of one NIC at once, against one after the other by the floor; rounds: {rounds}",
        settings: settings(1, 0, 9, 7, 0),
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

/// The cases of a suite by their names; all of them when no name is given. The error holds the names that are no case.
pub(crate) fn chosen(names: &[String], of: Place) -> Result<Vec<&'static Case>, Vec<String>> {
    let all = || CASES.iter().filter(|c| c.procedure.place() == of);
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
        assert_eq!(chosen(&["idle".to_owned(), "fast".to_owned()], Place::Node).unwrap_err(), ["fast"]);
        assert_eq!(chosen(&["idle".to_owned()], Place::Node).unwrap().len(), 1);
        assert_eq!(chosen(&["idle".to_owned()], Place::Vfs).unwrap_err(), ["idle"]);
        let all = [Place::Node, Place::Cluster, Place::Switches, Place::Vfs]
            .map(|place| chosen(&[], place).unwrap().len());
        assert_eq!(all.iter().sum::<usize>(), CASES.len());
    }

    #[test]
    fn titles_tell_the_calls_that_are_really_made() {
        let burst = CASES.iter().find(|case| case.name == "burst-100").unwrap();
        let title = burst.title(true);
        assert!(title.starts_with("8 ADDs at once, then 8 DELs at once, by each subject; "), "{title}");
        assert!(title.ends_with("; rounds: 1"), "{title}");
        assert!(burst.title(false).starts_with("100 ADDs at once"), "{}", burst.title(false));
        for case in CASES {
            assert!(!case.title(true).contains('{') && !case.title(false).contains('{'), "{case:?}");
        }
    }

    #[test]
    fn the_names_of_cases_are_unique() {
        for (at, case) in CASES.iter().enumerate() {
            assert!(CASES[at + 1..].iter().all(|other| other.name != case.name));
        }
    }
}
