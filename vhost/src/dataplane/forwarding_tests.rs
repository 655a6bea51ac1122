//! Frames from one port's ring to others', round by round.

use std::sync::Arc;

use fairlead_host::Mac;

use super::super::command::PortKey;
use super::super::counters::PortCounts;
use super::super::polled_port::{PolledPort, PolledRing};
use super::Forwarding;
use crate::offload::Offloads;
use crate::offload::test_packets::Tcp;
use crate::ring::guest_model::{BUFFERS, FEATURES, GUEST, GuestModel, WRITE, frame_bytes};
use crate::ring::{Caller, RingFeatures, SplitRing};
use crate::switch::{Coarse, Limits, PortRules};

const BUFFER: u64 = GUEST + BUFFERS;
/// The last byte of an address that nobody has: a frame to it goes to all.
const UNKNOWN: u8 = 200;

fn forwarding() -> Forwarding {
    Forwarding::new(Limits::default(), Arc::new(Caller::default()))
}

fn mac(last: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, last])
}

/// A frame from port to port, by the last bytes of their addresses.
fn frame(to: u8, from: u8, length: usize) -> Vec<u8> {
    let mut frame = frame_bytes(length);
    frame[..6].copy_from_slice(&mac(to).0);
    frame[6..12].copy_from_slice(&mac(from).0);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame
}

/// A port whose address ends with `last`, and its two rings: to the guest, from the guest. Answers what is counted of it.
fn add_port(forwarding: &mut Forwarding, network: &str, last: u8, rings: [SplitRing; 2]) -> PortCounts {
    let rules = PortRules {
        network: network.into(),
        is_uplink: false,
        mac: mac(last),
        vlan: None,
        trunk: Vec::new(),
        spoof_check: true,
        isolated: false,
        mtu: 9_000,
        from_guest_bits: None,
        to_guest_bits: None,
    };
    let counts = PortCounts::of_threads(1);
    let mut port = PolledPort::new(PortKey(u64::from(last)), 1, counts.of_thread(0));
    port.rings = rings
        .map(|ring| PolledRing { ring: Some(Box::new(ring)), enabled: true, ..PolledRing::default() })
        .into();
    forwarding.switch.add_port(&rules).unwrap();
    forwarding.ports.push(Some(port));
    counts
}

/// A guest that sends so many frames of so many bytes, which all lie in the same place.
fn sender(count: u16, frame: &[u8]) -> GuestModel {
    sender_with_header(count, [0; 10], frame)
}

/// The same with a header before each that may ask for something.
fn sender_with_header(count: u16, header: [u8; 10], frame: &[u8]) -> GuestModel {
    let mut guest = GuestModel::new(64);
    guest.write(BUFFER, &[&header[..], &[0; 2], frame].concat());
    for n in 0..count {
        guest.describe(n, BUFFER, u32::try_from(12 + frame.len()).unwrap(), 0, 0);
        guest.offer(n);
    }
    guest
}

/// A guest with so many buffers of so many bytes, which lie in the same places again and again.
fn receiver(count: u16, bytes: u32) -> GuestModel {
    let mut guest = GuestModel::new(512);
    for n in 0..count {
        let at = u64::from(n) * u64::from(bytes) % 0x4000;
        guest.describe(n, BUFFER + at, bytes, WRITE, 0);
        guest.offer(n);
    }
    guest
}

#[test]
fn a_receiver_with_tiny_buffers_ends_its_senders_burst_and_no_frame_is_lost_by_that() {
    for (bytes, in_a_round, in_all) in [(2_048, 32, 40), (600, 32, 40), (40, 3, 19), (8, 1, 3)] {
        let (from, to) = (sender(40, &frame(2, 1, 1_000)), receiver(500, bytes));
        let unused = [(); 2].map(|()| GuestModel::new(8));
        let mut forwarding = forwarding();
        add_port(&mut forwarding, "red", 1, [unused[0].ring(FEATURES), from.ring(FEATURES)]);
        let counted = add_port(&mut forwarding, "red", 2, [to.ring(FEATURES), unused[1].ring(FEATURES)]);
        assert_eq!(forwarding.round(Coarse(0)), in_a_round, "frames in buffers of {bytes} bytes");
        while forwarding.round(Coarse(0)) > 0 {}
        assert_eq!(counted.read().to_guest_frames, in_all, "frames in 500 buffers of {bytes} bytes");
    }
}

