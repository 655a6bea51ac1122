//! Whether a VF under vfio-pci still is what its pod was given.

use fairlead_cni::CniError;
use fairlead_host::Mac;
use fairlead_sriov::{InventoryError, VFIO_PCI};

use crate::engine::errors;
use crate::engine::kinds::Checked;
use crate::engine::kinds::sriov::{Sriov, SriovServices, unusable};
use crate::store::VfRecord;

/// CHECK: that it is the VF on record, its driver, MAC address and settings. `answered`: the MAC address that ADD answered, empty for
/// none.
pub(crate) fn check(
    sriov: &SriovServices,
    wanted: &Sriov,
    recorded: Option<&VfRecord>,
    answered: &str,
) -> Result<Checked, CniError> {
    let address = wanted.address()?;
    let device = match sriov.inventory.vf_with_inode(address, recorded.and_then(|vf| vf.inode)) {
        Err(another @ InventoryError::MadeAgain(_)) => return Ok(Checked::Changed(another.to_string())),
        found => found.map_err(|e| unusable(&e))?,
    };
    match device.driver.as_deref() {
        Some(VFIO_PCI) => {}
        other => {
            let other = other.unwrap_or("no driver");
            let reason = format!("its VF {address} is bound to {other} instead of {VFIO_PCI}");
            return Ok(Checked::Changed(reason));
        }
    }
    // Reading the settings takes long, and nothing of them would be compared.
    if wanted.profile.is_empty() && answered.is_empty() {
        return Ok(Checked::Whole);
    }
    let now = sriov.admin.settings(&device).map_err(|e| errors::setting(&e))?;
    let answered: Option<Mac> = answered.parse().ok();
    if let (Some(answered), Some(mac)) = (answered, now.mac.filter(|mac| Some(*mac) != answered)) {
        let reason = format!("the MAC address of its VF {address} is {mac} instead of {answered}");
        return Ok(Checked::Changed(reason));
    }
    Ok(wanted.check_settings(&now).map_or_else(Checked::Changed, |()| Checked::Whole))
}
