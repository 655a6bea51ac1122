//! Reads the kernel's netlink answers, of any length and content, without ever panicking.
//!
//! Only the attributes that the seam shows are picked; unknown ones, longer ones and new message types are passed
//! over. A message cut short is an error, never a half-read link.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use nix::errno::Errno;

use super::attributes::{attributes, i32_at, name, text, u16_at, u32_at};
use super::encode::{
    IFLA_GRO_IPV4_MAX_SIZE, IFLA_GSO_IPV4_MAX_SIZE, NETNSA_NSID, RTAX_ADVMSS, RTAX_MTU, RTM_NEWSTATS,
};
use super::message::HEADER;
use super::{link_info, vf_info};
use crate::Mac;
use crate::seam::{Address, AddressFlags, Kind, Link, LinkSettings, Nsid, Route};
use crate::vf_settings::Vf;

// The kernel's numbers in the width of `nlmsg_type`; libc has them as `int`.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLMSG_OVERRUN: u16 = 4;
/// The attribute of a refusal that holds its text (`NLMSGERR_ATTR_MSG`).
const NLMSGERR_ATTR_MSG: u16 = 1;
const RTM_F_CLONED: u32 = 0x200;

/// One message of a datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// `nlmsg_seq`: that of the request, 0 for news.
    pub sequence: u32,
    /// `NLM_F_DUMP_INTR`: what is dumped changed under way.
    pub interrupted: bool,
    /// The message itself.
    pub body: Body,
}

/// What a message says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// The request was carried out.
    Ack,
    /// The request was refused.
    Refused {
        /// The kernel's reason.
        errno: Errno,
        /// The kernel's own words.
        extack: Option<String>,
    },
    /// A dump is complete.
    Done,
    /// A link as it is, with its VFs where the request wanted them.
    Link(Box<Link>, Vec<Vf>),
    /// A link that is gone: its index.
    LinkGone(u32),
    /// Statistics of a link: its index.
    StatsOf(u32),
    /// An address as it is.
    Address(Address),
    /// A route as it is, with one entry for each next hop; empty for a route that the seam does not show.
    Routes(Vec<Route>),
    /// The number of a namespace; `None`: it has none.
    Nsid(Option<Nsid>),
    /// The namespace of that number is gone.
    NsidGone(Nsid),
    /// Messages were lost (`NLMSG_OVERRUN`).
    Overrun,
    /// A message of generic netlink: its header and attributes.
    Generic(Vec<u8>),
    /// A message type that is of no interest.
    Other(u16),
}

/// A datagram that is no row of netlink messages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// A message is shorter than its own length says, or than its type needs.
    #[error("message type {kind} of {length} bytes is cut short")]
    Short {
        /// The message's type (`nlmsg_type`).
        kind: u16,
        /// `nlmsg_len`, or the number of bytes there are.
        length: usize,
    },
}

/// Reads all messages of one datagram of rtnetlink.
pub fn decode(bytes: &[u8]) -> Result<Vec<Answer>, Unreadable> {
    messages(bytes, of_rtnetlink)
}

/// The same of generic netlink, where the kernel gives out the numbers of the types.
pub(in crate::real) fn decode_generic(bytes: &[u8]) -> Result<Vec<Answer>, Unreadable> {
    messages(bytes, |_, payload| Some(Body::Generic(payload.to_vec())))
}

