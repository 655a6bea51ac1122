//! When a guest is called, and by what.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::caller::Written;
use super::guest_model::{BUFFERS, FEATURES, GUEST, GuestModel, frame_bytes};
use super::layout::{AVAIL_NO_INTERRUPT, WRITE};
use super::ring_tests::{forward, receiver, sender};
use super::{CallTimes, Caller, GuestEvent, RingFault, RingFeatures};
use crate::switch::TagChange;

const BUFFER: u64 = GUEST + BUFFERS;

fn called(event: &EventFd) -> bool {
    event.read().is_ok()
}

fn call_event() -> (EventFd, Option<Arc<GuestEvent>>) {
    let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
    let theirs = GuestEvent::of_own(&event);
    (event, Some(Arc::new(theirs)))
}

#[test]
fn a_guest_is_called_only_if_it_asked_for_that() {
    let (event, call) = call_event();
    let mut guest = receiver(0, 0);
    let mut ring = guest.ring_with_call(FEATURES, call);
    for (flags, wanted) in [(0, true), (AVAIL_NO_INTERRUPT, false)] {
        guest.set_available_flags(flags);
        guest.describe(0, BUFFER, 512, WRITE, 0);
        guest.offer(0);
        let from = sender(&frame_bytes(60));
        assert_eq!(forward(&mut from.ring(FEATURES), &mut ring, TagChange::None), 1);
        assert_eq!(called(&event), wanted);
        ring.publish(&Caller::default()).unwrap();
        assert!(!called(&event), "nothing new");
    }
}

#[test]
fn a_guest_with_event_indices_is_called_when_the_used_index_passes_its_own() {
    let (event, call) = call_event();
    let features = RingFeatures { event_idx: true, ..FEATURES };
    let mut guest = GuestModel::new(8);
    let mut ring = guest.ring_with_call(features, call);
    guest.set_used_event(2);
    // The first time in any case: what it was told before may have been lost.
    for wanted in [true, false, true, false] {
        guest.describe(0, BUFFER, 512, WRITE, 0);
        guest.offer(0);
        forward(&mut sender(&frame_bytes(60)).ring(FEATURES), &mut ring, TagChange::None);
        assert_eq!(called(&event), wanted);
    }
}

/// The guest asks for calls and looks at the used index, while the switch writes that and looks whether a call is asked for. Miri lets a load
/// have every value that the memory model lets it have.
#[test]
fn a_guest_that_asks_for_calls_is_called_or_sees_what_was_used_before() {
    for event_idx in [false, true] {
        for _ in 0..if cfg!(miri) { 50 } else { 1_000 } {
            let (event, call) = call_event();
            let guest = GuestModel::new(8);
            guest.set_available_flags(AVAIL_NO_INTERRUPT);
            guest.set_used_event(7);
            guest.set_available_index(2);
            let mut ring = guest.ring_with_call(RingFeatures { event_idx, ..FEATURES }, call);
            ring.use_next(0, 0);
            ring.publish(&Caller::default()).unwrap();
            assert!(called(&event), "the first time in any case");
            let switch = thread::spawn(move || {
                ring.use_next(1, 0);
                ring.publish(&Caller::default()).unwrap();
            });
            guest.set_available_flags(0);
            guest.set_used_event(1);
            fence(Ordering::SeqCst);
            let has_seen = guest.used().len() == 2;
            switch.join().unwrap();
            assert!(has_seen || called(&event));
        }
    }
}

/// When a write starts, how long it takes, and how much of that it has the processor, in milliseconds.
type LongCall = (u64, u64, Option<u64>);

