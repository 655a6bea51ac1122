//! What the kernel refuses of addresses and routes on every node, told before it is asked.
//!
//! The reference plugins leave all of it to the kernel, so nothing is refused in here that the kernel takes from them. What depends on the
//! node, or on what an interface has learnt by then, is the kernel's to say.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};

use super::{CniResult, RouteConfig};
use crate::error::{CniError, Code};

/// With a smaller MTU, in bytes, an interface has no IPv6 (RFC 8200, section 5).
const LEAST_MTU_OF_IPV6: u32 = 1280;

/// The table of a route that names none (`RT_TABLE_MAIN`).
const MAIN_TABLE: u32 = 254;

/// The metric of an IPv6 route that names none (`IP6_RT_PRIO_USER`).
const IPV6_METRIC: u32 = 1024;

/// The scope of what is on the link (`RT_SCOPE_LINK`). For an IPv4 gateway the kernel looks at routes of this one and above alone.
const ON_LINK: u8 = 253;

impl CniResult {
    /// Refuses addresses and routes that the kernel gives no interface of a pod.
    ///
    /// # Errors
    /// Code 7, with the first of them and what to do.
    pub fn must_be_possible(&self) -> Result<(), CniError> {
        self.ips.iter().try_for_each(|ip| must_be_assignable(&ip.address))?;
        self.routes_must_be_possible()
    }

    /// The same of the routes alone. Refused are an IPv6 route by an IPv4 gateway, a route that is there twice, and an IPv4 gateway that is
    /// not on the link. An IPv6 gateway may be on it all the same: an interface learns networks from its routers, too.
    ///
    /// # Errors
    /// Code 7, with the first of them and what to do.
    pub fn routes_must_be_possible(&self) -> Result<(), CniError> {
        if self.routes.is_empty() {
            return Ok(());
        }
        let on_link = NetworksOnLink::of(self);
        let mut seen = HashSet::new();
        for route in &self.routes {
            route.must_have_possible_gateway()?;
            let next_hop = self.next_hop(route);
            if !seen.insert(identity(route, next_hop)) {
                return Err(there_twice(route, next_hop));
            }
            if let (IpNet::V4(_), Some(IpAddr::V4(gateway))) = (route.dst, next_hop)
                && !on_link.contain(gateway)
            {
                return Err(not_on_link(route, gateway));
            }
        }
        Ok(())
    }

    /// Refuses IPv6 on an interface whose `mtu`, in bytes, is too small for it.
    ///
    /// # Errors
    /// Code 7, with the first address or route of IPv6, and the MTU that it needs.
    pub fn must_have_room_for_ipv6(&self, mtu: u32) -> Result<(), CniError> {
        let addresses = self.ips.iter().map(|ip| ip.address);
        let mut all = addresses.chain(self.routes.iter().map(|route| route.dst));
        match all.find(|net| net.addr().is_ipv6()) {
            Some(net) if mtu < LEAST_MTU_OF_IPV6 => {
                let msg = format!(
                    "{net} is of IPv6, which an interface with an MTU of {mtu} does not have: it needs {LEAST_MTU_OF_IPV6}"
                );
                Err(CniError::new(Code::InvalidConfig, msg)
                    .with("raise the MTU (`mtu`, or that of the master), or leave IPv6 out"))
            }
            _ => Ok(()),
        }
    }

