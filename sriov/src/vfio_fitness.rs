//! Whether a VF that vfio-pci has can be given to a process: the IOMMU group is the unit of protection, so nothing of
//! it may be a host driver's, and no process may have it.
//!
//! Looks only. The group is opened and closed, which a process that has it does not notice.

use fairlead_host::{IommuGroup, NetError, VFIO_PCI};

use crate::{Inventory, InventoryError, PciAddr, VfDevice};

/// The drivers that give a device to a process instead of making an interface of it.
pub const USER_SPACE_DRIVERS: [&str; 3] = [VFIO_PCI, "uio_pci_generic", "igb_uio"];

/// Why a VF cannot be given by vfio.
#[derive(Debug, thiserror::Error)]
pub enum UnfitForVfio {
    /// The machine's IOMMU is off, or it has none.
    #[error("VF {0} is in no IOMMU group: a process that had it could reach all of the machine's memory")]
    Unprotected(PciAddr),
    /// vfio's mode without an IOMMU.
    #[error(
        "VF {vf} is behind no IOMMU (/dev/vfio/noiommu-{group}): a process that has it reaches all of the machine's memory"
    )]
    NoIommu {
        /// The VF's PCI address.
        vf: PciAddr,
        /// The number of the node that stands for its group.
        group: u32,
    },
    /// A driver of the host has another device of the group.
    #[error("VF {vf} shares IOMMU group {group} with {member}, which {driver} drives")]
    Shared {
        /// The VF's PCI address.
        vf: PciAddr,
        /// The number of its IOMMU group.
        group: u32,
        /// The other device of the group.
        member: String,
        /// The driver that has the other device.
        driver: String,
    },
    /// A process has the group open.
    #[error("VF {vf} is in use: a process has its IOMMU group {group} open (/dev/vfio/{group})")]
    InUse {
        /// The VF's PCI address.
        vf: PciAddr,
        /// The number of its IOMMU group.
        group: u32,
    },
    /// The group has no node here.
    #[error("VF {vf} has no node /dev/vfio/{group} that a process could open")]
    NoNode {
        /// The VF's PCI address.
        vf: PciAddr,
        /// The number of its IOMMU group.
        group: u32,
    },
    /// Sysfs cannot be read.
    #[error(transparent)]
    Unread(#[from] InventoryError),
    /// The group could not be tried.
    #[error(transparent)]
    Untried(#[from] NetError),
}

/// The IOMMU group of a VF that a process could have now, by what opening it answers.
///
/// # Errors
/// Why no process could have it.
pub fn fit_for_vfio(
    inventory: &Inventory,
    vf: &VfDevice,
    opened: impl FnOnce(u32) -> Result<IommuGroup, NetError>,
) -> Result<u32, UnfitForVfio> {
    let address = vf.address;
    let group = vf.iommu_group.ok_or(UnfitForVfio::Unprotected(address))?;
    let members = inventory.group_of(address)?;
    if let Some(member) = members.into_iter().find(|member| member.is_in_the_way_of_vfio()) {
        let driver = member.driver.unwrap_or_default();
        return Err(UnfitForVfio::Shared { vf: address, group, member: member.device, driver });
    }
    match opened(group)? {
        IommuGroup::Free => Ok(group),
        IommuGroup::InUse => Err(UnfitForVfio::InUse { vf: address, group }),
        IommuGroup::NoIommu => Err(UnfitForVfio::NoIommu { vf: address, group }),
        IommuGroup::Absent => Err(UnfitForVfio::NoNode { vf: address, group }),
    }
}
