//! A made link on its way out: it is deleted, and nothing of it is left.

use fairlead_host::{Link, Net, NetError, Op};

use crate::engine::kinds::Kinds;
use crate::engine::netdev::gone_is_fine;
use crate::engine::recorded_netns::Reach;
use crate::store::{Attachment, LinkRecord};

/// Whether a link of its namespace is the attachment's own: an index that we chose at random among 2³⁰, and the kind, leave no doubt.
/// Name, alias and MAC address are the pod's to change, and say nothing.
pub(crate) fn is_made_here(attachment: &Attachment, link: &Link) -> bool {
    let LinkRecord::Made { index, kind, .. } = &attachment.link else { return false };
    link.index == *index && link.kind.name() == kind.name()
}

/// The attachment's link in its namespace.
pub(crate) fn find(attachment: &Attachment, index: u32, pod: &mut dyn Net) -> Result<Option<Link>, NetError> {
    Ok(pod.link_by_index(index)?.filter(|link| is_made_here(attachment, link)))
}

/// The links of this kind in the pod's namespace that stand on a link of the host, but for those that are known.
pub(crate) fn renumbered(kind: &str, known: &[u32], pod: &mut dyn Net) -> Result<Vec<u32>, NetError> {
    let Some(host) = pod.nsid_of_host()? else { return Ok(Vec::new()) };
    let is_like_it = |link: &Link| link.kind.name() == kind && link.parent_nsid == Some(host);
    let links = pod.links()?.into_iter().filter(is_like_it).map(|link| link.index);
    Ok(links.filter(|index| !known.contains(index)).collect())
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
        // The number may be the next namespace's by now: that has no such link.
        Reach::ByNumber(nsid) => match kinds.kernel.link_at(nsid, index)? {
            Some(link) if is_made_here(attachment, &link) => kinds.kernel.delete_at(nsid, index),
            _ => Ok(()),
        },
        // A made link dies with its namespace. Without a path and a number there is no way to it.
        Reach::Dead | Reach::Unknown => Ok(()),
    }
}
