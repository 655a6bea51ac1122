//! Multus' `readinessindicatorfile`: before that file is there, the cluster's default network is not ready.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use fairlead_cni::config::ClusterNetwork;
use fairlead_cni::{CniError, Code};
use fairlead_host::host_root::HostRoot;

use super::Engine;
use crate::call::Waiting;

/// Between two looks for the file: it lies in a directory of others, which may not exist yet, so nothing can be watched.
const LOOKS: Duration = Duration::from_millis(50);

impl Engine {
    /// Whether the file is there.
    pub(super) fn must_be_ready(&self, node: &ClusterNetwork) -> Result<(), CniError> {
        let Some(file) = &node.readiness_file else { return Ok(()) };
        let looked = HostRoot::new(self.host_root.clone()).exists(Path::new(file));
        looked.map_err(|error| {
            let msg = format!("the cluster network {:?} is not ready: its file {file:?}: {error}", node.name);
            CniError::new(Code::TryAgain, msg).with(
                "that network's own daemon makes the file; see why it does not, or take readinessindicatorfile out of the configuration",
            )
        })
    }

    /// Waits for the file as long as for a pod.
    pub(super) fn wait_until_ready(&self, node: &ClusterNetwork, waiting: &Waiting) -> Result<(), CniError> {
        let deadline = waiting.deadline.min(Instant::now() + self.core.call_settings().pod_wait);
        loop {
            match self.must_be_ready(node) {
                Err(_) if Instant::now() < deadline && !waiting.gone.get() => thread::sleep(LOOKS),
                done => return done,
            }
        }
    }
}
