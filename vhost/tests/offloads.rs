//! Work that guests leave to their device, between guests that agreed on it and guests that did not.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests use the rest")]
mod guest;

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use fairlead_vhost::capture::{
    CaptureDirection, CaptureOptions, CaptureReader, CaptureRequest, CapturedFrame, Seen,
};
use fairlead_vhost::port::{DropReason, PortConfig};
use guest::packets::{ECN, Tcp, udp};
use guest::{FEATURES, Guest, Node, config, exchange, mac, wait_until};

/// CSUM, HOST_TSO4, HOST_TSO6, HOST_ECN: what a guest may leave to be done.
const SENDS: u64 = 1 | 1 << 11 | 1 << 12 | 1 << 13;
/// GUEST_CSUM, GUEST_TSO4, GUEST_TSO6, GUEST_ECN: what may be left to it.
const GETS: u64 = 1 << 1 | 1 << 7 | 1 << 8 | 1 << 9;
const GUEST_CSUM: u64 = 1 << 1;
const MERGEABLE: u64 = 1 << 15;

const MSS: u16 = 1_428;

/// A packet from guest to guest with so much data.
fn tcp(from: usize, to: usize, bytes: usize) -> Tcp {
    Tcp { options: vec![1; 12], ..Tcp::new(mac(to), mac(from), bytes) }
}

/// Waits for so many frames, and answers them with their headers.
fn wait_for(node: &Node, guest: &mut Guest, count: usize) -> Vec<([u8; 10], Vec<u8>)> {
    let mut frames = Vec::new();
    let mut all_came = || {
        frames.extend(guest.received_with_headers());
        frames.len() >= count
    };
    wait_until("the frames arrive", &mut all_came, || node.state());
    assert_eq!(frames.len(), count, "no more than that");
    frames
}

/// Waits until a frame of port `number` was dropped for this reason, and that no other was.
fn wait_for_drop(node: &Node, number: usize, reason: DropReason, count: u64) {
    let dropped = || node.port(number).counters.from_guest_drops.get(&reason) == Some(&count);
    wait_until("the drop is counted", dropped, || node.state());
}

fn without_header(frames: &[Vec<u8>]) -> Vec<([u8; 10], Vec<u8>)> {
    frames.iter().map(|frame| ([0; 10], frame.clone())).collect()
}

#[test]
fn a_long_frame_passes_whole_between_guests_that_agreed_on_it() {
    let node = Node::with_ports(2);
    let (mut one, mut other) =
        (node.guest_with(0, FEATURES | SENDS), node.guest_with(1, FEATURES | SENDS | GETS));
    let (mut count, mut bytes) = (0, 0);
    for is_v6 in [false, true] {
        for length in [1, 1_448, 9_000, 65_483] {
            let packet = Tcp { is_v6, ..tcp(0, 1, length) };
            let mut sent = packet.segments_header(MSS);
            // What is only a hint may be anything.
            sent[2..4].copy_from_slice(&[0xff, 0x7f]);
            one.send_offloaded(sent, &packet.partial());
            assert!(wait_for(&node, &mut other, 1) == [(packet.segments_header(MSS), packet.partial())]);
            (count, bytes) = (count + 1, bytes + packet.partial().len() as u64);
        }
        let packet = Tcp { is_v6, ..tcp(0, 1, 700) };
        one.send_offloaded(packet.checksum_header(), &packet.partial());
        assert!(wait_for(&node, &mut other, 1) == [(packet.checksum_header(), packet.partial())]);
        (count, bytes) = (count + 1, bytes + packet.partial().len() as u64);
    }
    let (sent, got) = (node.port(0).counters, node.port(1).counters);
    assert_eq!((sent.from_guest_frames, sent.from_guest_bytes), (count, bytes));
    assert_eq!((got.to_guest_frames, got.to_guest_bytes), (count, bytes), "they were not cut");
    exchange(&node, &mut one, &mut other, 1);
}

