//! Devices of the host on their way to a pod, by whatever configuration: what the node itself uses, and what is another pod's, is
//! never given away.
//!
//! | a device | is refused |
//! |---|---|
//! | that carries a default route, or is a port, itself or by what stands on it | unless `policy.lendable` names it |
//! | whose VFs pods or pools have, or a device plugin serves | unless `policy.lendable` names it |
//! | that is a VF of a pool | always: it comes by its pool only, also for `host-device` that names it by its address |
//! | that another pod has, or that kubelet has given to another pod | always |
//! | that is the uplink of a vhost-user network, or stands on one | always |
//! | on which another pod's interface stands, or such an uplink | always |
//!
//! A device with addresses, and one that leads into another namespace, as the host's end of a pod's veth does, are refused to a tenant's
//! definition. The administrator's own gets them, and that is logged. Nor does a tenant get what carries a route of the node's, a tunnel or
//! another part of somebody's network, or a wire whose other end is any of that.
//!
//! The netdev of a VF that type `sriov` takes is judged alike, unless its pool has it ready; whose the VF is, its reservation has settled.

mod host_stack;

use host_stack::Word;

use fairlead_cni::{CniError, Code};
use fairlead_host::{Address, Kind, Link, Net, NetError, ParentLink};
use fairlead_sriov::{PciAddr, VfDevice, vf_netdev};

use super::sriov::{reserve_alone, unusable, vf_not_to_be_had};
use super::{HolderRemovals, Kinds, NotAttached, Reservation, SriovCniVfs};
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::keyed_locks::KeyedLock;
use crate::engine::{enter_pod_netns, errors};
use crate::few_names::a_few_of;
use crate::store::Attachment;

/// What an administrator can do about a device that the node uses.
const ALLOW: &str = "name another device; if the node can do without this one, name it in policy.lendable of the daemon's configuration";

/// A device of the host that may be lent, and that no other ADD takes as a VF until it is on record.
pub(crate) struct LendableDevice<'k> {
    link: Link,
    address: Option<PciAddr>,
    _lock: Option<KeyedLock<'k>>,
}

impl LendableDevice<'_> {
    /// The device as it was when it was judged.
    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// Its PCI address, if it is a PCI device.
    pub(crate) fn address(&self) -> Option<PciAddr> {
        self.address
    }
}

/// Reserves a netdev of the host for a pod, which `find` looks for, if it is no one's and the node can do without it. Not from
/// within a pod's namespace: kubelet may have to be asked.
pub(super) fn reserve<'k>(
    kinds: &'k Kinds,
    removals: &dyn HolderRemovals,
    request: &AttachmentRequest<'_>,
    find: impl FnOnce(&mut dyn Net) -> Result<Link, CniError>,
) -> Result<Reservation<'k>, NotAttached> {
    // Nothing is looked for on behalf of a namespace that is not the caller's.
    drop(enter_pod_netns::enter(kinds.kernel.as_ref(), &kinds.sriov.host_id, request)?);
    let told = |e: NetError| errors::kernel(&request.key.network, "looking at the host's devices", &e);
    let mut host = kinds.kernel.host().map_err(told)?;
    let link = find(host.as_mut())?;
    kinds.vhost_user.must_get_frames(link.index, None)?;
    let is_allowed = kinds.call_settings.get().lendable.contains(&link.name);
    let device = device_of(kinds, &link)?;
    let address = device.as_ref().and_then(|device| device.parse().ok());
    let mut lock = None;
    if let Some(device) = &device {
        if let Some(address) = address {
            kinds.sriov.wait_for_first_look(kinds.vf_deadline(request))?;
            must_be_no_pools(kinds, &link, address).map_err(NotAttached::by_code)?;
            lock = Some(alone(kinds, removals, request, address)?);
            if !is_allowed {
                must_have_no_vf_in_use(kinds, request, &link, address).map_err(NotAttached::by_code)?;
            }
        }
        kinds.sriov.must_be_given(request, device).map_err(NotAttached::by_code)?;
    }
    must_carry_nobody(kinds, host.as_mut(), request, &link).map_err(NotAttached::by_code)?;
    if !is_allowed {
        must_be_dispensable(host.as_mut(), &link, request, word_of(request)).map_err(NotAttached::by_code)?;
    }
    Ok(Reservation::Device(LendableDevice { link, address, _lock: lock }))
}

/// Refuses an interface of the host that is not to be a switch's alone: what the node itself uses, and what others have or are to have.
pub(super) fn must_be_free(
    kinds: &Kinds,
    host: &mut dyn Net,
    request: &AttachmentRequest<'_>,
    link: &Link,
) -> Result<(), CniError> {
    let address = device_of(kinds, link)?.and_then(|device| device.parse().ok());
    if let Some(address) = address {
        must_be_no_pools(kinds, link, address)?;
        if let Some(holder) = kinds.sriov.store.all().iter().find(|a| a.has_pci_device(address)) {
            let why = format!("container {} has it", holder.key.container);
            return Err(refused(link, &why).with("name another device"));
        }
    }
    must_be_dispensable_or_named(kinds, host, request, link, word_of(request))
}

