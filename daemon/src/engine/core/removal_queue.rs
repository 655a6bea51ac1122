//! What is still to be done for attachments that were answered as gone, and for VFs that sriov-cni gave to pods, and when: a queue
//! by time. Threads of the engine work it off.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use fairlead_cni::CniError;
use fairlead_host::backoff::Backoff;
use fairlead_sriov::PciAddr;
use parking_lot::{Condvar, Mutex, MutexGuard};

/// Between attempts at a removal.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));

/// What is to be looked after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Task {
    /// An attachment that goes.
    Attachment(u64),
    /// A VF that sriov-cni gave to a pod.
    Leftover(PciAddr),
}

impl From<u64> for Task {
    fn from(id: u64) -> Task {
        Task::Attachment(id)
    }
}

impl From<PciAddr> for Task {
    fn from(address: PciAddr) -> Task {
        Task::Leftover(address)
    }
}

#[derive(Debug, Default)]
struct Queue {
    by_time: BTreeSet<(Instant, Task)>,
    due: HashMap<Task, Instant>,
    at_work: HashSet<Task>,
    failures: HashMap<Task, (u32, CniError)>,
    stopped: bool,
}

/// What is still to be done, by time.
#[derive(Debug, Default)]
pub(crate) struct RemovalQueue {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// One attachment that nobody else works on while this is held.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    removals: &'a RemovalQueue,
    id: Task,
}

impl RemovalQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// It is to be looked after at `due`, or earlier if it already was.
    pub(crate) fn expect(&self, task: impl Into<Task>, due: Instant) {
        let id = task.into();
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
    pub(crate) fn again(&self, id: u64, why: &CniError) -> u32 {
        // The lock is given back before `expect`, which takes it again.
        let failures = {
            let mut queue = self.lock();
            let before = queue.failures.get(&id.into()).map_or(0, |(times, _)| *times);
            let times = before.saturating_add(1);
            queue.failures.insert(id.into(), (times, why.clone()));
            times
        };
        self.expect(id, Instant::now() + PAUSES.after(failures));
        failures
    }

    /// Why the last attempt at the attachment's removal failed, if one did.
    pub(crate) fn failure(&self, id: u64) -> Option<CniError> {
        self.lock().failures.get(&id.into()).map(|(_, why)| why.clone())
    }

    /// The attachment is gone: its failures are forgotten.
    pub(crate) fn done(&self, id: u64) {
        self.lock().failures.remove(&id.into());
    }

    /// The number of tasks that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().due.len()
    }

    /// The next whose time has come; waits for it. `None` when the daemon stops.
    pub(crate) fn next(&self) -> Option<Task> {
        let mut queue = self.lock();
        loop {
            if queue.stopped {
                return None;
            }
            let now = Instant::now();
            // What somebody works on already comes to its next one when that has ended.
            let free = |(_, id): &&(Instant, Task)| !queue.at_work.contains(id);
            match queue.by_time.iter().find(free).copied() {
                Some((due, id)) if due <= now => {
                    queue.by_time.remove(&(due, id));
                    queue.due.remove(&id);
                    return Some(id);
                }
                Some((due, _)) => {
                    self.changed.wait_until(&mut queue, due);
                }
                None => self.changed.wait(&mut queue),
            }
        }
    }

    /// Everything that waits, whatever its time; nothing of it waits any more.
    #[cfg(test)]
    pub(crate) fn drain(&self) -> Vec<Task> {
        let mut queue = self.lock();
        queue.by_time.clear();
        queue.due.drain().map(|(id, _)| id).collect()
    }

    /// Waits until nobody works on the attachment and takes it. `None` when the daemon stops.
    pub(crate) fn turn(&self, id: u64) -> Option<Turn<'_>> {
        let id = Task::from(id);
        let mut queue = self.lock();
        while queue.at_work.contains(&id) {
            if queue.stopped {
                return None;
            }
            self.changed.wait(&mut queue);
        }
        queue.at_work.insert(id);
        Some(Turn { removals: self, id })
    }

    /// Ends [`RemovalQueue::next`] for all threads. What waits is on record and goes on after the restart.
    pub(crate) fn stop(&self) {
        // Under the lock: no thread can fall asleep between its look at this and the notification.
        self.lock().stopped = true;
        self.changed.notify_all();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.removals.lock();
        queue.at_work.remove(&self.id);
        if let Some(due) = queue.due.remove(&self.id) {
            // Somebody hurried it: it need not be looked at again, unless it failed and is expected anew.
            queue.by_time.remove(&(due, self.id));
        }
        self.removals.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use fairlead_cni::Code;

    use super::*;

    #[test]
    fn attachments_come_in_the_order_of_their_time_and_a_hurried_one_comes_at_once() {
        let removals = RemovalQueue::default();
        let now = Instant::now();
        removals.expect(1_u64, now + Duration::from_secs(60));
        removals.expect(2_u64, now + Duration::from_millis(5));
        removals.expect(1_u64, now);
        removals.expect(1_u64, now + Duration::from_secs(90));
        assert_eq!(removals.next(), Some(1.into()));
        assert_eq!(removals.next(), Some(2.into()));
        assert_eq!(removals.waiting(), 0);
        removals.stop();
        assert_eq!(removals.next(), None);
    }

    #[test]
    fn a_removal_that_fails_again_and_again_is_tried_ever_more_seldom() {
        let removals = RemovalQueue::default();
        let why = CniError::new(Code::TryAgain, "it is not there");
        let mut pauses = Vec::new();
        for _ in 0..12 {
            removals.again(7, &why);
            let due = removals.lock().due[&7.into()];
            pauses.push((due - Instant::now() + Duration::from_millis(500)).as_secs());
            removals.drain();
        }
        assert_eq!(pauses[..5], [1, 2, 4, 8, 16]);
        assert_eq!(pauses[11], 300);
        assert_eq!(removals.failure(7).map(|why| why.msg), Some("it is not there".to_owned()));
        removals.done(7);
        assert!(removals.failure(7).is_none());
        removals.again(7, &why);
        assert!(removals.lock().due[&7.into()] <= Instant::now() + PAUSES.after(1));
    }

    #[test]
    fn one_attachment_is_worked_on_by_one_thread_at_a_time() {
        let removals = RemovalQueue::default();
        let turn = removals.turn(1).unwrap();
        std::thread::scope(|s| {
            let second = s.spawn(|| removals.turn(1).is_some());
            std::thread::sleep(Duration::from_millis(20));
            assert!(!second.is_finished());
            drop(turn);
            assert!(second.join().unwrap());
        });
    }
}
