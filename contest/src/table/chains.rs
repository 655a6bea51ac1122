//! Networks of more than one plugin: what the subject answers must be what the next one needs.

use serde_json::json;

use super::network;
use crate::case::Case;
use crate::disturbance::Disturbance;

const ROUTES_THAT_SBR_MOVED: &str = "CHECK finds macvlan's routes in the table into which sbr has moved them; the reference's macvlan looks in the main one only";

pub(super) fn rows() -> Vec<Case> {
    let macvlan = |version: &str| network("macvlan", &json!({"cniVersion": version}));
    let meta = |kind: &str, version: &str| json!({"cniVersion": version, "name": "net", "type": kind});
    let with = |mut config: serde_json::Value, key: &str, value: serde_json::Value| {
        config[key] = value;
        config
    };
    let tuning = |version: &str| {
        with(meta("tuning", version), "sysctl", json!({"net.ipv4.conf.IFNAME.arp_filter": "1"}))
    };
    vec![
        Case::new("macvlan, tuning (sysctl)", "macvlan", &macvlan("1.0.0"))
            .then("tuning", &tuning("1.0.0"))
            .probing(&[Disturbance::Link]),
        Case::new("macvlan, tuning (mac, mtu)", "macvlan", &macvlan("1.0.0")).then(
            "tuning",
            &with(with(meta("tuning", "1.0.0"), "mac", json!("02:aa:bb:cc:dd:09")), "mtu", json!(1280)),
        ),
        Case::new("macvlan, tuning in 0.3.1", "macvlan", &macvlan("0.3.1")).then("tuning", &tuning("0.3.1")),
        Case::new("macvlan, tuning in 1.1.0", "macvlan", &macvlan("1.1.0")).then("tuning", &tuning("1.1.0")),
        Case::new("macvlan, sbr", "macvlan", &macvlan("1.0.0"))
            .ifname("net1")
            .then("sbr", &meta("sbr", "1.0.0"))
            .succeeds("check", ROUTES_THAT_SBR_MOVED),
        Case::new("macvlan, portmap", "macvlan", &macvlan("1.0.0")).then(
            "portmap",
            &with(
                with(meta("portmap", "1.0.0"), "snat", json!(false)),
                "runtimeConfig",
                json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}),
            ),
        ),
        Case::new("macvlan, tuning, sbr", "macvlan", &macvlan("0.4.0"))
            .ifname("net1")
            .then("tuning", &tuning("0.4.0"))
            .then("sbr", &meta("sbr", "0.4.0"))
            .succeeds("check", ROUTES_THAT_SBR_MOVED),
        Case::new("macvlan, then a plugin that fails", "macvlan", &macvlan("1.0.0"))
            .then(
                "tuning",
                &with(meta("tuning", "1.0.0"), "sysctl", json!({"net.ipv4.conf.IFNAME.no_such_key": "1"})),
            )
            .fails(),
        Case::new("macvlan with a prevResult that it does not read", "macvlan", &macvlan("1.0.0"))
            .after(&json!({"cniVersion": "1.0.0", "interfaces": [{"name": "eth7", "sandbox": "/x"}],
                "ips": [{"address": "10.8.8.8/24", "interface": 0}]})),
        Case::new("macvlan with a prevResult of an interface beyond its list", "macvlan", &macvlan("1.0.0"))
            .after(&json!({"cniVersion": "1.0.0", "interfaces": [{"name": "eth7", "sandbox": "/x"}],
                "ips": [{"address": "10.8.8.8/24", "interface": 5}]})),
        Case::new(
            "host-device, tuning",
            "host-device",
            &network(
                "host-device",
                &json!({"master": null,
            "device": "dev0"}),
            ),
        )
        .then("tuning", &tuning("1.0.0"))
        .succeeds(
            "del again",
            "DEL is idempotent (CNI SPEC, \"DEL\"); the reference fails when the device is not in the pod",
        ),
    ]
}
