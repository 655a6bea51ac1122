//! Frames through rings that are as they should be.

use std::sync::Arc;

use super::guest_model::{BUFFERS, FEATURES, GUEST, GuestModel, REGION, frame_bytes};
use super::layout::{INDIRECT, NEXT, USED_NO_NOTIFY, WRITE};
use super::{Caller, Frame, FrameSink, FrameSource, RingFault, RingFeatures, SplitRing};
use crate::offload::{NetHeader, Offloads};
use crate::switch::TagChange;

const BUFFER: u64 = GUEST + BUFFERS;

/// Takes everything out of `from` and puts it into `to`; how many frames got there.
pub(super) fn forward(from: &mut SplitRing, to: &mut SplitRing, change: TagChange) -> usize {
    let memory = Arc::clone(from.memory());
    let mut source = FrameSource::look(from, &memory).unwrap();
    let (mut n, mut arrived) = (0, 0);
    while n < source.count() {
        let mut put = |frame: &Frame<'_, '_>| {
            arrived += usize::from(FrameSink::put(to, frame, change, &mut 0).unwrap());
        };
        source.frame::<false>(n, from, &mut put).unwrap();
        source.give_back(n, from);
        n += 1;
    }
    from.publish(&Caller::default()).unwrap();
    to.publish(&Caller::default()).unwrap();
    arrived
}

/// A receiver with `count` buffers of `bytes` bytes each, one after the other from the start of the buffers.
pub(super) fn receiver(count: u16, bytes: u32) -> GuestModel {
    let mut guest = GuestModel::new(64);
    for n in 0..count {
        guest.describe(n, BUFFER + u64::from(n) * u64::from(bytes), bytes, WRITE, 0);
        guest.offer(n);
    }
    guest
}

/// A sender whose frame (behind 12 bytes of header) lies at `BUFFER`, as one buffer.
pub(super) fn sender(frame: &[u8]) -> GuestModel {
    let mut guest = GuestModel::new(64);
    guest.write(BUFFER, &[&[0xff; 12], frame].concat());
    guest.describe(0, BUFFER, u32::try_from(12 + frame.len()).unwrap(), 0, 0);
    guest.offer(0);
    guest
}

fn arrived(guest: &GuestModel, address: u64, buffers: u16, frame: &[u8]) {
    let header = [&[0; 10], buffers.to_le_bytes().as_slice()].concat();
    assert_eq!(guest.read(address, 12), header, "the header of a frame without offloads");
    assert!(guest.read(address + 12, frame.len()) == frame, "the frame is not what was sent");
}

#[test]
fn frames_of_every_length_arrive_as_they_were_sent() {
    for length in [1, 13, 14, 60, 64, 127, 128, 129, 1514, 9018] {
        let frame = frame_bytes(length);
        let (from, to) = (sender(&frame), receiver(2, 16_000));
        assert_eq!(forward(&mut from.ring(FEATURES), &mut to.ring(FEATURES), TagChange::None), 1);
        arrived(&to, BUFFER, 1, &frame);
        assert_eq!(from.used(), [(0, 0)]);
        assert_eq!(to.used(), [(0, u32::try_from(length).unwrap() + 12)]);
    }
}

#[test]
fn a_frame_in_pieces_arrives_whole_however_it_is_cut() {
    let frame = frame_bytes(300);
    for cuts in
        [vec![12], vec![5], vec![12, 13], vec![12, 140], vec![1, 2, 12, 26, 150, 151], vec![14, 15, 141]]
    {
        let mut from = GuestModel::new(64);
        from.write(BUFFER, &[&[0; 12], frame.as_slice()].concat());
        let ends: Vec<u64> = cuts.iter().copied().chain([312]).collect();
        let mut start = 0;
        for (n, end) in ends.iter().enumerate() {
            let n = u16::try_from(n).unwrap();
            let flags = if *end == 312 { 0 } else { NEXT };
            let (address, length) = (BUFFER + start, u32::try_from(end - start).unwrap());
            from.describe(n, address, length, flags, n + 1);
            from.describe_at(BUFFER + 0x1000, n, address, length, flags, n + 1);
            start = *end;
        }
        from.offer(0);
        let table = u32::try_from(16 * ends.len()).unwrap();
        from.describe(40, BUFFER + 0x1000, table, INDIRECT, 0);
        from.offer(40);
        let to = receiver(4, 1000);
        let moved = forward(&mut from.ring(FEATURES), &mut to.ring(FEATURES), TagChange::None);
        assert_eq!(moved, 2, "direct and indirect, cut at {cuts:?}");
        arrived(&to, BUFFER, 1, &frame);
        arrived(&to, BUFFER + 1000, 1, &frame);
    }
}

