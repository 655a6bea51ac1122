//! A TCP frame that is longer than a link takes, and its segments.
//!
//! Only TCP right behind an IPv4 or IPv6 header is taken: no driver leaves anything else to be cut when TSO is all that was agreed on. The
//! headers lie in what the switch has copied and judged.

use std::ops::Range;

use super::internet_checksum::Sum;
use super::partial_checksum::{IPV4, IPV6, IPV6_BYTES, ipv4_bytes};
use super::virtio_net_header::{ECN, TCP_V4, TCP_V6};
use super::{BadHeader, NetHeader, Offloads};
use crate::switch::{FrameSize, HEAD_BYTES, network_header};

/// The fewest bytes of data in a segment: fewer would make thousands of one frame, and no link that is in use is so narrow.
const FEWEST_BYTES: u16 = 128;
/// The most segments that a frame can have: an IPv6 packet's data by the fewest bytes in each.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) const MOST_SEGMENTS: u16 = 65_515_u16.div_ceil(FEWEST_BYTES);

const TCP: u8 = 6;
/// The bytes of a TCP header without options.
const TCP_BYTES: usize = 20;
/// Where the sum is in a TCP header.
const TCP_CHECKSUM: usize = 16;
/// Flags of a TCP header: of the last segment alone, and of the first alone (RFC 3168, 6.1.2).
const FIN_AND_PUSH: u8 = 0x01 | 0x08;
const WINDOW_REDUCED: u8 = 0x80;
/// IPv4's offset of a fragment, and "more of them".
const FRAGMENT: u16 = 0x3fff;

/// Which IP header is before TCP's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IpVersion {
    V4,
    V6,
}

/// A frame that is to be cut into segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TcpFrame {
    version: IpVersion,
    /// Where the headers of IP and TCP are in the frame, and where the data is.
    ip: u16,
    tcp: u16,
    data: u16,
    /// The most bytes of data in a segment.
    segment: u16,
    has_ecn: bool,
    /// The bytes of the frame.
    length: usize,
}

impl TcpFrame {
    /// The frame that `header` describes, as it really is.
    ///
    /// # Errors
    /// [`BadHeader`] if it is no TCP of the kind that the header says, was not agreed on, or the header does not agree with it.
    pub(super) fn of(
        header: NetHeader,
        agreed: Offloads,
        head: &[u8],
        length: usize,
    ) -> Result<TcpFrame, BadHeader> {
        let tcp = TcpFrame::read(header, head, length).ok_or(BadHeader)?;
        let says_where = usize::from(header.checksum_offset()) == TCP_CHECKSUM
            && header.checksum_start() == tcp.tcp
            && header.needs_checksum();
        let is_sane = tcp.segment >= FEWEST_BYTES && usize::from(tcp.data) < length;
        if says_where && is_sane && agreed.has(&tcp) { Ok(tcp) } else { Err(BadHeader) }
    }

    fn read(header: NetHeader, head: &[u8], length: usize) -> Option<TcpFrame> {
        let (ethertype, start) = network_header(head)?;
        let packet = head.get(start..)?;
        let (version, ip_bytes) = match (header.kind() & !ECN, ethertype) {
            (TCP_V4, IPV4) => (IpVersion::V4, tcp_behind_ipv4(packet, length.checked_sub(start)?)?),
            (TCP_V6, IPV6) => (IpVersion::V6, tcp_behind_ipv6(packet, length.checked_sub(start)?)?),
            _ => return None,
        };
        let tcp_bytes = 4 * usize::from(packet.get(ip_bytes + 12)? >> 4);
        let data = start + ip_bytes + tcp_bytes;
        let has_header = tcp_bytes >= TCP_BYTES && data <= head.len();
        has_header.then_some(())?;
        Some(TcpFrame {
            version,
            ip: u16::try_from(start).ok()?,
            tcp: u16::try_from(start + ip_bytes).ok()?,
            data: u16::try_from(data).ok()?,
            segment: header.segment_bytes(),
            has_ecn: header.kind() & ECN != 0,
            length,
        })
    }

    pub(super) fn version(&self) -> IpVersion {
        self.version
    }

    /// True if the sender says that the first segment alone tells of a reduced window.
    pub(super) fn has_ecn(&self) -> bool {
        self.has_ecn
    }

    /// The bytes of all headers.
    pub(super) fn headers(&self) -> u16 {
        self.data
    }

    /// The header that asks for the segments.
    pub(super) fn header(&self) -> NetHeader {
        let kind = match self.version {
            IpVersion::V4 => TCP_V4,
            IpVersion::V6 => TCP_V6,
        };
        let checksum = u16::try_from(TCP_CHECKSUM).unwrap_or(0);
        let kind = if self.has_ecn { kind | ECN } else { kind };
        NetHeader::for_checksum(self.tcp, checksum).with_segments(kind, self.segment)
    }

    /// How many segments it has.
    pub(crate) fn segments(&self) -> u16 {
        let segments = (self.length - usize::from(self.data)).div_ceil(usize::from(self.segment));
        u16::try_from(segments).unwrap_or(u16::MAX)
    }

