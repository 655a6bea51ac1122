//! A netdev of the host that another plugin has moved into a pod, as the reference plugin does: whether a DEL brings it home though nothing
//! is on record of it (K10).
//!
//! The reference plugin keeps no record: it goes by the name in the pod, and finds the host's name in the alias. A pod can set both, and
//! the MAC address too. But it can make no link of which the kernel says that it is a device's on a bus: nothing else is brought home.
//! Kernels before 5.14 say that of none.
//!
//! So the alias is the home name only where the administrator's configuration says the same name, and nobody else has that or is to have
//! it. Any other netdev comes home under a name that nobody can guess or want: a pod must not choose by what name the host knows it.

use std::sync::Arc;

use fairlead_cni::{CniError, names};
use fairlead_host::{Link, NetError, NetdevIdentity};
use fairlead_sriov::PciAddr;

use super::config::{DeviceRef, HostDevice};
use super::sysfs;
use crate::engine::errors;
use crate::engine::kinds::Kinds;
use crate::store::{Attachment, LinkRecord, MovedNetdev};

impl HostDevice {
    /// What goes on record of a pod's link before it is brought home; `None`: it is not the configured device, may be the pod's own, or is
    /// on record already. What another plugin has not noted stays as the link has it now; the reference plugin leaves it down.
    pub(crate) fn moved_by_another(
        &self,
        kinds: &Kinds,
        link: &Link,
    ) -> Result<Option<MovedNetdev>, CniError> {
        let identity = NetdevIdentity::of(link);
        let NetdevIdentity::Device { device: Some(device), .. } = &identity else { return Ok(None) };
        if !self.is(kinds, link, Some(device))? || is_on_record(kinds, device, &identity) {
            return Ok(None);
        }
        let mut netdev = MovedNetdev::lent(link, link.index);
        netdev.index = index_at_home(kinds, link)?;
        netdev.was.name = self.name_at_home(kinds, link)?;
        netdev.was.up = false;
        // Which of them the pod has given it nobody knows, and each would be a name on the host that the pod has chosen.
        netdev.was.alt_names.clear();
        Ok(Some(netdev))
    }

    /// Whether a pod's link that is left alone may be the configured device for all that: a virtual one, which is destroyed with the pod's
    /// namespace. A pod can make one that looks the same, also on a device of the host where it has the right to.
    pub(crate) fn may_be_lost(&self, kinds: &Kinds, link: &Link) -> Result<bool, CniError> {
        let is_ours = || link.alias.as_deref().is_some_and(|name| comes_home_as(kinds, name).is_some());
        let is_virtual = !NetdevIdentity::of(link).outlives_its_netns();
        Ok(is_virtual && self.is(kinds, link, None)? && !is_ours())
    }

    /// The name that the netdev gets on the host: the configured one, which is in its alias then, or one of its own.
    fn name_at_home(&self, kinds: &Kinds, link: &Link) -> Result<String, CniError> {
        let why = match &self.device {
            DeviceRef::Name(name) => match why_not_to_be_had(kinds, name)? {
                None => return Ok(name.clone()),
                Some(why) => why,
            },
            DeviceRef::Mac(_) | DeviceRef::Sysfs(_) | DeviceRef::Bus(_) => {
                "its configuration does not say how it was named, and the pod can set the alias".to_owned()
            }
        };
        let name = kinds.ids.parked_name();
        tracing::warn!(ifname = %link.name, alias = ?link.alias, device = ?link.device, name, why,
            "what another plugin has moved into a pod comes home under a new name: rename it");
        Ok(name)
    }

    /// Whether the configuration names this link, which is the netdev of `device`, if of any. By alias or MAC address a pod can have it take
    /// another one that it was lent for it: that comes home then.
    fn is(&self, kinds: &Kinds, link: &Link, device: Option<&str>) -> Result<bool, CniError> {
        Ok(match &self.device {
            DeviceRef::Name(name) => link.alias.as_deref() == Some(name.as_str()),
            DeviceRef::Mac(mac) => [link.mac, link.permanent_mac].contains(&Some(*mac)),
            DeviceRef::Sysfs(_) | DeviceRef::Bus(_) => match device {
                Some(device) => sysfs::devices_of(&kinds.sysfs, &self.device)?.iter().any(|of| of == device),
                None => false,
            },
        })
    }
}

/// Whether an attachment has the device.
fn is_on_record(kinds: &Kinds, device: &str, identity: &NetdevIdentity) -> bool {
    let store = &kinds.sriov.store;
    let has = |a: &Attachment| {
        let LinkRecord::Moved(moved) = &a.link else { return false };
        moved.lent_as.as_ref().is_some_and(|lent| lent.identity == *identity)
    };
    let of_pci = device.parse::<PciAddr>().is_ok_and(|address| store.has_vf(address));
    of_pci || store.all().iter().any(|a| has(a))
}

/// The attachment whose device gets this name when it comes home.
fn comes_home_as(kinds: &Kinds, name: &str) -> Option<Arc<Attachment>> {
    let of_name = |a: &Arc<Attachment>| matches!(&a.link, LinkRecord::Moved(moved) if moved.was.name == name);
    kinds.sriov.store.all().into_iter().find(of_name)
}

/// Why an interface of the host cannot have this name now; `None`: it can.
fn why_not_to_be_had(kinds: &Kinds, name: &str) -> Result<Option<String>, CniError> {
    // To the kernel `%` asks for a number.
    if names::interface(name).is_err() || name.contains('%') {
        return Ok(Some("no interface can have the name that it is configured by".to_owned()));
    }
    // It would keep that device from coming home.
    if let Some(other) = comes_home_as(kinds, name) {
        return Ok(Some(format!("{name:?} is the host's name of a device that {} has", other.holder())));
    }
    let told = |e: NetError| errors::kernel("", "looking at the host's devices", &e);
    let taken = kinds.kernel.host().map_err(told)?.link_by_name(name).map_err(told)?;
    Ok(taken.map(|_| format!("another interface of the host has the name {name:?}")))
}

/// Its own index where that is free on the host, as the kernel would do it. One that another link has there would have that taken for it.
fn index_at_home(kinds: &Kinds, link: &Link) -> Result<u32, CniError> {
    let told = |e: NetError| errors::kernel("", "looking at the host's devices", &e);
    let mut host = kinds.kernel.host().map_err(told)?;
    Ok(match host.link_by_index(link.index).map_err(told)? {
        Some(_) => kinds.ids.index(),
        None => link.index,
    })
}
