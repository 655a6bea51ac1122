//! A guest and a thread that goes to sleep.

use std::sync::atomic::{Ordering, fence};
use std::thread;

use super::super::bell::Bell;
use super::*;
use crate::ring::guest_model::{FEATURES, GuestModel};
use crate::ring::{Caller, RingFeatures};
use crate::switch::Limits;

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

#[test]
#[cfg_attr(miri, ignore = "Miri's epoll tells of edges alone, and the bell is watched for its level")]
fn a_thread_that_a_command_has_woken_sleeps_at_once_if_it_finds_no_frame() {
    let bell = Arc::new(Bell::new().unwrap());
    let mut sleep = Sleep::new(Polling::Adaptive, &*bell, Arc::new(Waker::new(Arc::clone(&bell)))).unwrap();
    let mut forwarding = Forwarding::new(Limits::default(), Arc::new(Caller::default()));
    let started = Instant::now();
    // It sleeps where it has heard the bell: else nobody has waited for it.
    let mut sleeps = |frames, now| {
        bell.ring();
        sleep.after_round(frames, now, &mut forwarding);
        !bell.was_rung()
    };
    assert!(!sleeps(0, started), "it polls for a while");
    assert!(sleeps(0, started + AWAKE) && sleeps(0, started + AWAKE), "a command, and then no frame");
    assert!(!sleeps(1, started + AWAKE) && !sleeps(0, started + AWAKE), "a frame");
    assert!(sleeps(0, started + 2 * AWAKE));
}
