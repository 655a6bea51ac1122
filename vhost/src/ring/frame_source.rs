//! Frames that a guest sent: the guest's transmit queue.
//!
//! Invariant: what was looked at in a burst is read from the ring once; a chain is given back only after its frame was copied.

use super::chain::{Direction, Pieces, single_buffer};
use super::layout::Descriptor;
use super::{Frame, RingFault, SplitRing};
use crate::memory::{GuestMemory, GuestSlice};
use crate::switch::HEAD_BYTES;

/// The most frames that are taken from one ring before the next ring's turn.
pub(crate) const BURST: u16 = 32;

/// The most bytes that a frame with its header may have. Longer ones cannot be sent to anybody and are dropped unread.
const MAX_FRAME: usize = 65_535 + 64;

/// A burst of frames of one ring. It holds what was read of the ring, and no reference to it.
#[derive(Debug)]
pub(crate) struct FrameSource<'m> {
    memory: &'m GuestMemory,
    heads: [(u16, Option<GuestSlice<'m>>); BURST as usize],
    count: usize,
    pieces: Pieces<'m>,
}

impl<'m> FrameSource<'m> {
    /// Looks at up to [`BURST`] frames that the guest has sent. `memory` is the ring's.
    ///
    /// # Errors
    /// What is wrong with the ring's indices.
    #[inline]
    pub(crate) fn look(ring: &mut SplitRing, memory: &'m GuestMemory) -> Result<FrameSource<'m>, RingFault> {
        let wanted = ring.ready(1)?.min(BURST);
        let count = usize::from(wanted);
        let mut source =
            FrameSource { memory, heads: [(0, None); BURST as usize], count, pieces: Pieces::default() };
        for (ahead, space) in (0..wanted).zip(source.heads.iter_mut()) {
            let head = ring.head(ahead)?;
            let descriptor: Descriptor = ring.descriptor(head)?;
            let single = single_buffer(ring, memory, descriptor, Direction::Read);
            if let Some(slice) = &single {
                slice.prefetch();
            }
            *space = (head, single);
        }
        Ok(source)
    }

    /// How many frames there are.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Frame `n` of the burst; absent if it has no byte or far too many.
    ///
    /// # Errors
    /// What is wrong with its chain.
    #[inline]
    pub(crate) fn frame(&mut self, n: usize, ring: &SplitRing) -> Result<Option<Frame<'_, 'm>>, RingFault> {
        let header = ring.features().header;
        let (head, single) = self.heads.get(n).copied().unwrap_or((0, None));
        match single {
            Some(slice) => Ok(slice.skip(header).and_then(|slice| frame_of(slice.len(), slice, &[]))),
            None => self.chained_frame(head, header, ring),
        }
    }

    fn chained_frame(
        &mut self,
        head: u16,
        header: usize,
        ring: &SplitRing,
    ) -> Result<Option<Frame<'_, 'm>>, RingFault> {
        self.pieces.clear();
        self.pieces.add_chain(ring, self.memory, head, Direction::Read)?;
        let mut skipped = header;
        for (at, piece) in self.pieces.slices.iter().enumerate() {
            if let Some(first) = piece.skip(skipped) {
                let length = self.pieces.bytes - header;
                return Ok(frame_of(length, first, &self.pieces.slices[at + 1..]));
            }
            skipped -= piece.len();
        }
        Ok(None)
    }

    /// Gives the chain of frame `n` back: frames are given back in order, each once.
    #[inline]
    pub(crate) fn give_back(&self, n: usize, ring: &mut SplitRing) {
        if let Some((head, _)) = self.heads.get(n) {
            ring.use_next(*head, 0);
        }
    }
}

/// The frame of `length` bytes that begins with `first` and goes on with `more`.
#[inline]
fn frame_of<'b, 'm>(
    length: usize,
    first: GuestSlice<'m>,
    more: &'b [GuestSlice<'m>],
) -> Option<Frame<'b, 'm>> {
    if length > MAX_FRAME {
        return None;
    }
    let mut frame = Frame { head: [0; HEAD_BYTES], head_bytes: 0, rest: None, more, length };
    let mut piece = first;
    loop {
        let taken = piece.read(frame.head.get_mut(frame.head_bytes..).unwrap_or_default());
        frame.head_bytes += taken;
        frame.rest = piece.skip(taken);
        match frame.more.split_first() {
            Some((next, more)) if frame.rest.is_none() => (piece, frame.more) = (*next, more),
            _ => return Some(frame),
        }
        if frame.head_bytes == HEAD_BYTES {
            frame.rest = Some(piece);
            return Some(frame);
        }
    }
}
