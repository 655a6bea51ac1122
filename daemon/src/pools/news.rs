//! News of devices, and the members to which nothing is done: those are looked at because of them.

use std::collections::BTreeSet;
use std::mem;
use std::time::Instant;

use fairlead_host::watch::{Action, DeviceEvent};
use fairlead_sriov::PciAddr;
use fairlead_sriov::pool::{Condition, Member};

use super::holders::Holders;
use super::keeper::Look;
use super::trouble::Trouble;
use super::workshop::Wish;
use super::{Known, Live, Pools, State};

/// A member to which nothing is done, as it was when it was looked at.
pub(super) struct Settled {
    pub(super) address: PciAddr,
    physical: PciAddr,
    turns: u64,
    pub(super) wish: Wish,
    /// As it was when it became ready.
    pub(super) known: Option<Known>,
    condition: Condition,
}

impl Pools {
    /// Has the keeper look at what news make necessary. What is done to members that are at work or lent is ours.
    pub fn heard(&self, news: &[DeviceEvent]) {
        let mut state = self.lock();
        let now = Instant::now();
        let mut is_back = false;
        for event in news {
            is_back |= about_physical(event).is_some_and(|physical| state.try_again(physical, now));
            match event {
                DeviceEvent::Overflow => state.look = Some(Look::Thorough),
                DeviceEvent::Pci { action: Action::Removed, .. } => {
                    state.look = state.look.max(Some(Look::Quick));
                }
                // New functions are whole when their physical function has changed: until then it tells nothing of them.
                DeviceEvent::Pci { device, action: Action::Changed } if self.is_physical(device) => {
                    state.look = state.look.max(Some(Look::Quick));
                }
                // One of its switch's has come, gone or been named: what stands for its functions.
                DeviceEvent::Interface { device, .. } if self.is_physical(device) => {
                    state.look = state.look.max(Some(Look::Quick));
                }
                DeviceEvent::Pci { device, action: Action::Bound | Action::Unbound }
                | DeviceEvent::Interface { device, action: Action::Added | Action::Removed, .. } => {
                    device.parse().into_iter().for_each(|address| state.suspect(address));
                }
                DeviceEvent::Carrier { device, .. } => {
                    if device.parse().is_ok_and(|physical| state.goes_by_carrier(physical)) {
                        state.look = state.look.max(Some(Look::Quick));
                    }
                }
                DeviceEvent::Pci { .. } | DeviceEvent::Interface { .. } => {}
            }
        }
        if state.is_to_be_looked_at() {
            self.changed.notify_all();
        }
        drop(state);
        if is_back {
            self.wake(now);
        }
    }

    fn is_physical(&self, device: &str) -> bool {
        device.parse().is_ok_and(|address| self.shop.inventory.is_physical(address))
    }

    /// Compares the members that news were about, each alone: what no news tell, its settings, is not read again for it.
    pub(super) fn glance(&self, holders: Holders<'_>) {
        let suspects: Vec<Settled> = {
            let mut state = self.lock();
            let suspects = mem::take(&mut state.suspects).into_iter();
            suspects.filter_map(|address| state.settled_one(address)).collect()
        };
        if suspects.is_empty() {
            return;
        }
        let (mut hanging, inherited) = (BTreeSet::new(), (holders.inherited)());
        for settled in suspects {
            if self.claimed(settled.address, &inherited) || hanging.contains(&settled.physical) {
                continue;
            }
            let found = self.glance_at(&settled);
            if found.as_ref().is_err_and(Trouble::is_a_hang) {
                hanging.insert(settled.physical);
            }
            self.found(&settled, found);
        }
    }

    fn glance_at(&self, settled: &Settled) -> Result<Known, Trouble> {
        let function = self.shop.inventory.function(settled.address)?;
        let (wish, sight) = (&settled.wish, &self.shop.sight());
        match &settled.known {
            Some(known) => self.shop.compare(&function, wish, std::slice::from_ref(&known.settings), sight),
            None => {
                self.shop.may_be_had(&function, wish, sight)?;
                Err(Trouble::Changed("nobody uses it any more".to_owned()))
            }
        }
    }

    /// How a member was found, unless something was done to it meanwhile.
    pub(super) fn found(&self, settled: &Settled, found: Result<Known, Trouble>) {
        self.act(|state| {
            if state.turns(settled.address) == settled.turns {
                state.compared(settled.address, &settled.condition, found);
            }
        });
    }
}

/// A device that may work again by what is told of it.
fn about_physical(event: &DeviceEvent) -> Option<PciAddr> {
    match event {
        DeviceEvent::Carrier { device, .. }
        | DeviceEvent::Pci { device, action: Action::Bound | Action::Changed }
        | DeviceEvent::Interface { device, action: Action::Added, .. } => device.parse().ok(),
        _ => None,
    }
}

impl State {
    /// What waits for this physical function waits no longer.
    fn try_again(&mut self, physical: PciAddr, now: Instant) -> bool {
        let all = self.pools.iter_mut().map(|live| live.pool.try_again(physical, now));
        all.filter(|has_any| *has_any).count() > 0
    }

    /// Has a member looked at, unless something is done to it or a pod has it.
    pub(super) fn suspect(&mut self, address: PciAddr) {
        if self.settled_one(address).is_some() {
            self.suspects.insert(address);
        }
    }

    pub(super) fn is_to_be_looked_at(&self) -> bool {
        self.look.is_some() || !self.suspects.is_empty()
    }

    fn settled_one(&self, address: PciAddr) -> Option<Settled> {
        self.member(address).and_then(|(live, member)| self.at_rest(live, member))
    }

    /// `None` for one that is at work, a pod's, or gone.
    pub(super) fn at_rest(&self, live: &Live, member: &Member) -> Option<Settled> {
        let rests = match member.condition {
            Condition::Ready => !member.given,
            Condition::Foreign(_) => true,
            _ => false,
        };
        rests.then(|| Settled {
            address: member.address,
            physical: member.physical,
            turns: self.turns(member.address),
            wish: live.wish.for_one(member),
            known: self.known.get(&member.address).filter(|_| member.condition == Condition::Ready).cloned(),
            condition: member.condition.clone(),
        })
    }
}
