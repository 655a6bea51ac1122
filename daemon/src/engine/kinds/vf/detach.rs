//! The netdev of a VF on its way back: from the pod, from a namespace that died, or from an ADD that failed half way. From the
//! record alone; it may be begun again at any step.

use std::ops::ControlFlow;
use std::time::Duration;

use fairlead_cni::CniError;
use fairlead_host::{Link, Mac, Net, NetError, Override, failpoint};
use fairlead_sriov::vf_netdev::{self, APPEARS, NAMED, interface, interface_among, wait_for_netdev};
use fairlead_sriov::wait_out_reset::is_resetting;
use fairlead_sriov::{VFIO_PCI, VfDevice, VfProfile};
use nix::errno::Errno;

use crate::engine::errors;
use crate::engine::kinds::sriov::{Restored, SriovServices, quarantined, still_away, unusable};
use crate::engine::kinds::{AwaitsCarrier, Kinds, Undone};
use crate::engine::netdev::leave_pod::Leaving;
use crate::engine::recorded_netns::Reach;
use crate::store::{Attachment, MovedNetdev, VfRecord};

/// The VF's netdev in the pod.
pub(crate) fn find(
    attachment: &Attachment,
    netdev: &MovedNetdev,
    vf: &VfRecord,
    pod: &mut dyn Net,
) -> Result<Option<Link>, NetError> {
    let names = [attachment.key.ifname.as_str(), &netdev.was.name];
    let own = |link: &Link| {
        interface_among(std::slice::from_ref(link), vf.address, &names, netdev.was.mac).is_some()
    };
    // Mostly it has the name that it was given, and a list of all links takes long.
    let named = pod.link_by_name(&attachment.key.ifname)?;
    match named.filter(own) {
        Some(link) => Ok(Some(link)),
        None => pod.find_link(&own),
    }
}

/// Restores the VF of an attachment: everything as it was, but for what waits for a carrier or for the end of a process, or what its
/// pod has left for good.
pub(crate) fn undo(
    kinds: &Kinds,
    attachment: &Attachment,
    netdev: &MovedNetdev,
    vf: &VfRecord,
    reach: Reach<'_>,
) -> Result<Undone, CniError> {
    let sriov = &kinds.sriov;
    let told = |e: NetError| doing(attachment, vf, &e);
    let parked = attachment.parked_name();
    let leaving = Leaving { parked: &parked, index: netdev.index };
    let own = |link: &Link| vf_netdev::may_be_of(link, vf.address);
    if let Reach::Inside(mut pod) = reach
        && let Some(link) = find(attachment, netdev, vf, pod.as_mut()).map_err(told)?
    {
        // Until it is closed, a socket of the announcer would keep the pod's namespace alive.
        kinds.quiet(link.index, &attachment.netns.id);
        leaving.leave(kinds.kernel.as_ref(), pod.as_mut(), &link, own).map_err(told)?;
    }
    failpoint::pass("del.home");
    let mut host = sriov.kernel.host().map_err(told)?;
    leaving.turn_away_others(kinds.kernel.as_ref(), own).map_err(told)?;
    let device = match under_its_driver(sriov, attachment, vf)? {
        ControlFlow::Continue(device) => device,
        ControlFlow::Break(undone) => return Ok(undone),
    };
    let Some(link) = netdev_at_home(sriov, attachment, vf, host.as_mut())? else { return Ok(Undone::Whole) };
    // Not before the netdev has left the pod: until then the pod must stay on its VLAN.
    let (link, waits) = restore_settings(sriov, host.as_mut(), vf, &device, link, netdev.was.mac)?;
    let link = match wrong(&link, netdev.was.mac) {
        Some(mac) => restore_mac(sriov, host.as_mut(), vf, link, mac).map_err(told)?,
        None => link,
    };
    // Some drivers keep the PF's address for good. No later try would help, so the removal goes on.
    if let Some(mac) = wrong(&link, netdev.was.mac) {
        tracing::warn!(pci = %vf.address, was = %mac,
            "a VF keeps the MAC address that its PF has for it");
    }
    match sriov.restore_driver_state(sriov.kernel_vf(vf), host.as_mut(), link, netdev).map_err(told)? {
        Restored::Clean(link) => restore_look(sriov, host.as_mut(), vf, *link, netdev).map_err(told)?,
        Restored::Unclean(left) => {
            return Ok(Undone::Quarantined { why: quarantined(attachment, vf.address, &left), left });
        }
    }
    Ok(waits.into())
}

/// The netdev of a VF in the host's namespace. One that its driver has given up is made by binding that anew: here, or (`None`) by the VF's
/// pool, which gives the VF to nobody before.
fn netdev_at_home(
    sriov: &SriovServices,
    attachment: &Attachment,
    vf: &VfRecord,
    host: &mut dyn Net,
) -> Result<Option<Link>, CniError> {
    let told = |e: NetError| doing(attachment, vf, &e);
    // Out of a dead namespace, or from a driver that was bound just now, it appears a little later.
    if let Some(link) = wait_for_netdev(host, vf.address, APPEARS).map_err(told)? {
        return Ok(Some(link));
    }
    if sriov.inventory.has_netdev(vf.address).map_err(|e| unusable(&e))? {
        return Err(still_away(vf));
    }
    if sriov.pools.restores_settings(vf.address) {
        let why = format!("its driver {} has made no interface for it since its last pod", vf.driver);
        sriov.pools.soiled(vf.address, &why);
        return Ok(None);
    }
    tracing::warn!(pci = %vf.address, driver = vf.driver, "a VF is bound anew, because its driver has given its interface up");
    sriov.kernel_vf(vf).bound_anew(host).map(Some).map_err(told)
}