fn messages(mut bytes: &[u8], read: fn(u16, &[u8]) -> Option<Body>) -> Result<Vec<Answer>, Unreadable> {
    let mut answers = Vec::with_capacity(1);
    while bytes.len() >= HEADER {
        let length = usize::try_from(u32_at(bytes, 0).unwrap_or(0)).unwrap_or(usize::MAX);
        let kind = u16_at(bytes, 4).unwrap_or(0);
        let flags = u16_at(bytes, 6).unwrap_or(0);
        let sequence = u32_at(bytes, 8).unwrap_or(0);
        if length < HEADER {
            return Err(Unreadable::Short { kind, length });
        }
        let payload = bytes.get(HEADER..length).ok_or(Unreadable::Short { kind, length: bytes.len() })?;
        let body = match kind {
            NLMSG_ERROR | NLMSG_DONE | NLMSG_OVERRUN => of_netlink(kind, flags, payload),
            kind => read(kind, payload),
        };
        let body = body.ok_or(Unreadable::Short { kind, length })?;
        let interrupted = i32::from(flags) & libc::NLM_F_DUMP_INTR != 0;
        answers.push(Answer { sequence, interrupted, body });
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Ok(answers)
}

/// What is said of a request, whatever it was.
fn of_netlink(kind: u16, flags: u16, payload: &[u8]) -> Option<Body> {
    Some(match kind {
        NLMSG_ERROR => refusal(flags, payload)?,
        // A dump that fails under way says so in its end.
        NLMSG_DONE => match i32_at(payload, 0) {
            Some(code) if code < 0 => Body::Refused { errno: errno_of(code), extack: None },
            _ => Body::Done,
        },
        _ => Body::Overrun,
    })
}

fn of_rtnetlink(kind: u16, payload: &[u8]) -> Option<Body> {
    Some(match kind {
        // The same types in another family are news of bridge ports and the like: such a link is not new, or gone.
        libc::RTM_NEWLINK | libc::RTM_DELLINK if payload.first().is_some_and(|family| *family != 0) => {
            Body::Other(kind)
        }
        libc::RTM_NEWLINK => Body::Link(Box::new(link(payload)?), vfs(payload)),
        libc::RTM_DELLINK => Body::LinkGone(u32_at(payload, 4)?),
        RTM_NEWSTATS => Body::StatsOf(u32_at(payload, 4)?),
        libc::RTM_NEWADDR => address(payload)?.map_or(Body::Other(kind), Body::Address),
        libc::RTM_NEWROUTE => Body::Routes(routes(payload)?),
        libc::RTM_NEWNSID => Body::Nsid(nsid(payload)),
        libc::RTM_DELNSID => Body::NsidGone(nsid(payload)?),
        other => Body::Other(other),
    })
}

fn refusal(flags: u16, payload: &[u8]) -> Option<Body> {
    let code = i32_at(payload, 0)?;
    if code == 0 {
        return Some(Body::Ack);
    }
    // The request's own message follows: whole, or only its header when the socket has capped answers.
    let request = usize::try_from(u32_at(payload, 4)?).ok()?;
    let capped = i32::from(flags) & libc::NLM_F_CAPPED != 0;
    let after = if capped { HEADER } else { request.checked_next_multiple_of(4)? };
    let has_texts = i32::from(flags) & libc::NLM_F_ACK_TLVS != 0;
    let texts = if has_texts { payload.get(4 + after..).unwrap_or(&[]) } else { &[] };
    let extack = attributes(texts).find(|(kind, _)| *kind == NLMSGERR_ATTR_MSG).map(|(_, value)| text(value));
    Some(Body::Refused { errno: errno_of(code), extack })
}

fn errno_of(code: i32) -> Errno {
    Errno::from_raw(code.checked_neg().unwrap_or(libc::EIO))
}

fn nsid(payload: &[u8]) -> Option<Nsid> {
    let (_, value) = attributes(payload.get(4..)?).find(|(kind, _)| *kind == NETNSA_NSID)?;
    i32_at(value, 0).filter(|number| *number >= 0).map(Nsid)
}

// Both: IFF_RUNNING is set later than IFF_LOWER_UP, and stays up to a second when a cable is out.
const CARRIER: u32 = (libc::IFF_RUNNING | libc::IFF_LOWER_UP) as u32;

fn link(payload: &[u8]) -> Option<Link> {
    let flags = u32_at(payload, 8)?;
    let mut link = Link {
        up: flags & libc::IFF_UP as u32 != 0,
        settings: LinkSettings::of_flags(flags & LinkSettings::FLAGS),
        loopback: flags & libc::IFF_LOOPBACK as u32 != 0,
        carrier: flags & CARRIER == CARRIER,
        ..Link::bare(u32_at(payload, 4)?, String::new(), Kind::Other { name: String::new() })
    };
    for (kind, value) in attributes(payload.get(16..)?) {
        match kind {
            libc::IFLA_IFNAME => link.name = name(value).into(),
            libc::IFLA_PROP_LIST => {
                let names = attributes(value).filter(|(kind, _)| *kind == libc::IFLA_ALT_IFNAME);
                link.alt_names = names.map(|(_, value)| name(value)).collect();
            }
            libc::IFLA_IFALIAS => link.alias = Some(text(value)),
            libc::IFLA_LINKINFO => link.kind = link_info::read(value),
            // Six bytes or none: a tunnel and InfiniBand have addresses of other lengths.
            libc::IFLA_ADDRESS => link.mac = value.try_into().ok().map(Mac),
            libc::IFLA_MTU => link.mtu = u32_at(value, 0)?,
            libc::IFLA_LINK => link.parent = u32_at(value, 0).filter(|index| *index != 0),
            libc::IFLA_LINK_NETNSID => link.parent_nsid = i32_at(value, 0).filter(|n| *n >= 0).map(Nsid),
            libc::IFLA_MASTER => link.master = u32_at(value, 0),
            libc::IFLA_PERM_ADDRESS => link.permanent_mac = value.try_into().ok().map(Mac),
            libc::IFLA_PARENT_DEV_NAME => link.device = Some(text(value)),
            libc::IFLA_PARENT_DEV_BUS_NAME => link.bus = Some(text(value)),
            libc::IFLA_PHYS_PORT_NAME => link.port = Some(text(value)),
            kind => setting(&mut link.settings, kind, value),
        }
    }
    Some(link)
}

fn setting(settings: &mut LinkSettings, kind: u16, value: &[u8]) {
    let number = u32_at(value, 0);
    match kind {
        libc::IFLA_LINKMODE => settings.mode = value.first().copied(),
        libc::IFLA_PROTO_DOWN => settings.proto_down = value.first().copied(),
        libc::IFLA_BROADCAST => settings.broadcast = value.try_into().ok().map(Mac),
        libc::IFLA_GROUP => settings.group = number,
        libc::IFLA_TXQLEN => settings.queue_length = number,
        libc::IFLA_GSO_MAX_SIZE => settings.gso_max_size = number,
        libc::IFLA_GSO_MAX_SEGS => settings.gso_max_segs = number,
        libc::IFLA_GRO_MAX_SIZE => settings.gro_max_size = number,
        IFLA_GSO_IPV4_MAX_SIZE => settings.gso_ipv4_max_size = number,
        IFLA_GRO_IPV4_MAX_SIZE => settings.gro_ipv4_max_size = number,
        _ => {}
    }
}

fn vfs(payload: &[u8]) -> Vec<Vf> {
    let all = attributes(payload.get(16..).unwrap_or(&[]));
    all.filter(|(kind, _)| *kind == libc::IFLA_VFINFO_LIST)
        .flat_map(|(_, list)| vf_info::read(list))
        .collect()
}

/// `Some(None)` for an address of a family other than IPv4 and IPv6.
fn address(payload: &[u8]) -> Option<Option<Address>> {
    let (prefix, short_flags) = (*payload.get(1)?, *payload.get(2)?);
    let index = u32_at(payload, 4)?;
    let (mut local, mut peer, mut broadcast, mut flags) = (None, None, None, u32::from(short_flags));
    for (kind, value) in attributes(payload.get(8..)?) {
        match kind {
            libc::IFA_LOCAL => local = ip(value),
            libc::IFA_ADDRESS => peer = ip(value),
            libc::IFA_BROADCAST => broadcast = ip(value),
            // All 32 flags; the header has room for the lowest eight.
            libc::IFA_FLAGS => flags = u32_at(value, 0)?,
            _ => {}
        }
    }
    // IPv6 sends IFA_LOCAL only for an address that has a peer.
    let Some(net) = local.or(peer).and_then(|ip| IpNet::new(ip, prefix).ok()) else { return Some(None) };
    let flags = AddressFlags {
        nodad: flags & libc::IFA_F_NODAD != 0,
        tentative: flags & libc::IFA_F_TENTATIVE != 0,
        dad_failed: flags & libc::IFA_F_DADFAILED != 0,
        dynamic: flags & libc::IFA_F_PERMANENT == 0,
    };
    Some(Some(Address { index, net, broadcast, flags }))
}

/// Only unicast routes of other tables than the local one; clones in the cache are no routes.
fn routes(payload: &[u8]) -> Option<Vec<Route>> {
    let family = *payload.first()?;
    let (prefix, kind) = (*payload.get(1)?, *payload.get(7)?);
    let flags = u32_at(payload, 8)?;
    let unspecified = match i32::from(family) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return Some(Vec::new()),
    };
    let mut route = Route {
        dst: IpNet::new(unspecified, prefix).ok()?,
        gateway: None,
        index: 0,
        source: None,
        table: Some(u32::from(*payload.get(4)?)),
        scope: Some(*payload.get(6)?),
        priority: None,
        mtu: None,
        advmss: None,
        protocol: Some(*payload.get(5)?),
    };
    let mut hops: &[u8] = &[];
    for (kind, value) in attributes(payload.get(12..)?) {
        match kind {
            libc::RTA_DST => route.dst = IpNet::new(ip(value)?, prefix).ok()?,
            libc::RTA_MULTIPATH => hops = value,
            other => route_attribute(&mut route, other, value),
        }
    }
    if kind != libc::RTN_UNICAST
        || flags & RTM_F_CLONED != 0
        || route.table == Some(u32::from(libc::RT_TABLE_LOCAL))
    {
        return Some(Vec::new());
    }
    Some(if hops.is_empty() { vec![route] } else { next_hops(&route, hops) })
}

