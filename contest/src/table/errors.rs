//! Networks that can't be had: the code of the error is compared, and that nothing is left behind; the words are
//! each implementation's own.

use serde_json::{Value, json};

use super::{network, with_ipam};
use crate::case::Case;

const NOT_OURS: &str =
    "DEL never removes a link of another kind; the reference removes whatever has the name";
const NOT_READ: &str = "what can't be read tells no DEL what to remove; the code says so";
const NOBODY_TO_CALL: &str =
    "the addresses are another plugin's, and there is none to give them back; the code says so";

pub(super) fn rows() -> Vec<Case> {
    let macvlan = |title: &str, more: Value| Case::new(title, "macvlan", &network("macvlan", &more)).fails();
    vec![
        macvlan("unknown master", json!({"master": "nowhere0"})),
        macvlan("mtu above the parent's", json!({"master": "small0", "mtu": 1500})),
        macvlan("negative mtu", json!({"mtu": -1})),
        macvlan("mtu below the kernel's least", json!({"mtu": 20})),
        macvlan("unknown mode", json!({"mode": "hub"})),
        macvlan("mode in capitals", json!({"mode": "BRIDGE"})),
        macvlan("bad mac", json!({"mac": "02:aa:bb"})),
        macvlan("multicast mac", json!({"mac": "03:aa:bb:cc:dd:01"})),
        macvlan("bad mac by runtimeConfig", json!({"runtimeConfig": {"mac": "pizza"}})),
        macvlan("bad mac by CNI_ARGS", json!({})).args("IgnoreUnknown=1;MAC=pizza"),
        macvlan("unknown CNI_ARGS", json!({})).args("K8S_POD_NAME=a"),
        macvlan("CNI_ARGS without =", json!({})).args("IgnoreUnknown=1;MAC").del_fails(NOT_READ),
        macvlan("the master's own mac", json!({"mac": "02:00:5e:00:00:02"})),
        macvlan("a mac that is taken on this master", json!({"mac": "02:aa:bb:cc:dd:07"}))
            .on_node("link add link eth1 name mv0 address 02:aa:bb:cc:dd:07 type macvlan mode bridge")
            .on_node("link set mv0 up"),
        macvlan("interface exists", json!({}))
            .adds("removed > pod", NOT_OURS)
            .adds("at del's answer", NOT_OURS)
            .in_pod(
                "link add eth0 address 02:00:5e:00:01:01 type veth peer name other address 02:00:5e:00:01:02",
            ),
        macvlan("passthru on a master that is in use", json!({"mode": "passthru"}))
            .on_node("link add link eth1 name mv0 address 02:aa:bb:cc:dd:07 type macvlan mode bridge"),
        macvlan("unknown IPAM plugin", json!({"ipam": {"type": "nobody"}})).del_fails(NOBODY_TO_CALL),
        macvlan("IPAM type with a path", json!({"ipam": {"type": "../host-local", "subnet": "10.1.2.0/24"}}))
            .del_fails(NOT_READ),
        Case::new(
            "exhausted range",
            "macvlan",
            &with_ipam(&json!({"type": "host-local",
            "subnet": "10.1.2.0/24", "rangeStart": "10.1.2.1", "rangeEnd": "10.1.2.1"})),
        )
        .fails(),
        Case::new("network name absent", "macvlan", &network("macvlan", &json!({"name": null}))).fails(),
        Case::new("network name with a slash", "macvlan", &network("macvlan", &json!({"name": "a/b"})))
            .fails(),
        Case::new("interface name of 16 bytes", "macvlan", &network("macvlan", &json!({})))
            .ifname("a234567890123456")
            .fails(),
        Case::new("interface name with a slash", "macvlan", &network("macvlan", &json!({})))
            .ifname("a/b")
            .fails(),
        Case::new("interface name with %d", "macvlan", &network("macvlan", &json!({})))
            .ifname("net%d")
            .fails(),
        Case::new(
            "linkInContainer, master on the node",
            "macvlan",
            &network("macvlan", &json!({"linkInContainer": true})),
        )
        .fails(),
        macvlan(
            "address that the pod has already",
            json!({"ipam": {"type": "static",
            "addresses": [{"address": "10.5.0.3/24"}, {"address": "10.5.0.3/24"}]}}),
        ),
    ]
}
