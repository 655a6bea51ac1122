//! What a start has begun of what an earlier daemon left, and how far it has come. Everything here can hang, on a VF that is not
//! there, on sysfs or on a directory, so nothing of it is done on the thread that makes the daemon ready: that waits for a while.

use std::collections::BTreeSet;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// One thing that a start has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StartStep {
    /// The first attempt at the removal of this attachment.
    Removal(u64),
    /// The addresses of earlier boots are given back.
    Addresses,
    /// The pools are compared with the machine.
    Pools,
}

/// The steps of a start that have not ended.
#[derive(Debug, Default)]
pub(crate) struct StartSteps {
    left: Mutex<BTreeSet<StartStep>>,
    ended: Condvar,
}

impl StartSteps {
    /// This has to end too.
    pub(crate) fn begin(&self, step: StartStep) {
        self.left.lock().insert(step);
    }

    /// It has ended, or was tried once.
    pub(crate) fn end(&self, step: StartStep) {
        if self.left.lock().remove(&step) {
            self.ended.notify_all();
        }
    }

    /// Waits until all have ended, and no longer than `limit`. Answers those that have not.
    pub(crate) fn wait(&self, limit: Instant) -> Vec<StartStep> {
        let mut left = self.left.lock();
        while !left.is_empty() && !self.ended.wait_until(&mut left, limit).timed_out() {}
        left.iter().copied().collect()
    }
}