fn route_attribute(route: &mut Route, kind: u16, value: &[u8]) {
    match kind {
        libc::RTA_OIF => route.index = u32_at(value, 0).unwrap_or(0),
        libc::RTA_GATEWAY => route.gateway = ip(value),
        libc::RTA_VIA => route.gateway = value.get(2..).and_then(ip),
        libc::RTA_PREFSRC => route.source = ip(value),
        libc::RTA_PRIORITY => route.priority = u32_at(value, 0),
        libc::RTA_TABLE => route.table = u32_at(value, 0),
        libc::RTA_METRICS => {
            for (metric, value) in attributes(value) {
                match metric {
                    RTAX_MTU => route.mtu = u32_at(value, 0),
                    RTAX_ADVMSS => route.advmss = u32_at(value, 0),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

/// `struct rtnexthop`: length, flags, hops, ifindex, attributes.
fn next_hops(route: &Route, mut hops: &[u8]) -> Vec<Route> {
    let mut found = Vec::new();
    while let (Some(length), Some(index)) = (u16_at(hops, 0).map(usize::from), u32_at(hops, 4)) {
        let Some(inner) = hops.get(8..length) else { break };
        let mut hop = Route { index, ..route.clone() };
        attributes(inner).for_each(|(kind, value)| route_attribute(&mut hop, kind, value));
        hop.index = index;
        found.push(hop);
        hops = hops.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    found
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADER + payload.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(payload);
        bytes
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = decode(&bytes);
            let _ = decode_generic(&bytes);
        }

        #[test]
        fn any_payload_of_a_known_type_is_read_without_a_panic(
            kind in prop_oneof![Just(2_u16), Just(3), Just(4), Just(16), Just(17), Just(20), Just(24), Just(88), Just(89)],
            flags in any::<u16>(),
            payload in proptest::collection::vec(prop_oneof![3 => 0_u8..24, 1 => any::<u8>()], 0..256),
        ) {
            let _ = decode(&framed(kind, flags, &payload));
        }
    }

    #[test]
    fn a_message_cut_short_is_an_error() {
        let whole = framed(16, 0, &[0; 16]);
        assert!(decode(&whole).is_ok());
        assert_eq!(decode(&whole[..20]), Err(Unreadable::Short { kind: 16, length: 20 }));
        assert_eq!(decode(&framed(16, 0, &[0; 3])), Err(Unreadable::Short { kind: 16, length: 19 }));
    }
}
