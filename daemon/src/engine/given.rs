//! VFs that vfio-pci has: the pod's process drives one by its IOMMU group's node, which is not ours to put into
//! the pod. Here it is seen to that nobody else has the group, and what was set for the pod is given back.
//!
//! The group is tried before anything is changed, so that "in use" is told instead of done to a running pod; the settings are
//! given back only when no process has it any more: until then it stays on its VLAN. Nothing here binds or resets a device.

use std::thread::sleep;
use std::time::Instant;

use fairlead_cni::config::NetConf;
use fairlead_cni::wire::Request;
use fairlead_cni::{CniError, Code};
use fairlead_host::{IommuGroup, Mac, NetError};
use fairlead_sriov::interface::APPEARS;
use fairlead_sriov::{VfDevice, UnfitForVfio, VFIO_PCI, fit_for_vfio};

use super::claims::Claim;
use super::vfs::{self, LOOK};
use super::homecoming::Waits;
use super::job::{self, Job};
use super::{Engine, errors, failpoint};
use crate::networks::sriov::{AtHome, Sriov};
use crate::pools::Known;
use crate::store::{Attachment, LentVf, LinkRecord};

impl Engine {
    /// Refuses a VF that no process could have: what stands in the way is told before anything is changed.
    pub(super) fn must_be_fit(&self, vf: &VfDevice, ready: Option<&Known>) -> Result<(), CniError> {
        match fit_for_vfio(&self.inventory, vf, |group| self.kernel.iommu_group(group)) {
            // It is ready without an IOMMU only where its pool allows that.
            Err(UnfitForVfio::NoIommu { .. }) if ready.is_some() => Ok(()),
            fit => fit.map(|_| ()).map_err(|e| unfit(&e)),
        }
    }

    /// The VF as it is. Without an interface nothing but its settings tells its MAC address: they are read even where
    /// none is wanted, unless its pool has it ready and knows them.
    pub(super) fn ready_to_give(
        &self,
        wanted: &Sriov,
        vf: VfDevice,
        ready: Option<&Known>,
    ) -> Result<AtHome, CniError> {
        let read = ready.map_or_else(|| self.admin.settings(&vf), |known| Ok(known.settings.clone()));
        let settings = match read {
            Ok(settings) => Some(settings),
            Err(error) if wanted.profile.is_empty() => {
                tracing::warn!(pci = %vf.address, %error, "a VF's MAC address cannot be told");
                None
            }
            Err(error) => return Err(errors::setting(&error)),
        };
        Ok(AtHome { vf, driver: VFIO_PCI.to_owned(), settings })
    }

    /// Whether the pod has this VF by vfio: as it is on record, or else by its driver.
    pub(super) fn is_given(&self, job: &Job, wanted: &Sriov) -> Result<bool, CniError> {
        match self.store.find(&job.key) {
            Some(attachment) => Ok(matches!(attachment.link, LinkRecord::Given(_))),
            None => {
                let vf = self.inventory.vf(wanted.address()?);
                vf.map(|f| f.driver.as_deref() == Some(VFIO_PCI)).map_err(|e| vfs::unusable(&e))
            }
        }
    }

    /// Whether the attachment of a call is a VF that has an interface in its pod. The DEL of one that was given waits for
    /// the process that has it; one that is not on record may be sriov-cni's, to be brought home before the answer.
    pub(super) fn is_lent(&self, conf: &NetConf, request: &Request) -> bool {
        let attachment = self.store.find(&job::key(request, conf));
        attachment.is_some_and(|attachment| matches!(attachment.link, LinkRecord::Moved(_)))
    }

    /// Whether it still is what the pod was given; the reason why it is not. `told`: the MAC address that ADD answered.
    pub(super) fn check_given(&self, wanted: &Sriov, told: &str) -> Result<Option<String>, CniError> {
        let vf = self.inventory.vf(wanted.address()?).map_err(|e| vfs::unusable(&e))?;
        let address = vf.address;
        match vf.driver.as_deref() {
            Some(VFIO_PCI) => {}
            other => {
                let other = other.unwrap_or("no driver");
                return Ok(Some(format!("its VF {address} is bound to {other} instead of {VFIO_PCI}")));
            }
        }
        if wanted.profile.is_empty() && told.is_empty() {
            return Ok(None);
        }
        let now = self.admin.settings(&vf).map_err(|e| errors::setting(&e))?;
        let told: Option<Mac> = told.parse().ok();
        if let (Some(told), Some(mac)) = (told, now.mac.filter(|mac| Some(*mac) != told)) {
            return Ok(Some(format!("the MAC address of its VF {address} is {mac} instead of {told}")));
        }
        Ok(wanted.check_settings(&now).err())
    }

