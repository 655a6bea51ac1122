//! What a hostile guest does to its rings, and to the memory that they are in.

use std::sync::Arc;

use super::node::at_work;
use super::shared_file::SHARED;
use super::{Choices, Node, SharedFile};
use crate::memory::GuestMemory;
use crate::memory::fuzzed_reads::{self, PlannedChange};
use crate::offload::Offloads;
use crate::ring::{RingFeatures, RingPlace, SplitRing};

/// The guest's physical address of the first file; the second follows at once.
pub(super) const GUEST: u64 = 0x10_0000;
/// The frontend's address of each file.
pub(super) const USER: [u64; 2] = [0x7000_0000, 0x7100_0000];
/// Where the areas of ring 0 and of ring 1 are, from the start of the first file.
pub(super) const RING: u64 = 0x2000;
pub(super) const AVAILABLE: u64 = 0x1000;
pub(super) const USED: u64 = 0x1400;
/// Where buffers are: behind the rings, and on over the border between the files.
const BUFFERS: u64 = 0x4000;
const BUFFER: u64 = 0x700;

/// What the guest writes to: its files, and how far it came in each ring.
pub(super) struct Driver {
    pub(super) files: [SharedFile; 2],
    pub(super) size: u16,
    next: [u16; 2],
}

impl Driver {
    pub(super) fn new(size: u16) -> Driver {
        Driver { files: [SharedFile::new(), SharedFile::new()], size, next: [0; 2] }
    }

    /// Writes at a physical address, across the border too.
    fn write(&self, address: u64, bytes: &[u8]) {
        let offset = address.wrapping_sub(GUEST);
        if offset < SHARED {
            self.files[0].write(offset, bytes);
            let first = usize::try_from(SHARED - offset).unwrap_or(usize::MAX).min(bytes.len());
            self.files[1].write(0, &bytes[first..]);
        } else if offset < 2 * SHARED {
            self.files[1].write(offset - SHARED, bytes);
        }
    }

    fn address(choices: &mut Choices<'_>) -> u64 {
        match choices.below(8) {
            0..=3 => GUEST + BUFFERS + BUFFER * u64::from(choices.byte() & 63),
            4 => GUEST + u64::from(choices.u32()) % (2 * SHARED),
            5 => GUEST + SHARED - 64 + u64::from(choices.byte()),
            6 => GUEST + 2 * SHARED - 64 + u64::from(choices.byte()),
            _ => choices.u64(),
        }
    }

