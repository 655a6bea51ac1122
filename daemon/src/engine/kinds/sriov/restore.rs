//! The settings of a VF are restored, whether it has a netdev or not. From the record alone; it may be begun again at any step.

use fairlead_cni::{CniError, Code};
use fairlead_host::VfChange;
use fairlead_sriov::{InventoryError, SettingError, VfDevice, VfProfile};

use super::reserve::unusable;
use super::services::SriovServices;
use crate::engine::errors;
use crate::engine::kinds::AwaitsCarrier;
use crate::store::VfRecord;

impl SriovServices {
    /// The VF of a record; one that is gone is logged. One that was made again at its address is somebody else's by now.
    pub(crate) fn still_there(&self, vf: &VfRecord) -> Result<Option<VfDevice>, CniError> {
        match self.inventory.vf_with_inode(vf.address, vf.inode) {
            Ok(device) => Ok(Some(device)),
            Err(
                e @ (InventoryError::Absent(_)
                | InventoryError::MadeAgain(_)
                | InventoryError::Disowned { .. }
                | InventoryError::NotVirtual(_)),
            ) => {
                // Nothing is left to restore: an error would make the DEL fail for ever.
                tracing::warn!(pci = %vf.address, error = %e, "a lent VF is gone");
                Ok(None)
            }
            Err(e) => Err(unusable(&e)),
        }
    }

    /// Restores the settings on record, of a VF that has no netdev.
    pub(crate) fn undo_settings(
        &self,
        vf: &VfRecord,
        device: &VfDevice,
    ) -> Result<Option<AwaitsCarrier>, CniError> {
        let before = VfChange { mac: vf.before.mac.or(vf.pf_mac), ..vf.before.clone() };
        if before.is_empty() {
            return Ok(None);
        }
        let now = match self.admin.settings(device) {
            // ADD has changed nothing, and a pod that is over does not wait for what its process may have changed.
            Err(error @ SettingError::NoInterface { .. }) if vf.before.is_empty() => {
                tracing::warn!(pci = %vf.address, %error, "a VF keeps the MAC address that its PF has for it, whoever changed that");
                return Ok(None);
            }
            now => self.unless_its_pools(vf, now)?,
        };
        let Some(now) = now else { return Ok(None) };
        self.put_back(vf, device, &VfProfile::from(&before).plan(&now).change)
    }

    /// The outcome of a setting, where `None` leaves it to the VF's pool: what a VF of a pool does not take now it gets from that before
    /// anybody else has it (its rates when there is a carrier, all of them when it has ended resetting). No pod stays for it.
    pub(crate) fn unless_its_pools<T>(
        &self,
        vf: &VfRecord,
        done: Result<T, SettingError>,
    ) -> Result<Option<T>, CniError> {
        let passes = |e: &SettingError| {
            matches!(
                e,
                SettingError::NoCarrier { .. }
                    | SettingError::EndlessReset { .. }
                    | SettingError::NotReported { .. }
            )
        };
        match done {
            Err(error) if passes(&error) && self.pools.restores_settings(vf.address) => {
                tracing::info!(pci = %vf.address, %error, "its pool gives a VF its settings back");
                Ok(None)
            }
            other => other.map(Some).map_err(|e| errors::setting(&e)),
        }
    }

    /// Restores settings in one message. What the NIC refuses to take back is logged and passed over: nothing would be better if it
    /// were tried for ever. What it will take later is tried again, here or by the VF's pool.
    pub(crate) fn put_back(
        &self,
        vf: &VfRecord,
        device: &VfDevice,
        change: &VfChange,
    ) -> Result<Option<AwaitsCarrier>, CniError> {
        let done = match self.admin.set_what_is_taken(device, change) {
            // igb takes a rate only while the PF has a carrier, and that may take any time to come.
            Err(dark @ SettingError::NoCarrier { .. }) if !self.pools.restores_settings(vf.address) => {
                return Ok(Some(AwaitsCarrier(errors::setting(&dark))));
            }
            done => done,
        };
        let Some(refused) = self.unless_its_pools(vf, done)? else { return Ok(None) };
        for error in &refused {
            tracing::error!(pci = %vf.address, %error, "a VF cannot have a setting back as it was");
        }
        // A setting that was refused never comes into force, so there is nothing to wait for.
        if refused.is_empty()
            && let Err(error) = self.admin.settle(device, change)
        {
            tracing::warn!(pci = %vf.address, %error, "a VF's settings are not as they were");
        }
        Ok(None)
    }
}

/// A VF whose netdev is in no namespace that is known.
pub(crate) fn still_away(vf: &VfRecord) -> CniError {
    CniError::new(
        Code::TryAgain,
        format!("VF {} is in no pod of its attachment and not in the host's namespace", vf.address),
    )
    .with("it comes home when the namespace that it is in ends; if somebody has moved it, move it back")
}
