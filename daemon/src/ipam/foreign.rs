//! While another process holds a directory's lock: for how long it is waited for, and by how many.
//!
//! The lock's other holders hold it for milliseconds. One that does not let go must cost little: each who waits holds a
//! thread that serves other networks too. So at most [`CROWD`] wait for [`LIMIT`], counted from when the lock was
//! first missed and not anew for each; any other is told at once, when the lock has been missed for [`GRACE`].

use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::owner::LOCK;

/// How long a lock is waited for that never comes free.
const LIMIT: Duration = Duration::from_secs(10);
/// A lock that is missed for so long is not one of a holder who is quick.
const GRACE: Duration = Duration::from_millis(250);
/// So many wait for one directory.
const CROWD: usize = 8;

#[derive(Debug, Default)]
struct State {
    waiting: usize,
    /// When the lock was missed first, and last, since we had it.
    missed: Option<(Instant, Instant)>,
}

/// Another process' hold on one directory's lock.
#[derive(Debug, Default)]
pub(super) struct Foreign(Mutex<State>);

/// One who waits; counted until this is dropped.
#[derive(Debug)]
pub(super) struct Wait<'a> {
    foreign: &'a Foreign,
    begun: Instant,
    /// Enough others waited already.
    late: bool,
    pause: Duration,
}

/// The lock was waited for in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InVain {
    /// For how long, since it was missed first.
    pub(super) held: Duration,
    /// How many others wait for it.
    pub(super) others: usize,
}

impl InVain {
    /// The same as an error about this directory.
    pub(super) fn told(self, directory: &Path) -> io::Error {
        let held = Duration::from_millis(u64::try_from(self.held.as_millis()).unwrap_or(u64::MAX));
        let (path, others) = (directory.join(LOCK), self.others);
        let told = format!(
            "another process has held the lock {} for {held:?} and {others} other calls wait for it (see who: lslocks)",
            path.display()
        );
        io::Error::new(io::ErrorKind::TimedOut, told)
    }
}

impl Foreign {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// We have the lock.
    pub(super) fn is_over(&self) {
        self.lock().missed = None;
    }

    /// The lock was missed: its caller begins to wait for it.
    pub(super) fn wait(&self) -> Wait<'_> {
        let mut state = self.lock();
        state.waiting += 1;
        let late = state.waiting > CROWD;
        Wait { foreign: self, begun: Instant::now(), late, pause: Duration::from_micros(50) }
    }
}

impl Wait<'_> {
    /// Waits a moment, after the lock was missed.
    pub(super) fn moment(&mut self) -> Result<(), InVain> {
        let held = self.go_on(Instant::now())?;
        std::thread::sleep(self.pause);
        // Short at first, since its holders are quick; later a hundredth of what was waited.
        self.pause = (self.pause * 2).min((held / 100).clamp(GRACE / 1000, GRACE / 50));
        Ok(())
    }

    /// How long the lock has been missed, unless this one has waited enough.
    fn go_on(&self, now: Instant) -> Result<Duration, InVain> {
        let mut state = self.foreign.lock();
        let first = match state.missed {
            // Longer ago nobody looked: it may have been free.
            Some((first, last)) if now.duration_since(last) < LIMIT => first,
            _ => now,
        };
        state.missed = Some((first, now));
        let held = now.duration_since(first);
        let in_vain = match self.late {
            true => held >= GRACE,
            false => held >= LIMIT && now.duration_since(self.begun) >= GRACE,
        };
        if !in_vain {
            return Ok(held);
        }
        Err(InVain { held, others: state.waiting - 1 })
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.foreign.lock().waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_wait_the_whole_time_the_next_is_told_at_once_and_after_it_all_are() {
        let foreign = Foreign::default();
        let few: Vec<Wait<'_>> = (0..CROWD).map(|_| foreign.wait()).collect();
        let late = foreign.wait();
        let start = few[0].begun;
        assert_eq!(few[0].go_on(start), Ok(Duration::ZERO));
        assert!(late.go_on(start + GRACE / 2).is_ok());
        assert_eq!(late.go_on(start + GRACE), Err(InVain { held: GRACE, others: CROWD }));
        drop(late);
        assert!(foreign.wait().go_on(start + GRACE).is_err());
        assert!(few.iter().all(|wait| wait.go_on(start + LIMIT / 2).is_ok()));
        let next = start + LIMIT;
        assert!(few.iter().all(|wait| wait.go_on(next).is_err()));
        drop(few);
        // It does not get another ten seconds.
        let mut undo = foreign.wait();
        undo.begun = next;
        assert!(undo.go_on(next).is_ok() && undo.go_on(next + GRACE).is_err());
        // Unless nobody has looked for long, or we had the lock.
        let mut later = foreign.wait();
        later.begun = next + 3 * LIMIT;
        assert!(later.go_on(next + 3 * LIMIT).is_ok() && later.go_on(next + 3 * LIMIT + GRACE).is_ok());
        foreign.is_over();
        assert_eq!(later.go_on(next + 3 * LIMIT + 2 * GRACE), Ok(Duration::ZERO));
    }
}
