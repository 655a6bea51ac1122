//! Members on which a pod has left what could not be undone: nobody has one before it was bound anew and verified.

use super::Pool;
use super::member::{Hold, Member, MemberState};
use crate::PciAddr;

impl Pool {
    /// A pod has left on a member what could not be undone, in words (`why`): no pod has it before it was bound anew and verified.
    pub fn soiled(&mut self, address: PciAddr, why: &str) {
        self.with(address, |member| member.soil(why));
    }
}

impl Member {
    /// Whether it is ready, or will be, by its pool's own doing.
    pub(super) fn is_for_pods(&self) -> bool {
        matches!(self.hold, None | Some(Hold::Unclean(_)))
    }

    /// A pod has left on it what could not be undone. An order of the operator's stands: each of them ends with a VF that was bound anew.
    pub(super) fn soil(&mut self, why: &str) {
        let unclean = Hold::Unclean(why.to_owned());
        self.doubt();
        match &mut self.hold {
            None | Some(Hold::Unclean(_)) => self.hold = Some(unclean),
            Some(Hold::Dismissed(before)) if before.is_none() => *before = Some(Box::new(unclean)),
            Some(Hold::Dismissed(_) | Hold::Drained | Hold::Quarantined(_)) => {}
        }
    }

    /// Its driver was bound anew: whatever was left on its interface went with that.
    pub(super) fn clean(&mut self) {
        match &mut self.hold {
            Some(Hold::Unclean(_)) => self.hold = None,
            Some(Hold::Dismissed(before)) if matches!(before.as_deref(), Some(Hold::Unclean(_))) => {
                *before = None;
            }
            _ => {}
        }
    }

    /// It is not in the machine any more, and with it went what was left on its interface.
    pub(super) fn is_lost(&mut self) {
        self.clean();
        self.state = MemberState::Gone;
    }
}
