//! A VF on which its pod has left what cannot be undone: it is nobody's before its driver was bound anew, which makes an interface with
//! nothing on it, and that was seen.
//!
//! A pool that makes its VFs anew does that itself, and shows the VF as quarantined for so long. Any other VF is bound anew here; if it is
//! not clean even then, its attachment stays on record, all else is given back, and the removal queue tries again.

use fairlead_cni::{CniError, Code};
use fairlead_host::{Link, Net, NetError};
use fairlead_sriov::{KernelVf, PciAddr};

use super::services::SriovServices;
use crate::engine::netdev::driver_state;
use crate::store::{Attachment, MovedNetdev};

/// What restoring a VF's driver state has come to.
pub(crate) enum Restored {
    /// Nothing of the pod's is left on this interface, or its pool sees to it before anybody else has the VF.
    Clean(Box<Link>),
    /// This is left, in words. The interface keeps its parked name, and stays down.
    Unclean(String),
}

impl SriovServices {
    /// Takes off what a pod has left on the interface of a VF, and restores what it has changed.
    pub(crate) fn restore_driver_state(
        &self,
        vf: KernelVf<'_>,
        host: &mut dyn Net,
        link: Link,
        netdev: &MovedNetdev,
    ) -> Result<Restored, NetError> {
        let left = driver_state::restore(host, link.index, netdev)?;
        if left.is_empty() {
            return Ok(Restored::Clean(Box::new(link)));
        }
        let left = left.join("; ");
        if self.pools.restores_settings(vf.address) {
            self.pools.soiled(vf.address, &left);
            return Ok(Restored::Clean(Box::new(link)));
        }
        tracing::warn!(pci = %vf.address, left, "a VF is bound anew, because its pod has left something on its interface");
        match vf.bound_anew(host) {
            Ok(link) => self.verify_bound_anew(vf, host, link, netdev),
            Err(error) => Ok(Restored::Unclean(format!("{left}; it cannot be bound anew: {error}"))),
        }
    }

    /// The driver was bound anew: the interface is another one, of which nothing is as it was.
    fn verify_bound_anew(
        &self,
        vf: KernelVf<'_>,
        host: &mut dyn Net,
        link: Link,
        netdev: &MovedNetdev,
    ) -> Result<Restored, NetError> {
        let link = match netdev.was.mac.filter(|mac| link.mac != Some(*mac)) {
            Some(mac) => vf.take_back(host, &link, mac)?,
            None => link,
        };
        let left = driver_state::restore(host, link.index, netdev)?;
        Ok(match left.is_empty() {
            true => Restored::Clean(Box::new(link)),
            false => Restored::Unclean(format!("{}, although it was bound anew", left.join("; "))),
        })
    }
}

/// Code 11: the VF is nobody's before what its pod has left on it is gone.
pub(crate) fn quarantined(attachment: &Attachment, address: PciAddr, left: &str) -> CniError {
    let msg =
        format!("VF {address} is quarantined: its last pod has left on it what cannot be undone: {left}");
    let (container, ifname) = (&attachment.key.container, &attachment.key.ifname);
    CniError::new(Code::TryAgain, msg).with(format!(
        "it is bound anew again and again until it is clean; make its VFs anew (sriov_numvfs), or `fairleadd forget {container} {ifname}` gives it up"
    ))
}
