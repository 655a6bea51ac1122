//! Configurations of type `vhost-user`.

use super::conf;
use crate::args::Args;
use crate::config::vhost_user::{Mode, OvsBridge, Place, Switch};
use crate::config::*;
use crate::error::Code;

fn read(keys: &str) -> VhostUser {
    VhostUser::parse(&conf("vhost-user", keys)).unwrap()
}

#[test]
fn a_vhost_user_configuration_is_read_with_every_field() {
    let whole = read(
        r#""switch":"fairlead","network":"blue","master":"eth1","mode":"server","vlan":100,"spoofchk":"off","isolated":true,"queues":4,"mtu":9000,"max_tx_rate":100,"max_rx_rate":0,
           "mac":"02:00:00:00:00:01","volume":"sockets","mountPath":"/run/sockets""#,
    );
    let wanted = VhostUser {
        switch: Switch::Fairlead,
        network: "blue".into(),
        master: Some("eth1".into()),
        mode: Mode::Server,
        vlan: Some(100),
        trunk: Vec::new(),
        spoofchk: false,
        isolated: true,
        queues: 4,
        mtu: Some(9000),
        max_tx_rate: Some(100),
        max_rx_rate: None,
        mac: Some("02:00:00:00:00:01".into()),
        place: Place::Volume("sockets".into()),
        mount_path: Some("/run/sockets".into()),
        container_side: None,
    };
    assert_eq!(whole, wanted);
    assert_eq!(read(r#""trunk":[200,100,200]"#).trunk, [100, 200]);
}

#[test]
fn a_port_of_ovs_is_in_a_bridge_and_the_application_makes_its_socket() {
    let least = read(r#""switch":"ovs-dpdk""#);
    assert_eq!((least.switch, least.mode), (Switch::OvsDpdk(OvsBridge::usual()), Mode::Server));
    assert!(!least.spoofchk, "OVS looks at no source address");
    let more = read(r#""switch":"ovs-dpdk","bridge":"br-phy0","mode":"server","trunk":[7],"max_tx_rate":10"#);
    let bridge = OvsBridge { name: "br-phy0".into(), is_made: false, every_vlan: false };
    assert_eq!(more.switch, Switch::OvsDpdk(bridge));
    assert_eq!((more.trunk.as_slice(), more.max_tx_rate), ([7].as_slice(), Some(10)));
    for (keys, told) in [
        (r#""bridge":"a/b""#, "bridge"),
        (r#""bridge":"br 0""#, "bridge"),
        (r#""mode":"client""#, "mode"),
        (r#""network":"blue""#, "network"),
        (r#""spoofchk":"on""#, "spoofchk"),
        (r#""isolated":true"#, "isolated"),
        (r#""queues":2"#, "queues"),
        (r#""max_rx_rate":5"#, "max_rx_rate"),
        (r#""max_tx_rate":4294968"#, "max_tx_rate"),
    ] {
        let conf = conf("vhost-user", &format!(r#""switch":"ovs-dpdk",{keys}"#));
        let error = VhostUser::parse(&conf).unwrap_err();
        assert!(
            error.code == Code::InvalidConfig && error.msg.contains(&format!("\"{told}\"")),
            "{keys}: {error:?}"
        );
    }
}

#[test]
fn what_is_absent_is_the_pods_own_volume_on_the_network_of_that_name() {
    let least = read("\"vlan\":0,\"mtu\":0,\"mode\":null");
    assert_eq!(least.place, Place::Volume("vhost-user".into()));
    assert_eq!((least.network.as_str(), least.mtu, least.queues), ("net", None, 1));
    assert_eq!((least.mode, least.vlan, least.spoofchk), (Mode::Client, None, true));
}

#[test]
fn a_port_that_kubelet_allocates_is_named_by_its_resource_or_by_whoever_passes_it() {
    let resource = || Place::Resource("example.com/blue".into());
    let of_annotation = r#""k8s.v1.cni.cncf.io/resourceName":"example.com/blue""#;
    assert_eq!(read(r#""resourceName":"example.com/blue""#).place, resource());
    assert_eq!(read(of_annotation).place, resource());
    for passed in [r#""deviceID":"blue-07""#, r#""runtimeConfig":{"deviceID":"blue-07"}"#] {
        assert_eq!(read(&format!("{of_annotation},{passed}")).place, Place::Port("blue-07".into()));
    }
    // The VF of another path of the same interface.
    let vf = r#""runtimeConfig":{"deviceID":"0000:3b:02.1"}"#;
    assert_eq!(read(vf).place, Place::Volume("vhost-user".into()));
    for key in ["mode", "volume", "directory", "mountPath"] {
        let keys = format!(r#"{of_annotation},"{key}":"server""#);
        let error = VhostUser::parse(&conf("vhost-user", &keys)).unwrap_err();
        let names_it = error.msg.contains(&format!("\"{key}\"")) && error.msg.contains("kubelet allocates");
        assert!(error.code == Code::InvalidConfig && names_it, "{error:?}");
    }
}

#[test]
fn what_cannot_be_is_refused_by_its_key() {
    let long = format!("\"network\":{:?}", "n".repeat(129));
    for (keys, told) in [
        (r#""switch":"ovs""#, "switch"),
        (r#""bridge":"br0""#, "bridge"),
        (r#""master":["eth1","eth2"]"#, "master"),
        (r#""mode":"both""#, "mode"),
        (r#""spoofchk":"no""#, "spoofchk"),
        (r#""vlan":4095"#, "vlan"),
        (r#""trunk":[0]"#, "trunk"),
        (r#""trunk":[65537]"#, "trunk"),
        (r#""vlan":5,"trunk":[6]"#, "trunk"),
        (r#""queues":0"#, "queues"),
        (r#""queues":9"#, "queues"),
        (r#""mtu":60"#, "mtu"),
        (r#""mtu":9217"#, "mtu"),
        (r#""volume":"../x""#, "volume"),
        (r#""volume":"a","directory":"/b""#, "volume"),
        (r#""directory":"b""#, "directory"),
        (r#""directory":"/b/../etc""#, "directory"),
        (r#""mountPath":"b""#, "mountPath"),
        (r#""network":"ns/blue""#, "network"),
        (long.as_str(), "network"),
    ] {
        let error = VhostUser::parse(&conf("vhost-user", keys)).unwrap_err();
        assert!(
            error.code == Code::InvalidConfig && error.msg.contains(&format!("\"{told}\"")),
            "{keys}: {error:?}"
        );
    }
}

#[test]
fn a_mac_address_of_the_runtime_goes_before_one_of_the_configuration() {
    let conf = conf("vhost-user", r#""mac":"02:00:00:00:00:01""#);
    let read = VhostUser::parse(&conf).unwrap();
    assert_eq!(read.mac(&conf, &Args::default()), Some("02:00:00:00:00:01"));
    assert_eq!(read.mac(&conf, &Args::parse("MAC=02:00:00:00:00:02").unwrap()), Some("02:00:00:00:00:02"));
}
