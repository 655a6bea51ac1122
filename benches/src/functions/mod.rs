//! VFs: the same method with real SR-IOV NICs, which cannot be put into a private network namespace,
//! because their drivers make every interface in this machine's own. So the suite's daemon and the pods' namespaces are
//! its own and the VFs are the machine's: nobody else may use those that are named.
//!
//! The floor and the peers have VFs of their own, of a NIC of the same kind: the daemon keeps its own ready, and
//! would look after whatever is done to them.

pub(crate) mod burst;
mod floor;
pub(crate) mod home;
pub(crate) mod one;
pub(crate) mod vfio;

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bench::{BenchError, CallFailure, attachments};
use crate::cli::Options;
use crate::exec::Verb;
use crate::network::{config, of_vf};
use crate::node::Node;
use crate::report::Subjects;
use crate::results::Results;
use crate::subject::{Attachment, Done, Job, Role, Subject, floor_address};
use crate::verify::{self, Expected};
use floor::Lending;
use home::{Home, HomeError, until};

/// A run with VFs.
#[derive(Debug)]
pub(crate) struct Functions {
    /// This machine.
    node: Node,
    /// Who is measured.
    pub(crate) subjects: Vec<Subject>,
    /// What was measured.
    pub(crate) results: Results,
    ours: Vec<Home>,
    beside: Vec<Home>,
    in_user_space: Vec<String>,
    macvlan: Value,
    serial: u32,
}

/// How a VF is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// As it is.
    AsItIs,
    /// With a VLAN and a rate that it does not have.
    OnVlan(u16),
}

/// A VF in a pod.
struct Lent<'a> {
    vfs: &'a Functions,
    subject: &'a Subject,
    home: &'a Home,
    /// The index of its interface.
    index: u32,
    wanted: Wanted,
}

impl Functions {
    /// Looks at the VFs, which must be at home.
    pub(crate) fn new(
        node: Node,
        subjects: Vec<Subject>,
        named: &Options,
        data_dir: &Path,
    ) -> Result<Functions, HomeError> {
        // What a pool makes ready is not as it was before.
        for subject in subjects.iter().filter(|subject| subject.role == Role::Ours) {
            for address in named.vfs.iter().chain(&named.in_user_space) {
                until(address, |address| subject.has_ready(address))?;
            }
        }
        let kernel = &node.kernel;
        let ours = named.vfs.iter().map(|address| Home::of(kernel, address));
        let ours = ours.collect::<Result<Vec<_>, _>>()?;
        let beside = named.beside.iter().map(|address| Home::fixed(kernel, address));
        let beside = beside.collect::<Result<Vec<_>, _>>()?;
        let mut macvlan = config(data_dir);
        macvlan["master"] = json!(ours.first().map(|home| home.physical_name.clone()));
        macvlan["ipam"]["routes"] = json!([]);
        let (in_user_space, results) = (named.in_user_space.clone(), Results::default());
        Ok(Functions { node, subjects, results, ours, beside, in_user_space, macvlan, serial: 0 })
    }

    /// Ends the daemons; answers who was measured, and what.
    pub(crate) fn close(self) -> (Subjects, Results) {
        (Subjects::of_vfs(&self.subjects), self.results)
    }

    /// The VFs that are a subject's.
    fn homes(&self, who: usize) -> &[Home] {
        if self.subjects[who].role == Role::Ours { &self.ours } else { &self.beside }
    }

    fn pods(&mut self, who: usize, count: usize) -> Result<Vec<Attachment>, BenchError> {
        attachments(&self.node, &self.subjects[who], &mut self.serial, count)
    }

    fn lent(&self, who: usize, at: usize, wanted: Wanted) -> Result<Lent<'_>, BenchError> {
        let home = &self.homes(who)[at];
        let index = home.link(&self.node.kernel)?.index;
        Ok(Lent { vfs: self, subject: &self.subjects[who], home, index, wanted })
    }
}

