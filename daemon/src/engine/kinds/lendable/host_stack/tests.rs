use fairlead_host::{AddressFlags, Kind, Nsid};

use super::*;

fn link(index: u32, name: &str, kind: &str) -> Link {
    let kind = if kind == "vlan" { Kind::Vlan { id: 5 } } else { Kind::Other { name: kind.to_owned() } };
    Link { mtu: 1500, up: true, carrier: true, ..Link::bare(index, name.to_owned(), kind) }
}

fn default_route(index: u32, table: u32, v6: bool) -> Route {
    Route {
        dst: if v6 { "::/0" } else { "0.0.0.0/0" }.parse().unwrap(),
        gateway: None,
        index,
        source: None,
        table: Some(table),
        scope: None,
        priority: None,
        mtu: None,
        advmss: None,
        protocol: None,
    }
}

fn address(index: u32, net: &str) -> Address {
    Address { index, net: net.parse().unwrap(), broadcast: None, flags: AddressFlags::default() }
}

fn on(link: Link, parent: u32) -> Link {
    Link { parent: Some(parent), ..link }
}

/// The same, with the parent in another namespace.
fn away(link: Link) -> Link {
    Link { parent_nsid: Some(Nsid(3)), ..on(link, 7) }
}

/// What is found of the link called `name`, by the administrator's word.
fn judged(
    name: &str,
    links: &[Link],
    routes: &[Route],
    addresses: &[Address],
) -> Result<Option<InUse>, InUse> {
    judged_by(Word::Administrators, name, links, routes, addresses)
}

/// The same with those addresses alone that the kernel is asked for.
fn judged_by(
    word: Word,
    name: &str,
    links: &[Link],
    routes: &[Route],
    addresses: &[Address],
) -> Result<Option<InUse>, InUse> {
    let device = links.iter().find(|link| link.name == name).unwrap();
    let counts = with_addresses_that_count(device, links);
    let is_read = |a: &&Address| counts.iter().any(|link| link.index == a.index);
    let addresses: Vec<Address> = addresses.iter().filter(is_read).cloned().collect();
    judge(device, links, routes, &addresses, word)
}

/// Why a tenant does not get the link called `name`; empty: it does.
fn refused(name: &str, links: &[Link], routes: &[Route], addresses: &[Address]) -> String {
    match judged_by(Word::Tenants, name, links, routes, addresses) {
        Ok(told) => {
            assert_eq!(told, None);
            String::new()
        }
        Err(used) => used.to_string(),
    }
}

fn route(index: u32, dst: &str, protocol: u8) -> Route {
    Route { dst: dst.parse().unwrap(), protocol: Some(protocol), ..default_route(index, 254, false) }
}

/// Two NICs in a bond with a VLAN, a NIC in a bridge, one of its own, and a wire.
fn node() -> Vec<Link> {
    let port = |link: Link, master: u32| Link { master: Some(master), ..link };
    vec![
        port(link(2, "ens1", ""), 4),
        port(link(3, "ens2", ""), 4),
        link(4, "bond0", "bond"),
        on(link(5, "bond0.5", "vlan"), 4),
        port(link(6, "ens3", ""), 7),
        link(7, "br0", "bridge"),
        link(8, "ens4", ""),
        on(link(9, "wire0", "veth"), 10),
        on(link(10, "wire1", "veth"), 9),
        on(link(11, "ens4.5", "vlan"), 8),
    ]
}

#[test]
fn of_what_kubelet_gives_only_the_default_route_that_the_node_uses_first_counts() {
    let node = node();
    let own = [address(8, "192.0.2.7/24")];
    let by = |metric, table| Route { priority: Some(metric), ..default_route(8, table, false) };
    let judged = |routes: &[Route]| judge(&node[6], &node, routes, &own, Word::Kubelets);
    let first = Route { priority: Some(100), ..default_route(9, 254, false) };
    let leased = judged(&[first.clone(), by(101, 254), by(1, 1000)]);
    assert_eq!(leased, Ok(Some(InUse::Addressed { address: own[0].net, upper: None })));
    for routes in [vec![by(101, 254)], vec![first, by(99, 254)]] {
        assert_eq!(judged(&routes), Err(InUse::DefaultRoute { upper: None }));
    }
}

