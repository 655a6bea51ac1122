//! How a member was before its pool had it. This is on record before anything is done to the member.
//!
//! A pool binds its members to their driver, or somebody else does (another device plugin, the administrator). In the second case
//! a member keeps whatever driver it is given; we bind it only where we have unbound it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use fairlead_host::{Vf, VfChange};

use super::pool_definition::AtRest;
use super::provision_error::ProvisionError;
use super::provisioner::Provisioner;
use super::records::{OriginalState, Record};
use super::target::DesiredState;
use crate::vf_netdev::Appearance;
use crate::{PciAddr, SettingError, VFIO_PCI, VfDevice};

/// The pause between two tries to read the settings of a VF that is being created.
const RETRY: Duration = Duration::from_millis(50);
/// How long the VFs of a PF may take to be created; until then the PF reports no settings of them.
const MAKING: Duration = Duration::from_secs(10);

impl Provisioner {
    /// How a member was, on record from now on; what an earlier boot knew of it is no longer so.
    pub(super) fn adopt(
        &self,
        vf: &VfDevice,
        desired: &DesiredState,
    ) -> Result<OriginalState, ProvisionError> {
        if let Some(original) = self.record(vf.address)?.original_in(&self.boot_id) {
            return self.begin_work(vf, desired, original);
        }
        let driver = vf.driver.clone().ok_or_else(|| {
            ProvisionError::Taken(
                "it has no driver: bind it to the one that it is to come back to".to_owned(),
            )
        })?;
        if driver == VFIO_PCI && desired.at_rest == AtRest::Kernel {
            return Err(ProvisionError::Taken(format!(
                "it is bound to {VFIO_PCI}, and its pool's driver is the kernel's: bind it to its kernel driver, or give the \
                 pool driver: {VFIO_PCI}"
            )));
        }
        let only = self.kernel.fixed_driver(&vf.address.to_string())?;
        desired.unless_promised(&driver, only.as_deref())?;
        let (fixed, interface) = (only.is_some(), self.present_appearance(vf)?);
        let settings = all_settings(&self.read_settings(vf)?);
        let (boot_id, bound_by_others) = (self.boot_id.clone(), desired.is_bound_by_others());
        // On record before the VF is unbound: after a crash the next daemon knows that it has to bind it.
        let at_work = bound_by_others;
        let rdma = Some(self.inventory.rdma(vf.address)?.devices);
        let original = OriginalState {
            boot_id,
            driver,
            fixed,
            interface,
            settings,
            bound_by_others,
            at_work,
            gone: false,
            rdma,
        };
        self.record_original(vf, &original)?;
        Ok(original)
    }

    /// The same, on record as a member that we are at work on.
    pub(super) fn begin_work(
        &self,
        vf: &VfDevice,
        desired: &DesiredState,
        original: &OriginalState,
    ) -> Result<OriginalState, ProvisionError> {
        let bound_by_others = desired.is_bound_by_others();
        let original =
            if bound_by_others { self.rebound_by_owner(vf, desired, original)? } else { original.clone() };
        let rdma = self.rdma_before(vf, &original)?;
        let original = OriginalState { bound_by_others, at_work: bound_by_others, rdma, ..original };
        self.record_original(vf, &original)?;
        Ok(original)
    }

    /// How the interface of a member was. Of one whose driver had made none when it was adopted, the first that the driver makes is on
    /// record from now on, with the MAC address from before.
    pub(super) fn original_interface(
        &self,
        address: PciAddr,
        original: &OriginalState,
    ) -> Result<Appearance, ProvisionError> {
        if let Some(interface) = &original.interface {
            return Ok(interface.clone());
        }
        let vf = self.inventory.vf(address)?;
        let look = self.present_appearance(&vf)?;
        let look = look.ok_or_else(|| ProvisionError::Changed("it has no interface".to_owned()))?;
        let mac = original.settings.mac.filter(|mac| !mac.is_zero());
        let interface = Appearance { mac, ..look };
        self.record_original(&vf, &OriginalState { interface: Some(interface.clone()), ..original.clone() })?;
        Ok(interface)
    }

    /// The RDMA devices that it has, or had when it last had its driver.
    fn rdma_before(
        &self,
        vf: &VfDevice,
        original: &OriginalState,
    ) -> Result<Option<Vec<String>>, ProvisionError> {
        let now = self.inventory.rdma(vf.address)?.devices;
        // Without its driver it has none, and just after the binding it may have none yet: that says nothing.
        let has_driver = vf.driver.as_ref() == Some(&original.driver);
        let says_nothing = now.is_empty() && (original.rdma.is_some() || !has_driver);
        Ok(if says_nothing { original.rdma.clone() } else { Some(now) })
    }

