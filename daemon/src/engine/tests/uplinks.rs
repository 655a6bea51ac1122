//! The way to the wire of a vhost-user network: the control socket is the real one, switch and kernel only remember.

use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, Code};
use fairlead_host::double::KernelRequest;
use fairlead_host::{Channels, Kind, NetKernel, NetdevSettings, NewLink, Op, Parent, SetLink};
use fairlead_vhost::control::PortCommands;
use fairlead_vhost::fake_switch::FakePorts;
use nix::errno::Errno;

use super::Rig;
use super::vhost_user::switch;
use crate::engine::metrics_of_ports;

const WIRE: &str = "dev0";

pub(super) fn config(keys: &str) -> String {
    format!(r#"{{"cniVersion":"1.1.0","name":"blue","type":"vhost-user","directory":"/run/sockets"{keys}}}"#)
}

pub(super) fn on_wire() -> String {
    config(r#","master":"dev0""#)
}

impl Rig {
    pub(super) fn with_sockets() -> Rig {
        let rig = Rig::new();
        std::fs::create_dir_all(rig.dir.path().join("root/run/sockets")).unwrap();
        rig
    }

    pub(super) fn of(&self, command: Command, container: &str, config: &str) -> Result<String, CniError> {
        self.call(self.request(command, container, config))
    }

    fn wire_is_promiscuous(&self) -> bool {
        self.kernel.host().unwrap().link_by_name(WIRE).unwrap().unwrap().is_promiscuous()
    }

    fn bound(&self) -> usize {
        let is_bind =
            |call: &&fairlead_host::double::Call| matches!(call.request, KernelRequest::BindUplink(..));
        self.kernel.calls().iter().filter(is_bind).count()
    }
}

/// The NUMA node on which memory of an uplink is wished for; absent of another call.
fn memory_node(request: &KernelRequest) -> Option<Option<u32>> {
    match request {
        KernelRequest::OpenUplink(_, _, node) | KernelRequest::BindUplink(_, node) => Some(*node),
        _ => None,
    }
}

fn interface(ports: &FakePorts) -> Option<String> {
    ports.uplink("blue").map(|uplink| uplink.interface)
}

#[test]
fn the_first_port_of_a_network_brings_its_uplink_and_the_last_one_takes_it_away() {
    let rig = Rig::with_sockets();
    let (netdev, card) =
        (rig.dir.path().join("sys/class/net").join(WIRE), rig.dir.path().join("sys/devices/card"));
    std::fs::create_dir_all(&netdev).unwrap();
    std::fs::create_dir_all(&card).unwrap();
    std::fs::write(card.join("numa_node"), "1\n").unwrap();
    std::os::unix::fs::symlink(card, netdev.join("device")).unwrap();
    let (_server, ports) = switch(&rig);
    let before = rig.state();
    let answer = rig.of(Command::Add, "c1", &on_wire()).unwrap();
    assert_eq!(interface(&ports).as_deref(), Some(WIRE));
    assert_eq!(ports.uplinks()[0].thread.numa_node, Some(1), "the interface's");
    let nodes: Vec<_> = rig.kernel.calls().iter().filter_map(|call| memory_node(&call.request)).collect();
    assert_eq!(nodes, [Some(1), Some(1)], "its memory, when it is opened and when it is bound");
    assert!(rig.wire_is_promiscuous() && rig.bound() == 1);
    rig.of(Command::Add, "c2", &on_wire()).unwrap();
    // A port of the network that does not name it has it, too, and does not keep it.
    rig.of(Command::Add, "c3", &config("")).unwrap();
    assert_eq!(rig.bound(), 1, "all ports of a network share it");
    let with = config(&format!(r#","master":"dev0","prevResult":{answer}"#));
    rig.of(Command::Check, "c1", &with).unwrap();
    rig.of(Command::Del, "c1", &on_wire()).unwrap();
    assert_eq!(interface(&ports).as_deref(), Some(WIRE));
    rig.of(Command::Del, "c2", &on_wire()).unwrap();
    assert!(interface(&ports).is_none() && !rig.wire_is_promiscuous());
    rig.of(Command::Del, "c2", &on_wire()).unwrap();
    rig.of(Command::Del, "c3", &config("")).unwrap();
    assert_eq!(rig.state(), before);
}

#[test]
fn an_uplink_that_is_down_has_another_name_or_is_gone_is_told_and_given_back_by_whatever_name() {
    let rig = Rig::with_sockets();
    let (_server, _ports) = switch(&rig);
    let veth = Kind::Other { name: "veth".into() };
    let index = rig.kernel.add_link("/proc/1/ns/net", "up0", veth).unwrap();
    let on_veth = config(r#","master":"up0""#);
    let answer = rig.of(Command::Add, "c1", &on_veth).unwrap();
    let with = config(&format!(r#","master":"up0","prevResult":{answer}"#));
    let change = |op: Op| rig.kernel.host().unwrap().batch(&[op]).unwrap();
    let set = |up| Op::SetLink(SetLink { index, up: Some(up), ..SetLink::default() });
    let rename = |name: &str| Op::SetLink(SetLink { index, name: Some(name.into()), ..SetLink::default() });
    let told = |part: Option<&str>| {
        let row = rig.engine().core.kinds.vhost_user.ports_table()["uplinks"][0].clone();
        let check = rig.of(Command::Check, "c1", &with);
        let Some(part) = part else {
            check.unwrap();
            return assert!(row["reason"].is_null(), "{row}");
        };
        let refused = check.unwrap_err();
        assert!(refused.code == Code::Changed && refused.msg.contains(part), "{refused}");
        assert!(row["reason"].as_str().unwrap().contains(part), "{row}");
    };
    told(None);
    change(set(false));
    told(Some("the interface is down"));
    change(set(true));
    told(None);
    change(rename("other0"));
    told(Some("the interface is called \"other0\" by now"));
    let is_promiscuous =
        || rig.kernel.host().unwrap().link_by_index(index).unwrap().unwrap().is_promiscuous();
    assert!(is_promiscuous());
    rig.of(Command::Del, "c1", &on_veth).unwrap();
    assert!(!is_promiscuous());
    change(rename("up0"));
    rig.of(Command::Add, "c1", &on_veth).unwrap();
    change(Op::DeleteLink(index));
    told(Some("the host has the interface no more"));
    rig.of(Command::Del, "c1", &on_veth).unwrap();
}

#[test]
fn an_uplink_whose_sockets_a_killed_daemon_has_not_bound_is_told_and_opened_anew() {
    let rig = Rig::with_sockets();
    let (_server, ports) = switch(&rig);
    let answer = rig.of(Command::Add, "c1", &on_wire()).unwrap();
    let with = config(&format!(r#","master":"dev0","prevResult":{answer}"#));
    let is_bound = || ports.uplinks().first().is_some_and(|uplink| uplink.bound);
    // By the keeper, which finds it, and by the next ADD.
    for times in [2, 3] {
        ports.leave_unbound("blue");
        let refused = rig.of(Command::Check, "c1", &with).unwrap_err();
        assert!(refused.code == Code::Changed && refused.msg.contains("sockets are not bound"), "{refused}");
        let row = rig.engine().core.kinds.vhost_user.ports_table()["uplinks"][0].clone();
        assert!(row["reason"].as_str().unwrap().contains("sockets are not bound"), "{row}");
        if times == 2 {
            rig.kept_up_until(is_bound);
        } else {
            rig.of(Command::Add, "c2", &on_wire()).unwrap();
        }
        assert!(is_bound() && rig.bound() == times);
        rig.of(Command::Check, "c1", &with).unwrap();
    }
}

#[test]
fn an_uplink_that_could_not_be_asked_back_stays_on_record_until_it_is_gone() {
    let rig = Rig::with_sockets();
    let (_server, ports) = switch(&rig);
    let before = rig.state();
    rig.of(Command::Add, "c1", &on_wire()).unwrap();
    // The switch runs, and the kernel makes no connection to it, as where the daemon has no descriptor left for one.
    let (socket, aside) =
        (rig.dir.path().join("run/vswitch.sock"), rig.dir.path().join("run/vswitch.sock.aside"));
    std::fs::rename(&socket, &aside).unwrap();
    std::os::unix::fs::symlink(&socket, &socket).unwrap();
    let refused = rig.of(Command::Del, "c1", &on_wire()).unwrap_err();
    assert!(refused.code == Code::TryAgain && refused.msg.contains("can't connect"), "{refused}");
    assert!(ports.uplink("blue").is_some() && rig.wire_is_promiscuous());
    assert_eq!(rig.state().records, 1);
    std::fs::remove_file(&socket).unwrap();
    std::fs::rename(&aside, &socket).unwrap();
    rig.reap();
    assert!(ports.uplinks().is_empty() && !rig.wire_is_promiscuous());
    assert_eq!(rig.state(), before);
}

#[test]
fn what_went_over_an_uplink_is_told_in_the_metrics_until_it_is_taken_away() {
    let rig = Rig::with_sockets();
    metrics_of_ports::register(rig.engine.as_ref().unwrap(), &rig.exposition);
    let (_server, _ports) = switch(&rig);
    rig.of(Command::Add, "c1", &on_wire()).unwrap();
    let text = rig.exposition.text();
    let labels = r#"interface="dev0",network="blue""#;
    for line in [
        format!(r#"fairlead_vswitch_uplink_frames_total{{{labels},direction="received"}} 0"#),
        format!(r#"fairlead_vswitch_uplink_bytes_total{{{labels},direction="sent"}} 0"#),
        format!(r#"fairlead_vswitch_uplink_drops_total{{{labels},direction="sent",reason="unknown"}} 0"#),
        format!(r#"fairlead_vswitch_uplink_drops_total{{{labels},direction="sent",reason="lost"}} 0"#),
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "{line} is not in\n{text}");
    }
    assert_eq!(text.matches(labels).count(), 2 + 2 + 15, "an uplink has so many series: {text}");
    rig.of(Command::Del, "c1", &on_wire()).unwrap();
    assert!(!rig.exposition.text().contains(labels));
}

#[test]
fn what_the_interface_was_before_it_is_again() {
    let rig = Rig::with_sockets();
    let (_server, _ports) = switch(&rig);
    let channels = Some(Channels { combined: Some(3), ..Channels::default() });
    let was = NetdevSettings { features: Some("0081ff".into()), channels, ..NetdevSettings::default() };
    assert!(rig.kernel.set_host_netdev_settings(WIRE, was.clone()));
    let settings = || {
        let mut host = rig.kernel.host().unwrap();
        let index = host.link_by_name(WIRE).unwrap().unwrap().index;
        host.netdev_settings(index).unwrap()
    };
    rig.of(Command::Add, "c1", &on_wire()).unwrap();
    assert_eq!(settings().features.as_deref(), Some("0080ff"), "tags stay in the frames");
    assert!(
        rig.kernel.calls().iter().any(|call| matches!(call.request, KernelRequest::OpenUplink(_, 3, None)))
    );
    rig.of(Command::Del, "c1", &on_wire()).unwrap();
    assert_eq!(settings(), was);
}

/// A bond of two ports in the host, with the interfaces of two VLANs on it, and what each merges.
fn bond_with_vlans(rig: &Rig) -> [(&'static str, &'static [&'static str]); 3] {
    let add = |name: &str, kind: &str| {
        rig.kernel.add_link("/proc/1/ns/net", name, Kind::Other { name: kind.into() }).unwrap()
    };
    let bond = add("bond0", "bond");
    let merging: [(&str, &[&str]); 3] = [
        ("bond0", &["rx-gro"]),
        ("port0", &["rx-gro", "rx-lro", "tx-checksum-ip-generic"]),
        ("port1", &["rx-gro-hw"]),
    ];
    for (name, features) in merging {
        if name != "bond0" {
            add(name, "veth");
            rig.kernel.enslave(name, "bond0");
        }
        assert!(rig.kernel.switch_host_features_on(name, features));
    }
    for id in [5, 6] {
        let new = NewLink {
            name: format!("bond0.{id}"),
            index: None,
            kind: Kind::Vlan { id },
            parent: Parent::Same(bond),
            mac: None,
            mtu: None,
            up: true,
        };
        rig.kernel.host().unwrap().batch(&[Op::CreateLink(new)]).unwrap();
    }
    merging
}

fn on_vlan(id: u16) -> String {
    config(&format!(r#","network":"vlan{id}","master":"bond0.{id}""#))
}

#[test]
fn links_below_uplinks_merge_no_frames_until_the_last_uplink_above_them_is_given_back() {
    let rig = Rig::with_sockets();
    let (_server, _ports) = switch(&rig);
    let before = bond_with_vlans(&rig);
    assert!(rig.kernel.switch_host_features_on(WIRE, &["rx-gro"]));
    let merges = |name: &str| rig.kernel.host_features(name);
    let are_kept_from_it = || {
        assert_eq!(merges("port0"), ["tx-checksum-ip-generic"], "and from nothing else");
        assert!(merges("port1").is_empty() && merges("bond0").is_empty());
    };
    rig.of(Command::Add, "c1", &on_vlan(5)).unwrap();
    are_kept_from_it();
    rig.of(Command::Add, "c2", &on_vlan(6)).unwrap();
    rig.of(Command::Add, "c3", &on_wire()).unwrap();
    rig.of(Command::Del, "c1", &on_vlan(5)).unwrap();
    are_kept_from_it();
    // The kernel leaves it out itself on the interface that has the program.
    assert_eq!(merges(WIRE), ["rx-gro"]);
    rig.of(Command::Del, "c2", &on_vlan(6)).unwrap();
    for (name, features) in before {
        assert_eq!(merges(name), features, "{name}");
    }
    // What is there no more is no error: neither the interface nor a port.
    rig.of(Command::Add, "c1", &on_vlan(5)).unwrap();
    for name in ["bond0.5", "port1"] {
        let mut host = rig.kernel.host().unwrap();
        let index = host.link_by_name(name).unwrap().unwrap().index;
        host.batch(&[Op::DeleteLink(index)]).unwrap();
    }
    are_kept_from_it();
    rig.of(Command::Del, "c1", &on_vlan(5)).unwrap();
    for (name, features) in before.into_iter().take(2) {
        assert_eq!(merges(name), features, "{name}");
    }
}

#[test]
fn a_bond_has_as_many_queues_as_the_port_that_has_the_most() {
    let rig = Rig::with_sockets();
    let (_server, _ports) = switch(&rig);
    let bond = rig.kernel.add_link("/proc/1/ns/net", "bond0", Kind::Other { name: "bond".into() }).unwrap();
    let on_bond = config(r#","master":"bond0""#);
    let with_queues = |name: &str, combined: u32| {
        rig.kernel.add_host_link(name);
        rig.kernel.enslave(name, "bond0");
        let channels = Some(Channels { combined: Some(combined), ..Channels::default() });
        let settings = NetdevSettings { channels, ..NetdevSettings::default() };
        assert!(rig.kernel.set_host_netdev_settings(name, settings));
    };
    with_queues("port0", 2);
    with_queues("port1", 8);
    rig.of(Command::Add, "c1", &on_bond).unwrap();
    let opened: Vec<_> = rig.kernel.calls().iter().map(|call| call.request.clone()).collect();
    assert!(opened.contains(&KernelRequest::OpenUplink(bond, 8, None)), "{opened:?}");
    rig.of(Command::Del, "c1", &on_bond).unwrap();
    with_queues("port2", 9);
    let refused = rig.of(Command::Add, "c1", &on_bond).unwrap_err();
    assert_eq!(refused.code, Code::InvalidConfig);
    let why = "\"port2\" has 9 receive queues, and the switch serves 8";
    assert!(refused.msg.ends_with(why), "{refused:?}");
    assert_eq!(refused.details, "ethtool -L port2 combined 8");
}

#[test]
fn a_port_with_tags_is_refused_over_a_bond_whose_frames_come_without_theirs() {
    let rig = Rig::with_sockets();
    let (_server, ports) = switch(&rig);
    for kind in ["bond", "team", "veth"] {
        let link = Kind::Other { name: kind.into() };
        rig.kernel.add_link("/proc/1/ns/net", &format!("{kind}0"), link).unwrap();
    }
    let on = |master: &str, keys: &str| {
        let config = config(&format!(r#","network":"{master}","master":"{master}"{keys}"#));
        let answer = rig.of(Command::Add, "c1", &config);
        rig.of(Command::Del, "c1", &config).unwrap();
        answer
    };
    for (keys, key) in [(r#","vlan":5"#, "vlan"), (r#","trunk":[5,6]"#, "trunk")] {
        for kind in ["bond", "team"] {
            let refused = on(&format!("{kind}0"), keys).unwrap_err();
            assert_eq!(refused.code, Code::InvalidConfig, "{refused}");
            let why = format!(
                "master \"{kind}0\" is a {kind}, from which the switch gets frames without their tags, so \"{key}\" cannot be had"
            );
            assert!(refused.msg.ends_with(&why), "{refused}");
            let remedy = format!("ip link add link {kind}0 name {kind}0.5 type vlan id 5");
            assert!(refused.details.contains(&remedy), "{refused}");
        }
        on("veth0", keys).unwrap();
    }
    on("bond0", "").unwrap();
    assert!(ports.uplinks().is_empty());
}

#[test]
fn an_interface_that_cannot_be_the_switchs_alone_is_refused_with_the_reason() {
    let rig = Rig::with_sockets();
    let (_server, ports) = switch(&rig);
    rig.of(Command::Add, "c1", &on_wire()).unwrap();
    let refused = |keys: &str| {
        let refused = rig.of(Command::Add, "c2", &config(keys)).unwrap_err();
        (refused.code, refused.msg)
    };
    for (keys, code, why) in [
        (r#","master":"eth9""#, Code::InvalidConfig, "network \"blue\" reaches the wire by \"dev0\" already"),
        (
            r#","network":"red","master":"dev0""#,
            Code::InvalidConfig,
            "is the uplink of vhost-user network \"blue\"",
        ),
        (r#","network":"red","master":"eth9""#, Code::InvalidConfig, "no interface of that name"),
        (r#","network":"red","master":"lo""#, Code::InvalidConfig, "leads to the host itself"),
        (r#","network":"red","master":"vf0""#, Code::TryAgain, "is down"),
        (r#","network":"red","master":["eth0","pf0"]"#, Code::InvalidConfig, "one interface"),
    ] {
        let (is, told) = refused(keys);
        assert!(is == code && told.contains(why), "{keys}: {told}");
    }
    assert_eq!(ports.names(), ["c1/net1"]);
}

#[test]
fn x05_an_uplink_that_fails_at_any_call_leaves_the_host_and_the_switch_as_before() {
    for config in [on_wire(), on_vlan(5)] {
        let calls = {
            let rig = Rig::with_sockets();
            let (_server, _ports) = switch(&rig);
            bond_with_vlans(&rig);
            rig.kernel.forget_calls();
            rig.of(Command::Add, "c1", &config).unwrap();
            rig.kernel.calls().len()
        };
        for n in 0..calls {
            let rig = Rig::with_sockets();
            let (_server, ports) = switch(&rig);
            let merging = bond_with_vlans(&rig);
            let before = rig.state();
            rig.kernel.forget_calls();
            rig.kernel.fail_at(n, Errno::ENOBUFS);
            let answer = rig.of(Command::Add, "c1", &config);
            rig.kernel.heal();
            if answer.is_ok() {
                rig.of(Command::Del, "c1", &config).unwrap();
            }
            rig.reap();
            assert_eq!(rig.state(), before, "call {n} of {calls}: {answer:?}");
            assert!(ports.names().is_empty() && ports.uplinks().is_empty(), "{n}");
            assert!(!rig.wire_is_promiscuous(), "{n}");
            for (name, features) in merging {
                assert_eq!(rig.kernel.host_features(name), features, "{name}, call {n} of {calls}");
            }
        }
    }
}

#[test]
fn a_switch_that_was_started_again_gets_its_uplinks_and_loses_those_that_nobody_has() {
    let rig = Rig::with_sockets();
    let (server, ports) = switch(&rig);
    rig.of(Command::Add, "c1", &on_wire()).unwrap();
    let was = ports.uplink("blue").unwrap();
    drop((server, ports));
    let (_server, ports) = switch(&rig);
    let stranger = rig.kernel.open_uplink(rig.kernel.add_host_link("up7"), 1, None).unwrap();
    let of_nobody = fairlead_vhost::port::UplinkConfig { network: "red".into(), ..was.clone() };
    ports.add_uplink(of_nobody, stranger, None).unwrap();
    rig.kept_up_until(|| ports.uplinks().len() == 1 && ports.uplink("blue").is_some());
    assert_eq!(ports.uplink("blue").unwrap(), was);
    assert_eq!(rig.bound(), 2);
    // Its interface is another one by now.
    ports.remove_uplink("blue").unwrap();
    let stranger = rig.kernel.open_uplink(was.index, 1, None).unwrap();
    ports
        .add_uplink(fairlead_vhost::port::UplinkConfig { index: 4711, ..was.clone() }, stranger, None)
        .unwrap();
    rig.kept_up_until(|| ports.uplink("blue").is_some_and(|uplink| uplink.index == was.index));
}
