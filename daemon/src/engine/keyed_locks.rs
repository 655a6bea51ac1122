//! Locks by name: of containers, so that one call at a time works on the attachments of one, whether for a caller, for the
//! collector or for the removal queue; of VFs and IOMMU groups, so that one ADD at a time takes one.

use std::collections::HashSet;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// The keys that are held.
#[derive(Debug, Default)]
pub(crate) struct KeyedLocks {
    held: Mutex<HashSet<String>>,
    freed: Condvar,
}

/// A key that is held; free again when dropped.
#[derive(Debug)]
pub(crate) struct KeyedLock<'a> {
    locks: &'a KeyedLocks,
    key: String,
}

impl KeyedLocks {
    /// Waits for the key until `deadline`; `None` when it was not to be had.
    pub(crate) fn take(&self, key: &str, deadline: Instant) -> Option<KeyedLock<'_>> {
        let mut held = self.held.lock();
        while held.contains(key) {
            // The key may have been freed in the very moment in which the wait timed out.
            if self.freed.wait_until(&mut held, deadline).timed_out() && held.contains(key) {
                return None;
            }
        }
        held.insert(key.to_owned());
        Some(KeyedLock { locks: self, key: key.to_owned() })
    }

    /// Takes the key if nobody holds it.
    pub(crate) fn try_take(&self, key: &str) -> Option<KeyedLock<'_>> {
        let mut held = self.held.lock();
        held.insert(key.to_owned()).then(|| KeyedLock { locks: self, key: key.to_owned() })
    }
}

impl Drop for KeyedLock<'_> {
    fn drop(&mut self) {
        self.locks.held.lock().remove(&self.key);
        // All keys share one condition: of one thread alone the wrong one could wake.
        self.locks.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn two_calls_of_one_container_never_overlap() {
        let locks = KeyedLocks::default();
        let first = locks.take("c1", Instant::now()).unwrap();
        assert!(locks.try_take("c1").is_none());
        assert!(locks.try_take("c2").is_some());
        assert!(locks.take("c1", Instant::now() + Duration::from_millis(5)).is_none());
        drop(first);
        assert!(locks.try_take("c1").is_some());
    }
}
