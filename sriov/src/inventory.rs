//! Virtual functions as sysfs shows them. Reads only, and never the interfaces' settings.
//!
//! An interface is listed here only while it is in the network namespace that this sysfs was mounted in: a function whose
//! interface was moved has none.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::PciAddr;

/// The sysfs of the machine, or one made for a test.
#[derive(Debug, Clone)]
pub struct Inventory {
    devices: PathBuf,
}

/// A virtual function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its PCI address.
    pub address: PciAddr,
    /// The physical function that it belongs to.
    pub physical: Physical,
    /// Its number there.
    pub index: u32,
    /// Its interfaces that are at home.
    pub interfaces: Vec<String>,
    /// The driver that has it.
    pub driver: Option<String>,
    /// Its IOMMU group, where there is an IOMMU.
    pub iommu_group: Option<u32>,
    /// Its NUMA node; `None` where the machine does not tell (-1).
    pub numa_node: Option<u32>,
}

/// A physical function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Physical {
    /// Its PCI address.
    pub address: PciAddr,
    /// Its interfaces that are at home; those of a NIC in switchdev mode are more than one.
    pub interfaces: Vec<String>,
}

/// Why a virtual function cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum InventoryError {
    /// There is no such device.
    #[error("the machine has no PCI device {0}")]
    Absent(PciAddr),
    /// It is no virtual function.
    #[error("PCI device {0} is no virtual function")]
    NotVirtual(PciAddr),
    /// Its physical function does not know it.
    #[error("PCI device {address} says that it belongs to {physical}, which has no such virtual function")]
    Disowned {
        /// The function.
        address: PciAddr,
        /// What it says it belongs to.
        physical: PciAddr,
    },
    /// A link of sysfs leads to something that is no PCI device.
    #[error("{} leads to no PCI device", .0.display())]
    Astray(PathBuf),
    /// Sysfs cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

impl Inventory {
    /// `sysfs` is where sysfs is mounted: `/sys`.
    pub fn new(sysfs: &Path) -> Inventory {
        Inventory { devices: sysfs.join("bus/pci/devices") }
    }

    /// The virtual function at an address.
    pub fn function(&self, address: PciAddr) -> Result<Function, InventoryError> {
        let dir = self.devices.join(address.to_string());
        if !dir.is_dir() {
            return Err(InventoryError::Absent(address));
        }
        let parent = target(&dir.join("physfn"))?.ok_or(InventoryError::NotVirtual(address))?;
        let physical = pci_address(&dir.join("physfn"), &parent)?;
        let index = self.index(physical, address)?;
        let interfaces = names(&self.devices.join(physical.to_string()).join("net"))?;
        Ok(Function {
            address,
            physical: Physical { address: physical, interfaces },
            index,
            interfaces: names(&dir.join("net"))?,
            driver: target(&dir.join("driver"))?.and_then(|path| last(&path)),
            iommu_group: target(&dir.join("iommu_group"))?
                .and_then(|path| last(&path))
                .and_then(|group| group.parse().ok()),
            numa_node: numa_node(&dir.join("numa_node"))?,
        })
    }

    /// The number that the physical function has for it: `virtfn<n>`.
    fn index(&self, physical: PciAddr, address: PciAddr) -> Result<u32, InventoryError> {
        let dir = self.devices.join(physical.to_string());
        for name in names(&dir)? {
            let Some(number) = name.strip_prefix("virtfn").and_then(|n| n.parse().ok()) else { continue };
            let path = dir.join(&name);
            // One that vanishes while the directory is read is not the one that is looked for.
            let Some(to) = target(&path)? else { continue };
            if pci_address(&path, &to)? == address {
                return Ok(number);
            }
        }
        Err(InventoryError::Disowned { address, physical })
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> InventoryError {
    let path = path.to_owned();
    move |source| InventoryError::Io { path, source }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Where a link leads; `None` where there is none.
fn target(link: &Path) -> Result<Option<PathBuf>, InventoryError> {
    match fs::read_link(link) {
        Ok(path) => Ok(Some(path)),
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) => Err(failed(link)(e)),
    }
}

fn last(path: &Path) -> Option<String> {
    path.file_name().and_then(|name| name.to_str()).map(str::to_owned)
}

fn pci_address(link: &Path, to: &Path) -> Result<PciAddr, InventoryError> {
    let name = last(to).and_then(|name| name.parse().ok());
    name.ok_or_else(|| InventoryError::Astray(link.to_owned()))
}

/// What is in a directory, in order; nothing where there is none.
fn names(dir: &Path) -> Result<Vec<String>, InventoryError> {
    let read = match fs::read_dir(dir) {
        Ok(read) => read,
        Err(e) if is_absent(&e) => return Ok(Vec::new()),
        Err(e) => return Err(failed(dir)(e)),
    };
    let mut found = Vec::new();
    for entry in read {
        found.extend(entry.map_err(failed(dir))?.file_name().into_string().ok());
    }
    found.sort();
    Ok(found)
}

fn numa_node(file: &Path) -> Result<Option<u32>, InventoryError> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(text.trim().parse().ok()),
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) => Err(failed(file)(e)),
    }
}
