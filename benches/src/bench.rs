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

use crate::daemon::{DaemonError, Places};
use crate::exec::Verb;
use crate::vfs::home::HomeError;
use crate::network::allocations;
use crate::node::{Node, NodeError};
use crate::process;
use crate::results::{Cpu, Results};
use crate::statistics::StatisticsError;
use crate::subject::{Attachment, Done, Job, Role, Subject, floor_address};
use crate::verify::{self, Expected, Wrong};

/// Why a run ends before its time.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// The node.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A histogram.
    #[error(transparent)]
    Statistics(#[from] StatisticsError),
    /// A daemon.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// A VF.
    #[error(transparent)]
    VfDevice(#[from] HomeError),
    /// A process could not be started, watched or accounted.
    #[error("{doing}: {source}")]
    Process {
        /// What was being done.
        doing: String,
        /// The reason.
        #[source]
        source: io::Error,
    },
}

impl BenchError {
    /// For `map_err`.
    pub(crate) fn process(doing: impl Into<String>) -> impl FnOnce(io::Error) -> BenchError {
        let doing = doing.into();
        move |source| BenchError::Process { doing, source }
    }
}

/// What a second daemon of ours, with `del: wait`, is started from.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// `fairleadd`
    pub(crate) daemon: PathBuf,
    /// Its places.
    pub(crate) places: Places,
}

/// A run.
#[derive(Debug)]
pub(crate) struct Bench {
    /// Where interfaces are made.
    pub(crate) node: Node,
    /// Who is measured, in the order in which they are called.
    pub(crate) subjects: Vec<Subject>,
    /// For the case that also measures ours with `del: wait`.
    pub(crate) waiting: Option<Waiting>,
    /// Where host-local's files are.
    pub(crate) data_dir: PathBuf,
    /// What was measured.
    pub(crate) results: Results,
    /// Attachments made so far.
    pub(crate) serial: u32,
    /// Containers whose addresses were left allocated, and were reported.
    pub(crate) leaked: HashSet<String>,
}

/// What came of calls that were made at once.
#[derive(Debug)]
pub(crate) struct Burst {
    /// Each call's outcome, in the order of the attachments.
    pub(crate) done: Vec<io::Result<Done>>,
    /// The first call's start.
    pub(crate) started: Instant,
    /// The last call's end.
    pub(crate) finished: Instant,
    /// What they cost.
    pub(crate) cpu: Cpu,
}

/// CPU accounts of the plugins and a subject's daemon at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CpuMark {
    plugins: Duration,
    daemon: Duration,
}

impl CpuMark {
    /// Now.
    pub(crate) fn now(subject: &Subject) -> Result<CpuMark, BenchError> {
        let plugins = process::cpu_of_children().map_err(BenchError::process("CPU time of the plugins"))?;
        let daemon = match &subject.daemon {
            Some(daemon) => process::cpu_of(daemon.pid)
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
    /// Makes `count` empty pods for subject number `who`.
    pub(crate) fn attachments(&mut self, who: usize, count: usize) -> Result<Vec<Attachment>, BenchError> {
        attachments(&self.node, &self.subjects[who], &mut self.serial, count)
    }

    /// Verifies what ADD made, keeps its answer, and gives the call back if all of it is right.
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

    /// Verifies what DEL left and gives the call back if all of it is right.
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

    /// Attaches `count` pods of a subject without timing it, in bursts that no machine minds.
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
            let owner = self.subjects.iter().find(|s| id.starts_with(&format!("{}-", s.name)));
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
        });
    }
    Ok(made)
}

/// Why a call does not count.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallFailure {
    /// It could not be made.
    #[error("the call could not be made: {0}")]
    Exec(#[from] io::Error),
    /// The plugin said no.
    #[error("{0}")]
    Refused(String),
    /// The plugin said yes, and it is not so.
    #[error(transparent)]
    Wrong(#[from] Wrong),
    /// The same, of a VF.
    #[error(transparent)]
    VfDevice(#[from] HomeError),
    /// The same, of one that no link shows.
    #[error("the answer does not tell VF {0} and an address")]
    NotNamed(String),
    /// The same, of its settings.
    #[error("the VF is on VLAN {is} instead of {wanted}")]
    Vlan {
        /// The one that it is on.
        is: u16,
        /// The one that was asked for.
        wanted: u16,
    },
}

/// Verifies an ADD.
pub(crate) fn added(
    node: &Node,
    subject: &Subject,
    attachment: &mut Attachment,
    done: io::Result<Done>,
) -> Result<Done, CallFailure> {
    let done = done?;
    if !done.answer.success {
        return Err(CallFailure::Refused(done.answer.complaint()));
    }
    let expected = if subject.role == Role::Floor {
        Expected::of_address(IpNet::V4(floor_address(attachment.serial)))
    } else {
        attachment.result = Some(done.answer.stdout.clone());
        Expected::of_result(&done.answer.stdout)?
    };
    let expected = if subject.role == Role::Peer { expected } else { expected.with_default_route() };
    verify::attached(node, &attachment.pod, &expected)?;
    Ok(done)
}

/// Verifies a DEL.
pub(crate) fn deleted(
    node: &Node,
    subject: &Subject,
    attachment: &Attachment,
    done: io::Result<Done>,
) -> Result<Done, CallFailure> {
    let done = done?;
    if !done.answer.success {
        return Err(CallFailure::Refused(done.answer.complaint()));
    }
    if subject.detaches() {
        verify::detached(node, &attachment.pod, subject.removal())?;
    }
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

/// Makes calls at once: one thread for each, all let go together.
pub(crate) fn together(subject: &Subject, jobs: Vec<Job<'_>>) -> Result<Burst, BenchError> {
    let before = CpuMark::now(subject)?;
    let gate = Barrier::new(jobs.len());
    let start = |job: Job<'_>| {
        gate.wait();
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
    /// From the first start to the last end.
    pub(crate) fn took(&self) -> Duration {
        self.finished - self.started
    }

    /// Calls per second in that time.
    pub(crate) fn rate(&self) -> f64 {
        let calls = u32::try_from(self.done.len()).unwrap_or(u32::MAX);
        f64::from(calls) / self.took().as_secs_f64().max(1e-9)
    }
}
