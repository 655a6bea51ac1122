//! The PCI half of the seam: who drives a device, its reset, its VFs, its IOMMU group, and the cards that devlink knows.
//!
//! A driver may be broken: each call here ends after a time limit, whatever the driver does. What has not ended by then is kept in
//! [`PciKernel::stuck_driver_calls`].

use std::collections::BTreeMap;
use std::sync::Arc;

use super::error::NetError;
use crate::devlink::DevlinkDevice;

/// The driver that gives devices to processes.
pub const VFIO_PCI: &str = "vfio-pci";

/// What becomes of a PCI device's `driver_override`: the one driver that may take it, where the administrator has fixed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Override {
    /// It stays as it is.
    Keep,
    /// It is the one that takes the device now: vfio-pci has no devices of its own.
    Set,
    /// There is none any more.
    Clear,
}

/// The state of an IOMMU group, as opening it shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IommuGroup {
    /// A process could open it.
    Free,
    /// A process has it open (EBUSY).
    InUse,
    /// It has no node: no device of it is bound to a driver of vfio.
    Absent,
    /// Its devices are behind no IOMMU and reach all of the memory (`noiommu-<group>`).
    NoIommu,
}

/// The state of many devices and IOMMU groups. Whatever is missing was not reached within the time limit.
#[derive(Debug, Default)]
pub struct Answers {
    /// Whether a device's configuration space answers, by PCI address.
    pub devices: BTreeMap<String, Result<bool, NetError>>,
    /// The state of an IOMMU group, by its number.
    pub groups: BTreeMap<u32, Result<IommuGroup, NetError>>,
}

/// PCI devices, as the kernel's drivers, sysfs, vfio and devlink handle them.
pub trait PciKernel: Send + Sync {
    /// Takes the PCI device `address` from its driver, if it has one. Refused (EBUSY) under vfio-pci while a process has its
    /// IOMMU group open: the kernel would wait for that process. Ends with an error after a time, whatever the driver does.
    fn unbind(&self, address: &str) -> Result<(), NetError>;

    /// The same, and then binds it to `driver`, also if that had it before: its interface comes back as a new one, in the
    /// namespace of the machine.
    fn bind(&self, address: &str, driver: &str, fixed: Override) -> Result<(), NetError>;

    /// The only driver that may take the PCI device `address`, where the administrator has fixed one. Reading it
    /// waits for what a driver is doing with the device, and ends with an error after a time.
    fn fixed_driver(&self, address: &str) -> Result<Option<String>, NetError>;

    /// Resets the PCI device `address`. Refused unless it is under vfio-pci with its IOMMU group closed (EBUSY; the group is
    /// held meanwhile) or has no driver: a reset under igbvf with its link down never ends and holds the device's lock.
    fn reset(&self, address: &str) -> Result<(), NetError>;

    /// Has the PF `address` create `count` VFs. It must have none (EBUSY). Ends with an error after a time, whatever its driver
    /// does.
    fn create_vfs(&self, address: &str, count: u32) -> Result<(), NetError>;

    /// The state of an IOMMU group now. It is found out by opening the group, for no longer than that takes.
    fn iommu_group(&self, number: u32) -> Result<IommuGroup, NetError>;

    /// Whether the configuration space of the PCI device `address` answers. One that has died reads as nothing but ones.
    fn answers(&self, address: &str) -> Result<bool, NetError>;

    /// The network cards that devlink knows; none where the kernel has no devlink. Fails after a time when a driver keeps
    /// devlink waiting, as one does that loads new firmware.
    fn devlink(&self) -> Result<Vec<DevlinkDevice>, NetError>;

    /// The same; where devlink fails there are none, which is logged: then representors are known by sysfs alone.
    fn devlink_or_none(&self) -> Arc<[DevlinkDevice]> {
        let devices = self.devlink().unwrap_or_else(|error| {
            tracing::warn!(%error, "devlink cannot be asked; representors are known by sysfs alone");
            Vec::new()
        });
        devices.into()
    }

    /// The same of many devices and groups, all of them within the time limit of one. The first that hangs ends it, and those
    /// after it are missing in the answer.
    fn answers_of(&self, addresses: &[String], groups: &[u32]) -> Answers;

    /// Calls into drivers that have not returned though their callers wait no more, in words for a person. Nothing but the driver
    /// can end such a call.
    fn stuck_driver_calls(&self) -> Vec<String>;
}
