//! The requests of the seam as netlink messages: pure, so that what is sent can be read in one place.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use ipnet::IpNet;
use libc::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_ECHO, NLM_F_EXCL};

use super::message::Message;
use super::{link_info, vf_info};
use crate::seam::{Address, LinkName, LinkSettings, NewLink, Nsid, Op, Parent, Route, SetLink};
use crate::vf_settings::VfChange;

/// The flag of an attribute that holds others. The younger message types insist on it.
const NLA_F_NESTED: u16 = 1 << 15;
const RTM_NEWLINKPROP: u16 = 108;
const RTM_DELLINKPROP: u16 = 109;
const RTM_GETSTATS: u16 = 94;
pub(in crate::real) const RTM_NEWSTATS: u16 = 92;
/// `IFLA_STATS_FILTER_BIT(IFLA_STATS_AF_SPEC)`: the kernel wants some statistics to be asked for, and most links have none of these.
const STATS_OF_FAMILIES: u32 = 1 << 4;
pub(in crate::real) const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
/// `IFLA_TARGET_NETNSID` (kernel ≥ 4.16 by its older name `IFLA_IF_NETNSID`).
pub(in crate::real) const IFLA_TARGET_NETNSID: u16 = 46;
/// `RTEXT_FILTER_SKIP_STATS`: nobody reads them here.
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;
/// `RTEXT_FILTER_VF`: set by [`get_vfs`] alone, because the settings of 64 VFs cost 157 ms.
const RTEXT_FILTER_VF: u32 = 1;
pub(in crate::real) const RTAX_MTU: u16 = 2;
pub(in crate::real) const RTAX_ADVMSS: u16 = 8;
// In the width of `rtm_family`; libc has them as `int`.
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IFF_UP: u32 = libc::IFF_UP as u32;
const IFLA_INET_CONF: u16 = 1;
/// The number of `arp_notify` in `IFLA_INET_CONF` (`linux/ip.h`).
const IPV4_DEVCONF_ARP_NOTIFY: u16 = 22;
// Of kernel 6.3; libc does not have them yet.
pub(in crate::real) const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
pub(in crate::real) const IFLA_GRO_IPV4_MAX_SIZE: u16 = 64;

/// Whose socket a message is sent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::real) enum Via {
    /// The socket of the namespace that the view is of.
    View,
    /// The socket of the daemon's own namespace.
    Host,
}

/// The file descriptors that a request of a pod's view may name: its own namespace and the daemon's.
#[derive(Debug, Clone, Copy)]
pub(in crate::real) struct Ends<'a> {
    pub(in crate::real) view: BorrowedFd<'a>,
    pub(in crate::real) host: BorrowedFd<'a>,
}

/// The message of one operation, and the socket that it goes out on.
pub(in crate::real) fn of(op: &Op, ends: Ends<'_>) -> (Via, Message) {
    match op {
        Op::CreateLink(new) => create_link(new, ends),
        Op::SetLink(set) => (Via::View, set_link(set)),
        Op::SetArpNotify(index) => (Via::View, set_arp_notify(*index)),
        Op::DeleteLink(index) => {
            (Via::View, Message::new(libc::RTM_DELLINK, NLM_F_ACK, &ifinfomsg(*index, 0, 0)))
        }
        Op::MoveToHost { index, as_index, name } => {
            (Via::View, move_link(*index, *as_index, name, ends.host, false))
        }
        Op::TakeFromHost { index, as_index, name, up } => {
            (Via::Host, move_link(*index, *as_index, name, ends.view, *up))
        }
        Op::AddAltName { index, name } => (Via::View, alt_name(RTM_NEWLINKPROP, *index, name)),
        Op::DeleteAltName { index, name } => (Via::View, alt_name(RTM_DELLINKPROP, *index, name)),
        Op::SetVfs { pf, changes } => (Via::View, set_vfs(*pf, changes)),
        Op::AddAddress(address) => (Via::View, add_address(address)),
        Op::DeleteAddress(address) => (Via::View, delete_address(address)),
        Op::AddRoute(route) => (Via::View, route_message(route, libc::RTM_NEWROUTE, NLM_F_CREATE)),
        Op::DeleteRoute(route) => (Via::View, route_message(route, libc::RTM_DELROUTE, 0)),
    }
}

