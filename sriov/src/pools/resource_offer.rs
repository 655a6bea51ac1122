//! A resource as it is offered to kubelet, its VFs, and what a pod needs to reach one. The lists are made in `offers`, under the
//! pools' lock.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Weak};

use tokio::sync::watch;

use super::Pools;
use super::state::{Member, Spread};
use crate::{PciAddr, Rdma};

/// What is offered, and what is known for that.
#[derive(Default)]
pub(super) struct Offers {
    pub(super) resources: BTreeMap<String, Arc<Offer>>,
    /// Resources whose pools have been compared with the machine.
    pub(super) looked_at: BTreeSet<String>,
    /// Resources of which a member has changed since their list was made.
    pub(super) stale: BTreeSet<String>,
    /// VFs that were verified once.
    pub(super) announced: BTreeSet<PciAddr>,
    /// PFs without a carrier.
    pub(super) dark: BTreeSet<PciAddr>,
    /// Another allocator's pools of which nobody announced a VF when that was last asked.
    pub(super) unannounced: BTreeSet<String>,
}

/// A VF as it is offered to kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedVf {
    /// Its PCI address.
    pub address: PciAddr,
    /// Its NUMA node, where its pool lets kubelet know that.
    pub numa_node: Option<u32>,
    /// Whether it may be allocated to pods, also while it is still on its way home from the last one.
    pub healthy: bool,
    /// Its PF, for packing and spreading.
    pub pf: PciAddr,
}

/// How a pod reaches a VF, beside its network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VfAccess {
    /// The IOMMU group of one that is bound to vfio-pci.
    pub vfio: Option<VfioNode>,
    /// Its RDMA devices and nodes, where the pool gives them to pods; `rdma_cm`, which is of all devices, is one of the nodes.
    pub rdma: Option<Rdma>,
    /// It comes with vhost-net and tun, for an application that has its own way to the kernel, and the host has both.
    pub vhost_net: bool,
    /// What the configuration has to say of it besides.
    pub extra: BTreeMap<String, String>,
}

/// An IOMMU group's node under `/dev/vfio`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VfioNode {
    /// The group's number.
    pub number: u32,
    /// It stands for no real group: its devices are behind no IOMMU, and the host's node has another name.
    pub no_iommu: bool,
}

/// The complete list of a resource's VFs; `None` until its pools have been compared with the machine.
pub type OfferedVfs = Option<Arc<[OfferedVf]>>;

/// A resource that a device plugin of the node announces to kubelet, ours or another's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnouncedResource {
    /// Its full name, as in `intel.com/radio`.
    pub name: String,
    /// Its devices by the names that the device plugin gave them: PCI addresses of VFs, anything for other devices.
    pub ids: Vec<String>,
}

/// A resource that kubelet is to be offered.
pub struct Offer {
    resource: String,
    list: watch::Sender<OfferedVfs>,
    pools: Weak<Pools>,
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offer").field("resource", &self.resource).finish_non_exhaustive()
    }
}

impl Offer {
    pub(super) fn new(resource: String, pools: Weak<Pools>) -> Offer {
        Offer { resource, list: watch::Sender::new(None), pools }
    }

    /// Its name for pods: `intel.com/radio`.
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// Which PFs the VFs of one pod are to be of.
    pub fn spread(&self) -> Spread {
        self.pools.upgrade().map(|pools| pools.lock().spread_of(&self.resource)).unwrap_or_default()
    }

    /// The complete list, as it is now and after every change.
    pub fn list(&self) -> watch::Receiver<OfferedVfs> {
        self.list.subscribe()
    }

    /// Whether a VF is ready, so that [`Offer::allocate`] need not wait for it, nor the ADD that follows.
    pub fn is_ready(&self, vf: PciAddr) -> bool {
        self.pools.upgrade().is_some_and(|pools| pools.lock().member(vf).is_some_and(|(_, m)| m.is_ready()))
    }

    /// Kubelet allocates a VF to a pod: what the pod needs to reach it. A VF that is being cleaned is waited for, and an RDMA VF that its
    /// last pod has still; on record when this succeeds.
    ///
    /// # Errors
    /// Why the pod must not have it now, in words.
    pub fn allocate(&self, vf: PciAddr) -> Result<VfAccess, String> {
        let pools = self.pools.upgrade().ok_or("the daemon stops")?;
        pools.allocate(vf)
    }

    /// Kubelet is answered that a pod has a VF: asked again soon after that, it is for another container of the same pod.
    pub fn allocation_answered(&self, vf: PciAddr) {
        if let Some(pools) = self.pools.upgrade() {
            pools.allocation_answered(vf);
        }
    }

    /// The pod that a VF was allocated to does not get it after all.
    pub fn cancel_allocation(&self, vf: PciAddr) {
        if let Some(pools) = self.pools.upgrade() {
            pools.cancel_allocation(vf);
        }
    }

    pub(super) fn show(&self, vfs: Arc<[OfferedVf]>) {
        self.list.send_if_modified(|shown| {
            // An empty first list is a change too: until it comes, the resource is not registered with kubelet.
            let has_changed = shown.as_ref() != Some(&vfs);
            *shown = Some(vfs);
            has_changed
        });
    }
}

impl Offers {
    /// Members of a resource have changed; a resource is offered only if it is declared.
    pub(super) fn changed<'m>(&mut self, resource: Option<&str>, members: impl Iterator<Item = &'m Member>) {
        self.announced.extend(members.filter(|member| member.is_verified()).map(|member| member.address));
        self.stale.extend(resource.map(str::to_owned));
    }
}
