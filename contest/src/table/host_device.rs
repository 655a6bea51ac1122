//! host-device with the end of a veth pair as the device, and loopback.

use serde_json::{Value, json};

use super::{host_local, network};
use crate::case::Case;
use crate::disturbance::Disturbance;

const AS_IT_WAS: &str = "the device comes back as it was, up and with its alias; the reference leaves it down and takes its alias";
const IDEMPOTENT: &str =
    "DEL is idempotent (CNI SPEC, \"DEL\"); the reference fails when the device is not in the pod";

pub(super) fn rows() -> Vec<Case> {
    let mut rows: Vec<Case> = devices().into_iter().map(|c| c.succeeds("del again", IDEMPOTENT)).collect();
    rows.extend(
        failures().into_iter().map(|c| c.succeeds("del", IDEMPOTENT).succeeds("del again", IDEMPOTENT)),
    );
    rows.extend(loopbacks());
    rows
}

fn device(more: &Value) -> Value {
    let mut config = network("host-device", &json!({"master": null}));
    if let (Some(config), Some(more)) = (config.as_object_mut(), more.as_object()) {
        for (key, value) in more {
            config.insert(key.clone(), value.clone());
        }
    }
    config
}

fn devices() -> Vec<Case> {
    let l2 = |more: Value| {
        let mut config = device(&more);
        config["ipam"] = json!({});
        config
    };
    vec![
        Case::new("host-device by name", "host-device", &device(&json!({"device": "dev0"}))).probing(&[
            Disturbance::Address,
            Disturbance::Route,
            Disturbance::Allocation,
        ]),
        Case::new("host-device by hwaddr", "host-device", &device(&json!({"hwaddr": "02:00:5E:00:00:04"}))),
        Case::new("host-device, layer 2 only", "host-device", &l2(json!({"device": "dev0"})))
            .probing(&[Disturbance::Down]),
        Case::new("host-device that is up on the node", "host-device", &device(&json!({"device": "dev0"})))
            .allow("removed > node > interfaces > * > *", AS_IT_WAS)
            .allow("removed > node > routes", AS_IT_WAS)
            .on_node("link set dev0 up"),
        Case::new("host-device with an MTU of its own", "host-device", &device(&json!({"device": "dev0"})))
            .on_node("link set dev0 mtu 1234"),
        Case::new("host-device with an alias of its own", "host-device", &device(&json!({"device": "dev0"})))
            .allow("removed > node > interfaces > * > *", AS_IT_WAS)
            .allow("removed > node > routes", AS_IT_WAS)
            .on_node("link set dev0 alias uplink"),
        Case::new(
            "host-device with addresses on the node",
            "host-device",
            &device(&json!({"device": "dev0"})),
        )
        .allow("removed > node > interfaces > * > *", AS_IT_WAS)
        .allow("removed > node > routes", AS_IT_WAS)
        .on_node("link set dev0 up")
        .on_node("addr add 192.0.3.3/24 dev dev0"),
        Case::new("host-device under its own name", "host-device", &device(&json!({"device": "dev0"})))
            .ifname("dev0"),
    ]
}

fn failures() -> Vec<Case> {
    vec![
        Case::new(
            "host-device, kernelpath without a device",
            "host-device",
            &device(&json!({"kernelpath": "/sys/devices/virtual/net/dev0"})),
        )
        .fails(),
        Case::new(
            "host-device, kernelpath outside /sys/devices",
            "host-device",
            &device(&json!({"kernelpath": "/sys/class/net/dev0"})),
        )
        .fails(),
        Case::new("host-device, unknown device", "host-device", &device(&json!({"device": "nowhere0"})))
            .fails(),
        Case::new("host-device, no device named", "host-device", &device(&json!({}))).fails(),
        Case::new(
            "host-device, unknown hwaddr",
            "host-device",
            &device(&json!({"hwaddr": "02:ff:ff:ff:ff:ff"})),
        )
        .fails(),
        Case::new(
            "host-device, unknown pciBusID",
            "host-device",
            &device(&json!({"pciBusID": "0000:7f:1f.7"})),
        )
        .fails(),
        Case::new("host-device, name taken in the pod", "host-device", &device(&json!({"device": "dev0"})))
            .in_pod(
                "link add eth0 address 02:00:5e:00:01:01 type veth peer name other address 02:00:5e:00:01:02",
            )
            .fails(),
    ]
}

fn loopbacks() -> Vec<Case> {
    let lo = |version: &str| json!({"cniVersion": version, "name": "lo", "type": "loopback"});
    vec![
        Case::new("loopback", "loopback", &lo("1.0.0")).ifname("lo").probing(&[Disturbance::Down]),
        Case::new("loopback 0.2.0", "loopback", &lo("0.2.0"))
            .allow("add > result", "the reference answers 0.2.0 in the form of 1.0.0")
            .ifname("lo"),
        Case::new("loopback 1.1.0", "loopback", &lo("1.1.0")).ifname("lo"),
        Case::new("loopback under another name", "loopback", &lo("1.0.0")).ifname("eth0"),
        Case::new("loopback after another plugin", "loopback", &lo("1.0.0"))
            .ifname("lo")
            .after(&json!({"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/x"}],
                "ips": [{"address": "10.1.1.2/24", "interface": 0}]})),
        Case::new(
            "loopback with an ipam that nobody reads",
            "loopback",
            &json!({"cniVersion": "1.0.0",
            "name": "lo", "type": "loopback", "ipam": host_local()}),
        )
        .ifname("lo"),
    ]
}
