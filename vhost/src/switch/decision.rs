//! What the switch says of a frame, and of the addresses that it has learnt. Values only.

use std::sync::Arc;

use fairlead_host::Mac;

use crate::port::DropReason;

/// A port of one switch. The number of a removed port is given to a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortIndex(pub u16);

/// A time in milliseconds since the data plane was started. It never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Coarse(pub u64);

impl Coarse {
    /// Whole seconds since the start.
    pub(super) fn seconds(self) -> u32 {
        u32::try_from(self.0 / 1000).unwrap_or(u32::MAX)
    }
}

/// What is to be done with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It goes to this port alone, with this change of its tag.
    To(PortIndex, TagChange),
    /// It goes to every port that [`Switch::flood_to`](super::Switch::flood_to) answers for it.
    Flood(FloodedFrame),
    /// It goes nowhere.
    Drop(DropReason),
    /// It is for this port alone, which may not get it: it goes nowhere.
    Withheld(PortIndex, DropReason),
}

/// What happens to a frame's 802.1Q tag before one receiver gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagChange {
    /// The receiver gets the frame as it is.
    None,
    /// A tag of this VLAN (1 to 4094), priority 0, is put between the source address and the EtherType: 4 bytes more.
    Push(u16),
    /// The tag behind the source address is taken out: 4 bytes fewer.
    Pop,
}

/// How long a frame is. One that is to be cut into segments is as long as they are on a wire, each with its headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameSize {
    /// The bytes of the frame, or of the longest segment.
    pub longest: usize,
    /// The bytes of all segments.
    pub bytes: usize,
    /// How many segments it has, at least one.
    pub segments: u16,
}

impl FrameSize {
    /// A frame of so many bytes that is sent as it is.
    #[inline(always)]
    pub fn whole(bytes: usize) -> FrameSize {
        FrameSize { longest: bytes, bytes, segments: 1 }
    }
}

/// What the switch needs to know of a frame in order to name its receivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FloodedFrame {
    /// The VLAN that the frame is in.
    pub(super) vlan: super::vlan_membership::Vlan,
    /// The tags that the frame carries.
    pub(super) tags: super::frame_head::Tags,
    /// How many segments it has.
    pub(super) segments: u16,
    /// The length in bytes without Ethernet header and tags, of the longest segment.
    pub(super) payload: usize,
    /// The bytes of the frame, or of all segments.
    pub(super) bytes: usize,
    /// When it was decided on.
    pub(super) now: Coarse,
}

/// An address that a frame came from, as one thread's switch tells it to the others'.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// The port behind which it is.
    pub port: PortIndex,
    /// Its VLAN above the 48 bits of the address.
    pub address: u64,
}

/// An address that the switch knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LearntAddress {
    /// The network.
    pub network: Arc<str>,
    /// The VLAN; absent for frames without a tag. A port's own address is told once: with the VLAN of its frames without a tag, if they
    /// are in one.
    pub vlan: Option<u16>,
    /// The address.
    pub mac: Mac,
    /// The port behind which it is.
    pub port: PortIndex,
    /// Seconds since a frame came from it, give or take one; 0 for a port's own address, which does not age.
    pub age_s: u64,
}