/// An operation in words for a person, as its error begins.
pub(in crate::real) fn describe(op: &Op) -> String {
    match op {
        Op::CreateLink(new) => format!("create {} {:?}", new.kind.name(), new.name),
        Op::SetLink(set) => describe_set(set),
        Op::SetArpNotify(index) => format!("set arp_notify of link {index}"),
        Op::DeleteLink(index) => format!("delete link {index}"),
        Op::MoveToHost { index, name, .. } => format!("move link {index} to the host as {name:?}"),
        Op::TakeFromHost { index, name, up, .. } => {
            let up = if *up { " and set it up" } else { "" };
            format!("move the host's link {index} into the pod as {name:?}{up}")
        }
        Op::AddAltName { index, name } => format!("give link {index} the alternative name {name:?}"),
        Op::DeleteAltName { index, name } => format!("take the alternative name {name:?} from link {index}"),
        Op::SetVfs { pf, changes } => match changes.as_slice() {
            [(vf, change)] => format!("set VF {vf} of link {pf} to {}", change.describe()),
            many => format!("set {} VFs of link {pf}", many.len()),
        },
        Op::AddAddress(address) => format!("add address {} to link {}", address.net, address.index),
        Op::DeleteAddress(address) => format!("remove address {} from link {}", address.net, address.index),
        Op::AddRoute(route) => format!("add route {}", describe_route(route)),
        Op::DeleteRoute(route) => format!("remove route {}", describe_route(route)),
    }
}

fn describe_set(set: &SetLink) -> String {
    let mut changes = Vec::new();
    changes.extend(set.name.as_ref().map(|name| format!("name {name:?}")));
    changes.extend(set.up.map(|up| if up { "up" } else { "down" }.to_owned()));
    changes.extend(set.mtu.map(|mtu| format!("mtu {mtu}")));
    changes.extend(set.mac.map(|mac| format!("address {mac}")));
    changes.extend(set.alias.as_ref().map(|alias| format!("alias {alias:?}")));
    changes.extend(Some(set.settings.describe()).filter(|words| !words.is_empty()));
    format!("set link {} to {}", set.index, changes.join(", "))
}

fn describe_route(route: &Route) -> String {
    let via = route.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
    format!("{}{via} on link {}", route.dst, route.index)
}

fn create_link(new: &NewLink, ends: Ends<'_>) -> (Via, Message) {
    let up = if new.up { IFF_UP } else { 0 };
    // Index 0: the kernel chooses one.
    let header = ifinfomsg(new.index.unwrap_or(0), up, up);
    let mut message = Message::new(libc::RTM_NEWLINK, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, &header);
    message.name(libc::IFLA_IFNAME, &new.name);
    let via = match new.parent {
        Parent::Host(parent) => {
            message.u32(libc::IFLA_LINK, parent);
            // Made from the host's side straight into the pod: it never stands in the host's namespace under the pod's name.
            message.i32(libc::IFLA_NET_NS_FD, ends.view.as_raw_fd());
            Via::Host
        }
        Parent::Same(parent) => {
            message.u32(libc::IFLA_LINK, parent);
            Via::View
        }
        Parent::None => Via::View,
    };
    if let Some(mac) = new.mac {
        message.attribute(libc::IFLA_ADDRESS, &mac.0);
    }
    if let Some(mtu) = new.mtu {
        message.u32(libc::IFLA_MTU, mtu);
    }
    message.nest(libc::IFLA_LINKINFO, |info| {
        link_info::write(info, &new.kind);
    });
    (via, message)
}

/// A change of a link by index, without attributes yet.
pub(in crate::real) fn change_link(index: u32) -> Message {
    Message::new(libc::RTM_SETLINK, NLM_F_ACK, &ifinfomsg(index, 0, 0))
}