    fn descriptor(&self, choices: &mut Choices<'_>) -> [u8; 16] {
        let address = Self::address(choices);
        let length = match choices.below(6) {
            0 => 60 + 12,
            1 => 0x700,
            2 => 16 * u32::from(choices.byte()),
            3 => u32::from(choices.byte()),
            4 => u32::from(choices.u16()),
            _ => choices.u32(),
        };
        let flags = u16::from(choices.byte() & 15);
        let next = if choices.is() { u16::from(choices.byte()) % (self.size + 1) } else { choices.u16() };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        bytes[8..12].copy_from_slice(&length.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        bytes
    }

    fn frame(&mut self, choices: &mut Choices<'_>) {
        let to = choices.of([
            [2, 0, 0, 0, 0, 1],
            [2, 0, 0, 0, 0, 2],
            [0xff; 6],
            [2, 0, 0, 0, 0, 9],
            [1, 0, 0x5e, 0, 0, 1],
        ]);
        let from =
            choices.of([[2, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 8]]);
        let kind = choices.byte();
        if kind & 0x80 != 0 {
            return self.offloaded_frame(to, from, choices);
        }
        let kind = [[8, 0], [0x81, 0], [8, 6], [0x86, 0xdd]][usize::from(kind & 3)];
        let rest = choices.bytes(16);
        self.write(Self::address(choices), &[&[0; 12], &to[..], &from, &kind, rest].concat());
    }

    /// Sends a TCP packet with a virtio header that asks for something, both nearly right.
    fn offloaded_frame(&mut self, to: [u8; 6], from: [u8; 6], choices: &mut Choices<'_>) {
        let is_v6 = choices.is();
        let length = choices.of([100_u16, 1_500, 9_000, 40_000]) + u16::from(choices.byte());
        let size = choices.of([128_u16, 127, 1_000, 1_428]);
        let kind = choices.of([0, if is_v6 { 4 } else { 1 }, if is_v6 { 0x84 } else { 0x81 }]);
        let start = if is_v6 { 54_u16 } else { 34 };
        let said = [0, size, start, 16].map(u16::to_le_bytes).concat();
        let ip = if is_v6 {
            let bytes = (length - 54).to_be_bytes();
            [&[0x60, 0, 0, 0][..], &bytes, &[6, 64], &[0xfd; 32]].concat()
        } else {
            let bytes = (length - 14).to_be_bytes();
            [&[0x45, 0][..], &bytes, &[0, 1, 0, 0, 64, 6, 0, 0], &[10; 8]].concat()
        };
        let ethertype = if is_v6 { [0x86, 0xdd] } else { [8, 0] };
        let tcp = [&[7; 12][..], &[0x50, 0x99, 1, 1, 2, 2, 0, 0]].concat();
        let mut bytes = [&[1, kind][..], &said, &[0, 0], &to, &from, &ethertype, &ip, &tcp].concat();
        for _ in 0..choices.below(3) {
            let at = choices.below(bytes.len());
            bytes[at] = choices.byte();
        }
        let address = GUEST + BUFFERS + BUFFER * u64::from(choices.byte() & 63);
        self.write(address, &bytes);
        let slot = choices.byte() % u8::try_from(self.size).unwrap_or(u8::MAX);
        let mut descriptor = [0; 16];
        descriptor[..8].copy_from_slice(&address.to_le_bytes());
        descriptor[8..12].copy_from_slice(&(12 + u32::from(length)).to_le_bytes());
        self.write(Self::ring(1) + 16 * u64::from(slot), &descriptor);
        self.offer(1, u16::from(slot));
    }

    fn ring(queue: usize) -> u64 {
        GUEST + RING * queue as u64
    }

    fn offer(&mut self, queue: usize, head: u16) {
        let slot = u64::from(self.next[queue] & (self.size - 1));
        self.write(Self::ring(queue) + AVAILABLE + 4 + 2 * slot, &head.to_le_bytes());
        self.next[queue] = self.next[queue].wrapping_add(1);
        self.write(Self::ring(queue) + AVAILABLE + 2, &self.next[queue].to_le_bytes());
    }

    /// One action.
    pub(super) fn act(&mut self, choices: &mut Choices<'_>, node: &mut Node) {
        let queue = choices.below(2);
        let ring = Self::ring(queue);
        match choices.below(16) {
            0 | 1 => {
                let at = u64::from(choices.byte()) % u64::from(self.size);
                self.write(ring + 16 * at, &self.descriptor(choices));
            }
            2 => {
                let (table, at) = (Self::address(choices), u64::from(choices.byte()));
                self.write(table.wrapping_add(16 * at), &self.descriptor(choices));
            }
            3 | 4 => {
                let head = u16::from(choices.byte()) % (self.size + 1);
                self.offer(queue, head);
            }
            5 => self.write(ring + AVAILABLE + 2, &choices.u16().to_le_bytes()),
            6 => self.write(ring + USED + 2, &choices.u16().to_le_bytes()),
            7 => self.write(ring + AVAILABLE, &choices.u16().to_le_bytes()),
            8 => self.write(ring + AVAILABLE + 4 + 2 * u64::from(self.size), &choices.u16().to_le_bytes()),
            9 => self.write(Self::address(choices), choices.bytes(24)),
            10 => self.frame(choices),
            11 => {
                let (to_all, length) = (choices.is(), choices.u16());
                node.neighbour_sends(queue, to_all, usize::from(length) % 1515, length & 0x8000 != 0);
            }
            12 => self.plan(choices, ring),
            13 if choices.byte() == 77 => {
                let (page, cut) = (choices.below(16), choices.is());
                self.files[queue].take_away(page, cut);
            }
            13 => {
                if let Some(polled) = node.rings().get_mut(queue) {
                    polled.enabled = choices.is();
                }
            }
            _ => node.round(),
        }
    }

    /// Something changes between two reads of the switch.
    fn plan(&self, choices: &mut Choices<'_>, ring: u64) {
        let reads = u16::from(choices.byte());
        let (address, bytes) = match choices.below(4) {
            0 => (
                ring + 16 * (u64::from(choices.byte()) % u64::from(self.size)),
                self.descriptor(choices).to_vec(),
            ),
            1 => (ring + AVAILABLE + 2, choices.u16().to_le_bytes().to_vec()),
            2 => (Self::address(choices) & !15, self.descriptor(choices).to_vec()),
            _ => (Self::address(choices), choices.bytes(8).to_vec()),
        };
        fuzzed_reads::plan(PlannedChange { reads, address, bytes });
    }
}

/// A guest whose connection is made, with a receive and a transmit queue: what it does to them and to its memory.
///
/// # Panics
/// If something does not hold that must.
pub fn fuzzed_rings(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let size = choices.of([16, 1, 2, 8, 64, 128]);
    let bits = choices.byte();
    let features = RingFeatures {
        mergeable: bits & 1 != 0,
        event_idx: bits & 2 != 0,
        indirect: bits & 4 == 0,
        header: if bits & 8 != 0 { 10 } else { 12 },
        sends: if bits & 32 != 0 { Offloads::ALL } else { Offloads::NONE },
        gets: if bits & 64 != 0 { Offloads::ALL } else { Offloads::NONE },
    };
    let mut node = Node::new(1, bits & 16 != 0);
    let mut driver = Driver::new(size);
    let mapped = [driver.files[0].map(GUEST, USER[0]), driver.files[1].map(GUEST + SHARED, USER[1])];
    let regions = mapped.iter().map(|mapped| Arc::clone(&mapped.region)).collect();
    let memory = Arc::new(GuestMemory::new(regions).unwrap());
    fuzzed_reads::begin(Arc::clone(&memory));
    for queue in 0..2 {
        let at = USER[0] + RING * queue as u64;
        let place = RingPlace { size, descriptors: at, available: at + AVAILABLE, used: at + USED };
        node.rings()[queue] = at_work(SplitRing::new(&memory, place, features, None).unwrap(), None, true);
    }
    for _ in 0..512 {
        if choices.is_empty() {
            break;
        }
        driver.act(&mut choices, &mut node);
    }
    node.neighbours_go_on();
    driver.files.iter().for_each(SharedFile::check);
    node.forget_hostile();
    fuzzed_reads::begin(Arc::default());
}
