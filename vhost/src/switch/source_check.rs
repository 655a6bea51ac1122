//! Does a guest give itself out as somebody else? Looks at the source of Ethernet, ARP (RFC 826) and neighbour discovery (RFC 4861).
//!
//! What can't be seen is not passed: an ARP packet that ends early, or a packet that may be neighbour discovery and whose options lie behind
//! the head. Only IPv6 packets with hop limit 255 may be neighbour discovery (RFC 4861, 7.1), so nothing else pays for that strictness.
//! A fragment with part of a discovery message is dropped too (RFC 6980 forbids it, some receivers take it).

use super::frame_head::{Address, FrameHead, is_group, number, two_bytes};

const ARP: u16 = 0x0806;
const REVERSE_ARP: u16 = 0x8035;
const IPV6: u16 = 0x86dd;

const IPV6_BYTES: usize = 40;
const HOP_LIMIT_OF_DISCOVERY: u8 = 255;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const ICMPV6: u8 = 58;
const DESTINATION_OPTIONS: u8 = 60;

const SOURCE_LINK_LAYER: u8 = 1;
const TARGET_LINK_LAYER: u8 = 2;

/// Whether more than addresses and EtherType decides on frames of this type, where the source is checked.
pub(super) fn looks_into(ethertype: u16) -> bool {
    matches!(ethertype, ARP | REVERSE_ARP | IPV6)
}

/// What is hidden, or somebody else's.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Spoofed;

/// Whether a frame of a port with the address `own` may pass. A group address as source never may.
///
/// `own` is absent for a port whose source is not checked.
#[inline]
pub(super) fn check(head: &FrameHead<'_>, own: Option<Address>) -> Result<(), Spoofed> {
    if is_group(head.source) {
        return Err(Spoofed);
    }
    let Some(own) = own else { return Ok(()) };
    if head.source != own {
        return Err(Spoofed);
    }
    let seen = match head.ethertype {
        ARP | REVERSE_ARP => arp(head.payload, own),
        IPV6 => ipv6(head.payload, own),
        _ => Some(true),
    };
    if seen == Some(true) { Ok(()) } else { Err(Spoofed) }
}

/// True where ARP's sender hardware address is `own`. `None`: the packet ends before it.
fn arp(packet: &[u8], own: Address) -> Option<bool> {
    let hardware_bytes = *packet.get(4)?;
    let sender = packet.get(8..)?.first_chunk::<6>()?;
    Some(hardware_bytes == 6 && number(*sender) == own)
}

/// True for what is no neighbour discovery, and for discovery in `own`'s name. `None`: the head ends before that can be told.
fn ipv6(packet: &[u8], own: Address) -> Option<bool> {
    let (header, mut rest) = packet.split_at_checked(IPV6_BYTES)?;
    if header[7] != HOP_LIMIT_OF_DISCOVERY {
        return Some(true);
    }
    let length = usize::from(two_bytes(&header[4..])?.0);
    let mut left = length;
    let mut next = header[6];
    let mut is_fragment = false;
    loop {
        let bytes = match next {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => 8 * (usize::from(*rest.get(1)?) + 1),
            AUTHENTICATION => 4 * (usize::from(*rest.get(1)?) + 2),
            FRAGMENT => {
                is_fragment = true;
                // A later fragment has no ICMPv6 header, and without the first it is nothing.
                if two_bytes(rest.get(2..)?)?.0 >> 3 != 0 {
                    return Some(true);
                }
                8
            }
            ICMPV6 => {
                return discovery(rest, left, own).map(|own| own && !(is_fragment && is_discovery(rest)));
            }
            _ => return Some(true),
        };
        next = *rest.first()?;
        rest = rest.get(bytes..)?;
        left = left.checked_sub(bytes)?;
    }
}

fn is_discovery(message: &[u8]) -> bool {
    message.first().is_some_and(|kind| (133..=137).contains(kind))
}

/// True for other messages, and where each link-layer address in the options is `own`. `length` is what IPv6 says of the message's.
fn discovery(message: &[u8], length: usize, own: Address) -> Option<bool> {
    let before_options = match *message.first()? {
        // Router solicitation, router advertisement, neighbour solicitation and advertisement, redirect: RFC 4861, 4.1 to 4.5.
        133 => 8,
        134 => 16,
        135 | 136 => 24,
        137 => 40,
        _ => return Some(true),
    };
    let mut left = length.checked_sub(before_options)?;
    let mut options = message.get(before_options..)?;
    while left > 0 {
        let [kind, eighths] = *options.first_chunk::<2>()?;
        let bytes = 8 * usize::from(eighths);
        // An option without length makes the whole message void (RFC 4861, 4.6).
        if bytes == 0 {
            return Some(false);
        }
        if kind == SOURCE_LINK_LAYER || kind == TARGET_LINK_LAYER {
            let address = options.get(2..)?.first_chunk::<6>()?;
            if number(*address) != own {
                return Some(false);
            }
        }
        left = left.checked_sub(bytes)?;
        // The last option's end need not be seen.
        options = options.get(bytes..).or_else(|| (left == 0).then_some(&[][..]))?;
    }
    Some(true)
}

#[cfg(test)]
#[path = "source_check_tests.rs"]
mod tests;
