//! Turns: one thread of ours at a time works on the files of a directory, and a directory that hangs keeps few of them.
//!
//! A file system may never answer (FUSE, NFS), and nobody can call such a thread back. What it costs is bounded: the thread that
//! hangs, and for [`LIMIT`] at most [`MOST_WAITERS`] more. Any other is refused as soon as one thread has been at work for
//! [`GRACE`]. Work of a healthy directory takes well below a millisecond, so calls that come in a burst are never refused, however
//! many they are.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::lock_wait::{GRACE, LIMIT, MOST_WAITERS};

/// What one thread at a time works on.
#[derive(Debug, Default)]
pub(super) struct Turns<T> {
    work: Mutex<T>,
    /// Held for no longer than it takes to read or write it.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Since when a thread is at work.
    since: Option<Instant>,
    /// When the last one ended.
    ended: Option<Instant>,
    waiting: usize,
}

/// The right to work, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a, T> {
    state: &'a Mutex<State>,
    work: MutexGuard<'a, T>,
}

/// Another thread has been at work for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hangs(Duration);

impl Hangs {
    /// The same as an error about this directory.
    pub(super) fn into_io(self, directory: &Path) -> io::Error {
        let (path, seconds) = (directory.display(), self.0.as_secs_f32());
        let text = format!("file work in {path} does not end, begun {seconds:.1} s ago by another call");
        io::Error::new(io::ErrorKind::TimedOut, text)
    }
}

impl<T> Turns<T> {
    /// Waits for the turn, unless the thread that has it hangs.
    pub(super) fn take(&self) -> Result<Turn<'_, T>, Hangs> {
        if let Some(turn) = self.try_take() {
            return Ok(turn);
        }
        let waiting = Waiting::begin(&self.state);
        loop {
            let since = self.state.lock().since.unwrap_or_else(Instant::now);
            if let Some(work) = self.work.try_lock_until(since + waiting.patience) {
                return Ok(self.begin(work));
            }
            // Where the turn went to another thread meanwhile, it is that one's time that counts.
            let held = self.state.lock().since.map_or(Duration::ZERO, |since| since.elapsed());
            if held >= waiting.patience {
                return Err(Hangs(held));
            }
        }
    }

    /// The turn, if nobody has it.
    pub(super) fn try_take(&self) -> Option<Turn<'_, T>> {
        Some(self.begin(self.work.try_lock()?))
    }

    /// For how long a thread has been at work, if one is.
    pub(super) fn at_work(&self) -> Option<Duration> {
        self.state.lock().since.map(|since| since.elapsed())
    }

    /// Does what takes no time, unless somebody is at work, or waits, or nobody ever was. It is told for how long nobody has been at work, which
    /// it does not end.
    pub(super) fn when_idle<R>(&self, tidy: impl FnOnce(&mut T, Duration) -> R) -> Option<R> {
        let mut work = self.work.try_lock()?;
        let idle = {
            let state = self.state.lock();
            state.ended.filter(|_| state.waiting == 0)?.elapsed()
        };
        Some(tidy(&mut work, idle))
    }

    fn begin<'a>(&'a self, work: MutexGuard<'a, T>) -> Turn<'a, T> {
        self.state.lock().since = Some(Instant::now());
        Turn { state: &self.state, work }
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        state.since = None;
        state.ended = Some(Instant::now());
    }
}

impl<T> std::ops::Deref for Turn<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.work
    }
}

impl<T> std::ops::DerefMut for Turn<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.work
    }
}

/// One thread that waits; it is counted until this is dropped.
struct Waiting<'a> {
    state: &'a Mutex<State>,
    /// For how long the thread at work may be so before this one gives up.
    patience: Duration,
}

impl<'a> Waiting<'a> {
    fn begin(state: &'a Mutex<State>) -> Waiting<'a> {
        let mut locked = state.lock();
        locked.waiting += 1;
        let patience = if locked.waiting > MOST_WAITERS { GRACE } else { LIMIT };
        Waiting { state, patience }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.state.lock().waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behind_a_thread_that_hangs_a_few_wait_and_the_next_is_refused_at_once() {
        let turns: Turns<u32> = Turns::default();
        let hangs = turns.take().unwrap();
        std::thread::scope(|s| {
            let few: Vec<_> =
                (0..MOST_WAITERS).map(|_| s.spawn(|| turns.take().map(|mut n| *n += 1))).collect();
            while turns.state.lock().waiting < MOST_WAITERS {
                std::thread::yield_now();
            }
            let begun = Instant::now();
            let Hangs(held) = turns.take().map(|n| *n).unwrap_err();
            assert!(held >= GRACE && begun.elapsed() < LIMIT, "{held:?}");
            // Once is enough: other work of the machine may slow the others.
            let at_once = (0..100).any(|_| {
                let begun = Instant::now();
                turns.take().map(|n| *n).unwrap_err();
                begun.elapsed() < GRACE / 5
            });
            assert!(at_once);
            assert!(turns.at_work().is_some() && turns.when_idle(|_, _| ()).is_none());
            drop(hangs);
            assert!(few.into_iter().all(|one| one.join().unwrap().is_ok()));
        });
        assert_eq!(*turns.try_take().unwrap() as usize, MOST_WAITERS);
        assert!(turns.at_work().is_none() && turns.when_idle(|_, idle| idle).is_some());
    }

    #[test]
    fn a_burst_whose_turns_are_short_is_never_refused_however_long_it_lasts() {
        let turns: Turns<()> = Turns::default();
        let work = || turns.take().map(|_turn| std::thread::sleep(GRACE / 10)).is_ok();
        std::thread::scope(|s| {
            let all: Vec<_> = (0..3 * MOST_WAITERS).map(|_| s.spawn(work)).collect();
            assert!(all.into_iter().all(|one| one.join().unwrap()));
        });
    }
}
