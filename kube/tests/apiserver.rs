//! The cluster against a real kube-apiserver, with the rights that Fairlead has and no more.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod real_api_server;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use fairlead_kube::{
    ApiServer, Cluster, ClusterError, KnownDefinition, PodRef, Right, Settings, SharedDirVolume,
    TokenReviewer, Verdict, Wait, Watched, examine_access,
};
use real_api_server::RealApiServer;
use serde_json::{Value, json};

/// A test that waits longer than this fails.
const LONG: Duration = Duration::from_secs(60);
const PODS: &str = "/api/v1/namespaces/default/pods";
const DEFINITIONS: &str = "/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions";
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

fn start(api: &RealApiServer, state_dir: &Path) -> Watched {
    Watched::start(Settings {
        api: ApiServer::Kubeconfig(api.kubeconfig_of_fairlead()),
        node: "n1".into(),
        state_dir: state_dir.to_owned(),
        namespace_labels: true,
        runtime: |builder, threads| builder.max_blocking_threads(threads).build(),
    })
    .unwrap()
}

fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < LONG, "{what}: not within {LONG:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn works(watched: &Watched) -> bool {
    watched.is_synced() && watched.health().watches.iter().all(|watch| watch.is_working)
}

fn wait(limit: Duration) -> Wait<'static> {
    Wait { deadline: Instant::now() + limit, gone: &|| false }
}

fn pod(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "annotations": { "k8s.v1.cni.cncf.io/networks": "net" } },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "localhost/none" }] }
    })
}

fn definition(name: &str) -> Value {
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": name, "annotations": { "k8s.v1.cni.cncf.io/resourceName": "intel.com/sriov" } },
        "spec": { "config": format!("{{\"cniVersion\":\"1.1.0\",\"name\":\"{name}\",\"type\":\"macvlan\"}}") }
    })
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap().to_owned()
}

fn known_as(name: &str, uid: &str) -> PodRef {
    PodRef { namespace: "default".into(), name: name.into(), uid: Some(uid.into()) }
}

/// Deletes a pod that no kubelet looks after.
fn delete(api: &RealApiServer, name: &str) {
    api.delete(&format!("{PODS}/{name}?gracePeriodSeconds=0"));
}

fn status(api: &RealApiServer, name: &str) -> Option<String> {
    api.get(&format!("{PODS}/{name}"))["metadata"]["annotations"][STATUS].as_str().map(str::to_owned)
}

#[test]
#[ignore = "this needs etcd and kube-apiserver, whose directory FAIRLEAD_CLUSTER_PROGRAMS names: `make e2e` runs it"]
fn pods_are_watched_and_told_with_the_rights_of_fairlead_only() {
    let api = RealApiServer::start();
    let dir = tempfile::tempdir().unwrap();
    let watched = start(&api, dir.path());
    until("the first lists, without the CustomResourceDefinitions", || works(&watched));
    definitions_are_seen_as_soon_as_their_kind_is_applied(&api, &watched);
    k7_k13_a_burst_of_pods_wakes_its_calls_and_asks_nothing(&api, &watched);
    k6_k11_k12_a_pod_that_comes_back_under_its_name_is_another(&api, &watched);
    k12_a_static_pod_is_found_by_the_hash_of_its_mirror(&api, &watched);
    the_volume_of_userspace_cni_is_known_by_event_and_list(&api, &watched);
    x11_network_status_is_written_once_and_never_to_a_successor(&api, &watched);
    x14_a_failure_is_an_event_of_its_pod(&api, &watched);
    nothing_else_is_allowed(&api);
    what_an_account_may_not_is_told(&api);
    whoever_shows_a_token_may_read_if_its_account_may(&api);
}

