//! A guest for tests: memory, and a ring in it that the test fills as a driver does, or as no driver would.

use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) use super::layout::WRITE;
use super::layout::{
    DESCRIPTOR_BYTES, Descriptor, FLAGS_OFFSET, INDEX_OFFSET, UsedElement, area_bytes, available_entry,
    used_entry,
};
use super::{GuestEvent, RingFeatures, RingPlace, SplitRing};
use crate::memory::{GuestMemory, GuestSlice, MappedRegion, RegionPlace};
use crate::offload::Offloads;

/// The guest's physical address of the first region; the second follows at once.
pub(crate) const GUEST: u64 = 0x10_0000;
/// The bytes of each of the two regions.
pub(crate) const REGION: u64 = 0x1_0000;
/// The frontend's address of the first region; the second's is far from it.
const USER: u64 = 0x7000_0000;
/// Where the descriptors are, from the start of the first region.
pub(crate) const DESCRIPTORS: u64 = 0;
const AVAILABLE: u64 = 0x4000;
const USED: u64 = 0x6000;
/// Where buffers may be, from the start of the first region: nothing of the ring is there.
pub(crate) const BUFFERS: u64 = 0x8000;

/// What every test agrees on unless it says otherwise.
pub(crate) const FEATURES: RingFeatures = RingFeatures {
    event_idx: false,
    indirect: true,
    mergeable: true,
    header: 12,
    sends: Offloads::NONE,
    gets: Offloads::NONE,
};

/// A guest with one ring.
pub(crate) struct GuestModel {
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) size: u16,
    next: u16,
}

fn region(guest: u64, user: u64) -> Arc<MappedRegion> {
    Arc::new(MappedRegion::of_own_pages(RegionPlace { guest, user, bytes: REGION, offset: 0 }))
}

impl GuestModel {
    pub(crate) fn new(size: u16) -> GuestModel {
        let regions = vec![region(GUEST, USER), region(GUEST + REGION, USER + 16 * REGION)];
        GuestModel { memory: Arc::new(GuestMemory::new(regions).unwrap()), size, next: 0 }
    }

    pub(crate) fn place(&self) -> RingPlace {
        let (descriptors, available, used) = (USER + DESCRIPTORS, USER + AVAILABLE, USER + USED);
        RingPlace { size: self.size, descriptors, available, used }
    }

    pub(crate) fn ring(&self, features: RingFeatures) -> SplitRing {
        self.ring_with_call(features, None)
    }

    pub(crate) fn ring_with_call(&self, features: RingFeatures, call: Option<Arc<GuestEvent>>) -> SplitRing {
        SplitRing::new(&self.memory, self.place(), features, call).expect("a ring in memory")
    }

    fn area(&self, offset: u64) -> GuestSlice<'_> {
        self.memory.at_user(USER + offset, usize::try_from(REGION - offset).unwrap()).unwrap()
    }

    /// Writes descriptor `index` of the ring's table.
    pub(crate) fn describe(&self, index: u16, address: u64, length: u32, flags: u16, next: u16) {
        self.describe_at(GUEST + DESCRIPTORS, index, address, length, flags, next);
    }

    /// Writes descriptor `index` of the table at the physical address `table`.
    pub(crate) fn describe_at(
        &self,
        table: u64,
        index: u16,
        address: u64,
        length: u32,
        flags: u16,
        next: u16,
    ) {
        let offset = table - GUEST + u64::from(index) * DESCRIPTOR_BYTES as u64;
        self.area(offset).store(0, Descriptor { address, length, flags, next });
    }

    /// Makes the chain that begins at `head` available.
    pub(crate) fn offer(&mut self, head: u16) {
        let slot = usize::from(self.next & (self.size - 1));
        self.area(AVAILABLE).store_u16(available_entry(slot), head, Ordering::Relaxed);
        self.next = self.next.wrapping_add(1);
        self.set_available_index(self.next);
    }

    /// Goes on at this index of the available ring.
    pub(crate) fn start_at(&mut self, index: u16) {
        self.next = index;
        self.set_available_index(index);
    }

    pub(crate) fn set_available_index(&self, index: u16) {
        self.area(AVAILABLE).store_u16(INDEX_OFFSET, index, Ordering::Release);
    }

    pub(crate) fn set_used_index(&self, index: u16) {
        self.area(USED).store_u16(INDEX_OFFSET, index, Ordering::Release);
    }

    pub(crate) fn set_available_flags(&self, flags: u16) {
        self.area(AVAILABLE).store_u16(FLAGS_OFFSET, flags, Ordering::Release);
    }

    /// Asks for a call when the used index passes `index` (VIRTIO_F_EVENT_IDX).
    pub(crate) fn set_used_event(&self, index: u16) {
        let offset = available_entry(usize::from(self.size));
        self.area(AVAILABLE).store_u16(offset, index, Ordering::Release);
    }

    pub(crate) fn used_flags(&self) -> u16 {
        self.area(USED).load_u16(FLAGS_OFFSET, Ordering::Acquire).unwrap()
    }

    pub(crate) fn available_event(&self) -> u16 {
        self.area(USED).load_u16(used_entry(usize::from(self.size)), Ordering::Acquire).unwrap()
    }

    /// The used entries that were published, as (head, bytes).
    pub(crate) fn used(&self) -> Vec<(u32, u32)> {
        let count = self.area(USED).load_u16(INDEX_OFFSET, Ordering::Acquire).unwrap();
        let entry = |n: u16| {
            let slot = usize::from(n & (self.size - 1));
            let UsedElement { id, length } = self.area(USED).load(used_entry(slot)).unwrap();
            (id, length)
        };
        (0..count).map(entry).collect()
    }

    /// Writes at a physical address, across the border of the regions too.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let left = bytes.len() - done;
            let slice = self.memory.at_guest(address + done as u64, left, &Default::default()).unwrap();
            done += slice.write(&bytes[done..]);
        }
    }

    pub(crate) fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        let (mut read, mut done) = (vec![0; bytes], 0);
        while done < bytes {
            let slice =
                self.memory.at_guest(address + done as u64, bytes - done, &Default::default()).unwrap();
            done += slice.read(&mut read[done..]);
        }
        read
    }

    /// Fills the three areas of the ring with what the test has: as many bytes of each as there are.
    pub(crate) fn fill(&self, descriptors: &[u8], available: &[u8], used: &[u8]) {
        let sizes = area_bytes(usize::from(self.size));
        self.area(DESCRIPTORS).write(&descriptors[..descriptors.len().min(sizes.0)]);
        self.area(AVAILABLE).write(&available[..available.len().min(sizes.1)]);
        self.area(USED).write(&used[..used.len().min(sizes.2)]);
    }

    /// The addresses in this process that belong to the guest.
    pub(crate) fn contains(&self, slice: &GuestSlice<'_>) -> bool {
        [GUEST, GUEST + REGION].iter().any(|start| {
            let region = self.memory.at_guest(*start, usize::MAX, &Default::default()).unwrap();
            let (from, to) = (region.address(), region.address() + region.len());
            slice.address() >= from && slice.address() + slice.len() <= to
        })
    }
}

/// A frame of `length` bytes, none like its neighbour.
pub(crate) fn frame_bytes(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 7 + n / 256).to_le_bytes()[0]).collect()
}