#[test]
fn calls_that_keep_the_processor_are_a_fault_and_those_of_a_thread_that_lost_it_are_none() {
    let (start, ms) = (Instant::now(), Duration::from_millis);
    let faults = |calls: &[LongCall]| {
        let mut times = CallTimes::default();
        let mut fault = |(at, took, on_processor): &LongCall| {
            let started = start + ms(*at);
            times.note_long(started, started + ms(*took), on_processor.map(ms))
                == Err(RingFault::CallsTakeLong)
        };
        calls.iter().map(&mut fault).collect::<Vec<bool>>()
    };
    let lost_it =
        [(0, 50, None), (100, 50, Some(0)), (200, 50, Some(1)), (300, 50, Some(2)), (400, 50, Some(0))];
    assert_eq!(faults(&lost_it), [false; 5]);
    let keep_it = [(0, 5, None), (10, 5, Some(5)), (20, 5, Some(5)), (30, 5, Some(5)), (40, 5, Some(5))];
    assert_eq!(faults(&keep_it), [false, false, false, true, false]);
    let rare = [(0, 5, Some(5)), (2_000, 5, Some(5)), (4_000, 5, Some(5)), (6_000, 5, Some(5))];
    assert_eq!(faults(&rare), [false; 4]);
    let rare_and_longer = [(0, 90, Some(90)), (8_000, 90, Some(90)), (16_000, 90, Some(90))];
    assert_eq!(
        faults(&rare_and_longer),
        [false, false, true],
        "what counts is rare for a guest only if it is rare beside what it takes"
    );
}

/// How long a write had the processor, and what came of the one after it: whether the counter was full, and how long that had it.
type TwoWrites = (Option<u64>, bool, Option<u64>);

#[test]
fn a_call_that_an_interrupt_made_long_is_not_counted_and_one_that_is_long_again_is() {
    let written = |was_full: bool, on_processor: Option<u64>| Written {
        was_full,
        on_processor: on_processor.map(Duration::from_millis),
    };
    let cost = |(first, is_full, second): TwoWrites| {
        let cost = written(false, first).cost(|| Ok(written(is_full, second))).unwrap();
        cost.map(|cost| cost.as_millis())
    };
    assert_eq!(cost((Some(20), false, Some(0))), Some(0), "an interrupt");
    assert_eq!(cost((Some(20), false, Some(15))), Some(35), "very many wait");
    assert_eq!(
        cost((Some(20), true, Some(0))),
        Some(20),
        "the guest filled the counter, so that the second tells nobody"
    );
    assert_eq!(cost((Some(20), false, None)), None);
    for short in [None, Some(0), Some(2)] {
        let cost = written(false, short).cost(|| Err(RingFault::CallBlocks));
        assert_eq!(cost, Ok(short.map(Duration::from_millis)), "there is no second write");
    }
}

#[test]
fn only_after_a_long_call_is_the_time_on_the_processor_asked_for() {
    let (start, mut times) = (Instant::now(), CallTimes::default());
    assert!(!times.is_suspect(start));
    let ended = start + Duration::from_millis(5);
    assert_eq!(times.note_long(start, ended, None), Ok(()));
    assert!(times.is_suspect(ended + Duration::from_secs(1)));
    assert!(!times.is_suspect(ended + Duration::from_secs(2)));
}

#[test]
#[cfg_attr(miri, ignore = "/proc does not tell of the descriptors that Miri has")]
fn only_an_eventfd_is_taken_for_one() {
    let (reader, writer) = nix::unistd::pipe().unwrap();
    let epoll = nix::sys::epoll::Epoll::new(nix::sys::epoll::EpollCreateFlags::empty()).unwrap();
    let file = OwnedFd::from(tempfile::tempfile().unwrap());
    for other in [reader, writer, epoll.0.try_clone().unwrap(), file] {
        assert!(GuestEvent::new(other.into()).is_err());
    }
    let full = EventFd::from_value_and_flags(u32::MAX, EfdFlags::EFD_NONBLOCK).unwrap();
    nix::unistd::write(&full, &(u64::MAX - 1 - u64::from(u32::MAX)).to_ne_bytes()).unwrap();
    let full = full.as_fd().try_clone_to_owned().unwrap();
    assert!(GuestEvent::new(full.into()).is_ok(), "a full one is one too");
}
