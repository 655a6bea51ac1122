//! A netdev of the host on its way back: everything as it was, from the pod or from where its namespace's death has left it.
//!
//! Alias, name and MAC address decide nothing: the pod can set them. The netdev enters the host's namespace down and under a name that
//! nobody else has. Only when it is known there beyond doubt it is restored: in the host's namespace the pod can change nothing any
//! more.

use std::thread::sleep;
use std::time::{Duration, Instant};

use fairlead_cni::{CniError, Code};
use fairlead_host::{Link, LookedForIn, Net, NetError, NetdevIdentity, Op, OpError, SetLink, failpoint};
use fairlead_sriov::vf_netdev::APPEARS;
use fairlead_sriov::{KernelVf, PciAddr};
use nix::errno::Errno;

use super::sysfs;
use crate::engine::errors;
use crate::engine::kinds::sriov::{Restored, quarantined};
use crate::engine::kinds::{Kinds, Undone};
use crate::engine::netdev::leave_pod::Leaving;
use crate::engine::netdev::{POLL, driver_state};
use crate::engine::recorded_netns::Reach;
use crate::store::{Attachment, MovedNetdev};

/// The netdev in the pod.
pub(crate) fn find(netdev: &MovedNetdev, pod: &mut dyn Net) -> Result<Option<Link>, NetError> {
    let looked_for = LookedForIn::Pod(pod.nsid_of_host()?);
    let index = netdev.lent_as.as_ref().map_or(netdev.index, |lent| lent.index);
    let own = |link: &Link| is_lent(netdev, link, index, looked_for);
    // Mostly it is where it was put. A list of all links takes long, and the pod can make it long.
    match pod.link_by_index(index)?.filter(own) {
        None if may_have_another_index(netdev) => pod.find_link(&own),
        found => Ok(found),
    }
}

fn may_have_another_index(netdev: &MovedNetdev) -> bool {
    netdev.lent_as.as_ref().is_none_or(|lent| lent.identity.is_known_under_any_index())
}

fn is_lent(netdev: &MovedNetdev, link: &Link, index: u32, looked_for: LookedForIn) -> bool {
    match &netdev.lent_as {
        Some(lent) => lent.identity.is(link, index, looked_for),
        None => is_lent_by_0_1(netdev, link),
    }
}

/// Release 0.1 recorded alias, name and MAC address only. Of what a pod can make itself nothing is taken for the netdev but what is at
/// the very index.
fn is_lent_by_0_1(netdev: &MovedNetdev, link: &Link) -> bool {
    let was = &netdev.was;
    let alike =
        link.alias.as_deref() == Some(was.name.as_str()) || (link.mac == was.mac && was.mac.is_some());
    let known = match NetdevIdentity::of(link) {
        NetdevIdentity::Device { permanent_mac, .. } => {
            alike || (permanent_mac == was.mac && was.mac.is_some())
        }
        NetdevIdentity::Virtual { .. } => alike && link.index == netdev.index,
    };
    known && !link.loopback
}

/// Whether the kernel moves the netdev to the host when its namespace dies.
fn outlives_its_netns(netdev: &MovedNetdev) -> bool {
    netdev.lent_as.as_ref().is_none_or(|lent| lent.identity.outlives_its_netns())
}

/// Moves the netdev back to the host and restores it.
pub(crate) fn undo(
    kinds: &Kinds,
    attachment: &Attachment,
    netdev: &MovedNetdev,
    reach: Reach<'_>,
) -> Result<Undone, CniError> {
    let removing = |e: NetError| {
        errors::kernel(&attachment.key.network, &format!("removing {:?}", attachment.key.ifname), &e)
    };
    let dead = matches!(reach, Reach::Dead);
    let parked = attachment.parked_name();
    let leaving = Leaving { parked: &parked, index: netdev.index };
    let own = |link: &Link| is_lent(netdev, link, link.index, LookedForIn::Host);
    if let Reach::Inside(mut pod) = reach
        && let Some(link) = find(netdev, pod.as_mut()).map_err(removing)?
    {
        must_be_free_at_home(kinds, netdev).map_err(removing)?;
        // Until it is closed, a socket of the announcer would keep the pod's namespace alive, and its mount busy.
        kinds.quiet_for_good(link.index, &attachment.netns.id);
        leaving.leave(kinds.kernel.as_ref(), pod.as_mut(), &link, own).map_err(removing)?;
    }
    failpoint::pass("del.home");
    leaving.turn_away_others(kinds.kernel.as_ref(), own).map_err(removing)?;
    let there = is_there(kinds, netdev)?;
    let may_fall = dead && outlives_its_netns(netdev) && there != Some(false);
    let falls = if may_fall { APPEARS } else { Duration::ZERO };
    match restore_at_home(kinds, attachment, netdev, falls).map_err(removing)? {
        AtHome::Restored => return Ok(Undone::Whole),
        AtHome::Quarantined(vf, left) => {
            return Ok(Undone::Quarantined { why: quarantined(attachment, vf, &left), left });
        }
        AtHome::Absent => {}
    }
    match there {
        Some(true) => Err(still_away(attachment, netdev)),
        None if !dead => Ok(Undone::Away(still_away(attachment, netdev))),
        // Unplugged, bound to a driver that gives it no netdev, or deleted by the kernel together with its namespace.
        Some(false) | None => {
            tracing::warn!(container = %attachment.key.container, netdev = netdev.was.name,
                "a netdev that was lent to a pod is gone");
            Ok(Undone::Whole)
        }
    }
}

