//! The fast lane's threads: how many there are, and since when each is at work. A pure state machine.
//!
//! Invariant: as many threads as configured are idle or busy with a short call. A thread whose call takes long
//! (another process holds a lock, the kernel waits) is stuck and does not count. Another thread is then made for
//! the calls that wait, and the next thread that finds itself one too many ends.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::Limits;

/// The time after which a call in the fast lane counts as stuck. Nearly all calls take less than 5 ms.
pub(super) const STUCK: Duration = Duration::from_millis(50);

/// The threads of the fast lane: how many exist, and which calls they are at work on.
#[derive(Debug, Default)]
pub(super) struct WorkerThreads {
    pub(super) threads: usize,
    /// When each call at work was begun, by the call's number.
    begun: BTreeMap<u64, Instant>,
}

impl WorkerThreads {
    /// Notes that a call was begun.
    pub(super) fn begin(&mut self, number: u64, now: Instant) {
        self.begun.insert(number, now);
    }

    /// Notes that a call is over.
    pub(super) fn end(&mut self, number: u64) {
        self.begun.remove(&number);
    }

    /// Whether any call is at work in the fast lane.
    pub(super) fn is_at_work(&self) -> bool {
        !self.begun.is_empty()
    }

    fn available(&self, now: Instant) -> usize {
        let stuck = self.begun.values().filter(|begun| now.duration_since(**begun) >= STUCK).count();
        self.threads.saturating_sub(stuck)
    }

    /// Whether another thread must be made for a call that waits.
    pub(super) fn needs_another(&self, limits: &Limits, now: Instant) -> bool {
        self.threads < limits.fast + limits.slow && self.available(now) < limits.fast
    }

    /// Whether the calling thread, which has just ended a call, is one too many.
    pub(super) fn has_one_too_many(&self, limits: &Limits, now: Instant) -> bool {
        self.available(now) > limits.fast
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_stuck_calls_make_it_short_and_it_is_large_when_they_are_over() {
        let limits = Limits { fast: 2, slow: 1, queued: 9 };
        let mut workers = WorkerThreads { threads: 2, ..WorkerThreads::default() };
        let start = Instant::now();
        workers.begin(1, start);
        workers.begin(2, start + STUCK / 2);
        assert!(!workers.needs_another(&limits, start + STUCK / 2));
        assert!(workers.needs_another(&limits, start + STUCK));
        workers.threads += 1;
        assert!(
            !workers.needs_another(&limits, start + STUCK)
                && !workers.has_one_too_many(&limits, start + STUCK)
        );
        assert!(!workers.needs_another(&limits, start + 2 * STUCK), "no more than the limit");
        workers.end(1);
        assert!(workers.has_one_too_many(&limits, start + STUCK));
    }
}
