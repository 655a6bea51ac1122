//! The pools' VFs and vhost-user ports as kubelet's device plugins. This is the only place that knows both: pools hand out plain
//! values, and the kubelet crate asks a [`Devices`]. It keeps no state of its own but which offer has which device plugin, and why the
//! last offer failed. It decides nothing.

use std::sync::Arc;

use fairlead_kubelet::{
    AllocationPolicy, AllocationRefused, Device, DeviceAccess, DevicePlugins, Devices, Health, RdmaAccess,
    ResourceDevices, VfioGroup, VhostUserSocket, WatchedDevices, watched,
};
use fairlead_sriov::PciAddr;
use fairlead_sriov::pools::state::Spread;
use parking_lot::Mutex;

use fairlead_sriov::pools::{AnnouncedResource, Offer, OfferedVf, Pools, VfAccess};

use crate::port_pools::{OfferedPort, PortAccess, PortOffer, PortPools, SOCKET};

/// The pools that kubelet allocates from, as they are offered to it.
#[derive(Debug)]
pub(crate) struct DeviceOffers {
    plugins: DevicePlugins,
    /// One for each offer. The device plugins compare resources by their `Arc`, so an offer must have the same one each time:
    /// with another one kubelet would lose the resource and get it again.
    offered: Mutex<Offered>,
}

#[derive(Debug, Default)]
struct Offered {
    vfs: Vec<Arc<OfferedDevices>>,
    ports: Vec<Arc<OfferedPorts>>,
    /// Why the last offer failed, which was told.
    failure: Option<String>,
}

impl Offered {
    /// Notes whether an offer has failed; answers why, where that is news.
    fn note(&mut self, failure: Option<String>) -> Option<&str> {
        let is_news = failure != self.failure;
        self.failure = failure;
        self.failure.as_deref().filter(|_| is_news)
    }
}

impl DeviceOffers {
    /// Offers by these device plugins. Nothing is offered yet.
    pub(crate) fn new(plugins: DevicePlugins) -> DeviceOffers {
        DeviceOffers { plugins, offered: Mutex::default() }
    }

    /// Offers kubelet what the pools offer now, and nothing else. What is offered already goes on undisturbed. A failure is logged,
    /// unless it was the same before; the next call tries again.
    pub(crate) fn offer(&self, pools: &Pools, ports: &PortPools) {
        // Held to the end: of two offers at once the older one must not reach the plugins last.
        let mut offered = self.offered.lock();
        let vfs_of = |offer: Arc<Offer>| {
            let same = offered.vfs.iter().find(|devices| Arc::ptr_eq(&devices.0, &offer));
            same.map_or_else(|| Arc::new(OfferedDevices(Arc::clone(&offer))), Arc::clone)
        };
        let ports_of = |offer: Arc<PortOffer>| {
            let same = offered.ports.iter().find(|ports| Arc::ptr_eq(&ports.0, &offer));
            same.map_or_else(|| Arc::new(OfferedPorts(Arc::clone(&offer))), Arc::clone)
        };
        let vfs: Vec<_> = pools.offers().into_iter().map(vfs_of).collect();
        let ports: Vec<_> = ports.offers().into_iter().map(ports_of).collect();
        (offered.vfs, offered.ports) = (vfs, ports);
        let vfs = offered.vfs.iter().map(|devices| Arc::clone(devices) as Arc<dyn Devices>);
        let ports = offered.ports.iter().map(|ports| Arc::clone(ports) as Arc<dyn Devices>);
        let failure = self.plugins.offer(vfs.chain(ports).collect()).err().map(|error| error.to_string());
        if let Some(error) = offered.note(failure) {
            tracing::error!(error, "pools cannot be offered to kubelet; it is tried again each minute");
        }
    }
}

/// What the device plugins of the node announce, in the pools' own words.
pub(crate) fn announced_resources(all: Vec<ResourceDevices>) -> Vec<AnnouncedResource> {
    let resource = |devices: ResourceDevices| AnnouncedResource { name: devices.resource, ids: devices.ids };
    all.into_iter().map(resource).collect()
}

/// The devices of one offer.
#[derive(Debug)]
struct OfferedDevices(Arc<Offer>);

impl Devices for OfferedDevices {
    fn resource(&self) -> &str {
        self.0.resource()
    }

    fn allocation_policy(&self) -> AllocationPolicy {
        match self.0.spread() {
            Spread::Packed => AllocationPolicy::Packed,
            Spread::Spread => AllocationPolicy::Spread,
        }
    }

