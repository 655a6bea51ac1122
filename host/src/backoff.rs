//! Pauses between attempts: each twice as long as the one before, up to a longest.
//!
//! It only counts; whoever uses it waits in his own way. `kube`, which does not know this crate, has one whose pauses also differ from node
//! to node.

use std::time::Duration;

/// How long to wait between attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// Pauses that begin with `first` and double up to `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest }
    }

    /// The pause after the n-th failure; the first failure is number 1.
    pub fn after(&self, failures: u32) -> Duration {
        // A shift by 32 or more has no value: whatever has failed that often waits for the longest pause.
        let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(doubled).min(self.longest)
    }

    /// Counts the failures of one thing.
    pub const fn start(self) -> Attempts {
        Attempts { backoff: self, failures: 0 }
    }
}

/// The failures of one thing so far, and the pause that comes next.
#[derive(Debug, Clone)]
pub struct Attempts {
    backoff: Backoff,
    failures: u32,
}

impl Attempts {
    /// Counts one more failure; answers the pause before the next attempt.
    pub fn failed(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.backoff.after(self.failures)
    }

    /// It succeeded: the next failure is the first again.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// How often it has failed in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_from_the_first_to_the_longest_and_begin_again_after_a_success() {
        let mut attempts = Backoff::new(Duration::from_secs(1), Duration::from_secs(300)).start();
        let pauses: Vec<u64> = (0..12).map(|_| attempts.failed().as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        attempts.succeeded();
        assert_eq!((attempts.failures(), attempts.failed().as_secs()), (0, 1));
        let mut endless = Backoff::new(Duration::from_millis(1), Duration::from_secs(1));
        endless.longest = Duration::MAX;
        assert!(endless.after(u32::MAX) >= endless.after(32));
    }
}
