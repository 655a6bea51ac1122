//! News of devices, and the members to which nothing is done: those are looked at because of them.

use std::collections::BTreeSet;
use std::mem;
use std::time::Instant;

use super::state::{Member, MemberState};
use crate::PciAddr;
use fairlead_host::watch::{Action, DeviceEvent};

use super::owners::Holders;
use super::provision_error::ProvisionError;
use super::reconciler::Look;
use super::shared::PoolEntry;
use super::target::DesiredState;
use super::{Known, Pools, Shared};

/// A member to which nothing is done, as it was when it was looked at.
pub(super) struct MemberSnapshot {
    pub(super) address: PciAddr,
    physical: PciAddr,
    revision: u64,
    pub(super) desired: DesiredState,
    /// As it was when it became ready.
    pub(super) known: Option<Known>,
    /// It was ready; otherwise somebody else used it.
    was_ready: bool,
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
        device.parse().is_ok_and(|address| self.provisioner.inventory.is_physical(address))
    }

    /// Compares the members that news were about, each alone: what no news tell, its settings, is not read again for it.
    pub(super) fn check_suspects(&self, holders: Holders<'_>) {
        let suspects: Vec<MemberSnapshot> = {
            let mut state = self.lock();
            let suspects = mem::take(&mut state.suspects).into_iter();
            suspects.filter_map(|address| state.settled_one(address)).collect()
        };
        if suspects.is_empty() {
            return;
        }
        let (mut hanging, inherited) = (BTreeSet::new(), (holders.inherited)());
        for settled in suspects {
            if self.claim_if_owned(settled.address, &inherited) || hanging.contains(&settled.physical) {
                continue;
            }
            let found = self.check_suspect(&settled);
            if found.as_ref().is_err_and(ProvisionError::is_a_hang) {
                hanging.insert(settled.physical);
            }
            self.found(&settled, found);
        }
    }

    fn check_suspect(&self, settled: &MemberSnapshot) -> Result<Known, ProvisionError> {
        let function = self.provisioner.inventory.function(settled.address)?;
        let (desired, cache) = (&settled.desired, &self.provisioner.cache());
        match &settled.known {
            Some(known) => {
                self.provisioner.compare(&function, desired, std::slice::from_ref(&known.settings), cache)
            }
            None => {
                self.provisioner.may_be_had(&function, desired, cache)?;
                Err(ProvisionError::Changed("nobody uses it any more".to_owned()))
            }
        }
    }

    /// How a member was found, unless something was done to it meanwhile.
    pub(super) fn found(&self, settled: &MemberSnapshot, found: Result<Known, ProvisionError>) {
        self.update(|state| {
            if state.revision(settled.address) == settled.revision {
                state.compared(settled.address, settled.was_ready, found);
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

impl Shared {
    /// What waits for this physical function waits no longer.
    fn try_again(&mut self, physical: PciAddr, now: Instant) -> bool {
        let all = self.pools.iter_mut().map(|entry| entry.pool.try_again(physical, now));
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

    fn settled_one(&self, address: PciAddr) -> Option<MemberSnapshot> {
        self.member(address).and_then(|(entry, member)| self.at_rest(entry, member))
    }

    /// `None` for one that is at work, a pod's, or gone.
    pub(super) fn at_rest(&self, entry: &PoolEntry, member: &Member) -> Option<MemberSnapshot> {
        // One that is allocated may be in its pod's hands: it is not looked at.
        let (rests, was_ready) = match member.state {
            MemberState::Ready { allocated, .. } => (!allocated, true),
            MemberState::Foreign { .. } => (true, false),
            _ => (false, false),
        };
        rests.then(|| MemberSnapshot {
            address: member.address,
            physical: member.pf,
            revision: self.revision(member.address),
            desired: entry.desired.for_one(member),
            known: self.known.get(&member.address).filter(|_| was_ready).cloned(),
            was_ready,
        })
    }
}
