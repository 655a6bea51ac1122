//! The fast line's threads: how many there are, and since when each is at work. A pure state machine.
//!
//! The invariant: so many of them as configured are idle or busy with a call of a moment. One whose call takes long (a
//! lock that another process holds, a kernel that waits) is stuck and does not count: a further thread is made for
//! those who wait, and whichever thread next finds one too many ends.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::Limits;

/// A call of the fast line that is at work for so long is stuck: nearly all take less than 5 ms.
pub(super) const STUCK: Duration = Duration::from_millis(50);

/// The threads of the fast line: how many exist, and which calls they are at work on.
#[derive(Debug, Default)]
pub(super) struct WorkerThreads {
    pub(super) threads: usize,
    /// Calls at work by their number, and when they were begun.
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

    /// Whether any call of the fast line is at work.
    pub(super) fn is_at_work(&self) -> bool {
        !self.begun.is_empty()
    }

    fn available(&self, now: Instant) -> usize {
        let stuck = self.begun.values().filter(|begun| now.duration_since(**begun) >= STUCK).count();
        self.threads.saturating_sub(stuck)
    }

    /// A further thread is to be made for a call that waits.
    pub(super) fn needs_another(&self, limits: &Limits, now: Instant) -> bool {
        self.threads < limits.fast + limits.slow && self.available(now) < limits.fast
    }

    /// The thread that asks, which has just ended a call, is one too many.
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
