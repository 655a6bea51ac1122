//! What is still to be done for attachments that were answered as gone, and for VFs that sriov-cni gave to pods, and when: a queue
//! by time. Threads of the engine work it off.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use fairlead_cni::CniError;
use fairlead_host::after_answer::when_answered;
use fairlead_host::backoff::Backoff;
use fairlead_sriov::PciAddr;
use parking_lot::{Condvar, Mutex, MutexGuard};

/// Between attempts at a removal.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));

/// A task that nobody has taken for so long waits for threads that hang.
const OVERDUE: Duration = Duration::from_secs(1);

/// So many threads at most are added to those that hang.
const MOST_STANDING_IN: usize = 28;
/// Nobody waits longer for another's work on one attachment.
const PATIENCE: Duration = Duration::from_secs(10);

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

/// Which thread asks for a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rank {
    /// One of those that work the queue off.
    Regular,
    /// The one that works when they all hang: it takes what was due [`OVERDUE`] ago.
    Standby,
}

#[derive(Debug, Default)]
struct Queue {
    by_time: BTreeSet<(Instant, Task)>,
    due: HashMap<Task, Instant>,
    at_work: HashSet<Task>,
    failures: HashMap<Task, Failures>,
    /// Regular threads that wait for a task.
    idle: usize,
    /// Threads that once stood by and work now.
    standing_in: usize,
    stopped: bool,
}

impl Queue {
    /// The first that nobody works on: what somebody works on comes to its next time when that has ended.
    fn first_free(&self) -> Option<(Instant, Task)> {
        self.by_time.iter().find(|(_, id)| !self.at_work.contains(id)).copied()
    }
}

/// How a removal has failed so far.
#[derive(Debug, Clone)]
pub(crate) struct Failures {
    /// How often, since the daemon's start.
    pub(crate) times: u32,
    /// When it failed first since then.
    pub(crate) first: SystemTime,
    /// Why it failed last.
    pub(crate) why: CniError,
}

