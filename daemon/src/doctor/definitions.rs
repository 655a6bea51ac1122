//! What is wrong with the cluster's definitions before a pod asks for one: what the policy says, and what any network is judged by. The
//! daemon tells them as its watch has them.

use std::collections::BTreeMap;
use std::path::Path;

use fairlead_cni::config::ConfList;
use serde::Deserialize;

use crate::conf_dir::Networks;
use crate::finding::{Finding, good, less, wrong};
use crate::network_checks::OtherNetworks;
use crate::node_paths::{NodePaths, TypedPaths};
use crate::operator_client::get;
use crate::policy_check::FoundDefinition;
use crate::settings::Settings;
use crate::validate::Node;

const ABOUT: &str = "definitions";

/// A row of the daemon's table.
#[derive(Debug, Deserialize)]
pub(super) struct Row {
    namespace: String,
    name: String,
    /// `spec.config`; `None` where a network of the conf dir is meant, or it can't be used.
    config: Option<String>,
    /// The resource whose devices it takes.
    resource: Option<String>,
    /// Why it can't be used.
    unusable: Option<String>,
    /// Of its namespace; `None` where they are not watched.
    labels: Option<BTreeMap<String, String>>,
}

/// The daemon's table; why there is none, as a finding.
pub(super) fn of_daemon(socket: &Path) -> Result<Vec<Row>, Finding> {
    // An older daemon, or one that is not ready, which is a finding of its own.
    let answer = get(socket, "/v1/definitions").map_err(|error| {
        less(ABOUT, error.to_string(), "ask again when the daemon is ready; use programs of one release")
    })?;
    serde_json::from_value(answer)
        .map_err(|error| less(ABOUT, format!("the daemon's table: {error}"), "use programs of one release"))
}

/// The names of what can be used; `is_ready`: the daemon has all that the cluster has.
pub(super) fn names_in(rows: &[Row], is_ready: bool) -> OtherNetworks {
    let names = rows.iter().map(|row| (row.namespace.as_str(), row.name.as_str()));
    OtherNetworks::of_cluster(names, is_ready)
}

/// What is found of them; nothing where the cluster has none.
pub(super) fn judged(rows: &[Row], networks: &Networks, paths: &NodePaths) -> Vec<Finding> {
    // That a configuration which was typed is not there is another finding.
    let node = Node::new((paths, TypedPaths::default()), networks, OtherNetworks::default());
    let settings = Settings::load(&paths.config);
    let by_labels = settings.is_ok_and(|settings| settings.policy.goes_by_labels());
    let mut findings = Vec::new();
    let mut usable = 0;
    for row in rows {
        let of_row = of_one(row, &node, by_labels);
        usable += usize::from(of_row.is_empty());
        findings.extend(of_row);
    }
    if usable > 0 {
        findings.push(good(ABOUT, format!("nothing is found of {usable} of the cluster's {}", rows.len())));
    }
    findings
}

/// The networks that they are, each with the definition's name; without those that can't be read, and those of the conf dir.
pub(super) fn lists_of(rows: &[Row]) -> impl Iterator<Item = (String, ConfList)> {
    rows.iter().filter_map(|row| Some((place(row), found(row).as_list().ok()??)))
}

fn place(Row { namespace, name, .. }: &Row) -> String {
    format!("{namespace}/{name}")
}

fn found(row: &Row) -> FoundDefinition {
    let text = row.config.clone().unwrap_or_default();
    let (name, namespace) = (Some(row.name.clone()), Some(row.namespace.clone()));
    FoundDefinition { text, name, namespace, has_resource: row.resource.is_some() }
}

