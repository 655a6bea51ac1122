//! Ports as kubelet is offered them: the complete list of each resource, and what a pod needs to reach one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use fairlead_host::Mac;
use tokio::sync::watch;

use super::{PortPools, State};

/// A port as it is offered to kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OfferedPort {
    /// Its name.
    pub(crate) id: String,
    /// The name of its pool.
    pub(crate) pool: String,
    /// The NUMA node that kubelet is to align its pod to.
    pub(crate) numa_node: Option<u32>,
    /// Whether a pod may have it: its directory can be made.
    pub(crate) healthy: bool,
}

/// How a pod reaches a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PortAccess {
    /// `client` or `server`: the pod's side.
    pub(crate) mode: &'static str,
    /// The directory of its socket on the host.
    pub(crate) host_directory: String,
    /// The same directory as the pod's containers see it.
    pub(crate) directory: String,
    /// The pod may make nothing in it.
    pub(crate) read_only: bool,
    /// The MAC address that its ADD gives it, unless the pod asks for another.
    pub(crate) mac: Mac,
}

/// A resource that kubelet is offered; the same one for as long as the resource is declared.
pub(crate) struct PortOffer {
    resource: String,
    list: watch::Sender<Option<Vec<OfferedPort>>>,
    pools: Weak<PortPools>,
}

impl fmt::Debug for PortOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortOffer").field("resource", &self.resource).finish_non_exhaustive()
    }
}

impl PortOffer {
    /// Its name for pods.
    pub(crate) fn resource(&self) -> &str {
        &self.resource
    }

    /// The complete list, as it is now and after every change.
    pub(crate) fn list(&self) -> watch::Receiver<Option<Vec<OfferedPort>>> {
        self.list.subscribe()
    }

    /// Whether no attachment has a port. One that is taken is refused to the ADD of its next pod until that attachment is over.
    pub(crate) fn is_ready(&self, id: &str) -> bool {
        self.pools.upgrade().is_some_and(|pools| !pools.store.has_port(id, None))
    }

    /// Kubelet allocates a port to a pod: what the pod needs to reach it.
    pub(crate) fn allocate(&self, id: &str) -> Result<PortAccess, String> {
        self.pools.upgrade().ok_or("the daemon stops")?.allocate(id)
    }
}

impl State {
    /// Has one offer for each resource that is declared.
    pub(super) fn arrange_offers(&mut self, pools: &Weak<PortPools>) {
        let mut before = std::mem::take(&mut self.offers);
        for resource in self.pools.iter().map(|pool| &pool.resource_name) {
            if self.offers.contains_key(resource) {
                continue;
            }
            let new = || {
                let (list, pools) = (watch::Sender::new(None), Weak::clone(pools));
                Arc::new(PortOffer { resource: resource.clone(), list, pools })
            };
            let offer = before.remove(resource).unwrap_or_else(new);
            self.offers.insert(resource.clone(), offer);
        }
    }

    /// Shows whoever follows the lists what has changed in them.
    pub(super) fn show_offers(&self) {
        let mut lists: BTreeMap<&str, Vec<OfferedPort>> = BTreeMap::new();
        for pool in &self.pools {
            let list = lists.entry(&pool.resource_name).or_default();
            list.extend(pool.ids().map(|id| OfferedPort {
                healthy: self.ports.get(&id).is_some_and(|port| port.fault.is_none()),
                pool: pool.name.clone(),
                numa_node: pool.numa_node,
                id,
            }));
        }
        for (resource, list) in lists {
            let Some(offer) = self.offers.get(resource) else { continue };
            offer.list.send_if_modified(|shown| {
                let has_changed = shown.as_ref() != Some(&list);
                *shown = Some(list);
                has_changed
            });
        }
    }
}
