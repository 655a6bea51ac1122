//! What a guest writes between two reads of its memory, for the fuzzer.
//!
//! A real guest writes on another processor, at a moment that no input can name. Here each read of guest memory is counted, and a change
//! happens right before the read that it is planned for: one input is one run, and a double read of one value is found.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use super::GuestMemory;

/// Bytes that the guest writes at a physical address, so many reads after the change before.
#[derive(Debug)]
pub(crate) struct PlannedChange {
    pub(crate) reads: u16,
    pub(crate) address: u64,
    pub(crate) bytes: Vec<u8>,
}

/// The guest that writes, and what it will write.
#[derive(Debug, Default)]
struct Plan {
    memory: Arc<GuestMemory>,
    changes: VecDeque<PlannedChange>,
    reads: u64,
}

thread_local! {
    static PLAN: RefCell<Plan> = RefCell::default();
}

/// From now on it is this guest that writes, and nothing is planned.
pub(crate) fn begin(memory: Arc<GuestMemory>) {
    PLAN.with_borrow_mut(|plan| *plan = Plan { memory, ..Plan::default() });
}

/// One change more, after those that are planned.
pub(crate) fn plan(change: PlannedChange) {
    PLAN.with_borrow_mut(|plan| plan.changes.push_back(change));
}

/// How often guest memory was read since the last question.
pub(crate) fn take_reads() -> u64 {
    PLAN.with_borrow_mut(|plan| std::mem::take(&mut plan.reads))
}

/// To be called before each read of guest memory.
pub(super) fn before_read() {
    PLAN.with_borrow_mut(|plan| {
        plan.reads += 1;
        while let Some(next) = plan.changes.front_mut() {
            if next.reads > 0 {
                next.reads -= 1;
                return;
            }
            if let Some(PlannedChange { address, bytes, .. }) = plan.changes.pop_front()
                && let Some(place) = plan.memory.at_guest(address, bytes.len(), &Default::default())
            {
                place.write(&bytes);
            }
        }
    });
}