    /// By what a route goes: its own gateway, or the first one of its family. `None`: its destination is on the link.
    pub fn next_hop(&self, route: &RouteConfig) -> Option<IpAddr> {
        let is_of_family = |gateway: &IpAddr| gateway.is_ipv6() == route.dst.addr().is_ipv6();
        let first = || self.ips.iter().filter_map(|ip| ip.gateway).find(is_of_family);
        // To the kernel 0.0.0.0 is none.
        route.gw.or_else(first).filter(|gateway| *gateway != IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }
}

impl RouteConfig {
    /// Refuses an IPv4 gateway of an IPv6 route. The kernel takes the opposite.
    pub(crate) fn must_have_possible_gateway(&self) -> Result<(), CniError> {
        match (self.dst, self.gw) {
            (IpNet::V6(dst), Some(gateway @ IpAddr::V4(_))) => {
                let msg = format!(
                    "the route to {dst} has the gateway {gateway}, and no route of IPv6 goes by one of IPv4"
                );
                Err(CniError::new(Code::InvalidConfig, msg).with("give the route a gateway of IPv6"))
            }
            _ => Ok(()),
        }
    }
}

/// Refuses an address that the kernel gives no interface but `lo`. Of IPv4 it takes every one.
pub(crate) fn must_be_assignable(address: &IpNet) -> Result<(), CniError> {
    let IpAddr::V6(ip) = address.addr() else { return Ok(()) };
    let what = match ip {
        _ if ip.is_multicast() => "a multicast address",
        _ if ip.is_unspecified() => "the unspecified address",
        _ if ip.is_loopback() => "the loopback address",
        _ => return Ok(()),
    };
    let msg = format!("the address {address} is {what}, which no interface of a pod's network can have");
    Err(CniError::new(Code::InvalidConfig, msg).with("give a unicast address instead"))
}

/// What makes two routes one to the kernel.
type Identity = (IpNet, Option<IpAddr>, u32, u32, Option<(u8, Option<u32>, Option<u32>)>);

fn identity(route: &RouteConfig, next_hop: Option<IpAddr>) -> Identity {
    let is_v4 = route.dst.addr().is_ipv4();
    let table = route.table.filter(|table| *table != 0).unwrap_or(MAIN_TABLE);
    let metric = route.priority.unwrap_or(if is_v4 { 0 } else { IPV6_METRIC });
    // In IPv6 another scope or MTU makes no other route.
    let of_v4 = is_v4.then(|| (route.scope.unwrap_or(0), route.mtu, route.advmss));
    (route.dst.trunc(), next_hop, table, metric, of_v4)
}

fn there_twice(route: &RouteConfig, next_hop: Option<IpAddr>) -> CniError {
    let by = next_hop.map_or_else(|| " on the link".to_owned(), |gateway| format!(" by gateway {gateway}"));
    let msg = format!("the route to {}{by} is there twice", route.dst);
    CniError::new(Code::InvalidConfig, msg)
        .with("name each route once; a second one to the same destination needs a gateway, a `priority` or a `table` of its own")
}

fn not_on_link(route: &RouteConfig, gateway: Ipv4Addr) -> CniError {
    let msg = format!(
        "the route to {} has the gateway {gateway}, which is on none of the interface's networks",
        route.dst
    );
    CniError::new(Code::InvalidConfig, msg)
        .with("name a gateway in the subnet of one of the addresses, or first a route to it without `gw` and with \"scope\": 253")
}

/// What of IPv4 is on the link: the networks of the addresses, and the routes without a next hop that say so. Sorted by their first
/// addresses, each with the farthest last address so far: a configuration may have tens of thousands.
struct NetworksOnLink(Vec<(Ipv4Addr, Ipv4Addr)>);

impl NetworksOnLink {
    fn of(result: &CniResult) -> NetworksOnLink {
        let is_on_link = |route: &&RouteConfig| {
            route.scope.is_some_and(|scope| scope >= ON_LINK) && result.next_hop(route).is_none()
        };
        let routes = result.routes.iter().filter(is_on_link).map(|route| route.dst);
        let ends = |net: Ipv4Net| (net.network(), net.broadcast());
        let v4 = |net: IpNet| if let IpNet::V4(net) = net { Some(ends(net)) } else { None };
        let mut all: Vec<_> = result.ips.iter().map(|ip| ip.address).chain(routes).filter_map(v4).collect();
        all.sort_unstable();
        let mut farthest = Ipv4Addr::UNSPECIFIED;
        for (_, last) in &mut all {
            farthest = farthest.max(*last);
            *last = farthest;
        }
        NetworksOnLink(all)
    }

