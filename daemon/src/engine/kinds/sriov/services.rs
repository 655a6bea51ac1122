//! What the VF kinds use: the inventory, the administrator of settings, the pools, kubelet, the store.

use std::path::PathBuf;
use std::sync::Arc;

use fairlead_host::{Kernel, NetnsId};
use fairlead_kubelet::PodResources;
use fairlead_sriov::pools::Pools;
use fairlead_sriov::{Administrator, Inventory, KernelVf};

use super::device_given_by_kubelet::AnnouncedDevices;
use crate::device_offers::DeviceOffers;
use crate::engine::keyed_locks::KeyedLocks;
use crate::engine::kinds::DeviceInfoFiles;
use crate::metrics;
use crate::store::{Store, VfRecord};

/// What the VF kinds stand on.
pub(crate) struct SriovServices {
    pub(crate) kernel: Arc<dyn Kernel>,
    pub(crate) host_id: NetnsId,
    pub(crate) sysfs: PathBuf,
    pub(crate) store: Arc<Store>,
    pub(crate) device_info: Arc<DeviceInfoFiles>,
    pub(crate) inventory: Inventory,
    pub(crate) admin: Arc<Administrator>,
    pub(crate) pools: Arc<Pools>,
    pub(crate) pod_resources: PodResources,
    pub(crate) device_offers: DeviceOffers,
    /// What the node's device plugins announce.
    pub(crate) announced: AnnouncedDevices,
    /// VFs and IOMMU groups that an ADD is about to put on record.
    pub(crate) reserved: KeyedLocks,
    pub(crate) calls: metrics::Calls,
}

impl SriovServices {
    /// A VF of a record and its driver.
    pub(crate) fn kernel_vf<'a>(&'a self, vf: &'a VfRecord) -> KernelVf<'a> {
        KernelVf { kernel: self.kernel.as_ref(), address: vf.address, driver: &vf.driver }
    }
}
