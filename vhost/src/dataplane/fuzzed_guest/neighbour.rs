//! A guest that keeps to the rules, with one pair of queues, and notices whatever is written where nothing may be.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fairlead_host::Mac;

use super::SharedFile;
use super::shared_file::Guarded;
use crate::memory::{GuestMemory, GuestSlice};
use crate::offload::Offloads;
use crate::ring::{RingFeatures, RingPlace, SplitRing};

const GUEST: u64 = 0x40_0000;
const USER: u64 = 0x5000_0000;
const SIZE: u16 = 16;
const HEADER: usize = 12;
/// A frame to a neighbour is never longer: its port's MTU is 1,500.
const BUFFER: usize = 0x700;
const STRIDE: usize = 0x800;
/// Where the three areas of a ring are, from the start of the memory: two rings fit below [`BUFFERS`].
const RING: usize = 0x400;
const AVAILABLE: usize = 0x200;
const USED: usize = 0x280;
/// Where the buffers of the receive queue are, and of the transmit queue.
const BUFFERS: [usize; 2] = [0x1000, 0x1000 + SIZE as usize * STRIDE];
/// Receive queue and transmit queue.
const RX: usize = 0;
const TX: usize = 1;

/// A guest that keeps to the rules.
pub(super) struct Neighbour {
    pub(super) mac: Mac,
    gets: Offloads,
    file: SharedFile,
    memory: Arc<GuestMemory>,
    _guarded: Guarded,
    /// Entries of the available ring that were written, and of the used ring that were seen.
    available: [u16; 2],
    seen: [u16; 2],
}

impl Neighbour {
    /// `gets` is what may be left to it.
    pub(super) fn new(last: u8, gets: Offloads) -> Neighbour {
        let file = SharedFile::new();
        let guarded = file.map(GUEST, USER);
        let memory = Arc::new(GuestMemory::new(vec![Arc::clone(&guarded.region)]).unwrap());
        let mac = Mac([2, 0, 0, 0, 0, last]);
        let mut neighbour =
            Neighbour { mac, gets, file, memory, _guarded: guarded, available: [0; 2], seen: [0; 2] };
        for n in 0..SIZE {
            neighbour.describe(RX, n, BUFFER, 2);
            neighbour.offer(RX, n);
        }
        neighbour
    }

    pub(super) fn ring(&self, queue: usize) -> SplitRing {
        let at = USER + (queue * RING) as u64;
        let place = RingPlace {
            size: SIZE,
            descriptors: at,
            available: at + AVAILABLE as u64,
            used: at + USED as u64,
        };
        let (sends, gets) = (Offloads::ALL, self.gets);
        let features = RingFeatures { header: HEADER, sends, gets, ..RingFeatures::default() };
        SplitRing::new(&self.memory, place, features, None).unwrap()
    }

    fn slice(&self, offset: usize, bytes: usize) -> GuestSlice<'_> {
        let slice = self.memory.at_guest(GUEST + offset as u64, bytes, &Default::default()).unwrap();
        assert_eq!(slice.len(), bytes);
        slice
    }

    fn word(&self, offset: usize) -> u16 {
        let mut word = [0; 2];
        self.slice(offset, 2).read(&mut word);
        u16::from_le_bytes(word)
    }

    fn buffer(queue: usize, n: u16) -> usize {
        BUFFERS[queue] + usize::from(n) * STRIDE
    }

    fn describe(&self, queue: usize, n: u16, bytes: usize, flags: u16) {
        let mut descriptor = [0; 16];
        descriptor[..8].copy_from_slice(&(GUEST + Self::buffer(queue, n) as u64).to_le_bytes());
        descriptor[8..12].copy_from_slice(&u32::try_from(bytes).unwrap().to_le_bytes());
        descriptor[12..14].copy_from_slice(&flags.to_le_bytes());
        self.slice(queue * RING + 16 * usize::from(n), 16).write(&descriptor);
    }

    fn offer(&mut self, queue: usize, n: u16) {
        let at = queue * RING + AVAILABLE;
        let slot = usize::from(self.available[queue] % SIZE);
        self.slice(at + 4 + 2 * slot, 2).write(&n.to_le_bytes());
        self.available[queue] = self.available[queue].wrapping_add(1);
        self.slice(at, 4).store_u16(2, self.available[queue], Ordering::Release);
    }

    /// Sends a frame with this header; false if the ring is full.
    pub(super) fn send(&mut self, header: [u8; 10], frame: &[u8]) -> bool {
        self.collect_sent();
        if self.available[TX].wrapping_sub(self.seen[TX]) >= SIZE {
            return false;
        }
        let n = self.available[TX] % SIZE;
        self.slice(Self::buffer(TX, n), HEADER).write(&header);
        self.slice(Self::buffer(TX, n) + HEADER, frame.len()).write(frame);
        self.describe(TX, n, HEADER + frame.len(), 0);
        self.offer(TX, n);
        true
    }

    /// What is used, each entry the one that was offered next.
    fn next_used(&mut self, queue: usize) -> Option<(u16, usize)> {
        let at = queue * RING + USED;
        if self.word(at + 2) == self.seen[queue] {
            return None;
        }
        let slot = usize::from(self.seen[queue] % SIZE);
        let (id, length) = (self.word(at + 4 + 8 * slot), self.word(at + 8 + 8 * slot));
        let offered = self.word(queue * RING + AVAILABLE + 4 + 2 * slot);
        assert_eq!(id, offered, "buffers are used in order");
        self.seen[queue] = self.seen[queue].wrapping_add(1);
        Some((id, usize::from(length)))
    }

    fn collect_sent(&mut self) {
        while let Some((_, length)) = self.next_used(TX) {
            assert_eq!(length, 0, "nothing is written into a buffer that was sent");
        }
    }

    /// The frames that came; their buffers are free again.
    pub(super) fn received(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some((n, length)) = self.next_used(RX) {
            assert!((HEADER..=BUFFER).contains(&length), "{length} bytes in a buffer");
            let mut bytes = vec![0; length];
            self.slice(Self::buffer(RX, n), length).read(&mut bytes);
            let frame = bytes.split_off(HEADER);
            self.check_header(&bytes, frame.len());
            frames.push(frame);
            self.offer(RX, n);
        }
        self.check();
        frames
    }

    /// What the header says is what was agreed on, and lies in the frame.
    fn check_header(&self, header: &[u8], length: usize) {
        assert_eq!(header[10..], [1, 0], "a frame fills one buffer");
        if header[..10] == [0; 10] {
            return;
        }
        assert!(self.gets.checksum, "{header:?} for a guest that agreed on nothing");
        let number = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
        assert!(header[0] == 1 && [0, 1, 4, 0x81, 0x84].contains(&header[1]), "{header:?}");
        assert!(number(6) >= 34 && number(6) + number(8) + 2 <= length, "{header:?} before {length} bytes");
        let is_cut = header[1] == 0 || (number(4) >= 128 && number(2) < length && number(8) == 16);
        assert!(is_cut, "{header:?} before {length} bytes");
    }

    /// What is between the buffers, and behind the memory, is as it was.
    fn check(&self) {
        self.file.check();
        for n in 0..SIZE {
            let mut gap = [0; STRIDE - BUFFER];
            self.slice(Self::buffer(RX, n) + BUFFER, gap.len()).read(&mut gap);
            assert!(gap.iter().all(|byte| *byte == 0), "bytes behind a neighbour's buffer were written");
        }
    }
}
