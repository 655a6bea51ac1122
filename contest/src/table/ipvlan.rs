//! ipvlan: modes, chained masters. Needs a kernel with ipvlan.

use serde_json::json;

use super::network;
use crate::case::Case;
use crate::disturbance::DISTURBANCES;
use crate::kernel_kinds::Kind;

const MASTER_AS_AT_ADD: &str =
    "CHECK takes the master of ADD; the reference's CHECK of ipvlan knows only one that the config names";
/// None that the node has, where the configuration names no master: CHECK must not look for the pod's interface on the node.
const NOT_ON_NODE: &str = "net1";

pub(super) fn rows() -> Vec<Case> {
    let mut rows: Vec<Case> = ["l2", "l3", "l3s"]
        .into_iter()
        .map(|mode| Case::new(format!("ipvlan {mode}"), "ipvlan", &network("ipvlan", &json!({"mode": mode}))))
        .collect();
    let before = json!({"cniVersion": "1.0.0", "interfaces": [{"name": "eth1"}],
        "ips": [{"address": "10.9.9.9/24", "gateway": "10.9.9.1", "interface": 0}],
            "routes": [{"dst": "0.0.0.0/0"}]});
    rows.extend([
        Case::new("ipvlan, mode absent", "ipvlan", &network("ipvlan", &json!({}))).probing(&DISTURBANCES),
        Case::new("ipvlan, mtu 1300", "ipvlan", &network("ipvlan", &json!({"mtu": 1300}))),
        Case::new("ipvlan, master absent", "ipvlan", &network("ipvlan", &json!({"master": null})))
            .ifname(NOT_ON_NODE),
        Case::new(
            "ipvlan, two families",
            "ipvlan",
            &network(
                "ipvlan",
                &json!({"ipam": {"type": "host-local",
            "ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00:1::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}),
            ),
        )
        .with_dad(),
        Case::new(
            "ipvlan, master and addresses of prevResult",
            "ipvlan",
            &network("ipvlan", &json!({"master": null, "ipam": null})),
        )
        .ifname(NOT_ON_NODE)
        .after(&before),
        Case::new(
            "ipvlan, master of prevResult, addresses of its own",
            "ipvlan",
            &network("ipvlan", &json!({"master": null})),
        )
        .ifname(NOT_ON_NODE)
        .after(&before),
        Case::new(
            "ipvlan, prevResult with two interfaces",
            "ipvlan",
            &network("ipvlan", &json!({"master": null})),
        )
        .after(&json!({"cniVersion": "1.0.0", "interfaces": [{"name": "eth1"}, {"name": "small0"}]}))
        .fails(),
        Case::new("ipvlan, ipam {}", "ipvlan", &network("ipvlan", &json!({"ipam": {}}))).fails(),
        Case::new("ipvlan, unknown mode", "ipvlan", &network("ipvlan", &json!({"mode": "l4"}))).fails(),
        Case::new("ipvlan, unknown master", "ipvlan", &network("ipvlan", &json!({"master": "nowhere0"})))
            .fails(),
        Case::new(
            "ipvlan, mtu above the parent's",
            "ipvlan",
            &network(
                "ipvlan",
                &json!({"master": "small0",
            "mtu": 1500}),
            ),
        )
        .refused("K24: an MTU above the parent's is a clear error; the reference's ipvlan takes it"),
        Case::new(
            "ipvlan, linkInContainer",
            "ipvlan",
            &network(
                "ipvlan",
                &json!({"master": "inner0",
            "linkInContainer": true}),
            ),
        )
        .in_pod(
            "link add inner0 address 02:00:5e:00:01:01 type veth peer name inner1 address 02:00:5e:00:01:02",
        )
        .in_pod("link set inner1 up")
        .in_pod("link set inner0 up"),
    ]);
    rows.into_iter().map(|row| row.needs(Kind::Ipvlan).succeeds("check", MASTER_AS_AT_ADD)).collect()
}
