//! A netdev of the host on its way into the pod.

use fairlead_cni::{CniError, Code};
use fairlead_host::{Kernel, Link, Net, NetError, Op, SetLink};

use super::config::{DeviceRef, HostDevice};
use super::sysfs;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::errors;
use crate::engine::kinds::{Applied, ApplyError, Kinds, Plan, Work, must_be_free};
use crate::engine::netdev;
use crate::store::{LinkRecord, MovedNetdev};

impl HostDevice {
    /// Looks for the device; what it is goes on record before it is moved.
    pub(crate) fn plan(
        &self,
        kinds: &Kinds,
        request: &AttachmentRequest<'_>,
        pod: &mut dyn Net,
    ) -> Result<Plan, CniError> {
        if self.is_in_user_space(kinds) {
            return Ok(Plan { record: LinkRecord::None, work: Work::Nothing });
        }
        let link = self.netdev(kinds)?;
        // Every namespace has a `lo` of its own, and the kernel moves none.
        if link.loopback {
            return Err(CniError::new(Code::InvalidConfig, "the loopback interface cannot be lent to a pod"));
        }
        must_be_free(request, pod)?;
        let netdev = MovedNetdev::of(&link);
        Ok(Plan { record: LinkRecord::Moved(netdev.clone()), work: Work::Moved(netdev) })
    }

    /// What the host lacks for it just now.
    pub(crate) fn lacks(&self, kinds: &Kinds) -> Result<Option<String>, CniError> {
        match self.netdev(kinds) {
            // Any other error is no answer: a path is not passed over for it.
            Err(e) if matches!(e.code, Code::InvalidConfig | Code::NotAvailable) => Ok(Some(e.msg)),
            other => other.map(|_| None),
        }
    }

    /// Whether the device has no netdev because a driver for user space has it.
    pub(super) fn is_in_user_space(&self, kinds: &Kinds) -> bool {
        self.bus_id.as_deref().is_some_and(|id| sysfs::is_in_user_space(&kinds.sysfs, id))
    }

    fn netdev(&self, kinds: &Kinds) -> Result<Link, CniError> {
        netdev_of(kinds.kernel.as_ref(), &self.device, |device| sysfs::netdevs_of(&kinds.sysfs, device))
    }
}

/// The host's netdev that a configuration names; `names` are the netdevs that a bus address or sysfs path has.
fn netdev_of(
    kernel: &dyn Kernel,
    wanted: &DeviceRef,
    names: impl Fn(&DeviceRef) -> Result<Vec<String>, CniError>,
) -> Result<Link, CniError> {
    let told = |e: NetError| errors::kernel("", "looking for the host's device", &e);
    let mut host = kernel.host().map_err(told)?;
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
    pod.batch(&[Op::TakeFromHost { index: netdev.index, name: ifname.to_owned(), up: false }])?;
    // In the pod its index may be another's already: then the kernel gives it a new one.
    let index = pod.link_by_name(ifname)?.map_or(netdev.index, |link| link.index);
    pod.batch(&[
        // Until the alias is there, `find` goes by MAC address and name: a kill before this is undone all the same.
        Op::SetLink(SetLink { index, alias: Some(netdev.was.name.clone()), ..SetLink::default() }),
        Op::SetLink(SetLink { index, up: Some(true), ..SetLink::default() }),
    ])?;
    let mac = netdev::mac_of(pod, index, None)?;
    Ok(Applied { netdev: Some(index), mac, awaits_carrier: true, ..Applied::default() })
}
