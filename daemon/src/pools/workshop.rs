//! What is done to one member: made ready, given back, compared. Each step is on record before it is taken, and each of these
//! may be begun again at any step, by another daemon too.
//!
//! Nothing is done to a function that somebody else uses, and none is reset but under vfio-pci or without a driver.

use std::sync::{Arc, Mutex, PoisonError};

use fairlead_host::{DevlinkDevice, Kernel, Link, NetError, Override, Vf};
use fairlead_sriov::interface::{APPEARS, Appearance, Look, appear, interface};
use fairlead_sriov::pool::Member;
use fairlead_sriov::{
    Administrator, Function, Inventory, InventoryError, KernelVf, PciAddr, Scan, Unserved, VfProfile,
};

use super::naming::Idle;
use super::record::{Record, Records, Was};
use super::sight::Sight;
use super::trouble::{Trouble, in_use};
use super::user;
use crate::settings::{AtRest, PoolSettings};
use fairlead_host::failpoint;

/// The driver that gives devices to processes.
pub(super) const VFIO: &str = "vfio-pci";

/// What is done with, and where.
pub(super) struct Workshop {
    pub(super) kernel: Arc<dyn Kernel>,
    pub(super) admin: Arc<Administrator>,
    pub(super) inventory: Inventory,
    pub(super) records: Records,
    pub(super) boot_id: String,
    /// What devlink told the last look.
    pub(super) devlink: Mutex<Arc<[DevlinkDevice]>>,
}

/// How a member is to be while it is nobody's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Wish {
    pub(super) at_rest: AtRest,
    profile: VfProfile,
    mtu: Option<u32>,
    pub(super) allow_no_iommu: bool,
    /// It is to be given back, and no pod's before that.
    pub(super) leaves: bool,
    /// What is on its interface is nobody's: a pod that is gone has left it there.
    left: bool,
}

/// What is known of a member that is ready, so that nobody has to look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Where it is.
    pub function: Function,
    /// Who drives it.
    pub driver: String,
    /// Its settings.
    pub settings: Vf,
}

impl Wish {
    /// What a pool wants of its members.
    pub(super) fn of(pool: &PoolSettings) -> Wish {
        Wish {
            at_rest: pool.at_rest(),
            profile: pool.profile.settings(),
            mtu: pool.profile.mtu(),
            allow_no_iommu: pool.allow_no_iommu,
            leaves: false,
            left: false,
        }
    }

    /// The same of a function that no pool wants any more.
    pub(super) fn of_none(record: &Record) -> Wish {
        let is_bound_by_others = record.was.as_ref().is_some_and(|was| was.bound_by_others);
        let at_rest = if is_bound_by_others { AtRest::Unchanged } else { AtRest::default() };
        Wish { at_rest, ..Wish::default() }
    }

    /// The same of one member.
    pub(super) fn for_one(&self, member: &Member) -> Wish {
        Wish { leaves: member.is_leaving(), ..self.after_a_pod(member.left) }
    }

    /// The same of one that a pod which is gone may have `left` as it liked.
    pub(super) fn after_a_pod(&self, left: bool) -> Wish {
        Wish { left, ..self.clone() }
    }

    /// Whether what is not served stands in its way. An RDMA device is gone under vfio-pci, and in nobody's way when a function
    /// is given back.
    fn minds(&self, unserved: &Unserved) -> bool {
        match unserved {
            Unserved::Vdpa { .. } => true,
            Unserved::ExclusiveRdma { .. } => !self.leaves && self.at_rest != AtRest::VfioPci,
        }
    }

    /// Whether its driver is somebody else's affair: the allocator's, or the administrator's.
    pub(super) fn is_bound_by_others(&self) -> bool {
        self.at_rest == AtRest::Unchanged
    }

    /// Refuses a member that whoever binds it is giving from `driver` to another.
    pub(super) fn unless_promised(&self, driver: &str, to: Option<&str>) -> Result<(), Trouble> {
        match to.filter(|to| self.is_bound_by_others() && *to != driver) {
            Some(to) => Err(Trouble::Taken(format!(
                "it is being given from {driver} to {to} (driver_override), by somebody else: its pool has it when that is done"
            ))),
            None => Ok(()),
        }
    }

