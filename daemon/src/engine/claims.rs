//! One call at a time for one container: a claim is held for as long as something is done to its attachments, by a
//! call, by the collector or by the reaper.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// The containers that are being worked on.
#[derive(Debug, Default)]
pub(super) struct Claims {
    held: Mutex<HashSet<String>>,
    freed: Condvar,
}

/// A container that is being worked on by the holder; free again when dropped.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    claims: &'a Claims,
    container: String,
}

impl Claims {
    /// Waits for the container until `deadline`; `None` when it was not to be had.
    pub(super) fn take(&self, container: &str, deadline: Instant) -> Option<Claim<'_>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        while held.contains(container) {
            let left = deadline.checked_duration_since(Instant::now())?;
            held = self.freed.wait_timeout(held, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        held.insert(container.to_owned());
        Some(Claim { claims: self, container: container.to_owned() })
    }

    /// Takes the container if nobody works on it.
    pub(super) fn try_take(&self, container: &str) -> Option<Claim<'_>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.insert(container.to_owned()).then(|| Claim { claims: self, container: container.to_owned() })
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.container);
        self.claims.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn two_calls_of_one_container_never_overlap() {
        let claims = Claims::default();
        let first = claims.take("c1", Instant::now()).unwrap();
        assert!(claims.try_take("c1").is_none());
        assert!(claims.try_take("c2").is_some());
        assert!(claims.take("c1", Instant::now() + Duration::from_millis(5)).is_none());
        drop(first);
        assert!(claims.try_take("c1").is_some());
    }
}
