//! Whether somebody else uses a VF, and who, as far as the kernel says: a process, a bridge, a namespace, an address on its
//! interface. A member that is at home and that nobody owns has no user.

use fairlead_host::{IommuGroup, Link, NetError};

use super::Pools;
use super::per_scan_cache::ScanCache;
use super::provision_error::ProvisionError;
use super::provisioner::Provisioner;
use super::target::DesiredState;
use crate::vf_netdev::interface;
use crate::{InventoryError, PciAddr, USER_SPACE_DRIVERS, Unserved, VFIO_PCI, VfDevice};

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
        let user = || of(cache, vf, desired.left);
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
pub(super) fn of(cache: &ScanCache<'_>, vf: &VfDevice, left: bool) -> Result<Option<String>, NetError> {
    match vf.driver.as_deref() {
        // It is being bound, or was when a daemon ended; nobody can use it like that.
        None => Ok(None),
        Some(VFIO_PCI) => of_group(cache, vf),
        Some(driver) if USER_SPACE_DRIVERS.contains(&driver) => {
            Ok(Some(format!("it is bound to {driver}, and only kernel drivers and {VFIO_PCI} are served")))
        }
        Some(_) => of_interface(cache, vf, left),
    }
}

fn of_group(cache: &ScanCache<'_>, vf: &VfDevice) -> Result<Option<String>, NetError> {
    let Some(number) = vf.iommu_group else { return Ok(None) };
    Ok(match cache.group(number)? {
        IommuGroup::InUse => Some(format!("a process has its IOMMU group {number} open")),
        IommuGroup::Free | IommuGroup::Absent | IommuGroup::NoIommu => None,
    })
}

fn of_interface(cache: &ScanCache<'_>, vf: &VfDevice, left: bool) -> Result<Option<String>, NetError> {
    let mut host = cache.host()?;
    let Some(link) = interface(host.as_mut(), vf.address, &vf.interfaces)? else {
        return Ok(Some("its interface is not in the host's network namespace".to_owned()));
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
    Ok(own.map(|address| format!("its interface {name:?} has the address {}", address.net)))
}

/// Whether an address is one that the kernel gives every interface that is up: it says nothing about a user.
fn is_link_local(address: std::net::IpAddr) -> bool {
    matches!(address, std::net::IpAddr::V6(v6) if v6.is_unicast_link_local())
}