fn set_link(set: &SetLink) -> Message {
    let (up, of_up) = match set.up {
        Some(up) => (if up { IFF_UP } else { 0 }, IFF_UP),
        None => (0, 0),
    };
    let (flags, of_flags) = match set.settings.flags {
        Some(flags) => (flags & LinkSettings::FLAGS, LinkSettings::FLAGS),
        None => (0, 0),
    };
    let header = ifinfomsg(set.index, up | flags, of_up | of_flags);
    let mut message = Message::new(libc::RTM_SETLINK, NLM_F_ACK, &header);
    if let Some(name) = &set.name {
        message.name(libc::IFLA_IFNAME, name);
    }
    if let Some(mtu) = set.mtu {
        message.u32(libc::IFLA_MTU, mtu);
    }
    if let Some(mac) = set.mac {
        message.attribute(libc::IFLA_ADDRESS, &mac.0);
    }
    if let Some(alias) = &set.alias {
        // Without a NUL: the kernel keeps as many bytes as it is given.
        message.attribute(libc::IFLA_IFALIAS, alias.as_bytes());
    }
    write_settings(&mut message, &set.settings);
    message
}

fn set_arp_notify(index: u32) -> Message {
    let mut message = change_link(index);
    message.nest(libc::IFLA_AF_SPEC, |families| {
        families.nest(u16::from(AF_INET), |inet| {
            inet.nest(IFLA_INET_CONF, |conf| conf.u32(IPV4_DEVCONF_ARP_NOTIFY, 1));
        });
    });
    message
}

fn write_settings(message: &mut Message, settings: &LinkSettings) {
    for (kind, byte) in [(libc::IFLA_LINKMODE, settings.mode), (libc::IFLA_PROTO_DOWN, settings.proto_down)] {
        byte.into_iter().for_each(|byte| message.attribute(kind, &[byte]));
    }
    if let Some(broadcast) = settings.broadcast {
        message.attribute(libc::IFLA_BROADCAST, &broadcast.0);
    }
    for (kind, number) in [
        (libc::IFLA_GROUP, settings.group),
        (libc::IFLA_TXQLEN, settings.queue_length),
        (libc::IFLA_GSO_MAX_SIZE, settings.gso_max_size),
        (libc::IFLA_GSO_MAX_SEGS, settings.gso_max_segs),
        (libc::IFLA_GRO_MAX_SIZE, settings.gro_max_size),
        (IFLA_GSO_IPV4_MAX_SIZE, settings.gso_ipv4_max_size),
        (IFLA_GRO_IPV4_MAX_SIZE, settings.gro_ipv4_max_size),
    ] {
        number.into_iter().for_each(|number| message.u32(kind, number));
    }
}

/// Adds or takes away an alternative name.
fn alt_name(kind: u16, index: u32, name: &LinkName) -> Message {
    let flags = if kind == RTM_NEWLINKPROP { NLM_F_CREATE | NLM_F_EXCL } else { 0 };
    let mut message = Message::new(kind, NLM_F_ACK | flags, &ifinfomsg(index, 0, 0));
    message.nest(libc::IFLA_PROP_LIST | NLA_F_NESTED, |list| {
        list.closed(libc::IFLA_ALT_IFNAME, name.as_bytes());
    });
    message
}

fn set_vfs(pf: u32, changes: &[(u32, VfChange)]) -> Message {
    let mut message = change_link(pf);
    vf_info::write(&mut message, changes);
    message
}

/// Moves a link to another namespace under a name, and under an index where one is wanted.
/// The kernel moves it first, renames it then, and sets it up at last.
pub(in crate::real) fn move_link(
    index: u32,
    as_index: Option<u32>,
    name: &str,
    to: BorrowedFd<'_>,
    up: bool,
) -> Message {
    let flags = if up { IFF_UP } else { 0 };
    let mut message = Message::new(libc::RTM_NEWLINK, NLM_F_ACK, &ifinfomsg(index, flags, flags));
    message.i32(libc::IFLA_NET_NS_FD, to.as_raw_fd());
    message.name(libc::IFLA_IFNAME, name);
    if let Some(wanted) = as_index {
        message.u32(libc::IFLA_NEW_IFINDEX, wanted);
    }
    message
}

