//! Waking a poll thread that sleeps.
//!
//! Invariant: a thread says that it sleeps, and then looks once more whether there is something to do; who has something for it puts that
//! where it looks, and then looks whether it sleeps. A fence is between the two on either side, so one of them sees the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::eventfd::EventFd;

/// What wakes one poll thread.
#[derive(Debug)]
pub(super) struct Waker {
    is_asleep: AtomicBool,
    bell: Arc<EventFd>,
}

impl Waker {
    /// The thread waits for `bell` when it sleeps.
    pub(super) fn new(bell: Arc<EventFd>) -> Waker {
        Waker { is_asleep: AtomicBool::new(false), bell }
    }

    /// The thread is about to sleep, or is awake again. For that thread only.
    pub(super) fn set_asleep(&self, is_asleep: bool) {
        self.is_asleep.store(is_asleep, Ordering::Relaxed);
    }

    /// Wakes the thread if it sleeps.
    #[inline]
    pub(super) fn wake(&self) {
        if self.is_asleep.load(Ordering::Relaxed) && self.is_asleep.swap(false, Ordering::Relaxed) {
            // A full counter wakes as well.
            let _ = self.bell.write(1);
        }
    }
}
