//! `validate` of NetworkAttachmentDefinitions: what the policy, the API server and ADD would refuse of them.

use std::fs;

use serde_json::{Value, json};

use super::commands_on_a_host::{findings, host};

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
fn a_policy_that_goes_by_labels_decides_only_where_the_namespace_is_given_too() {
    let host = host();
    let policy = "policy:\n  rules:\n    - {namespaces: [quiet], types: [macvlan]}\n    - {namespaces: [{labels: {tier: ran}}], masters: ['ens1f*']}\n    - {namespaces: ['*'], types: [macvlan]}\n";
    fs::write(host.path().join("config.yaml"), policy).unwrap();
    let namespace = |labels: Value| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop", "labels": labels } });
    let nad = |namespace: &str, master: &str| {
        let config =
            json!({ "cniVersion": "1.0.0", "type": "macvlan", "master": master, "ipam": {} }).to_string();
        json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": "net", "namespace": namespace }, "spec": { "config": config },
        })
    };
    let mut never = nad("shop", "eth0");
    never["spec"]["config"] = json!(r#"{"cniVersion":"1.0.0","type":"macvlan","runtimeConfig":{}}"#);
    let unknown = "the policy goes by the labels of namespace shop, which are not known here";
    let ran = json!({ "tier": "ran" });
    for (objects, status, parts) in [
        (vec![nad("shop", "eth0")], 0, vec![unknown]),
        (vec![nad("shop", "ens1f0")], 0, vec![unknown]),
        (vec![never], 1, vec!["runtimeConfig", unknown]),
        (vec![nad("shop", "eth0"), namespace(ran.clone())], 1, vec!["\"master\": \"eth0\""]),
        (vec![nad("shop", "ens1f0"), namespace(ran)], 0, vec!["nad.json"]),
        (vec![nad("shop", "eth0"), namespace(Value::Null)], 0, vec!["nad.json"]),
        // The name alone decides.
        (vec![nad("quiet", "eth0")], 0, vec!["nad.json"]),
    ] {
        let file = host.path().join("nad.json");
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        fs::write(&file, list.to_string()).unwrap();
        let (code, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
        assert!(code == Some(status) && told.len() == parts.len(), "{parts:?}: {told:?}");
        assert!(told.iter().zip(&parts).all(|((_, text), part)| text.contains(part)), "{parts:?}: {told:?}");
        let open = told.iter().filter(|(verdict, _)| verdict == "less").count();
        assert_eq!(open, usize::from(parts.contains(&unknown)), "{told:?}");
    }
}

#[test]
fn a_label_that_every_namespace_has_is_known_of_one_that_is_given() {
    let host = host();
    let policy = "policy:\n  rules:\n    - {namespaces: [{labels: {kubernetes.io/metadata.name: shop}}], types: [macvlan]}\n";
    fs::write(host.path().join("config.yaml"), policy).unwrap();
    let file = host.path().join("nad.yaml");
    let nad = "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: net, namespace: shop}\nspec: {config: '{\"cniVersion\":\"1.0.0\",\"type\":\"macvlan\",\"ipam\":{}}'}\n";
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n";
    fs::write(&file, format!("{nad}---\n{namespace}")).unwrap();
    let (status, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
    assert!(status == Some(0) && told.len() == 1 && told[0].0 == "good", "{told:?}");
}

#[test]
fn a_device_that_comes_with_the_call_is_not_missed_in_the_definition() {
    let host = host();
    let file = host.path().join("nad.json");
    let any = r#"{"cniVersion":"1.0.0","type":"host-device"}"#;
    let paths = r#"{"cniVersion":"1.1.0","type":"fairlead","paths":[{"type":"host-device"},{"type":"macvlan","master":"eth0"}],"ipam":{}}"#;
    let declared = r#"{"cniVersion":"1.0.0","type":"host-device","capabilities":{"deviceID":true}}"#;
    let resource = json!({ "k8s.v1.cni.cncf.io/resourceName": "example.com/nics" });
    for (config, annotations, verdict) in [
        (any, &resource, "good"),
        (declared, &Value::Null, "good"),
        (paths, &resource, "good"),
        (any, &Value::Null, "wrong"),
    ] {
        let nad = json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": "net", "annotations": annotations }, "spec": { "config": config },
        });
        fs::write(&file, nad.to_string()).unwrap();
        let (_, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
        assert!(told.len() == 1 && told[0].0 == verdict, "{config}: {told:?}");
        assert_eq!(told[0].1.contains("host-device names no device"), verdict == "wrong", "{told:?}");
    }
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
