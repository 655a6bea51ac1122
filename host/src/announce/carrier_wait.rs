//! Announcements of interfaces that have no carrier yet: a NIC's link takes up to some seconds to come up, and what is sent
//! before is lost. Nothing of the pod's namespace is held while they wait.

use std::time::{Duration, Instant};

use super::Announcement;

/// How often the carrier is looked for.
const LOOK: Duration = Duration::from_millis(100);
/// An interface without a carrier for so long is given up.
const PATIENCE: Duration = Duration::from_secs(15);

/// All announcements that wait for a carrier.
#[derive(Debug, Default)]
pub(super) struct CarrierWait(Vec<Waiting>);

/// An announcement that waits for its interface's carrier.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) what: Announcement,
    look: Instant,
    until: Instant,
}

impl Waiting {
    /// An announcement that has just come, to be tried at once.
    pub(super) fn new(what: Announcement) -> Waiting {
        let now = Instant::now();
        Waiting { what, look: now, until: now + PATIENCE }
    }
}

impl CarrierWait {
    /// Keeps an announcement for another try after a while; false when its time is over.
    pub(super) fn wait(&mut self, one: Waiting) -> bool {
        let look = Instant::now() + LOOK;
        if look > one.until {
            return false;
        }
        self.0.push(Waiting { look, ..one });
        true
    }

    /// When the next one is to be tried.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().map(|one| one.look).min()
    }

    /// Takes out those that are to be tried now.
    pub(super) fn due(&mut self) -> Vec<Waiting> {
        let now = Instant::now();
        self.0.extract_if(.., |one| one.look <= now).collect()
    }

    /// Forgets those that are meant; answers how many.
    pub(super) fn forget(&mut self, meant: impl Fn(&Announcement) -> bool) -> usize {
        let before = self.0.len();
        self.0.retain(|one| !meant(&one.what));
        before - self.0.len()
    }
}
