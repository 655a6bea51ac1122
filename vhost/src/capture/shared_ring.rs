//! The memory that the switch and the operator share: one page of counters, and a ring of records.
//!
//! | byte | |
//! |---|---|
//! | 0 | how many bytes were written since the beginning: the switch's |
//! | 8 | how many records found no room: the switch's |
//! | 16 | 1 when no more records come: the switch's |
//! | 64 | how many bytes were read since the beginning: the operator's |
//! | 4096 | the ring. A record begins at a multiple of 8 and may go on at the ring's beginning |
//!
//! All numbers are the machine's own: both sides are on it.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::CaptureDirection;
use crate::memory::{GuestMemory, GuestSlice, KeptSlice, MappedRegion, RegionError, RegionPlace};

/// The bytes of the counters' page.
const COUNTERS: usize = 4096;
/// The bytes of the ring: some thousand frames of full size.
pub(super) const RECORDS: usize = 8 << 20;
/// The bytes of the whole memory.
pub(crate) const RING_BYTES: u64 = (COUNTERS + RECORDS) as u64;
/// The bytes of a record before its frame.
pub(super) const HEAD_BYTES: usize = 24;

/// The memory as a region.
pub(super) const PLACE: RegionPlace = RegionPlace { guest: 0, user: 0, bytes: RING_BYTES, offset: 0 };

const WRITTEN: usize = 0;
const LOST: usize = 8;
const ENDED: usize = 16;
const READ: usize = 64;

/// What stands before a frame in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordHead {
    /// Nanoseconds since the epoch.
    pub(super) time_ns: u64,
    /// How long the frame was.
    pub(super) length: u32,
    /// How many bytes of it follow.
    pub(super) captured: u32,
    /// [`CaptureDirection::Sent`] or [`CaptureDirection::Received`].
    pub(super) direction: CaptureDirection,
}

impl RecordHead {
    pub(super) fn bytes(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&self.time_ns.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.captured.to_ne_bytes());
        bytes[16] = u8::from(self.direction == CaptureDirection::Received);
        bytes
    }

    pub(super) fn parse(bytes: &[u8; HEAD_BYTES]) -> RecordHead {
        let number = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let [a, b, c, d, e, f, g, h, ..] = *bytes;
        let received = bytes[16] != 0;
        RecordHead {
            time_ns: u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            length: number(8),
            captured: number(12),
            direction: if received { CaptureDirection::Received } else { CaptureDirection::Sent },
        }
    }

    /// The bytes that the record takes in the ring.
    pub(super) fn in_ring(self) -> u64 {
        (HEAD_BYTES as u64 + u64::from(self.captured)).next_multiple_of(8)
    }
}

/// The memory, mapped.
#[derive(Debug)]
pub(super) struct SharedRing {
    memory: KeptSlice,
}

impl SharedRing {
    /// Maps the memory of `file`.
    ///
    /// # Errors
    /// [`RegionError`]: it is no memfd of [`RING_BYTES`].
    pub(super) fn map(file: File) -> Result<SharedRing, RegionError> {
        let memory = GuestMemory::default().with(MappedRegion::new(PLACE, file)?)?;
        SharedRing::of(&Arc::new(memory))
    }

    /// The ring in `memory`.
    pub(super) fn of(memory: &Arc<GuestMemory>) -> Result<SharedRing, RegionError> {
        let whole = KeptSlice::at_user(memory, 0, COUNTERS + RECORDS);
        Ok(SharedRing { memory: whole.ok_or(RegionError::Refused(PLACE))? })
    }

    fn number(&self, offset: usize) -> u64 {
        self.memory.get().load_u64(offset, Ordering::Acquire).unwrap_or(0)
    }

    fn set(&self, offset: usize, value: u64) {
        self.memory.get().store_u64(offset, value, Ordering::Release);
    }

    /// How many bytes were written.
    pub(super) fn written(&self) -> u64 {
        self.number(WRITTEN)
    }

    pub(super) fn set_written(&self, bytes: u64) {
        self.set(WRITTEN, bytes);
    }

    /// How many bytes were read.
    pub(super) fn read(&self) -> u64 {
        self.number(READ)
    }

    pub(super) fn set_read(&self, bytes: u64) {
        self.set(READ, bytes);
    }

    /// How many records were lost.
    pub(super) fn lost(&self) -> u64 {
        self.number(LOST)
    }

    pub(super) fn set_lost(&self, records: u64) {
        self.set(LOST, records);
    }

    /// Whether no more records come.
    pub(super) fn has_ended(&self) -> bool {
        self.number(ENDED) != 0
    }

    pub(super) fn end(&self) {
        self.set(ENDED, 1);
    }

    /// How many bytes the ring has free; 0 where the numbers can't be.
    pub(super) fn room(written: u64, read: u64) -> u64 {
        let unread = written.wrapping_sub(read);
        (RECORDS as u64).saturating_sub(unread)
    }

    /// The pieces of the ring that the `bytes` bytes from position `at` lie in; absent if they are none, or more than the ring has.
    pub(super) fn pieces(&self, at: u64, bytes: usize) -> Option<RingPieces<'_>> {
        if bytes > RECORDS {
            return None;
        }
        let begin = usize::try_from(at % RECORDS as u64).ok()?;
        let records = self.memory.get().skip(COUNTERS)?;
        let first = records.skip(begin)?.until(bytes)?;
        let second = records.until(bytes - first.len());
        Some(RingPieces {
            slices: [first, second.unwrap_or(first)],
            count: 1 + usize::from(second.is_some()),
        })
    }
}

/// One piece of the ring, or two where they go over its end.
pub(super) struct RingPieces<'m> {
    slices: [GuestSlice<'m>; 2],
    count: usize,
}

impl<'m> RingPieces<'m> {
    pub(super) fn as_slice(&self) -> &[GuestSlice<'m>] {
        self.slices.get(..self.count).unwrap_or_default()
    }

    /// Copies the bytes out.
    pub(super) fn read(&self, mut to: &mut [u8]) {
        for slice in self.as_slice() {
            let copied = slice.read(to);
            to = to.get_mut(copied..).unwrap_or_default();
        }
    }
}