#[test]
fn a_guest_that_did_not_agree_gets_segments_and_sums_that_are_whole() {
    let node = Node::with_ports(3);
    let mut one = node.guest_with(0, FEATURES | SENDS | GETS);
    let mut none = node.guest_with(1, FEATURES);
    let mut sums_alone = node.guest_with(2, FEATURES | SENDS | GUEST_CSUM);
    for is_v6 in [false, true] {
        for length in [1, 1_448, 30_001, 65_483] {
            for (to, guest) in [(1, &mut none), (2, &mut sums_alone)] {
                let packet = Tcp { is_v6, ..tcp(0, to, length) };
                one.send_offloaded(packet.segments_header(MSS), &packet.partial());
                let segments = packet.segments(usize::from(MSS));
                assert!(wait_for(&node, guest, segments.len()) == without_header(&segments));
            }
        }
    }
    for (data, whole) in [(0, [34, 0, 6, 0]), (5, [34, 0, 6, 0]), (1_400, [34, 0, 6, 0])] {
        let header = [&[1, 0, 0, 0, 0, 0][..], &whole].concat().try_into().unwrap();
        one.send_offloaded(header, &udp(mac(1), mac(0), &vec![7; data], false));
        let expected = udp(mac(1), mac(0), &vec![7; data], true);
        assert!(wait_for(&node, &mut none, 1) == without_header(&[expected]));
        one.send_offloaded(header, &udp(mac(2), mac(0), &vec![7; data], false));
        let partial = udp(mac(2), mac(0), &vec![7; data], false);
        assert!(wait_for(&node, &mut sums_alone, 1) == [(header, partial)]);
    }
}

#[test]
fn what_does_not_fit_into_the_receivers_buffers_comes_in_segments() {
    let node = Node::with_ports(3);
    let mut one = node.guest_with(0, FEATURES | SENDS);
    // A buffer has 2 KiB, and a frame of these guests has one buffer; or it has no congestion notification.
    let mut alone = node.guest_with(1, (FEATURES | GETS) & !MERGEABLE);
    let mut without_ecn = node.guest_with(2, FEATURES | GETS & !(1 << 9));
    let packet = tcp(0, 1, 20_000);
    one.send_offloaded(packet.segments_header(MSS), &packet.partial());
    let segments = packet.segments(usize::from(MSS));
    assert!(wait_for(&node, &mut alone, segments.len()) == without_header(&segments));
    let short = tcp(0, 1, 1_700);
    one.send_offloaded(short.segments_header(MSS), &short.partial());
    assert!(wait_for(&node, &mut alone, 1) == [(short.segments_header(MSS), short.partial())]);

    let reduced = Tcp { flags: 0x90, ..tcp(0, 2, 20_000) };
    let mut header = reduced.segments_header(MSS);
    header[1] |= ECN;
    one.send_offloaded(header, &reduced.partial());
    let segments = reduced.segments(usize::from(MSS));
    assert!(wait_for(&node, &mut without_ecn, segments.len()) == without_header(&segments));
}

#[test]
fn a_frame_to_all_comes_to_each_as_it_agreed() {
    let node = Node::with_ports(4);
    let mut one = node.guest_with(0, FEATURES | SENDS);
    let mut all = [(1, FEATURES | GETS), (2, FEATURES), (3, FEATURES | GUEST_CSUM)]
        .map(|(number, features)| node.guest_with(number, features));
    // Nobody has this address.
    let packet = Tcp { to: mac(9), ..tcp(0, 9, 20_000) };
    one.send_offloaded(packet.segments_header(MSS), &packet.partial());
    let segments = without_header(&packet.segments(usize::from(MSS)));
    let whole = vec![(packet.segments_header(MSS), packet.partial())];
    for (guest, expected) in all.iter_mut().zip([&whole, &segments, &segments]) {
        assert!(&wait_for(&node, guest, expected.len()) == expected);
    }
    // A group gets what limits leave of it: not hundreds of segments at once.
    one.send_offloaded(packet.segments_header(128), &packet.partial());
    wait_for_drop(&node, 0, DropReason::Storm, 1);
}

