//! Removals in which programs of others are executed. Each may hang until its time limit, so they have threads of their own, made
//! when one is due: few for one owner and a bounded number in all. Nobody else waits for those threads.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::store::{Attachment, Phase};

/// So many removals of one owner are at work at a time.
const OF_ONE_OWNER: usize = 4;
/// So many of all owners.
const OF_ALL: usize = 32;

/// By whose programs a removal can be held up: those of a tenant's definitions, or those of one network of the administrator's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ProgramOwner {
    Tenant(Arc<str>),
    Network(String),
}

/// A removal that executes programs.
#[derive(Debug, Clone)]
pub(crate) struct ExecutedRemoval {
    /// The number of its attachment.
    pub(crate) id: u64,
    pub(crate) owner: ProgramOwner,
}

impl ExecutedRemoval {
    /// The removal of this attachment, if programs are still to be executed for it.
    pub(crate) fn of(attachment: &Attachment) -> Option<ExecutedRemoval> {
        let executes =
            attachment.has_delegates() && matches!(attachment.phase, Phase::Adding | Phase::Removing);
        executes.then(|| ExecutedRemoval {
            id: attachment.id,
            owner: match &attachment.namespace {
                Some(namespace) => ProgramOwner::Tenant(Arc::clone(namespace)),
                None => ProgramOwner::Network(attachment.key.network.clone()),
            },
        })
    }
}

#[derive(Debug, Default)]
struct AtWork {
    ids: HashSet<u64>,
    owners: HashMap<ProgramOwner, usize>,
    waiting: VecDeque<ExecutedRemoval>,
}

/// Those that are at work, and those that wait for a thread.
#[derive(Debug, Default)]
pub(crate) struct ExecutedRemovals(Mutex<AtWork>);

impl ExecutedRemovals {
    /// True when the caller is to make a thread for it; else it waits for one, or is at work or waits already.
    pub(crate) fn begins(&self, removal: &ExecutedRemoval) -> bool {
        let mut state = self.0.lock();
        if state.ids.contains(&removal.id) || state.waiting.iter().any(|other| other.id == removal.id) {
            return false;
        }
        let begins = state.has_room(&removal.owner);
        match begins {
            true => state.begin(removal),
            false => state.waiting.push_back(removal.clone()),
        }
        begins
    }

    /// One has ended; the next for its thread, if one may begin.
    pub(crate) fn next(&self, ended: &ExecutedRemoval) -> Option<ExecutedRemoval> {
        let mut state = self.0.lock();
        state.end(ended);
        let at = state.waiting.iter().position(|next| state.has_room(&next.owner))?;
        let next = state.waiting.remove(at)?;
        state.begin(&next);
        Some(next)
    }
}

impl AtWork {
    fn has_room(&self, owner: &ProgramOwner) -> bool {
        self.ids.len() < OF_ALL && self.owners.get(owner).is_none_or(|at_work| *at_work < OF_ONE_OWNER)
    }

    fn begin(&mut self, removal: &ExecutedRemoval) {
        self.ids.insert(removal.id);
        *self.owners.entry(removal.owner.clone()).or_default() += 1;
    }

    fn end(&mut self, removal: &ExecutedRemoval) {
        self.ids.remove(&removal.id);
        let Some(at_work) = self.owners.get_mut(&removal.owner) else { return };
        *at_work -= 1;
        if *at_work == 0 {
            self.owners.remove(&removal.owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removal(id: u64, owner: &str) -> ExecutedRemoval {
        ExecutedRemoval { id, owner: ProgramOwner::Tenant(owner.into()) }
    }

    #[test]
    fn one_owner_has_few_at_work_and_all_together_a_bounded_number() {
        let removals = ExecutedRemovals::default();
        let begun = (0..100).filter(|id| removals.begins(&removal(*id, "a"))).count();
        assert_eq!(begun, OF_ONE_OWNER);
        let others = (100..300).filter(|id| removals.begins(&removal(*id, &id.to_string()))).count();
        assert_eq!(begun + others, OF_ALL);
    }

    #[test]
    fn what_waits_begins_when_one_of_its_owner_has_ended_and_none_is_begun_twice() {
        let removals = ExecutedRemovals::default();
        for id in 0..6 {
            removals.begins(&removal(id, "a"));
            assert!(!removals.begins(&removal(id, "a")), "it is at work or waits already");
        }
        assert!(removals.begins(&removal(10, "b")));
        assert!(
            removals.next(&removal(10, "b")).is_none(),
            "the thread of another owner takes none of these"
        );
        let next: Vec<_> = (0..3).filter_map(|id| removals.next(&removal(id, "a"))).map(|r| r.id).collect();
        assert_eq!(next, [4, 5]);
        assert!(removals.begins(&removal(0, "a")), "one that has failed comes again");
    }
}