/// `by_labels`: the policy goes by the labels of namespaces.
fn of_one(row: &Row, node: &Node<'_>, by_labels: bool) -> Vec<Finding> {
    let place = place(row);
    if let Some(reason) = &row.unusable {
        return vec![wrong(ABOUT, format!("{place}: {reason}"), "correct the definition")];
    }
    // An ADD waits for them: a rule that forbids could go by one.
    if row.labels.is_none() && by_labels {
        let seen = format!("{place}: the labels of its namespace, by which the policy goes, are not known");
        return vec![less(ABOUT, seen, "ask again; while it stays so, see what is found of the API server")];
    }
    let labels = row.labels.clone().unwrap_or_default().into_iter().collect();
    node.definition((Path::new(&place), &place), &found(row), (&row.namespace, Some(labels)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::conf_dir::Directories;
    use crate::engine::kinds::BUILT_IN;
    use crate::finding::Verdict;
    use crate::metrics;

    #[test]
    fn what_a_pod_could_not_be_given_is_told_by_the_definitions_name() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config.yaml");
        let policy = "policy:\n  rules:\n  - {namespaces: [{labels: {tier: ran}}], types: [macvlan]}\n  - {namespaces: [red], types: [ipvlan, fairlead, host-device]}\n";
        std::fs::write(&config, policy).unwrap();
        std::fs::create_dir_all(dir.path().join("etc/cni/net.d")).unwrap();
        let here = r#"{"cniVersion":"1.0.0","name":"here","plugins":[{"type":"macvlan","master":"eth0"}]}"#;
        std::fs::write(dir.path().join("etc/cni/net.d/10-here.conflist"), here).unwrap();
        let paths =
            NodePaths::new(dir.path().join("run"), dir.path().join("state"), dir.path().into(), config);
        let networks =
            Networks::new(Directories::new(dir.path(), None, None), &BUILT_IN, metrics::Node::default());
        let row = |name: &str, config: &str, labels: serde_json::Value| json!({"namespace": "red", "name": name, "config": config, "unusable": null, "labels": labels});
        let macvlan = r#"{"cniVersion":"1.0.0","type":"macvlan","master":"ens1"}"#;
        let rows = json!([
            row("good", macvlan, json!({"tier": "ran"})),
            row("refused", macvlan, json!({})),
            row("mode", r#"{"cniVersion":"1.0.0","type":"ipvlan","master":"ens1","mode":"l4"}"#, json!({})),
            row("key", r#"{"cniVersion":"1.0.0","type":"ipvlan","mastr":"ens1"}"#, json!({})),
            row("text", "{", json!({})),
            row("here", "", json!({})),
            row("nowhere", "", json!({})),
            row("unlabelled", macvlan, json!(null)),
            json!({"namespace": "red", "name": "given", "config": r#"{"cniVersion":"1.0.0","type":"host-device"}"#, "resource": "x/nics", "unusable": null, "labels": {}}),
            row("deviceless", r#"{"cniVersion":"1.0.0","type":"host-device"}"#, json!({})),
            json!({"namespace": "red", "name": "odd", "config": null, "unusable": "its spec is no object", "labels": null}),
        ]);
        let rows: Vec<Row> = serde_json::from_value(rows).unwrap();
        let findings = judged(&rows, &networks, &paths);
        let told = |name: &str| -> Vec<&str> {
            let of_it = findings.iter().filter(|finding| finding.seen.contains(&format!("red/{name}")));
            of_it.map(|finding| finding.seen.as_str()).collect()
        };
        assert_eq!((told("good"), told("here"), told("given")), (vec![], vec![], vec![]), "{findings:?}");
        for (name, part) in [
            ("refused", "macvlan"),
            ("mode", "l4"),
            ("key", "mastr"),
            ("text", "JSON"),
            ("nowhere", "no spec.config"),
            ("odd", "no object"),
            ("deviceless", "host-device names no device"),
            ("unlabelled", "not known"),
        ] {
            assert!(told(name).iter().any(|seen| seen.contains(part)), "{name}: {findings:?}");
        }
        let last = findings.last().unwrap();
        assert_eq!(
            (last.verdict, last.seen.as_str()),
            (Verdict::Good, "nothing is found of 3 of the cluster's 11")
        );
        assert!(
            findings.iter().all(|finding| finding.verdict == Verdict::Good || !finding.remedy.is_empty())
        );
        assert_eq!(judged(&[], &networks, &paths), []);
    }
}
