//! Switches of vhost-user ports: ours beside OVS-DPDK and DPDK's own vhost driver, in one run.
//!
//! DPDK's testpmd is both pods, by two virtio_user ports: what comes in at one it sends out of the other, so that frames go round
//! for ever and as many are under way as were sent first. A switch has the first processor, testpmd the second. Each round starts the
//! switch anew and counts what testpmd got; the subjects take turns. Only [`two_threads`] has pods of its own.

pub(crate) mod cases;
pub(crate) mod contender;
mod filled_pod;
mod generator;
pub(crate) mod lengths;
mod memory;
pub(crate) mod targets;
pub(crate) mod two_threads;

use std::path::PathBuf;

use crate::cli::Options;
use crate::results::Results;
use crate::subject::Role;
use crate::subject_descriptions::{MeasuredSubject, MeasuredSubjects};
use crate::subject_setup::{RunDirectories, SubjectSetupError};
use contender::Contender;
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
        })
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
