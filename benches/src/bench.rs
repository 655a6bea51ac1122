//! The run: the node, the subjects, and the few steps that all cases are made of (make pods, call, verify, put away).
//!
//! Only a call that succeeded and whose interface is right counts as a latency; any other is a failure, and one
//! failure makes the run fail.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use nix::unistd::Pid;

use crate::daemon::{DaemonError, DaemonPaths};
use crate::foreign_cpu::Disturbance;
use crate::network_config::{IFNAME, SECOND_SUBNET, allocations};
use crate::node::{Node, NodeError};
use crate::plugin_exec::Verb;
use crate::pods::cluster::ClusterError;
use crate::process_cost;
use crate::results::{Cpu, Results};
use crate::round::Round;
use crate::statistics::StatisticsError;
use crate::subject::{Attachment, Done, Job, Role, Subject, floor_address};
use crate::verify::{self, Expected, Wrong};
use crate::vf::vf_on_host::VfOnHostError;

/// Why a run ends before all cases are done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// The node could not be made, read or put away.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A histogram could not be made or written.
    #[error(transparent)]
    Statistics(#[from] StatisticsError),
    /// A daemon does not serve.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// The cluster does not do what it is asked to.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A VF cannot be measured.
    #[error(transparent)]
    VfDevice(#[from] VfOnHostError),
    /// A process could not be started, watched or accounted.
    #[error("{doing}: {source}")]
    Process {
        /// What was being done, for the message.
        doing: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

impl BenchError {
    /// Makes the error of a step for `map_err`.
    pub(crate) fn process(doing: impl Into<String>) -> impl FnOnce(io::Error) -> BenchError {
        let doing = doing.into();
        move |source| BenchError::Process { doing, source }
    }
}

/// What a second daemon of ours with `del: wait` is started from.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// The path of the executable `fairleadd`.
    pub(crate) daemon: PathBuf,
    /// The paths that it is started with.
    pub(crate) paths: DaemonPaths,
}

/// What a further daemon of ours with a switch beside it is started from.
#[derive(Debug)]
pub(crate) struct WithSwitch {
    /// The path of the executable `fairleadd`.
    pub(crate) daemon: PathBuf,
    /// The path of the executable `fairlead-vswitch`.
    pub(crate) switch: PathBuf,
    /// The paths that the daemon is started with.
    pub(crate) paths: DaemonPaths,
    /// The directory for the sockets of ports.
    pub(crate) ports: PathBuf,
}

/// A run on the private node: who is measured, where, and what was measured so far.
#[derive(Debug)]
pub(crate) struct Bench {
    /// The node on which interfaces are made.
    pub(crate) node: Node,
    /// Everybody who is measured, in the order in which they are called.
    pub(crate) subjects: Vec<Subject>,
    /// How to start ours with `del: wait`, for the cases that measure it too.
    pub(crate) waiting: Option<Waiting>,
    /// How to start ours with a switch, for the case that measures its ports.
    pub(crate) with_switch: Option<WithSwitch>,
    /// The directory where host-local keeps its files.
    pub(crate) data_dir: PathBuf,
    /// What was measured so far.
    pub(crate) results: Results,
    /// The number of attachments made so far.
    pub(crate) serial: u32,
    /// Programs that belong to no subject: what they use is nobody's.
    pub(crate) of_nobody: Vec<Pid>,
    /// Containers whose addresses were left allocated, and were reported.
    pub(crate) leaked: HashSet<String>,
    /// Also rounds with stolen or foreign CPU time count.
    pub(crate) keeps_disturbed: bool,
}

/// The outcome of calls that were made at once.
#[derive(Debug)]
pub(crate) struct Burst {
    /// Each call's outcome, in the order of the attachments.
    pub(crate) done: Vec<io::Result<Done>>,
    /// The time at which the first call started.
    pub(crate) started: Instant,
    /// The time at which the last call ended.
    pub(crate) finished: Instant,
    /// The CPU time that all calls took.
    pub(crate) cpu: Cpu,
}

/// The CPU time of the plugins and of a subject's daemon, as accounted at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CpuMark {
    plugins: Duration,
    daemon: Duration,
}

impl CpuMark {
    /// Reads the CPU clocks now.
    pub(crate) fn now(subject: &Subject) -> Result<CpuMark, BenchError> {
        let plugins =
            process_cost::cpu_of_children().map_err(BenchError::process("CPU time of the plugins"))?;
        let daemon = match &subject.daemon {
            Some(daemon) => process_cost::cpu_of(daemon.pid)
                .map_err(BenchError::process(format!("CPU time of the daemon of {}", subject.name)))?,
            None => Duration::ZERO,
        };
        Ok(CpuMark { plugins, daemon })
    }

    /// What `calls` calls cost between this mark and `later`.
    pub(crate) fn until(self, later: CpuMark, calls: u32) -> Cpu {
        Cpu {
            calls,
            plugins: later.plugins.saturating_sub(self.plugins),
            daemon: later.daemon.saturating_sub(self.daemon),
        }
    }
}

impl Bench {
    /// A run in which nothing was measured yet.
    pub(crate) fn new(
        node: Node,
        subjects: Vec<Subject>,
        waiting: Option<Waiting>,
        data_dir: PathBuf,
    ) -> Bench {
        let (results, leaked, of_nobody) = (Results::default(), HashSet::new(), Vec::new());
        let (with_switch, keeps_disturbed) = (None, false);
        Bench {
            node,
            subjects,
            waiting,
            with_switch,
            data_dir,
            results,
            serial: 0,
            of_nobody,
            leaked,
            keeps_disturbed,
        }
    }

    /// Begins a round.
    pub(crate) fn begin_round(&self, judged_by: Disturbance) -> Result<Round, BenchError> {
        Round::begin(judged_by, &self.subjects, &self.of_nobody, &self.results)
    }

    /// Ends a round; false where it does not count.
    pub(crate) fn end_round(&mut self, case: &'static str, round: Round) -> Result<bool, BenchError> {
        round.end(case, &self.subjects, &self.of_nobody, &mut self.results, self.keeps_disturbed)
    }

    /// Makes `count` empty pods for subject number `who`.
    pub(crate) fn attachments(&mut self, who: usize, count: usize) -> Result<Vec<Attachment>, BenchError> {
        attachments(&self.node, &self.subjects[who], &mut self.serial, count)
    }

    /// Verifies what an ADD made and keeps its answer; returns the call if everything is right.
    pub(crate) fn added(
        &mut self,
        case: &'static str,
        who: usize,
        attachment: &mut Attachment,
        done: io::Result<Done>,
    ) -> Option<Done> {
        let subject = &self.subjects[who];
        match added(&self.node, subject, attachment, done) {
            Ok(done) => Some(done),
            Err(what) => {
                self.results.fail(case, &subject.name, format!("ADD {}: {what}", attachment.id));
                None
            }
        }
    }

    /// Verifies what a DEL left; returns the call if everything is right.
    pub(crate) fn deleted(
        &mut self,
        case: &'static str,
        who: usize,
        attachment: &Attachment,
        done: io::Result<Done>,
    ) -> Option<Done> {
        let subject = &self.subjects[who];
        match deleted(&self.node, subject, attachment, done) {
            Ok(done) => Some(done),
            Err(what) => {
                self.results.fail(case, &subject.name, format!("DEL {}: {what}", attachment.id));
                None
            }
        }
    }

    /// Makes the same call for all `attachments` at once.
    pub(crate) fn at_once(
        &self,
        who: usize,
        verb: Verb,
        attachments: &[Attachment],
    ) -> Result<Burst, BenchError> {
        at_once(&self.node, &self.subjects[who], verb, attachments)
    }

    /// Attaches `count` pods of a subject without timing it, in bursts small enough for any machine.
    pub(crate) fn attached(
        &mut self,
        case: &'static str,
        who: usize,
        count: usize,
    ) -> Result<Vec<Attachment>, BenchError> {
        let mut all = self.attachments(who, count)?;
        for some in all.chunks_mut(50) {
            let burst = self.at_once(who, Verb::Add, some)?;
            for (attachment, done) in some.iter_mut().zip(burst.done) {
                self.added(case, who, attachment, done);
            }
        }
        Ok(all)
    }

    /// Removes the pods and waits until nothing of them is left.
    pub(crate) fn put_away(&self, attachments: Vec<Attachment>) -> Result<(), BenchError> {
        Ok(self.node.put_away(attachments.into_iter().map(|a| a.pod).collect())?)
    }

    /// Reports every address that is still allocated although all pods were deleted.
    pub(crate) fn nothing_allocated(&mut self, case: &'static str) -> Result<(), BenchError> {
        let started = Instant::now();
        let left = loop {
            let mut left = allocations(&self.data_dir).map_err(BenchError::process("host-local's files"))?;
            left.retain(|(_, id)| !self.leaked.contains(id));
            // Ours gives an address back when its link is gone, which it looks after once a second or so.
            if left.is_empty() || started.elapsed() > Duration::from_secs(10) {
                break left;
            }
            thread::sleep(Duration::from_millis(20));
        };
        for (address, id) in left {
            let owner =
                self.subjects.iter().find(|s| id.rsplit_once('-').is_some_and(|(of, _)| of == s.name));
            let name = owner.map_or("nobody", |s| s.name.as_str()).to_owned();
            self.results.fail(case, &name, format!("{address} is still allocated to {id} after its DEL"));
            self.leaked.insert(id);
        }
        Ok(())
    }
}

/// Makes `count` empty pods for a subject.
pub(crate) fn attachments(
    node: &Node,
    subject: &Subject,
    serial: &mut u32,
    count: usize,
) -> Result<Vec<Attachment>, BenchError> {
    let tag = format!("{}-{serial}", subject.name);
    let mut made = Vec::with_capacity(count);
    for pod in node.pods(&tag, count)? {
        *serial += 1;
        made.push(Attachment {
            id: format!("{}-{serial}", subject.name),
            pod,
            serial: *serial,
            result: None,
            pod_uid: None,
        });
    }
    Ok(made)
}

/// Why a call does not count as a latency.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallFailure {
    /// The call could not be made.
    #[error("the call could not be made: {0}")]
    Exec(#[from] io::Error),
    /// The plugin answered with an error.
    #[error("{0}")]
    Refused(String),
    /// The plugin answered with success, but the interface is not as it should be.
    #[error(transparent)]
    Wrong(#[from] Wrong),
    /// The plugin answered with success, but the VF is not as it should be.
    #[error(transparent)]
    VfDevice(#[from] VfOnHostError),
    /// The plugin answered with success, but the answer does not name the VF.
    #[error("the answer does not tell VF {0} and an address")]
    NotNamed(String),
    /// The plugin answered with success, but the answer does not tell a socket that is there, and an address.
    #[error("the answer does not tell a socket that is there, and an address: {0:?}")]
    NoSocket(String),
    /// DEL left the socket.
    #[error("the socket {0} is still there after DEL")]
    SocketLeft(String),
    /// The plugin answered with success, but the VF is on another VLAN.
    #[error("the VF is on VLAN {is} instead of {wanted}")]
    Vlan {
        /// The VLAN that the VF is on.
        is: u16,
        /// The VLAN that was asked for.
        wanted: u16,
    },
}

/// A call that was answered with success.
pub(crate) fn succeeded(done: io::Result<Done>) -> Result<Done, CallFailure> {
    let done = done?;
    if done.answer.success { Ok(done) } else { Err(CallFailure::Refused(done.answer.complaint())) }
}

/// Verifies the interface that an ADD has made.
pub(crate) fn added(
    node: &Node,
    subject: &Subject,
    attachment: &mut Attachment,
    done: io::Result<Done>,
) -> Result<Done, CallFailure> {
    let done = succeeded(done)?;
    let expected = if subject.is_plugin() {
        attachment.result = Some(done.answer.stdout.clone());
        Expected::of_result(&done.answer.stdout)?
    } else {
        Expected::of_address(IpNet::V4(floor_address(attachment.serial)))
    };
    let expected = if subject.role == Role::Peer { expected } else { expected.with_default_route() };
    verify::attached(node, &attachment.pod, &expected)?;
    for beside in subject.interfaces.iter().filter(|name| **name != IFNAME) {
        verify::attached_in(node, &attachment.pod, beside, SECOND_SUBNET)?;
    }
    Ok(done)
}

/// Verifies that a DEL has removed what it promises to remove.
pub(crate) fn deleted(
    node: &Node,
    subject: &Subject,
    attachment: &Attachment,
    done: io::Result<Done>,
) -> Result<Done, CallFailure> {
    let done = succeeded(done)?;
    verify::detached(node, &attachment.pod, subject.interfaces, subject.removal())?;
    Ok(done)
}

/// Makes the same call for all `attachments` at once.
pub(crate) fn at_once(
    node: &Node,
    subject: &Subject,
    verb: Verb,
    attachments: &[Attachment],
) -> Result<Burst, BenchError> {
    together(subject, attachments.iter().map(|a| subject.job(node, verb, a)).collect())
}

/// Makes calls at once: one thread for each call, and all threads start together.
pub(crate) fn together(subject: &Subject, jobs: Vec<Job<'_>>) -> Result<Burst, BenchError> {
    let before = CpuMark::now(subject)?;
    let barrier = Barrier::new(jobs.len());
    let start = |job: Job<'_>| {
        barrier.wait();
        (Instant::now(), job.run())
    };
    let calls = thread::scope(|scope| {
        let start = &start;
        // All threads must exist before any may start: `collect` first, then wait for them.
        let threads: Vec<_> = jobs.into_iter().map(|job| scope.spawn(move || start(job))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
    });
    let now = Instant::now();
    let started = calls.iter().map(|(started, _)| *started).min().unwrap_or(now);
    let finished = calls.iter().filter_map(|(_, done)| Some(done.as_ref().ok()?.answer.finished)).max();
    let cpu = before.until(CpuMark::now(subject)?, u32::try_from(calls.len()).unwrap_or(u32::MAX));
    let done = calls.into_iter().map(|(_, done)| done).collect();
    Ok(Burst { done, started, finished: finished.unwrap_or(now), cpu })
}

impl Burst {
    /// The time from the first start to the last end.
    pub(crate) fn took(&self) -> Duration {
        self.finished - self.started
    }

    /// The number of calls per second in that time.
    pub(crate) fn rate(&self) -> f64 {
        let calls = u32::try_from(self.done.len()).unwrap_or(u32::MAX);
        f64::from(calls) / self.took().as_secs_f64().max(1e-9)
    }
}