#[test]
fn a_burst_ends_with_the_frame_that_makes_it_64_descriptors_and_the_next_goes_on_behind_it() {
    for (pieces, wanted) in [(1, [20, 0]), (2, [20, 0]), (4, [16, 4]), (30, [3, 3]), (256, [1, 1])] {
        let (mut from, to) = (GuestModel::new(64), receiver(40, 600));
        let (frame, table) = (frame_bytes(512), BUFFER + 0x2000);
        from.write(BUFFER, &[&[0; 12], frame.as_slice()].concat());
        let end = |piece: u16| 524 * u32::from(piece) / u32::from(pieces);
        for n in 0..pieces {
            let flags = if n + 1 == pieces { 0 } else { NEXT };
            let (address, length) = (BUFFER + u64::from(end(n)), end(n + 1) - end(n));
            from.describe_at(table, n, address, length, flags, n + 1);
        }
        for head in 0..20 {
            from.describe(head, table, 16 * u32::from(pieces), INDIRECT, 0);
            from.offer(head);
        }
        let (mut source, mut sink) = (from.ring(FEATURES), to.ring(FEATURES));
        let bursts = [(); 2].map(|()| forward(&mut source, &mut sink, TagChange::None));
        assert_eq!(bursts, wanted, "{pieces} descriptors for a frame");
        for n in 0..wanted[0] + wanted[1] {
            arrived(&to, BUFFER + 600 * n as u64, 1, &frame);
        }
    }
}

#[test]
fn a_frame_across_two_regions_is_read_and_written_whole() {
    let frame = frame_bytes(1000);
    let border = GUEST + REGION - 500;
    let (mut from, mut to) = (GuestModel::new(8), GuestModel::new(8));
    from.write(border, &[&[0; 12], frame.as_slice()].concat());
    from.describe(0, border, 1012, 0, 0);
    from.offer(0);
    to.describe(3, border, 1200, WRITE, 0);
    to.offer(3);
    assert_eq!(forward(&mut from.ring(FEATURES), &mut to.ring(FEATURES), TagChange::None), 1);
    arrived(&to, border, 1, &frame);
}

#[test]
fn a_long_frame_fills_several_mergeable_buffers() {
    let frame = frame_bytes(1500);
    let (from, to) = (sender(&frame), receiver(4, 512));
    assert_eq!(forward(&mut from.ring(FEATURES), &mut to.ring(FEATURES), TagChange::None), 1);
    arrived(&to, BUFFER, 3, &frame);
    assert_eq!(to.used(), [(0, 512), (1, 512), (2, 488)]);
}

#[test]
fn a_frame_that_does_not_fit_uses_no_buffer() {
    let frame = frame_bytes(1500);
    let alone = RingFeatures { mergeable: false, ..FEATURES };
    for (count, features) in [(2, FEATURES), (4, alone), (0, FEATURES)] {
        let (from, to) = (sender(&frame), receiver(count, 512));
        let mut ring = to.ring(features);
        assert_eq!(forward(&mut from.ring(FEATURES), &mut ring, TagChange::None), 0);
        assert_eq!((to.used(), ring.position()), (vec![], 0), "{count} buffers");
        assert_eq!(from.used(), [(0, 0)], "the sender has its buffer back");
    }
}

#[test]
fn a_tag_is_put_in_and_taken_out_behind_the_addresses() {
    for length in [60, 128, 1500] {
        let frame = frame_bytes(length);
        let (from, to) = (sender(&frame), receiver(2, 4096));
        forward(&mut from.ring(FEATURES), &mut to.ring(FEATURES), TagChange::Push(0x123));
        let tagged = [&frame[..12], &[0x81, 0x00, 0x01, 0x23], &frame[12..]].concat();
        arrived(&to, BUFFER, 1, &tagged);
        let (from, to) = (sender(&tagged), receiver(2, 4096));
        forward(&mut from.ring(FEATURES), &mut to.ring(FEATURES), TagChange::Pop);
        arrived(&to, BUFFER, 1, &frame);
    }
}

#[test]
fn a_legacy_guest_without_mergeable_buffers_has_a_header_of_ten_bytes() {
    let frame = frame_bytes(100);
    let legacy = RingFeatures { mergeable: false, header: 10, ..FEATURES };
    let (from, to) = (sender(&frame), receiver(1, 512));
    assert_eq!(forward(&mut from.ring(FEATURES), &mut to.ring(legacy), TagChange::None), 1);
    assert_eq!(to.read(BUFFER, 10), [0; 10]);
    assert_eq!(to.read(BUFFER + 10, 100), frame);
    assert_eq!(to.used(), [(0, 110)]);
}

