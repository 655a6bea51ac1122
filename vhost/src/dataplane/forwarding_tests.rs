//! Frames from one port's ring to others', round by round.

use std::sync::Arc;

use fairlead_host::Mac;

use super::super::command::PortKey;
use super::super::counters::PortCounts;
use super::super::polled_port::{PolledPort, PolledRing};
use super::Forwarding;
use crate::ring::guest_model::{BUFFERS, FEATURES, GUEST, GuestModel, WRITE, frame_bytes};
use crate::ring::{Caller, SplitRing};
use crate::switch::{Coarse, Limits, PortRules};

const BUFFER: u64 = GUEST + BUFFERS;

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
fn add_port(forwarding: &mut Forwarding, last: u8, rings: [SplitRing; 2]) -> PortCounts {
    let rules = PortRules {
        network: "red".into(),
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
    let mut guest = GuestModel::new(64);
    guest.write(BUFFER, &[&[0; 12], frame].concat());
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
        let mut forwarding = Forwarding::new(Limits::default(), Arc::new(Caller::default()));
        add_port(&mut forwarding, 1, [unused[0].ring(FEATURES), from.ring(FEATURES)]);
        let counted = add_port(&mut forwarding, 2, [to.ring(FEATURES), unused[1].ring(FEATURES)]);
        assert_eq!(forwarding.round(Coarse(0)), in_a_round, "frames in buffers of {bytes} bytes");
        while forwarding.round(Coarse(0)) > 0 {}
        assert_eq!(counted.read().to_guest_frames, in_all, "frames in 500 buffers of {bytes} bytes");
    }
}
