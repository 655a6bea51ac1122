//! Members as they were when a look at them began. The look itself happens without the pools' lock; by the snapshot's revision
//! it shows afterwards whether something was done to the member meanwhile.

use super::shared::{PoolEntry, Shared};
use super::state::{Member, MemberState};
use super::target::{DesiredState, ReadyVf};
use crate::PciAddr;

/// A member to which nothing is done, as it was when the look at it began.
pub(super) struct MemberSnapshot {
    pub(super) address: PciAddr,
    pub(super) pf: PciAddr,
    pub(super) revision: u64,
    pub(super) desired: DesiredState,
    /// What was known of it when it became ready.
    pub(super) known: Option<ReadyVf>,
    /// It was ready; otherwise somebody else used it.
    pub(super) was_ready: bool,
    /// What is set on it now has whoever binds it set: it was ready and clean, and somebody else binds it.
    pub(super) is_as_owner_sets_it: bool,
}

impl Shared {
    pub(super) fn snapshot_of(&self, address: PciAddr) -> Option<MemberSnapshot> {
        self.member(address).and_then(|(entry, member)| self.at_rest(entry, member))
    }

    /// A member to which nothing is done; `None` for one that is at work, a pod's, or gone.
    pub(super) fn at_rest(&self, entry: &PoolEntry, member: &Member) -> Option<MemberSnapshot> {
        // One that is allocated may be in its pod's hands: it is not looked at.
        let (rests, was_ready) = match member.state {
            MemberState::Ready { allocated, .. } => (!allocated, true),
            MemberState::Foreign { .. } => (true, false),
            _ => (false, false),
        };
        rests.then(|| MemberSnapshot {
            address: member.address,
            pf: member.pf,
            revision: self.revision(member.address),
            desired: entry.desired.for_one(member),
            known: self.known.get(&member.address).filter(|_| was_ready).cloned(),
            was_ready,
            is_as_owner_sets_it: entry.desired.is_bound_by_others()
                && member.is_ready()
                && member.is_verified(),
        })
    }
}
