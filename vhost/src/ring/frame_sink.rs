//! Frames that a guest gets: the guest's receive queue.
//!
//! Invariant: a frame is put into the guest's buffers whole or not at all; buffers that are not used stay available.

use super::chain::{Direction, Pieces, single_buffer};
use super::frame::ChangedHead;
use super::split_ring::{BURST, Entry, LONG, MOST_FETCHED};
use super::{Frame, RingFault, SplitRing};
use crate::memory::{CACHE_LINE, GuestSlice};
use crate::offload::NET_HEADER;
use crate::switch::TagChange;

/// The longest header before a frame, in bytes (5.1.6: `virtio_net_hdr` with `num_buffers`).
const HEADER: usize = 12;

/// Puts frames into a guest's receive queue.
pub(crate) struct FrameSink;

impl FrameSink {
    /// Copies `frame` into the next free buffers of `ring`; false if there are too few. The guest is not told yet. `descriptors` is raised by
    /// those that were looked at, where a frame takes more than one.
    ///
    /// # Errors
    /// What is wrong with the ring.
    #[inline(always)]
    pub(crate) fn put(
        ring: &mut SplitRing,
        frame: &Frame<'_, '_>,
        change: TagChange,
        descriptors: &mut usize,
    ) -> Result<bool, RingFault> {
        if !ring.has_read_ahead() && FrameSink::prepare(ring)? == 0 {
            return Ok(false);
        }
        let total = ring.features().header + frame.changed_length(change);
        // One that could not be read ahead is broken: what comes of it is told below.
        if let Some(Entry { head, descriptor }) = ring.entry_in_advance(ring.position())
            && let Some(slice) = single_buffer(ring, ring.memory(), descriptor, Direction::Write)
            && slice.len() >= total
        {
            if total > LONG {
                fetch_whole(ring, total);
            }
            write_single(slice, ring.features().header, frame, change);
            ring.use_next(head, u32::try_from(total).unwrap_or(u32::MAX));
            return Ok(true);
        }
        put_chained(ring, frame, change, [0; NET_HEADER], descriptors)
    }

    /// The same of a frame that leaves work to the guest, as `header` tells it. Also false if the buffers are too small.
    ///
    /// # Errors
    /// As [`FrameSink::put`].
    pub(crate) fn put_offloaded(
        ring: &mut SplitRing,
        frame: &Frame<'_, '_>,
        change: TagChange,
        header: [u8; NET_HEADER],
        descriptors: &mut usize,
    ) -> Result<bool, RingFault> {
        if !ring.has_read_ahead() && FrameSink::prepare(ring)? == 0 {
            return Ok(false);
        }
        let features = ring.features();
        let total = features.header + frame.changed_length(change);
        let Entry { head, descriptor } = ring.entry(ring.position())?;
        let single = single_buffer(ring, ring.memory(), descriptor, Direction::Write);
        if let Some(slice) = single.filter(|slice| slice.len() >= total) {
            Writer::new(&[slice]).write_frame(frame, change, header_of(header, 1, features.header));
            ring.use_next(head, u32::try_from(total).unwrap_or(u32::MAX));
            return Ok(true);
        }
        match put_chained(ring, frame, change, header, descriptors) {
            // Hundreds of small buffers are no fault of a guest whose other frames are short.
            Err(RingFault::LongChain) => Ok(false),
            put => put,
        }
    }

    /// Looks at the buffers for a burst, and answers how many there are.
    #[inline]
    fn prepare(ring: &mut SplitRing) -> Result<u16, RingFault> {
        ring.read_ahead(BURST, fetch_start(ring.features().header))
    }

    /// Looks at buffers that are known to be there, so that their memory is on its way until the next burst.
    #[inline]
    pub(crate) fn look_further(ring: &mut SplitRing) {
        ring.read_ahead_of_known(fetch_start(ring.features().header));
    }

    /// Copies `frame` into `space`, without a header, as far as it fits.
    #[inline]
    pub(crate) fn copy(frame: &Frame<'_, '_>, change: TagChange, space: GuestSlice<'_>) {
        Writer::new(&[space]).write_frame(frame, change, ([0; HEADER], 0));
    }
}

