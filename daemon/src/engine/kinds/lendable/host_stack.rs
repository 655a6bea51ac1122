//! What the host itself uses of a device, judged from what its namespace shows. Pure.
//!
//! A device carries what stands on it: whoever has the device of a VLAN, a bond or a bridge can take that down, read it and
//! change it. So the whole stack above a device is looked at. Of what is below it only this counts: whether it leads to somebody.

use std::collections::BTreeSet;
use std::iter::successors;

use fairlead_host::{Address, Link, Route};
use ipnet::IpNet;

use crate::engine::netdev::setup;

/// Kinds of links (`IFLA_INFO_KIND`) that a tenant may take, and whose lower devices it may take, besides wires: hardware, and what an
/// administrator makes of it to be shared. Any other one is part of somebody's network, or the node's own: a tunnel, a virtual switch.
const TENANTS_KINDS: [&str; 10] =
    ["", "bond", "team", "vlan", "dummy", "macvlan", "ipvlan", "can", "ipoib", "wwan"];

/// The kind of the ports of a switch's chip (DSA): hardware as any other, but their frames pass the NIC below them, which is all ports' own.
const PORT_OF_SWITCH_CHIP: &str = "dsa";

/// Kinds of links that are switches.
const SWITCHES: [&str; 2] = ["bridge", "openvswitch"];

/// Who made a route, as the kernel numbers it: the kernel itself, for an address (`RTPROT_KERNEL`).
const BY_KERNEL: u8 = 2;

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
    /// It is one end of a wire, and another namespace has the other one; or it stands on such a one.
    #[error(
        "{} leads into another network namespace, as the host's end of somebody's interface does",
        it_or(.lower.as_deref(), "below")
    )]
    LeadsAway {
        /// The link below it that does; `None`: the device itself.
        lower: Option<String>,
    },
    /// It is no kind of link that tenants may have.
    #[error("{} is of kind {kind:?}, which no tenant is lent", it_or(.upper.as_deref(), "above"))]
    NoTenants {
        /// The kind (`IFLA_INFO_KIND`).
        kind: String,
        /// The link above the device that is of this kind; `None`: the device itself.
        upper: Option<String>,
    },
    /// A route goes by it.
    #[error("it carries the node's route to {dst}{}", by_upper(.upper.as_deref()))]
    Route {
        /// Where that leads.
        dst: IpNet,
        /// The link above it that the route goes by; `None`: the device itself.
        upper: Option<String>,
    },
    /// It is one end of a wire, and the host cannot do without the other one.
    #[error("of its other end, {name:?}: {used}")]
    OtherEnd {
        /// The name of the other end.
        name: String,
        /// Why the host cannot do without that.
        used: Box<InUse>,
    },
}

fn by_upper(upper: Option<&str>) -> String {
    upper.map(|upper| format!(", through {upper:?} above it")).unwrap_or_default()
}

fn it_or(other: Option<&str>, place: &str) -> String {
    other.map_or_else(|| "it".to_owned(), |other| format!("{other:?} {place} it"))
}

/// The device and everything of the host's namespace that stands on it, the device first.
pub(super) fn stack<'l>(device: &'l Link, links: &'l [Link]) -> Vec<&'l Link> {
    let mut found = vec![device];
    let mut seen = BTreeSet::from([device.index]);
    let mut at = 0;
    // Each link comes in once, so a ring of links ends the search too.
    while let Some(lower) = found.get(at).copied() {
        at += 1;
        for link in links {
            let is_above = link.lower() == Some(lower.index) || lower.master == Some(link.index);
            if is_above && seen.insert(link.index) {
                found.push(link);
            }
        }
    }
    found
}

/// The links of which the addresses count: the device's stack, and that of its other end.
pub(super) fn with_addresses_that_count<'l>(device: &'l Link, links: &'l [Link]) -> Vec<&'l Link> {
    let ends = [Some(device), other_end(device, links)];
    ends.into_iter().flatten().flat_map(|end| stack(end, links)).collect()
}

/// The other end of a wire, where that is no port of a switch: a wire into one is there to be plugged in.
fn other_end<'l>(device: &Link, links: &'l [Link]) -> Option<&'l Link> {
    let by_index = |index: u32| links.iter().find(|link| link.index == index);
    let is_switch = |link: &Link| SWITCHES.contains(&link.kind.name());
    let other = by_index(device.other_end()?)?;
    let is_plugged_in = other.master.and_then(by_index).is_some_and(is_switch);
    (!is_plugged_in).then_some(other)
}

/// Whether the host can do without a device. An address alone, or that it leads away, refuses it only to a tenant; to others the first one
/// is told. A tenant gets no part of the node's own networks either.
pub(super) fn judge(
    device: &Link,
    links: &[Link],
    routes: &[Route],
    addresses: &[Address],
    word: Word,
) -> Result<Option<InUse>, InUse> {
    let told = judge_end(device, links, routes, addresses, word)?;
    match other_end(device, links).filter(|_| word == Word::Tenants) {
        Some(other) => judge_end(other, links, routes, addresses, word)
            .map_err(|used| InUse::OtherEnd { name: other.name.clone(), used: Box::new(used) }),
        None => Ok(told),
    }
}

