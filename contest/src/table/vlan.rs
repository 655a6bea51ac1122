//! vlan: tags, MTU, masters. Needs a kernel with vlan.

use serde_json::json;

use super::network;
use crate::case::Case;
use crate::disturbance::DISTURBANCES;
use crate::kernel_kinds::Kind;

pub(super) fn rows() -> Vec<Case> {
    let vlan = |title: &str, more: serde_json::Value| Case::new(title, "vlan", &network("vlan", &more));
    [
        vlan("vlan 5", json!({"vlanId": 5})).probing(&DISTURBANCES),
        vlan("vlan 4094, mtu 1300", json!({"vlanId": 4094, "mtu": 1300})),
        vlan("vlan 0", json!({"vlanId": 0})),
        vlan("vlan, vlanId absent", json!({})),
        vlan("vlan 6 on a parent of 1400", json!({"vlanId": 6, "master": "small0"})),
        vlan("vlan 7, linkInContainer", json!({"vlanId": 7, "master": "inner0", "linkInContainer": true}))
            .in_pod("link add inner0 address 02:00:5e:00:01:01 type veth peer name inner1 address 02:00:5e:00:01:02")
            .in_pod("link set inner1 up")
            .in_pod("link set inner0 up"),
        vlan("vlan, ipam absent", json!({"vlanId": 5, "ipam": null})).fails(),
        vlan("vlan 4095", json!({"vlanId": 4095})).fails(),
        vlan("vlan -1", json!({"vlanId": -1})).fails(),
        vlan("vlan, master absent", json!({"vlanId": 5, "master": null})).fails(),
        vlan("vlan, unknown master", json!({"vlanId": 5, "master": "nowhere0"})).fails(),
        vlan("vlan, mtu above the parent's", json!({"vlanId": 5, "master": "small0", "mtu": 1500})).fails(),
        vlan("vlan, tag taken on this parent", json!({"vlanId": 5}))
            .on_node("link add link eth1 name eth1.5 type vlan id 5")
            .fails(),
    ]
    .into_iter()
    .map(|row| row.needs(Kind::Vlan))
    .collect()
}
