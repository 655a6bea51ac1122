//! What an interface gets once it is there: addresses, routes, sysctls — as data, from a result. Pure.

use std::net::{IpAddr, Ipv4Addr};

use fairlead_cni::CniResult;
use fairlead_cni::result::RouteConfig;
use fairlead_host::{Address, AddressFlags, Op, Route};
use ipnet::{IpNet, Ipv4Net};

/// How duplicate address detection of IPv6 is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dad {
    /// The address is usable at once; a probe of our own looks for its double afterwards.
    Fast,
    /// By the kernel, before ADD is answered, as the reference plugins do.
    Wait,
}

/// Everything that is asked of the kernel about an interface that exists.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Setup {
    /// Sysctls to be written first, with whether a failure matters.
    pub sysctls: Vec<(String, &'static str, Must)>,
    /// Has the kernel announce addresses; tried only.
    pub arp_notify: Option<Op>,
    /// The addresses.
    pub addresses: Vec<Op>,
    /// The routes, after the addresses have settled.
    pub routes: Vec<Op>,
    /// True when the kernel's duplicate address detection has to end before the routes are set.
    pub settle: bool,
}

/// Whether a sysctl has to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Must {
    /// A failure fails the ADD.
    Succeed,
    /// A kernel without it is fine.
    Try,
    /// Read first, written only when it is set: the kernel then removes what the host's administrator had switched off.
    ClearIfSet,
}

/// What a result means for the interface `index` called `ifname`, which is up: the kernel would send its own
/// announcement (`arp_notify`) of an address that is there when the link comes up, to every pod on the same parent, while
/// ADD waits; the daemon sends one afterwards.
pub(crate) fn setup(result: &CniResult, index: u32, ifname: &str, notifies: bool, dad: Dad) -> Setup {
    let mut setup = Setup::default();
    let v6 = result.ips.iter().any(|ip| ip.address.addr().is_ipv6());
    if notifies {
        setup.arp_notify = Some(Op::SetArpNotify(index));
    }
    if notifies && !ndisc_notify_may_wait(result) {
        // A kernel without IPv6 does not have it. No message can set it.
        setup.sysctls.push((format!("net/ipv6/conf/{ifname}/ndisc_notify"), "1", Must::Try));
    }
    if v6 {
        // The reference plugins switch IPv6 on for `lo`, too.
        for name in ["lo", ifname] {
            setup.sysctls.push((format!("net/ipv6/conf/{name}/disable_ipv6"), "0", Must::ClearIfSet));
        }
        // Without it the kernel takes the IPv6 addresses away when the pod sets the link down.
        setup.sysctls.push((format!("net/ipv6/conf/{ifname}/keep_addr_on_down"), "1", Must::Succeed));
    }
    for ip in &result.ips {
        let nodad = dad == Dad::Fast && ip.address.addr().is_ipv6();
        setup.addresses.push(Op::AddAddress(Address {
            index,
            net: ip.address,
            broadcast: broadcast(ip.address),
            flags: AddressFlags { nodad, ..AddressFlags::default() },
        }));
    }
    // The reference plugins, too, wait only where an IPv6 address comes with a gateway.
    let v6_gateway = result.ips.iter().filter_map(|ip| ip.gateway).any(|gateway| gateway.is_ipv6());
    setup.settle = dad == Dad::Wait && v6_gateway;
    setup.routes = routes(result, index).map(Op::AddRoute).collect();
    setup
}

/// Whether `ndisc_notify` is set by whoever announces the addresses, after the answer: without an IPv6 address there is nothing that
/// the kernel could announce of its own before. To open a sysctl takes some 30 µs, more with many pods.
pub(crate) fn ndisc_notify_may_wait(result: &CniResult) -> bool {
    !result.ips.is_empty() && result.ips.iter().all(|ip| ip.address.addr().is_ipv4())
}

/// The kernel's broadcast address of an IPv4 network that has one.
fn broadcast(net: IpNet) -> Option<IpAddr> {
    match net {
        // A /31 is a point-to-point link without a broadcast address (RFC 3021).
        IpNet::V4(net) if net.prefix_len() < 31 => Some(IpAddr::V4(last(net))),
        _ => None,
    }
}

fn last(net: Ipv4Net) -> Ipv4Addr {
    net.broadcast()
}

/// The kernel's main table (`RT_TABLE_MAIN`), into which a route goes that names none.
const MAIN: u32 = 254;