    /// The driver of a member at rest.
    pub(super) fn driver<'w>(&self, was: &'w Was) -> &'w str {
        match self.at_rest {
            AtRest::VfioPci => VFIO,
            AtRest::Kernel | AtRest::Unchanged => &was.driver,
        }
    }

    /// All settings of a member at rest: as they were, but for what the pool wants and its lasting MAC address.
    pub(super) fn settings(&self, record: &Record, was: &Was) -> VfProfile {
        let before = VfProfile::from(&was.settings);
        let wanted = &self.profile;
        VfProfile {
            mac: Some(record.mac),
            vlan: wanted.vlan.or(before.vlan),
            spoofchk: wanted.spoofchk.or(before.spoofchk),
            trust: wanted.trust.or(before.trust),
            link_state: wanted.link_state.or(before.link_state),
            min_rate: wanted.min_rate.or(before.min_rate),
            max_rate: wanted.max_rate.or(before.max_rate),
        }
    }

    pub(super) fn look(&self, was: &Appearance) -> Look {
        let look = was.look();
        Look { mtu: self.mtu.unwrap_or(look.mtu), up: Some(false), ..look }
    }
}

impl Workshop {
    /// Makes a member ready: adopted, clean, set up, bound, verified.
    pub(super) fn prepare(&self, address: PciAddr, wish: &Wish, idle: Idle<'_>) -> Result<Known, Trouble> {
        self.ended(address, self.made_ready(address, wish, idle))
    }

    fn made_ready(&self, address: PciAddr, wish: &Wish, idle: Idle<'_>) -> Result<Known, Trouble> {
        let function = self.inventory.function(address)?;
        self.may_be_had(&function, wish, &self.sight())?;
        let was = self.adopted(&function, wish)?;
        let record = &self.record(address)?;
        failpoint::pass("pool.adopted");
        let driver = wish.driver(&was);
        self.cleaned(&function, driver)?;
        failpoint::pass("pool.reset");
        let settings = self.set(&function, &wish.settings(record, &was), false)?;
        failpoint::pass("pool.set");
        self.driven(&function, driver, wish, &was)?;
        failpoint::pass("pool.bound");
        if let Some(interface) = was.interface.as_ref().filter(|_| driver != VFIO) {
            let link = self.at_home(address, driver, Some(record.mac))?;
            self.look_so(address, link, &wish.look(interface), idle)?;
        }
        let known =
            Known { function: self.inventory.function(address)?, driver: driver.to_owned(), settings };
        self.verify(record, wish, &known, &self.sight())?;
        Ok(known)
    }

    /// Gives a member back as it was. What the NIC does not take back any more is told and passed over.
    pub(super) fn give_back(&self, address: PciAddr, wish: &Wish, idle: Idle<'_>) -> Result<(), Trouble> {
        self.ended(address, self.given_back(address, wish, idle))
    }

    fn given_back(&self, address: PciAddr, wish: &Wish, idle: Idle<'_>) -> Result<(), Trouble> {
        let record = self.record(address)?;
        let Some(was) = record.was_in(&self.boot_id) else { return self.nothing_to_give_back(address) };
        let function = self.inventory.function(address)?;
        self.leave_alone(&function, wish.left)?;
        let was = &self.begun(&function, wish, was)?;
        self.cleaned(&function, &was.driver)?;
        failpoint::pass("pool.stripped");
        self.set(&function, &VfProfile::from(&was.settings), true)?;
        failpoint::pass("pool.restored");
        self.driven(&function, &was.driver, wish, was)?;
        failpoint::pass("pool.rebound");
        if let Some(interface) = was.interface.as_ref().filter(|_| was.driver != VFIO) {
            let link = self.at_home(address, &was.driver, interface.mac)?;
            self.look_so(address, link, &interface.look(), idle)?;
        }
        failpoint::pass("pool.given");
        self.nothing_to_give_back(address)
    }

    /// How it was is of no use any more.
    pub(super) fn nothing_to_give_back(&self, address: PciAddr) -> Result<(), Trouble> {
        self.records.change(address, |record| record.was = None).map_err(Trouble::Record)
    }

    /// The machine's functions, and what devlink tells of their cards: for a look.
    pub(super) fn scan_anew(&self) -> Result<Scan, InventoryError> {
        let told = self.kernel.devlink_or_none();
        *self.devlink.lock().unwrap_or_else(PoisonError::into_inner) = told;
        self.scan()
    }

