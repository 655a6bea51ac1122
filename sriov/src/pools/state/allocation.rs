//! Members that kubelet has allocated to pods, before their ADD comes or without one.
//!
//! A pod that has an allocated member is not disturbed. Only kubelet, an ADD or the operator can end the allocation.

use std::time::{Duration, Instant};

use super::member::MemberState;
use super::{Member, Pool, Refusal};
use crate::PciAddr;

/// A member that is allocated again so soon is allocated to the same pod: kubelet asks for each container, and an app container may
/// have what an init container had. In that time no other pod can have been admitted, started, used the member and ended with it. It
/// begins when kubelet is answered: no pod starts before.
const SAME_POD: Duration = Duration::from_secs(2);

impl Pool {
    /// The allocator gives a member to a pod: its ADD comes for it, or none ever does. One that is not ready is prepared for it
    /// first, and so is one that the allocator has given to another pod before without an ADD: it may be as that has left it. Then
    /// the pod may have it only when [`Pool::allocated_when_ready`] says so. For one that is lent its ADD waits.
    pub fn allocate(&mut self, address: PciAddr, now: Instant) -> Result<(), Refusal> {
        let Some(member) = self.member_mut(address) else { return Err(Refusal::Gone) };
        member.givable()?;
        if member.is_given() && !member.was_just_allocated(now) {
            member.leave_behind();
        }
        member.set_allocated(true);
        member.allocated_at = Some(now);
        match member.state {
            MemberState::Ready { .. } | MemberState::Lent { .. } => Ok(()),
            _ => Err(member.not_yet()),
        }
    }

    /// Whether one that was allocated and had to be waited for is ready for its pod, or lent still, so that its ADD waits. If not, the pod
    /// is refused it.
    pub fn allocated_when_ready(&mut self, address: PciAddr) -> Result<(), Refusal> {
        let Some(member) = self.member_mut(address) else { return Err(Refusal::Gone) };
        let is_its = matches!(
            member.state,
            MemberState::Ready { allocated: true, .. } | MemberState::Lent { allocated: true, .. }
        );
        if is_its && member.hold.is_none() {
            return Ok(());
        }
        member.set_allocated(false);
        Err(member.lendable().err().unwrap_or_else(|| member.not_yet()))
    }

    /// The allocator is answered. Since [`Pool::allocate`] it may have waited: for this member, or for another one of the same answer.
    pub fn allocation_answered(&mut self, address: PciAddr, now: Instant) {
        self.with(address, |member| member.allocated_at = Some(now));
    }

    /// A pod that a member was allocated to is refused it.
    pub fn cancel_allocation(&mut self, address: PciAddr) {
        self.with(address, |member| member.set_allocated(false));
    }

    /// The operator says that no pod has a member that was allocated: what is due is done with it.
    pub fn nobody_has(&mut self, address: PciAddr) {
        self.with(address, |member| {
            if matches!(member.state, MemberState::Ready { allocated: true, .. }) {
                member.set_allocated(false);
                member.leave_behind();
            }
        });
    }
}

impl Member {
    fn was_just_allocated(&self, now: Instant) -> bool {
        self.allocated_at.is_some_and(|then| now.saturating_duration_since(then) < SAME_POD)
    }
}