fn judge_end(
    device: &Link,
    links: &[Link],
    routes: &[Route],
    addresses: &[Address],
    word: Word,
) -> Result<Option<InUse>, InUse> {
    let stack = stack(device, links);
    if let Some(used) = carries_default(&stack, routes, word).or_else(|| port(&stack, links)) {
        return Err(used);
    }
    let told = addressed(&stack, addresses).or_else(|| leads_away(device, links));
    if word != Word::Tenants {
        return Ok(told);
    }
    match told.or_else(|| no_tenants(device, &stack)).or_else(|| carries_route(&stack, routes)) {
        Some(used) => Err(used),
        None => Ok(None),
    }
}

/// The name of a link above the device, which is the first of its stack.
fn upper(stack: &[&Link], index: u32) -> Option<String> {
    stack.iter().skip(1).find(|link| link.index == index).map(|link| link.name.clone())
}

fn is_of(stack: &[&Link], index: u32) -> bool {
    stack.iter().any(|link| link.index == index)
}

fn carries_default(stack: &[&Link], routes: &[Route], word: Word) -> Option<InUse> {
    let counts = |route: &Route| word != Word::Kubelets || is_used_first(route, routes);
    let mut defaults = routes.iter().filter(|route| is_default(&route.dst) && counts(route));
    if let Some(route) = defaults.clone().find(|route| is_of(stack, route.index)) {
        return Some(InUse::DefaultRoute { upper: upper(stack, route.index) });
    }
    defaults.any(|route| route.index == 0).then_some(InUse::UnknownDefaultRoute)
}

fn port(stack: &[&Link], links: &[Link]) -> Option<InUse> {
    let (port, master) = stack.iter().find_map(|link| Some((link, link.master?)))?;
    let known = links.iter().find(|link| link.index == master);
    Some(InUse::Port {
        kind: known.map_or("interface", |master| master.kind.name()).to_owned(),
        master: known.map_or_else(|| format!("number {master}"), |master| master.name.clone()),
        upper: upper(stack, port.index),
    })
}

fn addressed(stack: &[&Link], addresses: &[Address]) -> Option<InUse> {
    let mut of_stack = addresses.iter().filter(|address| is_of(stack, address.index));
    let address = of_stack.find(|address| is_of_node(&address.net))?;
    Some(InUse::Addressed { address: address.net, upper: upper(stack, address.index) })
}

/// Whether a link, or what it stands on, leads into another namespace; `links` are at least those below it.
pub(super) fn leads_away(device: &Link, links: &[Link]) -> Option<InUse> {
    let down = successors(Some(device), |upper| {
        let index = upper.lower()?;
        links.iter().find(|link| link.index == index)
    });
    // As many steps as there are links, so a ring of them ends too.
    let found = down.take(links.len().saturating_add(1)).find(|link| link.leads_away())?;
    Some(InUse::LeadsAway { lower: (found.index != device.index).then(|| found.name.clone()) })
}

fn no_tenants(device: &Link, stack: &[&Link]) -> Option<InUse> {
    let may_have = |link: &Link| match link.kind.name() {
        PORT_OF_SWITCH_CHIP => link.index == device.index,
        kind => link.kind.is_wire() || TENANTS_KINDS.contains(&kind),
    };
    let link = stack.iter().find(|link| !may_have(link))?;
    Some(InUse::NoTenants { kind: link.kind.name().to_owned(), upper: upper(stack, link.index) })
}

fn carries_route(stack: &[&Link], routes: &[Route]) -> Option<InUse> {
    let route = routes.iter().find(|route| is_of(stack, route.index) && is_made_for_node(route))?;
    Some(InUse::Route { dst: route.dst, upper: upper(stack, route.index) })
}

/// Whether somebody has made the route, to more than what every interface has by itself.
fn is_made_for_node(route: &Route) -> bool {
    let is_everyones = match route.dst {
        IpNet::V4(net) => net.addr().is_link_local() && net.prefix_len() <= 16,
        IpNet::V6(net) => net.addr().is_unicast_link_local(),
    };
    route.protocol != Some(BY_KERNEL) && !is_everyones && !route.dst.addr().is_multicast()
}

/// Whether the node itself is reached by one of these links. A node that is a container has one end of a wire for that.
pub(super) fn is_uplink(links: &[Link], routes: &[Route]) -> bool {
    let is_nodes = |route: &Route| is_default(&route.dst) && route.table.is_none_or(setup::is_main);
    routes.iter().any(|route| is_nodes(route) && links.iter().any(|link| link.index == route.index))
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
