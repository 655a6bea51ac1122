//! `virtio_net_hdr`: what is before each frame in a ring (5.1.6), without the number of buffers.

use crate::switch::TagChange;

/// How many bytes it has.
pub(crate) const NET_HEADER: usize = 10;

/// VIRTIO_NET_HDR_F_NEEDS_CSUM. The other flags are a device's, and a driver that sets one is not heard.
const NEEDS_CHECKSUM: u8 = 1;
/// VIRTIO_NET_HDR_GSO_TCPV4
pub(super) const TCP_V4: u8 = 1;
/// VIRTIO_NET_HDR_GSO_TCPV6
pub(super) const TCP_V6: u8 = 4;
/// VIRTIO_NET_HDR_GSO_ECN, beside one of these.
pub(super) const ECN: u8 = 0x80;

/// The bytes of an 802.1Q tag.
const TAG: u16 = 4;

/// Flags and the kind of segments, in the first eight bytes: where all of them are 0, a header says nothing.
const SAYS_SOMETHING: u64 = 0xffff;

/// A header, in one word: it has nothing of a header but what is needed, and moves in a register.
///
/// By bytes, the lowest first: flags, kind of segments, where the sum goes behind `start` (two bytes), bytes of a segment (two), where the
/// sum starts (two). In memory the second pair is the length of the headers, which a device is not to believe (5.1.6.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NetHeader(u64);

impl NetHeader {
    /// A header that says nothing.
    pub(crate) const PLAIN: NetHeader = NetHeader(0);

    /// True if the first eight bytes of a header say anything.
    #[inline(always)]
    pub(crate) fn says_something(first: u64) -> bool {
        first & SAYS_SOMETHING != 0
    }

    /// The header with these first eight bytes, and this number behind them.
    pub(crate) fn new(first: u64, checksum_offset: u16) -> NetHeader {
        let [flags, kind, _, _, rest @ ..] = first.to_le_bytes();
        let [offset, offset_high] = checksum_offset.to_le_bytes();
        let [size, size_high, start, start_high] = rest;
        NetHeader(u64::from_le_bytes([flags, kind, offset, offset_high, size, size_high, start, start_high]))
    }

    /// The header that asks for a sum from byte `start`, put `offset` bytes behind that.
    pub(super) fn for_checksum(start: u16, offset: u16) -> NetHeader {
        NetHeader(u64::from(NEEDS_CHECKSUM) | u64::from(offset) << 16 | u64::from(start) << 48)
    }

    /// The same that asks for segments, of `kind` and with up to `size` bytes of data.
    pub(super) fn with_segments(self, kind: u8, size: u16) -> NetHeader {
        NetHeader(self.0 | u64::from(kind) << 8 | u64::from(size) << 32)
    }

    /// The header as one number, for whoever hands it on.
    #[inline(always)]
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// The header that was handed on as this number.
    #[inline(always)]
    pub(crate) fn of_number(number: u64) -> NetHeader {
        NetHeader(number)
    }

    /// True for a header that says nothing.
    #[inline(always)]
    pub(crate) fn is_plain(self) -> bool {
        self.0 == 0
    }

    pub(super) fn needs_checksum(self) -> bool {
        self.0.to_le_bytes()[0] & NEEDS_CHECKSUM != 0
    }

    /// True if the frame is to be cut into segments of any kind.
    pub(super) fn is_segmented(self) -> bool {
        self.kind() != 0
    }

    /// The kind of the segments.
    pub(super) fn kind(self) -> u8 {
        self.0.to_le_bytes()[1]
    }

    pub(super) fn checksum_offset(self) -> u16 {
        self.half(2)
    }

    /// The most bytes of data in a segment.
    pub(super) fn segment_bytes(self) -> u16 {
        self.half(4)
    }

    pub(super) fn checksum_start(self) -> u16 {
        self.half(6)
    }

    fn half(self, at: usize) -> u16 {
        u16::from_le_bytes([self.0.to_le_bytes()[at], self.0.to_le_bytes()[at + 1]])
    }

    /// The bytes for a receiver, after a change of the frame's tag. `headers` is how many bytes are before the data, 0 for a frame that is
    /// not to be cut.
    pub(super) fn bytes(self, headers: u16, change: TagChange) -> [u8; NET_HEADER] {
        let moved = |at: u16| match change {
            TagChange::None => at,
            TagChange::Push(_) => at.saturating_add(TAG),
            TagChange::Pop => at.saturating_sub(TAG),
        };
        let [flags, kind, ..] = self.0.to_le_bytes();
        let headers = if headers == 0 { 0 } else { moved(headers) };
        let [headers, headers_high] = headers.to_le_bytes();
        let [size, size_high] = self.segment_bytes().to_le_bytes();
        let [start, start_high] = moved(self.checksum_start()).to_le_bytes();
        let [offset, offset_high] = self.checksum_offset().to_le_bytes();
        [flags, kind, headers, headers_high, size, size_high, start, start_high, offset, offset_high]
    }
}
