//! A capture of a port, with guests that exchange frames.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests use the rest")]
mod guest;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use fairlead_vhost::capture::{
    CaptureDirection, CaptureKey, CaptureOptions, CaptureReader, CaptureRequest, CapturedFrame, Ended, Seen,
};
use fairlead_vhost::dataplane::PortError;
use guest::{Node, exchange, frame, wait_until};
use nix::sys::memfd::{MFdFlags, memfd_create};

const ALL: CaptureOptions = CaptureOptions { direction: CaptureDirection::Both, snaplen: 262_144 };

/// A capture of port 0, and the other end of what stands for its connection.
fn capture(node: &Node, options: CaptureOptions) -> (CaptureReader, CaptureKey, UnixStream) {
    let memory = CaptureReader::memory().unwrap();
    let request = CaptureRequest { options, memory: memory.try_clone().unwrap() };
    let key = node.plane.capture("0", request).unwrap();
    let (ours, other) = UnixStream::pair().unwrap();
    (CaptureReader::new(memory.as_fd(), ours.into()).unwrap(), key, other)
}

fn seen(reader: &mut CaptureReader) -> Vec<CapturedFrame> {
    let mut frames = Vec::new();
    while let Seen::Frame(frame) = reader.look() {
        frames.push(frame);
    }
    frames
}

#[test]
fn frames_of_one_port_are_captured_in_both_directions_in_order_until_the_port_is_removed() {
    let node = Node::with_ports(3);
    let (mut one, mut other, mut third) = (node.guest(0), node.guest(1), node.guest(2));
    exchange(&node, &mut one, &mut other, 1);
    let (mut reader, _, _connection) = capture(&node, ALL);
    exchange(&node, &mut one, &mut other, 2);
    exchange(&node, &mut third, &mut other, 3);
    exchange(&node, &mut one, &mut other, 4);
    let told: Vec<_> = seen(&mut reader).into_iter().map(|frame| (frame.direction, frame.bytes)).collect();
    let (sent, received) = (CaptureDirection::Sent, CaptureDirection::Received);
    let wanted = [2, 4].map(|n| [(sent, frame(0, 1, n)), (received, frame(1, 0, n))]).concat();
    assert_eq!(told, wanted, "nothing of before, and of no other port");
    assert_eq!(reader.lost(), 0);
    node.plane.remove_port("0").unwrap();
    assert_eq!(reader.look(), Seen::Ended(Ended::PortRemoved));
}

#[test]
fn a_capture_keeps_the_direction_and_the_bytes_that_were_asked_for_and_there_is_one_at_a_time() {
    let node = Node::with_ports(2);
    let (mut one, mut other) = (node.guest(0), node.guest(1));
    let only_sent = CaptureOptions { direction: CaptureDirection::Sent, snaplen: 16 };
    let (mut reader, key, connection) = capture(&node, only_sent);
    exchange(&node, &mut one, &mut other, 1);
    let [told] = <[CapturedFrame; 1]>::try_from(seen(&mut reader)).unwrap();
    assert_eq!((told.length, told.bytes.as_slice()), (60, &frame(0, 1, 1)[..16]));

    let request = || CaptureRequest { options: ALL, memory: CaptureReader::memory().unwrap() };
    assert_eq!(node.plane.capture("0", request()).unwrap_err(), PortError::Captured("0".into()));
    let missing = node.plane.capture("9", request()).unwrap_err();
    assert_eq!(missing, PortError::NoSuchPort("9".into()));
    node.plane.end_capture("0", CaptureKey(key.0 + 1));
    assert!(node.plane.capture("0", request()).is_err(), "somebody else's capture is not ended");
    node.plane.end_capture("0", key);
    let (mut next, ..) = capture(&node, ALL);
    exchange(&node, &mut one, &mut other, 2);
    assert_eq!(seen(&mut next).len(), 2);
    drop(connection);
}

#[test]
fn a_ring_that_nobody_reads_costs_frames_of_the_capture_and_none_of_the_guests() {
    let node = Node::with_ports(2);
    let (mut one, mut other) = (node.guest(0), node.guest(1));
    let (mut reader, _, connection) = capture(&node, ALL);
    let long = [frame(0, 1, 7), vec![7; 1_400]].concat();
    let (mut sent, mut got) = (0, 0);
    // More than the ring has room for, a few at a time so that no guest lacks a buffer.
    while reader.lost() < 100 {
        (0..16).for_each(|_| one.send(&long));
        sent += 16;
        let mut all_came = || {
            got += other.received().len();
            got == sent
        };
        wait_until("all frames arrive", &mut all_came, || node.state());
    }
    let kept = seen(&mut reader);
    assert!(kept.iter().all(|frame| frame.bytes == long), "over the ring's end too");
    assert_eq!(kept.len() as u64 + reader.lost(), sent as u64);
    // The ring is free again, from wherever it was.
    exchange(&node, &mut one, &mut other, 9);
    assert_eq!(seen(&mut reader).len(), 2);
    drop(connection);
    let until = || matches!(reader.look(), Seen::Ended(Ended::SwitchGone));
    wait_until("the end of the connection is seen", until, || node.state());
}

#[test]
fn only_memory_of_the_right_size_is_taken() {
    let node = Node::with_ports(1);
    let short = File::from(memfd_create(c"short", MFdFlags::MFD_ALLOW_SEALING).unwrap());
    short.set_len(4096).unwrap();
    for memory in [OwnedFd::from(short), File::open("/dev/null").unwrap().into()] {
        let refused = node.plane.capture("0", CaptureRequest { options: ALL, memory }).unwrap_err();
        assert!(matches!(refused, PortError::Capture(_)), "{refused}");
    }
}
