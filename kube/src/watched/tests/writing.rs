//! network-status and Events.

use std::collections::BTreeMap;
use std::thread;

use super::fake_api_server::PODS;
use super::*;

fn patches(rig: &Rig) -> Vec<(String, String, Value)> {
    rig.api.with(|state| state.patches.clone())
}

fn status_of(patch: &(String, String, Value)) -> &str {
    patch.2["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"].as_str().unwrap()
}

fn written(watched: &Watched) -> bool {
    watched.health().waiting_reports == 0
}

#[test]
fn x11_network_status_is_one_merge_patch_of_one_annotation_with_the_pods_uid() {
    let rig = Rig::new();
    rig.api.apply(PODS, api_pod("a", "p", "u"));
    let watched = rig.synced();
    watched.report(&pod_ref("a", "p", Some("u")), "[1]".into());
    until("the PATCH", || written(&watched));
    let body =
        json!({ "metadata": { "uid": "u", "annotations": { "k8s.v1.cni.cncf.io/network-status": "[1]" } } });
    assert_eq!(patches(&rig), [("a/p".to_owned(), "application/merge-patch+json".to_owned(), body)]);
    assert_eq!(watched.requests().patches, 1);
}

#[test]
fn other_annotations_of_a_pod_are_written_with_its_network_status_and_are_no_reason_to_leave_that_out() {
    let rig = Rig::new();
    rig.api.apply(PODS, api_pod("a", "p", "u"));
    let watched = rig.synced();
    rig.api.with(|state| state.refuses = Some(503));
    let pod = pod_ref("a", "p", Some("u"));
    watched.annotate(
        &pod,
        vec![("userspace/mapped-dir", "/x".into()), ("userspace/configuration-data", "[]".into())],
    );
    watched.annotate(&pod, vec![("userspace/configuration-data", "[1]".into())]);
    watched.report_again(&pod, "[2]".into());
    rig.api.with(|state| state.refuses = None);
    until("the PATCHes", || written(&watched));
    let mut all = BTreeMap::new();
    for (_, _, patch) in patches(&rig) {
        let annotations = patch["metadata"]["annotations"].as_object().unwrap().clone();
        all.extend(annotations);
    }
    let names = ["k8s.v1.cni.cncf.io/network-status", "userspace/configuration-data", "userspace/mapped-dir"];
    assert_eq!(all.keys().collect::<Vec<_>>(), names);
    assert_eq!((&all[names[0]], &all[names[1]]), (&json!("[2]"), &json!("[1]")));
}

