//! The addresses that a pod asks for, and how its plugins are told of them (M14).

use std::sync::Arc;

use fairlead_kube::npwg::DEFAULT_NETWORK;
use serde_json::{Value, json};

use super::pod_networks::{Cluster, NETWORKS, web};

/// A macvlan that has an address of each family, and takes both as a capability.
const PLUGIN: &str = r#""type":"macvlan","master":"eth0","capabilities":{"ips":true},"ipam":{"type":"host-local","ranges":[[{"subnet":"10.9.0.0/24"}],[{"subnet":"fd00:9::/64"}]]}"#;

#[test]
fn m14_a_pod_gets_both_addresses_that_it_asks_of_a_host_local_network_that_declares_ips() {
    let mut cluster = Cluster::new();
    let storage = format!(r#"{{"cniVersion":"1.0.0","name":"storage","plugins":[{{{PLUGIN}}}]}}"#);
    let file = cluster.rig.dir.path().join("root/etc/cni/net.d/20-storage.conflist");
    std::fs::write(file, storage).unwrap();
    cluster.rig.restart();
    let definition = format!(r#"{{"cniVersion":"1.0.0",{PLUGIN}}}"#);
    cluster.api.put_definition("shop", "radio", &definition, None);
    cluster.api.put_definition("shop", "storage", "", None);
    cluster.api.put_definition("kube-system", "own", &definition, None);
    // By a definition, by a network's name in the conf dir, and for the pod's own default network.
    for (annotation, name) in [(NETWORKS, "radio"), (NETWORKS, "storage"), (DEFAULT_NETWORK, "own")] {
        let asks = json!([{"name": name, "ips": ["10.9.0.77/24", "fd00:9::77/64"]}]).to_string();
        cluster.api.put_pod(&web(), &[(annotation, &asks)]);
        let before = cluster.rig.state();
        cluster.add().unwrap_or_else(|refused| panic!("{name}: {refused}"));
        let (_, status) = cluster.api.reports().pop().unwrap();
        let status: Value = serde_json::from_str(&status).unwrap();
        let has_both = |entry: &Value| entry["ips"] == json!(["10.9.0.77", "fd00:9::77"]);
        assert!(status.as_array().unwrap().iter().any(has_both), "{name}: {status}");
        cluster.del().unwrap();
        cluster.rig.reap();
        assert_eq!(cluster.rig.state(), before, "{name}");
    }
}

#[test]
fn an_address_that_a_pod_asks_of_a_plugin_that_is_executed_is_of_the_rules_ranges() {
    let rules = r#"rules: [{namespaces: [shop], types: [bridge, fairlead], ranges: ["10.9.0.0/16"], ipamTypes: [static]}]"#;
    let mut cluster = Cluster::new();
    cluster.rig.call_settings.policy = Some(Arc::new(serde_saphyr::from_str(rules).unwrap()));
    cluster.rig.restart();
    let before = cluster.rig.state();
    let by_args = r#"{"cniVersion":"1.0.0","type":"bridge","ipam":{"type":"static"}}"#;
    let by_capability = by_args.replacen('{', r#"{"capabilities":{"ips":true},"#, 1);
    // The last one stands for a network of the conf dir, whose plugins are the administrator's.
    for text in [by_args, &by_capability, ""] {
        cluster.api.put_definition("shop", "storage", text, None);
        for wish in [json!({"ips": ["192.168.66.6/24"]}), json!({"cni-args": {"ips": ["192.168.66.6/24"]}})] {
            let mut asks = json!({"name": "storage", "namespace": "shop"});
            asks.as_object_mut().unwrap().extend(wish.as_object().unwrap().clone());
            for annotation in [NETWORKS, DEFAULT_NETWORK] {
                cluster.api.put_pod(&web(), &[(annotation, &json!([asks]).to_string())]);
                let told = cluster.add().unwrap_err();
                for part in ["pod shop/web-0, network shop/storage", "192.168.66.6/24", "[10.9.0.0/16]"] {
                    assert!(told.msg.contains(part), "{annotation}: {asks}, {text}: {told}");
                }
                cluster.rig.reap();
                assert_eq!(cluster.rig.state(), before, "{annotation}: {asks}, {text}");
            }
        }
    }
}
