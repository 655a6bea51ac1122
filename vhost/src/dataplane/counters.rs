//! How much went through a port: written by the poll thread, read by anybody.
//!
//! Invariant: one thread writes, so adding needs no locked instruction.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::port::{DropReason, PortCounters};

const REASONS: [DropReason; 8] = DropReason::ALL;

/// The counters of one port.
#[derive(Debug, Default)]
pub(super) struct Counters {
    from_guest_frames: AtomicU64,
    from_guest_bytes: AtomicU64,
    to_guest_frames: AtomicU64,
    to_guest_bytes: AtomicU64,
    drops: [AtomicU64; REASONS.len()],
}

fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Counters {
    /// Frames that the guest sent. For the poll thread only, as all that add.
    pub(super) fn add_from_guest(&self, frames: u64, bytes: u64) {
        add(&self.from_guest_frames, frames);
        add(&self.from_guest_bytes, bytes);
    }

    /// A frame that the guest got.
    pub(super) fn add_to_guest(&self, bytes: usize) {
        add(&self.to_guest_frames, 1);
        add(&self.to_guest_bytes, bytes as u64);
    }

    /// A frame that was dropped.
    pub(super) fn add_drop(&self, reason: DropReason) {
        if let Some(at) = REASONS.iter().position(|known| *known == reason) {
            add(&self.drops[at], 1);
        }
    }

    /// What was counted until now.
    pub(super) fn read(&self) -> PortCounters {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let drops = REASONS.iter().zip(&self.drops).map(|(reason, count)| (*reason, value(count)));
        PortCounters {
            from_guest_frames: value(&self.from_guest_frames),
            from_guest_bytes: value(&self.from_guest_bytes),
            to_guest_frames: value(&self.to_guest_frames),
            to_guest_bytes: value(&self.to_guest_bytes),
            drops: drops.filter(|(_, count)| *count > 0).collect(),
        }
    }
}