    /// Gives a VF back that the pod drove: its settings, when no process has it any more. From the record alone; it may
    /// be begun again at any step.
    pub(super) fn take_back_given(
        &self,
        attachment: &Attachment,
        vf: &LentVf,
    ) -> Result<Option<Waits>, CniError> {
        failpoint::pass("del.home");
        let Some(vf) = self.still_there(vf)? else { return Ok(None) };
        match vf.driver.as_deref() {
            Some(VFIO_PCI) => self.await_its_end(attachment, &vf)?,
            driver => tracing::warn!(pci = %vf.address, ?driver,
                "a VF that a pod had by vfio has another driver now: it gets its settings back, and keeps that"),
        }
        self.undo_settings(vf, &vf)
    }

    /// A process that was killed has the group until the kernel has taken its memory apart.
    fn await_its_end(&self, attachment: &Attachment, vf: &VfDevice) -> Result<(), CniError> {
        let until = Instant::now() + APPEARS;
        while let Some(in_use) = self.process_with(attachment, vf)? {
            if Instant::now() >= until {
                return Err(in_use);
            }
            sleep(LOOK);
        }
        Ok(())
    }

    /// Refuses while a process has the VF of an attachment: whoever has no caller who waits looks once.
    pub(super) fn must_be_let_go(&self, attachment: &Attachment) -> Result<(), CniError> {
        let LinkRecord::Given(vf) = &attachment.link else { return Ok(()) };
        match self.inventory.vf(vf.address) {
            Ok(vf) if vf.driver.as_deref() == Some(VFIO_PCI) => {
                self.process_with(attachment, &vf)?.map_or(Ok(()), Err)
            }
            // Whatever became of it, the removal tells.
            _ => Ok(()),
        }
    }

    /// What is told where a process has the VF's group.
    pub(super) fn process_with(
        &self,
        attachment: &Attachment,
        vf: &VfDevice,
    ) -> Result<Option<CniError>, CniError> {
        let Some(group) = vf.iommu_group else { return Ok(None) };
        let told = |e: NetError| errors::kernel(&attachment.key.network, "looking whether it is in use", &e);
        if self.kernel.iommu_group(group).map_err(told)? != IommuGroup::InUse {
            return Ok(None);
        }
        let in_use = unfit(&UnfitForVfio::InUse { vf: vf.address, group });
        Ok(Some(in_use.with("end the process; what it was set up with is given back after that")))
    }

    /// Keeps every other pod from the IOMMU group of a VF: no two have VFs of one.
    pub(super) fn reserve_group(
        &self,
        job: &Job,
        vf: &VfDevice,
        limit: Instant,
    ) -> Result<Option<Claim<'_>>, CniError> {
        let Some(group) = vf.iommu_group else { return Ok(None) };
        let another = |a: &Attachment| {
            a.key.container != job.key.container
                && matches!(a.link, LinkRecord::Given(_))
                && a.vf().is_some_and(|f| f.iommu_group == Some(group))
        };
        let name = format!("IOMMU group {group}");
        let refused = |why: &str| vfs::lent(vf.address, &format!("of its {name}, {why}"));
        self.reserve_alone(&name, &another, limit, refused).map(Some)
    }
}

/// What a caller is told of a VF that cannot be given.
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
        UnfitForVfio::InUse { .. } => told(
            Code::TryAgain,
            "a VF is one pod's at a time: end the process, or take another VF",
        ),
        UnfitForVfio::NoNode { .. } => {
            told(Code::Io, "the daemon must see the host's /dev: in a container, below --host-root")
        }
        UnfitForVfio::Unread(error) => vfs::unusable(error),
        UnfitForVfio::Untried(error) => errors::kernel("", "looking whether the VF is in use", error),
    }
}