fn definitions_are_seen_as_soon_as_their_kind_is_applied(api: &RealApiServer, watched: &Watched) {
    // The kind may be on its way, as at the making of a cluster: a caller waits for it, and then tries again.
    let missing = watched.definition("default", "net", &wait(Duration::from_secs(1))).unwrap_err();
    assert!(matches!(missing, ClusterError::DefinitionNotSeen { .. }), "{missing}");
    api.apply_kind("network-attachment-definitions", "k8s.cni.cncf.io", "NetworkAttachmentDefinition");
    api.create(DEFINITIONS, &definition("net"));
    until("the definition", || watched.definition("default", "net", &wait(Duration::ZERO)).is_ok());
    let found = watched.definition("default", "net", &wait(LONG)).unwrap();
    assert_eq!(found.resource.as_deref(), Some("intel.com/sriov"));
    let known = KnownDefinition { namespace: "default".into(), name: "net".into(), found: Ok(found) };
    assert_eq!(watched.known_definitions(), [known]);
    api.delete(&format!("{DEFINITIONS}/net"));
    until("its end", || watched.definition("default", "net", &wait(Duration::ZERO)).is_err());
    assert_eq!(watched.last_error(), None);
    api.apply_kind("networks", "alpha.network.k8s.io", "Network");
    api.create(
        "/apis/alpha.network.k8s.io/v1/namespaces/default/networks",
        &json!({ "apiVersion": "alpha.network.k8s.io/v1", "kind": "Network",
                 "metadata": { "name": "old" }, "spec": { "plugin": "bridge" } }),
    );
    until("the legacy network", || watched.legacy_network("default", "old", &wait(Duration::ZERO)).is_ok());
    let old = watched.legacy_network("default", "old", &wait(LONG)).unwrap();
    assert_eq!(old.plugin.as_deref(), Some("bridge"));
}

fn k7_k13_a_burst_of_pods_wakes_its_calls_and_asks_nothing(api: &RealApiServer, watched: &Watched) {
    until("all watches, of kinds that are all there by now", || {
        works(watched) && watched.health().watches.iter().all(|w| w.last_error.is_none())
    });
    let before = watched.requests();
    thread::scope(|scope| {
        let calls: Vec<_> = (0..30)
            .map(|n| {
                scope.spawn(move || {
                    let mut name = known_as(&format!("burst-{n}"), "");
                    name.uid = None;
                    (watched.pod(&name, &wait(LONG)).unwrap(), Instant::now())
                })
            })
            .collect();
        api.create(PODS, &pod("elsewhere", "n2"));
        let created: Vec<_> = (0..30)
            .map(|n| (uid(&api.create(PODS, &pod(&format!("burst-{n}"), "n1"))), Instant::now()))
            .collect();
        let mut slowest = Duration::ZERO;
        for (call, (uid, created)) in calls.into_iter().zip(created) {
            let (found, woken) = call.join().unwrap();
            assert_eq!(found.id.uid, Some(uid));
            assert_eq!(found.annotations["k8s.v1.cni.cncf.io/networks"], "net");
            slowest = slowest.max(woken.saturating_duration_since(created));
        }
        println!("slowest wake after the API server's answer to POST: {slowest:?}");
        assert!(slowest < Duration::from_secs(10), "{slowest:?}");
    });
    let after = watched.requests();
    assert_eq!((after.connections, after.reads), (before.connections, before.reads));
    let elsewhere = PodRef { namespace: "default".into(), name: "elsewhere".into(), uid: None };
    watched.pod(&elsewhere, &wait(Duration::from_millis(300))).unwrap_err();
}

fn k6_k11_k12_a_pod_that_comes_back_under_its_name_is_another(api: &RealApiServer, watched: &Watched) {
    let old = uid(&api.create(PODS, &pod("web-0", "n1")));
    watched.pod(&known_as("web-0", &old), &wait(LONG)).unwrap();
    delete(api, "web-0");
    until("its end", || {
        let answer = watched.pod(&known_as("web-0", &old), &wait(Duration::ZERO));
        matches!(answer, Err(ClusterError::PodDeleted { .. }))
    });
    let new = uid(&api.create(PODS, &pod("web-0", "n1")));
    watched.pod(&known_as("web-0", &new), &wait(LONG)).unwrap();
    let refused = watched.pod(&known_as("web-0", &old), &wait(LONG)).unwrap_err();
    assert!(matches!(&refused, ClusterError::AnotherUid { found, .. } if *found == new), "{refused}");
}

fn k12_a_static_pod_is_found_by_the_hash_of_its_mirror(api: &RealApiServer, watched: &Watched) {
    let mut mirror = pod("static-n1", "n1");
    for key in ["mirror", "hash"] {
        mirror["metadata"]["annotations"][format!("kubernetes.io/config.{key}")] = json!("0123abcd");
    }
    let of_mirror = uid(&api.create(PODS, &mirror));
    let found = watched.pod(&known_as("static-n1", "0123abcd"), &wait(LONG)).unwrap();
    assert!(found.is_static && found.id.uid == Some(of_mirror));
    watched.report(&known_as("static-n1", "0123abcd"), "[\"static\"]".into());
    until("its status", || status(api, "static-n1").as_deref() == Some("[\"static\"]"));
}

