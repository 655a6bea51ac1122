//! Rings that no driver writes: each is a fault, and nothing outside the guest's memory is touched.

use std::sync::Arc;

use proptest::prelude::*;

use super::guest_model::{BUFFERS, DESCRIPTORS, FEATURES, GUEST, GuestModel, REGION, frame_bytes};
use super::layout::{INDIRECT, NEXT, WRITE};
use super::{Frame, FrameSink, FrameSource, RingFault, RingFeatures, RingPlace, SplitRing};
use crate::switch::TagChange;

const BUFFER: u64 = GUEST + BUFFERS;

/// What comes of taking all frames out of `ring`: every piece is inside the guest's memory.
fn take_all(guest: &GuestModel, ring: &mut SplitRing) -> Result<usize, RingFault> {
    let memory = Arc::clone(ring.memory());
    let mut source = FrameSource::look(ring, &memory)?;
    for n in 0..source.count() {
        source.frame::<false>(n, ring, &mut |frame: &Frame<'_, '_>| {
            assert!(frame.rest.iter().chain(frame.more).all(|slice| guest.contains(slice)));
            assert!(frame.head().len() <= frame.length());
        })?;
        source.give_back(n, ring);
    }
    Ok(source.count())
}

/// What comes of putting a frame of `length` bytes into `ring`.
fn put(ring: &mut SplitRing, length: usize) -> Result<bool, RingFault> {
    let mut from = GuestModel::new(4);
    from.write(BUFFER, &frame_bytes(12 + length));
    from.describe(0, BUFFER, u32::try_from(12 + length).unwrap(), 0, 0);
    from.offer(0);
    let mut sender = from.ring(FEATURES);
    let mut source = FrameSource::look(&mut sender, &from.memory).unwrap();
    let mut put = Ok(false);
    let taken = source.frame::<false>(0, &sender, &mut |frame: &Frame<'_, '_>| {
        put = FrameSink::put(ring, frame, TagChange::None, &mut 0)
    });
    assert_eq!(taken, Ok(true));
    put
}

/// A guest whose ring of 8 was written by `write`, and which sends what begins at descriptor 0.
fn sent(write: impl Fn(&GuestModel)) -> Result<usize, RingFault> {
    let mut guest = GuestModel::new(8);
    write(&guest);
    guest.offer(0);
    let mut ring = guest.ring(FEATURES);
    take_all(&guest, &mut ring)
}

#[test]
fn an_index_that_jumps_further_than_the_ring_is_a_fault() {
    for index in [9, 0x8000, 0xffff] {
        let guest = GuestModel::new(8);
        let mut ring = guest.ring(FEATURES);
        guest.set_available_index(index);
        let fault = RingFault::IndexJump { index, ahead: index, taken: 0, size: 8 };
        assert!(ring.has_work(), "it is looked at, and so found out");
        assert_eq!(take_all(&guest, &mut ring), Err(fault.clone()));
        assert_eq!(put(&mut ring, 60), Err(fault));
    }
}

#[test]
fn an_index_that_goes_back_takes_nothing_back_and_is_a_fault_when_all_is_used() {
    let mut guest = GuestModel::new(8);
    for n in 0..3 {
        guest.describe(n, BUFFER + u64::from(n) * 512, 512, WRITE, 0);
        guest.offer(n);
    }
    let mut ring = guest.ring(FEATURES);
    assert_eq!(put(&mut ring, 60), Ok(true));
    guest.set_available_index(1);
    assert_eq!(ring.ready(8), Ok(2));
    assert_eq!([put(&mut ring, 60), put(&mut ring, 60)], [Ok(true), Ok(true)]);
    assert_eq!(put(&mut ring, 60), Err(RingFault::IndexJump { index: 1, ahead: 0xfffe, taken: 3, size: 8 }));
}

#[test]
fn a_descriptor_that_is_not_there_is_a_fault() {
    let mut guest = GuestModel::new(8);
    guest.offer(8);
    let fault = Err(RingFault::NoSuchDescriptor { index: 8, size: 8 });
    assert_eq!(take_all(&guest, &mut guest.ring(FEATURES)), fault);
    assert_eq!(sent(|guest| guest.describe(0, BUFFER, 64, NEXT, 8)), fault);
    let table_of_two = sent(|guest| {
        guest.describe(0, BUFFER, 32, INDIRECT, 0);
        guest.describe_at(BUFFER, 0, BUFFER, 64, NEXT, 2);
    });
    assert_eq!(table_of_two, Err(RingFault::NoSuchDescriptor { index: 2, size: 2 }));
}

#[test]
fn frames_before_a_descriptor_that_is_not_there_are_taken_and_then_it_is_a_fault() {
    let mut guest = GuestModel::new(8);
    for n in 0..3 {
        guest.describe(n, BUFFER, 72, 0, 0);
        guest.offer(if n == 2 { 9 } else { n });
    }
    let mut ring = guest.ring(FEATURES);
    assert_eq!(take_all(&guest, &mut ring), Err(RingFault::NoSuchDescriptor { index: 9, size: 8 }));
    assert_eq!(ring.position(), 2);
}

