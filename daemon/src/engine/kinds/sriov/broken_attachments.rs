//! Attachments whose VF is not the pod's any more, as far as the host shows it without a look into the pod: for the operator's
//! table. CHECK looks at all of it.

use std::collections::BTreeSet;

use fairlead_sriov::InventoryError;

use super::services::SriovServices;
use crate::store::{Attachment, Phase};

/// The PCI devices that have a netdev in the host's namespace.
pub(crate) struct NetdevsAtHome(BTreeSet<String>);

impl SriovServices {
    /// Looked up once for many attachments; empty where the kernel does not say.
    pub(crate) fn netdevs_at_home(&self) -> NetdevsAtHome {
        let links = self.kernel.host().and_then(|mut host| host.links());
        // Kernels before 5.14 do not say which device a link is of: the set is empty then.
        NetdevsAtHome(links.into_iter().flatten().filter_map(|link| link.device).collect())
    }

    /// Why an attachment cannot be what its ADD has made it; `None` for one that comes or goes.
    pub(crate) fn broken(&self, attachment: &Attachment, home: &NetdevsAtHome) -> Option<String> {
        let vf = attachment.vf().filter(|_| attachment.phase == Phase::Attached)?;
        let address = vf.address;
        let device = match self.inventory.vf_with_inode(address, vf.inode) {
            Ok(device) => device,
            // What cannot be read is not called broken.
            Err(InventoryError::Io { .. }) => return None,
            Err(gone) => return Some(gone.to_string()),
        };
        match device.driver {
            Some(driver) if driver != vf.driver => {
                Some(format!("its VF {address} is bound to {driver} instead of {}", vf.driver))
            }
            None => Some(format!("its VF {address} has no driver")),
            Some(_) if home.0.contains(&address.to_string()) => {
                Some(format!("the interface of its VF {address} is in the host's namespace"))
            }
            Some(_) => None,
        }
    }
}
