//! Members that somebody has. Some were never lent by a pool (sriov-cni gave them to pods); some are lent still although their
//! owner has let them go.
//!
//! Files are read before the pools' lock is taken, never under it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::state::MemberState;
use super::{Pools, Shared};
use crate::PciAddr;

/// Who owns a VF, as the caller knows it.
#[derive(Clone, Copy)]
pub struct VfOwners<'h> {
    /// The owner by the caller's own store, in words: nothing is waited for.
    pub ours: &'h dyn Fn(PciAddr) -> Option<String>,
    /// The owners by the files of another plugin. Those are read: never under the pools' lock, and once for many VFs.
    pub sriov_cni: &'h dyn Fn() -> SriovCniOwners,
}

/// The owners that another plugin's files name, in words. Where those cannot be read, any VF may have one: the error says
/// who, in words.
pub type SriovCniOwners = Result<Arc<BTreeMap<PciAddr, String>>, String>;

impl VfOwners<'_> {
    /// The owner by either.
    pub(super) fn of(self, address: PciAddr, sriov_cni: &SriovCniOwners) -> Option<String> {
        (self.ours)(address).or_else(|| sriov_cni_owner(sriov_cni, address))
    }
}

/// The owner of a VF by another plugin's files.
pub(super) fn sriov_cni_owner(sriov_cni: &SriovCniOwners, address: PciAddr) -> Option<String> {
    match sriov_cni {
        Ok(owners) => owners.get(&address).cloned(),
        Err(somebody) => Some(somebody.clone()),
    }
}

impl Pools {
    /// Takes members that somebody owns whom no pool has lent them, as pods of another plugin do, for lent all the same, so that
    /// nothing is done to one while its owner gives it back.
    pub(super) fn claim_owned(&self, owners: VfOwners<'_>) {
        let unlent: Vec<PciAddr> = {
            let state = self.lock();
            let unlent = state.members().filter(|(_, member)| is_unlent(&member.state));
            unlent.map(|(_, member)| member.address).collect()
        };
        let sriov_cni = (owners.sriov_cni)();
        for address in unlent {
            self.claim_if_owned(address, &sriov_cni);
        }
    }

    /// Takes a member for lent if another plugin's files name an owner; says whether. Files that cannot be read just now empty
    /// no pool.
    pub(super) fn claim_if_owned(&self, address: PciAddr, sriov_cni: &SriovCniOwners) -> bool {
        let is_owned = sriov_cni.as_ref().is_ok_and(|owners| owners.contains_key(&address));
        is_owned && self.update(|state| state.claim(address))
    }

    /// Takes back members that nobody owns any more: whoever had one has not reported its return, as sriov-cni does not.
    pub(super) fn reclaim_unowned(&self, owners: VfOwners<'_>) {
        let is_unowned = |state: &Shared, address| {
            !state.in_transit.contains(&address) && (owners.ours)(address).is_none()
        };
        let lent = self.lock().lent();
        let sriov_cni = (owners.sriov_cni)();
        for address in lent.into_iter().filter(|address| owners.of(*address, &sriov_cni).is_none()) {
            self.update(|state| {
                // Asked again under the lock: an ADD may have recorded its owner since the list was made.
                if is_unowned(state, address)
                    && let Some(entry) = state.of(address)
                {
                    entry.pool.returned(address);
                }
            });
        }
    }
}

impl Shared {
    /// A call that has it in hands says itself whose it becomes.
    fn claim(&mut self, address: PciAddr) -> bool {
        let is_in_transit = self.in_transit.contains(&address);
        let Some(entry) = self.of(address).filter(|_| !is_in_transit) else { return false };
        let is_claimed = entry.pool.member(address).is_some_and(|member| is_unlent(&member.state));
        if is_claimed {
            entry.pool.claimed(address);
        }
        is_claimed
    }

    fn lent(&self) -> Vec<PciAddr> {
        let lent = self.members().filter(|(_, member)| matches!(member.state, MemberState::Lent { .. }));
        lent.map(|(_, member)| member.address).collect()
    }
}

/// Whether a member may have an owner that its pool does not know of.
fn is_unlent(state: &MemberState) -> bool {
    matches!(state, MemberState::Ready { .. } | MemberState::Idle | MemberState::Foreign { .. })
}