/// Refuses a VF by what the node, or a switch of it, uses of its netdev.
pub(super) fn vf_must_be_dispensable(
    kinds: &Kinds,
    request: &AttachmentRequest<'_>,
    vf: &VfDevice,
) -> Result<(), CniError> {
    let told = |e: NetError| errors::kernel(&request.key.network, "looking at the VF's interface", &e);
    let mut host = kinds.kernel.host().map_err(told)?;
    let link = vf_netdev::interface(host.as_mut(), vf.address, &vf.interfaces).map_err(told)?;
    // A VF whose netdev is in another namespace is refused when it is planned.
    let Some(link) = link else { return Ok(()) };
    kinds.vhost_user.must_get_frames(link.index, None)?;
    must_carry_nobody(kinds, host.as_mut(), request, &link)?;
    let word = if kinds.sriov.is_served(request, vf.address) { Word::Kubelets } else { word_of(request) };
    must_be_dispensable_or_named(kinds, host.as_mut(), request, &link, word)
}

/// The device on a bus that a link is the netdev of. What stands on one, as a VLAN does, is no device.
fn device_of(kinds: &Kinds, link: &Link) -> Result<Option<String>, CniError> {
    match &link.device {
        _ if link.kind != (Kind::Other { name: String::new() }) => Ok(None),
        Some(device) => Ok(Some(device.clone())),
        // Kernels before 5.14 do not tell it.
        None => kinds.sriov.inventory.device_of(&link.name).map_err(|e| unusable(&e)),
    }
}

/// Refuses a VF of a pool, however it is named.
fn must_be_no_pools(kinds: &Kinds, link: &Link, address: PciAddr) -> Result<(), CniError> {
    match kinds.sriov.pools.pool_of(address) {
        Some(pool) => Err(refused(link, &format!("it is VF {address} of pool {pool:?}")).with(
            "take it by type sriov with \"pool\" or its deviceID, or leave it out of the pool's selectors",
        )),
        None => Ok(()),
    }
}

/// Keeps other ADDs from a device, which must be no pod's: of ours or of sriov-cni's.
fn alone<'k>(
    kinds: &'k Kinds,
    removals: &dyn HolderRemovals,
    request: &AttachmentRequest<'_>,
    address: PciAddr,
) -> Result<KeyedLock<'k>, CniError> {
    let limit = kinds.vf_deadline(request);
    let holds = |a: &Attachment| a.has_pci_device(address);
    let refused = |why: &str| vf_not_to_be_had(address, why);
    let lock = reserve_alone(&kinds.sriov, removals, &address.to_string(), &holds, limit, refused)?;
    kinds.settle(address)?;
    Ok(lock)
}

/// Refuses a PF whose VFs somebody has, or kubelet gives to pods: without it nobody could set them up or restore them.
fn must_have_no_vf_in_use(
    kinds: &Kinds,
    request: &AttachmentRequest<'_>,
    link: &Link,
    pf: PciAddr,
) -> Result<(), CniError> {
    let sriov = &kinds.sriov;
    let is_its = |vf: &PciAddr| sriov.inventory.vf(*vf).is_ok_and(|vf| vf.physical.address == pf);
    let attached = sriov.store.all().into_iter().find_map(|a| {
        let of_record = a.vf().filter(|vf| vf.pf == pf).map(|vf| vf.address);
        let vf = of_record.or_else(|| a.pci_device().filter(is_its))?;
        Some(format!("its VF {vf} is interface {:?} of container {}", a.key.ifname, a.key.container))
    });
    let of_pool = || sriov.pools.pool_with_pf(pf).map(|pool| format!("pool {pool:?} has VFs of it"));
    let by_another = || {
        let vf = kinds.leftovers.vfs().into_iter().find(is_its)?;
        Some(format!("sriov-cni has given its VF {vf} to a pod"))
    };
    if let Some(why) = attached.or_else(of_pool).or_else(by_another) {
        return Err(refused(link, &why).with(ALLOW));
    }
    match sriov.served_vf_of(request, pf)? {
        Some((vf, resource)) => {
            let why = format!("its VF {vf} is of resource {resource:?}, which kubelet allocates");
            Err(refused(link, &why).with(ALLOW))
        }
        None => Ok(()),
    }
}

/// Refuses a device by which other pods have their frames: whoever has it reads and changes them.
pub(super) fn must_carry_nobody(
    kinds: &Kinds,
    host: &mut dyn Net,
    request: &AttachmentRequest<'_>,
    link: &Link,
) -> Result<(), CniError> {
    match kinds.vhost_user.holds_any(is_of_pod(request)) {
        true => must_carry_nobody_by(kinds, request, link, &stack_on(host, link)?),
        false => Ok(()),
    }
}