#[test]
fn a_tag_that_is_put_in_or_taken_out_moves_what_the_header_names() {
    let access = |number| PortConfig { vlan: Some(5), ..config(number) };
    let trunk = |number| PortConfig { trunk: vec![5, 6], ..config(number) };
    let node = Node::with_configs(vec![access(0), trunk(1), trunk(2), access(3)]);
    let mut access = node.guest_with(0, FEATURES | SENDS | GETS);
    let mut trunk = node.guest_with(1, FEATURES | SENDS | GETS);
    let (mut plain_trunk, mut plain_access) = (node.guest(2), node.guest(3));
    for is_v6 in [false, true] {
        let packet = |from, to, tags: &[u16]| Tcp { is_v6, tags: tags.to_vec(), ..tcp(from, to, 20_000) };
        let (sent, got) = (packet(0, 1, &[]), packet(0, 1, &[5]));
        access.send_offloaded(sent.segments_header(MSS), &sent.partial());
        assert!(wait_for(&node, &mut trunk, 1) == [(got.segments_header(MSS), got.partial())]);
        let (sent, got) = (packet(1, 0, &[5]), packet(1, 0, &[]));
        trunk.send_offloaded(sent.segments_header(MSS), &sent.partial());
        assert!(wait_for(&node, &mut access, 1) == [(got.segments_header(MSS), got.partial())]);

        let (sent, got) = (packet(0, 2, &[]), packet(0, 2, &[5]).segments(usize::from(MSS)));
        access.send_offloaded(sent.segments_header(MSS), &sent.partial());
        assert!(wait_for(&node, &mut plain_trunk, got.len()) == without_header(&got));
        let (sent, got) = (packet(1, 3, &[5]), packet(1, 3, &[]).segments(usize::from(MSS)));
        trunk.send_offloaded(sent.segments_header(MSS), &sent.partial());
        assert!(wait_for(&node, &mut plain_access, got.len()) == without_header(&got));
    }
    let other_vlan = Tcp { tags: vec![6], ..tcp(1, 0, 20_000) };
    trunk.send_offloaded(other_vlan.segments_header(MSS), &other_vlan.partial());
    let foreign = Tcp { tags: vec![7], ..tcp(1, 0, 20_000) };
    trunk.send_offloaded(foreign.segments_header(MSS), &foreign.partial());
    wait_for_drop(&node, 1, DropReason::Vlan, 1);
    let flooded = Tcp { tags: vec![6], ..tcp(1, 0, 20_000) }.segments(usize::from(MSS));
    assert!(
        wait_for(&node, &mut plain_trunk, flooded.len()) == without_header(&flooded),
        "VLAN 6 is its own"
    );
    assert!(access.received().is_empty() && plain_access.received().is_empty());
}

#[test]
fn what_holds_for_every_frame_holds_for_a_long_one() {
    let checked = |number| PortConfig { spoof_check: true, isolated: true, ..config(number) };
    let node = Node::with_configs(vec![checked(0), checked(1), config(2), config(3)]);
    let mut one = node.guest_with(0, FEATURES | SENDS);
    let mut isolated = node.guest_with(1, FEATURES | GETS);
    let mut other = node.guest_with(2, FEATURES | GETS);
    let mut sums = node.guest_with(3, FEATURES | 1);

    let spoofed = Tcp { from: mac(2), ..tcp(0, 2, 20_000) };
    one.send_offloaded(spoofed.segments_header(MSS), &spoofed.partial());
    wait_for_drop(&node, 0, DropReason::Spoofed, 1);
    let packet = tcp(0, 1, 20_000);
    one.send_offloaded(packet.segments_header(MSS), &packet.partial());
    wait_for_drop(&node, 0, DropReason::Isolated, 1);
    // Segments longer than the MTU; a long frame without segments; both of a guest that agreed.
    let packet = tcp(0, 2, 20_000);
    one.send_offloaded(packet.segments_header(1_449), &packet.partial());
    one.send_offloaded(packet.checksum_header(), &packet.partial());
    one.send_offloaded([0; 10], &packet.partial());
    wait_for_drop(&node, 0, DropReason::Length, 3);
    // Headers that do not agree with the frame.
    let mut header = packet.segments_header(MSS);
    header[6] += 1;
    one.send_offloaded(header, &packet.partial());
    one.send_offloaded([1, 0, 0, 0, 0, 0, 6, 0, 0, 0], &packet.partial()[..100]);
    wait_for_drop(&node, 0, DropReason::Offload, 2);
    // Segments of a guest that agreed on sums alone.
    let packet = tcp(3, 2, 20_000);
    sums.send_offloaded(packet.segments_header(MSS), &packet.partial());
    wait_for_drop(&node, 3, DropReason::Offload, 1);

    assert!(isolated.received().is_empty() && other.received().is_empty(), "nobody got any of it");
    exchange(&node, &mut one, &mut other, 1);
    exchange(&node, &mut sums, &mut isolated, 2);
}