    fn list(&self) -> Vec<Device> {
        self.0.list().borrow().as_deref().map(devices).unwrap_or_default()
    }

    fn watch(&self) -> WatchedDevices {
        watched(self.0.list(), |list| devices(list))
    }

    fn is_ready(&self, id: &str) -> bool {
        id.parse::<PciAddr>().is_ok_and(|address| self.0.is_ready(address))
    }

    fn allocate(&self, id: &str) -> Result<DeviceAccess, AllocationRefused> {
        let address = id.parse::<PciAddr>().map_err(|e| e.to_string());
        let access = address.and_then(|address| self.0.allocate(address));
        access.map(device_access).map_err(|reason| AllocationRefused { id: id.to_owned(), reason })
    }

    fn allocation_answered(&self, id: &str) {
        if let Ok(address) = id.parse() {
            self.0.allocation_answered(address);
        }
    }

    fn cancel_allocation(&self, id: &str) {
        // An id that is no PCI address was refused by `allocate` already.
        if let Ok(address) = id.parse() {
            self.0.cancel_allocation(address);
        }
    }
}

/// The ports of one offer.
#[derive(Debug)]
struct OfferedPorts(Arc<PortOffer>);

impl Devices for OfferedPorts {
    fn resource(&self) -> &str {
        self.0.resource()
    }

    fn allocation_policy(&self) -> AllocationPolicy {
        AllocationPolicy::Packed
    }

    fn list(&self) -> Vec<Device> {
        self.0.list().borrow().as_deref().map(port_devices).unwrap_or_default()
    }

    fn watch(&self) -> WatchedDevices {
        watched(self.0.list(), |list| port_devices(list))
    }

    fn is_ready(&self, id: &str) -> bool {
        self.0.is_ready(id)
    }

    fn allocate(&self, id: &str) -> Result<DeviceAccess, AllocationRefused> {
        let access = self.0.allocate(id);
        access.map(port_access).map_err(|reason| AllocationRefused { id: id.to_owned(), reason })
    }

    /// A port is as it was, however long kubelet has waited.
    fn allocation_answered(&self, _id: &str) {}

    /// A port is as it was: what was allocated is its directory's name.
    fn cancel_allocation(&self, _id: &str) {}
}

fn port_devices(list: &[OfferedPort]) -> Vec<Device> {
    let device = |port: &OfferedPort| Device {
        id: port.id.clone(),
        numa_node: port.numa_node,
        health: if port.healthy { Health::Healthy } else { Health::Unhealthy },
        pf: port.pool.clone(),
    };
    list.iter().map(device).collect()
}

fn port_access(access: PortAccess) -> DeviceAccess {
    let PortAccess { mode, host_directory, directory, read_only, mac } = access;
    let socket = VhostUserSocket { mode, host_directory, directory, name: SOCKET, read_only, mac };
    DeviceAccess { vhost_user: Some(socket), ..DeviceAccess::default() }
}

fn devices(list: &[OfferedVf]) -> Vec<Device> {
    let device = |vf: &OfferedVf| Device {
        id: vf.address.to_string(),
        numa_node: vf.numa_node,
        health: if vf.healthy { Health::Healthy } else { Health::Unhealthy },
        pf: vf.pf.to_string(),
    };
    list.iter().map(device).collect()
}

fn device_access(access: VfAccess) -> DeviceAccess {
    let VfAccess { vfio, rdma, vhost_net, extra } = access;
    DeviceAccess {
        vfio: vfio.map(|group| VfioGroup { number: group.number, no_iommu: group.no_iommu }),
        rdma: rdma.map(|rdma| RdmaAccess { devices: rdma.devices, nodes: rdma.nodes }),
        vhost_net,
        vhost_user: None,
        extra,
    }
}

#[cfg(test)]
mod tests {
    use super::Offered;

    #[test]
    fn why_pools_cannot_be_offered_is_told_once_and_again_when_it_has_changed_or_was_over() {
        let mut offered = Offered::default();
        let mut told = |failure: Option<&str>| offered.note(failure.map(str::to_owned)).map(str::to_owned);
        let failures = [None, Some("no watch"), Some("no watch"), Some("no thread"), None, Some("no thread")];
        let news = failures.map(|failure| told(failure).is_some());
        assert_eq!(news, [false, true, false, true, false, true]);
    }
}
