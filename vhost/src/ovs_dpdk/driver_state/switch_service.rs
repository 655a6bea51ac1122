//! Whether `ovs-vswitchd` does what the database says.
//!
//! No row tells: they stay as they are when it dies. The lock that it has in the database (`ovs_vswitchd`) would, but is asked for only by
//! trying to get it, and a switch that connects in the moment in which somebody else has it takes down its bridges. Its process cannot be
//! seen from a container, or where the database is reached by TLS, and one that hangs is there. What is left is how each client of OVS
//! waits for it: a number of a configuration that is asked for, and the number that it has carried out.

use std::time::{Duration, Instant};

use super::super::database_mirror::Mirror;
use super::super::error::OvsError;

/// A switch that carried something out so recently is not asked whether it does: each question has it look at all of its ports.
const FRESH: Duration = Duration::from_secs(10);

/// What the numbers of the configurations told so far, on one connection.
#[derive(Debug)]
pub(crate) struct Service {
    /// A switch serves that leaves nothing undone for so long.
    limit: Duration,
    applied: Option<i64>,
    /// When it last carried something out.
    seen: Option<Instant>,
    /// Since when it has carried out nothing, though something is asked for.
    behind_since: Option<Instant>,
    /// It is to be asked for a configuration that changes nothing.
    is_asked: bool,
}

impl Service {
    pub(crate) fn new(limit: Duration) -> Service {
        Service { limit, applied: None, seen: None, behind_since: None, is_asked: false }
    }

    /// A connection stands. What was carried out before says nothing of now.
    pub(crate) fn begin(&mut self, mirror: &Mirror, now: Instant) {
        *self = Service { applied: mirror.applied(), ..Service::new(self.limit) };
        self.look(mirror, now);
    }

    /// Takes what the database has now.
    pub(crate) fn look(&mut self, mirror: &Mirror, now: Instant) {
        let applied = mirror.applied();
        if applied != self.applied {
            (self.applied, self.seen, self.behind_since) = (applied, Some(now), None);
        }
        if mirror.requested() <= applied {
            self.behind_since = None;
        } else {
            self.behind_since.get_or_insert(now);
        }
    }

    /// Says whether the switch serves, as far as is known now.
    ///
    /// # Errors
    /// [`OvsError::NotServing`] where it has done nothing for as long as the limit, though something is asked for.
    pub(crate) fn check(&self, now: Instant) -> Result<(), OvsError> {
        match self.ends() {
            Some(end) if end <= now => Err(OvsError::NotServing { limit: self.limit }),
            _ => Ok(()),
        }
    }

    /// When it is taken for one that does not serve, unless it does something before.
    pub(crate) fn ends(&self) -> Option<Instant> {
        self.behind_since.map(|since| since + self.limit)
    }

    /// Whether what [`Service::check`] says is more than that nothing is known.
    pub(crate) fn is_known(&self, now: Instant) -> bool {
        let is_fresh = self.seen.is_some_and(|seen| now.saturating_duration_since(seen) < FRESH);
        is_fresh || self.check(now).is_err()
    }

    /// Has the switch asked where nothing tells whether it serves.
    pub(crate) fn ask(&mut self, now: Instant) {
        self.is_asked |= self.behind_since.is_none() && !self.is_known(now);
    }

    /// Whether the question is to be sent now. It is an answer to it, too, that somebody else waits.
    pub(crate) fn take_question(&mut self) -> bool {
        std::mem::take(&mut self.is_asked) && self.behind_since.is_none()
    }
}