    /// The machine's functions, and what devlink told the last look of their cards: devlink may take its time, and whoever
    /// goes by a pool's selectors between two looks has to see what the look saw.
    pub(super) fn scan(&self) -> Result<Scan, InventoryError> {
        self.inventory.scan(&self.devlink())
    }

    pub(super) fn devlink(&self) -> Arc<[DevlinkDevice]> {
        Arc::clone(&self.devlink.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn record(&self, address: PciAddr) -> Result<Record, Trouble> {
        let record = self.records.get(address);
        record.ok_or_else(|| Trouble::Unfit("nothing is on record of it".to_owned()))
    }

    /// Refuses a function that somebody else uses, and one that no pod could have as its pool wants it.
    pub(super) fn may_be_had(
        &self,
        function: &Function,
        wish: &Wish,
        sight: &Sight<'_>,
    ) -> Result<(), Trouble> {
        let unserved = self.inventory.unserved(function.address)?;
        let what = unserved.filter(|unserved| wish.minds(unserved)).map(|unserved| unserved.to_string());
        let user = || user::of(sight, function, wish.left);
        let who = what.map_or_else(user, |what| Ok(Some(what)))?;
        who.map_or(Ok(()), |who| Err(Trouble::Taken(who)))
    }

    /// Refuses a function that somebody else uses. `left`: what is on its interface is nobody's.
    pub(super) fn leave_alone(&self, function: &Function, left: bool) -> Result<(), Trouble> {
        self.may_be_had(function, &Wish { leaves: true, left, ..Wish::default() }, &self.sight())
    }

    /// What is to be seen now.
    pub(super) fn sight(&self) -> Sight<'_> {
        Sight::of(self.kernel.as_ref())
    }

    /// Without a kernel driver, and reset: what somebody has left in it or in its physical function by the mailbox is gone.
    ///
    /// Not so the further MAC addresses that a pod with `trust` had on igb. igbvf takes them away by a message with an address of
    /// zeroes, and igb (since 584af82154f5, end of 2021) looks at the address first and refuses it; without `trust` it refuses
    /// all. Seen on 6.12: set up and down with `trust`, reset and bound anew, the function still hears them.
    fn cleaned(&self, function: &Function, next: &str) -> Result<(), Trouble> {
        let address = function.address.to_string();
        let stays = function.driver.as_deref() == Some(VFIO) && next == VFIO;
        if function.driver.is_some() && !stays {
            self.kernel.unbind(&address).map_err(in_use)?;
        }
        failpoint::pass("pool.unbound");
        self.kernel.reset(&address).map_err(in_use)
    }

    /// The settings are as wanted, and read back. `as_far_as_taken`: what the NIC refuses is told and passed over.
    fn set(&self, function: &Function, wanted: &VfProfile, as_far_as_taken: bool) -> Result<Vf, Trouble> {
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
            false => Err(Trouble::Unfit(format!(
                "its physical function {} took {}, and tells {}",
                function.physical.address,
                left.change.describe(),
                left.undo.describe()
            ))),
        }
    }

    /// Bound to `driver`. The driver that the administrator has fixed is changed only where it stood in the way of vfio-pci,
    /// or is ours; where somebody else binds the pool's functions, never.
    fn driven(&self, function: &Function, driver: &str, wish: &Wish, was: &Was) -> Result<(), Trouble> {
        let now = self.inventory.function(function.address)?;
        if now.driver.as_deref() == Some(driver) {
            return Ok(());
        }
        let only = self.kernel.fixed_driver(&function.address.to_string())?;
        wish.unless_promised(driver, now.driver.as_deref().or(only.as_deref()))?;
        let ours = only.as_deref() == Some(VFIO) && was.driver != VFIO;
        let fixed = match (driver == VFIO, ours) {
            _ if wish.is_bound_by_others() => Override::Keep,
            (true, _) => Override::Set,
            (false, true) if was.fixed => Override::Set,
            (false, true) => Override::Clear,
            (false, false) => Override::Keep,
        };
        Ok(self.kernel.bind(&function.address.to_string(), driver, fixed)?)
    }

    /// The interface is there, with this MAC address.
    fn at_home(
        &self,
        address: PciAddr,
        driver: &str,
        mac: Option<fairlead_host::Mac>,
    ) -> Result<Link, Trouble> {
        let mut host = self.kernel.host()?;
        let link = appear(host.as_mut(), address, APPEARS)?
            .ok_or_else(|| Trouble::Unfit(format!("driver {driver} makes no interface for it")))?;
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
