//! What two attachments cannot share: an uplink's interface, a MAC address of the switch, a socket. Switch and kernel only remember.

use std::fs;

use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, Code};
use fairlead_host::{Kind, LinkSettings, NetKernel, NewLink, Op, Parent, SetLink};
use fairlead_vhost::control::PortCommands;
use serde_json::Value;

use super::uplinks::{config, on_wire};
use super::userspace::{Node, of_own_switch};
use super::vhost_user::{connect, switch};
use super::*;

/// A pod as the runtime names it.
fn args(name: &str, uid: &str) -> String {
    format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ran;K8S_POD_NAME={name};K8S_POD_UID={uid}")
}

fn of_pod(
    rig: &Rig,
    command: Command,
    container: &str,
    args: &str,
    config: &str,
) -> Result<String, CniError> {
    rig.call(Request { args: args.to_owned(), ..rig.request(command, container, config) })
}

fn made(kind: &str, master: &str, keys: &str) -> String {
    format!(
        r#"{{"cniVersion":"1.1.0","name":"radio","type":"{kind}","master":"{master}"{keys},
        "ipam":{{"type":"static","addresses":[{{"address":"10.9.0.5/24"}}]}}}}"#
    )
}

/// A VLAN's interface of the host on another one.
fn add_vlan(rig: &Rig, name: &str, lower: &str) {
    let mut host = rig.kernel.host().unwrap();
    let lower = host.link_by_name(lower).unwrap().unwrap().index;
    let kind = Kind::Vlan { id: 5 };
    let new = NewLink {
        name: name.into(),
        index: Some(4000 + lower),
        kind,
        parent: Parent::Same(lower),
        mac: None,
        mtu: None,
        up: true,
    };
    host.batch(&[Op::CreateLink(new)]).unwrap();
}

