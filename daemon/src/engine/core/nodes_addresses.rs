//! The addresses that the node itself has on the interface that a tenant's link stands on: no pod is given one of them.
//!
//! The kernel passes no frames between a link and its master, so no probe finds that the node has the address. The network would send the
//! node's traffic to the pod, and with an ipvlan the kernel itself gives the pod every frame for it. Only tenants' definitions are judged:
//! the administrator knows the node's addresses, and no ADD of the administrator's pays for a further request to the kernel.
//!
//! Only what the master itself has counts: a network that is kept apart may use the numbers that the node has elsewhere. The master of a
//! VLAN counts, too: which VLAN its switch takes for the untagged one is not known here.

use std::collections::BTreeSet;

use fairlead_cni::{CniError, CniResult, Code};
use fairlead_host::{Address, Kind, NetError};

use super::Core;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::errors;
use crate::store::{Attachment, IpamRecord, LinkRecord};

impl Core {
    /// What the node has on the interfaces that the link of a tenant's definition stands on. Empty for a link that is given no address, and
    /// for the administrator's.
    pub(super) fn nodes_addresses(
        &self,
        request: &AttachmentRequest<'_>,
        attachment: &Attachment,
    ) -> Result<Vec<Address>, CniError> {
        let is_given_none = attachment.ipam == IpamRecord::None && request.conf.prev_result.is_none();
        if attachment.namespace.is_none() || is_given_none {
            return Ok(Vec::new());
        }
        let masters = self.masters_in_host(attachment);
        if masters.is_empty() {
            return Ok(Vec::new());
        }
        let doing = "looking at the addresses of the master interface";
        let told = |e: NetError| errors::kernel(&request.key.network, doing, &e);
        let mut host = self.kernel().host().map_err(told)?;
        let mut found = Vec::new();
        for master in masters {
            found.extend(host.addresses(master).map_err(told)?);
        }
        Ok(found)
    }

    /// The interfaces of the host that a link stands on, by index. Of one whose master is in the pod (`linkInContainer`) they are those of
    /// all the pod's links: its record does not say on which of them it stands.
    fn masters_in_host(&self, attachment: &Attachment) -> BTreeSet<u32> {
        let of_pod = |other: &Attachment| match &other.link {
            LinkRecord::Made { parent, .. } if other.key.container == attachment.key.container => *parent,
            _ => None,
        };
        match &attachment.link {
            LinkRecord::Made { parent: Some(master), .. } => BTreeSet::from([*master]),
            LinkRecord::Made { kind, .. } if *kind != Kind::Dummy => {
                self.store.filter_map(of_pod).into_iter().collect()
            }
            _ => BTreeSet::new(),
        }
    }

    /// Refuses what an IPAM gives where the node has it: `nodes` is what [`Core::nodes_addresses`] has found.
    pub(super) fn must_be_none_of_the_nodes(
        &self,
        request: &AttachmentRequest<'_>,
        nodes: &[Address],
        result: &CniResult,
    ) -> Result<(), CniError> {
        let is_given = |own: &&Address| result.ips.iter().any(|ip| ip.address.addr() == own.net.addr());
        let Some(own) = nodes.iter().find(is_given) else { return Ok(()) };
        let link = self.kernel().host().and_then(|mut host| host.link_by_index(own.index));
        // For the text alone: where it cannot be read any more, the index has to do.
        let named = link.ok().flatten().map(|link| format!("{:?}", link.name));
        let msg = format!(
            "address {} is the node's own, on its interface {}, which this interface of the pod stands on",
            own.net.addr(),
            named.unwrap_or_else(|| own.index.to_string())
        );
        let remedy = "give the pod another address: correct `addresses` or `ranges`, what the pod asks for, or what the IPAM's program answers; or name another `master`";
        Err(CniError::new(Code::InvalidConfig, msg).with(remedy).of_network(&request.key.network))
    }
}
