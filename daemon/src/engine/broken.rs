//! Attachments whose VF is not the pod's any more, as far as the host tells without a look into the pod: for
//! the operator's table. CHECK looks at all of it.

use std::collections::BTreeSet;

use fairlead_sriov::InventoryError;

use super::Engine;
use crate::store::{Attachment, Phase};

/// The devices that have an interface in the host's namespace.
pub(super) struct AtHome(BTreeSet<String>);

impl Engine {
    /// Asked once for many attachments; nothing where the kernel does not tell.
    pub(super) fn devices_at_home(&self) -> AtHome {
        let links = self.kernel.host().and_then(|mut host| host.links());
        AtHome(links.into_iter().flatten().filter_map(|link| link.device).collect())
    }

    /// Why an attachment cannot be what its ADD has made it; `None` for one that comes or goes.
    pub(super) fn broken(&self, attachment: &Attachment, home: &AtHome) -> Option<String> {
        let vf = attachment.vf().filter(|_| attachment.phase == Phase::Attached)?;
        let address = vf.address;
        let vf = match self.inventory.vf(address) {
            Ok(vf) => vf,
            Err(InventoryError::Io { .. }) => return None,
            Err(gone) => return Some(gone.to_string()),
        };
        match vf.driver {
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
