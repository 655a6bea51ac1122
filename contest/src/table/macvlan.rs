//! macvlan: modes, MTU, MAC, masters, layer 2 only.

use serde_json::json;

use super::network;
use crate::case::Case;
use crate::disturbance::{DISTURBANCES, Disturbance};

const STRICTER: &str = "CHECK really looks (X4): the reference does not see this";

pub(super) fn rows() -> Vec<Case> {
    let mut rows: Vec<Case> = ["bridge", "private", "vepa", "passthru"]
        .into_iter()
        .map(|mode| {
            Case::new(format!("macvlan {mode}"), "macvlan", &network("macvlan", &json!({"mode": mode})))
        })
        .collect();
    rows.extend([
        Case::new("macvlan, mode absent", "macvlan", &network("macvlan", &json!({}))).probing(&DISTURBANCES),
        Case::new("macvlan, mtu 1300", "macvlan", &network("macvlan", &json!({"mtu": 1300}))),
        Case::new("macvlan, mtu 0", "macvlan", &network("macvlan", &json!({"mtu": 0}))),
        Case::new(
            "macvlan, mtu equal to the parent's 1400",
            "macvlan",
            &network("macvlan", &json!({"master": "small0", "mtu": 1400})),
        ),
        Case::new(
            "macvlan, mtu absent on a parent of 1400",
            "macvlan",
            &network("macvlan", &json!({"master": "small0"})),
        ),
        Case::new("macvlan, bcqueuelen 2000", "macvlan", &network("macvlan", &json!({"bcqueuelen": 2000}))),
        Case::new(
            "macvlan, mac in the config",
            "macvlan",
            &network("macvlan", &json!({"mac": "02:aa:bb:cc:dd:01"})),
        )
        .probing(&[Disturbance::Link]),
        Case::new(
            "macvlan, mac by runtimeConfig",
            "macvlan",
            &network(
                "macvlan",
                &json!({"mac": "02:aa:bb:cc:dd:01", "capabilities": {"mac": true},
                "runtimeConfig": {"mac": "C2:11:22:33:44:55"}}),
            ),
        ),
        Case::new(
            "macvlan, mac by CNI_ARGS",
            "macvlan",
            &network("macvlan", &json!({"mac": "02:aa:bb:cc:dd:01"})),
        )
        .args("IgnoreUnknown=1;MAC=02:aa:bb:cc:dd:02;K8S_POD_NAME=a"),
        Case::new(
            "macvlan, mac by CNI_ARGS and runtimeConfig",
            "macvlan",
            &network("macvlan", &json!({"runtimeConfig": {"mac": "c2:11:22:33:44:55"}})),
        )
        .args("MAC=02:aa:bb:cc:dd:02;IgnoreUnknown=true"),
        Case::new(
            "macvlan, mac with dashes",
            "macvlan",
            &network("macvlan", &json!({"mac": "02-aa-bb-cc-dd-03"})),
        ),
        Case::new(
            "macvlan passthru, mac asked for",
            "macvlan",
            &network("macvlan", &json!({"mode": "passthru", "mac": "02:aa:bb:cc:dd:01"})),
        ),
        Case::new("macvlan, master absent", "macvlan", &network("macvlan", &json!({"master": null}))),
        Case::new("macvlan, layer 2 only: ipam {}", "macvlan", &network("macvlan", &json!({"ipam": {}})))
            .probing(&[Disturbance::Down, Disturbance::Link]),
        Case::new(
            "macvlan, layer 2 only: ipam absent",
            "macvlan",
            &network("macvlan", &json!({"ipam": null})),
        ),
        Case::new(
            "macvlan, dns in the config",
            "macvlan",
            &network(
                "macvlan",
                &json!({"dns": {"nameservers": ["192.0.2.7"], "domain": "x.org",
                "search": ["x.org"], "options": ["ndots:3"]}}),
            ),
        ),
        Case::new("macvlan as net1 beside eth0", "macvlan", &network("macvlan", &json!({})))
            .ifname("net1")
            .in_pod("link add eth0 type veth peer name eth9"),
        Case::new("macvlan, interface name of 15 bytes", "macvlan", &network("macvlan", &json!({})))
            .ifname("a23456789012345"),
        Case::new(
            "macvlan, linkInContainer",
            "macvlan",
            &network(
                "macvlan",
                &json!({"master": "inner0",
            "linkInContainer": true}),
            ),
        )
        .in_pod(
            "link add inner0 address 02:00:5e:00:01:01 type veth peer name inner1 address 02:00:5e:00:01:02",
        )
        .in_pod("link set inner1 up")
        .in_pod("link set inner0 up"),
        Case::new(
            "macvlan on a parent that is down",
            "macvlan",
            &network("macvlan", &json!({"master": "dev0"})),
        ),
        Case::new("macvlan in a pod without IPv6", "macvlan", &network("macvlan", &json!({})))
            .sysctl("net/ipv6/conf/default/disable_ipv6", "1"),
        Case::new(
            "macvlan with an IPv6 address in a pod without IPv6",
            "macvlan",
            &network(
                "macvlan",
                &json!({"ipam": {"type": "static", "addresses": [{"address": "fd00:5::3/64",
                "gateway": "fd00:5::1"}], "routes": [{"dst": "::/0"}]}}),
            ),
        )
        .sysctl("net/ipv6/conf/default/disable_ipv6", "1"),
    ]);
    rows.into_iter().map(stricter).collect()
}

fn stricter(case: Case) -> Case {
    case.refuses("probe link down > found", STRICTER).refuses("probe mtu changed > found", STRICTER)
}