    /// How long it is by its segments.
    pub(super) fn size(&self) -> FrameSize {
        let (headers, segments) = (usize::from(self.data), self.segments());
        FrameSize {
            longest: self.length.min(headers + usize::from(self.segment)),
            bytes: self.length + (usize::from(segments) - 1) * headers,
            segments,
        }
    }

    /// The headers of the frame, which its segments' are made of; `frame` is the frame.
    pub(crate) fn template(&self, frame: &[u8]) -> [u8; HEAD_BYTES] {
        let mut template = [0; HEAD_BYTES];
        template.iter_mut().zip(frame).for_each(|(to, from)| *to = *from);
        template
    }

    /// Makes segment `n` in `frame`, which is the frame, and answers where it is: its headers are written over what is before its data, the
    /// frame's headers or the data of a segment before. So the segments are made in order, each once, and sent before the next one is made.
    pub(crate) fn make_segment(
        &self,
        n: u16,
        template: &[u8; HEAD_BYTES],
        frame: &mut [u8],
    ) -> Option<Range<usize>> {
        let (headers, size) = (usize::from(self.data), usize::from(self.segment));
        let start = usize::from(n) * size;
        let end = (start + headers + size).min(self.length);
        let is_last = end == self.length;
        let segment = frame.get_mut(start..end)?;
        let (head, data) = segment.split_at_mut_checked(headers)?;
        head.copy_from_slice(template.get(..headers)?);
        let (link_and_ip, tcp) = head.split_at_mut_checked(usize::from(self.tcp))?;
        let ip = link_and_ip.get_mut(usize::from(self.ip)..)?;
        let tcp_bytes = u16::try_from(tcp.len() + data.len()).ok()?;
        let pseudo = self.write_ip(ip, tcp_bytes, n)?;
        write_tcp(tcp, u32::try_from(start).ok()?, n == 0, is_last)?;
        let sum = pseudo.add(tcp).add(data).nonzero_checksum();
        tcp.get_mut(TCP_CHECKSUM..)?.first_chunk_mut::<2>().map(|place| *place = sum)?;
        Some(start..end)
    }

    /// Writes what an IP header has of its own in segment `n`, and answers the sum of TCP's pseudo-header (RFC 9293, 3.1).
    fn write_ip(&self, ip: &mut [u8], tcp_bytes: u16, n: u16) -> Option<Sum> {
        let addresses = match self.version {
            IpVersion::V4 => {
                let length = u16::try_from(ip.len()).ok()?.checked_add(tcp_bytes)?;
                ip.get_mut(2..4)?.copy_from_slice(&length.to_be_bytes());
                let id = ip.get_mut(4..)?.first_chunk_mut::<2>()?;
                *id = u16::from_be_bytes(*id).wrapping_add(n).to_be_bytes();
                ip.get_mut(10..12)?.fill(0);
                let sum = Sum::default().add(ip).checksum();
                ip.get_mut(10..12)?.copy_from_slice(&sum);
                ip.get(12..20)?
            }
            IpVersion::V6 => {
                ip.get_mut(4..6)?.copy_from_slice(&tcp_bytes.to_be_bytes());
                ip.get(8..40)?
            }
        };
        Some(Sum::default().add(addresses).add(&[0, TCP]).add(&tcp_bytes.to_be_bytes()))
    }
}

/// Writes what a TCP header has of its own in the segment whose data begins `start` bytes behind the first one's. Its sum is 0 then.
fn write_tcp(tcp: &mut [u8], start: u32, is_first: bool, is_last: bool) -> Option<()> {
    let sequence = tcp.get_mut(4..)?.first_chunk_mut::<4>()?;
    *sequence = u32::from_be_bytes(*sequence).wrapping_add(start).to_be_bytes();
    let flags = tcp.get_mut(13)?;
    *flags &= !(if is_last { 0 } else { FIN_AND_PUSH } | if is_first { 0 } else { WINDOW_REDUCED });
    tcp.get_mut(TCP_CHECKSUM..TCP_CHECKSUM + 2)?.fill(0);
    Some(())
}

/// The bytes of an IPv4 header, if a whole TCP packet of `length` bytes with the header is behind it and no fragment.
fn tcp_behind_ipv4(packet: &[u8], length: usize) -> Option<usize> {
    let bytes = ipv4_bytes(packet)?;
    let half = |at| packet.get(at..)?.first_chunk::<2>().map(|half| u16::from_be_bytes(*half));
    let is_whole = usize::from(half(2)?) == length && half(6)? & FRAGMENT == 0;
    (packet.first()? >> 4 == 4 && is_whole && *packet.get(9)? == TCP).then_some(bytes)
}

/// The same of IPv6.
fn tcp_behind_ipv6(packet: &[u8], length: usize) -> Option<usize> {
    let said = u16::from_be_bytes(*packet.get(4..)?.first_chunk::<2>()?);
    let is_whole = usize::from(said) + IPV6_BYTES == length;
    (packet.first()? >> 4 == 6 && is_whole && *packet.get(6)? == TCP).then_some(IPV6_BYTES)
}
