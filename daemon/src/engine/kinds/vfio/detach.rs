//! A VF under vfio-pci whose pod is over: its settings are restored when no process has it any more.

use std::thread::sleep;
use std::time::Instant;

use fairlead_cni::CniError;
use fairlead_host::failpoint;
use fairlead_sriov::vf_netdev::APPEARS;
use fairlead_sriov::{VFIO_PCI, VfDevice};

use crate::engine::kinds::AwaitsCarrier;
use crate::engine::kinds::sriov::SriovServices;
use crate::engine::netdev::POLL;
use crate::store::{Attachment, VfRecord};

/// Restores a VF that the pod drove: its settings, when no process has it any more. From the record alone; it may be begun again at
/// any step.
pub(crate) fn undo(
    sriov: &SriovServices,
    attachment: &Attachment,
    vf: &VfRecord,
) -> Result<Option<AwaitsCarrier>, CniError> {
    failpoint::pass("del.home");
    let Some(device) = sriov.still_there(vf)? else { return Ok(None) };
    match device.driver.as_deref() {
        Some(VFIO_PCI) => await_its_end(sriov, attachment, &device)?,
        driver => tracing::warn!(pci = %vf.address, ?driver,
            "a VF that a pod had by vfio has another driver now: it gets its settings back, and keeps that"),
    }
    sriov.undo_settings(vf, &device)
}

/// A process that was killed has the group until the kernel has taken its memory apart.
fn await_its_end(sriov: &SriovServices, attachment: &Attachment, device: &VfDevice) -> Result<(), CniError> {
    let until = Instant::now() + APPEARS;
    while let Some(in_use) = sriov.process_with(attachment, device)? {
        if Instant::now() >= until {
            // The attachment stays on record: the runtime's next DEL or the removal queue tries again.
            return Err(in_use);
        }
        sleep(POLL);
    }
    Ok(())
}
