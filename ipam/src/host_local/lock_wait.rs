//! Waiting for a directory's lock while another process holds it: for how long, and by how many calls.
//!
//! The lock's other holders hold it for milliseconds. One that does not let go must cost little: each call that waits holds a
//! thread that serves other networks too. So at most [`MOST_WAITERS`] wait for [`LIMIT`], which is counted from the first call
//! that missed the lock, not for each call on its own. Any other call is refused at once, when the lock has been missed for
//! [`GRACE`].

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use fairlead_host::backoff::{Attempts, Backoff};
use parking_lot::Mutex;

use super::file_format::LOCK;

/// How long a lock is waited for that never comes free.
pub(super) const LIMIT: Duration = Duration::from_secs(10);
/// A lock that is missed for so long is not one of a holder who is quick.
pub(super) const GRACE: Duration = Duration::from_millis(250);
/// Between two attempts: short at first, since the usual holders are quick.
const PAUSES: Backoff = Backoff::new(Duration::from_micros(50), Duration::from_millis(5));
/// So many calls wait for one directory.
pub(super) const MOST_WAITERS: usize = 8;

/// Who waits for one lock, and since when it is missed.
#[derive(Debug, Default)]
struct Waiters {
    count: usize,
    /// When the lock was missed first, and last, since we had it.
    missed: Option<(Instant, Instant)>,
}

/// The wait of all our threads for one directory's lock.
#[derive(Debug, Default)]
pub(super) struct LockWait(Mutex<Waiters>);

/// One call that waits; it is counted until this is dropped.
#[derive(Debug)]
pub(super) struct Waiter<'a> {
    wait: &'a LockWait,
    begun: Instant,
    /// Enough others waited already when it came.
    surplus: bool,
    pauses: Attempts,
}

/// The lock did not come free in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LockTimeout {
    /// How long it has been missed.
    pub(super) held: Duration,
    /// How many other calls wait for it.
    pub(super) others: usize,
}

impl LockTimeout {
    /// The same as an error about this directory.
    pub(super) fn into_io(self, directory: &Path) -> io::Error {
        let held = Duration::from_millis(u64::try_from(self.held.as_millis()).unwrap_or(u64::MAX));
        let (path, others) = (directory.join(LOCK), self.others);
        let text = format!(
            "another process has held the lock {} for {held:?} and {others} other calls wait for it (see who: lslocks)",
            path.display()
        );
        io::Error::new(io::ErrorKind::TimedOut, text)
    }
}

impl LockWait {
    /// To be called when a thread of ours has the lock.
    pub(super) fn acquired(&self) {
        self.0.lock().missed = None;
    }

    /// Counts a call that missed the lock and begins to wait for it.
    pub(super) fn begin(&self) -> Waiter<'_> {
        let mut waiters = self.0.lock();
        waiters.count += 1;
        let surplus = waiters.count > MOST_WAITERS;
        Waiter { wait: self, begun: Instant::now(), surplus, pauses: PAUSES.start() }
    }
}

impl Waiter<'_> {
    /// Sleeps before the next attempt, after the lock was missed; an error when this call has waited enough.
    pub(super) fn pause(&mut self) -> Result<(), LockTimeout> {
        let held = self.go_on(Instant::now())?;
        // No longer than a hundredth of what was waited already: then a late look costs little against the wait.
        let longest = (held / 100).max(GRACE / 1000);
        std::thread::sleep(self.pauses.failed().min(longest));
        Ok(())
    }

    /// How long the lock has been missed, unless this call has waited enough.
    fn go_on(&self, now: Instant) -> Result<Duration, LockTimeout> {
        let mut waiters = self.wait.0.lock();
        let first = match waiters.missed {
            // Longer ago nobody looked: it may have been free.
            Some((first, last)) if now.duration_since(last) < LIMIT => first,
            _ => now,
        };
        waiters.missed = Some((first, now));
        let held = now.duration_since(first);
        let enough = match self.surplus {
            true => held >= GRACE,
            false => held >= LIMIT && now.duration_since(self.begun) >= GRACE,
        };
        if !enough {
            return Ok(held);
        }
        Err(LockTimeout { held, others: waiters.count - 1 })
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.wait.0.lock().count -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_wait_the_whole_time_the_next_is_refused_at_once_and_after_it_all_are() {
        let lock = LockWait::default();
        let few: Vec<Waiter<'_>> = (0..MOST_WAITERS).map(|_| lock.begin()).collect();
        let surplus = lock.begin();
        let start = few[0].begun;
        assert_eq!(few[0].go_on(start), Ok(Duration::ZERO));
        assert!(surplus.go_on(start + GRACE / 2).is_ok());
        assert_eq!(surplus.go_on(start + GRACE), Err(LockTimeout { held: GRACE, others: MOST_WAITERS }));
        drop(surplus);
        assert!(lock.begin().go_on(start + GRACE).is_err());
        assert!(few.iter().all(|wait| wait.go_on(start + LIMIT / 2).is_ok()));
        let next = start + LIMIT;
        assert!(few.iter().all(|wait| wait.go_on(next).is_err()));
        drop(few);
        // It does not get another ten seconds.
        let mut undo = lock.begin();
        undo.begun = next;
        assert!(undo.go_on(next).is_ok() && undo.go_on(next + GRACE).is_err());
        // Unless nobody has looked for long, or we had the lock.
        let mut later = lock.begin();
        later.begun = next + 3 * LIMIT;
        assert!(later.go_on(next + 3 * LIMIT).is_ok() && later.go_on(next + 3 * LIMIT + GRACE).is_ok());
        lock.acquired();
        assert_eq!(later.go_on(next + 3 * LIMIT + 2 * GRACE), Ok(Duration::ZERO));
    }
}
