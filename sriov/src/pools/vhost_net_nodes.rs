//! The nodes of vhost-net and tun, which go with a VF where its selector says `needVhostNet` and the host has them: the runtime makes
//! no container with a node that is not there.

use std::mem;
use std::path::PathBuf;

use parking_lot::Mutex;

/// The nodes, below `/dev`.
const NODES: [&str; 2] = ["vhost-net", "net/tun"];

/// A node that every host has: without it what is seen is not the whole of the host's `/dev`.
const ON_EVERY_HOST: &str = "null";

/// The nodes as far as the host's `/dev` is seen.
pub(super) struct VhostNetNodes {
    dev: PathBuf,
    /// The one that was missing when that was last asked.
    missing: Mutex<Option<&'static str>>,
}

impl VhostNetNodes {
    /// `dev`: where the host's `/dev` is, which need not be seen.
    pub(super) fn new(dev: PathBuf) -> VhostNetNodes {
        VhostNetNodes { dev, missing: Mutex::default() }
    }

    /// Whether a pod can have them; that one is missing is logged once. Where the host's `/dev` is not seen, or only a part of it, nothing
    /// says that they are not there.
    pub(super) fn are_there(&self) -> bool {
        let is_missing = |node: &&str| self.dev.join(ON_EVERY_HOST).exists() && !self.dev.join(node).exists();
        let missing = NODES.into_iter().find(is_missing);
        let before = mem::replace(&mut *self.missing.lock(), missing);
        if let Some(node) = missing.filter(|_| before != missing) {
            tracing::warn!(
                "a pool says needVhostNet, and the host has no /dev/{node}: its pods get neither vhost-net nor tun; load the modules \
                 vhost_net and tun"
            );
        }
        missing.is_none()
    }
}
