//! Where the time of a call goes, phase by phase.

use std::time::{Duration, Instant};

/// The phases of a call in order, each with the time that it took.
pub(crate) type Phases = Vec<(&'static str, Duration)>;

/// A clock that is read at the end of each phase.
#[derive(Debug)]
pub(crate) struct Timing {
    last: Instant,
    phases: Phases,
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

    /// The phases in order, when the call is over.
    pub(crate) fn take(&mut self) -> Phases {
        std::mem::take(&mut self.phases)
    }
}
