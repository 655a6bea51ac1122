//! A switch of this process for tests of pods: its data plane, with ports as ours have them.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;

use fairlead_vhost::dataplane::{DataPlane, Options, Socket};
use fairlead_vhost::port::PortCounters;
use tempfile::TempDir;

use super::contender::{Contender, NETWORK, Running};
use super::generator::Connects;

/// A data plane that sleeps when nothing comes, and where its ports are reached.
pub(super) struct TestSwitch {
    plane: DataPlane,
    pub(super) running: Running,
    _directory: TempDir,
}

impl TestSwitch {
    /// Two ports of one network, and two of `further`.
    pub(super) fn start(further: &str) -> TestSwitch {
        let directory = tempfile::tempdir().unwrap();
        let plane = DataPlane::start(Options::default(), |_| {}).unwrap();
        let paths: Vec<_> = (0..4).map(|at| directory.path().join(at.to_string())).collect();
        for (at, path) in paths.iter().enumerate() {
            let port = Contender::Ours.port(at, if at < 2 { NETWORK } else { further });
            let listener = UnixListener::bind(path).unwrap();
            plane.add_port(port, Socket::Listening(OwnedFd::from(listener)), None).unwrap();
        }
        let sockets = [paths[0].clone(), paths[1].clone()];
        let (further, connects) = (paths[2..].to_vec(), Connects::ToTheSwitch);
        let running = Running { sockets, further, connects, processes: Vec::new() };
        TestSwitch { plane, running, _directory: directory }
    }

    /// What went through port `at`.
    pub(super) fn counters(&self, at: usize) -> PortCounters {
        let name = format!("port-{at}");
        self.plane.ports().into_iter().find(|port| port.config.name == name).unwrap().counters
    }
}