#[test]
fn a_flooded_burst_ends_by_its_copies_and_no_frame_is_lost_by_that() {
    for (receivers, in_a_round) in [(1, 32), (8, 8), (60, 2), (100, 1)] {
        let (from, unused) = (sender(32, &frame(UNKNOWN, 101, 60)), GuestModel::new(8));
        let mut forwarding = forwarding();
        add_port(&mut forwarding, "red", 101, [unused.ring(FEATURES), from.ring(FEATURES)]);
        let add = |last| {
            let rings = [receiver(40, 2_048).ring(FEATURES), unused.ring(FEATURES)];
            add_port(&mut forwarding, "red", last, rings)
        };
        let counted: Vec<PortCounts> = (1..=receivers).map(add).collect();
        assert_eq!(forwarding.round(Coarse(0)), in_a_round, "frames to {receivers} ports");
        while forwarding.round(Coarse(0)) > 0 {}
        for counts in counted {
            assert_eq!(counts.read().to_guest_frames, 32, "frames to each of {receivers} ports");
        }
    }
}

#[test]
fn a_flooded_burst_ends_by_the_segments_of_all_its_copies() {
    const SEGMENT: u16 = 1_428;
    let packet = Tcp::new(mac(UNKNOWN).0, mac(1).0, 10 * usize::from(SEGMENT));
    let from = sender_with_header(8, packet.segments_header(SEGMENT), &packet.partial());
    let (sends, unused) = (RingFeatures { sends: Offloads::ALL, ..FEATURES }, GuestModel::new(8));
    let mut forwarding = forwarding();
    add_port(&mut forwarding, "red", 1, [unused.ring(FEATURES), from.ring(sends)]);
    let counted = [2, 3].map(|last| {
        let rings = [receiver(100, 2_048).ring(FEATURES), unused.ring(FEATURES)];
        add_port(&mut forwarding, "red", last, rings)
    });
    assert_eq!(forwarding.round(Coarse(0)), 4, "frames of ten segments for each of two ports");
    while forwarding.round(Coarse(0)) > 0 {}
    for counts in counted {
        assert_eq!(counts.read().to_guest_frames, 80, "segments");
    }
}

#[test]
fn ports_that_flood_their_own_network_have_no_more_than_their_turn_before_others() {
    const PORTS: u8 = 20;
    let mut forwarding = forwarding();
    let add = |last| {
        let flood = sender(32, &frame(UNKNOWN, last, 60));
        add_port(&mut forwarding, "red", last, [receiver(500, 2_048).ring(FEATURES), flood.ring(FEATURES)])
    };
    let flooded: Vec<PortCounts> = (1..=PORTS).map(add).collect();
    let (from, unused) = (sender(64, &frame(102, 101, 60)), GuestModel::new(8));
    add_port(&mut forwarding, "blue", 101, [unused.ring(FEATURES), from.ring(FEATURES)]);
    let to = [receiver(500, 2_048).ring(FEATURES), unused.ring(FEATURES)];
    let others = add_port(&mut forwarding, "blue", 102, to);
    for round in 1..=2 {
        forwarding.round(Coarse(0));
        assert_eq!(others.read().to_guest_frames, 32 * round);
        for counts in &flooded {
            // 19 of them have sent four frames each, to 19 ports.
            assert_eq!(counts.read().to_guest_frames, 76 * round);
        }
    }
}
