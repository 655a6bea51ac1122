//! Configurations of type `vhost-user`.

use super::conf;
use crate::args::Args;
use crate::config::vhost_user::{Mode, Place, Switch};
use crate::config::*;
use crate::error::Code;

fn read(keys: &str) -> VhostUser {
    VhostUser::parse(&conf("vhost-user", keys)).unwrap()
}

#[test]
fn a_vhost_user_configuration_is_read_with_every_field() {
    let whole = read(
        r#""switch":"fairlead","network":"blue","mode":"server","vlan":100,"spoofchk":"off","isolated":true,"queues":4,"mtu":9000,"max_tx_rate":100,"max_rx_rate":0,
           "mac":"02:00:00:00:00:01","volume":"sockets","mountPath":"/run/sockets""#,
    );
    let wanted = VhostUser {
        switch: Switch::Fairlead,
        network: "blue".into(),
        mode: Mode::Server,
        vlan: Some(100),
        trunk: Vec::new(),
        spoofchk: false,
        isolated: true,
        queues: 4,
        mtu: 9000,
        max_tx_rate: Some(100),
        max_rx_rate: None,
        mac: Some("02:00:00:00:00:01".into()),
        place: Place::Volume("sockets".into()),
        mount_path: Some("/run/sockets".into()),
    };
    assert_eq!(whole, wanted);
    assert_eq!(read(r#""trunk":[200,100,200]"#).trunk, [100, 200]);
}

#[test]
fn what_is_absent_is_the_pods_own_volume_on_the_network_of_that_name_with_ethernets_mtu() {
    let least = read("\"vlan\":0,\"mtu\":0,\"mode\":null");
    assert_eq!(least.place, Place::Volume("vhost-user".into()));
    assert_eq!((least.network.as_str(), least.mtu, least.queues), ("net", 1500, 1));
    assert_eq!((least.mode, least.vlan, least.spoofchk), (Mode::Client, None, true));
}

#[test]
fn what_cannot_be_is_refused_by_its_key() {
    let long = format!("\"network\":{:?}", "n".repeat(129));
    for (keys, told) in [
        (r#""switch":"ovs""#, "switch"),
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