/// Copies `head` and then `frame`, with its tag changed, into `pieces`, as much as they have room for.
pub(crate) fn copy_with_head(
    pieces: &[GuestSlice<'_>],
    head: &[u8],
    frame: &Frame<'_, '_>,
    change: TagChange,
) {
    let mut writer = Writer::new(pieces);
    writer.write(head);
    writer.write_frame(frame, change, ([0; HEADER], 0));
}

/// Has the processor fetch a header to compare it, and the first bytes behind it to write them.
#[inline]
fn fetch_start(header: usize) -> impl Fn(GuestSlice<'_>) {
    move |buffer| {
        buffer.prefetch(0);
        buffer.prefetch_to_write(header);
    }
}

/// Has the processor fetch the buffer behind the next one, as much of it as a frame of `total` bytes takes.
#[inline]
fn fetch_whole(ring: &SplitRing, total: usize) {
    let Some(Entry { descriptor, .. }) = ring.entry_in_advance(ring.position().wrapping_add(1)) else {
        return;
    };
    if let Some(slice) = single_buffer(ring, ring.memory(), descriptor, Direction::Write) {
        let start = ring.features().header + CACHE_LINE;
        let end = slice.len().min(total).min(MOST_FETCHED);
        (start..end).step_by(CACHE_LINE).for_each(|at| slice.prefetch_to_write(at));
    }
}

/// Writes a frame into a buffer that has room for it.
#[inline(always)]
fn write_single(slice: GuestSlice<'_>, header: usize, frame: &Frame<'_, '_>, change: TagChange) {
    // The header is nearly always the same, and what is not written to stays in both processors' caches.
    let is_there = slice.load::<u64>(0) == Some(0)
        && if header == HEADER {
            slice.load::<u32>(8) == Some(1_u32 << 16)
        } else {
            slice.load::<u16>(8) == Some(0)
        };
    if !is_there {
        let (bytes, length) = header_of([0; NET_HEADER], 1, header);
        slice.write(bytes.get(..length).unwrap_or_default());
    }
    let Some(space) = slice.skip(header) else { return };
    if change != TagChange::None || !frame.more.is_empty() {
        Writer::new(&[space]).write_frame(frame, change, ([0; HEADER], 0));
        return;
    }
    let written = space.write(frame.head());
    if let (Some(rest), Some(space)) = (frame.rest, space.skip(written)) {
        space.copy_from(&rest);
    }
}

/// The header before a frame: what it says, and the number of buffers.
#[inline]
fn header_of(said: [u8; NET_HEADER], buffers: u16, length: usize) -> ([u8; HEADER], usize) {
    let mut bytes = [0; HEADER];
    bytes[..NET_HEADER].copy_from_slice(&said);
    bytes[NET_HEADER..].copy_from_slice(&buffers.to_le_bytes());
    (bytes, length)
}

/// One chain that takes a part of a frame: where it begins, and how many bytes it has.
struct Part {
    head: u16,
    bytes: usize,
}

#[inline(never)]
fn put_chained(
    ring: &mut SplitRing,
    frame: &Frame<'_, '_>,
    change: TagChange,
    header: [u8; NET_HEADER],
    descriptors: &mut usize,
) -> Result<bool, RingFault> {
    let total = ring.features().header + frame.changed_length(change);
    let mut pieces = Pieces::default();
    let mut parts = Vec::new();
    while pieces.bytes < total {
        let ahead = u16::try_from(parts.len()).unwrap_or(u16::MAX);
        let one_is_enough = !ring.features().mergeable && ahead > 0;
        if one_is_enough || ring.ready(ahead.saturating_add(1))? <= ahead {
            return Ok(false);
        }
        let (head, before, seen) = (ring.head(ahead)?, pieces.bytes, pieces.descriptors());
        let added = pieces.add_chain(ring, ring.memory(), head, Direction::Write);
        *descriptors += pieces.descriptors() - seen;
        added?;
        if pieces.bytes == before {
            return Err(RingFault::NoBytes);
        }
        parts.push(Part { head, bytes: pieces.bytes - before });
    }
    let buffers = u16::try_from(parts.len()).unwrap_or(u16::MAX);
    Writer::new(&pieces.slices).write_frame(
        frame,
        change,
        header_of(header, buffers, ring.features().header),
    );
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