fn the_volume_of_userspace_cni_is_known_by_event_and_list(api: &RealApiServer, watched: &Watched) {
    let mut object = pod("userspace", "n1");
    object["spec"]["volumes"] = json!([{ "name": "shared-dir", "hostPath": { "path": "/run/app1" } }]);
    object["spec"]["containers"][0]["volumeMounts"] =
        json!([{ "name": "shared-dir", "mountPath": "/sockets" }]);
    let named = known_as("userspace", &uid(&api.create(PODS, &object)));
    let dir = tempfile::tempdir().unwrap();
    let listed = start(api, dir.path());
    let wanted =
        SharedDirVolume { host_path: Some("/run/app1".to_owned()), mount_path: Some("/sockets".to_owned()) };
    for of in [watched, &listed] {
        assert_eq!(of.pod(&named, &wait(LONG)).unwrap().shared_dir.as_ref(), Some(&wanted));
    }
}

fn x11_network_status_is_written_once_and_never_to_a_successor(api: &RealApiServer, watched: &Watched) {
    until("what is under way", || watched.health().waiting_reports == 0);
    let before = watched.requests();
    for n in 0..30 {
        let found = uid(&api.get(&format!("{PODS}/burst-{n}")));
        watched.report(&known_as(&format!("burst-{n}"), &found), format!("[{n}]"));
    }
    until("all", || watched.health().waiting_reports == 0);
    assert_eq!(watched.requests().patches - before.patches, 30);
    for n in 0..30 {
        let pod = api.get(&format!("{PODS}/burst-{n}"));
        assert_eq!(pod["metadata"]["annotations"][STATUS], format!("[{n}]"));
        assert_eq!(pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"], "net");
    }
    let uid_precondition = api.refusal_of_a_status_patch(&format!("{PODS}/burst-0"), "another uid");
    assert!(
        [409, 422].contains(&uid_precondition),
        "a PATCH with another uid was answered {uid_precondition}"
    );
    assert_eq!(status(api, "burst-0").as_deref(), Some("[0]"));
}

fn x14_a_failure_is_an_event_of_its_pod(api: &RealApiServer, watched: &Watched) {
    let found = uid(&api.get(&format!("{PODS}/burst-1")));
    for _ in 0..10 {
        watched.warn(
            &known_as("burst-1", &found),
            "NetworkNotAttached",
            "network default/net: no bridge br0",
        );
    }
    let events = || {
        let all = api.get("/api/v1/namespaces/default/events");
        all["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|e| e["involvedObject"]["name"] == "burst-1")
            .cloned()
            .collect::<Vec<_>>()
    };
    until("the Event", || !events().is_empty());
    let event = &events()[0];
    assert_eq!(
        (event["reason"].as_str(), event["type"].as_str()),
        (Some("NetworkNotAttached"), Some("Warning"))
    );
    assert_eq!(event["involvedObject"]["uid"], found);
}

/// The rights that everything above was done with refuse what a stolen token would be good for.
fn nothing_else_is_allowed(api: &RealApiServer) {
    for (method, path) in [
        ("GET", "/api/v1/secrets"),
        ("GET", "/api/v1/nodes"),
        ("POST", PODS),
        ("DELETE", "/api/v1/namespaces/default/pods/burst-0"),
        ("PATCH", "/api/v1/namespaces/default/pods/burst-0"),
    ] {
        assert_eq!(api.as_fairlead(method, path), 403, "{method} {path}");
    }
}

/// What `doctor` asks.
fn what_an_account_may_not_is_told(api: &RealApiServer) {
    let right = |resource, verb| Right { group: "", resource, verb };
    let asked = [
        right("pods", "list"),
        right("pods/status", "patch"),
        right("secrets", "get"),
        right("pods", "delete"),
    ];
    let of = |kubeconfig| examine_access(&ApiServer::Kubeconfig(kubeconfig), &asked, Duration::from_secs(60));
    let access = of(api.kubeconfig_of_fairlead()).unwrap();
    assert_eq!(access.lacking, asked[2..]);
    assert!(access.serves_definitions && access.ahead.is_some_and(|ahead| ahead.abs() < 30), "{access:?}");
    let refused = of(api.kubeconfig("nobody-knows-this-token")).unwrap_err();
    assert!(refused.contains("401"), "{refused}");
}

/// What the metrics' port asks about whoever comes.
fn whoever_shows_a_token_may_read_if_its_account_may(api: &RealApiServer) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let of = |kubeconfig: PathBuf, token: &str| {
        runtime.block_on(async {
            let reviewer = TokenReviewer::connect(&ApiServer::Kubeconfig(kubeconfig)).await.unwrap();
            reviewer.may_get(token, "/metrics").await
        })
    };
    let refused = of(api.kubeconfig_of_fairlead(), "anything").unwrap_err();
    assert!(
        refused.contains("TokenReview") && refused.contains("403"),
        "without the right to ask: {refused}"
    );
    api.lets_fairlead_review_tokens();
    let (reader, other) = (api.token_of("reader"), api.token_of("other"));
    api.lets_read("reader", "/metrics");
    let fairlead = || api.kubeconfig_of_fairlead();
    until("the right to ask counts", || of(fairlead(), &other).is_ok());
    until("the reader's right counts", || of(fairlead(), &reader) == Ok(Verdict::Allowed));
    let forbidden = Verdict::Forbidden { user: "system:serviceaccount:default:other".to_owned() };
    assert_eq!(of(fairlead(), &other), Ok(forbidden));
    for nobodys in ["made-up", &format!("{reader}x")] {
        assert_eq!(of(fairlead(), nobodys), Ok(Verdict::Unknown), "{nobodys:?}");
    }
    api.delete("/api/v1/namespaces/default/serviceaccounts/reader");
    until("a token dies with its account", || of(fairlead(), &reader) == Ok(Verdict::Unknown));
}

#[test]
#[ignore = "this needs etcd and kube-apiserver, whose directory FAIRLEAD_CLUSTER_PROGRAMS names: `make e2e` runs it"]
fn what_is_known_outlives_the_api_server_and_the_daemon_in_bounded_memory() {
    let mut api = RealApiServer::start();
    api.apply_kind("network-attachment-definitions", "k8s.cni.cncf.io", "NetworkAttachmentDefinition");
    for n in 0..200 {
        api.create_when_ready(DEFINITIONS, &definition(&format!("net-{n}")));
    }
    let uids: Vec<_> = (0..500).map(|n| uid(&api.create(PODS, &pod(&format!("p{n}"), "n1")))).collect();
    let dir = tempfile::tempdir().unwrap();
    let before = resident_kib();
    let watched = start(&api, dir.path());
    until("the first lists", || works(&watched));
    thread::sleep(Duration::from_millis(1500));
    let grown = resident_kib().saturating_sub(before);
    // The test's own client, which made them all, has grown the heap before: the sum counts too.
    let sum = before + grown;
    println!("memory: {grown} KiB more with 500 pods and 200 definitions, {sum} KiB with the test itself");
    assert!(grown < 10 * 1024 && sum < 30 * 1024, "{grown} KiB more, {sum} KiB");
    assert_eq!(watched.health().watches.iter().map(|w| w.objects).take(2).collect::<Vec<_>>(), [500, 200]);

    api.stop();
    until("the failure", || watched.last_error().is_some());
    watched.pod(&known_as("p7", &uids[7]), &wait(Duration::from_secs(1))).unwrap();
    watched.report(&known_as("p7", &uids[7]), "[7]".into());
    drop(watched);
    let begun = Instant::now();
    let watched = start(&api, dir.path());
    watched.pod(&known_as("p8", &uids[8]), &wait(LONG)).unwrap();
    watched.definition("default", "net-3", &wait(LONG)).unwrap();
    println!("answers {:?} after a start with the API server down", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(20));

    api.again();
    delete(&api, "p9");
    until("the watches", || works(&watched));
    until("the status", || status(&api, "p7").as_deref() == Some("[7]"));
    until("the end of p9", || {
        let answer = watched.pod(&known_as("p9", &uids[9]), &wait(Duration::ZERO));
        matches!(answer, Err(ClusterError::PodDeleted { .. }))
    });
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
