//! How a member was before its pool had it, on record before anything is done to it, and whose affair its driver is. Where
//! that is somebody else's (another device plugin's, the administrator's), it keeps whatever driver it is given, and gets one from
//! us only where we have taken it from one.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::interface::Appearance;
use crate::{Function, PciAddr, SettingError, VFIO_PCI};
use fairlead_host::{Vf, VfChange};

use super::provision::Provisioner;
use super::provision_error::ProvisionError;
use super::records::{OriginalState, Record};
use super::settings::AtRest;
use super::target::DesiredState;

const LOOK: Duration = Duration::from_millis(50);
/// How long functions may take to be made, those with this one.
const MAKING: Duration = Duration::from_secs(10);

impl Provisioner {
    /// How it was, on record from now on; what an earlier boot knew of it is no longer so.
    pub(super) fn adopt(
        &self,
        function: &Function,
        desired: &DesiredState,
    ) -> Result<OriginalState, ProvisionError> {
        if let Some(was) = self.record(function.address)?.was_in(&self.boot_id) {
            return self.begin_work(function, desired, was);
        }
        let driver = function.driver.clone().ok_or_else(|| {
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
        let only = self.kernel.fixed_driver(&function.address.to_string())?;
        desired.unless_promised(&driver, only.as_deref())?;
        let (fixed, interface) = (only.is_some(), self.present_look(function)?);
        let settings = everything(&self.told(function)?);
        let (boot_id, bound_by_others) = (self.boot_id.clone(), desired.is_bound_by_others());
        let at_work = bound_by_others;
        let was = OriginalState {
            boot_id,
            driver,
            fixed,
            interface,
            settings,
            bound_by_others,
            at_work,
            gone: false,
        };
        self.note(function, &was)?;
        Ok(was)
    }

    /// How it was, on record as what we are at work on.
    pub(super) fn begin_work(
        &self,
        function: &Function,
        desired: &DesiredState,
        was: &OriginalState,
    ) -> Result<OriginalState, ProvisionError> {
        let bound_by_others = desired.is_bound_by_others();
        let was =
            if bound_by_others { self.as_its_owner_has_it(function, desired, was)? } else { was.clone() };
        let was = OriginalState { bound_by_others, at_work: bound_by_others, ..was };
        self.note(function, &was)?;
        Ok(was)
    }

    /// Nothing is done to it any more. Where we have left it without a driver, it is still ours to give it one.
    pub(super) fn end_work<T>(
        &self,
        address: PciAddr,
        done: Result<T, ProvisionError>,
    ) -> Result<T, ProvisionError> {
        let is_at_work = |record: Record| record.was.is_some_and(|was| was.at_work);
        let has_driver = || self.inventory.function(address).is_ok_and(|now| now.driver.is_some());
        let hangs = done.as_ref().is_err_and(ProvisionError::is_a_hang);
        if !hangs && self.records.get(address).is_some_and(is_at_work) && has_driver() {
            let ended = |record: &mut Record| record.was.iter_mut().for_each(|was| was.at_work = false);
            self.records.change(address, ended).map_err(ProvisionError::Record)?;
        }
        done
    }

    /// The same, under the driver that it has been given since. One that it has only been promised is waited for, and one that
    /// it was taken from without another.
    fn as_its_owner_has_it(
        &self,
        function: &Function,
        desired: &DesiredState,
        was: &OriginalState,
    ) -> Result<OriginalState, ProvisionError> {
        let only = self.owner_is_done(function, desired, was)?;
        let driver = function.driver.as_ref().unwrap_or(&was.driver);
        if *driver == was.driver {
            return Ok(was.clone());
        }
        let interface = match &was.interface {
            None => self.present_look(function)?.map(|look| Appearance { mac: was.settings.mac, ..look }),
            before => before.clone(),
        };
        tracing::info!(pci = %function.address, before = was.driver, driver, "a function of a pool was bound to another driver");
        Ok(OriginalState { driver: driver.clone(), fixed: only.is_some(), interface, ..was.clone() })
    }

    /// Refuses a member that whoever binds it is giving another driver, or has taken from its own; answers the one that is fixed
    /// for it.
    pub(super) fn owner_is_done(
        &self,
        function: &Function,
        desired: &DesiredState,
        was: &OriginalState,
    ) -> Result<Option<String>, ProvisionError> {
        let only = self.kernel.fixed_driver(&function.address.to_string())?;
        desired.unless_promised(function.driver.as_ref().unwrap_or(&was.driver), only.as_deref())?;
        match function.driver.is_none() && !was.at_work {
            true => Err(ProvisionError::Taken(
                "somebody else has taken it from its driver: bind it to the one that it is to have"
                    .to_owned(),
            )),
            false => Ok(only),
        }
    }

    fn note(&self, function: &Function, was: &OriginalState) -> Result<(), ProvisionError> {
        let write = |record: &mut Record| record.was = Some(was.clone());
        self.records.change(function.address, write).map_err(ProvisionError::Record)
    }

    fn present_look(&self, function: &Function) -> Result<Option<Appearance>, ProvisionError> {
        if function.driver.as_deref() == Some(VFIO_PCI) {
            return Ok(None);
        }
        self.interface(function)?.map(|link| self.appearance(function.address, &link)).transpose()
    }

    /// Its settings. While functions are being made their physical function tells of none: that is waited for.
    fn told(&self, function: &Function) -> Result<Vf, SettingError> {
        let until = Instant::now() + MAKING;
        loop {
            match self.admin.settings(function) {
                Err(SettingError::NoInterface { .. }) if Instant::now() < until => sleep(LOOK),
                told => return told,
            }
        }
    }
}

/// All settings that a driver tells, to come back to.
fn everything(vf: &Vf) -> VfChange {
    VfChange {
        mac: vf.mac,
        vlan: vf.vlan,
        rate: vf.rate,
        spoofchk: vf.spoofchk,
        trust: vf.trust,
        link_state: vf.link_state,
    }
}
