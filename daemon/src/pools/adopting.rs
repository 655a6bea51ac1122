//! How a member was before its pool had it, on record before anything is done to it, and whose affair its driver is. Where
//! that is somebody else's (another device plugin's, the administrator's), it keeps whatever driver it is given, and gets one from
//! us only where we have taken it from one.

use std::thread::sleep;
use std::time::{Duration, Instant};

use fairlead_host::{Vf, VfChange};
use fairlead_sriov::interface::Appearance;
use fairlead_sriov::{Function, PciAddr, SettingError};

use super::record::{Record, Was};
use super::trouble::Trouble;
use super::workshop::{VFIO, Wish, Workshop};
use crate::settings::AtRest;

const LOOK: Duration = Duration::from_millis(50);
/// How long functions may take to be made, those with this one.
const MAKING: Duration = Duration::from_secs(10);

impl Workshop {
    /// How it was, on record from now on; what an earlier boot knew of it is no longer so.
    pub(super) fn adopted(&self, function: &Function, wish: &Wish) -> Result<Was, Trouble> {
        if let Some(was) = self.record(function.address)?.was_in(&self.boot_id) {
            return self.begun(function, wish, was);
        }
        let driver = function.driver.clone().ok_or_else(|| {
            Trouble::Taken("it has no driver: bind it to the one that it is to come back to".to_owned())
        })?;
        if driver == VFIO && wish.at_rest == AtRest::Kernel {
            return Err(Trouble::Taken(format!(
                "it is bound to {VFIO}, and its pool's driver is the kernel's: bind it to its kernel driver, or give the \
                 pool driver: {VFIO}"
            )));
        }
        let only = self.kernel.fixed_driver(&function.address.to_string())?;
        wish.unless_promised(&driver, only.as_deref())?;
        let (fixed, interface) = (only.is_some(), self.present_look(function)?);
        let settings = everything(&self.told(function)?);
        let (boot_id, bound_by_others) = (self.boot_id.clone(), wish.is_bound_by_others());
        let at_work = bound_by_others;
        let was = Was { boot_id, driver, fixed, interface, settings, bound_by_others, at_work, gone: false };
        self.note(function, &was)?;
        Ok(was)
    }

    /// How it was, on record as what we are at work on.
    pub(super) fn begun(&self, function: &Function, wish: &Wish, was: &Was) -> Result<Was, Trouble> {
        let bound_by_others = wish.is_bound_by_others();
        let was = if bound_by_others { self.as_its_owner_has_it(function, wish, was)? } else { was.clone() };
        let was = Was { bound_by_others, at_work: bound_by_others, ..was };
        self.note(function, &was)?;
        Ok(was)
    }

    /// Nothing is done to it any more. Where we have left it without a driver, it is still ours to give it one.
    pub(super) fn ended<T>(&self, address: PciAddr, done: Result<T, Trouble>) -> Result<T, Trouble> {
        let is_at_work = |record: Record| record.was.is_some_and(|was| was.at_work);
        let has_driver = || self.inventory.function(address).is_ok_and(|now| now.driver.is_some());
        let hangs = done.as_ref().is_err_and(Trouble::is_a_hang);
        if !hangs && self.records.get(address).is_some_and(is_at_work) && has_driver() {
            let ended = |record: &mut Record| record.was.iter_mut().for_each(|was| was.at_work = false);
            self.records.change(address, ended).map_err(Trouble::Record)?;
        }
        done
    }

    /// The same, under the driver that it has been given since. One that it has only been promised is waited for, and one that
    /// it was taken from without another.
    fn as_its_owner_has_it(&self, function: &Function, wish: &Wish, was: &Was) -> Result<Was, Trouble> {
        let only = self.owner_is_done(function, wish, was)?;
        let driver = function.driver.as_ref().unwrap_or(&was.driver);
        if *driver == was.driver {
            return Ok(was.clone());
        }
        let interface = match &was.interface {
            None => self.present_look(function)?.map(|look| Appearance { mac: was.settings.mac, ..look }),
            before => before.clone(),
        };
        tracing::info!(pci = %function.address, before = was.driver, driver, "a function of a pool was bound to another driver");
        Ok(Was { driver: driver.clone(), fixed: only.is_some(), interface, ..was.clone() })
    }

    /// Refuses a member that whoever binds it is giving another driver, or has taken from its own; answers the one that is fixed
    /// for it.
    pub(super) fn owner_is_done(
        &self,
        function: &Function,
        wish: &Wish,
        was: &Was,
    ) -> Result<Option<String>, Trouble> {
        let only = self.kernel.fixed_driver(&function.address.to_string())?;
        wish.unless_promised(function.driver.as_ref().unwrap_or(&was.driver), only.as_deref())?;
        match function.driver.is_none() && !was.at_work {
            true => Err(Trouble::Taken(
                "somebody else has taken it from its driver: bind it to the one that it is to have"
                    .to_owned(),
            )),
            false => Ok(only),
        }
    }

    fn note(&self, function: &Function, was: &Was) -> Result<(), Trouble> {
        let write = |record: &mut Record| record.was = Some(was.clone());
        self.records.change(function.address, write).map_err(Trouble::Record)
    }

    fn present_look(&self, function: &Function) -> Result<Option<Appearance>, Trouble> {
        if function.driver.as_deref() == Some(VFIO) {
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
