//! Whether a member is what its pool wants: its driver, its settings, its interface or its IOMMU group. Looks only, changes
//! nothing.

use fairlead_host::Vf;

use super::per_scan_cache::ScanCache;
use super::provision_error::ProvisionError;
use super::provisioner::Provisioner;
use super::records::{OriginalState, Record};
use super::target::{DesiredState, ReadyVf};
use crate::VFIO_PCI;
use crate::vf_netdev::Look;
use crate::{PciAddr, UnfitForVfio, VfDevice, fit_for_vfio};

impl Provisioner {
    /// Compares a member with what its pool wants; answers what is known of it when it is ready. `settings` are those of all VFs
    /// of its PF, read once for all.
    pub(super) fn compare(
        &self,
        vf: &VfDevice,
        desired: &DesiredState,
        settings: &[Vf],
        cache: &ScanCache<'_>,
    ) -> Result<ReadyVf, ProvisionError> {
        self.may_be_had(vf, desired, cache)?;
        self.compare_with_record(&self.record(vf.address)?, vf, desired, settings, cache)
    }

    fn compare_with_record(
        &self,
        record: &Record,
        vf: &VfDevice,
        desired: &DesiredState,
        settings: &[Vf],
        cache: &ScanCache<'_>,
    ) -> Result<ReadyVf, ProvisionError> {
        let original = record.original_in(&self.boot_id);
        let original =
            original.ok_or_else(|| ProvisionError::Changed("it was not adopted in this boot".to_owned()))?;
        let driver = desired.driver(original);
        if vf.driver.as_deref() != Some(driver) {
            // Somebody else may be binding it just now. It is left alone then, unless we have unbound it.
            if vf.driver.is_none() && desired.is_bound_by_others() {
                self.owner_is_done(vf, desired, original)?;
            }
            let now = vf.driver.as_deref().unwrap_or("no driver");
            return Err(ProvisionError::Changed(format!("it has {now} instead of {driver}")));
        }
        let settings = settings.iter().find(|known| known.index == vf.index).cloned();
        let settings = settings.ok_or_else(|| {
            let physical = vf.physical.address;
            ProvisionError::Changed(format!("{physical} does not tell its settings: it is being reset"))
        })?;
        let plan = desired.settings(record, original).plan(&settings);
        if !plan.change.is_empty() {
            return Err(ProvisionError::Changed(format!(
                "somebody has set {} instead of {}",
                plan.undo.describe(),
                plan.change.describe()
            )));
        }
        let known = ReadyVf { vf: vf.clone(), driver: driver.to_owned(), settings };
        self.verify(record, desired, &known, cache)?;
        match desired.keeps_rdma && driver != VFIO_PCI && self.has_lost_rdma(original, vf)? {
            true => Err(ProvisionError::Changed("it has its RDMA device no more".to_owned())),
            false => Ok(known),
        }
    }

    /// What is known of a member that is what its pool wants but for what whoever binds it has set since; with the MTU of its interface.
    /// The record stays as it is.
    pub(super) fn compare_with_owners_changes(
        &self,
        address: PciAddr,
        desired: &DesiredState,
    ) -> Result<(Option<u32>, ReadyVf), ProvisionError> {
        let (vf, cache) = (self.inventory.vf(address)?, self.cache());
        self.may_be_had(&vf, desired, &cache)?;
        let mut record = self.record(address)?;
        let changed = || ProvisionError::Changed("nothing is known of how it was".to_owned());
        let original = record.original.as_mut().ok_or_else(changed)?;
        let all = self.admin.all(&vf)?;
        let settings = all.iter().find(|known| known.index == vf.index).ok_or_else(changed)?;
        let mtu = self.interface(&vf)?.map(|link| link.mtu);
        desired.take_over(original, mtu, settings);
        let known = self.compare_with_record(&record, &vf, desired, &all, &cache)?;
        Ok((mtu, known))
    }

    /// Looks at everything that makes a member fit for a pod, beyond its settings.
    pub(super) fn verify(
        &self,
        record: &Record,
        desired: &DesiredState,
        known: &ReadyVf,
        cache: &ScanCache<'_>,
    ) -> Result<(), ProvisionError> {
        let vf = &known.vf;
        if !cache.answers(vf.address)? {
            return Err(ProvisionError::Unfit("its configuration space does not answer".to_owned()));
        }
        if known.driver == VFIO_PCI {
            return self.verify_group(vf, desired, cache);
        }
        let link = self.interface(vf)?;
        let link = link.ok_or_else(|| ProvisionError::Changed("it has no interface".to_owned()))?;
        if link.mac != Some(record.mac) {
            return Err(ProvisionError::Changed(format!(
                "its interface {:?} has not taken its MAC address {} over",
                link.name, record.mac
            )));
        }
        let original = record.original.as_ref().and_then(|original| original.interface.as_ref());
        // An interface that somebody has set up by hand is ready all the same, and so is one to which udev gives alternative names.
        let look = original.map(|original| Look { up: None, ..desired.look(original) });
        match look.is_some_and(|look| !look.restored(&link).is_empty()) {
            true => Err(ProvisionError::Changed(format!(
                "its interface {:?} does not look as it should",
                link.name
            ))),
            false => Ok(()),
        }
    }

    /// A pool that goes by RDMA devices keeps a VF that is without its own for a while, and gives it to nobody meanwhile.
    fn has_lost_rdma(&self, original: &OriginalState, vf: &VfDevice) -> Result<bool, ProvisionError> {
        let had_one = original.rdma.as_ref().is_some_and(|devices| !devices.is_empty());
        Ok(had_one && !self.inventory.rdma(vf.address)?.has_verbs())
    }

    fn verify_group(
        &self,
        vf: &VfDevice,
        desired: &DesiredState,
        cache: &ScanCache<'_>,
    ) -> Result<(), ProvisionError> {
        match fit_for_vfio(&self.inventory, vf, |group| cache.group(group)) {
            Ok(_) => {}
            Err(UnfitForVfio::NoIommu { .. }) if desired.allow_no_iommu => {}
            Err(unfit @ UnfitForVfio::NoIommu { .. }) => {
                let remedy = match desired.of_plugins_file {
                    true => {
                        "take its resource out of the device plugin's file, which cannot permit that, and make a pool with the same \
                         resourceName, driver: vfio-pci and allowNoIommu: true"
                    }
                    false => "allowNoIommu: true permits that",
                };
                return Err(ProvisionError::Unfit(format!("{unfit}; {remedy}")));
            }
            // A process that uses it is no fault of the VF, and must not count towards its quarantine.
            Err(in_use @ UnfitForVfio::InUse { .. }) => {
                return Err(ProvisionError::Taken(in_use.to_string()));
            }
            Err(unfit) => return Err(ProvisionError::Unfit(unfit.to_string())),
        }
        // vfio would let two VFs share a group; two pods must not.
        match self.inventory.group_of(vf.address)?.iter().find(|other| !other.bridge) {
            Some(other) => Err(ProvisionError::Unfit(format!(
                "{} is in its IOMMU group too: they cannot go to two pods",
                other.device
            ))),
            None => Ok(()),
        }
    }
}
