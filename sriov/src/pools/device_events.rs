//! Events of devices, and which members the reconciler looks at because of them.
//!
//! Only members to which nothing is done are looked at: what is done to the others is ours, and its end is known anyway. Lost
//! events cost time, never truth: they have everything compared.

use std::collections::BTreeSet;
use std::mem;
use std::time::Instant;

use fairlead_host::watch::{Action, DeviceEvent};

use super::member_snapshot::MemberSnapshot;
use super::owners::VfOwners;
use super::provision_error::ProvisionError;
use super::records::Record;
use super::scan_scope::Look;
use super::{Pools, ReadyVf, Shared};
use crate::PciAddr;

impl Pools {
    /// Takes events; has the reconciler look at what they make necessary.
    pub fn device_events(&self, news: &[DeviceEvent]) {
        let mut state = self.lock();
        let now = Instant::now();
        let mut is_back = false;
        for event in news {
            is_back |= may_work_again(event).is_some_and(|pf| state.try_again(pf, now));
            match event {
                DeviceEvent::Overflow => state.look = Some(Look::Thorough),
                DeviceEvent::Pci { action: Action::Removed, .. } => {
                    state.look = state.look.max(Some(Look::Quick));
                }
                // New VFs are whole when their PF has changed: until then it reports nothing of them.
                DeviceEvent::Pci { device, action: Action::Changed } if self.is_physical(device) => {
                    state.look = state.look.max(Some(Look::Quick));
                }
                // A representor of its switch has come, gone or been named.
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
                // A VF that was added is among these: it is looked at when its PF has changed, and all of it is there.
                DeviceEvent::Pci { .. } | DeviceEvent::Interface { .. } => {}
            }
        }
        if state.is_to_be_looked_at() {
            self.changed.notify_all();
        }
        drop(state);
        // The lock is free here: `wake` takes it again.
        if is_back {
            self.wake(now);
        }
    }

    fn is_physical(&self, device: &str) -> bool {
        device.parse().is_ok_and(|address| self.provisioner.inventory.is_physical(address))
    }

    /// Compares the members that events were about, each alone. Their settings are not read again: no event is about those.
    pub(super) fn check_suspects(&self, owners: VfOwners<'_>) {
        let suspects: Vec<MemberSnapshot> = {
            let mut state = self.lock();
            let suspects = mem::take(&mut state.suspects).into_iter();
            suspects.filter_map(|address| state.snapshot_of(address)).collect()
        };
        if suspects.is_empty() {
            return;
        }
        let (mut hanging, sriov_cni) = (BTreeSet::new(), (owners.sriov_cni)());
        for suspect in suspects {
            if self.claim_if_owned(suspect.address, &sriov_cni) || hanging.contains(&suspect.pf) {
                continue;
            }
            let found = self.check_suspect(&suspect);
            // This one has cost a whole time limit: the others of its card would cost one each.
            if found.as_ref().is_err_and(ProvisionError::is_a_hang) {
                hanging.insert(suspect.pf);
            }
            self.compared(&suspect, found);
        }
    }

    fn check_suspect(&self, suspect: &MemberSnapshot) -> Result<ReadyVf, ProvisionError> {
        let vf = self.provisioner.inventory.vf(suspect.address)?;
        let (desired, cache) = (&suspect.desired, &self.provisioner.cache());
        match &suspect.known {
            Some(known) => {
                self.provisioner.compare(&vf, desired, std::slice::from_ref(&known.settings), cache)
            }
            None => {
                // There are no known settings to compare with. If nobody uses the VF, `Changed` has it prepared again.
                self.provisioner.may_be_had(&vf, desired, cache)?;
                Err(ProvisionError::Changed("nobody uses it any more".to_owned()))
            }
        }
    }

    /// Takes how a member was found, unless something was done to it meanwhile.
    pub(super) fn compared(&self, member: &MemberSnapshot, found: Result<ReadyVf, ProvisionError>) {
        let found = match found {
            Err(ProvisionError::Changed(why)) => self.take_over(member).ok_or(ProvisionError::Changed(why)),
            found => found,
        };
        self.update(|state| {
            if state.revision(member.address) == member.revision {
                state.note_comparison(member.address, member.was_ready, found);
            }
        });
    }

    /// Leaves a member ready as whoever binds it has set it, on record: it is to be so after each pod too. `None` where that is not all
    /// that has changed.
    fn take_over(&self, member: &MemberSnapshot) -> Option<ReadyVf> {
        let MemberSnapshot { address, desired, .. } = member;
        let compared = || self.provisioner.compare_with_owners_changes(*address, desired).ok();
        let (mtu, known) = member.is_as_owner_sets_it.then(compared).flatten()?;
        // What was read is of a member that no pod has had since the look began: what a pod sets is never the default of the next one.
        if self.lock().revision(*address) != member.revision {
            return None;
        }
        let note = |record: &mut Record| {
            let original = record.original.iter_mut();
            original.for_each(|original| desired.take_over(original, mtu, &known.settings));
        };
        self.provisioner.records.change(*address, note).ok()?;
        tracing::info!(pci = %address, ?mtu, link_state = ?known.settings.link_state,
            "a VF of a pool stays as whoever binds it has set it");
        Some(known)
    }
}

/// The device of an event after which it may work again.
fn may_work_again(event: &DeviceEvent) -> Option<PciAddr> {
    match event {
        DeviceEvent::Carrier { device, .. }
        | DeviceEvent::Pci { device, action: Action::Bound | Action::Changed }
        | DeviceEvent::Interface { device, action: Action::Added, .. } => device.parse().ok(),
        _ => None,
    }
}

impl Shared {
    /// What waits for this PF waits no longer.
    fn try_again(&mut self, pf: PciAddr, now: Instant) -> bool {
        let all = self.pools.iter_mut().map(|entry| entry.pool.try_again(pf, now));
        all.filter(|has_any| *has_any).count() > 0
    }

    /// Has a member looked at, unless something is done to it or a pod has it.
    pub(super) fn suspect(&mut self, address: PciAddr) {
        if self.snapshot_of(address).is_some() {
            self.suspects.insert(address);
        }
    }

    /// Whether a look is due because of something that has happened.
    pub(super) fn is_to_be_looked_at(&self) -> bool {
        self.look.is_some() || !self.suspects.is_empty()
    }
}
