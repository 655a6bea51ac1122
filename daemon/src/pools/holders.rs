//! Members that somebody has: those that nobody has lent him, and those that he has no more.
//!
//! Files are read before the pools' lock is taken, never under it.

use std::sync::Arc;

use fairlead_cni::CniError;
use fairlead_sriov::PciAddr;
use fairlead_sriov::pool::Condition;

use super::{Pools, State};
use crate::sriov_cni::Left;

/// Whose a function is.
#[derive(Clone, Copy)]
pub struct Holders<'h> {
    /// As the engine's store has it: nothing is waited for.
    pub ours: &'h dyn Fn(PciAddr) -> Option<String>,
    /// As the files of the plugin before us have it. They are read: never under the pools' lock, and once for many.
    pub(crate) inherited: &'h dyn Fn() -> Inherited,
}

/// What the plugin before us has given to pods.
pub(crate) type Inherited = Result<Arc<Left>, CniError>;

impl Holders<'_> {
    /// Either.
    pub(super) fn of(self, address: PciAddr, inherited: &Inherited) -> Option<String> {
        (self.ours)(address).or_else(|| before_us(inherited, address))
    }
}

/// Of files that cannot be read nobody knows.
pub(super) fn before_us(inherited: &Inherited, address: PciAddr) -> Option<String> {
    match inherited {
        Ok(left) => left.holder_of(address).map(|pod| format!("sriov-cni's {pod}")),
        Err(_) => Some("sriov-cni's, whose files cannot be read".to_owned()),
    }
}

impl Pools {
    /// Members that somebody has whom no pool has lent them, as sriov-cni's pods: lent to him all the same, so that nothing is
    /// done to one while he brings it home.
    pub(super) fn claim(&self, holders: Holders<'_>) {
        let unlent: Vec<PciAddr> = {
            let state = self.lock();
            let unlent = state.members().filter(|(_, member)| is_unlent(&member.condition));
            unlent.map(|(_, member)| member.address).collect()
        };
        let inherited = (holders.inherited)();
        for address in unlent {
            self.claimed(address, &inherited);
        }
    }

    /// Whether a member is somebody's whom no pool has lent it. Files that cannot be read just now empty no pool.
    pub(super) fn claimed(&self, address: PciAddr, inherited: &Inherited) -> bool {
        let is_told = inherited.as_ref().is_ok_and(|left| left.lists(address));
        is_told && self.act(|state| state.claim(address))
    }

    /// Members that are lent to nobody any more: whoever had one has not told of its return, as sriov-cni does not.
    pub(super) fn reclaim(&self, holders: Holders<'_>) {
        let is_left = |state: &State, address| {
            !state.on_the_way.contains(&address) && (holders.ours)(address).is_none()
        };
        let lent = self.lock().lent();
        let inherited = (holders.inherited)();
        for address in lent.into_iter().filter(|address| holders.of(*address, &inherited).is_none()) {
            self.act(|state| {
                if is_left(state, address)
                    && let Some(live) = state.of(address)
                {
                    live.pool.returned(address);
                }
            });
        }
    }
}

impl State {
    /// A call that has it in hands says itself whose it becomes.
    fn claim(&mut self, address: PciAddr) -> bool {
        let is_on_the_way = self.on_the_way.contains(&address);
        let Some(live) = self.of(address).filter(|_| !is_on_the_way) else { return false };
        let is_claimed = live.pool.member(address).is_some_and(|member| is_unlent(&member.condition));
        if is_claimed {
            live.pool.claimed(address);
        }
        is_claimed
    }

    fn lent(&self) -> Vec<PciAddr> {
        let lent = self.members().filter(|(_, member)| member.condition == Condition::Lent);
        lent.map(|(_, member)| member.address).collect()
    }
}

/// What a member is in that somebody can have got past its pool.
fn is_unlent(condition: &Condition) -> bool {
    matches!(condition, Condition::Ready | Condition::Idle | Condition::Foreign(_))
}
