//! What is done to one member: it is prepared for its pool, or given back as it was. Each step is on record before it is taken,
//! and all of it may be begun again at any step, by another daemon too.
//!
//! Nothing is done to a VF that somebody else uses, and none is reset but under vfio-pci or without a driver.

use std::thread::sleep;
use std::time::{Duration, Instant};

use fairlead_host::{AttachedProgram, Link, Override, Vf, failpoint};

use super::provision_error::{ProvisionError, in_use};
use super::provisioner::Provisioner;
use super::records::OriginalState;
use super::restore_netdev_names::TakeIdle;
use super::target::{DesiredState, ReadyVf};
use crate::vf_netdev::{APPEARS, interface, wait_for_netdev};
use crate::{KernelVf, PciAddr, VFIO_PCI, VfDevice, VfProfile};

/// The pause between two looks for what a driver makes.
const LOOK: Duration = Duration::from_millis(10);

impl Provisioner {
    /// Makes a member ready: adopted, clean, set up, bound, verified.
    pub(super) fn prepare(
        &self,
        address: PciAddr,
        desired: &DesiredState,
        idle: TakeIdle<'_>,
    ) -> Result<ReadyVf, ProvisionError> {
        self.end_work(address, self.prepare_steps(address, desired, idle))
    }

    fn prepare_steps(
        &self,
        address: PciAddr,
        desired: &DesiredState,
        idle: TakeIdle<'_>,
    ) -> Result<ReadyVf, ProvisionError> {
        let vf = self.unused_vf(address, desired)?;
        let is_new = self.record(address)?.original_in(&self.boot_id).is_none();
        // On record before anything is changed: the next daemon gives back what this one has begun with.
        let original = self.adopt(&vf, desired)?;
        let record = &self.record(address)?;
        failpoint::pass("pool.adopted");
        let driver = desired.driver(&original);
        let left = if record.unclean.is_some() { self.programs_on(&vf)? } else { Vec::new() };
        if !desired.stays_bound(&vf, record, &original, is_new) {
            self.reset(&vf, driver)?;
        }
        failpoint::pass("pool.reset");
        // While no kernel driver has the VF, none resets it for each setting, and the next one takes the MAC address over.
        let settings = self.apply_settings(&vf, &desired.settings(record, &original), false)?;
        failpoint::pass("pool.set");
        self.bind_driver(&vf, driver, desired, &original)?;
        failpoint::pass("pool.bound");
        if driver != VFIO_PCI {
            let link = self.wait_for_netdev(address, driver, Some(record.mac))?;
            let interface = self.original_interface(address, &original)?;
            self.configure_netdev(address, link, &desired.look(&interface), idle)?;
        }
        let goes_without = driver == VFIO_PCI || !desired.keeps_rdma;
        let has_rdma = goes_without || self.wait_for_rdma(address, &original)?;
        // VF and cache are read anew: what was read above is from before the binding.
        let known = ReadyVf { vf: self.inventory.vf(address)?, driver: driver.to_owned(), settings };
        self.verify(record, desired, &known, &self.cache())?;
        self.must_be_rid_of(&left, &known.vf)?;
        match has_rdma {
            true => Ok(known),
            // No fault of the VF: its driver's module for RDMA may be away for an upgrade.
            false => Err(ProvisionError::Physical(
                "its driver has made no RDMA device again: see that the driver's module for RDMA is loaded"
                    .to_owned(),
            )),
        }
    }

    /// The VF, if nobody uses it. An interface that its driver may be making just now is waited for, because somebody may use that; a
    /// driver that makes none in time is bound anew.
    fn unused_vf(&self, address: PciAddr, desired: &DesiredState) -> Result<VfDevice, ProvisionError> {
        let until = Instant::now() + APPEARS;
        loop {
            // Before it is looked at who uses the VF: an interface that comes later is looked at in the next turn.
            let has_netdev = self.inventory.has_netdev(address)?;
            let vf = self.inventory.vf(address)?;
            self.may_be_had(&vf, desired, &self.cache())?;
            let makes_none = vf.driver.as_deref().is_none_or(|driver| driver == VFIO_PCI);
            if makes_none || has_netdev || Instant::now() >= until {
                return Ok(vf);
            }
            sleep(LOOK);
        }
    }

