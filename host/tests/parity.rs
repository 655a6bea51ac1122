//! The kernel in memory answers as the real one does: the same script on both, step by step. Needs root.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;

use fairlead_host::double::FakeKernel;
use fairlead_host::real::RealKernel;
use fairlead_host::scratch_netns::ScratchNetns;
use fairlead_host::scratch_program::ScratchProgram;
use fairlead_host::{
    Address, AddressFlags, AttachedProgram, Kernel, Kind, LinkName, LinkSettings, Mac, MacvlanMode, Net,
    NetError, NetKernel, NewLink, Op, Parent, ProgramHook, Route, SetLink, VfChange,
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
    let name = name.into();
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
        Op::MoveToHost { index: 50, as_index: None, name: "eth0".to_owned() },
        Op::MoveToHost { index: 99, as_index: None, name: "gone".to_owned() },
        Op::MoveToHost { index: 50, as_index: Some(1), name: "parked".to_owned() },
        Op::MoveToHost { index: 50, as_index: None, name: "parked".to_owned() },
        Op::TakeFromHost { index: 50, as_index: None, name: "lo".to_owned(), up: true },
        Op::TakeFromHost { index: 50, as_index: Some(1), name: "back".to_owned(), up: true },
        Op::TakeFromHost { index: 50, as_index: Some(51), name: "back".to_owned(), up: true },
        Op::DeleteLink(51),
        Op::DeleteLink(50),
        Op::DeleteLink(1),
    ]
}

/// What can be done with alternative names: any bytes, up to what the kernel can tell in one message, and what they hinder.
fn alternative_names(parent: u32) -> Vec<Op> {
    let host = Parent::Host(parent);
    let strange = LinkName::from_bytes(b"\xff\xc3");
    let home = |name: &str| Op::MoveToHost { index: 50, as_index: None, name: name.to_owned() };
    let mut script = vec![
        macvlan("net1", 50, host, 1),
        macvlan("net2", 51, host, 2),
        Op::AddAltName { index: 50, name: strange.clone() },
        Op::AddAltName { index: 51, name: strange.clone() },
        Op::DeleteAltName { index: 51, name: strange.clone() },
        set(51, Some(&strange.text()), None),
        Op::DeleteAltName { index: 50, name: strange.clone() },
        set(51, Some(&strange.text()), None),
        Op::AddAltName { index: 50, name: strange },
        set(51, Some("net2"), None),
        alt_name(true, 50, ""),
        alt_name(false, 50, ""),
        alt_name(true, 50, "no/first name:"),
        alt_name(false, 50, "net1"),
        alt_name(true, 50, &"x".repeat(127)),
        alt_name(true, 50, &"x".repeat(128)),
        // A name that the host has keeps a link from going there.
        alt_name(true, 50, "eth0"),
        home("parked"),
        alt_name(false, 50, "eth0"),
        alt_name(true, 50, "eth0-alt"),
        home("parked"),
        alt_name(false, 50, "eth0-alt"),
        // So does its own, when it is to be its first name there.
        alt_name(true, 50, "home"),
        home("home"),
        alt_name(false, 50, "home"),
        home("home"),
        Op::TakeFromHost { index: 50, as_index: None, name: "net1".to_owned(), up: true },
        alt_name(true, 51, "net3"),
        home("parked"),
        Op::AddAltName { index: 51, name: "no/first name:".into() },
        Op::TakeFromHost { index: 50, as_index: None, name: "net1".to_owned(), up: true },
        alt_name(false, 51, "no/first name:"),
        Op::TakeFromHost { index: 50, as_index: None, name: "net3".to_owned(), up: true },
        Op::TakeFromHost { index: 50, as_index: None, name: "net1".to_owned(), up: true },
    ];
    script.extend((0..500).map(|n| alt_name(true, 51, &format!("{n}"))));
    script
}

fn trusted(pf: u32) -> Op {
    Op::SetVfs { pf, changes: vec![(0, VfChange { trust: Some(true), ..VfChange::default() })] }
}

/// Each step with its answer, and the links after it.
fn names_played(kernel: &dyn Kernel, path: &Path, _: Attach<'_>) -> Vec<String> {
    let eth0 = kernel.host().unwrap().link_by_name("eth0").unwrap().unwrap().index;
    kernel.host().unwrap().batch(&[alt_name(true, eth0, "eth0-alt")]).unwrap();
    let mut pod = kernel.pod(path).unwrap();
    let mut story = Vec::new();
    for (op, told) in alternative_names(eth0).into_iter().zip(alternative_names(0)) {
        let answer = pod.batch(std::slice::from_ref(&op)).err().map(|error| error.errno());
        let links = pod.links().unwrap().into_iter();
        let links: Vec<_> =
            links.map(|l| (l.index, l.name, l.alt_names.len(), l.alt_names.last().cloned(), l.up)).collect();
        story.push(format!("{told:?}\n  -> {answer:?} {links:?}"));
    }
    story
}

/// Each step with its answer, and with the links, IPv4 addresses and IPv4 routes after it.
fn played(kernel: &dyn Kernel, path: &Path, _: Attach<'_>) -> Vec<String> {
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
    compare(played);
}

