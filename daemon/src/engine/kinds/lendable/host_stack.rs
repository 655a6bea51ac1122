//! What the host itself uses of a device, judged from what its namespace shows. Pure.
//!
//! A device carries what stands on it: whoever has the device of a VLAN, a bond or a bridge can take that down, read it and
//! change it. So the whole stack above a device is looked at, and only the one below it stays out of account.

use std::collections::BTreeSet;

use fairlead_host::{Address, Kind, Link, Route};
use ipnet::IpNet;

use crate::engine::netdev::setup;

/// Kinds of links whose `IFLA_LINK` is the other end of a wire, not a device that they stand on.
const WIRES: [&str; 3] = ["veth", "vxcan", "netkit"];

/// By whose word a device goes to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// A tenant's definition.
    Tenants,
    /// The administrator's network.
    Administrators,
    /// Kubelet's, which gives what a device plugin of the administrator's serves. NetworkManager may have an address and a default route on
    /// each such VF: those say nothing, but for a route that the node uses before others.
    Kubelets,
}

/// Why the host cannot do without a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum InUse {
    /// A default route goes by it.
    #[error("it carries the node's default route{}", by_upper(.upper.as_deref()))]
    DefaultRoute {
        /// The link above it that the route goes by; `None`: the device itself.
        upper: Option<String>,
    },
    /// A default route does not say by which interface it goes.
    #[error(
        "a default route of the node does not tell its interface, which may be this one (a nexthop object, with net.ipv4.nexthop_compat_mode off)"
    )]
    UnknownDefaultRoute,
    /// It is a port of a bridge, a bond, a team, a VRF or a virtual switch.
    #[error("it is a port of {kind} {master:?}{}", by_upper(.upper.as_deref()))]
    Port {
        /// The kind of what it is a port of (`IFLA_INFO_KIND`).
        kind: String,
        /// The name of what it is a port of.
        master: String,
        /// The link above the device that is the port; `None`: the device itself.
        upper: Option<String>,
    },
    /// It has addresses of the node.
    #[error("it has the address {address}{}", by_upper(.upper.as_deref()))]
    Addressed {
        /// The first of its addresses.
        address: IpNet,
        /// The link above the device that has it; `None`: the device itself.
        upper: Option<String>,
    },
    /// It is a veth whose peer another namespace has: the host's end of a pod's interface.
    #[error("its peer is in another network namespace: it is the host's end of somebody's interface")]
    PeerElsewhere,
}

fn by_upper(upper: Option<&str>) -> String {
    upper.map(|upper| format!(", through {upper:?} above it")).unwrap_or_default()
}

/// The device and everything of the host's namespace that stands on it, the device first.
pub(in crate::engine::kinds) fn stack<'l>(device: &'l Link, links: &'l [Link]) -> Vec<&'l Link> {
    let mut found = vec![device];
    let mut seen = BTreeSet::from([device.index]);
    let mut at = 0;
    // Each link comes in once, so a ring of links ends the search too.
    while let Some(lower) = found.get(at).copied() {
        at += 1;
        for link in links {
            if (stands_on(link, lower) || lower.master == Some(link.index)) && seen.insert(link.index) {
                found.push(link);
            }
        }
    }
    found
}

/// The index of what a link stands on in its own namespace, if it stands on anything there.
pub(super) fn lower_of(link: &Link) -> Option<u32> {
    let is_wire = matches!(&link.kind, Kind::Other { name } if WIRES.contains(&name.as_str()));
    link.parent.filter(|_| link.parent_nsid.is_none() && !is_wire)
}

fn stands_on(upper: &Link, lower: &Link) -> bool {
    lower_of(upper) == Some(lower.index)
}

/// Whether the host can do without a device; `addresses` are those of its stack. An address alone, or a peer in another namespace, refuses
/// it only to a tenant; to others the first one is told.
pub(super) fn judge(
    stack: &[&Link],
    links: &[Link],
    routes: &[Route],
    addresses: &[Address],
    word: Word,
) -> Result<Option<InUse>, InUse> {
    // The device itself is the first of its stack.
    let upper =
        |index: u32| stack.iter().skip(1).find(|link| link.index == index).map(|link| link.name.clone());
    let is_of_stack = |index: u32| stack.iter().any(|link| link.index == index);
    let counts = |route: &Route| word != Word::Kubelets || is_used_first(route, routes);
    let mut defaults = routes.iter().filter(|route| is_default(&route.dst) && counts(route));
    if let Some(route) = defaults.clone().find(|route| is_of_stack(route.index)) {
        return Err(InUse::DefaultRoute { upper: upper(route.index) });
    }
    if defaults.any(|route| route.index == 0) {
        return Err(InUse::UnknownDefaultRoute);
    }
    if let Some((port, master)) = stack.iter().find_map(|link| Some((link, link.master?))) {
        let known = links.iter().find(|link| link.index == master);
        return Err(InUse::Port {
            kind: known.map_or("interface", |master| master.kind.name()).to_owned(),
            master: known.map_or_else(|| format!("number {master}"), |master| master.name.clone()),
            upper: upper(port.index),
        });
    }
    let addressed = addresses
        .iter()
        .find(|address| is_of_node(&address.net))
        .map(|address| InUse::Addressed { address: address.net, upper: upper(address.index) });
    let leads_away =
        stack.first().is_some_and(|link| link.kind.name() == "veth" && link.parent_nsid.is_some());
    match addressed.or_else(|| leads_away.then_some(InUse::PeerElsewhere)) {
        Some(used) if word == Word::Tenants => Err(used),
        told => Ok(told),
    }
}

/// Whether a route leads to all addresses, or to one of the halves (`0/1`, `128/1`) into which VPNs and some operators split that, or to
/// all that IPv6 has given out (`2000::/3`).
fn is_default(dst: &IpNet) -> bool {
    dst.prefix_len() <= if dst.addr().is_ipv6() { 3 } else { 1 }
}

/// Whether no other route of the main table to the same destination goes before it. One of another table is for what its rules say.
fn is_used_first(route: &Route, routes: &[Route]) -> bool {
    let is_main = |route: &Route| route.table.is_none_or(setup::is_main);
    let before = |other: &Route| {
        is_main(other)
            && other.dst == route.dst
            && other.priority.unwrap_or_default() < route.priority.unwrap_or_default()
    };
    is_main(route) && !routes.iter().any(before)
}

/// Whether somebody has given the address to the node: link-local ones the kernel makes by itself.
fn is_of_node(net: &IpNet) -> bool {
    match net {
        IpNet::V4(net) => !net.addr().is_link_local(),
        IpNet::V6(net) => !net.addr().is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests;
