//! Headers of drivers, and of guests that mean harm, against real packets.

use proptest::prelude::*;

use super::test_packets::{
    ACK, ECN, FIN, NEEDS_CHECKSUM, PUSH, SYN, TCP_V4, TCP_V6, Tcp, WINDOW_REDUCED, header, udp,
};
use super::{BadHeader, MOST_SEGMENTS, NetHeader, Offload, Offloads};
use crate::switch::{FrameSize, HEAD_BYTES, TagChange};

const TO: [u8; 6] = [2, 0, 0, 0, 0, 2];
const FROM: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn read(bytes: [u8; 10]) -> NetHeader {
    let [a, b, c, d, e, f, g, h, i, j] = bytes;
    NetHeader::new(u64::from_le_bytes([a, b, c, d, e, f, g, h]), u16::from_le_bytes([i, j]))
}

fn asked(bytes: [u8; 10], agreed: Offloads, frame: &[u8]) -> Result<Option<Offload>, BadHeader> {
    Offload::of(read(bytes), agreed, &frame[..frame.len().min(HEAD_BYTES)], frame.len())
}

/// What a header asks for, which is something.
fn offload(bytes: [u8; 10], frame: &[u8]) -> Offload {
    asked(bytes, Offloads::ALL, frame).expect("a header of a driver").expect("it asks for something")
}

/// The frame with the work done.
fn done(offload: Offload, frame: &[u8]) -> Vec<Vec<u8>> {
    let mut frame = frame.to_vec();
    match offload {
        Offload::Checksum(checksum) => {
            checksum.complete(&mut frame);
            vec![frame]
        }
        Offload::Segments(tcp) => {
            let template = tcp.template(&frame);
            let segment = |n| {
                let place = tcp.make_segment(n, &template, &mut frame).expect("it lies in the frame");
                frame[place].to_vec()
            };
            (0..tcp.segments()).map(segment).collect()
        }
    }
}

/// Packets of every form that a driver leaves to be cut.
fn packets() -> Vec<Tcp> {
    let mut packets = Vec::new();
    for is_v6 in [false, true] {
        for tags in [vec![], vec![5], vec![5, 6]] {
            for options in [0, 12, 32] {
                for bytes in [1, 128, 1_448, 1_449, 2_896, 10_001, 65_535 - 72] {
                    let options = (0..options).map(|n| if n < 2 { 1 } else { 0x5a }).collect();
                    packets.push(Tcp { is_v6, tags: tags.clone(), options, ..Tcp::new(TO, FROM, bytes) });
                }
            }
        }
    }
    packets
}

#[test]
fn segments_are_those_that_tcp_would_send_with_numbers_lengths_and_sums_of_their_own() {
    for packet in packets() {
        for size in [128, 536, 1_448, 8_948] {
            let frame = packet.partial();
            let offload = offload(packet.segments_header(size), &frame);
            let expected = packet.segments(usize::from(size));
            let size = FrameSize {
                longest: expected[0].len(),
                bytes: expected.iter().map(Vec::len).sum(),
                segments: u16::try_from(expected.len()).unwrap(),
            };
            assert_eq!(offload.size(frame.len()), size, "{:?}", packet.places());
            assert!(size.segments <= MOST_SEGMENTS);
            assert!(done(offload, &frame) == expected, "{:?} of {:?}", size, packet.places());
        }
    }
}

#[test]
fn flags_of_the_first_and_of_the_last_segment_are_in_no_other() {
    for flags in [ACK, ACK | PUSH, ACK | PUSH | FIN, ACK | WINDOW_REDUCED, ACK | PUSH | FIN | WINDOW_REDUCED]
    {
        for bytes in [100, 1_000, 3_000] {
            let packet = Tcp { flags, ..Tcp::new(TO, FROM, bytes) };
            let frame = packet.partial();
            let mut header = packet.segments_header(1_000);
            assert!(done(offload(header, &frame), &frame) == packet.segments(1_000), "{flags:#x} {bytes}");
            header[1] |= ECN;
            assert!(done(offload(header, &frame), &frame) == packet.segments(1_000), "{flags:#x} {bytes}");
        }
    }
}

