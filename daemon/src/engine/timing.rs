//! Where the time of a call goes, phase by phase.

use std::time::{Duration, Instant};

/// A clock that is read at the end of each phase.
#[derive(Debug)]
pub(crate) struct Timing {
    last: Instant,
    phases: Vec<(&'static str, Duration)>,
}

impl Timing {
    /// Starts with the call's arrival: what passed until now is the phase `queue`.
    pub(crate) fn since(arrived: Instant) -> Timing {
        let mut timing = Timing { last: arrived, phases: Vec::with_capacity(8) };
        timing.end("queue");
        timing
    }

    /// Ends a phase here.
    pub(crate) fn end(&mut self, phase: &'static str) {
        let now = Instant::now();
        self.phases.push((phase, now - self.last));
        self.last = now;
    }

    /// The phases so far, in order.
    pub(crate) fn phases(&self) -> &[(&'static str, Duration)] {
        &self.phases
    }
}
