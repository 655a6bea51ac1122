//! What the kind uses: the host's files, the records, the switch.

use std::path::PathBuf;
use std::sync::Arc;

use fairlead_host::HostRoot;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::switch_link::SwitchLink;
use crate::store::Store;

/// What the kind stands on.
pub(crate) struct VhostUserServices {
    pub(super) root: Arc<HostRoot>,
    /// Kubelet's directory on the host.
    pub(super) kubelet: PathBuf,
    pub(super) store: Arc<Store>,
    pub(super) switch: SwitchLink,
    /// Held while a port is made or taken away, and while those that nobody has on record are.
    pub(super) turn: Mutex<()>,
}

impl VhostUserServices {
    /// Why no port can be made just now.
    pub(crate) fn lacks(&self) -> Option<String> {
        self.switch.lacks()
    }

    /// The switch's ports as the operator sees them, or why they are not known.
    pub(crate) fn ports_table(&self) -> Value {
        self.switch.ports().map_or_else(|e| json!({"lacks": e.msg}), |ports| json!({"ports": ports}))
    }

    /// The addresses that the switch knows, or why they are not known.
    pub(crate) fn addresses_table(&self) -> Value {
        self.switch.addresses().map_or_else(|e| json!({"lacks": e.msg}), |known| json!({"addresses": known}))
    }

    /// `switch`: the socket by which `fairlead-vswitch` is told what to do.
    pub(crate) fn new(
        root: Arc<HostRoot>,
        kubelet: PathBuf,
        store: Arc<Store>,
        switch: PathBuf,
    ) -> VhostUserServices {
        VhostUserServices { root, kubelet, store, switch: SwitchLink::new(switch), turn: Mutex::new(()) }
    }
}