/// Whether a route is what the whole pod goes by when it knows nothing better.
pub(crate) fn is_pods_default(route: &RouteConfig) -> bool {
    route.dst.prefix_len() == 0 && route.table.is_none_or(is_main)
}

/// Whether a table is the main one.
pub(crate) fn is_main(table: u32) -> bool {
    table == 0 || table == MAIN
}

/// The routes of a result, as the kernel has them then.
pub(crate) fn routes(result: &CniResult, index: u32) -> impl Iterator<Item = Route> + '_ {
    result.routes.iter().map(move |route| Route {
        dst: route.dst,
        gateway: result.next_hop(route),
        index,
        source: None,
        table: route.table,
        scope: Some(route.scope.unwrap_or(0)),
        priority: route.priority,
        mtu: route.mtu,
        advmss: route.advmss,
        protocol: None,
    })
}

#[cfg(test)]
mod tests {
    use fairlead_cni::result::IpConfig;

    use super::*;

    fn result() -> CniResult {
        let ip = |address: &str, gateway: &str| IpConfig {
            address: address.parse().unwrap(),
            gateway: gateway.parse().ok(),
            interface: Some(0),
        };
        let route = |dst: &str| RouteConfig {
            dst: dst.parse().unwrap(),
            gw: None,
            mtu: None,
            advmss: None,
            priority: None,
            table: None,
            scope: None,
        };
        CniResult {
            ips: vec![ip("10.1.0.5/16", "10.1.0.1"), ip("fd00::5/64", "fd00::1"), ip("10.2.0.5/31", "")],
            routes: vec![route("0.0.0.0/0"), route("::/0")],
            ..CniResult::default()
        }
    }

    #[test]
    fn a_route_without_a_next_hop_goes_by_the_gateway_of_its_family() {
        let gateways: Vec<_> = routes(&result(), 7).map(|r| r.gateway.unwrap().to_string()).collect();
        assert_eq!(gateways, ["10.1.0.1", "fd00::1"]);
    }

    #[test]
    fn a_route_whose_gateway_is_0_0_0_0_has_no_next_hop() {
        let mut result = result();
        result.routes[0].gw = "0.0.0.0".parse().ok();
        assert_eq!(routes(&result, 7).next().unwrap().gateway, None);
    }

    #[test]
    fn an_ipv6_address_is_usable_at_once_unless_the_kernel_is_to_look_for_its_double() {
        let flags = |dad| {
            setup(&result(), 7, "net1", true, dad)
                .addresses
                .iter()
                .filter_map(|op| if let Op::AddAddress(a) = op { Some(a.flags.nodad) } else { None })
                .collect::<Vec<_>>()
        };
        assert_eq!(flags(Dad::Fast), [false, true, false]);
        assert_eq!(flags(Dad::Wait), [false, false, false]);
        assert!(setup(&result(), 7, "net1", true, Dad::Wait).settle);
    }

    #[test]
    fn a_sysctl_that_no_message_sets_waits_where_only_ipv4_addresses_would_be_announced() {
        let ndisc = ("net/ipv6/conf/net1/ndisc_notify".to_owned(), "1", Must::Try);
        let all = result();
        let with = |ips: &[IpConfig]| CniResult { ips: ips.to_vec(), ..CniResult::default() };
        for (result, waits) in [(with(&all.ips), false), (with(&all.ips[..1]), true), (with(&[]), false)] {
            let made = setup(&result, 7, "net1", true, Dad::Fast);
            assert_eq!((made.arp_notify, made.sysctls.contains(&ndisc)), (Some(Op::SetArpNotify(7)), !waits));
            assert_eq!(ndisc_notify_may_wait(&result), waits);
            let quiet = setup(&result, 7, "net1", false, Dad::Fast);
            assert!(quiet.arp_notify.is_none() && !quiet.sysctls.contains(&ndisc));
        }
    }

    #[test]
    fn an_ipv4_address_gets_its_broadcast_address_where_the_network_has_one() {
        let broadcasts: Vec<_> = setup(&result(), 7, "net1", false, Dad::Fast)
            .addresses
            .iter()
            .filter_map(|op| {
                if let Op::AddAddress(a) = op { Some(a.broadcast.map(|b| b.to_string())) } else { None }
            })
            .collect();
        assert_eq!(broadcasts, [Some("10.1.255.255".to_owned()), None, None]);
    }
}