#[test]
fn a_sum_that_was_left_out_is_that_of_the_whole_packet() {
    for packet in packets().into_iter().filter(|packet| packet.data.len() < 3_000) {
        let frame = packet.partial();
        let whole = done(offload(packet.checksum_header(), &frame), &frame);
        assert!(whole == [packet.whole()], "{packet:?}");
    }
    for bytes in 0..300_usize {
        let data: Vec<u8> = (0..bytes).map(|n| (n * 31).to_le_bytes()[0]).collect();
        let frame = udp(TO, FROM, &data, false);
        let header = header(NEEDS_CHECKSUM, 0, 0, 0, 34, 6);
        assert_eq!(done(offload(header, &frame), &frame), [udp(TO, FROM, &data, true)]);
    }
}

#[test]
fn a_sum_of_zero_is_sent_as_all_ones() {
    let header = header(NEEDS_CHECKSUM, 0, 0, 0, 34, 6);
    let whole = |number: &u16| udp(TO, FROM, &number.to_be_bytes(), true);
    let zero = (0..=u16::MAX).find(|number| whole(number)[40..42] == [0xff, 0xff]);
    let data = zero.expect("one of all sums is zero").to_be_bytes();
    let frame = udp(TO, FROM, &data, false);
    assert_eq!(done(offload(header, &frame), &frame), [udp(TO, FROM, &data, true)]);
}

#[test]
fn a_packet_in_a_tunnel_has_its_sum_where_the_driver_says() {
    let inner = Tcp::new(TO, FROM, 500);
    let whole = udp(TO, FROM, &[&[8, 0, 0, 0, 0, 0, 7, 0][..], &inner.whole()].concat(), true);
    let mut frame = udp(TO, FROM, &[&[8, 0, 0, 0, 0, 0, 7, 0][..], &inner.partial()].concat(), true);
    // The outer sum is of the whole packet, or absent.
    frame[40..42].copy_from_slice(&whole[40..42]);
    let start = 14 + 20 + 8 + 8 + inner.places().0;
    let header = header(NEEDS_CHECKSUM, 0, 0, 0, start, 16);
    assert_eq!(done(offload(header, &frame), &frame), [whole]);
}

#[test]
fn a_header_for_a_receiver_says_what_the_frame_is_and_moves_with_its_tag() {
    for is_v6 in [false, true] {
        let packet = Tcp { is_v6, tags: vec![5], options: vec![1; 12], ..Tcp::new(TO, FROM, 5_000) };
        let untagged = Tcp { tags: Vec::new(), ..packet.clone() };
        let twice = Tcp { tags: vec![9, 5], ..packet.clone() };
        let changes = [(TagChange::None, &packet), (TagChange::Pop, &untagged), (TagChange::Push(9), &twice)];
        for (change, received) in changes {
            let mut sent = packet.segments_header(1_448);
            sent[2..4].copy_from_slice(&[0xff, 0xff]);
            sent[0] |= 0xfe;
            let offload = offload(sent, &packet.partial());
            assert_eq!(offload.header(change), received.segments_header(1_448), "{change:?}");
            let mut sent = packet.checksum_header();
            sent[2..6].copy_from_slice(&[0xff; 4]);
            let offload = super::offload_tests::offload(sent, &packet.partial());
            assert_eq!(offload.header(change), received.checksum_header(), "{change:?}");
        }
    }
    let packet = Tcp::new(TO, FROM, 5_000);
    let mut with_ecn = packet.segments_header(1_448);
    with_ecn[1] |= ECN;
    assert_eq!(offload(with_ecn, &packet.partial()).header(TagChange::None), with_ecn);
}