/// Looked for before anything is changed: a netdev that cannot come home stays as it is.
fn must_be_free_at_home(kinds: &Kinds, netdev: &MovedNetdev) -> Result<(), NetError> {
    let name = &netdev.was.name;
    if kinds.kernel.host()?.link_by_name(name)?.is_none() {
        return Ok(());
    }
    Err(NetError::Op(OpError {
        at: 0,
        what: format!("move the pod's interface back to the host as {name:?}"),
        errno: Errno::EEXIST,
        extack: Some("another interface of the host has this name: rename or remove that".to_owned()),
    }))
}

/// Whether the machine still has the device, under a driver that gives it a netdev; `None` where that is not known, as of any virtual
/// netdev.
fn is_there(kinds: &Kinds, netdev: &MovedNetdev) -> Result<Option<bool>, CniError> {
    match netdev.lent_as.as_ref().map(|lent| &lent.identity) {
        Some(NetdevIdentity::Device { device: Some(device), bus: Some(bus), .. }) => {
            sysfs::has_a_netdev(&kinds.sysfs, bus, device).map(Some)
        }
        _ => Ok(None),
    }
}

/// What of a netdev is in the host's namespace.
enum AtHome {
    /// It is there, as it was.
    Restored,
    /// It is a VF's, and this is left on it, in words.
    Quarantined(PciAddr, String),
    /// It is not there.
    Absent,
}

/// Restores the netdev in the host's namespace: one that has just left its pod, that the death of its namespace or a failed move has
/// left there, or that a killed attempt has not finished. Out of a dead namespace it falls a little after the kernel has reported the
/// death: so long (`falls`) it is waited for.
fn restore_at_home(
    kinds: &Kinds,
    attachment: &Attachment,
    netdev: &MovedNetdev,
    falls: Duration,
) -> Result<AtHome, NetError> {
    let mut host = kinds.kernel.host()?;
    let parked = attachment.parked_name();
    let until = Instant::now() + falls;
    let link = loop {
        match at_home(netdev, &parked, host.as_mut())? {
            None if Instant::now() < until => sleep(POLL),
            found => break found,
        }
    };
    let Some(link) = link else { return Ok(AtHome::Absent) };
    let index = link.index;
    if let Some(mac) = netdev.was.mac.filter(|mac| link.mac != Some(*mac)) {
        // Some drivers change it only while they are down.
        host.batch(&[
            Op::SetLink(SetLink { index, up: Some(false), ..SetLink::default() }),
            Op::SetLink(SetLink { index, mac: Some(mac), ..SetLink::default() }),
        ])?;
    }
    let Some(link) = host.link_by_index(index)? else { return Ok(AtHome::Absent) };
    let link = match vf_of(kinds, attachment) {
        Some((address, driver)) => {
            let vf = KernelVf { kernel: kinds.kernel.as_ref(), address, driver: &driver };
            match kinds.sriov.restore_driver_state(vf, host.as_mut(), link, netdev)? {
                Restored::Clean(link) => *link,
                Restored::Unclean(left) => return Ok(AtHome::Quarantined(address, left)),
            }
        }
        // What is left is logged: nobody would be served by a NIC that stays away for it, and nothing makes it anew.
        None => driver_state::restore(host.as_mut(), index, netdev).map(|_| link)?,
    };
    for op in netdev.look().restored(&link) {
        match host.batch_past_gone(std::slice::from_ref(&op)) {
            Err(error) if matches!(op, Op::AddAltName { .. }) && error.errno() == Some(Errno::EEXIST) => {
                tracing::warn!(netdev = netdev.was.name, %error,
                    "a netdev that comes home has one alternative name less: another interface has that by now");
            }
            done => done?,
        }
    }
    Ok(AtHome::Restored)
}

/// The VF whose netdev was lent, and the driver that makes that.
fn vf_of(kinds: &Kinds, attachment: &Attachment) -> Option<(PciAddr, String)> {
    let device = kinds.sriov.inventory.vf(attachment.pci_device()?).ok()?;
    Some((device.address, device.driver?))
}

fn at_home(netdev: &MovedNetdev, parked: &str, host: &mut dyn Net) -> Result<Option<Link>, NetError> {
    let own = |link: &Link| is_lent(netdev, link, netdev.index, LookedForIn::Host);
    if let Some(link) = host.link_by_index(netdev.index)?.filter(own) {
        return Ok(Some(link));
    }
    // Its index at home may have been taken. What has come from a pod was compared already, so its own index does.
    let parked = host.link_by_name(parked)?;
    if let Some(link) = parked.filter(|link| is_lent(netdev, link, link.index, LookedForIn::Host)) {
        return Ok(Some(link));
    }
    match outlives_its_netns(netdev) {
        true => host.find_link(&own),
        false => Ok(None),
    }
}

/// A netdev that is in none of the namespaces that can be looked into.
fn still_away(attachment: &Attachment, netdev: &MovedNetdev) -> CniError {
    let name = &netdev.was.name;
    let msg = format!(
        "network {:?}: the host's interface {name:?} is neither in the pod's namespace nor in the host's",
        attachment.key.network
    );
    CniError::new(Code::TryAgain, msg).with(format!(
        "the pod may have moved it to a namespace of its own, at whose end it comes home; `fairleadd forget {} {}` gives it up",
        attachment.key.container, attachment.key.ifname
    ))
}
