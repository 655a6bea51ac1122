//! IOMMU groups: what shares the protection of a VF, and so has to go with it.

use std::path::Path;

use super::sysfs::{hexadecimal, names, target_name};
use super::{Inventory, InventoryError};
use crate::PciAddr;

/// A PCI bridge's base class and subclass.
const BRIDGE: u32 = 0x0604;

/// Another device of a VF's IOMMU group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMember {
    /// Its name on its bus; a PCI address for nearly all.
    pub device: String,
    /// The driver that has it.
    pub driver: Option<String>,
    /// A bridge's driver does no DMA of its own, and does not stand in the way of vfio.
    pub bridge: bool,
}

impl GroupMember {
    /// True when vfio refuses the whole group because of it: a driver of the host's may still use it
    /// (`Documentation/driver-api/vfio.rst`).
    pub fn is_in_the_way_of_vfio(&self) -> bool {
        let harmless = |driver: &str| driver.starts_with("vfio") || driver == "pci-stub";
        !self.bridge && self.driver.as_deref().is_some_and(|driver| !harmless(driver))
    }
}

impl Inventory {
    /// The number of a device's IOMMU group; `None` where there is no IOMMU.
    pub(crate) fn iommu_group(&self, address: PciAddr) -> Result<Option<u32>, InventoryError> {
        let group = target_name(&self.dir(address).join("iommu_group"))?;
        Ok(group.and_then(|group| group.parse().ok()))
    }

    /// The other members of a device's IOMMU group; none where there is no IOMMU.
    pub fn group_of(&self, address: PciAddr) -> Result<Vec<GroupMember>, InventoryError> {
        let dir = self.dir(address).join("iommu_group/devices");
        let own = address.to_string();
        let others = names(&dir)?.into_iter().filter(|name| *name != own);
        others.map(|device| member(&dir.join(&device), device)).collect()
    }
}

fn member(dir: &Path, device: String) -> Result<GroupMember, InventoryError> {
    Ok(GroupMember {
        device,
        driver: target_name(&dir.join("driver"))?,
        // The lowest byte of the class is the programming interface, which differs between bridges.
        bridge: hexadecimal(&dir.join("class"))?.is_some_and(|class| class >> 8 == BRIDGE),
    })
}
