//! Configurations of type `userspace`, as userspace-cni's own documents and tests have them.

use serde_json::json;

use super::conf;
use crate::config::VhostUser;
use crate::config::userspace::SharedDir;
use crate::config::vhost_user::{Mode, OvsBridge, Place, Switch};
use crate::error::Code;

/// The one that userspace-cni's examples attach testpmd with.
const EXAMPLE: &str = r#""kubeconfig":"/etc/cni/net.d/multus.d/multus.kubeconfig","logFile":"/var/log/userspace-ovs-net-1-cni.log",
    "logLevel":"debug","host":{"engine":"ovs-dpdk","iftype":"vhostuser","netType":"bridge","vhost":{"mode":"client"},
    "bridge":{"bridgeName":"br-4"}},"container":{"engine":"ovs-dpdk","iftype":"vhostuser","netType":"interface",
    "vhost":{"mode":"server"}},"ipam":{"type":"host-local","subnet":"10.56.217.0/24"}"#;

fn read(keys: &str) -> VhostUser {
    VhostUser::parse(&conf("userspace", keys)).unwrap()
}

fn host(keys: &str) -> String {
    format!(r#""host":{{"engine":"ovs-dpdk","iftype":"vhostuser","vhost":{{"mode":"client"}}{keys}}}"#)
}

fn shared(base: Option<&str>, socket: Option<&str>) -> Place {
    Place::SharedDir(SharedDir { base: base.map(Into::into), socket: socket.map(Into::into), group: None })
}

#[test]
fn userspace_cnis_own_example_is_a_port_of_ovs_whose_socket_the_application_makes() {
    let port = read(EXAMPLE);
    let bridge = OvsBridge { name: "br-4".into(), is_made: true, every_vlan: true };
    assert_eq!((&port.switch, port.mode, port.vlan), (&Switch::OvsDpdk(bridge), Mode::Server, None));
    assert_eq!((&port.place, port.spoofchk), (&shared(None, None), false));
    let side = port.container_side.unwrap();
    assert!(side.by_annotation);
    let wanted = json!({"engine": "ovs-dpdk", "iftype": "vhostuser", "netType": "interface", "memif": {},
        "vhost": {"mode": "server"}, "bridge": {}});
    assert_eq!(side.config, wanted);
}

#[test]
fn what_is_absent_is_as_userspace_cni_has_it() {
    let least = read(&host(""));
    let bridge = OvsBridge { name: "br0".into(), is_made: true, every_vlan: true };
    assert_eq!(least.switch, Switch::OvsDpdk(bridge));
    let side = least.container_side.unwrap();
    assert!(!side.by_annotation);
    assert_eq!(
        (&side.config["vhost"]["mode"], &side.config["netType"]),
        (&json!("server"), &json!("interface"))
    );
    assert_eq!(side.config.get("engine"), None, "it is told as it is written");
}

#[test]
fn a_vlan_a_shared_directory_and_a_sockets_name_are_taken() {
    let keys = host(r#","netType":"bridge","bridge":{"bridgeName":"br1","bridgeId":7,"vlanId":100}"#);
    let port = read(&format!(r#"{keys},"sharedDir":"/var/lib/cni/usrspcni/""#));
    let bridge = OvsBridge { name: "br1".into(), is_made: true, every_vlan: false };
    assert_eq!((port.switch, port.vlan), (Switch::OvsDpdk(bridge), Some(100)));
    assert_eq!(port.place, shared(Some("/var/lib/cni/usrspcni/"), None));
    let named = read(
        r#""host":{"engine":"ovs-dpdk","iftype":"vhostuser","vhost":{"mode":"client","group":"hugetlbfs","socketfile":"a-net1"}}"#,
    );
    let of_group = SharedDir { base: None, socket: Some("a-net1".into()), group: Some("hugetlbfs".into()) };
    assert_eq!(named.place, Place::SharedDir(of_group));
}

#[test]
fn the_nodes_own_switch_makes_the_socket_as_well_and_its_network_is_the_bridge() {
    let of = |mode: &str| {
        read(&format!(
            r#""host":{{"engine":"fairlead","iftype":"vhostuser","vhost":{{"mode":"{mode}"}},"bridge":{{"bridgeName":"blue"}}}}"#
        ))
    };
    assert_eq!((of("server").switch, of("server").mode), (Switch::Fairlead, Mode::Client));
    assert_eq!(
        (of("client").mode, of("client").network, of("client").spoofchk),
        (Mode::Server, "blue".into(), true)
    );
    assert_eq!(read(r#""host":{"engine":"fairlead","iftype":"vhostuser"}"#).network, "net");
}

#[test]
fn what_is_not_served_is_refused_by_its_key_with_the_remedy() {
    let of_host = |keys: &str| format!(r#""host":{{{keys}}}"#);
    let ovs = r#""engine":"ovs-dpdk","iftype":"vhostuser""#;
    let client = |keys: &str| of_host(&format!(r#"{ovs},"vhost":{{"mode":"client"{keys}}}"#));
    for (keys, told) in [
        (String::new(), "\"host\""),
        (of_host(r#""engine":"vpp","iftype":"memif""#), "leave networks of \"vpp\" to userspace-cni"),
        (of_host(r#""engine":"vpp","iftype":"vhostuser""#), "host.engine"),
        (of_host(r#""iftype":"vhostuser""#), "host.engine"),
        (of_host(r#""engine":"ovs-dpdk","iftype":"memif""#), "memif is VPP's alone"),
        (of_host(r#""engine":"ovs-dpdk""#), "host.iftype"),
        (of_host(&format!(r#"{ovs},"netType":"interface""#)), "host.netType"),
        (of_host(ovs), "host.vhost.mode is not \"client\""),
        (of_host(&format!(r#"{ovs},"vhost":{{"mode":"server"}}"#)), "set host.vhost.mode to client"),
        (of_host(&format!(r#"{ovs},"vhost":{{"mode":"both"}}"#)), "host.vhost.mode"),
        (client(r#","socketfile":"../x""#), "socketfile"),
        (client(r#","socketfile":".hidden""#), "socketfile"),
        (host(r#","bridge":{"bridgeName":"a/b"}"#), "bridgeName"),
        (host(r#","bridge":{"vlanId":4095}"#), "vlanId"),
        (format!(r#"{},"sharedDir":"a""#, host("")), "sharedDir"),
        (format!(r#"{},"sharedDir":"/a/../b""#, host("")), "sharedDir"),
        (format!(r#"{},"container":{{"iftype":"memif"}}"#, host("")), "container.iftype"),
        (format!(r#"{},"container":{{"vhost":{{"mode":"client"}}}}"#, host("")), "container.vhost.mode"),
    ] {
        let error = VhostUser::parse(&conf("userspace", &keys)).unwrap_err();
        let words = format!("{} {}", error.msg, error.details);
        assert!(error.code == Code::InvalidConfig && words.contains(told), "{keys}: {error:?}");
    }
}
