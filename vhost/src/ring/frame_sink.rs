//! Frames that a guest gets: the guest's receive queue.
//!
//! Invariant: a frame is put into the guest's buffers whole or not at all; buffers that are not used stay available.

use super::chain::{Direction, Pieces, single_buffer};
use super::frame::ChangedHead;
use super::{Frame, RingFault, SplitRing};
use crate::memory::GuestSlice;
use crate::switch::TagChange;

/// The longest header before a frame, in bytes (5.1.6: `virtio_net_hdr` with `num_buffers`).
const HEADER: usize = 12;

/// Puts frames into a guest's receive queue.
pub(crate) struct FrameSink;

impl FrameSink {
    /// Copies `frame` into the next free buffers of `ring`; false if there are too few. The guest is not told yet.
    ///
    /// # Errors
    /// What is wrong with the ring.
    #[inline]
    pub(crate) fn put(
        ring: &mut SplitRing,
        frame: &Frame<'_, '_>,
        change: TagChange,
    ) -> Result<bool, RingFault> {
        if ring.ready(1)? == 0 {
            return Ok(false);
        }
        let head = ring.head(0)?;
        let descriptor = ring.descriptor(head)?;
        let total = ring.features().header + frame.changed_length(change);
        match single_buffer(ring, ring.memory(), descriptor, Direction::Write) {
            Some(slice) if slice.len() >= total => {
                Writer::new(&[slice]).write_frame(frame, change, header(1, ring));
                ring.use_next(head, u32::try_from(total).unwrap_or(u32::MAX));
                Ok(true)
            }
            _ => put_chained(ring, frame, change, total),
        }
    }
}

/// The header before a frame: nothing but the number of buffers, since no offload is agreed on.
#[inline]
fn header(buffers: u16, ring: &SplitRing) -> ([u8; HEADER], usize) {
    let mut bytes = [0; HEADER];
    bytes[10..].copy_from_slice(&buffers.to_le_bytes());
    (bytes, ring.features().header)
}

/// One chain that takes a part of a frame: where it begins, and how many bytes it has.
struct Part {
    head: u16,
    bytes: usize,
}

fn put_chained(
    ring: &mut SplitRing,
    frame: &Frame<'_, '_>,
    change: TagChange,
    total: usize,
) -> Result<bool, RingFault> {
    let mut pieces = Pieces::default();
    let mut parts = Vec::new();
    while pieces.bytes < total {
        let ahead = u16::try_from(parts.len()).unwrap_or(u16::MAX);
        let one_is_enough = !ring.features().mergeable && ahead > 0;
        if one_is_enough || ring.ready(ahead.saturating_add(1))? <= ahead {
            return Ok(false);
        }
        let (head, before) = (ring.head(ahead)?, pieces.bytes);
        pieces.add_chain(ring, ring.memory(), head, Direction::Write)?;
        if pieces.bytes == before {
            return Err(RingFault::NoBytes);
        }
        parts.push(Part { head, bytes: pieces.bytes - before });
    }
    let buffers = u16::try_from(parts.len()).unwrap_or(u16::MAX);
    Writer::new(&pieces.slices).write_frame(frame, change, header(buffers, ring));
    let mut left = total;
    for part in parts {
        let bytes = part.bytes.min(left);
        left -= bytes;
        ring.use_next(part.head, u32::try_from(bytes).unwrap_or(u32::MAX));
    }
    Ok(true)
}

/// Writes into several pieces of guest memory as if they were one. What is past the last one is left out.
struct Writer<'p, 'm> {
    space: Option<GuestSlice<'m>>,
    more: &'p [GuestSlice<'m>],
}

impl<'p, 'm> Writer<'p, 'm> {
    #[inline]
    fn new(pieces: &'p [GuestSlice<'m>]) -> Writer<'p, 'm> {
        match pieces.split_first() {
            Some((first, more)) => Writer { space: Some(*first), more },
            None => Writer { space: None, more: &[] },
        }
    }

    #[inline]
    fn write_frame(&mut self, frame: &Frame<'_, '_>, change: TagChange, header: ([u8; HEADER], usize)) {
        self.write(header.0.get(..header.1).unwrap_or_default());
        if change == TagChange::None {
            self.write(frame.head());
        } else {
            let mut space = ChangedHead::new();
            self.write(frame.changed_head(change, &mut space));
        }
        for slice in frame.rest.iter().chain(frame.more) {
            self.copy(*slice);
        }
    }

    #[inline]
    fn write(&mut self, mut bytes: &[u8]) {
        while let Some(space) = self.space.filter(|_| !bytes.is_empty()) {
            let written = space.write(bytes);
            bytes = bytes.get(written..).unwrap_or_default();
            self.advance(space, written);
        }
    }

    #[inline]
    fn copy(&mut self, from: GuestSlice<'_>) {
        let mut left = Some(from);
        while let (Some(space), Some(from)) = (self.space, left) {
            let copied = space.copy_from(&from);
            left = from.skip(copied);
            self.advance(space, copied);
        }
    }

    #[inline]
    fn advance(&mut self, space: GuestSlice<'m>, bytes: usize) {
        self.space = space.skip(bytes);
        if let (None, Some((next, more))) = (self.space, self.more.split_first()) {
            (self.space, self.more) = (Some(*next), more);
        }
    }
}
