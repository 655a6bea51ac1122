//! Frames that a guest sent: the guest's transmit queue.
//!
//! Invariant: what was looked at in a burst is read from the ring once; a chain is given back only after its frame was copied.

use super::chain::{Direction, Pieces, single_buffer};
use super::split_ring::{BURST, Entry, LONG, MOST_FETCHED};
use super::{Frame, HeadSpace, RingFault, RingFeatures, SplitRing};
use crate::memory::{CACHE_LINE, GuestMemory, GuestSlice};
use crate::offload::{NET_HEADER, NetHeader};

/// The descriptors with which a burst ends, of frames that have several, at their sender or at a receiver: two of each frame of a burst. Each
/// costs as much as a short frame in one piece. So does a copy of a flooded frame, which counts as one.
pub(crate) const BURST_DESCRIPTORS: usize = 2 * BURST as usize;

/// Has the processor fetch the first bytes of a frame, which the switch looks at, and the header before it if that is read.
#[inline]
fn fetch_start(features: RingFeatures) -> impl Fn(GuestSlice<'_>) {
    let RingFeatures { header, sends, .. } = features;
    move |buffer| {
        if sends.checksum {
            buffer.prefetch(0);
        }
        buffer.prefetch(header);
        if buffer.len() > header + CACHE_LINE {
            buffer.prefetch(header + CACHE_LINE);
        }
    }
}

/// What the header at the start of `slice` says. Each byte is read once.
#[inline(always)]
fn net_header(slice: GuestSlice<'_>) -> NetHeader {
    match slice.load::<u64>(0) {
        Some(first) if NetHeader::says_something(first) => whole_header(slice, first),
        _ => NetHeader::PLAIN,
    }
}

#[inline(never)]
fn whole_header(slice: GuestSlice<'_>, first: u64) -> NetHeader {
    NetHeader::new(first, slice.load(8).unwrap_or(0))
}

/// The same of a header that lies in several pieces.
fn net_header_of_pieces(pieces: &[GuestSlice<'_>]) -> NetHeader {
    let (mut bytes, mut filled) = ([0; NET_HEADER], 0);
    for piece in pieces {
        filled += piece.read(bytes.get_mut(filled..).unwrap_or_default());
    }
    let [a, b, c, d, e, f, g, h, i, j] = bytes;
    let first = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    if NetHeader::says_something(first) {
        NetHeader::new(first, u16::from_le_bytes([i, j]))
    } else {
        NetHeader::PLAIN
    }
}

/// What becomes of each frame of a burst.
pub(crate) trait FrameTaker {
    /// Does with a frame what is to be done.
    fn take(&mut self, frame: &Frame<'_, '_>);
}

impl<F: FnMut(&Frame<'_, '_>)> FrameTaker for F {
    fn take(&mut self, frame: &Frame<'_, '_>) {
        self(frame);
    }
}

/// A burst of frames of one ring. It holds what was read of the ring, and no reference to it.
#[derive(Debug)]
pub(crate) struct FrameSource<'m> {
    memory: &'m GuestMemory,
    /// The index of the first in the available ring.
    first: u16,
    count: usize,
    /// The descriptors of its frames that have several, of those that were looked at, and of receivers' buffers for them; and the copies of
    /// flooded ones.
    descriptors: usize,
    pieces: Pieces<'m>,
    /// Where the head of the frame is that is looked at.
    space: HeadSpace,
}

