//! Work that guests leave to their network device: checksums, and cutting long TCP frames into segments (virtio 1.2, section 5.1.6).
//!
//! - what a guest and its port have agreed on: [`Offloads`]
//! - the header before a frame, as the guest wrote it: [`NetHeader`]
//! - what it asks for, checked against the frame: [`Offload`]
//! - doing it in software, for a receiver that did not agree on it: [`PartialChecksum`], [`TcpFrame`]
//! - the sums: [`internet_checksum`]
//!
//! Invariants: a header is read once and believed in nothing: where a segment's headers end is read in the frame itself, and what does not
//! agree with the frame is a [`BadHeader`]. Nothing that the switch has judged is changed: a checksum is never put before the end of the IP
//! header, nor into a message that may be neighbour discovery. One frame has 512 segments at most.
//!
//! The module is pure: it works on bytes that it is given.

mod internet_checksum;
mod negotiated_offloads;
mod partial_checksum;
mod tcp_segmentation;
mod virtio_net_header;

#[cfg(test)]
mod offload_tests;
#[cfg(test)]
#[path = "../../tests/guest/packets.rs"]
pub(crate) mod test_packets;

pub(crate) use negotiated_offloads::Offloads;
pub(crate) use partial_checksum::PartialChecksum;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use tcp_segmentation::MOST_SEGMENTS;
pub(crate) use tcp_segmentation::TcpFrame;
pub(crate) use virtio_net_header::{NET_HEADER, NetHeader};

use crate::switch::{FrameSize, TagChange};

/// The longest frame that a guest may leave to be cut: the longest IPv6 packet, and Ethernet header and tags before it.
pub(crate) const LONGEST: usize = 65_535 + 40 + 22;

/// A header that does not agree with its frame, or asks for what was not agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadHeader;

/// What a guest leaves to be done to a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offload {
    /// The sum of a part of the frame is to be put into it.
    Checksum(PartialChecksum),
    /// It is to be cut into segments, each with its own headers and sums.
    Segments(TcpFrame),
}

impl Offload {
    /// What `header` asks for. `agreed` is what the sender may leave to us, `head` the first bytes of its frame and `length` how many bytes
    /// that has in all. Absent: nothing.
    ///
    /// # Errors
    /// [`BadHeader`]: the frame is to be dropped.
    pub(crate) fn of(
        header: NetHeader,
        agreed: Offloads,
        head: &[u8],
        length: usize,
    ) -> Result<Option<Offload>, BadHeader> {
        if !agreed.checksum {
            return Ok(None);
        }
        if header.is_segmented() {
            return TcpFrame::of(header, agreed, head, length).map(|tcp| Some(Offload::Segments(tcp)));
        }
        if !header.needs_checksum() {
            return Ok(None);
        }
        PartialChecksum::of(header, head, length).map(|checksum| Some(Offload::Checksum(checksum)))
    }

    /// How long the frame is for the switch: by its segments, as they would be on a wire.
    pub(crate) fn size(&self, length: usize) -> FrameSize {
        match self {
            Offload::Checksum(_) => FrameSize::whole(length),
            Offload::Segments(tcp) => tcp.size(),
        }
    }

    /// Whether a guest that agreed on this gets the frame as it is, with the work left to it.
    pub(crate) fn is_known_to(&self, agreed: Offloads) -> bool {
        match self {
            Offload::Checksum(_) => agreed.checksum,
            Offload::Segments(tcp) => agreed.has(tcp),
        }
    }

    /// The header for such a guest, which gets the frame with this change of its tag. All of it is what was read in the frame.
    pub(crate) fn header(&self, change: TagChange) -> [u8; NET_HEADER] {
        match self {
            Offload::Checksum(checksum) => checksum.header().bytes(0, change),
            Offload::Segments(tcp) => tcp.header().bytes(tcp.headers(), change),
        }
    }
}
