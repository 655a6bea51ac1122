//! The kernel in memory answers as the real one does: the same script on both, step by step. Needs root.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;

use fairlead_host::double::FakeKernel;
use fairlead_host::real::RealKernel;
use fairlead_host::scratch_netns::ScratchNetns;
use fairlead_host::{
    Address, AddressFlags, Kernel, Kind, Mac, MacvlanMode, NetError, NetKernel, NewLink, Op, Parent, Route,
    SetLink, VfChange,
};
use nix::errno::Errno;

fn macvlan(name: &str, index: u32, parent: Parent, mac: u8) -> Op {
    Op::CreateLink(NewLink {
        name: name.to_owned(),
        index: Some(index),
        kind: Kind::Macvlan { mode: MacvlanMode::Bridge, bc_queue_len: None },
        parent,
        mac: Some(Mac([2, 0, 0, 0, 0, mac])),
        mtu: None,
        up: true,
    })
}

fn address(index: u32, text: &str) -> Address {
    let flags = AddressFlags { nodad: text.contains(':'), ..AddressFlags::default() };
    Address { index, net: text.parse().unwrap(), broadcast: None, flags }
}

fn route(index: u32, dst: &str, gateway: Option<&str>, source: Option<&str>) -> Route {
    Route {
        dst: dst.parse().unwrap(),
        gateway: gateway.map(|text| text.parse().unwrap()),
        index,
        source: source.map(|text| text.parse().unwrap()),
        table: None,
        scope: None,
        priority: None,
        mtu: None,
        advmss: None,
        protocol: None,
    }
}

fn set(index: u32, name: Option<&str>, up: Option<bool>) -> Op {
    Op::SetLink(SetLink { index, name: name.map(str::to_owned), up, ..SetLink::default() })
}

fn alt_name(add: bool, index: u32, name: &str) -> Op {
    let name = name.to_owned();
    if add { Op::AddAltName { index, name } } else { Op::DeleteAltName { index, name } }
}

/// What the engine does, and what goes wrong with it.
fn script(parent: u32) -> Vec<Op> {
    let host = Parent::Host(parent);
    let tables =
        Route { table: Some(300), priority: Some(9), ..route(50, "10.8.0.0/16", Some("10.9.0.1"), None) };
    vec![
        macvlan("net1", 50, host, 1),
        macvlan("net1", 51, host, 2),
        macvlan("net2", 50, host, 2),
        macvlan("net2", 51, host, 1),
        macvlan("net2", 51, Parent::Host(9999), 2),
        macvlan("a-name-that-is-too-long", 51, host, 2),
        Op::AddRoute(route(50, "0.0.0.0/0", Some("10.9.0.1"), None)),
        Op::AddAddress(address(50, "10.9.0.2/24")),
        Op::AddAddress(address(50, "10.9.0.2/24")),
        Op::AddAddress(address(99, "10.9.0.2/24")),
        Op::AddAddress(address(50, "fd00:9::2/64")),
        Op::AddRoute(route(50, "0.0.0.0/0", Some("10.9.0.1"), None)),
        Op::AddRoute(route(50, "0.0.0.0/0", Some("10.9.0.1"), None)),
        Op::AddRoute(route(50, "10.7.0.0/16", Some("10.10.0.1"), None)),
        Op::AddRoute(route(50, "10.7.0.0/16", None, Some("10.9.0.77"))),
        Op::AddRoute(route(50, "10.7.0.0/16", None, Some("10.9.0.2"))),
        Op::AddRoute(tables.clone()),
        Op::AddRoute(tables.clone()),
        Op::AddRoute(route(99, "10.6.0.0/16", None, None)),
        Op::AddRoute(route(50, "::/0", Some("fd00:9::1"), None)),
        Op::AddRoute(route(50, "::/0", Some("fd00:9::1"), None)),
        Op::DeleteRoute(tables.clone()),
        Op::DeleteRoute(tables),
        Op::DeleteAddress(address(50, "10.9.0.3/24")),
        set(50, Some("lo"), None),
        alt_name(true, 50, "alias-of-more-than-fifteen-bytes"),
        alt_name(true, 50, "alias-of-more-than-fifteen-bytes"),
        alt_name(true, 50, "lo"),
        alt_name(true, 99, "gone"),
        set(50, Some("alias-of-more"), None),
        alt_name(false, 50, "no-such-name"),
        alt_name(false, 50, "alias-of-more-than-fifteen-bytes"),
        trusted(50),
        trusted(99),
        set(50, Some("other"), None),
        set(99, Some("none"), None),
        set(50, None, Some(false)),
        Op::AddRoute(route(50, "0.0.0.0/0", Some("10.9.0.1"), None)),
        set(50, None, Some(true)),
        Op::AddRoute(route(50, "0.0.0.0/0", Some("10.9.0.1"), None)),
        Op::DeleteAddress(address(50, "10.9.0.2/24")),
        Op::MoveToHost { index: 50, name: "eth0".to_owned() },
        Op::MoveToHost { index: 99, name: "gone".to_owned() },
        Op::MoveToHost { index: 50, name: "parked".to_owned() },
        Op::TakeFromHost { index: 50, name: "lo".to_owned(), up: true },
        Op::TakeFromHost { index: 50, name: "back".to_owned(), up: true },
        Op::DeleteLink(50),
        Op::DeleteLink(50),
        Op::DeleteLink(1),
    ]
}

