//! How much text the networks of one pod may bring.

use fairlead_kube::npwg::DEFAULT_NETWORK;
use serde_json::{Value, json};

use super::pod_networks::{Cluster, NETWORKS, definition, web};
use super::*;

/// Puts five long definitions, `long0` and so on, into the namespace; four of them are within the limit. Returns the length of each.
fn put_long_definitions(cluster: &Cluster, namespace: &str) -> usize {
    let padding = format!(r#"{{"padding":"{}","#, "x".repeat(60 << 10));
    let texts = (0..5).map(|n| {
        let name = format!("long{n}");
        let text = definition(&name, &format!("10.2{n}.0.0/24")).replacen('{', &padding, 1);
        cluster.api.put_definition(namespace, &name, &text, None);
        text.len()
    });
    texts.max().unwrap()
}

#[test]
fn a_pod_whose_networks_bring_too_much_text_is_refused_before_anything_is_made_and_no_del_is() {
    let cluster = Cluster::new();
    let long = put_long_definitions(&cluster, "shop");
    let before = cluster.rig.state();
    let too_much = "long0,long1,long2,long3,long4";
    cluster.api.put_pod(&web(), &[(NETWORKS, too_much)]);
    cluster.rig.kernel.forget_calls();
    let refused = cluster.add().unwrap_err();
    assert_eq!(refused.code.number(), 7, "{refused}");
    let bytes = format!("by {} bytes", NETWORKS.len() + too_much.len() + 5 * long);
    for part in ["pod shop/web-0: ", &bytes, "262144", "ask for fewer networks"] {
        assert!(refused.to_string().contains(part), "{part}: {refused}");
    }
    assert!(cluster.rig.ops().is_empty(), "{:?}", cluster.rig.ops());
    assert_eq!(cluster.rig.state(), before);
    let warnings = cluster.api.warnings();
    assert!(matches!(&*warnings, [(pod, words)] if *pod == web() && words.contains(&bytes)), "{warnings:?}");
    cluster.del().unwrap();

    cluster.api.put_pod(&web(), &[(NETWORKS, "long0,long1,long2,long3")]);
    cluster.add().unwrap();
    assert_eq!(cluster.pod().0, ["eth0", "net1", "net2", "net3", "net4"]);
    // What asks for too much by now is removed by its record.
    cluster.api.put_pod(&web(), &[(NETWORKS, too_much)]);
    cluster.del().unwrap();
    cluster.rig.reap();
    assert_eq!(cluster.rig.state(), before);
}

#[test]
fn a_definition_counts_for_each_attachment_with_what_each_plugin_is_told_and_as_the_default_network() {
    let cluster = Cluster::new();
    put_long_definitions(&cluster, "shop");
    let plugin = json!({"type": "macvlan", "master": "eth0", "ipam": {}});
    let list = json!({"cniVersion": "1.0.0", "name": "list", "plugins": vec![plugin; 16]});
    cluster.api.put_definition("shop", "list", &list.to_string(), None);
    // Of a few kilobytes each of sixteen plugins gets a copy.
    let told = vec![json!({"name": "list", "cni-args": {"x": "x".repeat(3000)}}); 6];
    let told = Value::from(told).to_string();
    for asks in [
        vec![(NETWORKS, "long0,long0,long0,long0,long0")],
        vec![(NETWORKS, told.as_str())],
        vec![(DEFAULT_NETWORK, "shop/long0"), (NETWORKS, "long1,long2,long3,long4")],
    ] {
        cluster.api.put_pod(&web(), &asks);
        let refused = cluster.add().unwrap_err();
        assert!(refused.msg.contains("more than the 262144"), "{refused}");
    }
}

#[test]
fn what_the_administrator_gives_every_pod_does_not_count() {
    let cluster = Cluster::asking("radio");
    put_long_definitions(&cluster, "kube-system");
    let config = json!({
        "cniVersion": "1.1.0", "name": "cluster", "type": "fairlead", "clusterNetwork": "net",
        "defaultNetworks": ["long0", "long1", "long2", "long3", "long4"],
    });
    let request = Request { config: config.to_string(), ..cluster.request(Command::Add) };
    cluster.rig.call(request).unwrap();
    assert_eq!(cluster.pod().0, ["eth0", "net1", "net2", "net3", "net4", "net5", "net6"]);
}
