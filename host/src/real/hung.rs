//! What drivers were asked to do and have not ended, though nobody waits any more: it keeps its thread, and nothing can end
//! it. So it can at least be told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// All that is under way.
#[derive(Debug, Clone, Default)]
pub(super) struct Hung(Arc<Mutex<UnderWay>>);

#[derive(Debug, Default)]
struct UnderWay {
    next: u64,
    work: BTreeMap<u64, Work>,
}

#[derive(Debug)]
struct Work {
    what: String,
    begun: Instant,
    limit: Duration,
}

/// Is held by the thread that does the work, for as long as that lasts.
#[derive(Debug)]
pub(super) struct Turn {
    hung: Hung,
    number: u64,
}

impl Hung {
    /// `what` begins, and should end within `limit`.
    pub(super) fn begin(&self, what: String, limit: Duration) -> Turn {
        let mut under_way = self.lock();
        let number = under_way.next;
        under_way.next += 1;
        under_way.work.insert(number, Work { what, begun: Instant::now(), limit });
        Turn { hung: self.clone(), number }
    }

    /// What has not ended within its limit, and since when.
    pub(super) fn told(&self) -> Vec<String> {
        let late = |work: &&Work| work.begun.elapsed() > work.limit;
        let told = |work: &Work| format!("{}: since {} s", work.what, work.begun.elapsed().as_secs());
        self.lock().work.values().filter(late).map(told).collect()
    }

    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.hung.lock().work.remove(&self.number);
    }
}