    fn contain(&self, ip: Ipv4Addr) -> bool {
        let before = self.0.partition_point(|(first, _)| *first <= ip);
        self.0.get(..before).and_then(<[_]>::last).is_some_and(|(_, last)| ip <= *last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::CniVersion;

    const BOTH: &str =
        r#"{"address":"10.1.1.5/24","gateway":"10.1.1.1"},{"address":"fd00::5/64","gateway":"fd00::1"}"#;
    const NO_GATEWAY: &str =
        r#"{"address":"10.1.1.5/24"},{"address":"10.1.2.5/32"},{"address":"fd00::5/64"}"#;

    fn result(ips: &str, routes: &str) -> CniResult {
        let text = format!(r#"{{"cniVersion":"1.1.0","ips":[{ips}],"routes":[{routes}]}}"#);
        CniResult::parse_text(&text, CniVersion::V1_1_0).unwrap()
    }

    /// Why a result is refused; empty: it is not.
    fn why(refused: Result<(), CniError>) -> String {
        let Err(error) = refused else { return String::new() };
        assert_eq!(error.code, Code::InvalidConfig, "{error}");
        assert!(!error.details.is_empty(), "{error}");
        error.msg
    }

    #[test]
    fn an_address_is_refused_that_the_kernel_gives_no_interface_and_no_other_is() {
        let of = |address: &str| why(result(&format!(r#"{{"address":"{address}"}}"#), "").must_be_possible());
        for (address, what) in [
            ("ff02::1/64", "a multicast address"),
            ("ff3e::1/128", "a multicast address"),
            ("::/64", "the unspecified address"),
            ("::1/128", "the loopback address"),
        ] {
            assert!(
                of(address).starts_with(&format!("the address {address} is {what}, ")),
                "{}",
                of(address)
            );
        }
        let taken = "::2/128 ::1.2.3.4/120 fe80::1/64 2001:db8::/64 127.0.0.5/8 224.0.0.1/4 0.0.0.0/24 10.0.0.255/24 255.255.255.255/32";
        for address in taken.split(' ') {
            assert_eq!(of(address), "", "{address}");
        }
    }

    #[test]
    fn a_second_route_is_refused_where_the_kernel_takes_it_for_the_first() {
        let v4 = r#"{"dst":"10.9.0.0/16"}"#;
        let v6 = r#"{"dst":"fd09::/16"}"#;
        for (ips, one, other, by) in [
            (BOTH, v4, v4, "10.9.0.0/16 by gateway 10.1.1.1"),
            (
                BOTH,
                v4,
                r#"{"dst":"10.9.7.7/16","gw":"10.1.1.1","table":254,"scope":0}"#,
                "10.9.7.7/16 by gateway 10.1.1.1",
            ),
            (BOTH, v6, v6, "fd09::/16 by gateway fd00::1"),
            (
                BOTH,
                v6,
                r#"{"dst":"fd09::/16","mtu":1400,"scope":253,"priority":1024}"#,
                "fd09::/16 by gateway fd00::1",
            ),
            (NO_GATEWAY, v4, r#"{"dst":"10.9.0.0/16","gw":"0.0.0.0"}"#, "10.9.0.0/16 on the link"),
        ] {
            let told = why(result(ips, &format!("{one},{other}")).must_be_possible());
            assert_eq!(told, format!("the route to {by} is there twice"), "{one} {other}");
        }
        for (one, other) in [
            (v4, r#"{"dst":"10.9.0.0/16","gw":"10.1.1.2"}"#),
            (v4, r#"{"dst":"10.9.0.0/16","priority":5}"#),
            (v4, r#"{"dst":"10.9.0.0/16","table":5}"#),
            (v4, r#"{"dst":"10.9.0.0/16","scope":200}"#),
            (v4, r#"{"dst":"10.9.0.0/16","mtu":1400}"#),
            (v6, r#"{"dst":"fd09::/16","gw":"fd00::2"}"#),
        ] {
            assert_eq!(why(result(BOTH, &format!("{one},{other}")).must_be_possible()), "", "{one} {other}");
        }
    }

    #[test]
    fn a_gateway_is_refused_that_no_network_and_no_route_on_the_link_can_reach() {
        let far = r#"{"dst":"10.9.0.0/16","gw":"10.2.0.1"}"#;
        let told =
            "the route to 10.9.0.0/16 has the gateway 10.2.0.1, which is on none of the interface's networks";
        for routes in [
            far.to_owned(),
            format!(r#"{far},{{"dst":"10.2.0.0/16","gw":"10.1.1.1"}}"#),
            format!(r#"{{"dst":"10.2.0.1/32"}},{far}"#),
            format!(r#"{{"dst":"10.2.0.0/32","scope":253}},{far}"#),
        ] {
            assert_eq!(why(result(NO_GATEWAY, &routes).must_be_possible()), told, "{routes}");
        }
        let outside = r#"{"address":"10.1.1.5/32","gateway":"10.1.1.1"}"#;
        let told = why(result(outside, r#"{"dst":"0.0.0.0/0"}"#).must_be_possible());
        assert!(told.contains("gateway 10.1.1.1, which is on none"), "{told}");
        for routes in [
            r#"{"dst":"10.9.0.0/16","gw":"10.1.1.1"}"#,
            r#"{"dst":"10.9.0.0/16","gw":"10.1.2.5"}"#,
            r#"{"dst":"10.9.0.0/16","gw":"0.0.0.0"}"#,
            r#"{"dst":"10.9.0.0/16"}"#,
            r#"{"dst":"10.2.0.0/16","scope":253},{"dst":"10.2.9.9/32","scope":253},{"dst":"10.9.0.0/16","gw":"10.2.77.1"}"#,
            // What routers tell it may reach these.
            r#"{"dst":"fd09::/16","gw":"fe80::1"}"#,
            r#"{"dst":"fd09::/16","gw":"fd01::1"}"#,
            r#"{"dst":"10.9.0.0/16","gw":"fd00::9"}"#,
        ] {
            assert_eq!(why(result(NO_GATEWAY, routes).must_be_possible()), "", "{routes}");
        }
    }

    #[test]
    fn an_ipv6_route_by_an_ipv4_gateway_is_refused() {
        let told = why(result(BOTH, r#"{"dst":"::/0","gw":"10.1.1.254"}"#).must_be_possible());
        assert_eq!(
            told,
            "the route to ::/0 has the gateway 10.1.1.254, and no route of IPv6 goes by one of IPv4"
        );
    }

    #[test]
    fn ipv6_needs_an_mtu_of_1280_bytes_and_ipv4_does_not() {
        let of = |ips: &str, routes: &str, mtu| why(result(ips, routes).must_have_room_for_ipv6(mtu));
        assert!(
            of(BOTH, "", 1279).starts_with("fd00::5/64 is of IPv6, which an interface with an MTU of 1279")
        );
        let v4 = r#"{"address":"10.1.1.5/24"}"#;
        assert!(of(v4, r#"{"dst":"fd09::/16"}"#, 1000).starts_with("fd09::/16 is of IPv6"));
        assert_eq!(
            (of(BOTH, "", 1280), of(v4, r#"{"dst":"10.9.0.0/16"}"#, 68)),
            (String::new(), String::new())
        );
    }

    #[test]
    fn tens_of_thousands_of_routes_are_compared_in_no_time() {
        let ip = |net: u32, n: u32| Ipv4Addr::from_bits((net << 24) + n);
        let pair = |n: u32| {
            let (near, far) = (ip(11, n), ip(12, n));
            format!(r#"{{"dst":"{near}/32","scope":253}},{{"dst":"{far}/32","gw":"{near}"}}"#)
        };
        let routes: Vec<String> = (0..20_000).map(pair).collect();
        let result = result(NO_GATEWAY, &routes.join(","));
        let begun = std::time::Instant::now();
        result.must_be_possible().unwrap();
        assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
    }
}
