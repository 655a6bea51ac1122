//! Locks by name: of containers, so that one call at a time works on the attachments of one, whether for a caller, for the
//! collector or for the removal queue; of VFs and IOMMU groups, so that one ADD at a time takes one.

use std::collections::HashMap;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// Who holds which key, by a number that nobody else ever gets.
#[derive(Debug, Default)]
struct Held {
    keys: HashMap<String, u64>,
    last: u64,
}

impl Held {
    fn hold(&mut self, key: &str) -> u64 {
        self.last += 1;
        self.keys.insert(key.to_owned(), self.last);
        self.last
    }
}

/// The keys that are held.
#[derive(Debug, Default)]
pub(crate) struct KeyedLocks {
    held: Mutex<Held>,
    freed: Condvar,
}

/// A key that is held; free again when dropped.
#[derive(Debug)]
pub(crate) struct KeyedLock<'a> {
    locks: &'a KeyedLocks,
    key: String,
    holder: u64,
}

impl KeyedLocks {
    /// Waits for the key until `deadline`; `None` when it was not to be had.
    pub(crate) fn take(&self, key: &str, deadline: Instant) -> Option<KeyedLock<'_>> {
        let mut held = self.held.lock();
        while held.keys.contains_key(key) {
            // The key may have been freed in the very moment in which the wait timed out.
            if self.freed.wait_until(&mut held, deadline).timed_out() && held.keys.contains_key(key) {
                return None;
            }
        }
        let holder = held.hold(key);
        Some(KeyedLock { locks: self, key: key.to_owned(), holder })
    }

    /// Takes the key from whoever holds it: one that hangs for good. What that one does later is not kept apart any more.
    pub(crate) fn seize(&self, key: &str) -> KeyedLock<'_> {
        let holder = self.held.lock().hold(key);
        KeyedLock { locks: self, key: key.to_owned(), holder }
    }

    /// Takes the key if nobody holds it.
    pub(crate) fn try_take(&self, key: &str) -> Option<KeyedLock<'_>> {
        let mut held = self.held.lock();
        if held.keys.contains_key(key) {
            return None;
        }
        let holder = held.hold(key);
        Some(KeyedLock { locks: self, key: key.to_owned(), holder })
    }
}

impl Drop for KeyedLock<'_> {
    fn drop(&mut self) {
        let mut held = self.locks.held.lock();
        // Another may have seized it.
        if held.keys.get(&self.key) == Some(&self.holder) {
            held.keys.remove(&self.key);
        }
        drop(held);
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

    #[test]
    fn who_lost_a_key_does_not_free_it_for_the_one_who_has_it_now() {
        let locks = KeyedLocks::default();
        let hangs = locks.try_take("c1").unwrap();
        let seized = locks.seize("c1");
        drop(hangs);
        assert!(locks.try_take("c1").is_none());
        drop(seized);
        assert!(locks.try_take("c1").is_some());
    }
}
