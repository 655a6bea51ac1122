//! Measures VFs by the same method, on real SR-IOV NICs. These cannot be put into a private network namespace,
//! because their drivers make every interface in this machine's own. So the daemon and the pods' namespaces are
//! the suite's, but the VFs are the machine's: nobody else may use those that are named.
//!
//! The floor and the peers have VFs of their own, on another NIC of the same kind. The daemon keeps its own VFs
//! ready, and would undo whatever others do to them.

pub(crate) mod burst;
mod floor_kernel_calls;
pub(crate) mod one_at_a_time;
pub(crate) mod vf_on_host;
pub(crate) mod vfio;

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bench::{BenchError, CallFailure, attachments, succeeded};
use crate::cli::Options;
use crate::foreign_cpu::Disturbance;
use crate::network_config::{config, of_vf};
use crate::node::Node;
use crate::plugin_exec::Verb;
use crate::results::Results;
use crate::round::Round;
use crate::subject::{Attachment, Done, Job, Role, Subject, floor_address};
use crate::subject_descriptions::MeasuredSubjects;
use crate::verify::{self, Expected};
use floor_kernel_calls::VfKernelCalls;
use vf_on_host::{VfOnHost, VfOnHostError, until_ready};

/// A run with VFs of this machine.
#[derive(Debug)]
pub(crate) struct VfBench {
    /// This machine, as the node of the run.
    node: Node,
    /// Everybody who is measured.
    pub(crate) subjects: Vec<Subject>,
    /// What was measured so far.
    pub(crate) results: Results,
    ours: Vec<VfOnHost>,
    beside: Vec<VfOnHost>,
    in_user_space: Vec<String>,
    macvlan: Value,
    serial: u32,
    keeps_disturbed: bool,
}

/// The settings that a VF is asked for with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VfRequest {
    /// The settings that the VF has.
    Unchanged,
    /// A VLAN and a rate that the VF does not have.
    WithVlan(u16),
}

/// A VF in a pod, or on its way there.
struct VfInPod<'a> {
    bench: &'a VfBench,
    subject: &'a Subject,
    on_host: &'a VfOnHost,
    /// The index of the VF's interface.
    index: u32,
    wanted: VfRequest,
}

impl VfBench {
    /// Records how all VFs are now; no pod may have one of them.
    pub(crate) fn new(
        node: Node,
        subjects: Vec<Subject>,
        named: &Options,
        data_dir: &Path,
    ) -> Result<VfBench, VfOnHostError> {
        // What a pool makes ready is not as it was before.
        for subject in subjects.iter().filter(|subject| subject.role == Role::Ours) {
            for address in named.vfs.iter().chain(&named.in_user_space) {
                until_ready(address, |address| subject.has_ready(address))?;
            }
        }
        let kernel = &node.kernel;
        let ours = named.vfs.iter().map(|address| VfOnHost::of(kernel, address));
        let ours = ours.collect::<Result<Vec<_>, _>>()?;
        let beside = named.beside.iter().map(|address| VfOnHost::fixed(kernel, address));
        let beside = beside.collect::<Result<Vec<_>, _>>()?;
        let mut macvlan = config(data_dir);
        macvlan["master"] = json!(ours.first().map(|on_host| on_host.physical_name.clone()));
        macvlan["ipam"]["routes"] = json!([]);
        let (in_user_space, results) = (named.in_user_space.clone(), Results::default());
        let keeps_disturbed = named.keeps_disturbed();
        Ok(VfBench {
            node,
            subjects,
            results,
            ours,
            beside,
            in_user_space,
            macvlan,
            serial: 0,
            keeps_disturbed,
        })
    }

    /// Begins a round. What a NIC's driver does in threads of the kernel is on nobody's account.
    fn begin_round(&self) -> Result<Round, BenchError> {
        Round::begin(Disturbance::Stolen, &self.subjects, &[], &self.results)
    }

    /// Ends a round; false where it does not count.
    fn end_round(&mut self, case: &'static str, round: Round) -> Result<bool, BenchError> {
        round.end(case, &self.subjects, &[], &mut self.results, self.keeps_disturbed)
    }

    /// Ends the daemons; returns who was measured, and what was measured.
    pub(crate) fn close(self) -> (MeasuredSubjects, Results) {
        (MeasuredSubjects::of_others(&self.subjects), self.results)
    }

    /// The VFs that a subject may use.
    fn vfs_of(&self, who: usize) -> &[VfOnHost] {
        if self.subjects[who].role == Role::Ours { &self.ours } else { &self.beside }
    }

    fn pods(&mut self, who: usize, count: usize) -> Result<Vec<Attachment>, BenchError> {
        attachments(&self.node, &self.subjects[who], &mut self.serial, count)
    }