fn trusted(pf: u32) -> Op {
    Op::SetVfs { pf, changes: vec![(0, VfChange { trust: Some(true), ..VfChange::default() })] }
}

/// Each step with its answer, and with the links, IPv4 addresses and IPv4 routes after it.
fn played(kernel: &dyn Kernel, path: &Path) -> Vec<String> {
    let parent = kernel.host().unwrap().link_by_name("eth0").unwrap().unwrap().index;
    let mut pod = kernel.pod(path).unwrap();
    let mut story = Vec::new();
    for (op, told) in script(parent).into_iter().zip(script(0)) {
        let answer = match pod.batch(std::slice::from_ref(&op)) {
            Ok(()) => None,
            Err(NetError::Op(error)) => Some(error.errno),
            Err(other) => panic!("{other}"),
        };
        let links = pod.links().unwrap();
        let links: Vec<_> = links.into_iter().map(|link| (link.name, link.alt_names, link.up)).collect();
        assert_eq!(pod.vfs(50).unwrap(), [], "a macvlan has no VFs");
        let addresses = pod.addresses(50).unwrap().into_iter().map(|address| address.net);
        let addresses: Vec<String> =
            addresses.filter(|net| net.addr().is_ipv4()).map(|net| net.to_string()).collect();
        let mut routes: Vec<String> = (pod.routes().unwrap().into_iter())
            .filter(|route| route.dst.addr().is_ipv4())
            .map(|r| format!("{} {:?} {:?} {:?} {:?}", r.dst, r.gateway, r.source, r.table, r.scope))
            .collect();
        routes.sort();
        let answer: Option<Errno> = answer;
        story.push(format!("{told:?}\n  -> {answer:?} {links:?} {addresses:?} {routes:?}"));
    }
    story
}

#[test]
fn both_kernels_tell_the_same_story() {
    let directory = tempfile::tempdir().unwrap();
    let host = ScratchNetns::new(directory.path(), "host").unwrap();
    let pod = ScratchNetns::new(directory.path(), "pod").unwrap();
    let real = host.inside(|| {
        let kernel = RealKernel::new().unwrap();
        let veth = NewLink {
            name: "eth0".to_owned(),
            index: None,
            kind: Kind::Other { name: "veth".to_owned() },
            parent: Parent::None,
            mac: None,
            mtu: None,
            up: true,
        };
        kernel.host().unwrap().batch(&[Op::CreateLink(veth)]).unwrap();
        played(&kernel, pod.path())
    });
    let double = FakeKernel::new();
    double.add_host_link("eth0");
    double.add_namespace(pod.path());
    let pairs = real.unwrap().into_iter().zip(played(&double, pod.path()));
    let differences: Vec<_> = pairs.filter(|(real, double)| real != double).collect();
    assert!(differences.is_empty(), "{differences:#?}");
}
