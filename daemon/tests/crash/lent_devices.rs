//! What the node itself uses is never lent to a pod, by host-device or by a macvlan that takes its parent over. On the real
//! kernel: a device that was given away is a node without its network.

use std::fs;

use fairlead_cni::CniError;
use serde_json::{Value, json};

use super::rig::{Reply, Rig, until};

/// Both ways to take a device over.
fn takers(device: &str) -> [Value; 2] {
    let with = |more: Value| {
        let mut config = json!({ "cniVersion": "1.0.0", "name": "lent", "ipam": {} });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    [
        with(json!({ "type": "host-device", "device": device })),
        with(json!({ "type": "macvlan", "mode": "passthru", "master": device })),
    ]
}

/// Why neither way is allowed; the node is as it was after that.
fn refused(rig: &Rig, device: &str) -> Vec<CniError> {
    let before = rig.links();
    let errors = takers(device).map(|config| {
        let pod = rig.pod("pod");
        match rig.call("c1", &pod, &config).add() {
            Reply::Refused(error) => error,
            other => panic!("{device} was given away: {other:?}"),
        }
    });
    assert_eq!(rig.links(), before);
    errors.into()
}

fn lent(rig: &Rig, device: &str) {
    let before = rig.links();
    for config in takers(device) {
        let pod = rig.pod("pod");
        let call = rig.call("c1", &pod, &config);
        call.add().succeeds();
        call.del().succeeds();
    }
    until("the node is as before", || rig.links() == before);
}

#[test]
fn the_uplink_a_port_and_what_they_stand_on_are_refused_until_the_node_allows_them_by_name() {
    let rig = Rig::new();
    // No address comes and goes by itself meanwhile.
    rig.ip("addr flush dev eth0");
    for name in ["nic0", "nic1"] {
        rig.ip(&format!("link add {name} type veth peer name {name}w"));
        rig.ip(&format!("link set {name} addrgenmode none"));
        rig.ip(&format!("link set {name}w up"));
        rig.ip(&format!("link set {name} up"));
    }
    let _daemon = rig.start();
    lent(&rig, "nic0");

    let routes = [
        "route add default dev nic0",
        "route add default dev nic0 table 253",
        "-6 route add default dev nic0",
        "-6 route add default dev nic0 table 77",
    ];
    for route in routes {
        rig.ip(route);
        for error in refused(&rig, "nic0") {
            assert!(error.msg.ends_with("is not lent: it carries the node's default route"), "{error}");
            assert!(error.details.contains("policy.lendable"), "{error}");
        }
        rig.ip(&route.replace(" add ", " del "));
    }

    rig.ip("link add up0 link nic0 type macvlan mode bridge");
    rig.ip("link set up0 up");
    rig.ip("route add default dev up0");
    for error in refused(&rig, "nic0") {
        assert!(error.msg.ends_with(r#"default route, through "up0" above it"#), "{error}");
    }
    rig.ip("link del up0");

    rig.ip("link add br0 type bridge");
    rig.ip("link set nic1 master br0");
    for error in refused(&rig, "nic1") {
        assert!(error.msg.ends_with(r#"it is a port of bridge "br0""#), "{error}");
    }

    rig.ip("route add default dev nic0");
    refused(&rig, "nic0");
    let pod = rig.pod("allowed");
    let [host_device, _] = takers("nic0");
    let call = rig.call("c2", &pod, &host_device);
    fs::write(rig.path("config.yaml"), "reapAfter: 30ms\npolicy: {lendable: [nic0]}\n").unwrap();
    until("the node's configuration is in force", || matches!(call.add(), Reply::Done(_)));
    call.del().succeeds();
    // The route went with the device: its pod has taken that.
    refused(&rig, "nic1");
    lent(&rig, "nic0");
}
