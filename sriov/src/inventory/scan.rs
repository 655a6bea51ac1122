//! A scan of the whole machine: every network card that can have VFs, with those that it has, and the other network cards.
//!
//! A VF that goes away while it is read is left out; one that cannot be read is reported, and keeps no other from being read.

use std::path::Path;
use std::sync::Arc;

use fairlead_host::DevlinkDevice;
use serde::{Deserialize, Serialize};

use super::pf_interfaces::{Ports, link_type, uplink_at_home};
use super::sysfs::{hexadecimal, names, number, target, target_name};
use super::{GroupMember, Inventory, InventoryError, Physical, VfDevice};
use crate::PciAddr;

/// Base class of network controllers.
const NETWORK: u32 = 0x02;

/// What a scan has found.
#[derive(Debug, Default)]
pub struct Scan {
    /// The PFs, in the order of their addresses.
    pub physical: Vec<ScannedPf>,
    /// The network cards without SR-IOV, read as PFs are: no pool serves them, and the device plugin's configuration may mean them.
    pub others: Vec<ScannedPf>,
    /// What could not be read, and is missing there.
    pub unreadable: Vec<InventoryError>,
}

/// A PF of a network card, with what pools' selectors go by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScannedPf {
    /// Its PCI address.
    pub address: PciAddr,
    /// What kind of card it is.
    pub model: Model,
    /// The driver that has it.
    pub driver: Option<String>,
    /// Its NUMA node; `None` where the machine reports none (-1).
    pub numa_node: Option<u32>,
    /// Its own interface, while that is at home: in switchdev mode the uplink, not a representor.
    pub interface: Option<Interface>,
    /// It is the uplink of a switch, which joins its VFs to nothing but their representors.
    pub switchdev: bool,
    /// Its RDMA devices.
    pub rdma: Rdma,
    /// How many VFs it can have.
    pub most: u32,
    /// How many VFs it has. It is the number of sysfs's links to them: `sriov_numvfs` is not read, because it answers only when
    /// nobody writes it, which takes seconds or, in a driver that hangs, no end.
    pub has: usize,
    /// The VFs that could be read, in the order of their numbers.
    pub vfs: Vec<ScannedVf>,
}

/// A VF, with what pools' selectors go by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScannedVf {
    /// What an ADD needs to know of any VF.
    pub vf: VfDevice,
    /// What kind of card it is.
    pub model: Model,
    /// What its interface speaks, while it has one at home.
    pub link_type: Option<LinkType>,
    /// The number that the firmware has for it (`acpi_index`).
    pub acpi_index: Option<u32>,
    /// Its RDMA devices.
    pub rdma: Rdma,
    /// The default partition key of its RDMA device.
    pub partition_key: Option<u16>,
    /// The other members of its IOMMU group.
    pub group: Vec<GroupMember>,
    /// Its representor: the interface of the card's switch that stands for it while its PF is in switchdev mode.
    pub representor: Option<String>,
}

/// Vendor and device as PCI numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Model {
    /// The vendor's number: 0x8086 is Intel.
    pub vendor: u16,
    /// The device's number with that vendor.
    pub device: u16,
}

/// A PF's own interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name in the host's namespace.
    pub name: String,
    /// What it speaks.
    pub link_type: Option<LinkType>,
    /// Whether it has a carrier; `None` while it is down.
    pub carrier: Option<bool>,
}

/// What an interface speaks, by the names that `ip link` has for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkType {
    /// Ethernet, `ether` with `ip link`.
    Ether,
    /// InfiniBand, `infiniband` with `ip link`.
    Infiniband,
}

/// The RDMA devices of a VF or PF.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rdma {
    /// Its devices (`mlx5_2`). With exclusive RDMA namespaces, none while a pod has them.
    pub devices: Vec<String>,
    /// Their nodes in `/dev/infiniband`: `issm2`, `umad2`, `uverbs2`.
    pub nodes: Vec<String>,
}

impl ScannedPf {
    /// The card itself, as selectors go by a VF: the device plugin serves a network card without VFs as it serves a VF.
    pub(crate) fn as_device(&self) -> ScannedVf {
        let own = self.interface.as_ref();
        let vf = VfDevice {
            address: self.address,
            physical: Physical { address: self.address, interfaces: Vec::new() },
            // No VF's number: a share of a PF's VFs has not the PF in it.
            index: u32::MAX,
            interfaces: own.map(|own| own.name.clone()).into_iter().collect(),
            driver: self.driver.clone(),
            iommu_group: None,
            numa_node: self.numa_node,
        };
        ScannedVf {
            vf,
            model: self.model,
            link_type: own.and_then(|own| own.link_type),
            acpi_index: None,
            rdma: self.rdma.clone(),
            partition_key: None,
            group: Vec::new(),
            representor: None,
        }
    }
}

impl Rdma {
    /// Whether a process can use it: the kernel makes the node for verbs some time after the device.
    pub(crate) fn has_verbs(&self) -> bool {
        !self.devices.is_empty() && self.nodes.iter().any(|node| node.starts_with("uverbs"))
    }
}

impl Inventory {
    /// Reads all network cards that can have VFs, and goes by what devlink reports of them.
    ///
    /// # Errors
    /// Only if the list of devices cannot be read.
    pub fn scan(&self, devlink: &[DevlinkDevice]) -> Result<Scan, InventoryError> {
        let mut scan = Scan::default();
        let addresses = names(&self.devices)?.into_iter().filter_map(|name| name.parse().ok());
        for address in addresses {
            let cards = if self.is_physical(address) { &mut scan.physical } else { &mut scan.others };
            match self.card(address, of(devlink, address), &mut scan.unreadable) {
                Ok(found) => cards.extend(found),
                Err(error) => scan.unreadable.push(error),
            }
        }
        // The names were sorted as text: there domain 10000 comes before 2000.
        scan.physical.sort_by_key(|physical| physical.address);
        Ok(scan)
    }

