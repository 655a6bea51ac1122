//! A VF as it is just before it goes to a pod, and the settings of one that a pod has.

use std::error::Error;

use fairlead_cni::CniError;
use fairlead_host::{Link, NetError, Vf, VfChange};
use fairlead_sriov::{VFIO_PCI, VfDevice, vf_netdev};

use super::config::Sriov;
use super::reserve::{ReservedVf, unusable, vf_not_to_be_had};
use super::services::SriovServices;
use crate::engine::errors;
use crate::store::{Key, LinkRecord, VfRecord};

/// A VF that was reserved, as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// What sysfs says of it.
    pub(crate) device: VfDevice,
    /// The inode number of its directory in sysfs.
    pub(crate) inode: Option<u64>,
    /// The name of the driver that has it.
    pub(crate) driver: String,
    /// Its netdev in the host's namespace; `None` under vfio-pci.
    pub(crate) netdev: Option<Link>,
    /// Its settings; `None` where nothing of them is needed, because reading them takes long.
    pub(crate) settings: Option<Vf>,
    /// Under vfio-pci: its pool restores all its settings after the pod.
    pub(crate) restored_by_pool: bool,
    /// The MTU of its PF in bytes, where the VF has no netdev and its PF has one here.
    pub(crate) pf_mtu: Option<u32>,
}

impl Snapshot {
    /// What goes on record of it, and the settings that differ from what is wanted.
    pub(crate) fn record(&self, wanted: &Sriov) -> (VfRecord, VfChange) {
        let plan = self.settings.as_ref().map(|now| wanted.profile.plan(now)).unwrap_or_default();
        let vf = VfRecord {
            address: self.device.address,
            pf: self.device.physical.address,
            index: self.device.index,
            driver: self.driver.clone(),
            iommu_group: self.device.iommu_group,
            inode: self.inode,
            mtu: self.pf_mtu,
            pf_mac: None,
            before: plan.undo,
        };
        (vf, plan.change)
    }
}

impl SriovServices {
    /// The VF that was reserved, as it is, with its netdev if its driver makes one. Of one that its pool has ready nothing is read
    /// that the pool knows.
    pub(crate) fn snapshot(&self, wanted: &Sriov, reserved: &ReservedVf<'_>) -> Result<Snapshot, CniError> {
        let (device, driver) = (reserved.device().clone(), reserved.driver().to_owned());
        // What the pool knows may be older than the VF that is there now.
        let inode = self.inventory.inode(device.address).map_err(|e| unusable(&e))?;
        let known = reserved.known().map(|known| known.settings.clone());
        if driver == VFIO_PCI {
            let restored_by_pool = self.pools.restores_settings(device.address);
            let settings = self.settings_under_vfio(wanted, &device, known)?;
            let pf_mtu = self.pf_mtu(&device);
            return Ok(Snapshot { device, inode, driver, netdev: None, settings, restored_by_pool, pf_mtu });
        }
        let told = |e: NetError| errors::kernel("", "looking for the VF's interface", &e);
        let mut host = self.kernel.host().map_err(told)?;
        let address = wanted.address()?;
        let link = vf_netdev::interface(host.as_mut(), address, &device.interfaces).map_err(told)?;
        let link =
            link.ok_or_else(|| vf_not_to_be_had(address, "its interface is not in the host's namespace"))?;
        let settings = match (known, wanted.profile.is_empty()) {
            (Some(known), _) => Some(known),
            (None, true) => None,
            (None, false) => Some(self.admin.settings(&device).map_err(|e| errors::setting(&e))?),
        };
        let (netdev, restored_by_pool, pf_mtu) = (Some(link), false, None);
        Ok(Snapshot { device, inode, driver, netdev, settings, restored_by_pool, pf_mtu })
    }

    /// The MTU of the PF's own interface. Nothing goes by it: where it cannot be read, only the answer lacks it.
    fn pf_mtu(&self, device: &VfDevice) -> Option<u32> {
        let untold = |error: &dyn Error| {
            tracing::warn!(pci = %device.address, %error, "the MTU of a VF's PF cannot be told");
        };
        // Asked anew, devlink may take seconds to answer.
        let devlink = self.pools.devlink_of(device.address).unwrap_or_default();
        let own = self.inventory.own_interface(device.physical.address, &devlink);
        let own = own.inspect_err(|error| untold(error)).ok()??;
        let link = self.kernel.host().and_then(|mut host| host.link_by_name(&own));
        link.inspect_err(|error| untold(error)).ok()?.map(|link| link.mtu)
    }

    /// Without a netdev nothing but its settings says its MAC address: they are read even where none is wanted, unless its
    /// pool has it ready and knows them.
    fn settings_under_vfio(
        &self,
        wanted: &Sriov,
        device: &VfDevice,
        known: Option<Vf>,
    ) -> Result<Option<Vf>, CniError> {
        match known.map_or_else(|| self.admin.settings(device), Ok) {
            Ok(settings) => Ok(Some(settings)),
            // No setting is wanted: only the answer lacks the MAC address.
            Err(error) if wanted.profile.is_empty() => {
                tracing::warn!(pci = %device.address, %error, "a VF's MAC address cannot be told");
                Ok(None)
            }
            Err(error) => Err(errors::setting(&error)),
        }
    }

    /// The settings of a VF that a pod has, where its configuration asks for any.
    pub(crate) fn settings_now(&self, wanted: &Sriov) -> Result<Option<Vf>, CniError> {
        if wanted.profile.is_empty() {
            return Ok(None);
        }
        let device = self.inventory.vf(wanted.address()?).map_err(|e| unusable(&e))?;
        self.admin.settings(&device).map(Some).map_err(|e| errors::setting(&e))
    }

    /// Sets what differs.
    pub(crate) fn set_up(&self, vf: &VfRecord, change: &VfChange) -> Result<(), CniError> {
        if change.is_empty() {
            return Ok(());
        }
        let device = self.inventory.vf(vf.address).map_err(|e| unusable(&e))?;
        self.admin.set(&device, change).map_err(|e| errors::setting(&e))
    }

    /// Whether the pod has this VF under vfio-pci: as it is on record, or else by its driver.
    pub(crate) fn is_vfio(&self, wanted: &Sriov, key: &Key) -> Result<bool, CniError> {
        match self.store.find(key) {
            // The record counts: somebody may have bound the VF to another driver since.
            Some(attachment) => Ok(matches!(attachment.link, LinkRecord::Vfio(_))),
            None => {
                let device = self.inventory.vf(wanted.address()?);
                device.map(|f| f.driver.as_deref() == Some(VFIO_PCI)).map_err(|e| unusable(&e))
            }
        }
    }
}
