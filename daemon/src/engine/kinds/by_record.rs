//! What goes by a record alone: each operation is handed to the kind that wrote the record.

use fairlead_cni::{CniError, CniResult};
use fairlead_host::{Link, Net, NetError, Nsid};
use ipnet::IpNet;
use serde_json::Value;

use super::{
    Applied, ApplyError, HolderRemovals, Kinds, Undone, Work, loopback, made, moved, vf, vfio, vhost_user,
};
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::errors;
use crate::engine::recorded_netns::Reach;
use crate::store::{Attachment, LinkRecord};

impl Kinds {
    /// Carries a plan out; what it changes is on record.
    pub(crate) fn apply(
        &self,
        removals: &dyn HolderRemovals,
        request: &AttachmentRequest<'_>,
        work: &Work,
        attachment: &Attachment,
        pod: &mut dyn Net,
    ) -> Result<Applied, ApplyError> {
        match work {
            Work::Made(new) => made::apply(self, removals, request, new, pod),
            Work::Loopback => loopback::apply(request, pod).map_err(ApplyError::Cni),
            Work::Moved(netdev) => moved::apply(self, request, netdev, pod),
            Work::Vf(change) => vf::apply(&self.sriov, &request.key.ifname, change, attachment, pod),
            Work::Vfio(change) => vfio::apply(&self.sriov, change, attachment).map_err(ApplyError::Cni),
            Work::VhostUser(new) => {
                let apply = |services: &_| vhost_user::apply(services, new, attachment);
                self.vhost_user.at_home(apply).map_err(ApplyError::Cni)
            }
            Work::Nothing => Ok(Applied::default()),
        }
    }

    /// The link of an attachment in its namespace, if it is still there.
    pub(crate) fn find(&self, attachment: &Attachment, pod: &mut dyn Net) -> Result<Option<Link>, NetError> {
        match &attachment.link {
            LinkRecord::Made { index, .. } => made::find(attachment, *index, pod),
            LinkRecord::Moved(netdev) => match &netdev.vf {
                // A VF is known by its PCI address too: its pod may have renamed the netdev.
                Some(vf) => vf::find(attachment, netdev, vf, pod),
                None => moved::find(netdev, pod),
            },
            LinkRecord::Vfio(_)
            | LinkRecord::VhostUser(_)
            | LinkRecord::Loopback
            | LinkRecord::Conflist { .. }
            | LinkRecord::None => Ok(None),
        }
    }

