//! A made link on its way into the pod: what it will be, and the one message that makes it.

use fairlead_cni::{CniError, Code};
use fairlead_host::{Kind, Mac, MacvlanMode, Net, NetError, NewLink, Op, Parent};
use nix::errno::Errno;

use super::config::Made;
use super::dummy::Dummy;
use super::link_inputs::Facts;
use super::macvlan::Macvlan;
use super::parent;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::kinds::{
    Applied, ApplyError, HolderRemovals, Kinds, NotAttached, Plan, Reservation, Work, lendable, name_taken,
};
use crate::engine::{errors, netdev};
use crate::store::{Attachment, LinkRecord, Store};

/// The MTU of a link that stands on no other, in bytes.
const ETHERNET_MTU: u32 = 1500;

/// A link that is about to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewMade {
    /// As the kernel is asked for it.
    pub(super) link: NewLink,
    /// The MAC address that it has in the end, where it is known before.
    pub(super) mac: Option<Mac>,
    /// The index of the host's link that it stands on, if it stands on one.
    pub(super) parent: Option<u32>,
}

impl Made {
    /// Reserves the parent, where the new link takes that over: it must be one that could be lent. Of several masters it is said here
    /// which: kubelet may have to be asked.
    pub(crate) fn reserve<'k>(
        &self,
        kinds: &'k Kinds,
        removals: &dyn HolderRemovals,
        request: &AttachmentRequest<'_>,
    ) -> Result<Reservation<'k>, NotAttached> {
        match self.parent_taken_over() {
            Some(parent) => lendable::reserve(kinds, removals, request, |host| {
                parent::nearest(&kinds.sriov, request, host, &parent).map(|(link, _)| link)
            }),
            None => self.choose_parent(kinds, request),
        }
    }

    fn choose_parent<'k>(
        &self,
        kinds: &'k Kinds,
        request: &AttachmentRequest<'_>,
    ) -> Result<Reservation<'k>, NotAttached> {
        let several = self.parent().filter(|parent| parent.names.len() > 1);
        let Some(parent) = several else { return Ok(Reservation::Nothing) };
        let told = |e: NetError| errors::kernel(&request.key.network, "looking for the master interface", &e);
        let mut host = kinds.kernel.host().map_err(told)?;
        let (link, locality) = parent::nearest(&kinds.sriov, request, host.as_mut(), &parent)?;
        Ok(Reservation::Parent { link, locality })
    }

    /// Looks for the parent, and says which link is to be made.
    pub(crate) fn plan(
        &self,
        kinds: &Kinds,
        request: &AttachmentRequest<'_>,
        reservation: &Reservation<'_>,
        pod: &mut dyn Net,
    ) -> Result<Plan, CniError> {
        let parent = match reservation {
            // Looked up again it could be another one, which nobody has judged.
            Reservation::Device(taken_over) => Some(taken_over.link().clone().into()),
            Reservation::Parent { link, .. } => Some(link.clone().into()),
            Reservation::Nothing | Reservation::Vf(_) | Reservation::Port { .. } => {
                let kernel = kinds.kernel.as_ref();
                let parent = self.parent_at_add(&request.conf)?;
                parent.map(|parent| parent::shared(kernel, request, pod, &parent)).transpose()?
            }
        };
        let facts = Facts {
            ifname: &request.key.ifname,
            parent: parent.as_ref(),
            // We choose the index, so that it is on record before the link is made: after a kill the link is known by it.
            index: kinds.ids.index(),
            mac: Mac::local(kinds.ids.next()),
        };
        let (link, mac) = self.link(&facts)?;
        if let (Parent::Host(_), Some(master)) = (link.parent, &parent) {
            lendable::must_lead_to_nobody(kinds, request, master)?;
        }
        self.tell_other_mac(request, mac);
        // Without one of its own the kernel gives it the parent's, and a link without a parent that of an Ethernet.
        let mtu = link.mtu.unwrap_or_else(|| parent.as_ref().map_or(ETHERNET_MTU, |parent| parent.mtu));
        let (index, kind) = (link.index.unwrap_or_default(), link.kind.clone());
        let parent = match link.parent {
            Parent::Host(index) => Some(index),
            _ => None,
        };
        let record = LinkRecord::Made { index, kind, mac, mtu: Some(mtu), parent };
        let new = NewMade { link, mac, parent };
        new.must_get_frames(kinds)?;
        new.must_keep_mode_of_others(&kinds.sriov.store)?;
        Ok(Plan { record, work: Work::Made(new) })
    }

    /// Warns where the kernel gives the link another MAC address than the one that is asked for: it is made all the same, as with the
    /// reference plugin.
    fn tell_other_mac(&self, request: &AttachmentRequest<'_>, given: Option<Mac>) {
        let Made::Macvlan(Macvlan { mac: Some(wanted), .. }) = self else { return };
        if given != Some(*wanted) {
            tracing::warn!(container = %request.key.container, network = %request.key.network, ifname = %request.key.ifname,
                %wanted, "a macvlan in mode passthru has its master's MAC address instead of the one that is asked for");
        }
    }

    /// The link, and the MAC address that it has in the end. Pure.
    pub(super) fn link(&self, facts: &Facts<'_>) -> Result<(NewLink, Option<Mac>), CniError> {
        match self {
            Made::Macvlan(n) => n.link(facts),
            Made::Ipvlan(n) => n.link(facts),
            Made::Vlan(n) => n.link(facts),
            Made::Dummy(_) => Ok(Dummy::link(facts)),
        }
    }
}

