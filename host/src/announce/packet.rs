//! The packets of address announcement and duplicate detection, as bytes: pure functions, both ways.
//!
//! ARP after RFC 826 and RFC 5227, neighbour discovery after RFC 4861 and RFC 4862.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Mac;

/// The ethertype of ARP (`ETH_P_ARP`).
const ARP: [u8; 2] = [0x08, 0x06];
/// The ethertype of IPv6 (`ETH_P_IPV6`).
const IPV6: [u8; 2] = [0x86, 0xdd];
const ICMPV6: u8 = 58;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const OVERRIDE: u8 = 0x20;
const TARGET_LINK_LAYER_ADDRESS: u8 = 2;
const BROADCAST: Mac = Mac([0xff; 6]);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ETHERNET: usize = 14;
const IPV6_HEADER: usize = 40;

/// The frame that announces to the neighbours who has `address` now: a gratuitous ARP request, or an unsolicited advertisement.
pub(super) fn announcement(mac: Mac, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => arp_request(mac, address, address),
        IpAddr::V6(address) => advertisement(mac, address),
    }
}

/// The frame that asks whether someone else has `address`, without claiming it for us.
pub(super) fn probe(mac: Mac, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => arp_request(mac, Ipv4Addr::UNSPECIFIED, address),
        IpAddr::V6(address) => solicitation(mac, address),
    }
}

/// The address that a packet claims, and for whom.
pub(super) fn claim(frame: &[u8]) -> Option<(IpAddr, Mac)> {
    match frame.get(12..14)?.try_into().ok()? {
        ARP => arp_claim(frame.get(ETHERNET..)?),
        IPV6 => advertised(frame),
        _ => None,
    }
}

fn ethernet(to: Mac, from: Mac, protocol: [u8; 2]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(96);
    frame.extend(to.0);
    frame.extend(from.0);
    frame.extend(protocol);
    frame
}

fn arp_request(mac: Mac, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut frame = ethernet(BROADCAST, mac, ARP);
    // Ethernet, IPv4, address lengths 6 and 4, request.
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(mac.0);
    frame.extend(sender.octets());
    frame.extend([0; 6]);
    frame.extend(target.octets());
    frame
}

/// Any ARP packet with a sender address claims it (RFC 5227, section 2.1.1).
fn arp_claim(arp: &[u8]) -> Option<(IpAddr, Mac)> {
    if arp.get(..6)? != [0, 1, 8, 0, 6, 4] {
        return None;
    }
    let mac = Mac(arp.get(8..14)?.try_into().ok()?);
    let sender = Ipv4Addr::from(<[u8; 4]>::try_from(arp.get(14..18)?).ok()?);
    (!sender.is_unspecified()).then_some((IpAddr::V4(sender), mac))
}

fn advertisement(mac: Mac, address: Ipv6Addr) -> Vec<u8> {
    let mut body = vec![NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, OVERRIDE, 0, 0, 0];
    body.extend(address.octets());
    body.extend([TARGET_LINK_LAYER_ADDRESS, 1]);
    body.extend(mac.0);
    icmpv6(mac, address, ALL_NODES, body)
}

/// As in duplicate address detection: from the unspecified address, without a link-layer option.
fn solicitation(mac: Mac, address: Ipv6Addr) -> Vec<u8> {
    let [.., x, y, z] = address.octets();
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(x), u16::from_be_bytes([y, z]));
    let mut body = vec![NEIGHBOUR_SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    body.extend(address.octets());
    icmpv6(mac, Ipv6Addr::UNSPECIFIED, group, body)
}

fn icmpv6(mac: Mac, from: Ipv6Addr, to: Ipv6Addr, mut body: Vec<u8>) -> Vec<u8> {
    let sum = checksum(from, to, &body).to_be_bytes();
    body[2..4].copy_from_slice(&sum);
    let [.., a, b, c, d] = to.octets();
    let mut frame = ethernet(Mac([0x33, 0x33, a, b, c, d]), mac, IPV6);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(u16::try_from(body.len()).unwrap_or(u16::MAX).to_be_bytes());
    frame.extend([ICMPV6, 255]);
    frame.extend(from.octets());
    frame.extend(to.octets());
    frame.extend(body);
    frame
}

/// RFC 4443, section 2.3: over the pseudo header and the message.
fn checksum(from: Ipv6Addr, to: Ipv6Addr, body: &[u8]) -> u16 {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes();
    let all = from.octets().into_iter().chain(to.octets()).chain(length).chain([0, 0, 0, ICMPV6]);
    let bytes: Vec<u8> = all.chain(body.iter().copied()).collect();
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

/// A neighbour advertisement claims its target, for the address in its option or, without one, for its sender.
fn advertised(frame: &[u8]) -> Option<(IpAddr, Mac)> {
    let header = frame.get(ETHERNET..ETHERNET + IPV6_HEADER)?;
    let body = frame.get(ETHERNET + IPV6_HEADER..)?;
    let valid = header[6] == ICMPV6 && header[7] == 255 && body.first() == Some(&NEIGHBOUR_ADVERTISEMENT);
    if !valid {
        return None;
    }
    let target = Ipv6Addr::from(<[u8; 16]>::try_from(body.get(8..24)?).ok()?);
    let option = body.get(24..32).filter(|option| option[..2] == [TARGET_LINK_LAYER_ADDRESS, 1]);
    let mac = option.map_or_else(|| frame.get(6..12), |option| option.get(2..8))?;
    Some((IpAddr::V6(target), Mac(mac.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);

    #[test]
    fn a_gratuitous_arp_claims_the_address_and_a_probe_does_not() {
        let address: IpAddr = "10.1.2.3".parse().unwrap();
        assert_eq!(claim(&announcement(OURS, address)), Some((address, OURS)));
        assert_eq!(announcement(OURS, address).len(), 42);
        assert_eq!(claim(&probe(OURS, address)), None);
    }

    #[test]
    fn an_unsolicited_advertisement_claims_the_address_and_a_solicitation_does_not() {
        let address: IpAddr = "2001:db8::ab:cdef".parse().unwrap();
        let frame = announcement(OURS, address);
        assert_eq!(claim(&frame), Some((address, OURS)));
        assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 1]);
        let probe = probe(OURS, address);
        assert_eq!(claim(&probe), None);
        assert_eq!(probe[..6], [0x33, 0x33, 0xff, 0xab, 0xcd, 0xef]);
    }

    #[test]
    fn the_checksum_makes_the_sum_over_everything_all_ones() {
        let frame = announcement(OURS, "2001:db8::1".parse().unwrap());
        let from: [u8; 16] = frame[22..38].try_into().unwrap();
        let to: [u8; 16] = frame[38..54].try_into().unwrap();
        assert_eq!(checksum(from.into(), to.into(), &frame[54..]), 0);
    }

    proptest! {
        #[test]
        fn any_frame_is_read_without_a_panic(frame in proptest::collection::vec(any::<u8>(), 0..128)) {
            let _ = claim(&frame);
            for protocol in [ARP, IPV6] {
                let mut frame = frame.clone();
                if let Some(place) = frame.get_mut(12..14) {
                    place.copy_from_slice(&protocol);
                }
                let _ = claim(&frame);
            }
        }
    }
}