#[test]
fn what_was_read_in_advance_is_not_read_again() {
    let mut guest = GuestModel::new(8);
    for n in 0..2 {
        guest.describe(n, BUFFER + u64::from(n) * 512, 512, WRITE, 0);
        guest.offer(n);
    }
    let mut ring = guest.ring(FEATURES);
    assert_eq!(put(&mut ring, 60), Ok(true));
    guest.describe(1, 0, 512, WRITE, 0);
    assert_eq!(put(&mut ring, 60), Ok(true), "the descriptor that was there first");
    assert_eq!(guest.read(BUFFER + 512 + 12, 60), guest.read(BUFFER + 12, 60));
    guest.describe(1, 0, 512, WRITE, 0);
    guest.offer(1);
    assert_eq!(put(&mut ring, 60), Err(RingFault::Outside { address: 0, length: 512 }));
}

#[test]
fn a_loop_ends_after_the_longest_chain() {
    assert_eq!(sent(|guest| guest.describe(0, BUFFER, 64, NEXT, 0)), Err(RingFault::LongChain));
    assert_eq!(sent(|guest| guest.describe(0, BUFFER, 0, NEXT, 0)), Err(RingFault::LongChain));
    let in_table = sent(|guest| {
        guest.describe(0, BUFFER, 16, INDIRECT, 0);
        guest.describe_at(BUFFER, 0, BUFFER, 64, NEXT, 0);
    });
    assert_eq!(in_table, Err(RingFault::LongChain));
    let mut guest = GuestModel::new(8);
    guest.describe(0, BUFFER, 0, WRITE | NEXT, 0);
    guest.offer(0);
    assert_eq!(put(&mut guest.ring(FEATURES), 60), Err(RingFault::LongChain));
}

#[test]
fn a_buffer_outside_the_memory_is_a_fault_however_its_numbers_wrap() {
    let end = GUEST + 2 * REGION;
    let outside =
        [(0, 64), (GUEST - 1, 64), (end, 1), (end - 10, 64), (u64::MAX, 64), (u64::MAX - 10, u32::MAX)];
    let far = [(GUEST, u32::MAX), (BUFFER, u32::MAX), (end - 1, 2)];
    for (address, length) in outside.into_iter().chain(far) {
        let fault = sent(|guest| guest.describe(0, address, length, 0, 0));
        assert!(matches!(fault, Err(RingFault::Outside { .. })), "{address:#x} {length}: {fault:?}");
        let mut guest = GuestModel::new(8);
        guest.describe(0, address, length, WRITE, 0);
        guest.offer(0);
        let fault = put(&mut guest.ring(FEATURES), 60);
        assert!(matches!(fault, Err(RingFault::Outside { .. })), "{address:#x} {length}: {fault:?}");
        let fault = sent(|guest| guest.describe(0, address, length & !15, INDIRECT, 0));
        assert!(fault.is_err(), "a table at {address:#x}: {fault:?}");
    }
}

#[test]
fn an_indirect_table_where_none_may_be_is_a_fault() {
    let nested = sent(|guest| {
        guest.describe(0, BUFFER, 16, INDIRECT, 0);
        guest.describe_at(BUFFER, 0, BUFFER, 16, INDIRECT, 0);
    });
    assert_eq!(nested, Err(RingFault::MisplacedIndirect));
    let chained = sent(|guest| guest.describe(0, BUFFER, 16, INDIRECT | NEXT, 1));
    assert_eq!(chained, Err(RingFault::MisplacedIndirect));
    for length in [0, 1, 17] {
        let fault = sent(|guest| guest.describe(0, BUFFER, length, INDIRECT, 0));
        assert_eq!(fault, Err(RingFault::IndirectLength(length)));
    }
    let mut guest = GuestModel::new(8);
    guest.describe(0, BUFFER, 16, INDIRECT, 0);
    guest.offer(0);
    let without = RingFeatures { indirect: false, ..FEATURES };
    assert_eq!(take_all(&guest, &mut guest.ring(without)), Err(RingFault::MisplacedIndirect));
}

#[test]
fn a_buffer_for_the_wrong_direction_is_a_fault() {
    assert_eq!(sent(|guest| guest.describe(0, BUFFER, 64, WRITE, 0)), Err(RingFault::Direction));
    let mut guest = GuestModel::new(8);
    guest.describe(0, BUFFER, 2048, 0, 0);
    guest.offer(0);
    assert_eq!(put(&mut guest.ring(FEATURES), 60), Err(RingFault::Direction));
}

