//! When a guest is called, and by what.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::thread;

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::guest_model::{BUFFERS, FEATURES, GUEST, GuestModel, frame_bytes};
use super::layout::{AVAIL_NO_INTERRUPT, WRITE};
use super::ring_tests::{forward, receiver, sender};
use super::{Caller, GuestEvent, RingFeatures};
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

#[test]
#[cfg_attr(miri, ignore = "/proc does not tell of the descriptors that Miri has")]
fn only_an_eventfd_is_taken_for_one() {
    let (reader, writer) = nix::unistd::pipe().unwrap();
    let epoll = nix::sys::epoll::Epoll::new(nix::sys::epoll::EpollCreateFlags::empty()).unwrap();
    let file = OwnedFd::from(tempfile::tempfile().unwrap());
    for other in [reader, writer, epoll.0.try_clone().unwrap(), file] {
        assert!(GuestEvent::new(other).is_err());
    }
    let full = EventFd::from_value_and_flags(u32::MAX, EfdFlags::EFD_NONBLOCK).unwrap();
    nix::unistd::write(&full, &(u64::MAX - 1 - u64::from(u32::MAX)).to_ne_bytes()).unwrap();
    assert!(GuestEvent::new(full.as_fd().try_clone_to_owned().unwrap()).is_ok(), "a full one is one too");
}
