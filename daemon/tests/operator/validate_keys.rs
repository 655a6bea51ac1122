//! `validate` of a network's keys and values, and of the networks that it names: what ADD would refuse is told before a pod asks.

use std::fs;

use serde_json::{Value, json};

use super::commands_on_a_host::{conf, findings, host, plugin, write};

#[test]
fn what_add_would_refuse_is_told_of_a_file_with_what_was_meant() {
    let host = host();
    let file = host.path().join("net.conf");
    let local = |subnet: &str| json!({ "type": "host-local", "subnet": subnet });
    let macvlan =
        |key: &str, value: Value| json!({ "type": "macvlan", key: value, "ipam": local("10.1.0.0/24") });
    let with = |ipam: Value| conf(json!({ "type": "macvlan", "ipam": ipam }));
    let fixed = |routes: Value| json!({ "type": "static", "addresses": [{ "address": "10.1.0.2/24", "gateway": "10.1.0.1" }], "routes": routes });
    let table = [
        (conf(macvlan("mode", json!("brigde"))), vec!["\"brigde\"", "bridge, private, vepa or passthru"]),
        (conf(macvlan("mastr", json!("eth0"))), vec!["unknown key \"mastr\"; did you mean \"master\"?"]),
        (with(local("10.1.0.0/33")), vec!["ipam: every ADD is refused", "10.1.0.0/33"]),
        (with(json!({ "type": "host-local", "subent": "10.1.0.0/24" })), vec!["did you mean \"subnet\"?"]),
        (with(json!({ "type": "whereabouts" })), vec!["no executable whereabouts in the plugin directories"]),
        (conf(json!({ "type": "tunning" })), vec!["no executable tunning", "did you mean \"tuning\"?"]),
        (with(json!({ "type": "static" })), vec!["IPAM static has no \"addresses\""]),
        (with(json!({ "type": "dhcp" })), vec!["IPAM dhcp needs its daemon", "run/cni/dhcp.sock"]),
        (
            conf(json!({ "type": "sriov", "if0": "eth0", "l2enable": true })),
            vec!["\"if0\", \"l2enable\" are of sriov-cni before 2.0", "deviceID"],
        ),
        (
            conf(json!({ "type": "sriov", "dpdk": { "dpdk_driver": "vfio-pci" } })),
            vec!["\"dpdk\" is of sriov-cni before 2.0"],
        ),
        (with(json!({ "type": "hostlocal" })), vec!["no executable hostlocal", "did you mean \"host-local\"?"]),
        (conf(json!({ "type": "fairled" })), vec!["no executable fairled", "did you mean \"fairlead\"?"]),
        (
            conf(json!({ "type": "fairlead", "capabilites": {}, "paths": [{ "type": "macvlan" }] })),
            vec!["unknown key \"capabilites\"; did you mean \"capabilities\" by \"capabilites\"?"],
        ),
        (
            conf(json!({ "type": "fairlead", "clustrNetwork": "a" })),
            vec!["did you mean \"clusterNetwork\" by \"clustrNetwork\"?"],
        ),
        (
            conf(json!({ "type": "fairlead", "paths": [{ "type": "sriov", "resourcName": "a/b" }] })),
            vec!["did you mean \"resourceName\" by \"resourcName\"?"],
        ),
        (conf(json!({ "type": "host-device", "pciBusId": "0000:zz" })), vec!["\"0000:zz\" is no address of a bus"]),
        (conf(json!({ "type": "host-device", "pciBusID": "eth0" })), vec!["\"eth0\" is no address of a bus"]),
        (conf(json!({ "type": "host-device" })), vec!["every ADD is refused: host-device names no device"]),
        (conf(json!({ "type": "sriov", "vlan": 5000 })), vec!["vlan", "4094"]),
        (
            r#"{"name":"net","type":"macvlan","ipam":{}}"#.to_owned(),
            vec!["macvlan without addresses has no result of CNI version 0.1.0", "write \"cniVersion\""],
        ),
        (
            r#"{"name":"net","type":"fairlead","paths":[{"type":"macvlan"}]}"#.to_owned(),
            vec!["macvlan without addresses has no result of CNI version 0.1.0"],
        ),
        (
            conf(json!({ "type": "vlan", "master": "eth0", "vlanId": 5 })),
            vec!["vlan needs an \"ipam\" with a \"type\""],
        ),
        (conf(json!({ "type": "macvlan", "master": "m".repeat(128) })), vec!["\"master\" is 128 bytes long"]),
        (
            with(json!({ "type": "static", "addresses": [{ "address": "10.1.0.2/24" }, { "address": "10.1.0.2/24" }] })),
            vec!["ipam: every ADD is refused: static: the address 10.1.0.2/24 is there twice"],
        ),
        (
            with(json!({ "type": "static", "addresses": [{ "address": "ff02::1/64" }] })),
            vec!["ipam: every ADD is refused: the address ff02::1/64 is a multicast address"],
        ),
        (
            with(fixed(json!([{ "dst": "::/0", "gw": "10.1.0.254" }]))),
            vec!["ipam: every ADD is refused: the route to ::/0 has the gateway 10.1.0.254"],
        ),
        (
            with(fixed(json!([{ "dst": "10.9.0.0/16" }, { "dst": "10.9.0.0/16", "gw": "10.1.0.1" }]))),
            vec!["ipam: every ADD is refused: the route to 10.9.0.0/16 by gateway 10.1.0.1 is there twice"],
        ),
        (
            with(json!({ "type": "host-local", "subnet": "10.1.0.0/24", "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "0.0.0.0/0" }] })),
            vec!["ipam: every ADD is refused: the route to 0.0.0.0/0 by gateway 10.1.0.1 is there twice"],
        ),
        (
            with(fixed(json!([{ "dst": "0.0.0.0/0", "gw": "10.2.0.1" }]))),
            vec!["the gateway 10.2.0.1, which is on none of the interface's networks"],
        ),
        (
            conf(json!({
                "type": "fairlead", "paths": [{ "type": "macvlan" }],
                "ipam": fixed(json!([{ "dst": "0.0.0.0/0", "gw": "10.2.0.1" }])),
            })),
            vec!["the gateway 10.2.0.1, which is on none of the interface's networks"],
        ),
        (
            with(json!({ "type": "host-local", "subnet": "10.2.0.0/24", "rangeStart": "10.2.0.1", "rangeEnd": "10.2.0.1" })),
            vec!["ipam: every ADD is refused", "10.2.0.1-10.2.0.1, which is the gateway alone"],
        ),
        (
            conf(json!({ "type": "macvlan", "args": { "cni": { "ips": ["10.9.9.9"] } }, "ipam": local("10.1.0.0/24") })),
            vec!["ipam: every ADD is refused: failed to allocate all requested IPs: 10.9.9.9"],
        ),
        (
            conf(json!({ "type": "macvlan", "mtu": 1000, "ipam": local("fd00::/64") })),
            vec!["is of IPv6, which an interface with an MTU of 1000 does not have"],
        ),
        (conf(json!({ "type": "host-device", "device": "lo" })), vec!["the loopback interface cannot be lent to a pod"]),
        (
            with(local("10.1.0.0/24")).replace("\"net\"", &format!("{:?}", "n".repeat(256))),
            vec!["ipam: every ADD is refused: network name", "cannot be used as a directory's name"],
        ),
        (
            conf(json!({ "type": "fairlead", "paths": [{ "type": "macvlan", "mod": "x" }] })),
            vec!["unknown key \"mod\""],
        ),
        ("{".to_owned(), vec!["unclosed bracket"]),
        (conf(json!({ "typ": "macvlan" })), vec!["neither \"type\" nor \"plugins\"; did you mean \"type\" by \"typ\"?"]),
        (
            json!({ "cniversion": "1.0.0", "cniVersion": "1.0.0", "name": "a", "plugin": [{ "type": "macvlan" }] })
                .to_string(),
            vec!["neither \"type\" nor \"plugins\"; did you mean \"plugins\" by \"plugin\"?"],
        ),
        (
            conf(json!({ "disableChek": true, "plugins": [{ "type": "macvlan" }] })),
            vec!["unknown key \"disableChek\"; did you mean \"disableCheck\"?"],
        ),
        (
            with(json!({ "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24", "rangEnd": "10.1.0.9" }]] })),
            vec!["ipam.ranges[0][0]: unknown key \"rangEnd\"; did you mean \"rangeEnd\"?"],
        ),
        (
            with(json!({
                "type": "static", "addresses": [{ "address": "10.1.0.2/24", "gatway": "10.1.0.1" }],
                "routes": [{ "dst": "0.0.0.0/0", "gateway": "10.1.0.1" }], "dns": { "nameserver": ["10.1.0.1"] },
            })),
            vec![
                "ipam.addresses[0]: unknown key \"gatway\"; did you mean \"gateway\"?",
                "ipam.routes[0]: unknown key \"gateway\"; did you mean \"gw\"?",
                "ipam.dns: unknown key \"nameserver\"; did you mean \"nameservers\"?",
            ],
        ),
        (
            conf(json!({ "type": "macvlan", "dns": { "serch": ["a"] }, "capabilities": { "mcas": true } })),
            vec![
                "dns: unknown key \"serch\"; did you mean \"search\"?",
                "capabilities: unknown key \"mcas\"; did you mean \"mac\"?",
            ],
        ),
    ];
    for (text, parts) in table {
        fs::write(&file, &text).unwrap();
        let (status, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
        assert_eq!(status, Some(1), "{text}: {told:?}");
        let wrong: Vec<&String> =
            told.iter().filter(|(verdict, _)| verdict == "wrong").map(|(_, text)| text).collect();
        for part in parts {
            assert!(wrong.iter().any(|text| text.contains(part)), "{part}: {told:?}");
        }
        assert!(told.iter().all(|(_, text)| text.contains("net.conf") && !text.ends_with("→ ")), "{told:?}");
    }
}

#[test]
fn routes_that_the_kernel_refuses_are_told_of_a_device_that_may_be_in_user_space_as_what_may_work() {
    let host = host();
    let file = host.path().join("net.conf");
    let ipam = json!({ "type": "host-local", "subnet": "10.1.0.0/24", "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "0.0.0.0/0" }] });
    for (key, device) in [("sriov", "deviceID"), ("host-device", "pciBusID")] {
        fs::write(&file, conf(json!({ "type": key, device: "0000:21:10.0", "ipam": ipam }))).unwrap();
        let (status, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
        assert!(status == Some(0) && told.len() == 1 && told[0].0 == "less", "{told:?}");
        assert!(
            told[0].1.contains("unless a driver for user space has the device")
                && told[0].1.contains("is there twice"),
            "{told:?}"
        );
    }
}

#[test]
fn of_a_key_of_sriov_cni_before_2_0_one_thing_is_told() {
    let host = host();
    let file = host.path().join("net.conf");
    let old = [
        json!({ "if0": "eth0" }),
        json!({ "deviceinfo": {} }),
        json!({ "if0": "eth0", "vf": 1, "l2enable": true }),
    ];
    for mut keys in old {
        keys["type"] = "sriov".into();
        fs::write(&file, conf(keys)).unwrap();
        let (status, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
        assert!(status == Some(1) && told.len() == 1 && told[0].1.contains("before 2.0"), "{told:?}");
    }
    // Nor are they keys of another type.
    let other = json!({ "type": "host-device", "capabilities": { "deviceID": true }, "master": "eth0" });
    fs::write(&file, conf(other)).unwrap();
    let (_, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
    assert!(told.len() == 1 && told[0].1.contains("unknown key \"master\""), "{told:?}");
    // A device is named: the old key only has no effect.
    let both = json!({ "type": "sriov", "deviceID": "0000:21:10.0", "deviceinfo": {} });
    fs::write(&file, conf(both)).unwrap();
    let (status, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
    assert!(status == Some(0) && told.len() == 1 && told[0].0 == "less", "{told:?}");
}

#[test]
fn a_data_dir_that_is_no_absolute_path_is_told() {
    let host = host();
    let file = host.path().join("net.conf");
    let ipam = json!({ "type": "host-local", "subnet": "10.1.0.0/24", "dataDir": "rel" });
    fs::write(&file, conf(json!({ "type": "macvlan", "ipam": ipam }))).unwrap();
    let (_, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
    assert!(told.len() == 1 && told[0].0 == "less", "{told:?}");
    assert!(told[0].1.contains("\"dataDir\" \"rel\" is no absolute path"), "{told:?}");
}

#[test]
fn what_add_would_do_is_found_good() {
    let host = host();
    plugin(&host.path().join("opt/cni/bin/dhcp"));
    fs::write(host.path().join("run/cni/dhcp.sock"), "").unwrap();
    let good = [
        json!({ "type": "macvlan", "Master": "eth0", "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }]] } }),
        json!({ "type": "macvlan", "ipam": { "type": "dhcp" } }),
        json!({ "plugins": [{ "type": "macvlan", "capabilities": { "ips": true }, "ipam": { "type": "static" } }, { "type": "tuning", "any": 1 }] }),
        json!({ "type": "sriov", "vlan": 100, "logLevel": "info", "resourceName": "x/radio" }),
        json!({ "type": "loopback" }),
        json!({ "type": "host-device", "pciBusID": "0000:21:10.0" }),
        json!({ "type": "host-device", "pciBusID": "mlx5_core.sf.4" }),
        json!({ "type": "host-device", "capabilities": { "deviceID": true } }),
        json!({ "type": "fairlead", "paths": [{ "type": "sriov" }, { "type": "host-device" }, { "type": "macvlan", "master": "eth0" }], "ipam": {} }),
        json!({ "type": "macvlan", "dns": { "Nameservers": ["10.1.0.1"], "domain": "a", "search": ["a"], "options": ["b"] }, "ipam": {
            "type": "host-local", "routes": [{ "dst": "0.0.0.0/0", "GW": "10.1.0.1", "mtu": 1400, "advmss": 1360, "priority": 1, "table": 9, "scope": 0 }],
            "ranges": [[{ "subnet": "10.1.0.0/24", "rangestart": "10.1.0.2", "rangeEnd": "10.1.0.9", "gateway": "10.1.0.1" }]],
        } }),
        json!({ "type": "macvlan", "capabilities": { "ips": true, "mac": true, "deviceID": true, "io.kubernetes.cri.pod-annotations": true }, "ipam": {} }),
        // What the call brings may reach the gateway, and one range of several has addresses.
        json!({ "type": "macvlan", "capabilities": { "ips": true }, "ipam": {
            "type": "static", "addresses": [{ "address": "10.1.0.2/24" }], "routes": [{ "dst": "10.9.0.0/16", "gw": "10.2.0.1" }],
        } }),
        json!({ "type": "macvlan", "capabilities": { "ipRanges": true }, "ipam": {
            "type": "host-local", "subnet": "10.1.0.0/24", "routes": [{ "dst": "10.9.0.0/16", "gw": "10.2.0.1" }],
        } }),
        json!({ "type": "macvlan", "ipam": { "type": "host-local", "ranges": [[
            { "subnet": "10.2.0.0/24", "rangeStart": "10.2.0.1", "rangeEnd": "10.2.0.1" }, { "subnet": "10.3.0.0/24" },
        ]] } }),
        json!({ "type": "macvlan", "ipam": { "type": "static", "addresses": [{ "address": "10.1.0.2/32" }], "routes": [
            { "dst": "169.254.1.1/32", "scope": 253 }, { "dst": "0.0.0.0/0", "gw": "169.254.1.1" },
        ] } }),
        // What an executed plugin has is its own.
        json!({ "type": "tuning", "dns": { "nameserver": [] }, "capabilities": { "mcas": true }, "ipam": { "type": "tuning", "ranges": [{ "rangEnd": 1 }] } }),
    ];
    for (n, network) in good.into_iter().enumerate() {
        let file = host.path().join(format!("{n}.conf"));
        fs::write(&file, conf(network)).unwrap();
        let (status, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
        assert!(status == Some(0) && told.len() == 1 && told[0].0 == "good", "{told:?}");
    }
}

#[test]
fn the_daemon_of_dhcp_is_found_on_the_host_though_its_directory_is_not_mounted_and_told_by_its_path_there() {
    let host = host();
    plugin(&host.path().join("opt/cni/bin/dhcp"));
    let file = host.path().join("net.conf");
    fs::write(&file, conf(json!({ "type": "macvlan", "ipam": { "type": "dhcp" } }))).unwrap();
    let judged = || findings(host.path(), &["validate", file.to_str().unwrap()]);
    let (status, told) = judged();
    assert!(status == Some(1) && told.len() == 1, "{told:?}");
    assert!(told[0].1.contains("there is none at /run/cni/dhcp.sock"), "{told:?}");
    // The root of the host's first process has what the container has not.
    write(host.path().join("proc/1/root/run/cni/dhcp.sock"), "");
    let (status, told) = judged();
    assert!(status == Some(0) && told.len() == 1 && told[0].0 == "good", "{told:?}");
}

#[test]
fn networks_that_are_only_named_must_be_there() {
    let host = host();
    let net_d = host.path().join("etc/cni/net.d");
    let own = |more: Value| {
        let mut keys = json!({ "type": "fairlead" });
        keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        conf(keys)
    };
    fs::write(net_d.join("10-pods.conf"), r#"{"cniVersion":"1.0.0","name":"pods","type":"macvlan"}"#)
        .unwrap();
    let table = [
        (json!({ "clusterNetwork": "nope" }), "wrong", "code 11: clusterNetwork is \"nope\""),
        (json!({ "clusterNetwork": "podz" }), "wrong", "did you mean \"pods\"?"),
        (json!({ "clusterNetwork": "net" }), "wrong", "\"net\", which is of type \"fairlead\""),
        (
            json!({ "clusterNetwork": "pods", "defaultNetworks": ["net"] }),
            "wrong",
            "defaultNetworks names \"net\"",
        ),
        (
            json!({ "clusterNetwork": "pods", "defaultNetworks": ["zzz"], "multusNamespace": "nets" }),
            "less",
            "it must be a definition in the namespace nets",
        ),
        (json!({ "clusterNetwork": "pods", "defaultNetworks": ["pods"] }), "good", ""),
    ];
    let file = net_d.join("00-net.conf");
    for (more, verdict, part) in table {
        fs::write(&file, own(more)).unwrap();
        for words in [&["validate"][..], &["validate", file.to_str().unwrap()], &["doctor"]] {
            let (_, told) = findings(host.path(), words);
            let of_it: Vec<_> = told
                .iter()
                .filter(|(_, text)| text.contains("00-net.conf") || text.starts_with("networks: net"))
                .collect();
            assert!(of_it.len() == 1 && of_it[0].0 == verdict, "{words:?} {part}: {told:?}");
            assert!(of_it[0].1.contains(part), "{words:?} {part}: {told:?}");
        }
    }
    // What is given with it counts, and without a conf dir nothing is certain.
    fs::write(&file, own(json!({ "clusterNetwork": "late", "defaultNetworks": ["extra"] }))).unwrap();
    let late = host.path().join("late.conf");
    fs::write(&late, r#"{"cniVersion":"1.0.0","name":"late","type":"macvlan"}"#).unwrap();
    let extra = host.path().join("extra.yaml");
    let nad = r#"{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{"name":"extra","namespace":"kube-system"},"spec":{"config":"{\"cniVersion\":\"1.0.0\",\"type\":\"macvlan\"}"}}"#;
    fs::write(&extra, nad).unwrap();
    let [file, late, extra] = [&file, &late, &extra].map(|file| file.to_str().unwrap());
    let (status, told) = findings(host.path(), &["validate", file, late, extra]);
    assert!(status == Some(0) && told.iter().all(|(verdict, _)| verdict == "good"), "{told:?}");
    let moved = host.path().join("net.conf");
    fs::rename(file, &moved).unwrap();
    fs::remove_dir_all(&net_d).unwrap();
    let (status, told) = findings(host.path(), &["validate", moved.to_str().unwrap()]);
    assert!(status == Some(0) && told[0].0 == "less" && told[0].1.contains("is not here"), "{told:?}");
}

#[test]
fn a_word_that_is_not_near_a_known_one_is_not_taken_for_it() {
    let host = host();
    let (file, network) = (host.path().join("config.yaml"), host.path().join("net.conf"));
    for (text, meant) in [("del: late\n", ""), ("del: erly\n", "did you mean \"early\"?")] {
        fs::write(&file, text).unwrap();
        let (_, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
        assert_eq!(told[0].0, "wrong", "{text}: {told:?}");
        assert!(told[0].1.contains(meant), "{text}: {told:?}");
        assert_eq!(told[0].1.contains("did you mean"), !meant.is_empty(), "{text}: {told:?}");
    }
    fs::write(&file, "").unwrap();
    fs::write(&network, conf(json!({ "type": "firewall" }))).unwrap();
    let (_, told) = findings(host.path(), &["validate", network.to_str().unwrap()]);
    assert!(told.iter().any(|(_, text)| text.contains("no executable firewall")), "{told:?}");
    assert!(told.iter().all(|(_, text)| !text.contains("did you mean")), "{told:?}");
}
