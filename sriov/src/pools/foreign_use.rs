//! Whether somebody else uses a VF, and who, as far as the kernel says: a process, a bridge, a namespace, an address on its
//! interface. A member that is at home and that nobody owns has no user.

use fairlead_host::{IommuGroup, Link, NetError};

use super::Pools;
use super::per_scan_cache::ScanCache;
use super::provision_error::ProvisionError;
use super::provisioner::Provisioner;
use super::target::DesiredState;
use crate::vf_netdev::interface;
use crate::{Inventory, InventoryError, PciAddr, USER_SPACE_DRIVERS, Unserved, VFIO_PCI, VfDevice};

/// What is told of an address that has a lifetime. It may be the node's own all the same, as that of its storage network.
const DYNAMIC: &str = ", which DHCP or a router gave it: if NetworkManager asked for that, have it leave the VF alone (udev: \
                       NM_UNMANAGED=1)";
/// Drivers that make no interface of a VF: these keep it for somebody, or give it to a VM, or make another device, which has it. Those of
/// [`WITHOUT_INTERFACE_BY_NAME`] make none either.
const WITHOUT_INTERFACE: [&str; 6] =
    ["pci-stub", "pciback", "xen-pciback", "virtio-pci", "ifcvf", "pds_core"];
/// What is in the names of further drivers that make no interface, as `mlx5_vfio_pci` and `vp-vdpa`. A VF under one for vDPA is in use
/// before there is a vDPA device: it is made when somebody orders it (`vdpa dev add`).
const WITHOUT_INTERFACE_BY_NAME: [&str; 2] = ["vfio", "vdpa"];

impl Pools {
    /// What keeps a VF from the pods of its pool, or from every pod. One of no pool is lent as an interface, whatever RDMA device it has.
    ///
    /// # Errors
    /// When sysfs cannot be read.
    pub fn unserved(&self, address: PciAddr) -> Result<Option<Unserved>, InventoryError> {
        let Some(unserved) = self.provisioner.inventory.unserved(address)? else { return Ok(None) };
        let of_pool = self.lock().member(address).map(|(entry, _)| entry.desired.clone());
        Ok(Some(unserved).filter(|unserved| of_pool.unwrap_or_default().is_hindered_by(unserved)))
    }
}

impl Provisioner {
    /// Refuses a VF that somebody else uses, and one that no pod could have as its pool wants it.
    pub(super) fn may_be_had(
        &self,
        vf: &VfDevice,
        desired: &DesiredState,
        cache: &ScanCache<'_>,
    ) -> Result<(), ProvisionError> {
        let unserved = self.inventory.unserved(vf.address)?;
        let what =
            unserved.filter(|unserved| desired.is_hindered_by(unserved)).map(|unserved| unserved.to_string());
        let what = match what {
            // One that an earlier release has taken all the same is given back.
            None if !desired.leaves && self.inventory.speaks_infiniband(vf)? => Some(infiniband(vf)),
            what => what,
        };
        let user = || of(&self.inventory, cache, vf, desired.left);
        let who = what.map_or_else(user, |what| Ok(Some(what)))?;
        who.map_or(Ok(()), |who| Err(ProvisionError::Taken(who)))
    }

    /// Refuses a VF that somebody else uses. `left`: what is on its interface is nobody's.
    pub(super) fn leave_alone(&self, vf: &VfDevice, left: bool) -> Result<(), ProvisionError> {
        self.may_be_had(vf, &DesiredState::to_be_given_back(left), &self.cache())
    }
}

fn infiniband(vf: &VfDevice) -> String {
    format!(
        "VF {} speaks InfiniBand, which is not served yet: leave it out by its pool's selectors (linkTypes: [ether])",
        vf.address
    )
}

/// Who uses it, in words. `left`: what is on its interface at home is nobody's.
fn of(
    inventory: &Inventory,
    cache: &ScanCache<'_>,
    vf: &VfDevice,
    left: bool,
) -> Result<Option<String>, ProvisionError> {
    match vf.driver.as_deref() {
        // It is being bound, or was when a daemon ended; nobody can use it like that.
        None => Ok(None),
        Some(VFIO_PCI) => Ok(of_group(cache, vf)?),
        Some(driver) if USER_SPACE_DRIVERS.contains(&driver) => {
            Ok(Some(format!("it is bound to {driver}, and only kernel drivers and {VFIO_PCI} are served")))
        }
        Some(driver) => of_interface(inventory, cache, vf, driver, left),
    }
}

fn of_group(cache: &ScanCache<'_>, vf: &VfDevice) -> Result<Option<String>, NetError> {
    let Some(number) = vf.iommu_group else { return Ok(None) };
    Ok(match cache.group(number)? {
        IommuGroup::InUse => Some(format!("a process has its IOMMU group {number} open")),
        IommuGroup::Free | IommuGroup::Absent | IommuGroup::NoIommu => None,
    })
}

/// Who uses a VF whose interface is not in the host's namespace. Nobody can where its driver has made none, or has given it up. One with an
/// RDMA device, or with an auxiliary one, can be used by that: somebody may have turned its interface off (devlink's `enable_eth`), to
/// have RDMA or vDPA alone. A VF whose interface is missing by a fault may have an auxiliary device too (mlx5_core, irdma). These two
/// cannot be told apart, so it is left alone as well.
fn of_absent_interface(
    inventory: &Inventory,
    vf: &VfDevice,
    driver: &str,
) -> Result<Option<String>, InventoryError> {
    if inventory.has_netdev(vf.address)? {
        return Ok(Some("its interface is not in the host's network namespace".to_owned()));
    }
    let makes_none = WITHOUT_INTERFACE.contains(&driver)
        || WITHOUT_INTERFACE_BY_NAME.iter().any(|part| driver.contains(part));
    let is_used = makes_none
        || inventory.has_auxiliary_devices(vf.address)?
        || !inventory.rdma(vf.address)?.devices.is_empty();
    Ok(is_used.then(|| format!("it is bound to {driver}, which makes no interface for it")))
}

fn of_interface(
    inventory: &Inventory,
    cache: &ScanCache<'_>,
    vf: &VfDevice,
    driver: &str,
    left: bool,
) -> Result<Option<String>, ProvisionError> {
    let mut host = cache.host()?;
    let Some(link) = interface(host.as_mut(), vf.address, &vf.interfaces)? else {
        return Ok(of_absent_interface(inventory, vf, driver)?);
    };
    if left {
        return Ok(None);
    }
    let name = &link.name;
    if let Some(master) = link.master {
        let master = host.link_by_index(master)?.map_or_else(|| master.to_string(), |link| link.name);
        return Ok(Some(format!("its interface {name:?} belongs to {master:?}")));
    }
    // An index of another namespace may be the same number by chance.
    let above = |other: &Link| other.parent == Some(link.index) && other.parent_nsid.is_none();
    if let Some(other) = cache.links(host.as_mut())?.iter().find(|other| above(other)) {
        return Ok(Some(format!("interface {:?} stands on its interface {name:?}", other.name)));
    }
    let addresses = host.addresses(link.index)?;
    let own = addresses.iter().find(|address| !is_link_local(address.net.addr()));
    Ok(own.map(|address| {
        let from = if address.flags.dynamic { DYNAMIC } else { "" };
        format!("its interface {name:?} has the address {}{from}", address.net)
    }))
}

/// Whether an address is one that the kernel gives every interface that is up: it says nothing about a user.
fn is_link_local(address: std::net::IpAddr) -> bool {
    matches!(address, std::net::IpAddr::V6(v6) if v6.is_unicast_link_local())
}
