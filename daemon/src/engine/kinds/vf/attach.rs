//! The netdev of a VF on its way into the pod: settings that differ, its MAC address, then one message that moves, renames and
//! sets it up.

use std::time::Instant;

use fairlead_cni::{CniError, Code};
use fairlead_host::{Link, Mac, Net, NetError, Op, SetLink, VfChange, failpoint};
use fairlead_sriov::vf_netdev::{self, Look, NAMED};
use fairlead_sriov::wait_out_reset::{SETTLES, is_resetting, patiently};

use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::errors;
use crate::engine::kinds::sriov::{Snapshot, Sriov, SriovServices};
use crate::engine::kinds::{Applied, ApplyError, Plan, Work, must_be_free};
use crate::engine::netdev::driver_state;
use crate::store::{Attachment, LinkRecord, MovedNetdev, VfRecord};

/// A netdev of a VF that is about to be moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) vf: VfRecord,
    /// What it was.
    pub(crate) netdev: MovedNetdev,
    /// Settings that differ from what is wanted.
    pub(crate) settings: VfChange,
    /// The MAC address that its netdev is to have.
    pub(crate) mac: Option<Mac>,
}

/// Says what is to be done, and what goes on record of it.
pub(crate) fn plan(
    sriov: &SriovServices,
    wanted: &Sriov,
    snapshot: &Snapshot,
    request: &AttachmentRequest<'_>,
    pod: &mut dyn Net,
) -> Result<Plan, CniError> {
    let change = change(sriov, wanted, snapshot, request, pod)?;
    Ok(Plan { record: LinkRecord::Moved(Box::new(change.netdev.clone())), work: Work::Vf(change) })
}

/// Says what differs and is to be set before the netdev is moved. Pure, but for a look whether its name is free in the pod.
pub(crate) fn change(
    sriov: &SriovServices,
    wanted: &Sriov,
    snapshot: &Snapshot,
    request: &AttachmentRequest<'_>,
    pod: &mut dyn Net,
) -> Result<Change, CniError> {
    let Some(link) = &snapshot.netdev else {
        return Err(CniError::new(Code::Internal, "a VF without a netdev was planned to be moved"));
    };
    must_be_free(request, pod)?;
    let (vf, settings) = snapshot.record(wanted);
    let state = sriov.kernel.host().and_then(|mut host| driver_state::read(host.as_mut(), link));
    let state =
        state.map_err(|e| errors::kernel(&request.key.network, "looking at the VF's interface", &e))?;
    let netdev = MovedNetdev { vf: Some(vf.clone()), driver_state: Some(state), ..MovedNetdev::of(link) };
    Ok(Change { vf, netdev, settings, mac: wanted.profile.mac })
}

/// Sets the VF up and moves its netdev into the pod.
pub(crate) fn apply(
    sriov: &SriovServices,
    ifname: &str,
    change: &Change,
    attachment: &Attachment,
    pod: &mut dyn Net,
) -> Result<Applied, ApplyError> {
    // The path of this file is on record: a kill from here on leaves no file behind for good.
    sriov.write_device_info(attachment)?;
    let index = set_up(sriov, change)?;
    failpoint::pass("add.prepared");
    // In the pod its index may be another's already: then the kernel gives it a new one.
    let moved = take_in(pod, index, ifname)?;
    let (index, mac, mtu) = moved.map_or((index, None, 0), |link| (link.index, link.mac, link.mtu));
    let pci_id = change.vf.address.to_string();
    Ok(Applied { netdev: Some(index), mac, mtu, pci_id, awaits_carrier: true, ..Applied::default() })
}

/// Sets what differs and has the VF take its MAC address over; returns the index of its netdev.
fn set_up(sriov: &SriovServices, change: &Change) -> Result<u32, CniError> {
    let vf = &change.vf;
    let told = |e: NetError| errors::kernel("", &format!("setting up VF {}", vf.address), &e);
    sriov.set_up(vf, &change.settings)?;
    let netdev = &change.netdev;
    let Some(mac) = change.mac else { return Ok(netdev.index) };
    let mut host = sriov.kernel.host().map_err(told)?;
    // A netdev that has gone meanwhile is reported by the move.
    let Some(link) = host.link_by_index(netdev.index).map_err(told)? else { return Ok(netdev.index) };
    // Taking the address over may bind the VF anew, so it is done only where the address differs.
    if link.mac == Some(mac) {
        return Ok(link.index);
    }
    let link = sriov.kernel_vf(vf).take_over(host.as_mut(), &link, mac).map_err(told)?;
    // The driver was bound anew: what it has made looks like a new netdev.
    // It stays down here: the move sets it up.
    let look = Look { up: None, ..netdev.was.look() };
    let index = link.index;
    vf_netdev::restore_look(host.as_mut(), vf.address, link, &look, NAMED, |_, _| Ok(())).map_err(told)?;
    Ok(index)
}

/// Moves a netdev of the host into the pod under the pod's name for it, and sets it up; returns what it is there. All
/// in one message: each waits for the kernel's lock for links, which every other call at work wants too. Under a driver that
/// is still resetting the VF it comes up later.
fn take_in(pod: &mut dyn Net, index: u32, ifname: &str) -> Result<Option<Link>, NetError> {
    match pod.batch(&[Op::TakeFromHost { index, as_index: None, name: ifname.to_owned(), up: true }]) {
        Err(e) if is_resetting(&e) => {
            // Where only the last step was refused, the netdev is here already, under its new name and down.
            let Some(link) = pod.link_by_name(ifname)? else { return Err(e) };
            let up = Op::SetLink(SetLink { index: link.index, up: Some(true), ..SetLink::default() });
            patiently(Instant::now() + SETTLES, || pod.batch(std::slice::from_ref(&up)))?;
        }
        done => done?,
    }
    pod.link_by_name(ifname)
}
