//! What the kind uses: the host's files, the records, the switch.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Thread;

use fairlead_cni::CniError;
use fairlead_cni::config::vhost_user::Switch;
use fairlead_host::{HostRoot, Kernel};
use fairlead_kube::{Cluster, PodRef};
use fairlead_sriov::Inventory;
use fairlead_vhost::port::{PortCounters, PortView, ThreadView, UplinkView};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::ovs_link::{OvsAccess, OvsLink};
use super::switch_link::SwitchLink;
use crate::engine::errors;
use crate::port_pools::PortPools;
use crate::run_dir::SWITCH_SOCKET;
use crate::store::{Attachment, Store, VhostUserRecord};

/// What the kind stands on.
pub(crate) struct VhostUserServices {
    pub(super) places: SocketPlaces,
    /// Ports that kubelet allocates.
    pub(crate) pools: Arc<PortPools>,
    pub(super) store: Arc<Store>,
    pub(super) switch: SwitchLink,
    pub(super) ovs: OvsLink,
    /// The cluster, where the node is one's.
    pub(super) cluster: Option<Arc<dyn Cluster>>,
    /// For uplinks.
    pub(super) kernel: Arc<dyn Kernel>,
    /// For their NUMA nodes.
    pub(super) inventory: Inventory,
    /// Held while a port is made or taken away, and while those that nobody has on record are.
    pub(super) turn: Mutex<()>,
    /// The thread that keeps the ports up.
    pub(super) keeper: Mutex<Option<Thread>>,
}

/// A port of our own switch, and the pod that it is on record for.
pub(crate) struct KnownPort {
    pub(crate) view: PortView,
    pub(crate) pod: Option<PodRef>,
    /// Its record, where the switch does not have it: its pod has not made the socket yet, as a rule.
    missing: Option<VhostUserRecord>,
}

impl KnownPort {
    fn missing(record: &VhostUserRecord, pod: Option<PodRef>) -> KnownPort {
        let view = PortView {
            config: record.port.clone(),
            has_connection: false,
            connected: false,
            features: 0,
            active_queues: 0,
            counters: PortCounters::default(),
            thread: ThreadView::default(),
        };
        KnownPort { view, pod, missing: Some(record.clone()) }
    }
}

/// Where sockets can be that are in no port's own directory.
pub(crate) struct SocketPlaces {
    pub(crate) root: Arc<HostRoot>,
    /// Kubelet's directory on the host.
    pub(crate) kubelet: PathBuf,
}

impl VhostUserServices {
    /// Does `work` in the daemon's own namespace. A port has nothing in its pod's namespace, and nothing that lives on may be made there: a
    /// socket that listens, a connection to a switch, a driver's thread.
    pub(crate) fn at_home<T>(
        &self,
        work: impl Fn(&VhostUserServices) -> Result<T, CniError>,
    ) -> Result<T, CniError> {
        let mut done = Err(errors::internal("what belongs into the daemon's own namespace was not done"));
        self.kernel.at_home(&mut || done = work(self));
        done
    }

    /// Why no port of a switch can be made just now, for an ADD: a connection that was lost is waited for.
    pub(crate) fn lacks_for_add(&self, switch: &Switch) -> Option<String> {
        match switch {
            Switch::Fairlead => self.switch.lacks(),
            Switch::OvsDpdk(bridge) => self.ovs.lacks_for_add(&bridge.name, bridge.is_made),
        }
    }

    /// The same for STATUS: it answers before the caller takes the daemon for hung.
    pub(crate) fn lacks_for_status(&self, switch: &Switch) -> Option<String> {
        match switch {
            Switch::Fairlead => self.switch.lacks(),
            Switch::OvsDpdk(bridge) => self.ovs.lacks_for_status(&bridge.name, bridge.is_made),
        }
    }

    /// The switch's ports as the operator sees them, each with its pod, or why they are not known; and those of OVS.
    pub(crate) fn ports_table(&self) -> Value {
        let row = |port: KnownPort| {
            let mut row = json!(port.view);
            row["pod"] = port.pod.map(|pod| pod.to_string()).into();
            if let Some(missing) = port.missing {
                row["thread"] = Value::Null;
                row["reason"] = self.why_missing(&missing).into();
            }
            row
        };
        let mut table = match self.ports() {
            Ok(ports) => {
                let uplinks: Value = self.uplinks().iter().map(|uplink| self.uplink_row(uplink)).collect();
                json!({"ports": ports.into_iter().map(row).collect::<Value>(), "uplinks": uplinks})
            }
            Err(e) => json!({"lacks": e.msg, "waiting": self.ports_on_record()}),
        };
        table["ovs"] = self.ovs_table();
        table
    }

    fn uplink_row(&self, uplink: &UplinkView) -> Value {
        let mut row = json!(uplink);
        if let Some(why) = self.why_dead(uplink).unwrap_or_else(|e| Some(e.msg)) {
            row["reason"] = why.into();
        }
        row
    }

    /// The switch's uplinks; a switch from before there were any has none.
    pub(crate) fn uplinks(&self) -> Vec<UplinkView> {
        self.switch.uplinks().unwrap_or_default()
    }

    /// How many ports of the switch are on record.
    pub(crate) fn ports_on_record(&self) -> usize {
        self.store.filter_map(|a| a.port_of_own_switch().map(|_| ())).len()
    }

    /// The switch's ports, each with the pod that it is on record for, and those that pods have and the switch has not.
    ///
    /// # Errors
    /// The switch does not answer.
    pub(crate) fn ports(&self) -> Result<Vec<KnownPort>, CniError> {
        let ports = self.switch.ports()?;
        let all = self.store.all();
        let pod_of = |a: &Arc<Attachment>| Some((a.port_of_own_switch()?.port.name.clone(), a.pod.clone()?));
        let mut pods: HashMap<String, PodRef> = all.iter().filter_map(pod_of).collect();
        let names: HashSet<String> = ports.iter().map(|port| port.config.name.clone()).collect();
        let with_pod =
            |view: PortView| KnownPort { pod: pods.remove(&view.config.name), view, missing: None };
        let mut known: Vec<KnownPort> = ports.into_iter().map(with_pod).collect();
        for attachment in self.attached() {
            if let Some(record) = attachment.port_of_own_switch().filter(|r| !names.contains(&r.port.name)) {
                known.push(KnownPort::missing(record, attachment.pod.clone()));
            }
        }
        Ok(known)
    }

    /// The addresses that the switch knows, or why they are not known.
    pub(crate) fn addresses_table(&self) -> Value {
        self.switch.addresses().map_or_else(|e| json!({"lacks": e.msg}), |known| json!({"addresses": known}))
    }

    /// `run_dir`: where the socket is by which `fairlead-vswitch` is told what to do, and the directories of sockets as OVS sees them.
    pub(crate) fn new(
        places: SocketPlaces,
        pools: Arc<PortPools>,
        store: Arc<Store>,
        run_dir: &Path,
        ovs: OvsAccess,
        (kernel, inventory): (Arc<dyn Kernel>, Inventory),
        cluster: Option<Arc<dyn Cluster>>,
    ) -> VhostUserServices {
        let switch = SwitchLink::new(run_dir.join(SWITCH_SOCKET));
        let ovs = OvsLink::new(ovs, Arc::clone(&places.root), run_dir);
        let (turn, keeper) = (Mutex::new(()), Mutex::new(None));
        VhostUserServices { places, pools, store, switch, ovs, cluster, kernel, inventory, turn, keeper }
    }
}
