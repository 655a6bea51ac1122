//! What is done to one member: made ready, given back, compared. Each step is on record before it is taken, and each of these
//! may be begun again at any step, by another daemon too.
//!
//! Nothing is done to a function that somebody else uses, and none is reset but under vfio-pci or without a driver.

use std::sync::Arc;

use fairlead_host::{DevlinkDevice, Kernel, Link, NetError, Override, Vf, failpoint};
use parking_lot::Mutex;

use super::foreign_use;
use super::netdev_names::TakeIdle;
use super::provision_error::{ProvisionError, in_use};
use super::records::{OriginalState, Record, Records};
use super::scan_cache::ScanCache;
use super::target::{DesiredState, Known};
use crate::interface::{APPEARS, appear, interface};
use crate::{
    Administrator, Function, Inventory, InventoryError, KernelVf, PciAddr, Scan, VFIO_PCI, VfProfile,
};

/// What is done with, and where.
pub(super) struct Provisioner {
    pub(super) kernel: Arc<dyn Kernel>,
    pub(super) admin: Arc<Administrator>,
    pub(super) inventory: Inventory,
    pub(super) records: Records,
    pub(super) boot_id: String,
    /// What devlink told the last look.
    pub(super) devlink: Mutex<Arc<[DevlinkDevice]>>,
}

impl Provisioner {
    /// Makes a member ready: adopted, clean, set up, bound, verified.
    pub(super) fn prepare(
        &self,
        address: PciAddr,
        desired: &DesiredState,
        idle: TakeIdle<'_>,
    ) -> Result<Known, ProvisionError> {
        self.end_work(address, self.prepare_steps(address, desired, idle))
    }

    fn prepare_steps(
        &self,
        address: PciAddr,
        desired: &DesiredState,
        idle: TakeIdle<'_>,
    ) -> Result<Known, ProvisionError> {
        let function = self.inventory.function(address)?;
        self.may_be_had(&function, desired, &self.cache())?;
        let was = self.adopt(&function, desired)?;
        let record = &self.record(address)?;
        failpoint::pass("pool.adopted");
        let driver = desired.driver(&was);
        self.reset(&function, driver)?;
        failpoint::pass("pool.reset");
        let settings = self.set(&function, &desired.settings(record, &was), false)?;
        failpoint::pass("pool.set");
        self.bind_driver(&function, driver, desired, &was)?;
        failpoint::pass("pool.bound");
        if let Some(interface) = was.interface.as_ref().filter(|_| driver != VFIO_PCI) {
            let link = self.wait_for_netdev(address, driver, Some(record.mac))?;
            self.configure_netdev(address, link, &desired.look(interface), idle)?;
        }
        let known =
            Known { function: self.inventory.function(address)?, driver: driver.to_owned(), settings };
        self.verify(record, desired, &known, &self.cache())?;
        Ok(known)
    }

    /// Gives a member back as it was. What the NIC does not take back any more is told and passed over.
    pub(super) fn give_back(
        &self,
        address: PciAddr,
        desired: &DesiredState,
        idle: TakeIdle<'_>,
    ) -> Result<(), ProvisionError> {
        self.end_work(address, self.give_back_steps(address, desired, idle))
    }

    fn give_back_steps(
        &self,
        address: PciAddr,
        desired: &DesiredState,
        idle: TakeIdle<'_>,
    ) -> Result<(), ProvisionError> {
        let record = self.record(address)?;
        let Some(was) = record.was_in(&self.boot_id) else { return self.nothing_to_give_back(address) };
        let function = self.inventory.function(address)?;
        self.leave_alone(&function, desired.left)?;
        let was = &self.begin_work(&function, desired, was)?;
        self.reset(&function, &was.driver)?;
        failpoint::pass("pool.stripped");
        self.set(&function, &VfProfile::from(&was.settings), true)?;
        failpoint::pass("pool.restored");
        self.bind_driver(&function, &was.driver, desired, was)?;
        failpoint::pass("pool.rebound");
        if let Some(interface) = was.interface.as_ref().filter(|_| was.driver != VFIO_PCI) {
            let link = self.wait_for_netdev(address, &was.driver, interface.mac)?;
            self.configure_netdev(address, link, &interface.look(), idle)?;
        }
        failpoint::pass("pool.given");
        self.nothing_to_give_back(address)
    }

    /// How it was is of no use any more.
    pub(super) fn nothing_to_give_back(&self, address: PciAddr) -> Result<(), ProvisionError> {
        self.records.change(address, |record| record.was = None).map_err(ProvisionError::Record)
    }

    /// The machine's functions, and what devlink tells of their cards: for a look.
    pub(super) fn scan_again(&self) -> Result<Scan, InventoryError> {
        let told = read_devlink(self.kernel.as_ref());
        *self.devlink.lock() = told;
        self.scan()
    }

    /// The machine's functions, and what devlink told the last look of their cards: devlink may take its time, and whoever
    /// goes by a pool's selectors between two looks has to see what the look saw.
    pub(super) fn scan(&self) -> Result<Scan, InventoryError> {
        self.inventory.scan(&self.devlink())
    }

    pub(super) fn devlink(&self) -> Arc<[DevlinkDevice]> {
        Arc::clone(&self.devlink.lock())
    }

    pub(super) fn record(&self, address: PciAddr) -> Result<Record, ProvisionError> {
        let record = self.records.get(address);
        record.ok_or_else(|| ProvisionError::Unfit("nothing is on record of it".to_owned()))
    }