/// Whether a macvlan in mode passthru has its parent's MAC address, asked for none and for another.
fn passthru_played(kernel: &dyn Kernel, path: &Path, _: Attach<'_>) -> Vec<String> {
    let parent = kernel.host().unwrap().link_by_name("eth0").unwrap().unwrap();
    let mut pod = kernel.pod(path).unwrap();
    let mut story = Vec::new();
    for mac in [None, Some(Mac([2, 0, 0, 0, 0, 1]))] {
        let new = NewLink {
            name: "net1".to_owned(),
            index: Some(50),
            kind: Kind::Macvlan { mode: MacvlanMode::Passthru, bc_queue_len: None },
            parent: Parent::Host(parent.index),
            mac,
            mtu: None,
            up: true,
        };
        pod.batch(&[Op::CreateLink(new)]).unwrap();
        let inherited = pod.link_by_index(50).unwrap().unwrap().mac == parent.mac;
        story.push(format!("{mac:?} -> inherited: {inherited}"));
        pod.batch(&[Op::DeleteLink(50)]).unwrap();
    }
    story
}

#[test]
fn on_both_kernels_a_macvlan_in_passthru_has_the_mac_address_of_its_parent_whichever_is_asked_for() {
    compare(passthru_played);
}

/// What can be set of a link beside its names, and what follows what.
fn settings_played(kernel: &dyn Kernel, path: &Path, _: Attach<'_>) -> Vec<String> {
    let parent = kernel.host().unwrap().link_by_name("eth0").unwrap().unwrap().index;
    let mut pod = kernel.pod(path).unwrap();
    pod.batch(&[macvlan("net1", 50, Parent::Host(parent), 1)]).unwrap();
    let default = LinkSettings::default;
    let script = [
        default(),
        LinkSettings::of_flags(LinkSettings::PROMISCUITY | 0x80),
        LinkSettings::of_flags(0),
        LinkSettings { mode: Some(1), group: Some(7), ..default() },
        LinkSettings { queue_length: Some(5), broadcast: Some(Mac([2; 6])), ..default() },
        LinkSettings { gso_ipv4_max_size: Some(2500), gro_ipv4_max_size: Some(3500), ..default() },
        LinkSettings { gso_max_size: Some(3000), gro_max_size: Some(4000), ..default() },
        LinkSettings { gso_max_segs: Some(9), gso_ipv4_max_size: Some(2000), ..default() },
        LinkSettings { gso_max_size: Some(90_000), gro_max_size: Some(90_000), ..default() },
        LinkSettings { proto_down: Some(1), ..default() },
    ];
    let mut story = Vec::new();
    for settings in script {
        let op = Op::SetLink(SetLink { index: 50, settings, ..SetLink::default() });
        let answer = pod.batch(&[op]).map_err(|error| error.errno());
        let now = pod.link_by_index(50).unwrap().unwrap();
        story.push(format!("{settings:?}\n  -> {answer:?} {:?} {}", now.settings, now.is_promiscuous()));
    }
    pod.batch(&[Op::MoveToHost { index: 50, as_index: None, name: "home".to_owned() }]).unwrap();
    let home = kernel.host().unwrap().link_by_name("home").unwrap().unwrap();
    story.push(format!("{:?}", home.settings));
    story
}

#[test]
fn on_both_kernels_settings_of_a_link_are_taken_and_go_where_the_link_goes() {
    compare(settings_played);
}

#[test]
fn both_kernels_take_and_refuse_the_same_alternative_names() {
    compare(names_played);
}

#[test]
fn on_both_kernels_programs_go_where_their_link_goes_until_they_are_taken_off() {
    compare(programs_played);
}

/// Attaches a program to link 50 in the pod, where the thread is, as `net1`.
type Attach<'a> = &'a dyn Fn(ProgramHook);

/// Where the programs of a link are at each station of its way.
fn programs_played(kernel: &dyn Kernel, path: &Path, attach: Attach<'_>) -> Vec<String> {
    let parent = kernel.host().unwrap().link_by_name("eth0").unwrap().unwrap().index;
    let mut story = Vec::new();
    let mut look = |net: &mut dyn Net, index: u32| {
        let hooks = net
            .attached_programs(index)
            .map(|all| all.into_iter().map(|program| program.hook).collect::<Vec<_>>());
        story.push(format!("{:?}", hooks.map_err(|error| error.errno())));
    };
    let mut pod = kernel.pod(path).unwrap();
    pod.batch(&[macvlan("net1", 50, Parent::Host(parent), 1)]).unwrap();
    [ProgramHook::XdpGeneric, ProgramHook::TcxIngress, ProgramHook::TcxEgress].into_iter().for_each(attach);
    look(&mut *pod, 50);
    pod.batch(&[Op::MoveToHost { index: 50, as_index: None, name: "home".to_owned() }]).unwrap();
    look(&mut *pod, 50);
    let mut host = kernel.host().unwrap();
    look(&mut *host, 50);
    assert_eq!(host.detach_programs(50).unwrap(), Vec::<String>::new());
    look(&mut *host, 50);
    look(&mut *host, 99);
    story
}

/// Has a story told by both kernels, each with `eth0` on the host and a pod.
fn compare(played: fn(&dyn Kernel, &Path, Attach<'_>) -> Vec<String>) {
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
        let attach = |hook| ScratchProgram::load(hook).unwrap().attach(50).unwrap();
        played(&kernel, pod.path(), &attach)
    });
    let double = FakeKernel::new();
    double.add_host_link("eth0");
    double.add_namespace(pod.path());
    let attach = |hook| {
        let program = AttachedProgram { id: 1, hook, link: None };
        assert!(double.attach_program(pod.path(), "net1", program, false));
    };
    let pairs = real.unwrap().into_iter().zip(played(&double, pod.path(), &attach));
    let differences: Vec<_> = pairs.filter(|(real, double)| real != double).collect();
    assert!(differences.is_empty(), "{differences:#?}");
}
