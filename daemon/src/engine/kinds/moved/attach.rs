//! A netdev of the host on its way into the pod.

use fairlead_cni::{CniError, Code};
use fairlead_host::{Link, Net, NetError, Op, SetLink};

use super::config::{DeviceRef, HostDevice};
use super::sysfs;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::errors;
use crate::engine::kinds::sriov::Sriov;
use crate::engine::kinds::{
    Applied, ApplyError, HolderRemovals, Kinds, NotAttached, Plan, Reservation, Work, lendable, must_be_free,
    vf,
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
        // By its address, before its netdev is looked for: while its pool prepares it, it has none.
        if let Some(address) = self.pci_address()
            && let Some(vf) = kinds.sriov.reserve_served_of_pool(address, removals, kinds, request)?
        {
            return Ok(Reservation::Vf(vf));
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
        // Whether a VF of a pool can be had shows only when it is reserved.
        if self.pci_address().is_some_and(|address| kinds.sriov.pools.pool_of(address).is_some()) {
            return Ok(None);
        }
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
    let netdev = match reservation {
        Reservation::Device(reserved) => of_no_pool(kinds, request, reserved.link(), pod)?,
        Reservation::Vf(reserved) => {
            let wanted = Sriov::as_it_is(reserved.address());
            let snapshot = kinds.sriov.snapshot(&wanted, reserved)?;
            vf::change(&kinds.sriov, &wanted, &snapshot, request, pod)?.netdev
        }
        Reservation::Nothing | Reservation::Port { .. } | Reservation::Parent { .. } => {
            return Ok(Plan { record: LinkRecord::None, work: Work::Nothing });
        }
    };
    Ok(Plan { record: LinkRecord::Moved(Box::new(netdev.clone())), work: Work::Moved(netdev) })
}

/// The netdev of a device that no pool has, as it is.
fn of_no_pool(
    kinds: &Kinds,
    request: &AttachmentRequest<'_>,
    link: &Link,
    pod: &mut dyn Net,
) -> Result<MovedNetdev, CniError> {
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
    Ok(MovedNetdev { driver_state: Some(state), ..MovedNetdev::lent(link, index) })
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
pub(crate) fn apply(
    kinds: &Kinds,
    request: &AttachmentRequest<'_>,
    netdev: &MovedNetdev,
    pod: &mut dyn Net,
) -> Result<Applied, ApplyError> {
    let ifname = request.key.ifname.as_str();
    let mut host = kinds.kernel.host()?;
    let lent = host.link_by_index(netdev.index)?;
    // Read before it is moved: what stands on it leads into another namespace from then on.
    let above = lent
        .as_ref()
        .map(|lent| lendable::stack_on(host.as_mut(), lent))
        .transpose()
        .map_err(ApplyError::Cni)?;
    let as_index = netdev.lent_as.as_ref().map(|lent| lent.index);
    let name = ifname.to_owned();
    pod.batch(&[Op::TakeFromHost { index: netdev.index, as_index, name, up: false }])?;
    // What was made on it since it was judged is on record by now, and from now on nothing can be made on the device itself.
    if let (Some(lent), Some(above)) = (&lent, &above) {
        lendable::must_carry_nobody_by(kinds, request, lent, above).map_err(ApplyError::Cni)?;
    }
    let index = index_in_pod(pod, ifname, as_index)?.ok_or_else(|| {
        let msg = format!(
            "the host's interface {:?} was moved into the pod and is not there as {ifname:?}",
            netdev.was.name
        );
        CniError::new(Code::TryAgain, msg)
            .with("a program in the pod may have renamed it: stop that, or make the pod anew")
    })?;
    pod.batch(&[
        Op::SetLink(SetLink { index, alias: Some(netdev.was.name.clone()), ..SetLink::default() }),
        Op::SetLink(SetLink { index, up: Some(true), ..SetLink::default() }),
    ])?;
    let mac = netdev::mac_of(pod, index, None)?;
    Ok(Applied { netdev: Some(index), mac, awaits_carrier: true, ..Applied::default() })
}

/// The index that a netdev has in the pod by now. Never that of the host: another link may have it here.
fn index_in_pod(pod: &mut dyn Net, ifname: &str, as_index: Option<u32>) -> Result<Option<u32>, NetError> {
    match as_index {
        Some(index) if pod.link_by_index(index)?.is_some_and(|link| link.name == ifname) => Ok(Some(index)),
        // Kernels before 5.13 give a netdev whose own index is taken one that they choose.
        _ => Ok(pod.link_by_name(ifname)?.map(|link| link.index)),
    }
}

#[cfg(test)]
mod tests {
    use fairlead_host::double::FakeKernel;
    use fairlead_host::{Kind, NetKernel};

    use super::*;

    #[test]
    fn a_netdev_that_is_not_in_the_pod_under_its_name_is_taken_for_no_other_there() {
        let (kernel, path) = (FakeKernel::new(), "/run/netns/pod");
        kernel.add_namespace(path);
        let other = kernel.add_link(path, "other", Kind::Dummy).unwrap();
        let mut pod = kernel.pod(path.as_ref()).unwrap();
        let mut index = |ifname, as_index| index_in_pod(pod.as_mut(), ifname, as_index).unwrap();
        assert_eq!((index("net1", Some(other)), index("net1", None)), (None, None));
        assert_eq!(
            (index("other", Some(other)), index("other", Some(other + 1))),
            (Some(other), Some(other))
        );
    }
}
