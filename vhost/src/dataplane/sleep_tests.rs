//! A guest and a thread that goes to sleep.

use std::sync::atomic::{Ordering, fence};
use std::thread;

use super::super::bell::Bell;
use super::*;
use crate::ring::RingFeatures;
use crate::ring::guest_model::{FEATURES, GuestModel};

/// The guest makes a buffer available and looks whether a kick is asked for, while the thread asks for kicks and looks at the ring. Miri lets
/// a load have every value that the memory model lets it have.
#[test]
fn a_guest_that_makes_a_buffer_available_kicks_or_the_thread_does_not_sleep() {
    for event_idx in [false, true] {
        for _ in 0..if cfg!(miri) { 50 } else { 1_000 } {
            let mut guest = GuestModel::new(8);
            guest.set_used_index(5);
            guest.start_at(5);
            let ring = guest.ring(RingFeatures { event_idx, ..FEATURES });
            let sleeper = thread::spawn(move || {
                let waker = Waker::new(Arc::new(Bell::new().unwrap()));
                let mut has_slept = false;
                ring.ask_for_kicks(true);
                waker.sleep_unless(|| ring.has_work(), || has_slept = true);
                has_slept
            });
            guest.offer(0);
            fence(Ordering::SeqCst);
            let kicks = if event_idx { guest.available_event() == 5 } else { guest.used_flags() == 0 };
            let has_slept = sleeper.join().unwrap();
            assert!(kicks || !has_slept);
        }
    }
}