    fn vf_in_pod(&self, who: usize, at: usize, wanted: VfRequest) -> Result<VfInPod<'_>, BenchError> {
        let on_host = &self.vfs_of(who)[at];
        let index = on_host.link(&self.node.kernel)?.index;
        Ok(VfInPod { bench: self, subject: &self.subjects[who], on_host, index, wanted })
    }
}

impl VfRequest {
    fn config(self, subject: &Subject, on_host: &VfOnHost) -> Option<Value> {
        let mut config = of_vf(subject.config.clone()?, &on_host.address.to_string());
        if let VfRequest::WithVlan(id) = self {
            config["vlan"] = json!(id);
            config["max_tx_rate"] = json!(100);
        }
        Some(config)
    }
}

impl VfInPod<'_> {
    /// A call of a plugin, ready to be made.
    fn job<'a>(&self, verb: Verb, pod: &Attachment) -> Job<'a> {
        let config = self.wanted.config(self.subject, self.on_host);
        Job::from(self.subject.invocation(verb, pod, config.as_ref()))
    }

    fn floor<'a>(&'a self, pod: &'a Attachment) -> VfKernelCalls<'a> {
        VfKernelCalls {
            kernel: &self.bench.node.kernel,
            netns: &pod.pod.path,
            index: self.index,
            address: floor_address(pod.serial),
        }
    }

    /// Calls the plugin, or makes the kernel calls of the floor.
    fn call(&self, verb: Verb, pod: &Attachment) -> io::Result<Done> {
        let job = self.job(verb, pod);
        if self.subject.role != Role::Floor {
            return job.run();
        }
        let floor = self.floor(pod);
        Done::of_floor(self.subject.invocation(verb, pod, None), || {
            let done = if verb == Verb::Add { floor.take() } else { floor.silence() };
            done.map_err(io::Error::other)
        })
    }

    /// Verifies that the pod has what was asked for.
    fn added(&self, pod: &mut Attachment, done: io::Result<Done>) -> Result<Done, CallFailure> {
        let done = succeeded(done)?;
        let expected = if self.subject.role == Role::Floor {
            Expected::of_address(ipnet::IpNet::V4(floor_address(pod.serial)))
        } else {
            pod.result = Some(done.answer.stdout.clone());
            Expected::of_result(&done.answer.stdout)?
        };
        verify::attached(&self.bench.node, &pod.pod, &expected)?;
        if let VfRequest::WithVlan(id) = self.wanted {
            let vlan = self.on_host.settings(&self.bench.node.kernel)?.vlan.unwrap_or_default();
            if vlan.id != id {
                return Err(CallFailure::Vlan { is: vlan.id, wanted: id });
            }
        }
        Ok(done)
    }

    /// Verifies that the pod has nothing of it any more.
    fn deleted(&self, pod: &Attachment, done: io::Result<Done>) -> Result<Done, CallFailure> {
        let done = succeeded(done)?;
        verify::detached(&self.bench.node, &pod.pod, self.subject.interfaces, self.subject.removal())?;
        Ok(done)
    }

    /// Waits until the VF can be used again; returns since when. The floor's part of that is done here.
    fn ready(&self, pod: &Attachment) -> Result<Instant, BenchError> {
        let kernel = &self.bench.node.kernel;
        let since = match self.subject.role {
            Role::Floor => {
                let brought = self.floor(pod).return_to_host(self.on_host).map_err(io::Error::other);
                brought.map_err(BenchError::process("bringing a VF home"))?;
                self.on_host.link(kernel)?;
                let since = Instant::now();
                self.on_host.renamed(kernel)?;
                since
            }
            Role::Ours => {
                until_ready(&self.on_host.address.to_string(), |address| self.subject.has_ready(address))?
            }
            // A peer's is when its DEL is answered.
            _ => Instant::now(),
        };
        self.on_host.is_as_it_was(kernel)?;
        Ok(since)
    }
}

impl Subject {
    /// Whether the daemon's pool has this VF ready.
    fn has_ready(&self, address: &str) -> bool {
        let answer = self.daemon.as_ref().and_then(|daemon| daemon.get("/v1/pools").ok());
        let table: Value = answer.and_then(|answer| serde_json::from_slice(&answer).ok()).unwrap_or_default();
        let is = |row: &Value| row["function"] == address && row["state"] == "ready";
        table["functions"].as_array().is_some_and(|rows| rows.iter().any(is))
    }
}

/// The time that the effects of a call last in the kernel and in a daemon: duplicate address detection, group
/// reports, the carrier, link events, and announcements that are listened for during 350 ms.
const SETTLE_TIME: Duration = Duration::from_millis(400);

/// Waits before a timed call, whoever makes it. In the lab one processor emulates the whole machine, and the
/// effects of the last call would be in the time of the next.
fn let_machine_settle() {
    thread::sleep(SETTLE_TIME);
}
