//! A frame on its way from one guest's memory to another's.
//!
//! Invariant: the head is a copy. It is decided upon and it is what the receivers get, so a guest that changes its buffer meanwhile
//! gains nothing. The rest stays in the sender's memory until it is copied to each receiver.

use crate::memory::GuestSlice;
use crate::switch::{HEAD_BYTES, TagChange};

/// The destination and source addresses at the start of a frame, in bytes: the place of an 802.1Q tag is behind them.
const ADDRESSES: usize = 12;
/// The bytes of an 802.1Q tag.
const TAG: usize = 4;

/// A frame that a guest sent.
#[derive(Debug)]
pub(crate) struct Frame<'b, 'm> {
    pub(super) head: [u8; HEAD_BYTES],
    pub(super) head_bytes: usize,
    /// What is behind the head, in order: one piece, and then more.
    pub(super) rest: Option<GuestSlice<'m>>,
    pub(super) more: &'b [GuestSlice<'m>],
    pub(super) length: usize,
}

impl Frame<'_, '_> {
    /// The first bytes, as many as the switch may want to see.
    #[inline]
    pub(crate) fn head(&self) -> &[u8] {
        self.head.get(..self.head_bytes).unwrap_or_default()
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
