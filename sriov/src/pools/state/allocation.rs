//! Members that kubelet has allocated to pods, before their ADD comes or without one.
//!
//! A pod that has an allocated member is not disturbed. Only kubelet, an ADD or the operator can end the allocation.

use super::member::MemberState;
use super::{Pool, Refusal};
use crate::PciAddr;

impl Pool {
    /// The allocator gives a member to a pod: its ADD comes for it, or none ever does. One that is not ready is prepared for it
    /// first, and so is one that the allocator has given before without an ADD: it may be as the pod of then has left it. Then
    /// the pod may have it only when [`Pool::allocated_when_ready`] says so. For one that is lent its ADD waits.
    pub fn allocate(&mut self, address: PciAddr) -> Result<(), Refusal> {
        let Some(member) = self.member_mut(address) else { return Err(Refusal::Gone) };
        member.givable()?;
        if matches!(member.state, MemberState::Ready { allocated: true, .. }) {
            member.leave_behind();
        }
        member.set_allocated(true);
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