    /// The RDMA devices of a VF.
    pub fn rdma(&self, address: PciAddr) -> Result<Rdma, InventoryError> {
        rdma(&self.dir(address))
    }

    /// The representor of a VF whose PF is in switchdev mode. `devlink` is asked only where there may be one.
    pub fn representor(
        &self,
        physical: PciAddr,
        index: u32,
        devlink: impl FnOnce() -> Arc<[DevlinkDevice]>,
    ) -> Result<Option<String>, InventoryError> {
        let dir = self.dir(physical);
        // An ADD asks this, and a card may take its time to answer devlink: most cards have no switch and are not asked.
        if !Ports::read(&dir, None)?.has_a_switch() {
            return Ok(None);
        }
        let devlink = devlink();
        Ok(Ports::read(&dir, of(&devlink, physical))?.representor(index))
    }

    /// The name of a PF's own interface, of a NIC in switchdev mode its uplink; `None` where it is not here. `devlink`: what is known of
    /// that already. Where it names the port of the wire, sysfs is not asked about each interface: with many representors that takes long.
    pub fn own_interface(
        &self,
        physical: PciAddr,
        devlink: &[DevlinkDevice],
    ) -> Result<Option<String>, InventoryError> {
        let (dir, devlink) = (self.dir(physical), of(devlink, physical));
        if let Some(uplink) = devlink.and_then(|devlink| uplink_at_home(&dir, devlink)) {
            return Ok(Some(uplink.to_owned()));
        }
        Ok(Ports::read(&dir, devlink)?.own_name().map(str::to_owned))
    }

    /// Whether a device can have VFs.
    pub fn is_physical(&self, address: PciAddr) -> bool {
        self.dir(address).join("sriov_totalvfs").exists()
    }

    /// `None` for what is no network card, or none any more, and for a VF, which is read with its PF.
    fn card(
        &self,
        address: PciAddr,
        devlink: Option<&DevlinkDevice>,
        unreadable: &mut Vec<InventoryError>,
    ) -> Result<Option<ScannedPf>, InventoryError> {
        let dir = self.dir(address);
        let is_network = hexadecimal(&dir.join("class"))?.is_some_and(|class| class >> 16 == NETWORK);
        if !is_network || target(&dir.join("physfn"))?.is_some() {
            return Ok(None);
        }
        let Some(model) = model(&dir)? else { return Ok(None) };
        let ports = Ports::read(&dir, devlink)?;
        let interface = ports.interface(&dir)?;
        let mut numbered = self.numbered(address)?.collect::<Result<Vec<_>, _>>()?;
        // Sysfs is read in the order of text: `virtfn10` comes before `virtfn2`.
        numbered.sort();
        let has = numbered.len();
        let mut vfs = Vec::new();
        for (index, of) in numbered {
            match self.scanned_vf(of, index, address, &ports) {
                Ok(found) => vfs.extend(found),
                Err(error) => unreadable.push(error),
            }
        }
        Ok(Some(ScannedPf {
            address,
            model,
            driver: target_name(&dir.join("driver"))?,
            numa_node: number(&dir.join("numa_node"))?,
            interface,
            switchdev: ports.switchdev(),
            rdma: rdma(&dir)?,
            most: number(&dir.join("sriov_totalvfs"))?.unwrap_or_default(),
            has,
            vfs,
        }))
    }

    fn scanned_vf(
        &self,
        address: PciAddr,
        index: u32,
        physical: PciAddr,
        ports: &Ports<'_>,
    ) -> Result<Option<ScannedVf>, InventoryError> {
        let dir = self.dir(address);
        let Some(model) = model(&dir)? else { return Ok(None) };
        let vf = self.read(address, index, Physical { address: physical, interfaces: ports.names() })?;
        let link_type = match vf.interfaces.first() {
            Some(name) => link_type(&dir.join("net").join(name))?,
            None => None,
        };
        let rdma = rdma(&dir)?;
        let found = ScannedVf {
            vf,
            model,
            link_type,
            acpi_index: number(&dir.join("acpi_index"))?,
            partition_key: partition_key(&dir, &rdma)?,
            rdma,
            group: self.group_of(address)?,
            representor: ports.representor(index),
        };
        // What went away under way was read half.
        Ok(dir.is_dir().then_some(found))
    }
}

fn of(devlink: &[DevlinkDevice], address: PciAddr) -> Option<&DevlinkDevice> {
    let name = address.to_string();
    devlink.iter().find(|device| device.bus == "pci" && device.name == name)
}

/// Key 0 of the first port of the first device.
fn partition_key(dir: &Path, rdma: &Rdma) -> Result<Option<u16>, InventoryError> {
    let Some(device) = rdma.devices.first() else { return Ok(None) };
    let key = hexadecimal(&dir.join("infiniband").join(device).join("ports/1/pkeys/0"))?;
    Ok(key.and_then(|key| u16::try_from(key).ok()))
}

/// `None` where the device has gone.
fn model(dir: &Path) -> Result<Option<Model>, InventoryError> {
    let id = |name| Ok(hexadecimal(&dir.join(name))?.and_then(|id| u16::try_from(id).ok()));
    let (vendor, device) = (id("vendor")?, id("device")?);
    Ok(vendor.zip(device).map(|(vendor, device)| Model { vendor, device }))
}

fn rdma(dir: &Path) -> Result<Rdma, InventoryError> {
    let mut nodes = names(&dir.join("infiniband_mad"))?;
    nodes.extend(names(&dir.join("infiniband_verbs"))?);
    Ok(Rdma { devices: names(&dir.join("infiniband"))?, nodes })
}
