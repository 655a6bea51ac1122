//! VFs as sysfs shows them, and their cards' switches as devlink reports them, where the caller has asked it. Reads only, and
//! never the interfaces' settings.
//!
//! An interface is listed here only while it is in the network namespace that this sysfs was mounted in: a VF whose interface
//! was moved has none. [`Inventory::vf`] is on the way of an ADD and reads the least; [`Inventory::scan`] reads everything
//! that a pool's selectors go by.

mod iommu_group;
mod pf_interfaces;
mod scan;
mod sysfs;
mod vdpa_rdma;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use crate::PciAddr;
use sysfs::{inode, names, number, pci_address, target, target_name};

pub use iommu_group::GroupMember;
pub use scan::{Interface, LinkType, Model, Rdma, Scan, ScannedPf, ScannedVf};
pub use vdpa_rdma::Unserved;

/// The sysfs of the machine, or one made for a test.
#[derive(Debug, Clone)]
pub struct Inventory {
    sysfs: PathBuf,
    devices: PathBuf,
}

/// A VF, with what an ADD needs to know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VfDevice {
    /// Its PCI address.
    pub address: PciAddr,
    /// The PF that it belongs to.
    pub physical: Physical,
    /// Its number there, from 0.
    pub index: u32,
    /// Its interfaces that are at home.
    pub interfaces: Vec<String>,
    /// The driver that has it.
    pub driver: Option<String>,
    /// Its IOMMU group, where there is an IOMMU.
    pub iommu_group: Option<u32>,
    /// Its NUMA node; `None` where the machine reports none (-1).
    pub numa_node: Option<u32>,
}

/// A PF, with the interfaces that its VFs' settings are written through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Physical {
    /// Its PCI address.
    pub address: PciAddr,
    /// Its interfaces that are at home; those of a NIC in switchdev mode are more than one.
    pub interfaces: Vec<String>,
}

/// Why a VF cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum InventoryError {
    /// There is no such device.
    #[error("the machine has no PCI device {0}")]
    Absent(PciAddr),
    /// The device is no VF.
    #[error("PCI device {0} is no VF")]
    NotVirtual(PciAddr),
    /// Its PF does not list it.
    #[error("PCI device {address} says that it belongs to {physical}, which has no such VF")]
    Disowned {
        /// The VF's PCI address.
        address: PciAddr,
        /// The PF that it says it belongs to.
        physical: PciAddr,
    },
    /// It is another one than the one that is asked for.
    #[error("PCI device {0} was made again: it is another one")]
    MadeAgain(PciAddr),
    /// A link of sysfs leads to something that is no PCI device.
    #[error("{} leads to no PCI device", .0.display())]
    Astray(PathBuf),
    /// Sysfs cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error of reading it.
        #[source]
        source: io::Error,
    },
}

impl Inventory {
    /// `sysfs` is where sysfs is mounted: `/sys`.
    pub fn new(sysfs: &Path) -> Inventory {
        Inventory { sysfs: sysfs.to_owned(), devices: sysfs.join("bus/pci/devices") }
    }

    /// Whether the machine has the connection manager of RDMA (`/dev/infiniband/rdma_cm`), which is of all devices.
    pub fn has_rdma_cm(&self) -> bool {
        self.sysfs.join("class/misc/rdma_cm").exists()
    }

    /// The VF at an address.
    ///
    /// # Errors
    /// When there is none, or sysfs cannot be read.
    pub fn vf(&self, address: PciAddr) -> Result<VfDevice, InventoryError> {
        let dir = self.dir(address);
        if !dir.is_dir() {
            return Err(InventoryError::Absent(address));
        }
        let parent = target(&dir.join("physfn"))?.ok_or(InventoryError::NotVirtual(address))?;
        let physical = pci_address(&dir.join("physfn"), &parent)?;
        let index = self.index(physical, address)?;
        let interfaces = names(&self.dir(physical).join("net"))?;
        self.read(address, index, Physical { address: physical, interfaces })
    }