#[test]
fn only_what_was_agreed_on_is_taken_and_only_a_receiver_that_agreed_gets_it_as_it_is() {
    let (v4, v6) = (Tcp::new(TO, FROM, 5_000), Tcp { is_v6: true, ..Tcp::new(TO, FROM, 5_000) });
    let short = Tcp::new(TO, FROM, 100);
    let none = Offloads::NONE;
    let checksum = Offloads { checksum: true, ..none };
    let (tcp_v4, tcp_v6) = (Offloads { tcp_v4: true, ..checksum }, Offloads { tcp_v6: true, ..checksum });
    let with_ecn = |packet: &Tcp| {
        let mut header = packet.segments_header(1_000);
        header[1] |= ECN;
        header
    };
    let cases: [(&Tcp, [u8; 10], &[Offloads]); 5] = [
        (&short, short.checksum_header(), &[checksum, tcp_v4, tcp_v6, Offloads::ALL]),
        (&v4, v4.segments_header(1_000), &[tcp_v4, Offloads::ALL]),
        (&v6, v6.segments_header(1_000), &[tcp_v6, Offloads::ALL]),
        (&v4, with_ecn(&v4), &[Offloads { ecn: true, ..tcp_v4 }, Offloads::ALL]),
        (&v6, with_ecn(&v6), &[Offloads { ecn: true, ..tcp_v6 }, Offloads::ALL]),
    ];
    let all = [none, checksum, tcp_v4, tcp_v6, Offloads::ALL];
    for (packet, header, agreed) in cases {
        let offload = offload(header, &packet.partial());
        for offloads in all.iter().chain(agreed) {
            let is_agreed = agreed.contains(offloads);
            assert_eq!(offload.is_known_to(*offloads), is_agreed, "{header:?} {offloads:?}");
            let expected = match offloads {
                _ if is_agreed => Ok(Some(offload)),
                // Nobody looks at it: the frame is taken for what it is.
                Offloads { checksum: false, .. } => Ok(None),
                _ => Err(BadHeader),
            };
            assert_eq!(asked(header, *offloads, &packet.partial()), expected, "{header:?} {offloads:?}");
        }
    }
}

#[test]
fn a_header_that_asks_for_nothing_is_no_offload_whatever_else_it_says() {
    let frame = Tcp::new(TO, FROM, 100).partial();
    for flags in [2, 4, 6, 0xfe] {
        assert_eq!(asked(header(flags, 0, 9, 9, 9, 9), Offloads::ALL, &frame), Ok(None));
    }
}

#[test]
fn a_header_of_segments_that_does_not_agree_with_its_frame_is_bad() {
    let packet = Tcp { options: vec![1; 12], ..Tcp::new(TO, FROM, 5_000) };
    let frame = packet.partial();
    let is_bad = |header, frame: &[u8]| asked(header, Offloads::ALL, frame) == Err(BadHeader);
    let good = packet.segments_header(1_000);
    assert!(!is_bad(good, &frame));
    let with = |at: usize, value: u16| {
        let mut header = good;
        header[at..at + 2].copy_from_slice(&value.to_le_bytes());
        header
    };
    let kinds = (0..=u8::MAX).filter(|kind| ![0, TCP_V4, TCP_V4 | ECN].contains(kind));
    assert!(kinds.map(|kind| header(1, kind, 66, 1_000, 34, 16)).all(|header| is_bad(header, &frame)));
    assert!(is_bad(header(0, TCP_V4, 66, 1_000, 34, 16), &frame), "segments without a sum");
    assert!((0..128).all(|size| is_bad(with(4, size), &frame)), "thousands of segments");
    assert!([0, 33, 35, 54, 0xffff].into_iter().all(|start| is_bad(with(6, start), &frame)));
    assert!([0, 6, 15, 17, 0xffff].into_iter().all(|offset| is_bad(with(8, offset), &frame)));

    let changed = |at: usize, byte: u8| {
        let mut frame = frame.clone();
        frame[at] = byte;
        frame
    };
    let frames = [
        (12, 0x86, "another EtherType"),
        (14, 0x65, "another version of IP"),
        (14, 0x44, "an IP header that is too short"),
        (14, 0x4f, "an IP header that reaches into TCP's"),
        (17, 0, "another length than the frame's"),
        (20, 0x20, "a fragment with more behind it"),
        (21, 1, "a later fragment"),
        (23, 17, "UDP"),
        (46, 0x40, "a TCP header that is too short"),
    ];
    for (at, byte, what) in frames {
        assert!(is_bad(good, &changed(at, byte)), "{what}");
    }
    assert!(
        (0..=66).all(|end| is_bad(good, &frame[..end])),
        "a frame that ends in its headers, or has no data"
    );
    let v6 = Tcp { is_v6: true, ..packet.clone() };
    let frame = v6.partial();
    let changed = |at: usize, byte: u8| {
        let mut frame = frame.clone();
        frame[at] = byte;
        frame
    };
    let good = v6.segments_header(1_000);
    assert!(!is_bad(good, &frame));
    for (at, byte) in [(14, 0x40), (18, 0), (20, 17), (20, 0), (66, 0x40)] {
        assert!(is_bad(good, &changed(at, byte)), "byte {at} as {byte}");
    }
    let long = Tcp { tags: vec![5, 6], is_v6: true, options: vec![1; 40], ..packet };
    assert!(!is_bad(long.segments_header(1_000), &long.partial()), "all that TCP's header can have");
}