    /// Ends the work on a member. Where we have left it without a driver, it is still ours to give it one.
    pub(super) fn end_work<T>(
        &self,
        address: PciAddr,
        done: Result<T, ProvisionError>,
    ) -> Result<T, ProvisionError> {
        let is_at_work = |record: Record| record.original.is_some_and(|original| original.at_work);
        let has_driver = || self.inventory.vf(address).is_ok_and(|now| now.driver.is_some());
        // A call into a driver that hangs goes on, and may take the VF from its driver later.
        let hangs = done.as_ref().is_err_and(ProvisionError::is_a_hang);
        if !hangs && self.records.get(address).is_some_and(is_at_work) && has_driver() {
            let ended = |record: &mut Record| {
                record.original.iter_mut().for_each(|original| original.at_work = false)
            };
            self.records.change(address, ended).map_err(ProvisionError::Record)?;
        }
        done
    }

    /// How a member was, but under the driver that whoever binds it has given it since. A driver that it has only been promised
    /// is waited for, and so is the next one of a member that was taken from its driver.
    fn rebound_by_owner(
        &self,
        vf: &VfDevice,
        desired: &DesiredState,
        original: &OriginalState,
    ) -> Result<OriginalState, ProvisionError> {
        let only = self.owner_is_done(vf, desired, original)?;
        let driver = vf.driver.as_ref().unwrap_or(&original.driver);
        if *driver == original.driver {
            return Ok(original.clone());
        }
        let interface = match &original.interface {
            None => {
                // The interface has the MAC address that the pool gave the VF; the one from before is in the settings.
                self.present_appearance(vf)?.map(|look| Appearance { mac: original.settings.mac, ..look })
            }
            before => before.clone(),
        };
        tracing::info!(pci = %vf.address, before = original.driver, driver, "a VF of a pool was bound to another driver");
        // What the last driver made says nothing of this one.
        let (driver, fixed, rdma) = (driver.clone(), only.is_some(), None);
        Ok(OriginalState { driver, fixed, interface, rdma, ..original.clone() })
    }

    /// Refuses a member that whoever binds it is giving another driver, or has taken from its own; answers the one that is fixed
    /// for it.
    pub(super) fn owner_is_done(
        &self,
        vf: &VfDevice,
        desired: &DesiredState,
        original: &OriginalState,
    ) -> Result<Option<String>, ProvisionError> {
        let only = self.kernel.fixed_driver(&vf.address.to_string())?;
        desired.unless_promised(vf.driver.as_ref().unwrap_or(&original.driver), only.as_deref())?;
        match vf.driver.is_none() && !original.at_work {
            true => Err(ProvisionError::Taken(
                "somebody else has taken it from its driver: bind it to the one that it is to have"
                    .to_owned(),
            )),
            false => Ok(only),
        }
    }

    fn record_original(&self, vf: &VfDevice, original: &OriginalState) -> Result<(), ProvisionError> {
        let write = |record: &mut Record| record.original = Some(original.clone());
        self.records.change(vf.address, write).map_err(ProvisionError::Record)
    }

    fn present_appearance(&self, vf: &VfDevice) -> Result<Option<Appearance>, ProvisionError> {
        if vf.driver.as_deref() == Some(VFIO_PCI) {
            return Ok(None);
        }
        if let Some(link) = self.interface(vf)? {
            self.udev.wait_until_done(link.index);
        }
        self.interface(vf)?.map(|link| self.appearance(vf.address, &link)).transpose()
    }

    /// The settings of a VF. While VFs are being created their PF reports none: that is waited for.
    fn read_settings(&self, vf: &VfDevice) -> Result<Vf, SettingError> {
        let until = Instant::now() + MAKING;
        loop {
            match self.admin.settings(vf) {
                Err(SettingError::NoInterface { .. }) if Instant::now() < until => sleep(RETRY),
                read => return read,
            }
        }
    }
}

/// All settings that a driver reports, to come back to.
fn all_settings(vf: &Vf) -> VfChange {
    VfChange {
        mac: vf.mac,
        vlan: vf.vlan,
        rate: vf.rate,
        spoofchk: vf.spoofchk,
        trust: vf.trust,
        link_state: vf.link_state,
    }
}