    /// The VF at an address, if its directory still has the [inode number](Inventory::inode) that it had; `None`: whichever is there.
    ///
    /// # Errors
    /// As [`Inventory::vf`], and [`InventoryError::MadeAgain`].
    pub fn vf_with_inode(&self, address: PciAddr, had: Option<u64>) -> Result<VfDevice, InventoryError> {
        let device = self.vf(address)?;
        // Read last: what was read before is of the one that is still there.
        match had {
            Some(had) if self.inode(address)? != Some(had) => Err(InventoryError::MadeAgain(address)),
            _ => Ok(device),
        }
    }

    /// The inode number of a device's directory; `None` where there is no such device. The device keeps it under whatever driver. One
    /// that is made again at the address has another: the kernel gives none twice within a boot (`fs/kernfs/dir.c`, since 5.5).
    ///
    /// # Errors
    /// When sysfs cannot be read.
    pub fn inode(&self, address: PciAddr) -> Result<Option<u64>, InventoryError> {
        inode(&self.dir(address))
    }

    /// Whether a PCI device has a netdev, in whatever network namespace. Its directory `net` is empty while the netdev is in another one;
    /// it is not there while there is none, because the driver has made none yet, or has given up.
    ///
    /// # Errors
    /// When sysfs cannot be read.
    pub fn has_netdev(&self, address: PciAddr) -> Result<bool, InventoryError> {
        Ok(inode(&self.dir(address).join("net"))?.is_some())
    }

    /// The device on a bus, by its address there, that an interface belongs to; `None` for an interface of no device. For kernels
    /// that do not tell it of the link itself (before 5.14).
    ///
    /// # Errors
    /// When sysfs cannot be read.
    pub fn device_of(&self, interface: &str) -> Result<Option<String>, InventoryError> {
        target_name(&self.sysfs.join("class/net").join(interface).join("device"))
    }

    /// The NUMA node that an interface's device is on; of one that stands on others, such as a VLAN or a bond, that of all devices below it.
    /// `None` where the machine tells none, for an interface without any device, and for one whose devices are on several nodes.
    ///
    /// # Errors
    /// When sysfs cannot be read.
    pub fn node_of(&self, interface: &str) -> Result<Option<u32>, InventoryError> {
        let (mut seen, mut nodes) = (BTreeSet::new(), BTreeSet::new());
        let mut left = vec![interface.to_owned()];
        while let Some(interface) = left.pop() {
            let netdev = self.sysfs.join("class/net").join(&interface);
            if netdev.join("device").exists() {
                nodes.insert(number::<u32>(&netdev.join("device/numa_node"))?);
            } else if seen.insert(interface) {
                let below = |name: String| name.strip_prefix("lower_").map(str::to_owned);
                left.extend(names(&netdev)?.into_iter().filter_map(below));
            }
        }
        Ok(if nodes.len() == 1 { nodes.pop_first().flatten() } else { None })
    }

    fn dir(&self, address: PciAddr) -> PathBuf {
        self.devices.join(address.to_string())
    }

    fn read(&self, address: PciAddr, index: u32, physical: Physical) -> Result<VfDevice, InventoryError> {
        let dir = self.dir(address);
        Ok(VfDevice {
            address,
            physical,
            index,
            interfaces: names(&dir.join("net"))?,
            driver: target_name(&dir.join("driver"))?,
            iommu_group: self.iommu_group(address)?,
            numa_node: number(&dir.join("numa_node"))?,
        })
    }

    /// The number that the PF has for a VF.
    fn index(&self, physical: PciAddr, address: PciAddr) -> Result<u32, InventoryError> {
        for numbered in self.numbered(physical)? {
            let (index, of) = numbered?;
            if of == address {
                return Ok(index);
            }
        }
        Err(InventoryError::Disowned { address, physical })
    }

    /// The VFs of a PF with their numbers, `virtfn<n>`; each is read when its turn comes.
    fn numbered(
        &self,
        physical: PciAddr,
    ) -> Result<impl Iterator<Item = Result<(u32, PciAddr), InventoryError>> + use<>, InventoryError> {
        let dir = self.dir(physical);
        let links = names(&dir)?;
        Ok(links.into_iter().filter_map(move |name| {
            let index = name.strip_prefix("virtfn")?.parse().ok()?;
            let link = dir.join(name);
            // One that vanishes while the directory is read is none any more.
            let to = target(&link).transpose()?;
            Some(to.and_then(|to| Ok((index, pci_address(&link, &to)?))))
        }))
    }
}
