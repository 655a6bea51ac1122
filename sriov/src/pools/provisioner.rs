//! What work on members needs: the kernel, the administrator of settings, the inventory and the records; and how these are asked.
//! Nothing is changed here.

use std::sync::Arc;

use fairlead_host::{DevlinkDevice, Kernel, Link, NetError};
use parking_lot::Mutex;

use super::per_scan_cache::ScanCache;
use super::provision_error::ProvisionError;
use super::records::{Record, Records};
use crate::udev::Udev;
use crate::vf_netdev::interface;
use crate::{Administrator, Inventory, InventoryError, PciAddr, Scan, VfDevice};

/// All that work on members needs; every worker thread shares it.
pub(super) struct Provisioner {
    pub(super) kernel: Arc<dyn Kernel>,
    pub(super) admin: Arc<Administrator>,
    pub(super) inventory: Inventory,
    pub(super) udev: Udev,
    pub(super) records: Records,
    pub(super) boot_id: String,
    /// What devlink reported to the last scan.
    pub(super) devlink: Mutex<Arc<[DevlinkDevice]>>,
}

impl Provisioner {
    /// Scans the machine's VFs, and asks devlink about their cards.
    pub(super) fn scan_with_devlink(&self) -> Result<Scan, InventoryError> {
        let devices = self.kernel.devlink_or_none();
        *self.devlink.lock() = devices;
        self.scan()
    }

    /// Scans the machine's VFs, and goes by what devlink reported to the last full scan: devlink may take its time, and whoever goes
    /// by a pool's selectors between two looks has to see what the look saw.
    pub(super) fn scan(&self) -> Result<Scan, InventoryError> {
        self.inventory.scan(&self.devlink())
    }

    pub(super) fn devlink(&self) -> Arc<[DevlinkDevice]> {
        Arc::clone(&self.devlink.lock())
    }

    pub(super) fn record(&self, address: PciAddr) -> Result<Record, ProvisionError> {
        let record = self.records.get(address);
        record.ok_or_else(|| ProvisionError::Unfit("nothing is on record of it".to_owned()))
    }

    /// A cache for one look at the machine as it is now.
    pub(super) fn cache(&self) -> ScanCache<'_> {
        ScanCache::of(self.kernel.as_ref())
    }

    pub(super) fn interface(&self, vf: &VfDevice) -> Result<Option<Link>, NetError> {
        interface(self.kernel.host()?.as_mut(), vf.address, &vf.interfaces)
    }

    /// The same error, blamed on the PF where that is down: nothing can be said of its VFs then.
    pub(super) fn blamed(&self, address: PciAddr, why: ProvisionError) -> ProvisionError {
        let is_its_own =
            !matches!(why, ProvisionError::Taken(_) | ProvisionError::Gone(_)) && !why.is_of_others();
        match self.is_down(address).filter(|_| is_its_own) {
            Some(physical) => {
                ProvisionError::Physical(format!("{why}; its PF {physical} is down: set it up"))
            }
            None => why,
        }
    }

    /// A VF's PF, if none of its interfaces is up.
    fn is_down(&self, address: PciAddr) -> Option<PciAddr> {
        let physical = self.inventory.vf(address).ok()?.physical;
        let mut host = self.kernel.host().ok()?;
        let links = physical.interfaces.iter().filter_map(|name| host.link_by_name(name).ok()?);
        let up: Vec<bool> = links.map(|link| link.up).collect();
        // A PF whose interfaces are not in this namespace is not known to be down.
        (!up.is_empty() && !up.contains(&true)).then_some(physical.address)
    }
}