    /// Refuses a function that somebody else uses, and one that no pod could have as its pool wants it.
    pub(super) fn may_be_had(
        &self,
        function: &Function,
        desired: &DesiredState,
        cache: &ScanCache<'_>,
    ) -> Result<(), ProvisionError> {
        let unserved = self.inventory.unserved(function.address)?;
        let what = unserved.filter(|unserved| desired.minds(unserved)).map(|unserved| unserved.to_string());
        let user = || foreign_use::of(cache, function, desired.left);
        let who = what.map_or_else(user, |what| Ok(Some(what)))?;
        who.map_or(Ok(()), |who| Err(ProvisionError::Taken(who)))
    }

    /// Refuses a function that somebody else uses. `left`: what is on its interface is nobody's.
    pub(super) fn leave_alone(&self, function: &Function, left: bool) -> Result<(), ProvisionError> {
        self.may_be_had(function, &DesiredState::to_be_given_back(left), &self.cache())
    }

    /// What is to be seen now.
    pub(super) fn cache(&self) -> ScanCache<'_> {
        ScanCache::of(self.kernel.as_ref())
    }

    /// Without a kernel driver, and reset: what somebody has left in it or in its physical function by the mailbox is gone.
    ///
    /// Not so the further MAC addresses that a pod with `trust` had on igb. igbvf takes them away by a message with an address of
    /// zeroes, and igb (since 584af82154f5, end of 2021) looks at the address first and refuses it; without `trust` it refuses
    /// all. Seen on 6.12: set up and down with `trust`, reset and bound anew, the function still hears them.
    fn reset(&self, function: &Function, next: &str) -> Result<(), ProvisionError> {
        let address = function.address.to_string();
        let stays = function.driver.as_deref() == Some(VFIO_PCI) && next == VFIO_PCI;
        if function.driver.is_some() && !stays {
            self.kernel.unbind(&address).map_err(in_use)?;
        }
        failpoint::pass("pool.unbound");
        self.kernel.reset(&address).map_err(in_use)
    }

    /// The settings are as wanted, and read back. `as_far_as_taken`: what the NIC refuses is told and passed over.
    fn set(
        &self,
        function: &Function,
        wanted: &VfProfile,
        as_far_as_taken: bool,
    ) -> Result<Vf, ProvisionError> {
        let change = wanted.plan(&self.admin.settings(function)?).change;
        if as_far_as_taken {
            for refused in self.admin.set_what_is_taken(function, &change)? {
                tracing::error!(pci = %function.address, error = %refused, "a function cannot have a setting back as it was");
            }
        } else {
            self.admin.set(function, &change)?;
        }
        let now = self.admin.settings(function)?;
        let left = wanted.plan(&now);
        match left.change.is_empty() || as_far_as_taken {
            true => Ok(now),
            false => Err(ProvisionError::Unfit(format!(
                "its physical function {} took {}, and tells {}",
                function.physical.address,
                left.change.describe(),
                left.undo.describe()
            ))),
        }
    }

    /// Bound to `driver`. The driver that the administrator has fixed is changed only where it stood in the way of vfio-pci,
    /// or is ours; where somebody else binds the pool's functions, never.
    fn bind_driver(
        &self,
        function: &Function,
        driver: &str,
        desired: &DesiredState,
        was: &OriginalState,
    ) -> Result<(), ProvisionError> {
        let now = self.inventory.function(function.address)?;
        if now.driver.as_deref() == Some(driver) {
            return Ok(());
        }
        let only = self.kernel.fixed_driver(&function.address.to_string())?;
        desired.unless_promised(driver, now.driver.as_deref().or(only.as_deref()))?;
        let ours = only.as_deref() == Some(VFIO_PCI) && was.driver != VFIO_PCI;
        let fixed = match (driver == VFIO_PCI, ours) {
            _ if desired.is_bound_by_others() => Override::Keep,
            (true, _) => Override::Set,
            (false, true) if was.fixed => Override::Set,
            (false, true) => Override::Clear,
            (false, false) => Override::Keep,
        };
        Ok(self.kernel.bind(&function.address.to_string(), driver, fixed)?)
    }

    /// The interface is there, with this MAC address.
    fn wait_for_netdev(
        &self,
        address: PciAddr,
        driver: &str,
        mac: Option<fairlead_host::Mac>,
    ) -> Result<Link, ProvisionError> {
        let mut host = self.kernel.host()?;
        let link = appear(host.as_mut(), address, APPEARS)?
            .ok_or_else(|| ProvisionError::Unfit(format!("driver {driver} makes no interface for it")))?;
        let vf = KernelVf { kernel: self.kernel.as_ref(), address, driver };
        let link = match mac.filter(|mac| link.mac != Some(*mac)) {
            Some(mac) => vf.take_back(host.as_mut(), &link, mac)?,
            None => link,
        };
        if let Some(mac) = mac.filter(|mac| link.mac != Some(*mac)) {
            tracing::warn!(pci = %address, %mac, "a function's interface does not take its MAC address");
        }
        Ok(link)
    }

    pub(super) fn interface(&self, function: &Function) -> Result<Option<Link>, NetError> {
        interface(self.kernel.host()?.as_mut(), function.address, &function.interfaces)
    }
}

/// What devlink reports of the machine's network cards. Where it cannot be asked, sysfs alone is gone by, and that is logged.
fn read_devlink(kernel: &dyn Kernel) -> Arc<[DevlinkDevice]> {
    let devices = kernel.devlink().unwrap_or_else(|error| {
        tracing::warn!(%error, "devlink cannot be asked; representors are known by sysfs alone");
        Vec::new()
    });
    devices.into()
}
