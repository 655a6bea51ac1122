//! A frame on its way from one guest's memory to another's.
//!
//! Invariant: the head is a copy. It is decided upon and it is what the receivers get, so a guest that changes its buffer meanwhile
//! gains nothing. The rest stays in the sender's memory until it is copied to each receiver.

use std::mem::MaybeUninit;

use crate::memory::GuestSlice;
use crate::offload::NetHeader;
use crate::switch::{HEAD_BYTES, TagChange};

/// The destination and source addresses at the start of a frame, in bytes: the place of an 802.1Q tag is behind them.
const ADDRESSES: usize = 12;
/// The bytes of an 802.1Q tag.
const TAG: usize = 4;

/// The most bytes that a frame with its header may have. Longer ones cannot be sent to anybody and are dropped unread.
const MAX_FRAME: usize = 65_535 + 64;

/// Room for the head of one frame, which the frame borrows: a frame is a few words then, and nothing copies the head where it moves.
#[derive(Debug)]
pub(crate) struct HeadSpace([MaybeUninit<u8>; HEAD_BYTES]);

impl HeadSpace {
    pub(crate) fn new() -> HeadSpace {
        HeadSpace([const { MaybeUninit::uninit() }; HEAD_BYTES])
    }
}

/// A frame that a guest sent.
#[derive(Debug)]
pub(crate) struct Frame<'b, 'm> {
    head: &'b [u8],
    /// What is behind the head, in order: one piece, and then more.
    pub(super) rest: Option<GuestSlice<'m>>,
    pub(super) more: &'b [GuestSlice<'m>],
    length: usize,
    header: NetHeader,
}

impl<'b, 'm> Frame<'b, 'm> {
    /// A frame that lies in one piece; absent if it is longer than any can be.
    #[inline(always)]
    pub(crate) fn of_slice(
        slice: GuestSlice<'m>,
        header: NetHeader,
        space: &'b mut HeadSpace,
    ) -> Option<Frame<'b, 'm>> {
        if slice.len() > MAX_FRAME {
            return None;
        }
        let head = slice.read_to(&mut space.0);
        Some(Frame { head, rest: slice.skip(head.len()), more: &[], length: slice.len(), header })
    }

    /// The frame of `length` bytes that begins with `first` and goes on with `more`; absent if it is longer than any can be.
    pub(crate) fn of_pieces(
        length: usize,
        first: GuestSlice<'m>,
        mut more: &'b [GuestSlice<'m>],
        header: NetHeader,
        space: &'b mut HeadSpace,
    ) -> Option<Frame<'b, 'm>> {
        if length > MAX_FRAME {
            return None;
        }
        let (mut head, mut filled) = ([0; HEAD_BYTES], 0);
        let mut rest = Some(first);
        while let Some(piece) = rest.filter(|_| filled < HEAD_BYTES) {
            let taken = piece.read(head.get_mut(filled..).unwrap_or_default());
            filled += taken;
            rest = piece.skip(taken);
            if let (None, Some((next, behind))) = (rest, more.split_first()) {
                (rest, more) = (Some(*next), behind);
            }
        }
        let (head, _) = head.split_at(filled);
        let (space, _) = space.0.split_at_mut(filled);
        Some(Frame { head: space.write_copy_of_slice(head), rest, more, length, header })
    }
}

impl Frame<'_, '_> {
    /// The first bytes, as many as the switch may want to see.
    #[inline]
    pub(crate) fn head(&self) -> &[u8] {
        self.head
    }

    /// What its sender leaves to be done, as it says.
    #[inline(always)]
    pub(crate) fn header(&self) -> NetHeader {
        self.header
    }

    /// Copies the whole frame to `to`, whose length is the frame's. The head is the copy that was decided upon. Nothing stays that was
    /// in `to` before, which was another guest's.
    pub(crate) fn read_whole(&self, to: &mut [u8]) {
        let (head, mut rest) = to.split_at_mut(self.head.len().min(to.len()));
        head.copy_from_slice(&self.head[..head.len()]);
        for slice in self.rest.iter().chain(self.more) {
            let read = slice.read(rest);
            rest = rest.get_mut(read..).unwrap_or_default();
        }
        rest.fill(0);
    }

    /// The whole frame's length in bytes, without the virtio header.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The length in bytes that a receiver gets.
    #[inline]
    pub(crate) fn changed_length(&self, change: TagChange) -> usize {
        match change {
            TagChange::None => self.length,
            TagChange::Push(_) => self.length + TAG,
            TagChange::Pop => self.length.saturating_sub(TAG),
        }
    }

    /// The head that a receiver gets, written into `space`.
    pub(super) fn changed_head<'s>(&self, change: TagChange, space: &'s mut ChangedHead) -> &'s [u8] {
        let head = self.head();
        let Some((addresses, behind)) = head.split_at_checked(ADDRESSES) else {
            // Too short for a tag: the switch has no such frame.
            return space.fill(&[head]);
        };
        match change {
            TagChange::None => space.fill(&[head]),
            TagChange::Push(vlan) => {
                let [high, low] = vlan.to_be_bytes();
                space.fill(&[addresses, &[0x81, 0x00, high, low], behind])
            }
            TagChange::Pop => space.fill(&[addresses, behind.get(TAG..).unwrap_or_default()]),
        }
    }
}

/// Room for a head and a tag.
pub(super) struct ChangedHead {
    bytes: [u8; HEAD_BYTES + TAG],
}

impl ChangedHead {
    pub(super) fn new() -> ChangedHead {
        ChangedHead { bytes: [0; HEAD_BYTES + TAG] }
    }

    fn fill(&mut self, parts: &[&[u8]]) -> &[u8] {
        let mut at = 0;
        for part in parts {
            if let Some(space) = self.bytes.get_mut(at..at + part.len()) {
                space.copy_from_slice(part);
                at += part.len();
            }
        }
        &self.bytes[..at]
    }
}
