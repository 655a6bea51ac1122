//! A netdev of the host on its way into the pod.

use fairlead_cni::{CniError, Code};
use fairlead_host::{Link, Net, NetError, Op, SetLink};

use super::config::{DeviceRef, HostDevice};
use super::sysfs;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::errors;
use crate::engine::kinds::{
    Applied, ApplyError, HolderRemovals, Kinds, NotAttached, Plan, Reservation, Work, lendable, must_be_free,
};
use crate::engine::netdev::{self, driver_state};
use crate::store::{LinkRecord, MovedNetdev};

impl HostDevice {
    /// Looks for the device, and reserves it unless the node or another pod has it.
    pub(crate) fn reserve<'k>(
        &self,
        kinds: &'k Kinds,
        removals: &dyn HolderRemovals,
        request: &AttachmentRequest<'_>,
    ) -> Result<Reservation<'k>, NotAttached> {
        if self.is_in_user_space(kinds) {
            return Ok(Reservation::Nothing);
        }
        lendable::reserve(kinds, removals, request, |host| {
            let link = self.netdev(kinds, host)?;
            // Every namespace has a `lo` of its own, and the kernel moves none.
            match link.loopback {
                true => {
                    Err(CniError::new(Code::InvalidConfig, "the loopback interface cannot be lent to a pod"))
                }
                false => Ok(link),
            }
        })
    }

    /// What the host lacks for it just now.
    pub(crate) fn lacks(&self, kinds: &Kinds) -> Result<Option<String>, CniError> {
        let host = kinds.kernel.host();
        match host.map_err(|e| looking(&e)).and_then(|mut host| self.netdev(kinds, host.as_mut())) {
            // Any other error is no answer: a path is not passed over for it.
            Err(e) if matches!(e.code, Code::InvalidConfig | Code::NotAvailable) => Ok(Some(e.msg)),
            other => other.map(|_| None),
        }
    }

    /// Whether the device has no netdev because a driver for user space has it.
    pub(super) fn is_in_user_space(&self, kinds: &Kinds) -> bool {
        self.bus_id.as_deref().is_some_and(|id| sysfs::is_in_user_space(&kinds.sysfs, id))
    }

    fn netdev(&self, kinds: &Kinds, host: &mut dyn Net) -> Result<Link, CniError> {
        netdev_of(host, &self.device, |device| sysfs::netdevs_of(&kinds.sysfs, device))
    }
}

/// What the device that was reserved is goes on record before it is moved.
pub(crate) fn plan(
    kinds: &Kinds,
    request: &AttachmentRequest<'_>,
    reservation: &Reservation<'_>,
    pod: &mut dyn Net,
) -> Result<Plan, CniError> {
    let Reservation::Device(reserved) = reservation else {
        return Ok(Plan { record: LinkRecord::None, work: Work::Nothing });
    };
    let link = reserved.link();
    must_be_free(request, pod)?;
    // Its own index where that is free, as the kernel would do it. With another one on record, a link that the pod has put at
    // its own index before is never taken for it.
    let told = |e| errors::kernel(&request.key.network, "looking at the pod's namespace", &e);
    let index = match pod.link_by_index(link.index).map_err(told)? {
        Some(_) => kinds.ids.index(),
        None => link.index,
    };
    let state = kinds.kernel.host().and_then(|mut host| driver_state::read(host.as_mut(), link));
    let state = state.map_err(|e| looking(&e))?;
    let netdev = MovedNetdev { driver_state: Some(state), ..MovedNetdev::lent(link, index) };
    Ok(Plan { record: LinkRecord::Moved(Box::new(netdev.clone())), work: Work::Moved(netdev) })
}

fn looking(error: &NetError) -> CniError {
    errors::kernel("", "looking for the host's device", error)
}

/// The host's netdev that a configuration names; `names` are the netdevs that a bus address or sysfs path has.
fn netdev_of(
    host: &mut dyn Net,
    wanted: &DeviceRef,
    names: impl Fn(&DeviceRef) -> Result<Vec<String>, CniError>,
) -> Result<Link, CniError> {
    let told = |e: NetError| looking(&e);
    let found = match wanted {
        DeviceRef::Name(name) => host.link_by_name(name).map_err(told)?,
        DeviceRef::Mac(mac) => {
            host.links().map_err(told)?.into_iter().find(|l| l.mac == Some(*mac) && !l.loopback)
        }
        DeviceRef::Sysfs(_) | DeviceRef::Bus(_) => {
            // Sysfs lists the netdevs of the namespace that it was mounted in, so each name is looked up in the host's.
            let mut found = None;
            for name in names(wanted)? {
                found = found.or(host.link_by_name(&name).map_err(told)?);
            }
            found
        }
    };
    found.ok_or_else(|| {
        let msg = format!("the host has no interface for {}", wanted.described());
        CniError::new(Code::InvalidConfig, msg).with(
            "it may be lent to another pod, bound to another driver, or named wrongly in the configuration",
        )
    })
}

/// Moves the netdev into the pod, with the pod's name for it, and leaves its host name in the alias, as the reference plugin
/// does.
pub(crate) fn apply(ifname: &str, netdev: &MovedNetdev, pod: &mut dyn Net) -> Result<Applied, ApplyError> {
    let as_index = netdev.lent_as.as_ref().map(|lent| lent.index);
    let name = ifname.to_owned();
    pod.batch(&[Op::TakeFromHost { index: netdev.index, as_index, name, up: false }])?;
    // Kernels before 5.13 give a netdev whose own index is taken one that they choose.
    let index = match as_index {
        Some(index) if pod.link_by_index(index)?.is_some_and(|link| link.name == ifname) => index,
        _ => pod.link_by_name(ifname)?.map_or(netdev.index, |link| link.index),
    };
    pod.batch(&[
        Op::SetLink(SetLink { index, alias: Some(netdev.was.name.clone()), ..SetLink::default() }),
        Op::SetLink(SetLink { index, up: Some(true), ..SetLink::default() }),
    ])?;
    let mac = netdev::mac_of(pod, index, None)?;
    Ok(Applied { netdev: Some(index), mac, awaits_carrier: true, ..Applied::default() })
}