fn add_address(address: &Address) -> Message {
    let mut message = address_message(address, libc::RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL);
    let ip = address.net.addr();
    // The same as IFA_LOCAL: another address would be a peer's.
    message.attribute(libc::IFA_ADDRESS, &octets(ip));
    if let Some(broadcast @ IpAddr::V4(_)) = address.broadcast {
        message.attribute(libc::IFA_BROADCAST, &octets(broadcast));
    }
    if ip.is_ipv6() && address.flags.nodad {
        message.u32(libc::IFA_FLAGS, libc::IFA_F_NODAD);
    }
    message
}

/// Without IFA_ADDRESS: to the kernel that is the peer of an IPv4 address, and a pod may have given its own one that nobody else knows.
fn delete_address(address: &Address) -> Message {
    address_message(address, libc::RTM_DELADDR, 0)
}

fn address_message(address: &Address, kind: u16, flags: i32) -> Message {
    let ip = address.net.addr();
    let header = ifaddrmsg(family_of(ip), address.net.prefix_len(), address.index);
    let mut message = Message::new(kind, NLM_F_ACK | flags, &header);
    message.attribute(libc::IFA_LOCAL, &octets(ip));
    message
}

fn route_message(route: &Route, kind: u16, flags: i32) -> Message {
    let mut message = Message::new(kind, NLM_F_ACK | flags, &rtmsg(route, kind == libc::RTM_DELROUTE));
    if route.dst.prefix_len() > 0 {
        // The kernel refuses an IPv4 destination with bits behind its prefix.
        message.attribute(libc::RTA_DST, &octets(route.dst.trunc().addr()));
    }
    message.u32(libc::RTA_OIF, route.index);
    match (route.gateway, route.dst) {
        // RTA_GATEWAY is of the route's own family; RTA_VIA names the gateway's.
        (Some(via @ IpAddr::V6(_)), IpNet::V4(_)) => {
            let mut value = u16::from(AF_INET6).to_ne_bytes().to_vec();
            value.extend_from_slice(&octets(via));
            message.attribute(libc::RTA_VIA, &value);
        }
        (Some(gateway), _) => message.attribute(libc::RTA_GATEWAY, &octets(gateway)),
        (None, _) => {}
    }
    if let Some(source) = route.source {
        message.attribute(libc::RTA_PREFSRC, &octets(source));
    }
    if let Some(priority) = route.priority {
        message.u32(libc::RTA_PRIORITY, priority);
    }
    // The header has one byte for the table's number.
    if let Some(table) = route.table.filter(|table| *table > 255) {
        message.u32(libc::RTA_TABLE, table);
    }
    if route.mtu.is_some() || route.advmss.is_some() {
        message.nest(libc::RTA_METRICS, |metrics| {
            if let Some(mtu) = route.mtu {
                metrics.u32(RTAX_MTU, mtu);
            }
            if let Some(advmss) = route.advmss {
                metrics.u32(RTAX_ADVMSS, advmss);
            }
        });
    }
    message
}