#[test]
fn what_carries_a_default_route_of_any_table_is_not_lent_nor_is_anything_below_it() {
    let node = node();
    for (table, v6) in [(254, false), (254, true), (253, false), (1000, false)] {
        let routes = [default_route(5, table, v6)];
        for (name, upper) in [("ens1", "bond0.5"), ("ens2", "bond0.5"), ("bond0", "bond0.5")] {
            let found = judged(name, &node, &routes, &[]).unwrap_err();
            assert_eq!(found, InUse::DefaultRoute { upper: Some(upper.to_owned()) });
        }
        let itself = judged("bond0.5", &node, &routes, &[]).unwrap_err();
        assert_eq!(itself.to_string(), "it carries the node's default route");
        assert_eq!(judged("ens4", &node, &routes, &[]), Ok(None));
    }
    let other = Route { dst: "10.0.0.0/8".parse().unwrap(), ..default_route(8, 254, false) };
    assert_eq!(judged("ens4", &node, &[other], &[]), Ok(None));
}

#[test]
fn a_default_route_that_does_not_tell_its_interface_may_be_any_devices() {
    let found = judged("ens4", &node(), &[default_route(0, 254, false)], &[]);
    assert_eq!(found, Err(InUse::UnknownDefaultRoute));
}

#[test]
fn a_port_of_anything_is_not_lent_nor_is_what_a_port_stands_on() {
    let mut node = node();
    let told = judged("ens3", &node, &[], &[]).unwrap_err().to_string();
    assert_eq!(told, r#"it is a port of bridge "br0""#);
    let vlan = node.iter_mut().find(|link| link.name == "ens4.5").unwrap();
    vlan.master = Some(7);
    let told = judged("ens4", &node, &[], &[]).unwrap_err().to_string();
    assert_eq!(told, r#"it is a port of bridge "br0", through "ens4.5" above it"#);
}

#[test]
fn the_other_end_of_a_wire_does_not_stand_on_it() {
    let node = node();
    let routes = [default_route(9, 254, false)];
    assert!(judged("wire0", &node, &routes, &[]).is_err());
    assert_eq!(judged("wire1", &node, &routes, &[]), Ok(None));
}

#[test]
fn an_address_is_told_and_refuses_only_where_that_is_wanted() {
    let node = node();
    let own = [address(11, "192.0.2.7/24")];
    let told = judged("ens4", &node, &[], &own).unwrap().unwrap();
    assert_eq!(told.to_string(), r#"it has the address 192.0.2.7/24, through "ens4.5" above it"#);
    assert_eq!(judged_by(Word::Tenants, "ens4", &node, &[], &own), Err(told));
    let local = [address(8, "fe80::1/64"), address(8, "169.254.0.1/16")];
    assert_eq!(refused("ens4", &node, &[], &local), "");
}

#[test]
fn a_ring_of_links_is_gone_through_once() {
    let (mut a, mut b) = (link(1, "a", "x"), link(2, "b", "x"));
    (a.parent, b.parent) = (Some(2), Some(1));
    assert_eq!(judged("a", &[a, b], &[], &[]), Ok(None));
}

#[test]
fn the_hosts_end_of_a_pods_wire_is_refused_to_a_tenant_and_told_to_the_administrator() {
    let lower = |name: Option<&str>| InUse::LeadsAway { lower: name.map(str::to_owned) };
    for kind in ["veth", "netkit"] {
        let links =
            [away(link(5, "end", kind)), on(link(6, "end.5", "vlan"), 5), on(link(8, "free", kind), 9)];
        for (name, used) in [("end", lower(None)), ("end.5", lower(Some("end")))] {
            assert_eq!(judged_by(Word::Tenants, name, &links, &[], &[]), Err(used.clone()), "{kind}");
            assert_eq!(judged(name, &links, &[], &[]), Ok(Some(used)), "{kind}");
        }
        assert_eq!(refused("free", &links, &[], &[]), "");
    }
}

#[test]
fn one_end_of_a_wire_whose_other_end_the_node_uses_is_refused_to_a_tenant() {
    let node = node();
    let own = [address(10, "192.0.2.7/24")];
    let why = refused("wire0", &node, &[], &own);
    assert_eq!(why, r#"of its other end, "wire1": it has the address 192.0.2.7/24"#);
    assert_eq!(judged("wire0", &node, &[], &own), Ok(None), "the administrator knows");
    let why = refused("wire0", &node, &[route(10, "10.0.0.0/8", 4)], &[]);
    assert_eq!(why, r#"of its other end, "wire1": it carries the node's route to 10.0.0.0/8"#);
    assert_eq!(refused("wire0", &node, &[], &[]), "");
}

#[test]
fn one_end_of_a_wire_into_a_bridge_goes_to_a_tenant_whatever_the_node_has_on_the_bridge() {
    let mut node = node();
    let routes = [default_route(7, 254, false)];
    let own = [address(7, "192.0.2.7/24")];
    let other = node.iter_mut().find(|link| link.name == "wire1").unwrap();
    other.master = Some(7);
    assert_eq!(refused("wire0", &node, &routes, &own), "");
    assert_eq!(refused("wire1", &node, &[], &[]), r#"it is a port of bridge "br0""#);
}

#[test]
fn a_tunnel_is_refused_to_a_tenant_and_so_is_what_it_stands_on() {
    for kind in ["vxlan", "geneve", "wireguard", "gretap", "ipip", "xfrm", "openvswitch", "tun", "bridge"] {
        let links = [link(5, "plumbing", kind), link(6, "ens5", ""), on(link(7, "upper", kind), 6)];
        assert_eq!(
            refused("plumbing", &links, &[], &[]),
            format!("it is of kind {kind:?}, which no tenant is lent")
        );
        let of_upper = format!(r#""upper" above it is of kind {kind:?}, which no tenant is lent"#);
        assert_eq!(refused("ens5", &links, &[], &[]), of_upper);
        assert_eq!(judged("plumbing", &links, &[], &[]), Ok(None), "the administrator's is taken");
    }
    let shared = ["", "bond", "team", "vlan", "dummy", "veth", "netkit", "can", "ipoib", "wwan"];
    for kind in shared {
        assert_eq!(refused("own", &[link(5, "own", kind)], &[], &[]), "", "{kind}");
    }
    let of_kind = |kind| Link { kind, ..link(5, "own", "") };
    let ipvlan = Kind::Ipvlan { mode: fairlead_host::IpvlanMode::L2, flag: None };
    let macvlan = Kind::Macvlan { mode: fairlead_host::MacvlanMode::Bridge, bc_queue_len: None };
    for kind in [ipvlan, macvlan, Kind::Dummy] {
        assert_eq!(refused("own", &[of_kind(kind)], &[], &[]), "");
    }
}

#[test]
fn a_port_of_a_switch_chip_is_lent_to_a_tenant_and_the_nic_below_all_ports_is_not() {
    let links = [link(6, "eth0", ""), on(link(7, "swp1", "dsa"), 6)];
    assert_eq!(refused("swp1", &links, &[], &[]), "");
    let of_port = r#""swp1" above it is of kind "dsa", which no tenant is lent"#;
    assert_eq!(refused("eth0", &links, &[], &[]), of_port);
}

#[test]
fn a_device_without_an_address_that_carries_a_route_of_the_nodes_is_refused_to_a_tenant() {
    let node = node();
    let of_static = |dst| [route(11, dst, 4)];
    for dst in ["10.0.0.0/8", "10.0.0.7/32", "169.254.169.254/32", "2001:db8::/32"] {
        let why = refused("ens4", &node, &of_static(dst), &[]);
        assert_eq!(why, format!(r#"it carries the node's route to {dst}, through "ens4.5" above it"#));
        assert_eq!(judged("ens4", &node, &of_static(dst), &[]), Ok(None), "{dst}");
    }
    // What every interface has, or the kernel makes by itself.
    for dst in ["169.254.0.0/16", "fe80::/64", "224.0.0.0/4", "ff00::/8"] {
        assert_eq!(refused("ens4", &node, &of_static(dst), &[]), "", "{dst}");
    }
    assert_eq!(refused("ens4", &node, &[route(8, "192.0.2.0/24", BY_KERNEL)], &[]), "");
}

#[test]
fn the_halves_of_a_split_default_route_make_an_uplink_too() {
    let nodes = node();
    for dst in ["0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"] {
        let route = Route { dst: dst.parse().unwrap(), ..default_route(8, 254, false) };
        assert_eq!(judged("ens4", &nodes, &[route], &[]), Err(InUse::DefaultRoute { upper: None }), "{dst}");
    }
    let quarter = Route { dst: "64.0.0.0/2".parse().unwrap(), ..default_route(8, 254, false) };
    assert_eq!(judged("ens4", &nodes, &[quarter], &[]), Ok(None));
}