#[test]
fn a_header_of_a_sum_outside_its_frame_or_in_what_was_judged_is_bad() {
    let packet = Tcp { flags: SYN, ..Tcp::new(TO, FROM, 100) };
    let frame = packet.partial();
    let sum = |start, offset| asked(header(1, 0, 0, 0, start, offset), Offloads::ALL, &frame);
    let length = u16::try_from(frame.len()).unwrap();
    assert!(sum(34, 16).is_ok() && sum(34, length - 36).is_ok() && sum(length - 2, 0).is_ok());
    let bad = [(34, length - 35), (length - 1, 0), (length, 0), (0xffff, 0xffff), (34, 0xffff), (0xffff, 0)];
    assert!(bad.into_iter().all(|(start, offset)| sum(start, offset) == Err(BadHeader)));
    assert!((0..34).all(|start| sum(start, 0) == Err(BadHeader)), "addresses, type and IP header");

    let of = |frame: &[u8], start| asked(header(1, 0, 0, 0, start, 16), Offloads::ALL, frame);
    let tagged = Tcp { tags: vec![5], ..packet.clone() }.partial();
    assert_eq!(of(&tagged, 34), Err(BadHeader));
    assert!(of(&tagged, 38).is_ok());
    let v6 = Tcp { is_v6: true, ..packet }.partial();
    assert_eq!(of(&v6, 53), Err(BadHeader));
    assert!(of(&v6, 54).is_ok());
    let mut options = frame.clone();
    options[14] = 0x46;
    assert_eq!(of(&options, 34), Err(BadHeader), "an IP header with options is longer");
    let mut arp = frame;
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(of(&arp, 34), Err(BadHeader), "ARP has no sum");
}

#[test]
fn no_sum_is_put_into_what_may_be_neighbour_discovery() {
    let frame = |next: u8, hop_limit: u8| {
        let mut frame = Tcp { is_v6: true, ..Tcp::new(TO, FROM, 100) }.partial();
        (frame[20], frame[21]) = (next, hop_limit);
        frame
    };
    let sum = |frame: &[u8]| asked(header(1, 0, 0, 0, 54, 16), Offloads::ALL, frame);
    for next in [0, 43, 44, 51, 58, 60] {
        assert_eq!(sum(&frame(next, 255)), Err(BadHeader), "next header {next}");
        assert!(sum(&frame(next, 64)).is_ok(), "nobody takes it for discovery");
    }
    assert!(sum(&frame(17, 255)).is_ok(), "multicast DNS, say");
}