#[test]
fn a_guest_that_agreed_on_nothing_is_not_heard_and_its_frames_pass_as_they_are() {
    let node = Node::with_ports(2);
    let (mut one, mut other) = (node.guest(0), node.guest_with(1, FEATURES | GETS));
    let packet = tcp(0, 1, 1_000);
    one.send_offloaded(packet.segments_header(100), &packet.whole());
    assert!(wait_for(&node, &mut other, 1) == without_header(&[packet.whole()]));
    let long = tcp(0, 1, 20_000);
    one.send_offloaded(long.segments_header(MSS), &long.partial());
    wait_for_drop(&node, 0, DropReason::Length, 1);
}

#[test]
fn frames_for_a_guest_without_a_free_buffer_are_counted_there() {
    let node = Node::with_ports(3);
    let mut one = node.guest_with(0, FEATURES | SENDS);
    let _full = node.guest_with(1, FEATURES | GETS);
    let mut other = node.guest(2);
    let packet = tcp(0, 1, 60_000);
    // 64 buffers of 2 KiB: two such frames fit, and what fits of a third is its first segments.
    for _ in 0..4 {
        one.send_offloaded(packet.segments_header(MSS), &packet.partial());
        exchange(&node, &mut one, &mut other, 1);
    }
    let counters = node.port(1).counters;
    let (whole, cut) = (2, 64 - 2 * (12 + packet.partial().len() as u64).div_ceil(2_048));
    assert_eq!(counters.to_guest_frames, whole + cut);
    let segments = packet.segments(usize::from(MSS)).len() as u64;
    assert_eq!(counters.to_guest_drops.get(&DropReason::NoRoom), Some(&(segments - cut + 1)));
}

#[test]
fn a_capture_shows_frames_as_they_are_handed_over() {
    let node = Node::with_ports(3);
    let mut one = node.guest_with(0, FEATURES | SENDS);
    let (mut whole, mut cut) = (node.guest_with(1, FEATURES | GETS), node.guest(2));
    let options = CaptureOptions { direction: CaptureDirection::Both, snaplen: 262_144 };
    let captures = [0, 1, 2].map(|number: usize| {
        let memory = CaptureReader::memory().unwrap();
        let request = CaptureRequest { options, memory: memory.try_clone().unwrap() };
        node.plane.capture(&number.to_string(), request).unwrap();
        let (ours, other) = UnixStream::pair().unwrap();
        (CaptureReader::new(memory.as_fd(), ours.into()).unwrap(), other)
    });
    let packets = [tcp(0, 1, 20_000), tcp(0, 2, 20_000)];
    for packet in &packets {
        one.send_offloaded(packet.segments_header(MSS), &packet.partial());
    }
    wait_for(&node, &mut whole, 1);
    let segments = packets[1].segments(usize::from(MSS));
    wait_for(&node, &mut cut, segments.len());
    let partial = packets.map(|packet| packet.partial());
    let expected = [partial.to_vec(), vec![partial[0].clone()], segments];
    for ((mut reader, _connection), expected) in captures.into_iter().zip(expected) {
        let mut seen = Vec::new();
        while let Seen::Frame(CapturedFrame { bytes, .. }) = reader.look() {
            seen.push(bytes);
        }
        assert!(seen == expected);
    }
}

#[test]
fn a_feature_without_the_one_that_it_needs_counts_as_not_taken() {
    let node = Node::with_ports(2);
    let mut segments_alone = node.guest_with(0, FEATURES | (SENDS | GETS) & !(1 | 2));
    let mut all = node.guest_with(1, FEATURES | SENDS | GETS);
    exchange(&node, &mut segments_alone, &mut all, 1);
    let packet = tcp(1, 0, 3 * usize::from(MSS));
    all.send_offloaded(packet.segments_header(MSS), &packet.partial());
    wait_for(&node, &mut segments_alone, packet.segments(usize::from(MSS)).len());
}