    /// The programs that are attached to its interface, where it has one in the host's namespace.
    fn programs_on(&self, vf: &VfDevice) -> Result<Vec<AttachedProgram>, ProvisionError> {
        let mut host = self.kernel.host()?;
        match interface(host.as_mut(), vf.address, &vf.interfaces)? {
            Some(link) => Ok(host.attached_programs(link.index)?),
            None => Ok(Vec::new()),
        }
    }

    /// Refuses a VF on whose new interface is a program that was on the one before. The new one has none unless somebody attaches it again.
    fn must_be_rid_of(&self, left: &[AttachedProgram], vf: &VfDevice) -> Result<(), ProvisionError> {
        if left.is_empty() {
            return Ok(());
        }
        let is_left = |now: &&AttachedProgram| left.iter().any(|left| left.id == now.id);
        match self.programs_on(vf)?.iter().find(is_left) {
            Some(program) => Err(ProvisionError::Unfit(format!(
                "{program} is on its interface again, although it was bound anew"
            ))),
            None => Ok(()),
        }
    }

    /// Gives a member back as it was. What the NIC does not take back any more is logged and passed over.
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
        // A reboot has undone what was changed, and a VF that is gone has nothing to be given back.
        let Some(original) = record.original_in(&self.boot_id) else { return self.forget_original(address) };
        // Whoever uses it now has not got it from us: it is given back when he is done.
        let vf = self.unused_vf(address, &DesiredState::to_be_given_back(desired.left))?;
        let original = &self.begin_work(&vf, desired, original)?;
        if !desired.stays_bound(&vf, &record, original, false) {
            self.reset(&vf, &original.driver)?;
        }
        failpoint::pass("pool.stripped");
        self.apply_settings(&vf, &VfProfile::from(&original.settings), true)?;
        failpoint::pass("pool.restored");
        self.bind_driver(&vf, &original.driver, desired, original)?;
        failpoint::pass("pool.rebound");
        if let Some(interface) = original.interface.as_ref().filter(|_| original.driver != VFIO_PCI) {
            let link = self.wait_for_netdev(address, &original.driver, interface.mac)?;
            self.configure_netdev(address, link, &interface.look(), idle)?;
        }
        if original.driver != VFIO_PCI {
            self.wait_for_rdma(address, original)?;
        }
        failpoint::pass("pool.given");
        self.forget_original(address)
    }

    /// Takes off the record how a member was: it is so again, or never will be.
    pub(super) fn forget_original(&self, address: PciAddr) -> Result<(), ProvisionError> {
        self.records.change(address, |record| record.original = None).map_err(ProvisionError::Record)
    }

    /// Takes the VF from a kernel driver and resets it: what somebody has left in it, or in its PF by the mailbox, is gone.
    ///
    /// Not so the further MAC addresses that a pod with `trust` had on igb. igbvf takes them away by a message with an address of
    /// zeroes, and igb (since 584af82154f5, end of 2021) looks at the address first and refuses it; without `trust` it refuses
    /// all. Seen on 6.12: set up and down with `trust`, reset and bound again, the VF still hears them.
    fn reset(&self, vf: &VfDevice, next: &str) -> Result<(), ProvisionError> {
        let address = vf.address.to_string();
        // A VF can be reset under vfio-pci: one that stays there is not unbound.
        let stays = vf.driver.as_deref() == Some(VFIO_PCI) && next == VFIO_PCI;
        if vf.driver.is_some() && !stays {
            self.kernel.unbind(&address).map_err(in_use)?;
        }
        failpoint::pass("pool.unbound");
        self.kernel.reset(&address).map_err(in_use)
    }

    /// Writes the settings that differ and reads them back. `as_far_as_taken`: what the NIC refuses is logged and passed over.
    fn apply_settings(
        &self,
        vf: &VfDevice,
        wanted: &VfProfile,
        as_far_as_taken: bool,
    ) -> Result<Vf, ProvisionError> {
        let change = wanted.plan(&self.admin.settings(vf)?).change;
        if as_far_as_taken {
            for refused in self.admin.set_what_is_taken(vf, &change)? {
                tracing::error!(pci = %vf.address, error = %refused, "a VF cannot have a setting back as it was");
            }
        } else {
            self.admin.set(vf, &change)?;
        }
        // Read back: a driver may take a setting that is not in force afterwards.
        let now = self.admin.settings(vf)?;
        let left = wanted.plan(&now);
        match left.change.is_empty() || as_far_as_taken {
            true => Ok(now),
            false => Err(ProvisionError::Unfit(format!(
                "its PF {} took {}, and tells {}",
                vf.physical.address,
                left.change.describe(),
                left.undo.describe()
            ))),
        }
    }

    /// Binds the VF to `driver`. The driver that the administrator has fixed is changed only where it stood in the way of
    /// vfio-pci, or is ours; where somebody else binds the pool's VFs, never.
    fn bind_driver(
        &self,
        vf: &VfDevice,
        driver: &str,
        desired: &DesiredState,
        original: &OriginalState,
    ) -> Result<(), ProvisionError> {
        let now = self.inventory.vf(vf.address)?;
        if now.driver.as_deref() == Some(driver) {
            return Ok(());
        }
        let only = self.kernel.fixed_driver(&vf.address.to_string())?;
        desired.unless_promised(driver, now.driver.as_deref().or(only.as_deref()))?;
        // Fixed to vfio-pci, although it had another driver before its pool: that was our doing.
        let ours = only.as_deref() == Some(VFIO_PCI) && original.driver != VFIO_PCI;
        let fixed = match (driver == VFIO_PCI, ours) {
            _ if desired.is_bound_by_others() => Override::Keep,
            (true, _) => Override::Set,
            (false, true) if original.fixed => Override::Set,
            (false, true) => Override::Clear,
            (false, false) => Override::Keep,
        };
        Ok(self.kernel.bind(&vf.address.to_string(), driver, fixed)?)
    }

    /// Waits for the driver to make the interface, and has it take this MAC address.
    fn wait_for_netdev(
        &self,
        address: PciAddr,
        driver: &str,
        mac: Option<fairlead_host::Mac>,
    ) -> Result<Link, ProvisionError> {
        let mut host = self.kernel.host()?;
        let Some(link) = wait_for_netdev(host.as_mut(), address, APPEARS)? else {
            return Err(self.without_netdev(address, driver)?);
        };
        let vf = KernelVf { kernel: self.kernel.as_ref(), address, driver };
        let link = match mac.filter(|mac| link.mac != Some(*mac)) {
            Some(mac) => vf.take_back(host.as_mut(), &link, mac)?,
            None => link,
        };
        // A warning is enough: `verify` refuses a member with another address, and giving back goes as far as it can.
        if let Some(mac) = mac.filter(|mac| link.mac != Some(*mac)) {
            tracing::warn!(pci = %address, %mac, "a VF's interface does not take its MAC address");
        }
        Ok(link)
    }

    /// Why a VF that a driver has is without an interface in the host's namespace. Where it has none anywhere, that may be its PF's fault:
    /// iavf makes none while the PF does not answer.
    fn without_netdev(&self, address: PciAddr, driver: &str) -> Result<ProvisionError, ProvisionError> {
        let why = format!("driver {driver} makes no interface for it");
        if self.inventory.has_netdev(address)? {
            return Ok(ProvisionError::Unfit(why));
        }
        let physical = self.inventory.vf(address)?.physical.address;
        Ok(ProvisionError::Physical(format!(
            "{why}: see that its PF {physical} is up, and by the kernel's log that it answers"
        )))
    }

    /// Waits for the driver to make its RDMA device again, which some do after the interface (irdma, for iavf), and for the device's node
    /// for verbs. False when they do not come; a VF that had none has all that it had.
    fn wait_for_rdma(&self, address: PciAddr, original: &OriginalState) -> Result<bool, ProvisionError> {
        if original.rdma.as_ref().is_none_or(Vec::is_empty) {
            return Ok(true);
        }
        let until = Instant::now() + APPEARS;
        while !self.inventory.rdma(address)?.has_verbs() {
            if Instant::now() >= until {
                tracing::warn!(pci = %address, "the driver of a VF does not make its RDMA device again");
                return Ok(false);
            }
            sleep(LOOK);
        }
        Ok(true)
    }
}