impl<'m> FrameSource<'m> {
    /// Looks at up to [`BURST`] frames that the guest has sent. `memory` is the ring's.
    ///
    /// # Errors
    /// What is wrong with the ring's indices.
    #[inline]
    pub(crate) fn look(ring: &mut SplitRing, memory: &'m GuestMemory) -> Result<FrameSource<'m>, RingFault> {
        let count = ring.read_ahead(BURST, fetch_start(ring.features()))?;
        let first = ring.position();
        Ok(FrameSource {
            memory,
            first,
            count: usize::from(count),
            descriptors: 0,
            pieces: Pieces::default(),
            space: HeadSpace::new(),
        })
    }

    /// Looks at frames behind a burst that are known to be there, so that their bytes are on their way until their turn comes.
    #[inline]
    pub(crate) fn look_further(ring: &mut SplitRing) {
        ring.read_ahead_of_known(fetch_start(ring.features()));
    }

    /// How many frames there are. Fewer, once one was looked at that ends the burst.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Ends the burst with frame `n`: the others are there in the next one.
    #[inline]
    pub(crate) fn end_with(&mut self, n: usize) {
        self.count = n + 1;
    }

    /// Frame `n` has cost so many descriptors, or copies, more. A burst of frames in as many pieces as there may be, or to as many ports,
    /// would be hundreds of times as long as a usual one, and it is the other rings that wait: enough of them end it.
    #[inline]
    pub(crate) fn count_descriptors(&mut self, n: usize, more: usize) {
        self.descriptors += more;
        if self.descriptors >= BURST_DESCRIPTORS {
            self.end_with(n);
        }
    }

    /// Has `taker` see frame `n` of the burst; false, and it is not called, if the frame has no byte or far too many. `OFFLOADS` is whether its
    /// header may say anything.
    ///
    /// A frame in one piece is made where it is taken and never moved: moved, it is written word by word and read in larger units, and
    /// such a read waits for the writes.
    ///
    /// # Errors
    /// What is wrong with its chain.
    #[inline(always)]
    pub(crate) fn frame<const OFFLOADS: bool>(
        &mut self,
        n: usize,
        ring: &SplitRing,
        taker: &mut impl FrameTaker,
    ) -> Result<bool, RingFault> {
        let single = ring
            .entry_in_advance(self.index(n))
            .and_then(|entry| single_buffer(ring, self.memory, entry.descriptor, Direction::Read));
        let Some(slice) = single else { return self.chained_frame(n, ring, taker) };
        if slice.len() > LONG {
            self.fetch_whole(n + 1, ring);
        }
        let said = if OFFLOADS { net_header(slice) } else { NetHeader::PLAIN };
        let Some(slice) = slice.skip(ring.features().header) else { return Ok(false) };
        let Some(frame) = Frame::of_slice(slice, said, &mut self.space) else { return Ok(false) };
        taker.take(&frame);
        Ok(true)
    }

    /// Has the processor fetch what is behind the start of frame `n`, if it lies in one piece.
    #[inline]
    fn fetch_whole(&self, n: usize, ring: &SplitRing) {
        let Some(Entry { descriptor, .. }) = ring.entry_in_advance(self.index(n)) else { return };
        if let Some(slice) = single_buffer(ring, self.memory, descriptor, Direction::Read) {
            let start = ring.features().header + 2 * CACHE_LINE;
            (start..slice.len().min(MOST_FETCHED)).step_by(CACHE_LINE).for_each(|at| slice.prefetch(at));
        }
    }

    /// The same of a frame that may lie in several pieces.
    #[inline(never)]
    fn chained_frame(
        &mut self,
        n: usize,
        ring: &SplitRing,
        taker: &mut dyn FrameTaker,
    ) -> Result<bool, RingFault> {
        let (header, Entry { head, .. }) = (ring.features().header, ring.entry(self.index(n))?);
        self.pieces.clear();
        self.pieces.add_chain(ring, self.memory, head, Direction::Read)?;
        self.count_descriptors(n, self.pieces.descriptors());
        let may_say = ring.features().sends.checksum;
        let said = if may_say { net_header_of_pieces(&self.pieces.slices) } else { NetHeader::PLAIN };
        let mut skipped = header;
        for (at, piece) in self.pieces.slices.iter().enumerate() {
            if let Some(first) = piece.skip(skipped) {
                let length = self.pieces.bytes - header;
                let more = &self.pieces.slices[at + 1..];
                let frame = Frame::of_pieces(length, first, more, said, &mut self.space);
                return Ok(frame.inspect(|frame| taker.take(frame)).is_some());
            }
            skipped -= piece.len();
        }
        Ok(false)
    }

    /// Gives the chain of frame `n` back: frames are given back in order, each once.
    #[inline(always)]
    pub(crate) fn give_back(&self, n: usize, ring: &mut SplitRing) {
        // An entry that could not be read has ended the burst.
        if let Ok(Entry { head, .. }) = ring.entry(self.index(n)) {
            ring.use_next(head, 0);
        }
    }

    #[inline]
    fn index(&self, n: usize) -> u16 {
        self.first.wrapping_add(u16::try_from(n).unwrap_or(u16::MAX))
    }
}