#[test]
fn buffers_so_small_that_a_frame_needs_hundreds_are_a_fault() {
    let mut guest = GuestModel::new(512);
    for n in 0..512 {
        guest.describe(n, BUFFER + u64::from(n), 1, WRITE, 0);
        guest.offer(n);
    }
    assert_eq!(put(&mut guest.ring(FEATURES), 1500), Err(RingFault::LongChain));
    let mut guest = GuestModel::new(8);
    guest.describe(0, BUFFER, 0, WRITE, 0);
    guest.offer(0);
    assert_eq!(put(&mut guest.ring(FEATURES), 60), Err(RingFault::NoBytes));
}

#[test]
fn frames_without_a_byte_or_with_far_too_many_are_given_back_unread() {
    assert_eq!(sent(|guest| guest.describe(0, BUFFER, 0, 0, 0)), Ok(1));
    assert_eq!(sent(|guest| guest.describe(0, BUFFER, 12, 0, 0)), Ok(1));
    assert_eq!(sent(|guest| guest.describe(0, GUEST, u32::try_from(2 * REGION).unwrap(), 0, 0)), Ok(1));
}

#[test]
fn a_ring_that_is_not_whole_in_memory_or_not_aligned_is_not_made() {
    let guest = GuestModel::new(8);
    let good = guest.place();
    let end = good.descriptors + REGION;
    let places = [
        RingPlace { descriptors: 0, ..good },
        RingPlace { descriptors: end - 16, ..good },
        RingPlace { descriptors: good.descriptors + 8, ..good },
        RingPlace { available: end - 4, ..good },
        RingPlace { available: good.available + 1, ..good },
        RingPlace { used: u64::MAX - 3, ..good },
        RingPlace { used: good.used + 2, ..good },
        RingPlace { size: 0x8000, ..good },
        RingPlace { size: 6, ..good },
    ];
    for place in places {
        assert!(SplitRing::new(&guest.memory, place, FEATURES, None).is_none(), "{place:?}");
    }
}

/// Descriptors that are mostly about right, so that what is behind the first check is reached as well.
fn descriptor() -> impl Strategy<Value = [u8; 16]> {
    let address = prop_oneof![
        4 => GUEST..GUEST + 2 * REGION,
        1 => any::<u64>(),
        1 => (GUEST + 2 * REGION - 100)..(GUEST + 2 * REGION + 100),
    ];
    let length = prop_oneof![4 => 0..4000_u32, 2 => (0..20_u32).prop_map(|n| n * 16), 1 => any::<u32>()];
    let next = prop_oneof![4 => 0..16_u16, 1 => any::<u16>()];
    let flags = prop_oneof![4 => 0..8_u16, 1 => any::<u16>()];
    (address, length, flags, next).prop_map(|(address, length, flags, next)| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        bytes[8..12].copy_from_slice(&length.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 512 }))]

    /// Whatever the ring's bytes are, what comes out lies in the guest's memory, and it comes out soon.
    #[test]
    fn whatever_bytes_a_ring_has_nothing_outside_the_memory_is_touched(
        descriptors in proptest::collection::vec(descriptor(), 16),
        tables in proptest::collection::vec(descriptor(), 64),
        available in proptest::collection::vec(any::<u8>(), 4 + 2 * 16 + 2),
        heads in proptest::collection::vec(0..20_u16, 16),
        index in prop_oneof![8 => 0..17_u16, 1 => any::<u16>()],
        tame in any::<bool>(),
        length in 1..9018_usize,
        mergeable in any::<bool>(),
        event_idx in any::<bool>(),
    ) {
        let guest = GuestModel::new(16);
        let mut available = available;
        if tame {
            available[4..36].copy_from_slice(&heads.iter().flat_map(|head| head.to_le_bytes()).collect::<Vec<_>>());
        }
        guest.fill(&descriptors.concat(), &available, &[]);
        guest.write(BUFFER, &tables.concat());
        let features = RingFeatures { mergeable, event_idx, ..FEATURES };
        let mut source = guest.ring(features);
        let mut sink = guest.ring(features);
        guest.set_available_index(index);
        let _ = take_all(&guest, &mut source);
        // The second frame finds what was read in advance for the first, which may have taken several buffers of it.
        let _ = put(&mut sink, length).and_then(|_| put(&mut sink, 60));
        prop_assert!(guest.read(GUEST + DESCRIPTORS, 1).len() == 1);
    }

    /// An address and a length either name memory of one region, or nothing.
    #[test]
    fn an_address_names_memory_of_one_region_or_nothing(
        address in prop_oneof![GUEST - 100..GUEST + 2 * REGION + 100, any::<u64>()],
        bytes in prop_oneof![0..200_usize, any::<usize>()],
    ) {
        let guest = GuestModel::new(8);
        match guest.memory.at_guest(address, bytes, &Default::default()) {
            Some(slice) => {
                prop_assert!(guest.contains(&slice));
                prop_assert!(slice.len() <= bytes);
            }
            None => prop_assert!(bytes == 0 || !(GUEST..GUEST + 2 * REGION).contains(&address)),
        }
    }
}