/// Packets that are nearly right, so that what is behind the first check is reached as well.
fn nearly_a_packet() -> impl Strategy<Value = Vec<u8>> {
    let spoilt = prop::collection::vec((0..130_usize, any::<u8>()), 0..3);
    let options = (0..11_usize).prop_map(|words| vec![1; 4 * words]);
    let tags = prop::collection::vec(0..4_096_u16, 0..3);
    (any::<bool>(), tags, options, 0..9_000_usize, spoilt, any::<u8>()).prop_map(
        |(is_v6, tags, options, bytes, spoilt, flags)| {
            let packet = Tcp { is_v6, tags, options, flags, ..Tcp::new(TO, FROM, bytes) };
            let mut frame = packet.partial();
            for (at, byte) in spoilt {
                let length = frame.len();
                frame[at % length] = byte;
            }
            frame
        },
    )
}

fn any_header() -> impl Strategy<Value = [u8; 10]> {
    let kind = prop_oneof![2 => Just(0), 3 => Just(TCP_V4), 3 => Just(TCP_V6), 1 => any::<u8>()];
    let flags = prop_oneof![4 => Just(1), 1 => any::<u8>()];
    let size = prop_oneof![3 => 120..2_000_u16, 1 => any::<u16>()];
    let start = prop_oneof![1 => Just(34), 1 => Just(38), 1 => Just(42), 1 => Just(54), 1 => Just(58), 1 => Just(62), 1 => any::<u16>()];
    let offset = prop_oneof![4 => Just(16), 1 => 0..200_u16, 1 => any::<u16>()];
    (flags, kind, any::<u16>(), size, start, offset).prop_map(
        |(flags, kind, headers, size, start, offset)| header(flags, kind, headers, size, start, offset),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_096))]

    /// Whatever a guest writes: what was judged stays as it was, and the bytes that go out are those that came in and new headers.
    #[test]
    fn whatever_a_header_says_what_was_judged_is_not_changed(
        frame in prop_oneof![8 => nearly_a_packet(), 1 => prop::collection::vec(any::<u8>(), 0..300)],
        header in any_header(),
    ) {
        let Ok(Some(offload)) = asked(header, Offloads::ALL, &frame) else { return Ok(()) };
        let done = done(offload, &frame);
        let size = offload.size(frame.len());
        prop_assert_eq!(done.len(), usize::from(size.segments));
        prop_assert_eq!(done.iter().map(Vec::len).max(), Some(size.longest));
        prop_assert_eq!(done.iter().map(Vec::len).sum::<usize>(), size.bytes);
        prop_assert!(size.segments <= MOST_SEGMENTS);
        let passed = read(offload.header(TagChange::None));
        let start = usize::from(passed.checksum_start());
        prop_assert!(start + usize::from(passed.checksum_offset()) + 2 <= frame.len());
        match offload {
            Offload::Checksum(_) => {
                let differ: Vec<usize> = (0..frame.len()).filter(|at| done[0][*at] != frame[*at]).collect();
                let place = start + usize::from(passed.checksum_offset());
                prop_assert!(differ.iter().all(|at| [place, place + 1].contains(at)), "{:?} at {}", differ, place);
                prop_assert!(place >= 14 + 20);
            }
            Offload::Segments(tcp) => {
                let headers = usize::from(tcp.headers());
                let data: Vec<u8> = done.iter().flat_map(|segment| segment[headers..].to_vec()).collect();
                prop_assert!(data == frame[headers..], "the data is what was sent");
                // Addresses, tags and type; and of IP what a switch looks at.
                let ip = start - if passed.kind() & 0x7f == TCP_V6 { 40 } else { 20 };
                prop_assert!(done.iter().all(|segment| segment[..12] == frame[..12]));
                prop_assert!(done.iter().all(|segment| segment[12..ip.min(34)] == frame[12..ip.min(34)]));
            }
        }
    }
}
