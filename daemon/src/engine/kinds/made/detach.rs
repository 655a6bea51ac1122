//! A made link on its way out: it is deleted, and nothing of it is left.

use fairlead_host::{Link, Net, NetError, Op};

use crate::engine::kinds::Kinds;
use crate::engine::netdev::gone_is_fine;
use crate::engine::recorded_netns::Reach;
use crate::store::{Attachment, LinkRecord};

/// Whether a link inside the right namespace is the attachment's own. With a cookie the namespace is certain, and an
/// index that we chose plus the kind leaves no doubt, whatever MAC address the pod has given it since; without one
/// the MAC address must agree too.
fn is_made_here(attachment: &Attachment, link: &Link, certain: bool) -> bool {
    let LinkRecord::Made { index, kind, mac } = &attachment.link else { return false };
    let same = link.index == *index && link.kind.name() == kind.name();
    same && (certain || *mac == link.mac || link.name == attachment.parked_name())
}

/// The attachment's link in its namespace.
pub(crate) fn find(attachment: &Attachment, index: u32, pod: &mut dyn Net) -> Result<Option<Link>, NetError> {
    let certain = attachment.netns.id.cookie.is_some();
    Ok(pod.link_by_index(index)?.filter(|link| is_made_here(attachment, link, certain)))
}

/// Deletes the link, unless its namespace has taken it along. Waits for the kernel: 16–30 ms.
pub(crate) fn undo(
    kinds: &Kinds,
    attachment: &Attachment,
    index: u32,
    reach: Reach<'_>,
) -> Result<(), NetError> {
    match reach {
        Reach::Inside(mut pod) => match find(attachment, index, pod.as_mut())? {
            // Somebody else may delete it between the look and this.
            Some(link) => gone_is_fine(pod.batch(&[Op::DeleteLink(link.index)])),
            None => Ok(()),
        },
        // The number may be the next namespace's by now, so here the MAC address or the parked name must agree too.
        Reach::ByNumber(nsid) => match kinds.kernel.link_at(nsid, index)? {
            Some(link) if is_made_here(attachment, &link, false) => kinds.kernel.delete_at(nsid, index),
            _ => Ok(()),
        },
        // A made link dies with its namespace. Without a path and a number there is no way to it.
        Reach::Dead | Reach::Unknown => Ok(()),
    }
}