impl Wanted {
    fn config(self, subject: &Subject, home: &Home) -> Option<Value> {
        let mut config = of_vf(subject.config.clone()?, &home.address.to_string());
        if let Wanted::OnVlan(id) = self {
            config["vlan"] = json!(id);
            config["max_tx_rate"] = json!(100);
        }
        Some(config)
    }
}

impl Lent<'_> {
    /// A call of a plugin, ready to be made.
    fn job<'a>(&self, verb: Verb, pod: &Attachment) -> Job<'a> {
        let config = self.wanted.config(self.subject, self.home);
        Job::from(self.subject.invocation(verb, pod, config.as_ref()))
    }

    fn floor<'a>(&'a self, pod: &'a Attachment) -> Lending<'a> {
        Lending {
            kernel: &self.vfs.node.kernel,
            netns: &pod.pod.path,
            index: self.index,
            address: floor_address(pod.serial),
        }
    }

    /// Makes a call of a plugin, or those of the floor.
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

    /// Whether the pod has what it was to have.
    fn added(&self, pod: &mut Attachment, done: io::Result<Done>) -> Result<Done, CallFailure> {
        let done = succeeded(done)?;
        let expected = if self.subject.role == Role::Floor {
            Expected::of_address(ipnet::IpNet::V4(floor_address(pod.serial)))
        } else {
            pod.result = Some(done.answer.stdout.clone());
            Expected::of_result(&done.answer.stdout)?
        };
        verify::attached(&self.vfs.node, &pod.pod, &expected)?;
        if let Wanted::OnVlan(id) = self.wanted {
            let vlan = self.home.settings(&self.vfs.node.kernel)?.vlan.unwrap_or_default();
            if vlan.id != id {
                return Err(CallFailure::Vlan { is: vlan.id, wanted: id });
            }
        }
        Ok(done)
    }

    /// Whether the pod has nothing any more.
    fn deleted(&self, pod: &Attachment, done: io::Result<Done>) -> Result<Done, CallFailure> {
        let done = succeeded(done)?;
        verify::detached(&self.vfs.node, &pod.pod, self.subject.removal())?;
        Ok(done)
    }

    /// Waits until the VF can be lent again; answers since when. What the floor does for that is done here.
    fn ready(&self, pod: &Attachment) -> Result<Instant, BenchError> {
        let kernel = &self.vfs.node.kernel;
        let since = match self.subject.role {
            Role::Floor => {
                let brought = self.floor(pod).bring_home(self.home).map_err(io::Error::other);
                brought.map_err(BenchError::process("bringing a VF home"))?;
                self.home.link(kernel)?;
                let since = Instant::now();
                self.home.renamed(kernel)?;
                since
            }
            Role::Ours => until(&self.home.address.to_string(), |address| self.subject.has_ready(address))?,
            // A peer's is when its DEL is answered.
            _ => Instant::now(),
        };
        self.home.is_as_it_was(kernel)?;
        Ok(since)
    }
}

impl Subject {
    /// Whether the daemon's pool has a VF ready.
    fn has_ready(&self, address: &str) -> bool {
        let told = self.daemon.as_ref().and_then(|daemon| daemon.get("/v1/pools").ok());
        let table: Value = told.and_then(|told| serde_json::from_slice(&told).ok()).unwrap_or_default();
        let is = |row: &Value| row["function"] == address && row["state"] == "ready";
        table["functions"].as_array().is_some_and(|rows| rows.iter().any(is))
    }
}

/// What a call sets off in the kernel and in a daemon: duplicate address detection, reports of groups, the carrier, news of
/// links, announcements that are listened for during 350 ms.
const AFTERMATH: Duration = Duration::from_millis(400);

/// Before each timed call, whoever's: one processor emulates all of the machine's here, and what the last call set off would
/// be in the time of the next.
fn rest() {
    thread::sleep(AFTERMATH);
}

fn succeeded(done: io::Result<Done>) -> Result<Done, CallFailure> {
    let done = done?;
    if done.answer.success { Ok(done) } else { Err(CallFailure::Refused(done.answer.complaint())) }
}