#[test]
fn the_header_of_a_frame_is_right_whatever_the_buffer_had_in_its_place() {
    for header in [12, 10] {
        let features = RingFeatures { mergeable: false, header, ..FEATURES };
        for wrong in 0..header {
            let (from, to) = (sender(&frame_bytes(60)), receiver(1, 512));
            let mut before = [&[0; 10], 1_u16.to_le_bytes().as_slice()].concat();
            before[wrong] ^= 0x80;
            to.write(BUFFER, &before);
            assert_eq!(forward(&mut from.ring(FEATURES), &mut to.ring(features), TagChange::None), 1);
            assert_eq!(to.read(BUFFER, 12)[..10], [0; 10]);
            assert_eq!(to.read(BUFFER + 10, 2) == [1, 0], header == 12);
            assert_eq!(to.read(BUFFER + header as u64, 60), frame_bytes(60));
        }
    }
}

/// A header that asks for something, as bytes, and as it is read.
const SAID: [u8; 10] = [1, 4, 0xee, 0xee, 0xa8, 5, 34, 0, 16, 0];
fn said() -> NetHeader {
    NetHeader::new(u64::from_le_bytes([1, 4, 0xee, 0xee, 0xa8, 5, 34, 0]), 16)
}

/// A guest whose frame has this header before it, all of it cut into buffers at these bytes.
fn sender_of_pieces(header: &[u8], frame: &[u8], cuts: &[u64]) -> GuestModel {
    let mut from = GuestModel::new(64);
    from.write(BUFFER, &[header, frame].concat());
    let whole = (header.len() + frame.len()) as u64;
    let mut start = 0;
    for (n, end) in cuts.iter().copied().chain([whole]).enumerate() {
        let (n, flags) = (u16::try_from(n).unwrap(), if end == whole { 0 } else { NEXT });
        from.describe(n, BUFFER + start, u32::try_from(end - start).unwrap(), flags, n + 1);
        start = end;
    }
    from.offer(0);
    from
}

#[test]
fn a_header_is_read_wherever_its_bytes_are_and_only_if_that_was_agreed_on() {
    let frame = frame_bytes(100);
    let cuts = (1..12).map(|cut| vec![cut]).chain([vec![], (1..12).collect(), vec![12], vec![8, 10, 12]]);
    for cuts in cuts {
        for (sends, expected) in [(Offloads::NONE, NetHeader::PLAIN), (Offloads::ALL, said())] {
            let from = sender_of_pieces(&[&SAID[..], &[9, 9]].concat(), &frame, &cuts);
            let mut ring = from.ring(RingFeatures { sends, ..FEATURES });
            let mut source = FrameSource::look(&mut ring, &from.memory).unwrap();
            let mut is_right = |taken: &Frame<'_, '_>| {
                assert_eq!((taken.header(), taken.length()), (expected, 100), "cut at {cuts:?}");
                let mut whole = vec![0; 100];
                taken.read_whole(&mut whole);
                assert_eq!(whole, frame);
            };
            let taken = match sends.checksum {
                true => source.frame::<true>(0, &ring, &mut is_right),
                false => source.frame::<false>(0, &ring, &mut is_right),
            };
            assert_eq!(taken, Ok(true));
        }
    }
    // Flags and kind are 0: the rest is not looked at.
    let from = sender_of_pieces(&[0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9], &frame, &[]);
    let mut ring = from.ring(RingFeatures { sends: Offloads::ALL, ..FEATURES });
    let mut source = FrameSource::look(&mut ring, &from.memory).unwrap();
    assert_eq!(
        source.frame::<true>(0, &ring, &mut |frame: &Frame<'_, '_>| assert!(frame.header().is_plain())),
        Ok(true)
    );
}

/// Puts a frame with a header into `ring`.
fn put_offloaded(ring: &mut SplitRing, frame: &[u8], change: TagChange) -> Result<bool, RingFault> {
    let from = sender(frame);
    let mut source_ring = from.ring(FEATURES);
    let mut source = FrameSource::look(&mut source_ring, &from.memory).unwrap();
    let mut put = Ok(false);
    let taken = source.frame::<false>(0, &source_ring, &mut |frame: &Frame<'_, '_>| {
        put = FrameSink::put_offloaded(ring, frame, change, SAID, &mut 0);
    });
    assert_eq!(taken, Ok(true));
    put
}

