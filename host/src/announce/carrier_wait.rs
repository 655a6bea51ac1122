//! Announcements of interfaces that have no carrier yet: a NIC's link takes up to some seconds to come up, and what is sent
//! before is lost. Nothing of the pod's namespace is held while they wait.

use std::time::{Duration, Instant};

use super::Announcement;

/// How often is looked for the carrier.
const LOOK: Duration = Duration::from_millis(100);
/// After this time nobody expects it any more.
const PATIENCE: Duration = Duration::from_secs(15);

/// Those that wait.
#[derive(Debug, Default)]
pub(super) struct CarrierWait(Vec<Waiting>);

/// One that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) what: Announcement,
    look: Instant,
    until: Instant,
}

impl Waiting {
    /// One that has just come.
    pub(super) fn new(what: Announcement) -> Waiting {
        let now = Instant::now();
        Waiting { what, look: now, until: now + PATIENCE }
    }
}

impl CarrierWait {
    /// Looked at again after a while; false when its time is over.
    pub(super) fn wait(&mut self, one: Waiting) -> bool {
        let look = Instant::now() + LOOK;
        if look > one.until {
            return false;
        }
        self.0.push(Waiting { look, ..one });
        true
    }

    /// When one has to be looked at.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().map(|one| one.look).min()
    }

    /// Those whose time to be looked at has come.
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