/// The same of a device that may have left the host since its `stack` was read.
pub(super) fn must_carry_nobody_by(
    kinds: &Kinds,
    request: &AttachmentRequest<'_>,
    link: &Link,
    stack: &[Link],
) -> Result<(), CniError> {
    let holders = kinds.vhost_user.holders_on(stack, is_of_pod(request));
    match holders.is_empty() {
        true => Ok(()),
        false => Err(refused(link, &format!("these stand on it: {}", a_few_of(&holders)))
            .with("name another device, or end those first")),
    }
}

/// A link of the host and all that stands on it, directly or not.
pub(super) fn stack_on(host: &mut dyn Net, link: &Link) -> Result<Vec<Link>, CniError> {
    let told = |e: NetError| errors::kernel("", "looking at what stands on an interface", &e);
    let links = host.links().map_err(told)?;
    Ok(host_stack::stack(link, &links).into_iter().cloned().collect())
}

fn is_of_pod(request: &AttachmentRequest<'_>) -> impl Fn(&Attachment) -> bool + Copy {
    let container = &request.key.container;
    move |a: &Attachment| a.key.container == *container
}

/// The host's link with this index and what it stands on, the link first.
pub(super) fn down_from(host: &mut dyn Net, index: u32) -> Result<Vec<Link>, NetError> {
    let (mut found, mut next): (Vec<Link>, _) = (Vec::new(), Some(index));
    // Each link comes in once, so a ring of links ends the search too.
    while let Some(index) = next.filter(|index| found.iter().all(|known| known.index != *index)) {
        let Some(link) = host.link_by_index(index)? else { break };
        next = link.lower();
        found.push(link);
    }
    Ok(found)
}

/// Refuses a tenant's definition a master that is the host's end of a pod's interface, or stands on one: its link would get that pod's
/// frames.
pub(super) fn must_lead_to_nobody(
    kinds: &Kinds,
    request: &AttachmentRequest<'_>,
    master: &ParentLink,
) -> Result<(), CniError> {
    if word_of(request) != Word::Tenants || !master.leads_on {
        return Ok(());
    }
    let told = |e: NetError| errors::kernel(&request.key.network, "looking at what the master leads to", &e);
    let mut host = kinds.kernel.host().map_err(told)?;
    let down = down_from(host.as_mut(), master.index).map_err(told)?;
    // One that is gone by now the kernel refuses.
    let Some(used) = down.first().and_then(|link| host_stack::leads_away(link, &down)) else { return Ok(()) };
    if kinds.call_settings.get().lendable.contains(&master.name)
        || host_stack::is_uplink(&down, &host.routes().map_err(told)?)
    {
        return Ok(());
    }
    let msg = format!("no link of a tenant's definition can stand on master {:?}: {used}", master.name);
    Err(CniError::new(Code::InvalidConfig, msg).with(
        "name another `master`; if every tenant may have what goes by this one, name it in policy.lendable of the daemon's configuration",
    ))
}

fn word_of(request: &AttachmentRequest<'_>) -> Word {
    if request.namespace.is_some() { Word::Tenants } else { Word::Administrators }
}

/// Refuses what the node itself uses, unless its configuration allows that by name.
fn must_be_dispensable_or_named(
    kinds: &Kinds,
    host: &mut dyn Net,
    request: &AttachmentRequest<'_>,
    link: &Link,
    word: Word,
) -> Result<(), CniError> {
    match kinds.call_settings.get().lendable.contains(&link.name) {
        true => Ok(()),
        false => must_be_dispensable(host, link, request, word),
    }
}

/// Refuses what the node itself uses.
fn must_be_dispensable(
    host: &mut dyn Net,
    link: &Link,
    request: &AttachmentRequest<'_>,
    word: Word,
) -> Result<(), CniError> {
    let told = |e: NetError| errors::kernel(&request.key.network, "looking at what the host uses", &e);
    let (links, routes) = (host.links().map_err(told)?, host.routes().map_err(told)?);
    let mut addresses: Vec<Address> = Vec::new();
    for part in host_stack::with_addresses_that_count(link, &links) {
        addresses.extend(host.addresses(part.index).map_err(told)?);
    }
    match host_stack::judge(link, &links, &routes, &addresses, word) {
        Ok(None) => Ok(()),
        Ok(Some(used)) => {
            tracing::warn!(container = %request.key.container, network = %request.key.network, ifname = %request.key.ifname,
                device = link.name, %used, "a device that the host uses goes to a pod");
            Ok(())
        }
        Err(used) => Err(refused(link, &used.to_string()).with(ALLOW)),
    }
}

fn refused(link: &Link, why: &str) -> CniError {
    CniError::new(Code::InvalidConfig, format!("device {:?} of the host is not lent: {why}", link.name))
}
