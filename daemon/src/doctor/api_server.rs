//! Whether the API server of the node's cluster can be used: reached, with all rights that are needed, with the kind of definitions,
//! and with a clock that agrees. Where the node is in no cluster there is nothing to find.

use std::path::Path;
use std::time::Duration;

use fairlead_kube::{Access, ApiServer, Right, examine_access};

use crate::cluster_watch::api_of;
use crate::finding::{Finding, good, less, wrong};
use crate::settings::Settings;

const ABOUT: &str = "API server";
/// An API server that has not answered everything by then cannot be used.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Tokens and certificates are valid from their making on; the API server allows for a little.
const CLOCKS_AGREE: i64 = 30;

/// What every pod's ADD goes by, and its network-status.
const NEEDED: [Right; 5] = [
    right("", "pods", "list"),
    right("", "pods", "watch"),
    right("", "pods/status", "patch"),
    right(DEFINITIONS, "network-attachment-definitions", "list"),
    right(DEFINITIONS, "network-attachment-definitions", "watch"),
];
const DEFINITIONS: &str = "k8s.cni.cncf.io";
/// Where the policy goes by labels, or the settings of Multus isolate namespaces.
const OF_LABELS: [Right; 2] = [right("", "namespaces", "list"), right("", "namespaces", "watch")];
/// Where metrics are served for tokens.
const OF_TOKENS: [Right; 2] = [
    right("authentication.k8s.io", "tokenreviews", "create"),
    right("authorization.k8s.io", "subjectaccessreviews", "create"),
];
/// Without these pods have their networks, and less is told; only one that names a network of the legacy kind waits for it in vain.
const USEFUL: [Right; 3] = [
    right("", "events", "create"),
    right("alpha.network.k8s.io", "networks", "list"),
    right("alpha.network.k8s.io", "networks", "watch"),
];

const fn right(group: &'static str, resource: &'static str, verb: &'static str) -> Right {
    Right { group, resource, verb }
}

/// What is found by the settings in this file. What is wrong with the file itself is another finding.
pub(super) fn findings(config: &Path) -> Vec<Finding> {
    let Ok(settings) = Settings::load(config) else { return Vec::new() };
    let Some(api) = api_of(&settings) else { return Vec::new() };
    let needed = needed(&settings);
    let all: Vec<Right> = needed.iter().chain(&USEFUL).copied().collect();
    match examine_access(&api, &all, ANSWERS_WITHIN) {
        Ok(access) => told(&access, &needed),
        Err(why) => vec![unusable(&api, &why)],
    }
}

fn needed(settings: &Settings) -> Vec<Right> {
    let labels = if settings.policy.goes_by_labels() { &OF_LABELS[..] } else { &[] };
    let by_token = settings.metrics.as_ref().is_some_and(|metrics| metrics.token_review);
    let tokens = if by_token { &OF_TOKENS[..] } else { &[] };
    NEEDED.iter().chain(labels).chain(tokens).copied().collect()
}

fn unusable(api: &ApiServer, why: &str) -> Finding {
    let whose = match api {
        ApiServer::InCluster => "the pod's service account".to_owned(),
        ApiServer::Kubeconfig(path) => format!("the kubeconfig {}", path.display()),
    };
    let remedy = "pods that are known start meanwhile; see that it is up, that this node reaches it, and that the account is not deleted";
    wrong(ABOUT, format!("it can't be used by {whose}: {why}"), remedy)
}

fn told(access: &Access, needed: &[Right]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !access.serves_definitions {
        let seen = "it has no NetworkAttachmentDefinitions: pods get their default network only";
        findings.push(less(ABOUT, seen, "kubectl apply -k deploy/crds"));
    }
    for right in &access.lacking {
        let seen = format!("this node may not {right}");
        let remedy = match OF_TOKENS.contains(right) {
            true => "kubectl apply -k deploy/overlays/metrics, which lets it ask whose a token is",
            false => "kubectl apply -f deploy/base/rbac.yaml, or give the account the ClusterRole fairlead",
        };
        let verdict = if needed.contains(right) { wrong } else { less };
        findings.push(verdict(ABOUT, seen, remedy.to_owned()));
    }
    if let Some(ahead) = access.ahead.filter(|ahead| ahead.abs() > CLOCKS_AGREE) {
        let how = if ahead > 0 { "ahead of" } else { "behind" };
        let seen = format!("this node's clock is {} s {how} the API server's", ahead.abs());
        let remedy = "have both kept right (chrony, systemd-timesyncd): tokens and certificates go by time";
        findings.push(wrong(ABOUT, seen, remedy));
    }
    if findings.is_empty() {
        findings.push(good(ABOUT, "it answers, all rights are there, and the clocks agree"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Verdict;

    fn seen(access: &Access) -> Vec<(Verdict, String)> {
        let found = told(access, &NEEDED);
        assert!(found.iter().all(|f| f.verdict == Verdict::Good || !f.remedy.is_empty()), "{found:?}");
        found.into_iter().map(|f| (f.verdict, f.seen)).collect()
    }

    #[test]
    fn each_right_that_is_missing_is_told_by_what_it_is_needed_for() {
        let whole = Access { lacking: Vec::new(), serves_definitions: true, ahead: Some(1) };
        assert_eq!(seen(&whole)[0].0, Verdict::Good);
        let lacking = vec![NEEDED[2], NEEDED[4], USEFUL[0]];
        let told = seen(&Access { lacking, serves_definitions: false, ahead: Some(-90) });
        let verdicts: Vec<_> = told.iter().map(|(verdict, _)| *verdict).collect();
        assert_eq!(
            verdicts,
            [Verdict::Less, Verdict::Wrong, Verdict::Wrong, Verdict::Less, Verdict::Wrong],
            "{told:?}"
        );
        assert!(told[1].1.ends_with("patch pods/status"), "{told:?}");
        assert!(told[2].1.ends_with("watch network-attachment-definitions.k8s.cni.cncf.io"), "{told:?}");
        assert!(told[4].1.contains("90 s behind"), "{told:?}");
    }

    #[test]
    fn what_the_settings_do_not_use_needs_no_right() {
        let of = |text: &str| {
            let settings: Settings = Settings::parse(Path::new("config.yaml"), text).unwrap();
            needed(&settings).len() - NEEDED.len()
        };
        assert_eq!(of(""), 0);
        assert_eq!(of("metrics: {listen: \"0.0.0.0:9100\", tokenReview: true}"), 2);
        let labels = "policy: {rules: [{namespaces: [{labels: {tier: ran}}], types: [macvlan]}]}";
        assert_eq!(of(labels), 2);
    }

    #[test]
    fn without_a_cluster_there_is_nothing_to_find_and_one_that_does_not_answer_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config.yaml");
        assert_eq!(findings(&config), [], "no file");
        std::fs::write(&config, format!("kubeconfig: {}/absent", dir.path().display())).unwrap();
        let found = findings(&config);
        assert_eq!((found.len(), found[0].verdict), (1, Verdict::Wrong));
        assert!(found[0].seen.contains("absent"), "{found:?}");
    }
}
