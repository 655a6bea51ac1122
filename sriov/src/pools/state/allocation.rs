//! Members that an allocator gives to pods, as kubelet does: before their ADD comes, or without one. Who has one ready in his
//! hands is not disturbed: only the allocator, an ADD or the operator can say that he has it no more.

use super::{Condition, Pool, Refusal};
use crate::PciAddr;

impl Pool {
    /// The allocator gives a member to a pod: its ADD comes for it, or none ever does. One that is not ready is prepared for it
    /// first, and so is one that the allocator has given before without an ADD: it may be as the pod of then has left it. Then
    /// the pod may have it only when [`Pool::allocated_when_ready`] says so. For one that is lent its ADD waits.
    pub fn allocate(&mut self, address: PciAddr) -> Result<(), Refusal> {
        let Some(member) = self.member_mut(address) else { return Err(Refusal::Gone) };
        member.givable()?;
        if member.given && member.condition == Condition::Ready {
            member.leave_behind();
        }
        member.given = true;
        match member.condition {
            Condition::Ready | Condition::Lent => Ok(()),
            _ => Err(member.not_yet()),
        }
    }

    /// Whether one that was given and had to be prepared first is ready for its pod. If not, the pod is refused it.
    pub fn allocated_when_ready(&mut self, address: PciAddr) -> Result<(), Refusal> {
        let Some(member) = self.member_mut(address) else { return Err(Refusal::Gone) };
        if member.given && member.condition == Condition::Ready && member.hold.is_none() {
            return Ok(());
        }
        member.given = false;
        Err(member.lendable().err().unwrap_or_else(|| member.not_yet()))
    }

    /// A pod that a member was given to is refused it.
    pub fn cancel_allocation(&mut self, address: PciAddr) {
        self.with(address, |member| member.given = false);
    }

    /// The operator says that no pod has a member that was given: it is done with it what is due.
    pub fn nobody_has(&mut self, address: PciAddr) {
        self.with(address, |member| {
            if member.given && member.condition == Condition::Ready {
                member.given = false;
                member.leave_behind();
            }
        });
    }
}