/// What is still to be done, by time.
#[derive(Debug, Default)]
pub(crate) struct RemovalQueue {
    queue: Mutex<Queue>,
    /// For the regular threads that wait for a task: one is due earlier, or nobody works on it any more.
    due: Arc<Condvar>,
    /// What the thread that stands by waits on. A task that comes must not wake that one in place of another.
    exhausted: Condvar,
    /// For those who wait until nobody works on an attachment.
    turns: Condvar,
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
        if self.enqueue(task.into(), due) {
            self.due.notify_one();
        }
    }

    /// The same where nobody waits for it: a thread that has to be woken is woken when the call of this one is answered.
    pub(crate) fn expect_once_answered(&self, id: u64, due: Instant) {
        if self.enqueue(id.into(), due) {
            let threads = Arc::clone(&self.due);
            when_answered(move || {
                threads.notify_one();
            });
        }
    }

    /// True where a thread is to be woken for it.
    fn enqueue(&self, id: Task, due: Instant) -> bool {
        let mut queue = self.lock();
        let due = queue.due.get(&id).map_or(due, |before| due.min(*before));
        if let Some(before) = queue.due.insert(id, due) {
            queue.by_time.remove(&(before, id));
        }
        queue.by_time.insert((due, id));
        if queue.idle == 0 {
            self.exhausted.notify_one();
        }
        // Where another is due before it somebody waits for that, and who takes that wakes the next.
        queue.first_free() == Some((due, id))
    }

    /// The attachment's removal failed: it is tried again after a pause that doubles with every failure. Answers how often it
    /// has failed.
    pub(crate) fn again(&self, id: u64, why: &CniError) -> u32 {
        // The lock is given back before `expect`, which takes it again.
        let failures = {
            let mut queue = self.lock();
            let before = queue.failures.remove(&id.into());
            let (times, first) = before.map_or((0, SystemTime::now()), |before| (before.times, before.first));
            let times = times.saturating_add(1);
            queue.failures.insert(id.into(), Failures { times, first, why: why.clone() });
            times
        };
        self.expect(id, Instant::now() + PAUSES.after(failures));
        failures
    }

    /// An attempt ahead of its time was of no use, and has taken its time away: it comes again after the pause that it has so far.
    pub(crate) fn hurried_in_vain(&self, id: u64) {
        let failures = self.failures(id).map_or(1, |failures| failures.times);
        self.expect(id, Instant::now() + PAUSES.after(failures));
    }

    /// Why the last attempt at the attachment's removal failed, if one did.
    pub(crate) fn failure(&self, id: u64) -> Option<CniError> {
        self.failures(id).map(|failures| failures.why)
    }

    /// How the attachment's removal has failed so far, if it did.
    pub(crate) fn failures(&self, id: u64) -> Option<Failures> {
        self.lock().failures.get(&id.into()).cloned()
    }

    /// The attachment is gone: its failures are forgotten.
    pub(crate) fn done(&self, id: u64) {
        self.lock().failures.remove(&id.into());
    }

    /// The number of tasks that wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.lock().due.len()
    }

    /// The next whose time has come; waits for it. `None` when the daemon stops.
    pub(crate) fn next(&self, rank: Rank) -> Option<Task> {
        let mut queue = self.lock();
        loop {
            if queue.stopped {
                return None;
            }
            let now = Instant::now();
            let first = queue.first_free();
            let takes_at = |due: Instant| if rank == Rank::Standby { due + OVERDUE } else { due };
            match first {
                Some((due, id)) if takes_at(due) <= now => {
                    queue.by_time.remove(&(due, id));
                    queue.due.remove(&id);
                    if queue.first_free().is_some() {
                        self.due.notify_one();
                    }
                    if queue.idle == 0 {
                        // From now on nobody but the one that stands by comes for what is due next.
                        self.exhausted.notify_one();
                    }
                    return Some(id);
                }
                Some((due, _)) => self.wait(&mut queue, rank, Some(takes_at(due))),
                None => self.wait(&mut queue, rank, None),
            }
        }
    }

    /// Waits for a change of the queue that concerns a thread, or until `until`.
    fn wait(&self, queue: &mut MutexGuard<'_, Queue>, rank: Rank, until: Option<Instant>) {
        let regular = rank == Rank::Regular;
        queue.idle += usize::from(regular);
        let on = if regular { &self.due } else { &self.exhausted };
        // While another thread is idle, that one comes for what is due.
        match until.filter(|_| regular || queue.idle == 0) {
            Some(until) => drop(on.wait_until(queue, until)),
            None => on.wait(queue),
        }
        queue.idle -= usize::from(regular);
    }

    /// Whether the thread that stood by may have another one in its place while it works.
    pub(crate) fn stands_in(&self) -> bool {
        let mut queue = self.lock();
        let may = queue.standing_in < MOST_STANDING_IN && !queue.stopped;
        queue.standing_in += usize::from(may);
        may
    }

    /// A thread that had another one in its place ends.
    pub(crate) fn stood_in(&self) {
        self.lock().standing_in -= 1;
    }

    /// Everything that waits, whatever its time; nothing of it waits any more.
    #[cfg(test)]
    pub(crate) fn drain(&self) -> Vec<Task> {
        let mut queue = self.lock();
        queue.by_time.clear();
        queue.due.drain().map(|(id, _)| id).collect()
    }

    /// Waits until nobody works on the attachment and takes it. `None` when the daemon stops, and after [`PATIENCE`]: who works
    /// on it may hang in a file system, and ADDs that want what it holds must not hang with it.
    pub(crate) fn turn(&self, id: u64) -> Option<Turn<'_>> {
        let id = Task::from(id);
        let until = Instant::now() + PATIENCE;
        let mut queue = self.lock();
        while queue.at_work.contains(&id) {
            if queue.stopped || Instant::now() >= until {
                return None;
            }
            self.turns.wait_until(&mut queue, until);
        }
        queue.at_work.insert(id);
        Some(Turn { removals: self, id })
    }

    /// Ends [`RemovalQueue::next`] for all threads. What waits is on record and goes on after the restart.
    pub(crate) fn stop(&self) {
        // Under the lock: no thread can fall asleep between its look at this and the notification.
        self.lock().stopped = true;
        self.due.notify_all();
        self.exhausted.notify_all();
        self.turns.notify_all();
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
        self.removals.turns.notify_all();
        // Its next time may have come while it was worked on.
        self.removals.due.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use fairlead_cni::Code;
    use fairlead_host::after_answer::AnswerFirst;

    use super::*;

    #[test]
    fn attachments_come_in_the_order_of_their_time_and_a_hurried_one_comes_at_once() {
        let removals = RemovalQueue::default();
        let now = Instant::now();
        removals.expect(1_u64, now + Duration::from_secs(60));
        removals.expect(2_u64, now + Duration::from_millis(5));
        removals.expect(1_u64, now);
        removals.expect(1_u64, now + Duration::from_secs(90));
        assert_eq!(removals.next(Rank::Regular), Some(1.into()));
        assert_eq!(removals.next(Rank::Regular), Some(2.into()));
        assert_eq!(removals.waiting(), 0);
        removals.stop();
        assert_eq!(removals.next(Rank::Regular), None);
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
    fn the_thread_that_stands_by_works_only_when_the_others_hang() {
        let removals = RemovalQueue::default();
        std::thread::scope(|s| {
            let standby = s.spawn(|| removals.next(Rank::Standby));
            let regular = s.spawn(|| removals.next(Rank::Regular));
            removals.expect(1_u64, Instant::now());
            assert_eq!(regular.join().unwrap(), Some(1.into()), "the others come first");
            // Nobody else comes for what is due now.
            let due = Instant::now();
            removals.expect(2_u64, due);
            assert_eq!(standby.join().unwrap(), Some(2.into()));
            assert!(due.elapsed() >= OVERDUE);
        });
        let threads = (0..100).filter(|_| removals.stands_in()).count();
        assert_eq!(threads, MOST_STANDING_IN);
        removals.stood_in();
        assert!(removals.stands_in());
    }

    #[test]
    fn a_task_that_is_due_begins_at_once_however_many_wait_for_another_ones_end() {
        let removals = RemovalQueue::default();
        let turn = removals.turn(1).unwrap();
        std::thread::scope(|s| {
            // Before the one who waits for a task: the longest waiter is woken first.
            let others: Vec<_> = (0..3).map(|_| s.spawn(|| removals.turn(1).is_some())).collect();
            std::thread::sleep(Duration::from_millis(50));
            let worker = s.spawn(|| removals.next(Rank::Regular));
            std::thread::sleep(Duration::from_millis(50));
            removals.expect(2_u64, Instant::now());
            let limit = Instant::now() + Duration::from_secs(5);
            while !worker.is_finished() && Instant::now() < limit {
                std::thread::sleep(Duration::from_millis(1));
            }
            let begun = worker.is_finished();
            // Ends all threads, before anything can fail.
            removals.stop();
            drop(turn);
            for other in others {
                let _ = other.join().unwrap();
            }
            assert!(begun, "the one who waits for a task was not woken");
            assert_eq!(worker.join().unwrap(), Some(2.into()));
        });
    }

    #[test]
    fn a_task_that_wakes_nobody_begins_in_time_though_the_one_before_it_hangs() {
        let removals = RemovalQueue::default();
        std::thread::scope(|s| {
            // Each takes one task and never comes for another.
            let workers: Vec<_> = (0..2).map(|_| s.spawn(|| removals.next(Rank::Regular))).collect();
            std::thread::sleep(Duration::from_millis(50));
            let due = Instant::now() + Duration::from_millis(50);
            removals.expect(1_u64, due);
            removals.expect(2_u64, due + Duration::from_millis(50));
            let limit = Instant::now() + Duration::from_secs(5);
            while workers.iter().any(|worker| !worker.is_finished()) && Instant::now() < limit {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Ends all threads, before anything can fail.
            removals.stop();
            let mut taken: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
            taken.sort();
            assert_eq!(taken, [Some(1.into()), Some(2.into())]);
        });
    }

    #[test]
    fn a_thread_is_woken_for_what_nobody_waits_for_when_the_call_is_answered() {
        let removals = RemovalQueue::default();
        std::thread::scope(|s| {
            let worker = s.spawn(|| removals.next(Rank::Regular));
            while removals.lock().idle == 0 {
                std::thread::yield_now();
            }
            let call = AnswerFirst::begin();
            removals.expect_once_answered(1, Instant::now());
            std::thread::sleep(Duration::from_millis(50));
            let woken_before = worker.is_finished();
            drop(call);
            assert_eq!(worker.join().unwrap(), Some(1.into()));
            assert!(!woken_before);
        });
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
