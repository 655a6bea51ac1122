//! Switches of vhost-user ports: ours beside OVS-DPDK and DPDK's own vhost driver, in one run.
//!
//! DPDK's testpmd is both pods, by two virtio_user ports: what comes in at one it sends out of the other, so that frames go round
//! for ever and as many are under way as were sent first. A switch has the first processor, testpmd the second. Each round starts the
//! switch anew and counts what testpmd got; the subjects take turns. [`two_threads`], [`one_frame`] and [`neighbours`] have pods of their
//! own ([`filled_pod`]).

pub(crate) mod cases;
pub(crate) mod contender;
mod filled_pod;
mod frame_path;
mod generator;
pub(crate) mod lengths;
mod memory;
pub(crate) mod neighbours;
pub(crate) mod one_frame;
pub(crate) mod targets;
#[cfg(test)]
mod test_switch;
pub(crate) mod two_threads;

use std::path::PathBuf;
use std::thread;

use nix::unistd::Pid;

use crate::bench::BenchError;
use crate::cli::Options;
use crate::foreign_cpu::Disturbance;
use crate::results::Results;
use crate::round::Round;
use crate::subject::Role;
use crate::subject_descriptions::{MeasuredSubject, MeasuredSubjects};
use crate::subject_setup::{RunDirectories, SubjectSetupError};
use contender::{Contender, Running};
use memory::Memory;

/// A run with switches.
#[derive(Debug)]
pub(crate) struct SwitchBench {
    /// What was measured so far.
    pub(crate) results: Results,
    /// Where sockets, databases and logs are made; a short path.
    dir: PathBuf,
    /// `fairlead-vswitch`.
    ours: PathBuf,
    /// `usr` of Open vSwitch's unpacked packages.
    ovs: PathBuf,
    memory: Memory,
    /// True if rounds count in which others had the processors.
    keeps_disturbed: bool,
}

impl SwitchBench {
    /// Looks for the programs that are compared.
    pub(crate) fn new(options: &Options, dirs: &RunDirectories) -> Result<SwitchBench, SubjectSetupError> {
        let (ours, ovs) = (options.ours.join("fairlead-vswitch"), options.open_vswitch.clone());
        let programs = [
            ("fairlead", ours.clone(), "`make build`"),
            ("ovs", ovs.join("bin/ovs-vsctl"), "`tests/setup.sh ovs`"),
            ("testpmd", PathBuf::from("/usr/bin/dpdk-testpmd"), "`tests/setup.sh dpdk`"),
        ];
        for (name, path, remedy) in programs {
            if !path.exists() {
                return Err(SubjectSetupError::Missing { name: name.to_owned(), path, remedy });
            }
        }
        // Both are started from a directory that is not this one.
        let whole = |path: PathBuf| path.canonicalize().unwrap_or(path);
        let memory = Memory::of_this_machine(&dirs.run)
            .map_err(|(path, source)| SubjectSetupError::Directory { path, source })?;
        Ok(SwitchBench {
            results: Results::default(),
            dir: dirs.run.clone(),
            ours: whole(ours),
            ovs: whole(ovs),
            memory,
            keeps_disturbed: options.keeps_disturbed(),
        })
    }

    /// Measures a round of a switch that runs already. False, and what it has measured is forgotten, where others had the processors.
    fn round(
        &mut self,
        case: &'static str,
        running: &Running,
        measure: impl FnOnce(&mut Results) -> Result<(), BenchError>,
    ) -> Result<bool, BenchError> {
        let switch: Vec<Pid> = running.processes.iter().map(|process| process.pid).collect();
        let round = Round::begin(Disturbance::StolenOrForeign, &[], &switch, &self.results)?;
        measure(&mut self.results)?;
        round.end(case, &[], &switch, &mut self.results, self.keeps_disturbed)
    }

    /// Whether there are two processors; a failure in the report if not. `who` needs them.
    fn has_two_processors(&mut self, case: &'static str, of: Contender, who: &str) -> bool {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        if processors < 2 {
            let why = format!("not measured: {who} two processors, and there is {processors}");
            self.results.fail(case, of.name(), why);
        }
        processors >= 2
    }

    /// Everybody, in the words of the report.
    pub(crate) fn subjects(&self) -> MeasuredSubjects {
        let describe = |contender: &Contender| MeasuredSubject {
            name: contender.name().to_owned(),
            role: if contender.is_ours() { Role::Ours } else { Role::Peer },
            path: contender.program(self).display().to_string(),
            version: format!("{}; {}", contender.about(), self.memory.about()),
        };
        MeasuredSubjects(Contender::ALL.iter().map(describe).collect())
    }
}
