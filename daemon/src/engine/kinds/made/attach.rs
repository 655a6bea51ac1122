//! A made link on its way into the pod: what it will be, and the one message that makes it.

use fairlead_cni::CniError;
use fairlead_host::{Mac, Net, NewLink, Op};
use nix::errno::Errno;

use super::config::Made;
use super::dummy::Dummy;
use super::link_inputs::Facts;
use super::parent;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::kinds::{Applied, ApplyError, Kinds, Owners, Plan, Work, name_taken};
use crate::engine::netdev;
use crate::store::LinkRecord;

/// A link that is about to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewMade {
    /// As the kernel is asked for it.
    pub(super) link: NewLink,
    /// The MAC address that it has in the end, where it is known before.
    pub(super) mac: Option<Mac>,
}

impl Made {
    /// Looks for the parent, and says which link is to be made.
    pub(crate) fn plan(
        &self,
        kinds: &Kinds,
        request: &AttachmentRequest<'_>,
        pod: &mut dyn Net,
    ) -> Result<Plan, CniError> {
        let parent =
            self.parent().map(|parent| parent::parent(kinds.kernel.as_ref(), pod, &parent)).transpose()?;
        let facts = Facts {
            ifname: &request.key.ifname,
            parent: parent.as_ref(),
            // We choose the index, so that it is on record before the link is made: after a kill the link is known by it.
            index: kinds.ids.index(),
            mac: Mac::local(kinds.ids.next()),
        };
        let (link, mac) = self.link(&facts)?;
        let record = LinkRecord::Made { index: link.index.unwrap_or_default(), kind: link.kind.clone(), mac };
        Ok(Plan { record, work: Work::Made(NewMade { link, mac }) })
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

/// Makes the link, from the host's side straight into the pod's namespace.
pub(crate) fn apply(
    owners: &dyn Owners,
    request: &AttachmentRequest<'_>,
    new: &NewMade,
    pod: &mut dyn Net,
) -> Result<Applied, ApplyError> {
    let make = |pod: &mut dyn Net| pod.batch(&[Op::CreateLink(new.link.clone())]);
    let mut made = make(pod);
    // A link that was answered as gone may still hold the MAC address on the same parent.
    if made.as_ref().is_err_and(|e| e.errno() == Some(Errno::EADDRINUSE)) && hurry_mac(owners, new.mac) {
        made = make(pod);
    }
    match made {
        Err(e) if e.errno() == Some(Errno::EEXIST) => return Err(name_taken(request).into()),
        other => other?,
    }
    let index = new.link.index.unwrap_or_default();
    Ok(Applied { netdev: Some(index), mac: netdev::mac_of(pod, index, new.mac)?, ..Applied::default() })
}

/// Finishes a removal that still holds this MAC address.
fn hurry_mac(owners: &dyn Owners, wanted: Option<Mac>) -> bool {
    owners.hurry(&|a| matches!(&a.link, LinkRecord::Made { mac, .. } if *mac == wanted && mac.is_some()))
}
