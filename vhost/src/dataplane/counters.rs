//! How much went through a port: written by the poll thread, read by anybody.
//!
//! Invariant: one thread writes, so adding needs no locked instruction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::port::{DropReason, PortCounters};

const REASONS: [DropReason; 12] = DropReason::ALL;

/// The counters of one port on one thread.
#[derive(Debug, Default)]
pub(super) struct Counters {
    from_guest_frames: AtomicU64,
    from_guest_bytes: AtomicU64,
    to_guest_frames: AtomicU64,
    to_guest_bytes: AtomicU64,
    from_guest_drops: Drops,
    to_guest_drops: Drops,
    memory_refusals: AtomicU64,
}

/// One counter for each reason.
type Drops = [AtomicU64; REASONS.len()];

fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Counters {
    /// Frames that the guest sent. For the poll thread only, as all that add.
    pub(super) fn add_from_guest(&self, frames: u64, bytes: u64) {
        add(&self.from_guest_frames, frames);
        add(&self.from_guest_bytes, bytes);
    }

    /// Frames that the guest got.
    pub(super) fn add_to_guest(&self, frames: u64, bytes: u64) {
        add(&self.to_guest_frames, frames);
        add(&self.to_guest_bytes, bytes);
    }

    /// A frame that the guest sent and nobody gets.
    pub(super) fn add_from_guest_drop(&self, reason: DropReason) {
        add(&self.from_guest_drops[reason as usize], 1);
    }

    /// A frame for the guest that it does not get.
    pub(super) fn add_to_guest_drop(&self, reason: DropReason) {
        add(&self.to_guest_drops[reason as usize], 1);
    }
}

/// The counters of one port, of each poll thread its own: other threads than its own drop frames for it.
#[derive(Debug)]
pub(super) struct PortCounts {
    by_thread: Vec<Arc<Counters>>,
}

impl PortCounts {
    /// Nothing was counted yet, by so many threads.
    pub(super) fn of_threads(count: usize) -> PortCounts {
        PortCounts { by_thread: std::iter::repeat_with(Arc::default).take(count).collect() }
    }

    /// Where a thread counts.
    pub(super) fn of_thread(&self, thread: usize) -> Arc<Counters> {
        self.by_thread.get(thread).map(Arc::clone).unwrap_or_default()
    }

    /// A guest's memory cost too much. For the connection thread.
    pub(super) fn add_memory_refusal(&self) {
        if let Some(counters) = self.by_thread.first() {
            counters.memory_refusals.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What was counted until now, by all threads.
    pub(super) fn read(&self) -> PortCounters {
        let all = &self.by_thread;
        let sum =
            |of: fn(&Counters) -> &AtomicU64| all.iter().map(|one| of(one).load(Ordering::Relaxed)).sum();
        let drops = |of: fn(&Counters) -> &Drops| {
            let count = |reason: DropReason| {
                all.iter().map(|one| of(one)[reason as usize].load(Ordering::Relaxed)).sum::<u64>()
            };
            REASONS
                .map(|reason| (reason, count(reason)))
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .collect()
        };
        PortCounters {
            from_guest_frames: sum(|one| &one.from_guest_frames),
            from_guest_bytes: sum(|one| &one.from_guest_bytes),
            to_guest_frames: sum(|one| &one.to_guest_frames),
            to_guest_bytes: sum(|one| &one.to_guest_bytes),
            from_guest_drops: drops(|one| &one.from_guest_drops),
            to_guest_drops: drops(|one| &one.to_guest_drops),
            memory_bytes: 0,
            memory_refusals: sum(|one| &one.memory_refusals),
        }
    }
}