#[test]
fn x11_values_that_could_not_be_written_are_coalesced_and_only_the_last_is_written() {
    let rig = Rig::new();
    rig.api.apply(PODS, api_pod("a", "p", "u"));
    let watched = rig.synced();
    rig.api.with(|state| state.refuses = Some(503));
    for n in 0..50 {
        watched.report(&pod_ref("a", "p", Some("u")), format!("[{n}]"));
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(watched.health().waiting_reports, 1);
    rig.api.with(|state| state.refuses = None);
    until("the PATCH", || written(&watched));
    assert_eq!(patches(&rig).iter().map(status_of).collect::<Vec<_>>(), ["[49]"]);
}

#[test]
fn x11_a_successor_of_the_same_name_is_never_written_to() {
    let mut rig = Rig::new();
    rig.api.apply(PODS, api_pod("a", "p", "old"));
    let watched = rig.synced();
    rig.api.down();
    watched.report(&pod_ref("a", "p", Some("old")), "[\"old\"]".into());
    rig.api.delete(PODS, api_pod("a", "p", "old"));
    rig.api.apply(PODS, api_pod("a", "p", "new"));
    rig.api.up();
    until("the drop", || written(&watched));
    watched.report(&pod_ref("a", "p", Some("new")), "[\"new\"]".into());
    until("the PATCH", || written(&watched));
    let (of_new, others): (Vec<_>, Vec<_>) =
        patches(&rig).into_iter().partition(|(_, _, body)| body["metadata"]["uid"] == "new");
    assert_eq!(of_new.iter().map(status_of).collect::<Vec<_>>(), ["[\"new\"]"]);
    assert!(others.iter().all(|(_, _, body)| body["metadata"]["uid"] == "old"), "{others:?}");
}

#[test]
fn x11_a_static_pod_is_written_to_by_the_uid_of_its_mirror() {
    let rig = Rig::new();
    let mut mirror = api_pod("a", "static", "m");
    mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("hash");
    let watched = rig.synced();
    // The mirror may come after the sandbox.
    watched.report(&pod_ref("a", "static", Some("hash")), "[1]".into());
    thread::sleep(Duration::from_millis(300));
    assert!(patches(&rig).is_empty());
    rig.api.apply(PODS, mirror);
    until("the PATCH", || written(&watched));
    assert_eq!(patches(&rig).len(), 1);
    assert_eq!(patches(&rig)[0].2["metadata"]["uid"], "m");
}

#[test]
fn x11_what_is_not_written_yet_is_written_after_a_restart() {
    let mut rig = Rig::new();
    rig.api.apply(PODS, api_pod("a", "p", "u"));
    let watched = rig.synced();
    rig.api.down();
    watched.report(&pod_ref("a", "p", Some("u")), "[1]".into());
    // Not its orderly end, but what is on disk by itself: a killed daemon has no other.
    let file = rig.state_dir().join("cluster-reports.json");
    until("the file", || file.exists());
    let saved = std::fs::read(&file).unwrap();
    drop(watched);
    std::fs::write(&file, saved).unwrap();
    rig.api.up();
    let watched = rig.synced();
    until("the PATCH", || written(&watched));
    assert_eq!(patches(&rig).iter().map(status_of).collect::<Vec<_>>(), ["[1]"]);
    until("the file's end", || !file.exists());
}

#[test]
fn x11_a_value_that_a_policy_refuses_waits_and_is_written_once_the_policy_is_gone() {
    let rig = Rig::new();
    rig.api.apply(PODS, api_pod("a", "p", "u"));
    let watched = rig.synced();
    rig.api.with(|state| state.refuses = Some(422));
    watched.report(&pod_ref("a", "p", Some("u")), "[1]".into());
    let asked = || {
        let is_patch = |request: &&String| request.starts_with("PATCH");
        rig.api.with(|state| state.requests.iter().filter(is_patch).count())
    };
    until("the refusal", || asked() > 0);
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(watched.health().waiting_reports, 1);
    assert_eq!(asked(), 1, "not in a loop");
    assert_eq!(watched.late_reports(Duration::from_secs(1)), [pod_ref("a", "p", Some("u"))]);
    assert_eq!(watched.late_reports(Duration::from_secs(600)), []);
    // A restart tries at once; this daemon would within a minute.
    drop(watched);
    rig.api.with(|state| state.refuses = None);
    let watched = rig.synced();
    until("the PATCH", || written(&watched));
    assert_eq!(patches(&rig).iter().map(status_of).collect::<Vec<_>>(), ["[1]"]);
}

#[test]
fn x11_what_may_have_been_told_before_a_restart_is_told_again_unless_the_api_has_it() {
    let mut rig = Rig::new();
    for pod in ["told", "untold", "other"] {
        rig.api.apply(PODS, api_pod("a", pod, "u"));
    }
    let watched = rig.synced();
    watched.report(&pod_ref("a", "told", Some("u")), "[1]".into());
    watched.report(&pod_ref("a", "other", Some("u")), "[0]".into());
    until("the PATCHes", || written(&watched));
    for (pod, _, body) in patches(&rig) {
        let mut object = api_pod("a", pod.trim_start_matches("a/"), "u");
        object["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"] =
            body["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"].clone();
        rig.api.apply(PODS, object);
    }
    drop(watched);
    rig.api.down();
    // With the API down only the snapshot tells of the pods, and nothing of what is written to them.
    let watched = rig.watched();
    for pod in ["told", "untold", "other"] {
        watched.report_again(&pod_ref("a", pod, Some("u")), "[1]".into());
    }
    thread::sleep(Duration::from_millis(300));
    rig.api.up();
    until("the PATCHes", || written(&watched));
    let again: Vec<_> = patches(&rig).split_off(2);
    let mut to: Vec<_> = again.iter().map(|patch| (patch.0.as_str(), status_of(patch))).collect();
    to.sort_unstable();
    assert_eq!(to, [("a/other", "[1]"), ("a/untold", "[1]")]);
}

#[test]
fn a_kubeconfig_that_was_renewed_is_read_again_by_watches_and_for_what_is_written() {
    let mut rig = Rig::new();
    rig.api.apply(PODS, api_pod("a", "p", "u"));
    let watched = rig.synced();
    rig.api.with(|state| state.takes = Some("renewed"));
    watched.report(&pod_ref("a", "p", Some("u")), "[1]".into());
    // The watches begin anew.
    rig.api.down();
    rig.api.up();
    until("the refusal", || watched.last_error().is_some_and(|error| error.contains("401")));
    assert!(patches(&rig).is_empty());
    rig.api.kubeconfig_with(rig.dir.path(), "renewed");
    until("the watches", || watched.health().watches.iter().all(|watch| watch.is_working));
    until("the PATCH", || written(&watched));
    assert_eq!(patches(&rig).len(), 1);
}

#[test]
fn x11_a_burst_of_a_hundred_pods_is_a_hundred_patches_over_few_connections() {
    let rig = Rig::new();
    for n in 0..100 {
        rig.api.apply(PODS, api_pod("a", &format!("p{n}"), "u"));
    }
    let watched = rig.synced();
    let before = watched.requests();
    for n in 0..100 {
        watched.report(&pod_ref("a", &format!("p{n}"), Some("u")), "[1]".into());
    }
    until("the PATCHes", || written(&watched));
    let after = watched.requests();
    assert_eq!((after.patches, after.reads), (100, before.reads));
    assert!(after.connections - before.connections <= 8, "{before:?} {after:?}");
}

#[test]
fn x14_the_same_failure_is_one_event_with_its_count_and_the_pods_uid() {
    let rig = Rig::new();
    rig.api.apply(PODS, api_pod("a", "p", "u"));
    let watched = rig.synced();
    let pod = pod_ref("a", "p", Some("u"));
    {
        // Before the first is written, however slow this thread is.
        let mut warnings = watched.shared.warnings.lock();
        for _ in 0..20 {
            warnings.push(&pod, "NetworkNotAttached", "network a/net-a: the bridge br0 is not there");
        }
    }
    watched.shared.wake.warnings.notify_one();
    until("the Event", || rig.api.with(|state| !state.events.is_empty()));
    thread::sleep(Duration::from_millis(300));
    let events = rig.api.with(|state| state.events.clone());
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["reason"], "NetworkNotAttached");
    assert_eq!(events[0]["involvedObject"]["uid"], "u");
    assert_eq!(events[0]["count"], 20);
}

#[test]
fn x14_with_the_api_down_a_caller_is_never_held_up() {
    let mut rig = Rig::new();
    let watched = rig.synced();
    rig.api.down();
    let begun = Instant::now();
    for n in 0..5_000 {
        let pod = pod_ref("a", &format!("p{n}"), None);
        watched.warn(&pod, "NetworkNotAttached", "words");
        watched.report(&pod, "[]".into());
    }
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    let health = watched.health();
    assert!(health.waiting_reports <= 1024 && health.dropped_events > 0, "{health:?}");
}
