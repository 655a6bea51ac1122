//! When the engine is at rest: no call has come between two looks. Memory that it does not need then is given back once, as after the
//! start; the next call has to have its part of the program mapped again.

use std::sync::atomic::{AtomicU64, Ordering};

use fairlead_host::process;

/// How many calls have come.
#[derive(Debug, Default)]
pub(super) struct CallsCome(AtomicU64);

impl CallsCome {
    /// One more has come.
    pub(super) fn one_more(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// How many have come so far.
    pub(super) fn so_far(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What was seen at the last look.
#[derive(Debug, Default)]
pub(super) struct RestWatch {
    calls: Option<u64>,
    rests: bool,
}

impl RestWatch {
    /// Gives memory back if no call has come since the last look, and that is so for the first time. `calls`: how many have come.
    pub(super) fn look(&mut self, calls: u64) {
        if self.begins_to_rest(calls) {
            process::give_memory_back();
        }
    }

    fn begins_to_rest(&mut self, calls: u64) -> bool {
        let rests = self.calls.replace(calls) == Some(calls);
        let rested_before = std::mem::replace(&mut self.rests, rests);
        rests && !rested_before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_begins_once_after_the_start_and_after_each_time_with_calls() {
        let mut watch = RestWatch::default();
        let looks = [0, 0, 0, 7, 9, 9, 9, 10, 10].map(|calls| watch.begins_to_rest(calls));
        assert_eq!(looks, [false, true, false, false, false, true, false, false, true]);
    }
}
