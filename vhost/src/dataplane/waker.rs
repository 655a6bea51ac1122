//! Waking a poll thread that sleeps.
//!
//! Invariant: a thread says that it sleeps, and then looks once more whether there is something to do; who has something for it puts that
//! where it looks, and then looks whether it sleeps. A fence is between the two on either side, so one of them sees the other.
//!
//! `tests/wake_ups.rs` goes through all that can come of it: it has this file and [`mailbox`](super::mailbox) compiled with loom's atomics.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::bell::Bell;
use crate::sync::{AtomicBool, fence};
use crate::wake_fence::Fenced;

/// What wakes one poll thread.
#[derive(Debug)]
pub(super) struct Waker {
    is_asleep: AtomicBool,
    bell: Arc<Bell>,
}

impl Waker {
    /// The thread waits for `bell` when it sleeps.
    pub(super) fn new(bell: Arc<Bell>) -> Waker {
        Waker { is_asleep: AtomicBool::new(false), bell }
    }

    /// Has the thread sleep by `wait` unless `has_work`. `wait` ends when the bell rings, and may end before. Commands are to be looked for
    /// after that: the bell is silent again. For that thread only.
    pub(super) fn sleep_unless(&self, has_work: impl FnOnce() -> bool, wait: impl FnOnce()) {
        self.is_asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !has_work() {
            wait();
        }
        self.is_asleep.store(false, Ordering::Relaxed);
        self.bell.hush();
    }

    /// Wakes the thread if it sleeps.
    #[inline]
    pub(super) fn wake(&self, _: Fenced) {
        // Of several that wake it one writes and rings.
        let is_asleep = self.is_asleep.load(Ordering::Relaxed);
        if is_asleep
            && self.is_asleep.compare_exchange(true, false, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.bell.ring();
        }
    }
}
