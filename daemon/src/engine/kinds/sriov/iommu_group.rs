//! The IOMMU group of a VF under vfio-pci: whether a process could have it, whether one has it, and that no two pods get it.

use std::time::Instant;

use fairlead_cni::{CniError, Code};
use fairlead_host::{IommuGroup, NetError};
use fairlead_sriov::pools::ReadyVf;
use fairlead_sriov::{UnfitForVfio, VFIO_PCI, VfDevice, fit_for_vfio};

use super::reserve::{reserve_alone, unusable, vf_not_to_be_had};
use super::services::SriovServices;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::errors;
use crate::engine::keyed_locks::KeyedLock;
use crate::engine::kinds::HolderRemovals;
use crate::store::{Attachment, LinkRecord, VfRecord};

impl SriovServices {
    /// Refuses a VF that no process could have: what stands in the way is reported before anything is changed.
    pub(super) fn must_be_fit(&self, device: &VfDevice, ready: Option<&ReadyVf>) -> Result<(), CniError> {
        match fit_for_vfio(&self.inventory, device, |group| self.kernel.iommu_group(group)) {
            // It is ready without an IOMMU only where its pool allows that.
            Err(UnfitForVfio::NoIommu { .. }) if ready.is_some() => Ok(()),
            fit => fit.map(|_| ()).map_err(|e| unfit(&e)),
        }
    }

    /// Refuses while a process has the VF of an attachment: whoever has no caller who waits looks once.
    pub(crate) fn must_be_unused(&self, attachment: &Attachment, vf: &VfRecord) -> Result<(), CniError> {
        match self.inventory.vf_with_inode(vf.address, vf.inode) {
            Ok(device) if device.driver.as_deref() == Some(VFIO_PCI) => {
                self.process_with(attachment, &device)?.map_or(Ok(()), Err)
            }
            // Whatever became of it, the removal reports it.
            _ => Ok(()),
        }
    }

    /// The error where a process has the VF's group.
    pub(crate) fn process_with(
        &self,
        attachment: &Attachment,
        device: &VfDevice,
    ) -> Result<Option<CniError>, CniError> {
        let Some(group) = device.iommu_group else { return Ok(None) };
        let told = |e: NetError| errors::kernel(&attachment.key.network, "looking whether it is in use", &e);
        if self.kernel.iommu_group(group).map_err(told)? != IommuGroup::InUse {
            return Ok(None);
        }
        let in_use = unfit(&UnfitForVfio::InUse { vf: device.address, group });
        Ok(Some(in_use.with("end the process; what it was set up with is given back after that")))
    }

    /// Keeps every other pod from the IOMMU group of a VF: no two have VFs of one.
    pub(super) fn reserve_group(
        &self,
        removals: &dyn HolderRemovals,
        request: &AttachmentRequest<'_>,
        device: &VfDevice,
        limit: Instant,
    ) -> Result<Option<KeyedLock<'_>>, CniError> {
        let Some(group) = device.iommu_group else { return Ok(None) };
        let another = |a: &Attachment| {
            // One pod may have several VFs of a group, because it gets the group as a whole.
            a.key.container != request.key.container
                && matches!(a.link, LinkRecord::Vfio(_))
                && a.vf().is_some_and(|vf| vf.iommu_group == Some(group))
        };
        let name = format!("IOMMU group {group}");
        let refused = |why: &str| vf_not_to_be_had(device.address, &format!("of its {name}, {why}"));
        reserve_alone(self, removals, &name, &another, limit, refused).map(Some)
    }
}

/// Why a VF cannot be driven by a process, and the remedy.
fn unfit(error: &UnfitForVfio) -> CniError {
    let told = |code, remedy| CniError::new(code, error.to_string()).with(remedy);
    match error {
        UnfitForVfio::Unprotected(_) => told(
            Code::InvalidConfig,
            "switch the machine's IOMMU on (in its firmware, and intel_iommu=on or amd_iommu=on), or bind the VF to its kernel driver",
        ),
        UnfitForVfio::NoIommu { .. } => told(
            Code::InvalidConfig,
            "switch the machine's IOMMU on, or have a pool give it out that says allowNoIommu: true",
        ),
        UnfitForVfio::Shared { .. } => told(
            Code::InvalidConfig,
            "bind the other device to vfio-pci or to no driver: a group goes to one pod as a whole",
        ),
        UnfitForVfio::InUse { .. } => {
            told(Code::TryAgain, "a VF is one pod's at a time: end the process, or take another VF")
        }
        UnfitForVfio::NoNode { .. } => {
            told(Code::Io, "the daemon must see the host's /dev: in a container, below --host-root")
        }
        UnfitForVfio::Unread(error) => unusable(error),
        UnfitForVfio::Untried(error) => errors::kernel("", "looking whether the VF is in use", error),
    }
}