#[test]
fn an_interface_on_which_pods_stand_is_no_uplink_before_their_del() {
    let kinds =
        [("macvlan", ""), ("ipvlan", ""), ("vlan", r#","vlanId":7"#), ("macvlan", r#","mode":"passthru""#)];
    for (kind, keys) in kinds {
        let rig = Rig::with_sockets();
        let (_server, ports) = switch(&rig);
        add_vlan(&rig, "dev0.5", "dev0");
        for master in ["dev0", "dev0.5"] {
            let standing = made(kind, master, keys);
            of_pod(&rig, Command::Add, "c1", &args("du-0", "u-1"), &standing).unwrap();
            let before = rig.state();
            let refused = rig.of(Command::Add, "c2", &on_wire()).unwrap_err();
            assert_eq!(refused.code, Code::InvalidConfig, "{refused}");
            for told in ["\"dev0\"", "interface \"net1\" of pod ran/du-0 (container c1)"] {
                assert!(refused.msg.contains(told), "{refused}");
            }
            assert!(refused.details.contains("veth pair"), "{refused}");
            assert!(rig.state() == before && ports.uplinks().is_empty());
            of_pod(&rig, Command::Del, "c1", &args("du-0", "u-1"), &standing).unwrap();
            rig.of(Command::Add, "c2", &on_wire()).unwrap();
            rig.of(Command::Del, "c2", &on_wire()).unwrap();
        }
    }
}

#[test]
fn an_uplink_is_below_no_pods_interface_and_below_no_other_uplink_before_its_last_del() {
    let rig = Rig::with_sockets();
    let (_server, ports) = switch(&rig);
    add_vlan(&rig, "dev0.5", "dev0");
    rig.of(Command::Add, "c1", &on_wire()).unwrap();
    let before = rig.state();
    let lent = r#"{"cniVersion":"1.1.0","name":"radio","type":"host-device","device":"dev0"}"#.to_owned();
    let configs = [
        made("macvlan", "dev0", ""),
        made("macvlan", "dev0", r#","mode":"passthru""#),
        made("ipvlan", "dev0", ""),
        made("vlan", "dev0", r#","vlanId":7"#),
        made("macvlan", "dev0.5", ""),
        config(r#","network":"red","master":"dev0.5""#),
        lent,
    ];
    for config in &configs {
        let refused = rig.of(Command::Add, "c2", config).unwrap_err();
        assert_eq!(refused.code, Code::InvalidConfig, "{config}: {refused}");
        for told in ["\"dev0", "the uplink of vhost-user network \"blue\""] {
            assert!(refused.msg.contains(told), "{config}: {refused}");
        }
        assert!(refused.details.contains("veth pair"), "{refused}");
        assert_eq!(rig.state(), before);
    }
    rig.of(Command::Del, "c1", &on_wire()).unwrap();
    for config in &configs {
        rig.of(Command::Add, "c2", config).unwrap();
        rig.of(Command::Del, "c2", config).unwrap();
        rig.reap();
    }
    // The other way round, an uplink would take the frames of the one above it.
    rig.of(Command::Add, "c1", &config(r#","network":"red","master":"dev0.5""#)).unwrap();
    let refused = rig.of(Command::Add, "c2", &on_wire()).unwrap_err();
    assert!(refused.msg.contains("these stand on it: interface \"net1\" of container c1"), "{refused}");
    assert_eq!(ports.uplinks().len(), 1);
}

#[test]
fn beside_an_uplink_pods_stand_on_other_interfaces_of_its_wire() {
    let rig = Rig::with_sockets();
    let (_server, ports) = switch(&rig);
    let veth = || Kind::Other { name: "veth".into() };
    rig.kernel.add_link("/proc/1/ns/net", "up0", veth()).unwrap();
    rig.kernel.add_link("/proc/1/ns/net", "br", Kind::Other { name: "bridge".into() }).unwrap();
    rig.kernel.add_link("/proc/1/ns/net", "up0-br", veth()).unwrap();
    rig.kernel.enslave("up0-br", "br");
    add_vlan(&rig, "dev0.5", "dev0");
    let on_up = config(r#","master":"up0""#);
    // In both orders: on the bridge at the veth's other end, and below the uplink that is a VLAN's.
    for (uplink, beside) in [(on_up, "br"), (config(r#","master":"dev0.5""#), "dev0")] {
        let beside = made("macvlan", beside, "");
        for (first, second) in [(&uplink, &beside), (&beside, &uplink)] {
            rig.of(Command::Add, "c1", first).unwrap();
            rig.of(Command::Add, "c2", second).unwrap();
            assert_eq!(ports.uplinks().len(), 1);
            rig.of(Command::Del, "c1", first).unwrap();
            rig.of(Command::Del, "c2", second).unwrap();
            rig.reap();
        }
    }
}

#[test]
fn a_ports_mtu_is_at_most_that_of_its_uplink_which_is_the_usual_one_where_it_is_lower() {
    let rig = Rig::with_sockets();
    let (_server, ports) = switch(&rig);
    let set = |mtu: u32| {
        let mut host = rig.kernel.host().unwrap();
        let index = host.link_by_name("dev0").unwrap().unwrap().index;
        let settings = LinkSettings::default();
        host.batch(&[Op::SetLink(SetLink { index, mtu: Some(mtu), settings, ..SetLink::default() })])
            .unwrap();
    };
    let with = |mtu: u32| config(&format!(r#","master":"dev0","mtu":{mtu}"#));
    let before = rig.state();
    // Also where another port has the uplink already.
    for _ in 0..2 {
        let refused = rig.of(Command::Add, "c2", &with(9000)).unwrap_err();
        assert_eq!(refused.code, Code::InvalidConfig);
        assert!(refused.msg.contains("mtu 9000 is above 1500 of its master \"dev0\""), "{refused}");
        assert!(refused.details.contains("raise the master's"), "{refused}");
        if ports.names().is_empty() {
            assert_eq!(rig.state(), before);
            rig.of(Command::Add, "c1", &with(1500)).unwrap();
        }
    }
    rig.of(Command::Del, "c1", &on_wire()).unwrap();
    set(9000);
    let refused = rig.of(Command::Add, "c1", &with(9000)).unwrap_err();
    assert!(refused.msg.contains("mtu 9000 is above 3818, the most that passes an uplink"), "{refused}");
    for (of_master, wanted, got) in [(9000, 3818, 3818), (9000, 0, 1500), (1400, 0, 1400)] {
        set(of_master);
        rig.of(Command::Add, "c1", &with(wanted)).unwrap();
        assert_eq!(ports.only().mtu, got);
        rig.of(Command::Del, "c1", &with(wanted)).unwrap();
    }
}

#[test]
fn one_mac_address_in_a_network_and_vlan_is_one_ports_until_its_del() {
    const MAC: &str = r#","mac":"02:00:00:00:00:07""#;
    let rig = Rig::with_sockets();
    let (_server, ports) = switch(&rig);
    let (first, second) = (args("du-0", "u-1"), args("du-1", "u-2"));
    let with = |keys: &str| config(&format!("{MAC}{keys}"));
    for (one, other) in [
        ("", ""),
        (r#","vlan":100"#, r#","vlan":100"#),
        (r#","vlan":100"#, r#","trunk":[99,100]"#),
        (r#","trunk":[1,2]"#, r#","trunk":[2,3]"#),
    ] {
        of_pod(&rig, Command::Add, "c1", &first, &with(one)).unwrap();
        let before = rig.state();
        let refused = of_pod(&rig, Command::Add, "c2", &second, &with(other)).unwrap_err();
        assert_eq!(refused.code, Code::TryAgain, "{refused}");
        for told in ["02:00:00:00:00:07", "\"blue\"", "interface \"net1\" of pod ran/du-0 (container c1)"] {
            assert!(refused.msg.contains(told), "{refused}");
        }
        assert!(refused.details.contains("its own \"mac\""), "{refused}");
        assert!(rig.state() == before && ports.names() == ["c1/net1"]);
        of_pod(&rig, Command::Del, "c1", &first, &with(one)).unwrap();
        of_pod(&rig, Command::Add, "c2", &second, &with(other)).unwrap();
        of_pod(&rig, Command::Del, "c2", &second, &with(other)).unwrap();
    }
    // Where no frame of the one comes to the other, each has it.
    for keys in ["", r#","vlan":100"#, r#","trunk":[99,101]"#, r#","network":"green""#] {
        let container = format!("c{}", ports.names().len());
        of_pod(&rig, Command::Add, &container, &first, &with(keys)).unwrap();
    }
    assert_eq!(ports.names().len(), 4);
}

#[test]
fn a_pods_next_sandbox_has_its_mac_address_and_another_interface_of_it_has_not() {
    let rig = Rig::with_sockets();
    let (_server, ports) = switch(&rig);
    let (pod, with) = (args("du-0", "u-1"), config(r#","mac":"02:00:00:00:00:07""#));
    of_pod(&rig, Command::Add, "c1", &pod, &with).unwrap();
    let other =
        Request { ifname: "net2".into(), args: pod.clone(), ..rig.request(Command::Add, "c1", &with) };
    assert_eq!(rig.call(other).unwrap_err().code, Code::TryAgain);
    of_pod(&rig, Command::Add, "c2", &pod, &with).unwrap();
    of_pod(&rig, Command::Del, "c1", &pod, &with).unwrap();
    assert_eq!(ports.names(), ["c2/net1"]);
    // A pod that came back under the name is another one: it waits for that DEL.
    let again = args("du-0", "u-3");
    assert_eq!(of_pod(&rig, Command::Add, "c3", &again, &with).unwrap_err().code, Code::TryAgain);
    of_pod(&rig, Command::Del, "c2", &pod, &with).unwrap();
    of_pod(&rig, Command::Add, "c3", &again, &with).unwrap();
}

#[test]
fn one_socket_is_one_attachments_and_check_tells_when_the_pods_next_sandbox_has_it() {
    let node = Node::new();
    let (_server, ports) = switch(&node.rig);
    let volume = node.on_host("/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~empty-dir/shared-dir");
    fs::create_dir_all(&volume).unwrap();
    let named = of_own_switch("").replace(r#""mode":"server""#, r#""mode":"server","socketfile":"a.sock""#);
    // CHECK came with a later version.
    let named = named.replace("0.3.1", "1.1.0");
    let pod = args("du-0", "u-1");
    let call = |command, container: &str, ifname: &str, config: &str| {
        let request = node.rig.request(command, container, config);
        node.rig.call(Request { ifname: ifname.into(), args: pod.clone(), ..request })
    };
    let answer = call(Command::Add, "c1", "net1", &named).unwrap();
    let before = node.rig.state();
    let refused = call(Command::Add, "c1", "net2", &named).unwrap_err();
    assert_eq!(refused.code, Code::TryAgain);
    let holder = "a.sock is that of interface \"net1\" of pod ran/du-0 (container c1)";
    assert!(refused.msg.contains(holder), "{refused}");
    assert!(refused.details.contains("socketfile"), "{refused}");
    assert!(node.rig.state() == before && ports.names() == ["c1/net1"]);
    connect(&volume.join("a.sock")).unwrap();

    let mut with: Value = serde_json::from_str(&named).unwrap();
    with["prevResult"] = serde_json::from_str(&answer).unwrap();
    let with = with.to_string();
    call(Command::Check, "c1", "net1", &with).unwrap();
    call(Command::Add, "c2", "net1", &named).unwrap();
    let taken = call(Command::Check, "c1", "net1", &with).unwrap_err();
    assert!(taken.code == Code::Changed && taken.msg.contains("(container c2) by now"), "{taken}");
    call(Command::Check, "c2", "net1", &with).unwrap();
    call(Command::Del, "c1", "net1", &named).unwrap();
    connect(&volume.join("a.sock")).unwrap();
}
