//! What is still to be done for attachments that were answered as gone, and for VFs of dead pods, and when: a queue by
//! time, and the threads that work it off.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fairlead_cni::CniError;
use fairlead_sriov::PciAddr;

/// Between the first two attempts at a removal.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Between later ones at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// What is to be looked after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Errand {
    /// An attachment that goes.
    Attachment(u64),
    /// A VF that sriov-cni gave to a pod.
    Inherited(PciAddr),
}

impl From<u64> for Errand {
    fn from(id: u64) -> Errand {
        Errand::Attachment(id)
    }
}

impl From<PciAddr> for Errand {
    fn from(address: PciAddr) -> Errand {
        Errand::Inherited(address)
    }
}

#[derive(Debug, Default)]
struct Queue {
    by_time: BTreeSet<(Instant, Errand)>,
    due: HashMap<Errand, Instant>,
    at_work: HashSet<Errand>,
    failures: HashMap<Errand, (u32, CniError)>,
    stopped: bool,
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Reaper {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// One attachment that nobody else works on while this is held.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    reaper: &'a Reaper,
    id: Errand,
}

impl Reaper {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is to be looked after at `due`, or earlier if it already was.
    pub(super) fn expect(&self, errand: impl Into<Errand>, due: Instant) {
        let id = errand.into();
        let mut queue = self.lock();
        let due = queue.due.get(&id).map_or(due, |before| due.min(*before));
        if let Some(before) = queue.due.insert(id, due) {
            queue.by_time.remove(&(before, id));
        }
        queue.by_time.insert((due, id));
        self.changed.notify_one();
    }

    /// The attachment's removal failed: it is tried again after a pause that doubles with every failure. Answers how often it
    /// has failed.
    pub(super) fn again(&self, id: u64, why: &CniError) -> u32 {
        let failures = {
            let mut queue = self.lock();
            let before = queue.failures.get(&id.into()).map_or(0, |(times, _)| *times);
            let times = before.saturating_add(1);
            queue.failures.insert(id.into(), (times, why.clone()));
            times
        };
        let pause = FIRST_PAUSE.saturating_mul(1 << (failures - 1).min(10)).min(LONGEST_PAUSE);
        self.expect(id, Instant::now() + pause);
        failures
    }

    /// Why the last attempt at the attachment's removal failed, if one did.
    pub(super) fn why(&self, id: u64) -> Option<CniError> {
        self.lock().failures.get(&id.into()).map(|(_, why)| why.clone())
    }

    /// Nothing is left of it.
    pub(super) fn done(&self, id: u64) {
        self.lock().failures.remove(&id.into());
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.lock().due.len()
    }

    /// The next whose time has come; waits for it. `None` when the daemon stops.
    pub(super) fn next(&self) -> Option<Errand> {
        let mut queue = self.lock();
        loop {
            if queue.stopped {
                return None;
            }
            let now = Instant::now();
            // What somebody works on already comes to its next one when that has ended.
            let free = |(_, id): &&(Instant, Errand)| !queue.at_work.contains(id);
            match queue.by_time.iter().find(free).copied() {
                Some((due, id)) if due <= now => {
                    queue.by_time.remove(&(due, id));
                    queue.due.remove(&id);
                    return Some(id);
                }
                Some((due, _)) => {
                    queue =
                        self.changed.wait_timeout(queue, due - now).unwrap_or_else(PoisonError::into_inner).0;
                }
                None => queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Everything that waits, whatever its time; nothing of it waits any more.
    #[cfg(test)]
    pub(super) fn drain(&self) -> Vec<Errand> {
        let mut queue = self.lock();
        queue.by_time.clear();
        queue.due.drain().map(|(id, _)| id).collect()
    }

    /// Waits until nobody works on the attachment and takes it. `None` when the daemon stops.
    pub(super) fn turn(&self, id: u64) -> Option<Turn<'_>> {
        let id = Errand::from(id);
        let mut queue = self.lock();
        while queue.at_work.contains(&id) {
            if queue.stopped {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.at_work.insert(id);
        Some(Turn { reaper: self, id })
    }

    /// Ends [`Reaper::next`] for all threads. What waits is on record and goes on after the restart.
    pub(super) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.reaper.lock();
        queue.at_work.remove(&self.id);
        if let Some(due) = queue.due.remove(&self.id) {
            // Somebody hurried it: it need not be looked at again, unless it failed and is expected anew.
            queue.by_time.remove(&(due, self.id));
        }
        self.reaper.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use fairlead_cni::Code;

    use super::*;

    #[test]
    fn attachments_come_in_the_order_of_their_time_and_a_hurried_one_comes_at_once() {
        let reaper = Reaper::default();
        let now = Instant::now();
        reaper.expect(1_u64, now + Duration::from_secs(60));
        reaper.expect(2_u64, now + Duration::from_millis(5));
        reaper.expect(1_u64, now);
        reaper.expect(1_u64, now + Duration::from_secs(90));
        assert_eq!(reaper.next(), Some(1.into()));
        assert_eq!(reaper.next(), Some(2.into()));
        assert_eq!(reaper.waiting(), 0);
        reaper.stop();
        assert_eq!(reaper.next(), None);
    }

    #[test]
    fn a_removal_that_fails_again_and_again_is_tried_ever_more_seldom() {
        let reaper = Reaper::default();
        let why = CniError::new(Code::TryAgain, "it is not there");
        let mut pauses = Vec::new();
        for _ in 0..12 {
            reaper.again(7, &why);
            let due = reaper.lock().due[&7.into()];
            pauses.push((due - Instant::now() + Duration::from_millis(500)).as_secs());
            reaper.drain();
        }
        assert_eq!(pauses[..5], [1, 2, 4, 8, 16]);
        assert_eq!(pauses[11], 300);
        assert_eq!(reaper.why(7).map(|why| why.msg), Some("it is not there".to_owned()));
        reaper.done(7);
        assert!(reaper.why(7).is_none());
        reaper.again(7, &why);
        assert!(reaper.lock().due[&7.into()] <= Instant::now() + FIRST_PAUSE);
    }

    #[test]
    fn one_attachment_is_worked_on_by_one_thread_at_a_time() {
        let reaper = Reaper::default();
        let turn = reaper.turn(1).unwrap();
        std::thread::scope(|s| {
            let second = s.spawn(|| reaper.turn(1).is_some());
            std::thread::sleep(Duration::from_millis(20));
            assert!(!second.is_finished());
            drop(turn);
            assert!(second.join().unwrap());
        });
    }
}
