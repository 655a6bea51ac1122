//! A sum that the sender has left out of a frame: of TCP or UDP, or of such a packet inside a tunnel's.

use super::internet_checksum::Sum;
use super::{BadHeader, NetHeader};
use crate::switch::network_header;

pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;
/// The bytes of an IPv4 header without options.
const IPV4_BYTES: usize = 20;
/// The bytes of an IPv6 header.
pub(super) const IPV6_BYTES: usize = 40;

/// The hop limit without which nothing is neighbour discovery (RFC 4861, 7.1).
const HOP_LIMIT_OF_DISCOVERY: u8 = 255;
/// Next headers with which a packet may be neighbour discovery: hop-by-hop options, routing, fragment, authentication, ICMPv6, destination
/// options.
const BEFORE_DISCOVERY: [u8; 6] = [0, 43, 44, 51, 58, 60];

/// What is to be summed, and where the sum goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartialChecksum {
    /// The sum is over all from this byte of the frame on.
    start: u16,
    /// It is put so many bytes behind that.
    offset: u16,
}

impl PartialChecksum {
    /// What `header` asks for.
    ///
    /// # Errors
    /// [`BadHeader`] if the sum lies outside the frame, or in what the switch has judged.
    pub(super) fn of(header: NetHeader, head: &[u8], length: usize) -> Result<PartialChecksum, BadHeader> {
        let (start, offset) = (header.checksum_start(), header.checksum_offset());
        let end = usize::from(start) + usize::from(offset) + 2;
        if end > length || usize::from(start) < end_of_judged(head).ok_or(BadHeader)? {
            return Err(BadHeader);
        }
        Ok(PartialChecksum { start, offset })
    }

    /// The header that asks for it.
    pub(super) fn header(self) -> NetHeader {
        NetHeader::for_checksum(self.start, self.offset)
    }

    /// Puts the sum into `frame`.
    pub(crate) fn complete(self, frame: &mut [u8]) {
        let start = usize::from(self.start);
        let sum = Sum::default().add(frame.get(start..).unwrap_or_default()).nonzero_checksum();
        if let Some(place) = frame.get_mut(start..).and_then(|part| part.get_mut(usize::from(self.offset)..))
        {
            place.iter_mut().zip(sum).for_each(|(byte, new)| *byte = new);
        }
    }
}

/// Where that ends which nobody may change any more, since the switch has decided by it: addresses, tags and the IP header. Absent for a
/// frame that is all judged: not IP, or maybe neighbour discovery.
fn end_of_judged(head: &[u8]) -> Option<usize> {
    let (ethertype, start) = network_header(head)?;
    let ip = head.get(start..)?;
    match (ethertype, ip.first()? >> 4) {
        (IPV4, 4) => Some(start + ipv4_bytes(ip)?),
        (IPV6, 6) => {
            let (next, hop_limit) = (*ip.get(6)?, *ip.get(7)?);
            let is_open = hop_limit != HOP_LIMIT_OF_DISCOVERY || !BEFORE_DISCOVERY.contains(&next);
            is_open.then_some(start + IPV6_BYTES)
        }
        _ => None,
    }
}

/// The bytes of an IPv4 header, with its options. Absent if it says that it has fewer than it must.
pub(super) fn ipv4_bytes(ip: &[u8]) -> Option<usize> {
    let bytes = 4 * usize::from(ip.first()? & 0xf);
    (bytes >= IPV4_BYTES).then_some(bytes)
}
