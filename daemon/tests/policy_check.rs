//! `fairleadd policy check`, the real program on real files.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const POLICY: &str = "policy:\n  namespaceIsolation: true\n  rules:\n    - namespaces: [\"radio-*\", {labels: {tier: ran}}]\n      \
                      types: [sriov, macvlan]\n      masters: [\"ens1f*\"]\n      pools: [radio]\n      vlans: [\"100-199\"]\n";

fn check(dir: &Path, definition: &str, more: &[&str]) -> (Option<i32>, String) {
    let (config, file) = (dir.join("config.yaml"), dir.join("definition"));
    fs::write(&file, definition).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairleadd"));
    command.args(["policy", "check"]).arg(file).arg("--config").arg(config).args(more);
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), format!("{}{}", text(stdout), text(stderr)))
}

fn node(policy: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.yaml"), policy).unwrap();
    dir
}

fn object(namespace: &str, config: &str) -> String {
    format!(
        "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata:\n  name: net\n{namespace}spec:\n  config: |\n    {config}\n"
    )
}

const PATHS: &str = r#"{"cniVersion":"1.1.0","type":"fairlead","paths":[{"type":"sriov","pool":"radio","vlan":100},{"type":"macvlan","master":"eth0"}]}"#;

#[test]
fn each_interface_is_told_allowed_by_its_rule_or_refused_with_the_reason() {
    let node = node(POLICY);
    let (status, told) = check(node.path(), &object("", PATHS), &["--namespace", "radio-a"]);
    assert_eq!(status, Some(1), "{told}");
    let allowed = "allowed: paths[0] sriov: by rule 1 (namespaces radio-*, tier=ran)";
    assert!(told.contains(allowed), "{told}");
    assert!(
        told.contains("REFUSED: paths[1] macvlan: ") && told.contains("\"paths[1].master\": \"eth0\""),
        "{told}"
    );
    let good = PATHS
        .replace("eth0", "ens1f1")
        .replace("\"type\":\"fairlead\"", "\"name\":\"n\",\"type\":\"fairlead\"");
    let labelled = ["--namespace", "other", "--label", "tier=ran", "-o", "json"];
    let (status, told) = check(node.path(), &good, &labelled);
    assert_eq!(status, Some(0), "{told}");
    let rows: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((rows[1]["place"].as_str(), rows[1]["allowed"].as_bool()), (Some("paths[1]"), Some(true)));
}

#[test]
fn a_path_whose_device_comes_with_the_call_is_judged_like_any_other() {
    let paths = r#"{"cniVersion":"1.1.0","name":"n","type":"fairlead","paths":[{"type":"host-device"},{"type":"macvlan","master":"ens1f0"}]}"#;
    let (status, told) = check(node("{}").path(), paths, &["--namespace", "shop"]);
    assert!(status == Some(0) && told.contains("allowed: paths[0] host-device"), "{told}");
}

#[test]
fn a_definition_of_another_namespace_is_judged_by_its_own_and_isolation_is_told() {
    let node = node(POLICY);
    let of_radio =
        object("  namespace: radio-a\n", r#"{"cniVersion":"1.0.0","type":"macvlan","master":"ens1f0"}"#);
    let (status, told) = check(node.path(), &of_radio, &["--namespace", "radio-b"]);
    assert_eq!(status, Some(1), "{told}");
    assert!(told.contains("REFUSED: definition: a pod of namespace radio-b may not use"), "{told}");
    assert!(told.contains("allowed: interface macvlan"), "{told}");
    let (status, told) = check(node.path(), &of_radio, &["--namespace", "radio-a"]);
    assert_eq!(status, Some(0), "{told}");
}

#[test]
fn a_quoted_definition_whose_lines_are_indented_no_more_than_its_key_is_decided_about() {
    let config = "{\n  \"cniVersion\": \"1.0.0\",\n\"type\": \"macvlan\", \"master\": \"ens1f0\"\n}";
    for (quote, escaped) in [("'", "\""), ("\"", "\\\"")] {
        let config = config.replace('"', escaped);
        let object = format!(
            "kind: NetworkAttachmentDefinition\nmetadata: {{name: radio}}\nspec:\n  config: {quote}{config}{quote}\n"
        );
        let (status, told) = check(node(POLICY).path(), &object, &["--namespace", "radio-a"]);
        assert!(status == Some(0) && told.contains("allowed: interface macvlan"), "{object}: {told}");
    }
}

#[test]
fn what_cannot_be_read_is_no_decision_and_has_a_status_of_its_own() {
    let good = r#"{"cniVersion":"1.0.0","name":"n","type":"macvlan"}"#;
    let table = [
        ("policy:\n  rule: []\n", good, "config.yaml:2:"),
        ("{}", "{", "JSON"),
        ("{}", "kind: Pod\n", "it is a Pod"),
        ("{}", "just words\n", "it is neither"),
        ("{}", "[]", "it is neither a network's configuration nor"),
        ("{}", "", "it is empty"),
        (
            "{}",
            "kind: NetworkAttachmentDefinition\nmetadata: {name: n}\nspec:\n  config: {type: macvlan}\n",
            "its spec.config is no text",
        ),
        (
            "{}",
            "kind: NetworkAttachmentDefinition\nmetadata: {name: a}\n---\nkind: NetworkAttachmentDefinition\nmetadata: {name: b}\n",
            "it has 2 documents",
        ),
        ("{}", r#"{"cniVersion":"1.0.0","name":"n","type":"macvlan","mode":"x"}"#, "mode"),
    ];
    for (policy, definition, part) in table {
        let (status, told) = check(node(policy).path(), definition, &["--namespace", "a"]);
        assert_eq!(status, Some(2), "{definition}: {told}");
        assert!(told.contains(part), "{definition}: {told}");
    }
    let (status, told) = check(node("{}").path(), good, &["--namespace", "../a"]);
    assert!(status == Some(2) && told.contains("\"../a\" is no namespace"), "{told}");
}

#[test]
fn a_configuration_that_is_named_must_be_there_and_the_one_that_decides_is_told() {
    let node = node(POLICY);
    let good = r#"{"cniVersion":"1.0.0","name":"n","type":"macvlan","master":"ens1f0"}"#;
    let (status, told) = check(node.path(), good, &["--namespace", "radio-a"]);
    assert_eq!(status, Some(0), "{told}");
    assert!(told.starts_with(&format!("policy: {}/config.yaml\n", node.path().display())), "{told}");
    fs::remove_file(node.path().join("config.yaml")).unwrap();
    let (status, told) = check(node.path(), good, &["--namespace", "radio-a"]);
    assert_eq!(status, Some(2), "{told}");
    assert!(told.contains("config.yaml: there is no such configuration"), "{told}");
}