fn doing(attachment: &Attachment, vf: &VfRecord, error: &NetError) -> CniError {
    errors::kernel(&attachment.key.network, &format!("bringing VF {} home", vf.address), error)
}

/// The VF under its driver; or, where it is gone or somebody has given it another driver, what its undo has come to by that.
fn under_its_driver(
    sriov: &SriovServices,
    attachment: &Attachment,
    vf: &VfRecord,
) -> Result<ControlFlow<Undone, VfDevice>, CniError> {
    let Some(device) = sriov.still_there(vf)? else { return Ok(ControlFlow::Break(Undone::Whole)) };
    match &device.driver {
        Some(driver) if *driver == vf.driver => {}
        Some(_) => return leave_to_another(sriov, attachment, vf, &device).map(ControlFlow::Break),
        // It was being bound anew, or somebody took it away.
        None => sriov
            .kernel
            .bind(&vf.address.to_string(), &vf.driver, Override::Keep)
            .map_err(|e| doing(attachment, vf, &e))?,
    }
    Ok(ControlFlow::Continue(device))
}

/// A VF that somebody has bound to another driver keeps that; the settings of its pod it does not keep. While a process has it they stay,
/// and the attachment with them: the VM of a pod can outlive its DEL, and nobody else would ever take them back.
fn leave_to_another(
    sriov: &SriovServices,
    attachment: &Attachment,
    vf: &VfRecord,
    device: &VfDevice,
) -> Result<Undone, CniError> {
    let under_vfio = device.driver.as_deref() == Some(VFIO_PCI);
    let process = if under_vfio { sriov.process_with(attachment, device)? } else { None };
    let in_use = process.is_some();
    // Its pool gives it its settings back by itself, when nobody uses it any more.
    let owed = !vf.before.is_empty() && !sriov.pools.restores_settings(vf.address);
    // Settings are never changed under a process that drives the VF.
    let waits = match process {
        Some(why) if owed => return Ok(Undone::Away(why)),
        Some(_) => None,
        None => sriov.undo_settings(vf, device)?,
    };
    AwaitsCarrier::refuse(waits)?;
    tracing::warn!(pci = %vf.address, driver = ?device.driver, in_use,
        "a lent VF has another driver now: it is left to whoever gave it that");
    Ok(Undone::Whole)
}

/// Restores the settings that ADD changed; only what differs is sent.
fn restore_settings(
    sriov: &SriovServices,
    host: &mut dyn Net,
    vf: &VfRecord,
    device: &VfDevice,
    mut link: Link,
    mac: Option<Mac>,
) -> Result<(Link, Option<AwaitsCarrier>), CniError> {
    // Reading the settings can take hundreds of milliseconds: nothing is read where ADD changed nothing.
    if vf.before.is_empty() {
        return Ok((link, None));
    }
    let told = |e: NetError| errors::kernel("", &format!("giving VF {} its settings back", vf.address), &e);
    let Some(mut now) = sriov.unless_its_pools(vf, sriov.admin.settings(device))? else {
        return Ok((link, None));
    };
    if let (Some(mac), Some(true)) = (wrong(&link, mac), now.trust) {
        // Trusted, it may have taken another one; when it is trusted no more it cannot take its own any more.
        link = sriov.kernel_vf(vf).try_mac(host, &link, mac).map_err(told)?.unwrap_or(link);
        now = sriov.admin.settings(device).map_err(|e| errors::setting(&e))?;
    }
    // An earlier attempt may have restored a part of it.
    let change = VfProfile::from(&vf.before).plan(&now).change;
    if change.is_empty() {
        return Ok((link, None));
    }
    let waits = sriov.put_back(vf, device, &change)?;
    // Its MAC address may have followed.
    let now = interface(host, vf.address, std::slice::from_ref(&link.name)).map_err(told)?;
    now.map(|link| (link, waits)).ok_or_else(|| still_away(vf))
}

/// Restores its own MAC address. A VF of a pool that does not end resetting gets it from that, as its settings.
fn restore_mac(
    sriov: &SriovServices,
    host: &mut dyn Net,
    vf: &VfRecord,
    link: Link,
    mac: Mac,
) -> Result<Link, NetError> {
    match sriov.kernel_vf(vf).take_back(host, &link, mac) {
        Err(error) if is_resetting(&error) && sriov.pools.restores_settings(vf.address) => {
            tracing::info!(pci = %vf.address, %error, "its pool gives a VF its MAC address back");
            Ok(interface(host, vf.address, std::slice::from_ref(&link.name))?.unwrap_or(link))
        }
        done => done,
    }
}

/// Restores name, MTU, alias, alternative names and whether it was up.
fn restore_look(
    sriov: &SriovServices,
    host: &mut dyn Net,
    vf: &VfRecord,
    link: Link,
    netdev: &MovedNetdev,
) -> Result<(), NetError> {
    let named = sriov.pools.restores_name(vf.address);
    // Nobody names a VF of no pool later, so a name that is taken is waited for here.
    let limit = if named { Duration::ZERO } else { NAMED };
    match vf_netdev::restore_look(
        host,
        vf.address,
        link,
        &netdev.look(),
        limit,
        |_, _| Ok::<(), NetError>(()),
    ) {
        // Its pool gives it its name and look when it is ready, and waits for another VF that has its name by chance.
        Err(e) if e.errno() == Some(Errno::EEXIST) && named => {
            tracing::info!(pci = %vf.address, name = netdev.was.name,
                "the name of a VF that comes home is taken: its pool sees to it");
            Ok(())
        }
        other => other,
    }
}

/// The MAC address that a netdev should have and has not.
fn wrong(link: &Link, mac: Option<Mac>) -> Option<Mac> {
    mac.filter(|mac| link.mac != Some(*mac))
}
