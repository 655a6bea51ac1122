//! What a port or an uplink must not share with another attachment, and why it is refused then.
//!
//! All of it goes by the records. It is asked when an attachment is planned, and again once it is on record: of two that come at the same
//! time at least one finds the other, and both may be refused and tried again.

use std::collections::BTreeMap;
use std::path::Path;

use fairlead_cni::{CniError, Code};
use fairlead_host::{Link, Net, NetError};
use fairlead_kube::PodRef;
use fairlead_vhost::switch::PortRules;

use super::services::VhostUserServices;
use crate::engine::errors;
use crate::engine::kinds::lendable;
use crate::few_names::a_few_of;
use crate::store::{Attachment, Key, VhostUserRecord};

/// What an administrator can do about pods of both kinds on one interface.
const BESIDE: &str = "name another interface; for both kinds of pods on one wire take a veth pair, one end the uplink, the other in a bridge with the NIC, and the bridge as `master` of the other pods (docs/vhost-user.md, \"To the wire\")";

impl VhostUserServices {
    /// Refuses the host's link with this index below an interface, or as an uplink of `network`: another network's uplink takes every frame
    /// of the link that it is, and of what stands on that.
    pub(crate) fn must_get_frames(&self, index: u32, network: Option<&str>) -> Result<(), CniError> {
        let ports = self.store.with_uplink();
        let all = ports.iter().filter_map(|port| Some((port.uplink()?, &port.vhost_user()?.port.network)));
        let of_others = all.filter(|(_, of)| Some(of.as_str()) != network);
        let uplinks: BTreeMap<&str, &String> =
            of_others.map(|(uplink, of)| (uplink.interface.as_str(), of)).collect();
        if uplinks.is_empty() {
            return Ok(());
        }
        let told = |e: NetError| errors::kernel("", "looking at what an interface stands on", &e);
        let mut host = self.kernel.host().map_err(told)?;
        let down = lendable::down_from(host.as_mut(), index).map_err(told)?;
        for lower in &down {
            if let Some(of) = uplinks.get(lower.name.as_str()) {
                let which = match down.first() {
                    Some(link) if link.index != lower.index => {
                        format!("{:?} stands on {:?},", link.name, lower.name)
                    }
                    _ => format!("{:?} is", lower.name),
                };
                let why = format!(
                    "interface {which} the uplink of vhost-user network {of:?}, which has it to itself"
                );
                return Err(CniError::new(Code::InvalidConfig, why).with(BESIDE));
            }
        }
        Ok(())
    }

    /// Refuses a link of the host as an uplink of `network` where other attachments would get no frames by it any more.
    pub(super) fn must_be_alone_on(
        &self,
        host: &mut dyn Net,
        link: &Link,
        network: &str,
    ) -> Result<(), CniError> {
        self.must_get_frames(link.index, Some(network))?;
        let is_of_network = |a: &Attachment| a.vhost_user().is_some_and(|of| of.port.network == network);
        let holders = match self.holds_any(is_of_network) {
            true => self.holders_on(&lendable::stack_on(host, link)?, is_of_network),
            false => Vec::new(),
        };
        if holders.is_empty() {
            return Ok(());
        }
        let msg = format!(
            "master {:?}: an uplink takes all of its frames, and these stand on it: {}",
            link.name,
            a_few_of(&holders)
        );
        Err(CniError::new(Code::InvalidConfig, msg).with(BESIDE))
    }

    /// Whether frames of any attachment go by a link of the host, but for what `is_own`, and for what is ending: where none do, nobody has to
    /// wait for the list of the host's links.
    pub(crate) fn holds_any(&self, is_own: impl Fn(&Attachment) -> bool) -> bool {
        let holds = |a: &Attachment| {
            let is_holder = a.parent().is_some() || a.uplink().is_some();
            (is_holder && !a.is_ending() && !is_own(a)).then_some(())
        };
        !self.store.filter_map(holds).is_empty()
    }

    /// Whose frames go by a link of the host and what stands on it: those of links of ours, and of uplinks; but for what
    /// `is_own`, and for what is ending.
    pub(crate) fn holders_on(&self, stack: &[Link], is_own: impl Fn(&Attachment) -> bool) -> Vec<String> {
        let needs_it = |a: &Attachment| {
            let is_below = |l: &Link| {
                a.parent() == Some(l.index) || a.uplink().is_some_and(|uplink| uplink.interface == l.name)
            };
            let is_holder = !a.is_ending() && !is_own(a) && stack.iter().any(is_below);
            is_holder.then(|| a.holder())
        };
        self.store.filter_map(needs_it)
    }

    /// Refuses a port that has the MAC address or the socket of another attachment, but for that of the same pod's other sandbox.
    pub(super) fn must_clash_with_none(
        &self,
        record: &VhostUserRecord,
        key: &Key,
        pod: Option<&PodRef>,
    ) -> Result<(), CniError> {
        let clash = |other: &Attachment| {
            let is_other = other.key != *key && !other.is_ending() && !is_other_sandbox(other, key, pod);
            let theirs = other.vhost_user().filter(|_| is_other)?;
            if has_socket_of(record, theirs) {
                let msg = format!("the socket {} is that of {}", record.host_path(), other.holder());
                return Some(CniError::new(Code::TryAgain, msg).with(
                    "give each its own \"socketfile\", or leave that out; else it is free with the DEL of the one that has it",
                ));
            }
            has_address_of(record, theirs).then(|| {
                let (mac, network) = (record.port.mac, &record.port.network);
                let msg =
                    format!("MAC address {mac} in network {network:?} is that of {}", other.holder());
                CniError::new(Code::TryAgain, msg).with(
                    "give each pod its own \"mac\", or leave that out; else it is free with the DEL of the one that has it",
                )
            })
        };
        match self.store.filter_map(clash).into_iter().next() {
            Some(refused) => Err(refused),
            None => Ok(()),
        }
    }

    /// The attachment that has taken the socket of an earlier one over: that of the same pod's next sandbox.
    pub(super) fn successor(&self, attachment: &Attachment, record: &VhostUserRecord) -> Option<String> {
        let is_next = |other: &Attachment| {
            let theirs = other.vhost_user().filter(|_| other.id > attachment.id && !other.is_ending())?;
            has_socket_of(record, theirs).then(|| other.holder())
        };
        self.store.filter_map(is_next).pop()
    }
}

/// Whether an attachment is of the same interface of the same pod in another sandbox: kubelet may make the next one before the DEL of the
/// last one comes, and never two that stay.
fn is_other_sandbox(other: &Attachment, key: &Key, pod: Option<&PodRef>) -> bool {
    let is_known = pod.is_some_and(|pod| pod.uid.is_some()) && other.pod.as_ref() == pod;
    is_known && other.key.container != key.container && other.key.ifname == key.ifname
}

/// Whether both ports are reached by one socket.
pub(super) fn has_socket_of(one: &VhostUserRecord, other: &VhostUserRecord) -> bool {
    one.socket == other.socket && Path::new(&one.directory) == Path::new(&other.directory)
}

/// Whether both are ports of our own switch, which knows one of them by their address. OVS learns addresses.
fn has_address_of(one: &VhostUserRecord, other: &VhostUserRecord) -> bool {
    let is_own = one.ovs.is_none() && other.ovs.is_none();
    is_own && PortRules::from(&one.port).clashes_with(&PortRules::from(&other.port))
}