    /// Links of the pod that may be the attachment's, if that is not there: a pod can give it another index. Those of these indices are
    /// known to be others'.
    pub(crate) fn renumbered(
        &self,
        attachment: &Attachment,
        known: &[u32],
        pod: &mut dyn Net,
    ) -> Result<Vec<u32>, NetError> {
        match &attachment.link {
            LinkRecord::Made { index, kind, .. } if made::find(attachment, *index, pod)?.is_none() => {
                made::renumbered(kind.name(), known, pod)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// The index of the attachment's link, where the record alone says it.
    pub(crate) fn recorded_index(&self, attachment: &Attachment) -> Option<u32> {
        match &attachment.link {
            // This index is our choice. A moved netdev gets another one where its own is taken in the pod.
            LinkRecord::Made { index, .. } => Some(*index),
            LinkRecord::Moved(_)
            | LinkRecord::Vfio(_)
            | LinkRecord::VhostUser(_)
            | LinkRecord::Loopback
            | LinkRecord::Conflist { .. }
            | LinkRecord::None => None,
        }
    }

    /// Tells the pod of its interface what it is to find beside it, before the ADD is answered.
    pub(crate) fn tell_pod(&self, attachment: &Attachment, result: &CniResult) -> Result<(), CniError> {
        match &attachment.link {
            LinkRecord::VhostUser(record) => {
                let addresses: Vec<IpNet> = result.ips.iter().map(|ip| ip.address).collect();
                vhost_user::write_device_info(&self.device_info, attachment, record, &addresses)?;
                self.vhost_user
                    .at_home(|services| vhost_user::write_file(services, attachment, record, result))
            }
            _ => Ok(()),
        }
    }

    /// Takes the attachment's link down for good, or restores what it was made of. From the record alone; it may be begun again
    /// at any step. What waits for a carrier, is hidden by its pod or driven by a process is left and said.
    pub(crate) fn undo(&self, attachment: &Attachment, reach: Reach<'_>) -> Result<Undone, CniError> {
        let removing = |e: NetError| {
            let doing = format!("removing {:?}", attachment.key.ifname);
            errors::kernel(&attachment.key.network, &doing, &e)
        };
        let done = match &attachment.link {
            LinkRecord::Made { index, .. } => made::undo(self, attachment, *index, reach),
            LinkRecord::Loopback => loopback::undo(reach),
            LinkRecord::Moved(netdev) => match &netdev.vf {
                // It words its errors itself, and may leave a rate until the NIC has a carrier.
                Some(vf) => return vf::undo(self, attachment, netdev, vf, reach),
                None => return moved::undo(self, attachment, netdev, reach),
            },
            LinkRecord::Vfio(vf) => return vfio::undo(&self.sriov, attachment, vf).map(Undone::from),
            LinkRecord::VhostUser(port) => {
                let undone = self.vhost_user.at_home(|services| vhost_user::undo(services, attachment, port));
                return undone.map(|()| Undone::Whole);
            }
            LinkRecord::Conflist { .. } | LinkRecord::None => Ok(()),
        };
        done.map(|()| Undone::Whole).map_err(removing)
    }

    /// Removes what the attachment left beside its link, once that is gone.
    pub(crate) fn release(&self, attachment: &Attachment) -> Result<(), CniError> {
        self.device_info.withdraw(attachment)
    }

    /// What device information says of the link, where the record tells it: no device plugin has, and no capability is needed for it.
    pub(crate) fn known_device_info(&self, attachment: &Attachment) -> Option<Value> {
        vhost_user::device_info(attachment)
    }

    /// The MTU of the interface in the pod, in bytes, where the record tells it. A result below 1.1.0 cannot.
    pub(crate) fn recorded_mtu(&self, attachment: &Attachment) -> Option<u32> {
        match &attachment.link {
            LinkRecord::Made { mtu, .. } => *mtu,
            LinkRecord::Moved(netdev) => Some(netdev.was.mtu),
            LinkRecord::VhostUser(record) => Some(record.port.mtu.into()),
            LinkRecord::Vfio(vf) => vf.mtu,
            LinkRecord::Loopback | LinkRecord::Conflist { .. } | LinkRecord::None => None,
        }
    }

    /// Forgets the attachment by `forget`; what a pool lent for it goes back to the pool in the same step.
    pub(crate) fn forget(
        &self,
        attachment: &Attachment,
        forget: impl FnOnce() -> Result<(), CniError>,
    ) -> Result<(), CniError> {
        match attachment.pci_device() {
            // In one step, so that no look finds a VF that is neither on record nor in its pool.
            Some(address) => self.sriov.pools.take_back(address, forget),
            None => forget(),
        }
    }

    /// Refuses while a process has what the attachment's removal restores: whoever has no caller who waits looks once.
    pub(crate) fn must_be_unused(&self, attachment: &Attachment) -> Result<(), CniError> {
        match &attachment.link {
            LinkRecord::Vfio(vf) => self.sriov.must_be_unused(attachment, vf),
            _ => Ok(()),
        }
    }

    /// Whether DEL can be answered when the interface is silent, before the link is gone.
    pub(crate) fn can_be_silenced(&self, attachment: &Attachment) -> bool {
        // Only these have a netdev of ours in the pod, whose addresses and name can be taken away.
        matches!(attachment.link, LinkRecord::Made { .. } | LinkRecord::Moved(_))
    }

    /// Whether the link has to leave a namespace that lives, so that it is entered once more, and soon. Any other link is given
    /// time to die with its namespace, which costs nothing.
    pub(crate) fn leaves_the_pod(&self, attachment: &Attachment) -> bool {
        matches!(attachment.link, LinkRecord::Moved(_)) || attachment.vf().is_some()
    }

    /// Whether the link proves that the namespace that has this number now is another one than the attachment's: the kernel may
    /// have given the number to the next namespace at once. `None`: the kind has no such proof.
    pub(crate) fn is_absent_at(&self, attachment: &Attachment, nsid: Nsid) -> Option<bool> {
        match &attachment.link {
            LinkRecord::Made { index, .. } => {
                let link = self.kernel.link_at(nsid, *index);
                // An error of the kernel proves nothing, so it counts as "still there".
                Some(link.is_ok_and(|link| !link.is_some_and(|link| made::is_made_here(attachment, &link))))
            }
            _ => None,
        }
    }

    /// What of the link an attachment of an earlier boot still has to restore.
    pub(crate) fn after_reboot(&self, link: LinkRecord) -> LinkRecord {
        match link {
            // Its plugins still get their DEL: they may keep files of their own across a boot.
            list @ LinkRecord::Conflist { .. } => list,
            // What was made died with its namespace. A device was set up anew by this boot: by now it may be a port of the node's own bond,
            // and to make it what it was before would take the node's network down.
            LinkRecord::Moved(_)
            | LinkRecord::Made { .. }
            | LinkRecord::Vfio(_)
            | LinkRecord::VhostUser(_)
            | LinkRecord::Loopback
            | LinkRecord::None => LinkRecord::None,
        }
    }

    /// The link as the operator sees it: what it is, and its MAC address.
    pub(crate) fn describe(&self, attachment: &Attachment) -> (String, Option<String>) {
        match &attachment.link {
            LinkRecord::Made { kind, mac, .. } => (kind.name().to_owned(), mac.map(|m| m.to_string())),
            LinkRecord::Moved(netdev) => {
                (format!("lent {}", netdev.was.name), netdev.was.mac.map(|m| m.to_string()))
            }
            LinkRecord::Vfio(vf) => (format!("given {}", vf.address), None),
            LinkRecord::VhostUser(port) => {
                (format!("socket {}", port.host_path()), Some(port.port.mac.to_string()))
            }
            LinkRecord::Loopback => ("loopback".to_owned(), None),
            LinkRecord::Conflist { .. } => ("list".to_owned(), None),
            LinkRecord::None => ("none".to_owned(), None),
        }
    }
}