/// A link of the view's own namespace by index.
pub(in crate::real) fn get_link(index: u32) -> Message {
    let mut message = Message::new(libc::RTM_GETLINK, 0, &ifinfomsg(index, 0, 0));
    message.u32(libc::IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    message
}

/// A link with the settings of all its VFs.
pub(in crate::real) fn get_vfs(pf: u32) -> Message {
    let mut message = Message::new(libc::RTM_GETLINK, 0, &ifinfomsg(pf, 0, 0));
    message.u32(libc::IFLA_EXT_MASK, RTEXT_FILTER_VF | RTEXT_FILTER_SKIP_STATS);
    message
}

/// A link by name or alternative name; only `IFLA_ALT_IFNAME` takes more than 15 bytes.
pub(in crate::real) fn get_link_by_name(name: &[u8]) -> Message {
    let mut message = get_link(0);
    message.closed(if name.len() < libc::IFNAMSIZ { libc::IFLA_IFNAME } else { libc::IFLA_ALT_IFNAME }, name);
    message
}

/// A link of the namespace `nsid`.
pub(in crate::real) fn get_link_at(nsid: Nsid, index: u32) -> Message {
    let mut message = get_link(index);
    message.i32(IFLA_TARGET_NETNSID, nsid.0);
    message
}

/// Deletes a link of the namespace `nsid`.
pub(in crate::real) fn delete_link_at(nsid: Nsid, index: u32) -> Message {
    let mut message = Message::new(libc::RTM_DELLINK, NLM_F_ACK, &ifinfomsg(index, 0, 0));
    message.i32(IFLA_TARGET_NETNSID, nsid.0);
    message
}

/// All links of the view's own namespace.
pub(in crate::real) fn dump_links() -> Message {
    let mut message = Message::new(libc::RTM_GETLINK, NLM_F_DUMP, &ifinfomsg(0, 0, 0));
    message.u32(libc::IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    message
}

/// All links of the view's own namespace, each answered by little more than its index.
pub(in crate::real) fn dump_indexes() -> Message {
    // `struct if_stats_msg`: family, padding, index, filter.
    let mut header = [0; 12];
    header[8..].copy_from_slice(&STATS_OF_FAMILIES.to_ne_bytes());
    Message::new(RTM_GETSTATS, NLM_F_DUMP, &header)
}

/// The addresses of one link, of both families.
pub(in crate::real) fn dump_addresses(index: u32) -> Message {
    Message::new(libc::RTM_GETADDR, NLM_F_DUMP, &ifaddrmsg(0, 0, index))
}

/// All routes of a family.
pub(in crate::real) fn dump_routes(family: libc::c_int) -> Message {
    let mut header = [0; 12];
    header[0] = u8::try_from(family).unwrap_or(0);
    Message::new(libc::RTM_GETROUTE, NLM_F_DUMP, &header)
}

/// All namespaces that have a number.
pub(in crate::real) fn dump_nsids() -> Message {
    Message::new(libc::RTM_GETNSID, NLM_F_DUMP, &[0; 4])
}

/// Gives the namespace behind `fd` a number and has it echoed.
pub(in crate::real) fn new_nsid(fd: BorrowedFd<'_>) -> Message {
    let mut message = Message::new(libc::RTM_NEWNSID, NLM_F_ACK | NLM_F_ECHO, &[0; 4]);
    // -1: the kernel chooses the number.
    message.i32(NETNSA_NSID, -1);
    message.i32(NETNSA_FD, fd.as_raw_fd());
    message
}

/// Asks for the number of the namespace behind `fd`.
pub(in crate::real) fn get_nsid(fd: BorrowedFd<'_>) -> Message {
    let mut message = Message::new(libc::RTM_GETNSID, 0, &[0; 4]);
    message.i32(NETNSA_FD, fd.as_raw_fd());
    message
}

fn ifinfomsg(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&change.to_ne_bytes());
    header
}

fn ifaddrmsg(family: u8, prefix: u8, index: u32) -> [u8; 8] {
    let mut header = [family, prefix, 0, 0, 0, 0, 0, 0];
    header[4..].copy_from_slice(&index.to_ne_bytes());
    header
}

fn rtmsg(route: &Route, delete: bool) -> [u8; 12] {
    let on_link = route.dst.addr().is_ipv4() && route.gateway.is_none();
    let scope = match (route.scope, delete) {
        (Some(scope), _) => scope,
        // To delete, NOWHERE matches a route of any scope.
        (None, true) => libc::RT_SCOPE_NOWHERE,
        (None, false) if on_link => libc::RT_SCOPE_LINK,
        (None, false) => libc::RT_SCOPE_UNIVERSE,
    };
    let table = match route.table {
        None | Some(0) => libc::RT_TABLE_MAIN,
        Some(table) => u8::try_from(table).unwrap_or(libc::RT_TABLE_COMPAT),
    };
    // To delete, UNSPEC matches whoever has set the route.
    let protocol = if delete { libc::RTPROT_UNSPEC } else { libc::RTPROT_BOOT };
    let family = family_of(route.dst.addr());
    [family, route.dst.prefix_len(), 0, 0, table, protocol, scope, libc::RTN_UNICAST, 0, 0, 0, 0]
}

fn family_of(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => AF_INET,
        IpAddr::V6(_) => AF_INET6,
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}
