use fairlead_host::AddressFlags;

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

/// What is found of the link called `name`.
fn judged(
    name: &str,
    links: &[Link],
    routes: &[Route],
    addresses: &[Address],
) -> Result<Option<InUse>, InUse> {
    let device = links.iter().find(|link| link.name == name).unwrap();
    let stack = stack(device, links);
    let of_stack = |a: &&Address| stack.iter().any(|link| link.index == a.index);
    let addresses: Vec<Address> = addresses.iter().filter(of_stack).cloned().collect();
    judge(&stack, links, routes, &addresses, Word::Administrators)
}

/// Two NICs in a bond with a VLAN, a NIC in a bridge, one of its own, and a wire.
fn node() -> Vec<Link> {
    let port = |link: Link, master: u32| Link { master: Some(master), ..link };
    let on = |link: Link, parent: u32| Link { parent: Some(parent), ..link };
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
    let judged = |routes: &[Route]| judge(&[&node[6]], &node, routes, &own, Word::Kubelets);
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
    let stack = stack(&node[6], &node);
    assert_eq!(judge(&stack, &node, &[], &own, Word::Tenants), Err(told));
    let local = [address(8, "fe80::1/64"), address(8, "169.254.0.1/16")];
    assert_eq!(judge(&stack, &node, &[], &local, Word::Tenants), Ok(None));
}

#[test]
fn a_ring_of_links_is_gone_through_once() {
    let (mut a, mut b) = (link(1, "a", "x"), link(2, "b", "x"));
    (a.parent, b.parent) = (Some(2), Some(1));
    assert_eq!(judged("a", &[a, b], &[], &[]), Ok(None));
}

#[test]
fn the_hosts_end_of_a_pods_veth_is_refused_to_a_tenant_and_told_to_the_administrator() {
    let end = Link { parent: Some(7), parent_nsid: Some(fairlead_host::Nsid(3)), ..link(5, "end", "veth") };
    let free = Link { parent: Some(7), ..link(6, "free", "veth") };
    let of = |link: &Link, word| judge(&[link], std::slice::from_ref(link), &[], &[], word);
    assert_eq!(of(&end, Word::Tenants), Err(InUse::PeerElsewhere));
    assert_eq!(of(&end, Word::Administrators), Ok(Some(InUse::PeerElsewhere)));
    assert_eq!(of(&free, Word::Tenants), Ok(None));
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
