use super::*;

fn mirror() -> Mirror {
    let mut mirror = Mirror::default();
    let rows = json!({
        "Open_vSwitch": { "o": { "initial": { "dpdk_initialized": true, "other_config": ["map", [["vhost-sock-dir", "s"]]] } } },
        "Bridge": { "b": { "initial": { "name": "br0", "datapath_type": "netdev", "ports": ["set", [["uuid", "p"], ["uuid", "f"]]] } } },
        "Port": {
            "p": { "initial": { "name": "p0", "interfaces": ["uuid", "i"], "external_ids": ["map", [["fairlead", "here"]]] } },
            "f": { "initial": { "name": "f0", "interfaces": ["uuid", "j"] } },
        },
        "Interface": { "i": { "initial": { "name": "p0" } }, "j": { "initial": { "name": "f0" } } },
    });
    mirror.update(&rows).unwrap();
    mirror
}

fn ours(mirror: &Mirror) -> Vec<&str> {
    mirror.our_ports("here").filter_map(|ours| ours.port.text("name")).collect()
}

#[test]
fn only_ports_of_this_node_in_a_bridge_are_ours() {
    let mut mirror = mirror();
    assert_eq!(ours(&mirror), ["p0"]);
    assert_eq!(mirror.our_port("here", "p0").unwrap().bridge, "br0");
    assert!(mirror.our_ports("there").next().is_none());
    mirror.update(&json!({ "Bridge": { "b": { "modify": { "ports": ["uuid", "p"] } } } })).unwrap();
    assert_eq!(ours(&mirror), [""; 0]);
}

#[test]
fn differences_change_sets_and_maps_and_replace_scalars() {
    let mut mirror = mirror();
    assert_eq!((mirror.applied(), mirror.dpdk_initialized()), (None, Some(true)));
    let news = json!({
        "Open_vSwitch": { "o": { "modify": {
            "cur_cfg": 5, "dpdk_initialized": false, "other_config": ["map", [["vhost-sock-dir", "s"], ["x", "y"]]],
        } } },
        "Interface": { "i": { "modify": { "ofport": 3, "status": ["map", [["status", "connected"]]] } } },
    });
    mirror.update(&news).unwrap();
    assert_eq!((mirror.applied(), mirror.dpdk_initialized()), (Some(5), Some(false)));
    assert_eq!((mirror.setting("vhost-sock-dir"), mirror.setting("x")), (None, Some("y")));
    let changed = json!({ "Interface": { "i": { "modify": { "ofport": 4, "status": ["map", [["status", "disconnected"]]] } } } });
    mirror.update(&changed).unwrap();
    let interface = mirror.our_port("here", "p0").unwrap().interface;
    assert_eq!(interface.integer("ofport"), Some(4));
    assert_eq!(interface.entry("status", "status"), Some("disconnected"));
}

#[test]
fn rows_of_a_plain_monitor_replace_and_vanish() {
    let mut mirror = mirror();
    mirror
        .update(&json!({ "Open_vSwitch": { "o": { "old": { "cur_cfg": 1 }, "new": { "cur_cfg": 2 } } } }))
        .unwrap();
    assert_eq!((mirror.applied(), mirror.dpdk_initialized()), (Some(2), None));
    mirror.update(&json!({ "Port": { "p": { "old": { "name": "p0" } } } })).unwrap();
    assert_eq!(ours(&mirror), [""; 0]);
    mirror.update(&json!({ "Bridge": { "b": { "delete": null } } })).unwrap();
    assert!(mirror.bridge("br0").is_none());
}

#[test]
fn news_that_do_not_fit_are_an_error() {
    for news in [
        json!([]),
        json!({ "Port": [] }),
        json!({ "Port": { "p": 3 } }),
        json!({ "Port": { "p": { "modify": { "tag": null } } } }),
        json!({ "Port": { "unknown": { "modify": { "tag": 3 } } } }),
    ] {
        assert!(mirror().update(&news).is_err(), "{news}");
    }
}

#[test]
fn a_monitor_asks_for_known_columns_and_with_conditions_for_our_rows_alone() {
    let all = monitor_requests("here", true, |_, column| column != "dpdk_initialized");
    assert_eq!(all["Open_vSwitch"], json!([{ "columns": ["cur_cfg", "next_cfg", "other_config"] }]));
    assert_eq!(
        all["Port"][0]["where"],
        json!([["external_ids", "includes", ["map", [["fairlead", "here"]]]]])
    );
    assert!(all["Bridge"][0]["where"].is_null());
    let plain = monitor_requests("here", false, |_, _| true);
    assert!(plain["Port"]["where"].is_null());
    assert_eq!(plain["Open_vSwitch"]["columns"].as_array().unwrap().len(), 4);
    assert!(needed_columns().all(|(_, column)| column != "dpdk_initialized"));
}