impl NewMade {
    /// Refuses a parent whose frames a switch in user space takes.
    fn must_get_frames(&self, kinds: &Kinds) -> Result<(), CniError> {
        self.parent.map_or(Ok(()), |parent| kinds.vhost_user.must_get_frames(parent, None))
    }

    /// Refuses an ipvlan that would change the mode of others: all of a master's have the one that the last of them was made with.
    fn must_keep_mode_of_others(&self, store: &Store) -> Result<(), CniError> {
        let (Kind::Ipvlan { mode, .. }, Some(master)) = (&self.link.kind, self.parent) else { return Ok(()) };
        let changed = |other: &Attachment| match &other.link {
            LinkRecord::Made { index, kind: Kind::Ipvlan { mode: its, .. }, parent, .. } => {
                let is_beside = *parent == Some(master) && self.link.index != Some(*index);
                // One that is ending is nobody's any more.
                let is_changed = is_beside && its != mode && !other.is_ending();
                is_changed.then(|| (*its, format!("{} of network {:?}", other.holder(), other.key.network)))
            }
            _ => None,
        };
        match store.filter_map(changed).into_iter().next() {
            Some((its, holder)) => {
                let msg = format!(
                    "its mode {mode:?} would become that of all ipvlans of its master, and mode {its:?} is that of {holder}"
                );
                Err(CniError::new(Code::InvalidConfig, msg)
                    .with("give this network the same `mode`, or another `master`; or end that one first"))
            }
            None => Ok(()),
        }
    }

    /// Why the kernel calls it invalid, where that is for another one on its master.
    fn refused_beside(&self, store: &Store) -> Option<String> {
        let (Kind::Macvlan { mode, .. }, Some(master)) = (&self.link.kind, self.parent) else { return None };
        let is_alone = |mode: &MacvlanMode| *mode == MacvlanMode::Passthru;
        let excludes = |other: &Attachment| match &other.link {
            LinkRecord::Made { index, kind: Kind::Macvlan { mode: its, .. }, parent, .. } => {
                let one_is_alone = is_alone(mode) || is_alone(its);
                *parent == Some(master) && self.link.index != Some(*index) && one_is_alone
            }
            _ => false,
        };
        let rule = "a macvlan in mode passthru has to be its master's only one";
        let all = store.all();
        match all.iter().find(|other| excludes(other)).map(|other| &other.key) {
            Some(key) => Some(format!(
                "{rule}, and container {} has another as {:?} of network {:?}: end that one first, or take another `master`",
                key.container, key.ifname, key.network
            )),
            None if is_alone(mode) => {
                Some(format!("{rule}: `ip -d link`, on the host and in the pods, tells who has another"))
            }
            None => None,
        }
    }
}

/// Makes the link, from the host's side straight into the pod's namespace.
pub(crate) fn apply(
    kinds: &Kinds,
    removals: &dyn HolderRemovals,
    request: &AttachmentRequest<'_>,
    new: &NewMade,
    pod: &mut dyn Net,
) -> Result<Applied, ApplyError> {
    // An uplink, or another ipvlan, may have come on record since it was planned. This one is on record by now: of two that come at the
    // same time at least one finds the other.
    new.must_get_frames(kinds).map_err(ApplyError::Cni)?;
    new.must_keep_mode_of_others(&kinds.sriov.store).map_err(ApplyError::Cni)?;
    let make = |pod: &mut dyn Net| pod.batch(&[Op::CreateLink(new.link.clone())]);
    let mut made = make(pod);
    // A link that was answered as gone may still hold the MAC address on the same parent.
    if made.as_ref().is_err_and(|e| e.errno() == Some(Errno::EADDRINUSE)) && hurry_mac(removals, new.mac) {
        made = make(pod);
    }
    match made {
        Err(e) if e.errno() == Some(Errno::EEXIST) => return Err(taken(request, new, pod)?.into()),
        Err(e) if e.errno() == Some(Errno::EINVAL) => {
            return Err(match new.refused_beside(&kinds.sriov.store) {
                Some(why) => ApplyError::Explained(e, why),
                None => e.into(),
            });
        }
        other => other?,
    }
    let index = new.link.index.unwrap_or_default();
    Ok(Applied { netdev: Some(index), mac: netdev::mac_of(pod, index, new.mac)?, ..Applied::default() })
}

/// What the kernel means by EEXIST: the name in the pod, or the id of a VLAN on its master.
fn taken(request: &AttachmentRequest<'_>, new: &NewMade, pod: &mut dyn Net) -> Result<CniError, NetError> {
    let Kind::Vlan { id } = new.link.kind else { return Ok(name_taken(request)) };
    if pod.link_by_name(&request.key.ifname)?.is_some() {
        return Ok(name_taken(request));
    }
    let msg = format!("network {:?}: another interface of the master has VLAN id {id}", request.key.network);
    let remedy = "give this network another `vlanId`, or `master`; `ip -d link` on the host, and `fairleadd attachments`, tell who has it";
    Ok(CniError::new(Code::AlreadyThere, msg).with(remedy))
}

/// Finishes a removal that still holds this MAC address.
fn hurry_mac(removals: &dyn HolderRemovals, wanted: Option<Mac>) -> bool {
    removals.hurry(&|a| matches!(&a.link, LinkRecord::Made { mac, .. } if *mac == wanted && mac.is_some()))
}
