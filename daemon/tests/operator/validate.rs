//! `validate` and `doctor`, the real program on real files: what ADD would refuse is told before a pod asks.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::rig::Rig;

pub(super) const BIN: &str = env!("CARGO_BIN_EXE_fairleadd");

/// A host's root with a conf dir and a plugin that does nothing.
pub(super) fn host() -> tempfile::TempDir {
    let host = tempfile::tempdir().unwrap();
    for dir in ["etc/cni/net.d", "opt/cni/bin", "run/cni", "run/fairlead"] {
        fs::create_dir_all(host.path().join(dir)).unwrap();
    }
    plugin(&host.path().join("opt/cni/bin/tuning"));
    host
}

pub(super) fn plugin(path: &Path) {
    fs::write(path, "#!/bin/sh\n").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The exit status and the findings of a command on a host, each as its verdict and its text.
pub(super) fn findings(host: &Path, words: &[&str]) -> (Option<i32>, Vec<(String, String)>) {
    let mut command = Command::new(BIN);
    command.args(words).args(["-o", "json"]);
    for (flag, name) in [("--host-root", ""), ("--run-dir", "run/fairlead"), ("--config", "config.yaml")] {
        command.arg(flag).arg(host.join(name));
    }
    let out = command.env_remove("CNI_CONF_DIR").env_remove("CNI_PLUGIN_DIR").output().unwrap();
    let all: Vec<Value> = serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{out:?}"));
    let text = |f: &Value, key: &str| f[key].as_str().unwrap_or_default().to_owned();
    let one = |f: &Value| {
        (text(f, "verdict"), format!("{}: {} → {}", text(f, "about"), text(f, "seen"), text(f, "remedy")))
    };
    (out.status.code(), all.iter().map(one).collect())
}

fn conf(mut more: Value) -> String {
    let keys = more.as_object_mut().unwrap();
    keys.insert("cniVersion".into(), "1.0.0".into());
    keys.insert("name".into(), "net".into());
    more.to_string()
}

#[test]
fn what_add_would_refuse_is_told_of_a_file_with_what_was_meant() {
    let host = host();
    let file = host.path().join("net.conf");
    let local = |subnet: &str| json!({ "type": "host-local", "subnet": subnet });
    let macvlan =
        |key: &str, value: Value| json!({ "type": "macvlan", key: value, "ipam": local("10.1.0.0/24") });
    let with = |ipam: Value| conf(json!({ "type": "macvlan", "ipam": ipam }));
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
        json!({ "type": "macvlan", "dns": { "Nameservers": ["10.1.0.1"], "domain": "a", "search": ["a"], "options": ["b"] }, "ipam": {
            "type": "host-local", "routes": [{ "dst": "0.0.0.0/0", "GW": "10.1.0.1", "mtu": 1400, "advmss": 1360, "priority": 1, "table": 9, "scope": 0 }],
            "ranges": [[{ "subnet": "10.1.0.0/24", "rangestart": "10.1.0.2", "rangeEnd": "10.1.0.9", "gateway": "10.1.0.1" }]],
        } }),
        json!({ "type": "macvlan", "capabilities": { "ips": true, "mac": true, "deviceID": true, "io.kubernetes.cri.pod-annotations": true }, "ipam": {} }),
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
fn definitions_are_judged_by_the_policy_too_and_the_configuration_by_its_keys() {
    let host = host();
    let policy =
        "policy:\n  rules:\n    - namespaces: [radio]\n      types: [macvlan]\n      masters: [ens1]\n";
    fs::write(host.path().join("config.yaml"), policy).unwrap();
    let file = host.path().join("nad.yaml");
    let object = |namespace: &str, config: &str| {
        format!(
            "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata:\n  name: net\n  namespace: {namespace}\nspec:\n  config: |\n    {config}\n"
        )
    };
    let judged = |text: &str| {
        fs::write(&file, text).unwrap();
        findings(host.path(), &["validate", file.to_str().unwrap()])
    };
    let good = r#"{"cniVersion":"1.0.0","type":"macvlan","master":"ens1","ipam":{}}"#;
    let (status, told) = judged(&object("radio", good));
    assert_eq!((status, told.len()), (Some(0), 1), "{told:?}");
    let (status, told) = judged(&object("shop", good));
    assert!(status == Some(1) && told[0].1.starts_with("policy: "), "{told:?}");
    let (status, told) = judged(&object("radio", &good.replace("master", "mastr")));
    assert!(
        status == Some(1) && told.iter().any(|(_, t)| t.contains("did you mean \"master\"?")),
        "{told:?}"
    );
    let (status, told) = judged("logLvel: debug\n");
    assert!(status == Some(1) && told[0].1.contains("did you mean \"logLevel\"?"), "{told:?}");
}

#[test]
fn without_files_the_nodes_own_are_judged_and_doctor_says_the_same() {
    let host = host();
    let bad = json!({ "type": "macvlan", "mode": "brigde", "mastr": "eth0" });
    fs::write(host.path().join("etc/cni/net.d/10-bad.conf"), conf(bad)).unwrap();
    for command in ["validate", "doctor"] {
        let (status, told) = findings(host.path(), &[command]);
        for part in ["\"brigde\"", "did you mean \"master\"?"] {
            assert!(
                told.iter().any(|(verdict, t)| verdict == "wrong" && t.contains(part)),
                "{command}: {told:?}"
            );
        }
        assert_eq!(status, Some(1));
    }
}

#[test]
fn a_list_without_plugins_is_told_as_the_conf_dir_loads_it() {
    let host = host();
    let net_d = host.path().join("etc/cni/net.d");
    fs::write(net_d.join("10-a.conf"), r#"{"cniVersion":"1.0.0","name":"a","typ":"macvlan"}"#).unwrap();
    let file = net_d.join("20-b.conflist");
    fs::write(&file, r#"{"cniVersion":"1.1.0","name":"b"}"#).unwrap();
    let judged = |words: &[&str]| -> Vec<(String, String)> {
        let (_, told) = findings(host.path(), words);
        told.into_iter().filter(|(_, text)| text.contains("net.d/")).collect()
    };
    for command in ["validate", "doctor"] {
        let told = judged(&[command]);
        assert!(told.len() == 2 && told.iter().all(|(verdict, _)| verdict == "wrong"), "{command}: {told:?}");
        assert!(told[0].1.contains("did you mean \"type\" by \"typ\"?"), "{command}: {told:?}");
        assert!(told[1].1.contains("plugins") && !told[1].1.contains("did you mean"), "{command}: {told:?}");
    }
    // CNI 1.1: what the list does not have itself is in a directory of its name.
    write(net_d.join("b/10-macvlan.conf"), r#"{"type":"macvlan","mastr":"eth0"}"#);
    for words in [&["validate"][..], &["validate", file.to_str().unwrap()]] {
        let told = judged(words);
        assert!(told.last().unwrap().1.contains("did you mean \"master\"?"), "{words:?}: {told:?}");
    }
    write(net_d.join("b/10-macvlan.conf"), r#"{"type":"macvlan","master":"eth0"}"#);
    let told = judged(&["validate", file.to_str().unwrap()]);
    assert!(told.len() == 1 && told[0].0 == "good", "{told:?}");
    write(net_d.join("b/20-bad.conf"), "{");
    let told = judged(&["validate", file.to_str().unwrap()]);
    assert!(told.len() == 1 && told[0].0 == "wrong" && told[0].1.contains("20-bad.conf"), "{told:?}");
    // A definition has no such directory.
    let nad = "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: c}\nspec: {config: '{\"cniVersion\":\"1.1.0\",\"typ\":\"macvlan\"}'}\n";
    let file = host.path().join("net.d/nad.yaml");
    write(file.clone(), nad);
    let told = judged(&["validate", file.to_str().unwrap()]);
    assert!(told.len() == 1 && told[0].1.contains("did you mean \"type\" by \"typ\"?"), "{told:?}");
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
fn our_own_type_in_a_definitions_list_of_several_is_told_and_in_the_conf_dir_it_is_good() {
    let host = host();
    let list = json!({ "cniVersion": "1.0.0", "name": "net", "plugins": [
        { "type": "fairlead", "paths": [{ "type": "macvlan" }], "ipam": {} }, { "type": "tuning" },
    ] });
    let nad = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "net" }, "spec": { "config": list.to_string() },
    });
    for (name, text, verdict) in [("net.conflist", &list, "good"), ("nad.json", &nad, "wrong")] {
        let file = host.path().join(name);
        fs::write(&file, text.to_string()).unwrap();
        let (_, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
        assert!(told.len() == 1 && told[0].0 == verdict, "{told:?}");
        assert_eq!(told[0].1.contains("cannot stand in a definition's list of several"), verdict == "wrong");
    }
}

#[test]
fn a_definition_without_a_text_stands_for_a_network_of_the_conf_dir() {
    let host = host();
    let net_d = host.path().join("etc/cni/net.d");
    fs::write(net_d.join("10-pods.conf"), r#"{"cniVersion":"1.0.0","name":"pods","type":"macvlan"}"#)
        .unwrap();
    let file = host.path().join("nad.yaml");
    for (name, verdict) in [("pods", "good"), ("podz", "wrong")] {
        let nad = format!(
            "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {{name: {name}}}\n"
        );
        fs::write(&file, nad).unwrap();
        let (_, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
        assert!(told.len() == 1 && told[0].0 == verdict, "{told:?}");
        assert_eq!(
            told[0].1.contains("no network \"podz\"; did you mean \"pods\"?"),
            verdict == "wrong",
            "{told:?}"
        );
    }
}

#[test]
fn a_definition_that_the_api_server_would_not_take_is_told() {
    let host = host();
    let file = host.path().join("nad.json");
    let config = r#"{"cniVersion":"1.0.0","type":"macvlan","ipam":{}}"#;
    let nad = |change: Value| {
        let mut object = json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": "a" }, "spec": { "config": config },
        });
        object.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        object
    };
    for (change, part) in [
        (json!({ "kind": "NetworkAttachmentDefiniton" }), "did you mean NetworkAttachmentDefinition?"),
        (
            json!({ "apiVersion": "k8s.cni.cncf.io/v2" }),
            "a NetworkAttachmentDefinition is k8s.cni.cncf.io/v1",
        ),
        (json!({ "apiVersion": "v1" }), "a NetworkAttachmentDefinition is k8s.cni.cncf.io/v1"),
        (json!({ "spec": { "conifg": config } }), "spec: unknown key \"conifg\"; did you mean \"config\"?"),
        (json!({ "spec": null, "spce": {} }), "unknown key \"spce\"; did you mean \"spec\"?"),
        (json!({ "spec": config }), "its spec is no object"),
    ] {
        fs::write(&file, nad(change).to_string()).unwrap();
        let (status, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
        assert!(status == Some(1) && told.len() == 1 && told[0].1.contains(part), "{part}: {told:?}");
    }
    // Another project's kind of the group is nothing to us.
    let policy = json!({ "apiVersion": "k8s.cni.cncf.io/v1beta1", "kind": "MultiNetworkPolicy", "metadata": { "name": "a" } });
    for good in [nad(json!({})), policy] {
        fs::write(&file, good.to_string()).unwrap();
        let (status, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
        assert!(status == Some(0) && told[0].0 == "good", "{told:?}");
    }
}

#[test]
fn validate_looks_where_the_running_daemon_does_unless_it_is_told_where() {
    let rig = Rig::new();
    fs::create_dir_all(rig.path("net.d")).unwrap();
    fs::write(rig.path("net.d/10-a.conf"), r#"{"cniVersion":"1.0.0","name":"a","typ":"macvlan"}"#).unwrap();
    let elsewhere = host();
    let judged = |more: &[&str]| {
        let mut command = rig.operator(&["validate", "-o", "json"]);
        let out =
            command.args(more).env_remove("CNI_CONF_DIR").env_remove("CNI_PLUGIN_DIR").output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    let daemon = rig.start();
    let told = judged(&[]);
    assert!(told.contains("10-a.conf") && told.contains(rig.path("config.yaml").to_str().unwrap()), "{told}");
    let told = judged(&["--config", "/nowhere.yaml"]);
    assert!(told.contains("10-a.conf") && told.contains("/nowhere.yaml is absent"), "{told}");
    let told = judged(&["--host-root", elsewhere.path().to_str().unwrap()]);
    assert!(!told.contains("10-a.conf"), "{told}");
    daemon.kill();
    assert!(!judged(&[]).contains("10-a.conf"));
}

#[test]
fn what_comes_by_standard_input_is_judged_and_a_directory_is_called_one() {
    let host = host();
    let nads = |mode: &str| {
        let config =
            json!({ "cniVersion": "1.0.0", "type": "macvlan", "mode": mode, "ipam": {} }).to_string();
        let nad = json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": "a" }, "spec": { "config": config },
        });
        json!({ "apiVersion": "v1", "kind": "List", "items": [nad] }).to_string()
    };
    let none = json!({ "apiVersion": "v1", "kind": "List", "items": [] }).to_string();
    let table = [
        (nads("bridge"), 0, "objects"),
        (nads("brigde"), 1, "brigde"),
        (none, 0, "objects"),
        (conf(json!({ "type": "macvlan", "mode": "brigde" })), 1, "brigde"),
        ("logLevel: debug\n".to_owned(), 0, "configuration"),
    ];
    for (text, status, part) in table {
        let file = host.path().join("stdin");
        fs::write(&file, &text).unwrap();
        // As `kubectl get -o yaml | fairleadd validate -` and as `validate - <FILE`.
        for by in ["cat", "exec"] {
            let from = if by == "cat" { "cat \"$1\" | " } else { "exec <\"$1\"; " };
            let script = format!("{from} \"$0\" validate - -o json --host-root \"$2\" --config /nowhere");
            let mut command = Command::new("sh");
            command.args(["-c", &script, BIN]).arg(&file).arg(host.path());
            let out = command.output().unwrap();
            let told = String::from_utf8(out.stdout).unwrap();
            assert!(out.status.code() == Some(status) && told.contains(part), "{by} {text}: {told}");
        }
    }
    let (status, told) = findings(host.path(), &["validate", host.path().to_str().unwrap()]);
    assert!(status == Some(1) && told[0].1.contains("is a directory; give the files in it"), "{told:?}");
}

#[test]
fn a_file_of_another_program_is_not_taken_for_the_daemons_configuration() {
    let host = host();
    let file = host.path().join("rules.yaml");
    for (text, status, part) in [
        ("groups:\n  - name: a\n", 1, "it looks like nothing of ours"),
        ("groups: []\nlogLevel: debug\n", 1, "unknown field `groups`"),
        ("logLvel: debug\n", 1, "did you mean"),
        ("# nothing yet\n", 0, "configuration"),
    ] {
        fs::write(&file, text).unwrap();
        let (code, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
        assert!(code == Some(status) && told.len() == 1 && told[0].1.contains(part), "{text}: {told:?}");
    }
}

#[test]
fn an_empty_standard_input_is_an_error() {
    let host = host();
    let (status, told) = findings(host.path(), &["validate", "-"]);
    assert!(status == Some(1) && told.len() == 1 && told[0].0 == "wrong", "{told:?}");
    assert!(told[0].1.contains("standard input is empty"), "{told:?}");
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
    fs::remove_file(&file).unwrap();
    fs::write(&network, conf(json!({ "type": "firewall" }))).unwrap();
    let (_, told) = findings(host.path(), &["validate", network.to_str().unwrap()]);
    assert!(told.iter().any(|(_, text)| text.contains("no executable firewall")), "{told:?}");
    assert!(told.iter().all(|(_, text)| !text.contains("did you mean")), "{told:?}");
}

pub(super) fn write(path: PathBuf, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn files_as_kubectl_takes_them_are_judged_object_by_object() {
    let host = host();
    let nad = |name: &str, mode: &str| {
        json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": { "name": name },
            "spec": { "config": json!({ "cniVersion": "1.0.0", "type": "macvlan", "mode": mode, "ipam": {} }).to_string() },
        })
    };
    let asking = |networks: &str| json!({ "annotations": { "k8s.v1.cni.cncf.io/networks": networks } });
    let pod = |networks: &str| json!({ "apiVersion": "v1", "kind": "Pod", "metadata": asking(networks) });
    let deployment = |networks: &str| {
        let spec = json!({ "template": { "metadata": asking(networks) } });
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {}, "spec": spec })
    };
    let cron_job = |networks: &str| {
        let of_pods = json!({ "template": { "metadata": asking(networks) } });
        let spec = json!({ "jobTemplate": { "spec": of_pods } });
        json!({ "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {}, "spec": spec })
    };
    let misplaced = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": asking("a"),
        "spec": { "template": { "metadata": {} } },
    });
    let singular = json!({ "annotations": { "k8s.v1.cni.cncf.io/network": "a" } });
    let singular = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": singular });
    let settings = |text: &str| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": {}, "data": { "config.yaml": text } });
    let good = [
        nad("a", "bridge"),
        pod("a, b"),
        deployment(r#"[{"name":"a"}]"#),
        cron_job("a@net7"),
        settings("install: {cni: present}"),
    ];
    let wrong = [
        (nad("b", "brigde"), "brigde"),
        (pod(r#"[{"name":"a","macc":"x"}]"#), "macc"),
        (deployment("a@"), "annotation"),
        (pod("a@eth0"), "eth0"),
        (pod("a@net2,b"), "by its position its interface is \"net2\""),
        (cron_job("a@"), "annotation"),
        (misplaced, "template"),
        (singular, "k8s.v1.cni.cncf.io/networks"),
        (settings("instal: {}"), "unknown field `instal`"),
    ];
    let judged = |objects: &[Value], ending: &str| {
        let text = match ending {
            "json" => json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string(),
            _ => objects.iter().map(|object| format!("---\n{object}\n")).collect(),
        };
        let file = host.path().join(format!("objects.{ending}"));
        fs::write(&file, text).unwrap();
        findings(host.path(), &["validate", file.to_str().unwrap()])
    };
    for ending in ["yaml", "json"] {
        let (status, told) = judged(&good, ending);
        assert!(status == Some(0) && told.len() == 1, "{told:?}");
        for (object, words) in &wrong {
            let (status, told) = judged(&[good[0].clone(), object.clone(), good[1].clone()], ending);
            assert_eq!(status, Some(1), "{words}");
            assert!(told.iter().all(|(verdict, _)| verdict == "wrong"), "{told:?}");
            assert!(told.iter().any(|(_, text)| text.contains(words)), "{words}: {told:?}");
        }
    }
}