#[test]
fn a_frame_with_an_offload_has_its_header_before_it_in_one_buffer_and_in_many() {
    let frame = frame_bytes(30_000);
    for (count, bytes, buffers) in [(1, 30_012, 1), (60, 512, 59)] {
        let to = receiver(count, bytes);
        assert_eq!(put_offloaded(&mut to.ring(FEATURES), &frame, TagChange::None), Ok(true));
        assert_eq!(to.read(BUFFER, 12), [&SAID[..], &[buffers, 0]].concat());
        assert!(to.read(BUFFER + 12, frame.len()) == frame);
    }
    let to = receiver(1, 512);
    let legacy = RingFeatures { mergeable: false, header: 10, ..FEATURES };
    assert_eq!(put_offloaded(&mut to.ring(legacy), &frame_bytes(60), TagChange::Push(0x123)), Ok(true));
    assert_eq!(to.read(BUFFER, 10), SAID);
    let tagged = [&frame_bytes(60)[..12], &[0x81, 0, 1, 0x23], &frame_bytes(60)[12..]].concat();
    assert_eq!(to.read(BUFFER + 10, 64), tagged);
}

#[test]
fn a_frame_with_an_offload_that_does_not_fit_uses_no_buffer_and_is_no_fault_of_the_receiver() {
    let alone = RingFeatures { mergeable: false, ..FEATURES };
    let mut tiny = GuestModel::new(512);
    for n in 0..512 {
        tiny.describe(n, BUFFER + u64::from(n) * 16, 16, WRITE, 0);
        tiny.offer(n);
    }
    for (to, features) in [(receiver(4, 512), alone), (receiver(4, 512), FEATURES), (tiny, FEATURES)] {
        let mut ring = to.ring(features);
        assert_eq!(put_offloaded(&mut ring, &frame_bytes(8_000), TagChange::None), Ok(false));
        assert_eq!((to.used(), ring.position()), (vec![], 0));
    }
}

#[test]
fn buffers_that_were_looked_at_in_advance_are_used_in_their_order_by_short_and_long_frames() {
    let to = receiver(40, 512);
    let mut ring = to.ring(FEATURES);
    let mut at = 0;
    for length in [60, 1500, 60, 300, 1500, 1500, 60] {
        let frame = frame_bytes(length);
        assert_eq!(forward(&mut sender(&frame).ring(FEATURES), &mut ring, TagChange::None), 1);
        let buffers = u16::try_from((12 + length).div_ceil(512)).unwrap();
        arrived(&to, BUFFER + 512 * at, buffers, &frame);
        at += u64::from(buffers);
    }
    let heads: Vec<u32> = to.used().iter().map(|(head, _)| *head).collect();
    assert_eq!(heads, (0..u32::try_from(at).unwrap()).collect::<Vec<_>>());
}

#[test]
fn frames_pass_the_end_of_the_indices() {
    let (mut from, mut to) = (GuestModel::new(64), GuestModel::new(64));
    for guest in [&mut from, &mut to] {
        guest.set_used_index(0xffe0);
        guest.start_at(0xffe0);
    }
    let (mut source, mut sink) = (from.ring(FEATURES), to.ring(FEATURES));
    for round in 0..4_u16 {
        for n in 0..24 {
            let frame = frame_bytes(usize::from(round * 24 + n + 20));
            let at = BUFFER + u64::from(n) * 256;
            from.write(at, &[&[0; 12], frame.as_slice()].concat());
            from.describe(n, at, u32::try_from(12 + frame.len()).unwrap(), 0, 0);
            from.offer(n);
            to.describe(n, at, 256, WRITE, 0);
            to.offer(n);
        }
        assert_eq!(forward(&mut source, &mut sink, TagChange::None), 24);
        for n in 0..24 {
            arrived(&to, BUFFER + u64::from(n) * 256, 1, &frame_bytes(usize::from(round * 24 + n + 20)));
        }
    }
    assert_eq!((source.position(), sink.position()), (64, 64));
}

#[test]
fn a_ring_of_a_reconnected_guest_goes_on_where_the_used_ring_ends() {
    let guest = GuestModel::new(8);
    guest.set_used_index(0xfffe);
    guest.set_available_index(1);
    let ring = guest.ring(FEATURES);
    assert_eq!(ring.position(), 0xfffe);
    assert_eq!(ring.ready(1), Ok(3));
}

#[test]
fn kicks_are_asked_for_only_before_a_sleep() {
    let guest = receiver(3, 512);
    let ring = guest.ring(FEATURES);
    assert_eq!(guest.used_flags(), USED_NO_NOTIFY);
    ring.ask_for_kicks(true);
    assert_eq!(guest.used_flags(), 0);
    ring.ask_for_kicks(false);
    assert_eq!(guest.used_flags(), USED_NO_NOTIFY);

    let guest = GuestModel::new(8);
    guest.set_used_index(5);
    let ring = guest.ring(RingFeatures { event_idx: true, ..FEATURES });
    ring.ask_for_kicks(true);
    assert_eq!((guest.used_flags(), guest.available_event()), (0, 5));
}
