//! Pods and definitions: as they come, as they go, and while the API server does not answer.

use std::fs;
use std::sync::mpsc;
use std::thread;

use futures_util::FutureExt;
use kube::core::WatchEvent;
use serde_json::value::{RawValue, to_raw_value};
use tokio::runtime::Builder;

use super::fake_api_server::{DEFINITIONS, NAMESPACES, NETWORKS, PODS};
use super::*;
use crate::watched::client::Connection;
use crate::watched::shared::Shared;
use crate::watched::watch::Watch;
use crate::watched::watch_state::Kind;

#[test]
fn k7_a_waiting_call_wakes_at_once_when_its_pod_arrives() {
    let rig = Rig::new();
    let watched = rig.synced();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let pod = ask(&watched, &pod_ref("a", "p", Some("u1")), LONG).unwrap();
            (pod, Instant::now())
        });
        thread::sleep(Duration::from_millis(300));
        let arrived = Instant::now();
        rig.api.apply(PODS, api_pod("a", "p", "u1"));
        let (pod, woken) = waiting.join().unwrap();
        assert_eq!(pod.annotations["k8s.v1.cni.cncf.io/networks"], "net-a");
        assert!(woken - arrived < AT_ONCE, "{:?}", woken - arrived);
    });
}

#[test]
fn k7_a_pod_that_never_comes_is_told_at_the_deadline_with_the_reason() {
    let rig = Rig::new();
    rig.api.apply(PODS, pod_of("another-node", "a", "p", "u1"));
    let watched = rig.synced();
    let begun = Instant::now();
    let error = ask(&watched, &pod_ref("a", "p", Some("u1")), Duration::from_millis(400)).unwrap_err();
    assert!(begun.elapsed() >= Duration::from_millis(400) && begun.elapsed() < LONG / 4);
    assert_eq!(
        error.to_string(),
        "pod a/p is not known on this node yet (the API server answers, and has not told of it)"
    );
}

#[test]
fn k7_nobody_waits_on_for_a_caller_that_has_gone() {
    let rig = Rig::new();
    let watched = rig.synced();
    let begun = Instant::now();
    let wait =
        Wait { deadline: Instant::now() + LONG, gone: &|| begun.elapsed() > Duration::from_millis(200) };
    watched.pod(&pod_ref("a", "p", None), &wait).unwrap_err();
    assert!(begun.elapsed() < LONG / 4);
}

#[test]
fn k11_a_pod_that_is_deleted_while_it_is_waited_for_fails_at_once() {
    let rig = Rig::new();
    let watched = rig.synced();
    for uid in [Some("u1"), None] {
        let name = format!("p{}", uid.is_some());
        let wanted = pod_ref("a", &name, uid);
        // Without a uid only a deletion counts that comes while it is waited for.
        let (waits, is_waiting) = mpsc::channel();
        let watched = &watched;
        thread::scope(|scope| {
            let waiting = scope.spawn(move || {
                let gone = || waits.send(()).is_err();
                let wait = Wait { deadline: Instant::now() + LONG, gone: &gone };
                (watched.pod(&wanted, &wait), Instant::now())
            });
            is_waiting.recv_timeout(LONG).unwrap();
            let deleted = Instant::now();
            rig.api.delete(PODS, api_pod("a", &name, "u1"));
            let (answer, woken) = waiting.join().unwrap();
            assert!(matches!(answer, Err(ClusterError::PodDeleted { .. })), "{answer:?}");
            assert!(woken - deleted < AT_ONCE);
        });
    }
}

#[test]
fn k12_the_sandbox_of_a_pod_that_was_replaced_is_refused_and_its_successor_is_waited_for() {
    let rig = Rig::new();
    rig.api.apply(PODS, api_pod("a", "web-0", "old"));
    let watched = rig.synced();
    thread::scope(|scope| {
        let newer = scope.spawn(|| ask(&watched, &pod_ref("a", "web-0", Some("new")), LONG));
        thread::sleep(Duration::from_millis(300));
        rig.api.delete(PODS, api_pod("a", "web-0", "old"));
        rig.api.apply(PODS, api_pod("a", "web-0", "new"));
        assert_eq!(newer.join().unwrap().unwrap().id.uid.as_deref(), Some("new"));
    });
    let begun = Instant::now();
    let older = ask(&watched, &pod_ref("a", "web-0", Some("old")), LONG).unwrap_err();
    assert!(begun.elapsed() < AT_ONCE);
    assert!(matches!(&older, ClusterError::AnotherUid { found, .. } if found == "new"), "{older}");
    let never_seen = ask(&watched, &pod_ref("a", "web-0", Some("older still")), LONG).unwrap_err();
    assert!(matches!(&never_seen, ClusterError::AnotherUid { found, .. } if found == "new"));
}

#[test]
fn k12_a_pod_whose_annotations_came_with_the_call_is_refused_if_another_has_its_name() {
    let rig = Rig::new();
    // As after a restart: nobody has seen the end of the one before.
    rig.api.apply(PODS, api_pod("a", "p", "new"));
    let watched = rig.synced();
    let asked = |name: &str, uid: &str| {
        let wait = Wait { deadline: Instant::now() + LONG, gone: &|| false };
        watched.must_not_be_gone(&pod_ref("a", name, Some(uid)), &wait)
    };
    let refused = asked("p", "old").unwrap_err();
    assert!(matches!(&refused, ClusterError::AnotherUid { found, .. } if found == "new"), "{refused}");
    asked("p", "new").unwrap();
    let begun = Instant::now();
    asked("unknown", "u1").unwrap();
    assert!(begun.elapsed() < ONE_BEFORE, "what nobody knows of is not waited for");
    // Its event comes while it is waited for: the other one was the older.
    thread::scope(|scope| {
        let waiting = scope.spawn(|| asked("p", "newest"));
        thread::sleep(Duration::from_millis(100));
        rig.api.apply(PODS, api_pod("a", "p", "newest"));
        waiting.join().unwrap().unwrap();
    });
    let told = asked("p", "new").unwrap_err();
    assert!(matches!(&told, ClusterError::AnotherUid { found, .. } if found == "newest"), "{told}");
}

#[test]
fn k12_with_the_api_down_a_pod_whose_annotations_came_with_the_call_still_starts() {
    let mut rig = Rig::new();
    rig.api.apply(PODS, api_pod("a", "p", "u1"));
    let watched = rig.synced();
    rig.api.down();
    until("the watch has seen it", || watched.health().watches.iter().any(|w| !w.is_working));
    let wait = Wait { deadline: Instant::now() + LONG, gone: &|| false };
    watched.must_not_be_gone(&pod_ref("a", "p", Some("u2")), &wait).unwrap();
}

#[test]
fn k12_a_static_pod_is_found_by_the_uid_of_its_runtime() {
    let rig = Rig::new();
    let mut mirror = api_pod("kube-system", "etcd-n1", "of the mirror");
    mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("of the runtime");
    rig.api.apply(PODS, mirror);
    let watched = rig.synced();
    let pod = ask(&watched, &pod_ref("kube-system", "etcd-n1", Some("of the runtime")), LONG).unwrap();
    assert!(pod.is_static);
    assert_eq!(pod.id.uid.as_deref(), Some("of the mirror"));
}

#[test]
fn k13_a_hundred_pods_at_once_cost_no_connection_and_no_request() {
    let rig = Rig::new();
    let watched = rig.synced();
    let before = watched.requests();
    assert_eq!((before.connections, before.reads), (4, 8), "one list and one watch for each kind");
    thread::scope(|scope| {
        let asked: Vec<_> = (0..100)
            .map(|n| {
                let watched = &watched;
                scope.spawn(move || ask(watched, &pod_ref("a", &format!("p{n}"), Some("u")), LONG))
            })
            .collect();
        for n in 0..100 {
            rig.api.apply(PODS, api_pod("a", &format!("p{n}"), "u"));
        }
        for answer in asked {
            answer.join().unwrap().unwrap();
        }
    });
    assert_eq!(watched.requests(), before);
}

#[test]
fn k13_more_objects_than_a_page_are_listed_page_by_page() {
    let rig = Rig::new();
    for n in 0..250 {
        rig.api.apply(PODS, api_pod("a", &format!("p{n}"), "u"));
    }
    let watched = rig.synced();
    assert_eq!(watched.health().watches[0].objects, 250);
    let lists = rig.api.with(|state| {
        state.requests.iter().filter(|r| r.contains("/pods?") && r.contains("limit=25")).count()
    });
    assert_eq!(lists, 10);
}

#[test]
fn the_volume_shared_dir_of_a_pod_is_known_by_list_event_and_snapshot() {
    let mut rig = Rig::new();
    let with_volume = |name: &str| {
        let mut pod = api_pod("a", name, "u");
        pod["spec"]["volumes"] = json!([{ "name": "shared-dir", "hostPath": { "path": "/run/app1" } }]);
        pod["spec"]["containers"] =
            json!([{ "name": "c", "volumeMounts": [{ "name": "shared-dir", "mountPath": "/sockets" }] }]);
        pod
    };
    let wanted =
        SharedDirVolume { host_path: Some("/run/app1".to_owned()), mount_path: Some("/sockets".to_owned()) };
    let of = |watched: &Watched, name: &str| {
        ask(watched, &pod_ref("a", name, Some("u")), LONG).unwrap().shared_dir.clone()
    };
    rig.api.apply(PODS, with_volume("listed"));
    rig.api.apply(PODS, api_pod("a", "without", "u"));
    let watched = rig.synced();
    rig.api.apply(PODS, with_volume("told-of"));
    assert_eq!(of(&watched, "listed").as_ref(), Some(&wanted));
    assert_eq!(of(&watched, "told-of").as_ref(), Some(&wanted));
    assert_eq!(of(&watched, "without"), None);
    drop(watched);
    rig.api.down();
    assert_eq!(of(&rig.watched(), "listed"), Some(wanted));
}

#[test]
fn with_the_api_down_pods_and_definitions_known_before_still_answer_and_others_wait() {
    let mut rig = Rig::new();
    rig.api.apply(PODS, api_pod("a", "p", "u"));
    rig.api.apply(DEFINITIONS, api_definition("a", "net", "{}"));
    let watched = rig.synced();
    rig.api.down();
    until("the failure", || watched.last_error().is_some());
    ask(&watched, &pod_ref("a", "p", Some("u")), AT_ONCE).unwrap();
    define(&watched, "a", "net", AT_ONCE).unwrap();
    let error = define(&watched, "a", "other", AT_ONCE).unwrap_err();
    assert!(
        matches!(&error, ClusterError::DefinitionNotSeen { reason, .. } if reason.contains("cannot be asked"))
    );
    ask(&watched, &pod_ref("a", "other", None), AT_ONCE).unwrap_err();
    rig.api.apply(PODS, api_pod("a", "other", "u"));
    rig.api.up();
    let back = Instant::now();
    ask(&watched, &pod_ref("a", "other", None), LONG).unwrap();
    assert!(back.elapsed() < LONG / 2, "a call that waits hurries the watch: {:?}", back.elapsed());
    until("all watches", || watched.health().watches.iter().all(|watch| watch.is_working));
    assert_eq!(watched.last_error(), None);
}

#[test]
fn what_was_known_outlives_a_restart_with_the_api_down_and_the_first_list_corrects_it() {
    let mut rig = Rig::new();
    let mut mirror = api_pod("a", "static", "m");
    mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("hash");
    rig.api.apply(PODS, mirror);
    rig.api.apply(PODS, api_pod("a", "gone", "u"));
    rig.api.apply(DEFINITIONS, api_definition("a", "net", "{\"type\":\"macvlan\"}"));
    rig.api.apply(DEFINITIONS, api_definition("a", "gone", "{}"));
    rig.api.apply(
        NETWORKS,
        json!({ "metadata": { "namespace": "a", "name": "old" }, "spec": { "plugin": "bridge" } }),
    );
    rig.api.apply(NAMESPACES, json!({ "metadata": { "name": "a", "labels": { "tier": "gold" } } }));
    drop(rig.synced());
    rig.api.down();
    let watched = rig.watched();
    assert!(ask(&watched, &pod_ref("a", "static", Some("hash")), LONG).unwrap().is_static);
    ask(&watched, &pod_ref("a", "gone", Some("u")), LONG).unwrap();
    assert_eq!(define(&watched, "a", "net", LONG).unwrap().config.as_deref(), Some("{\"type\":\"macvlan\"}"));
    let wait = Wait { deadline: Instant::now() + LONG, gone: &|| false };
    assert_eq!(watched.legacy_network("a", "old", &wait).unwrap().plugin.as_deref(), Some("bridge"));
    assert_eq!(watched.namespace_labels("a").unwrap()["tier"], "gold");
    assert!(!watched.is_synced());
    rig.api.delete_silently(PODS, "a", "gone");
    rig.api.delete_silently(DEFINITIONS, "a", "gone");
    rig.api.up();
    until("the first lists", || watched.is_synced());
    let gone = ask(&watched, &pod_ref("a", "gone", Some("u")), LONG).unwrap_err();
    assert!(matches!(gone, ClusterError::PodDeleted { .. }), "{gone}");
    let gone = define(&watched, "a", "gone", LONG).unwrap_err();
    assert!(matches!(gone, ClusterError::NoDefinition { .. }), "{gone}");
    define(&watched, "a", "net", LONG).unwrap();
}

#[test]
fn what_is_known_is_on_disk_soon_after_it_is_known() {
    let rig = Rig::new();
    // It is in the first write: how long the pause after that one is, the disk decides.
    rig.api.apply(PODS, api_pod("a", "saved-by-itself", "u"));
    let watched = rig.synced();
    let file = rig.state_dir().join("cluster-snapshot.json");
    until("the file", || fs::read_to_string(&file).is_ok_and(|text| text.contains("saved-by-itself")));
    drop(watched);
}

#[test]
fn only_an_event_that_changes_what_is_saved_has_the_snapshot_written() {
    let rig = Rig::new();
    let shared = Arc::new(Shared::new("n1".to_owned(), &Kind::ALL));
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let connection = runtime.block_on(Connection::open(&rig.settings().api, &shared.counts)).unwrap();
    let connection = Arc::new(connection);
    type Event = WatchEvent<Box<RawValue>>;
    let is_written_after = |kind: Kind, event: fn(Box<RawValue>) -> Event, object: &Value| {
        let mut watch = Watch::new(Arc::clone(&connection), Arc::clone(&shared), kind);
        watch.take(event(to_raw_value(object).unwrap()), &mut String::new()).unwrap();
        shared.wake.snapshot.notified().now_or_never().is_some()
    };
    let change = |kind, object: &Value| is_written_after(kind, WatchEvent::Modified, object);
    let mut pod = api_pod("a", "p", "u");
    assert!(change(Kind::Pods, &pod));
    pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"] = json!("[]");
    pod["status"] = json!({ "phase": "Running" });
    assert!(!change(Kind::Pods, &pod));
    let mut definition = api_definition("a", "net", "{}");
    assert!(change(Kind::Definitions, &definition));
    definition["metadata"]["annotations"] = json!({ "example.com/of-no-concern": "1" });
    assert!(!change(Kind::Definitions, &definition));
    assert!(change(Kind::Definitions, &api_definition("a", "net", "{\"type\":\"macvlan\"}")));
    let namespace = json!({ "metadata": { "name": "a", "labels": { "tier": "gold" } } });
    assert!(change(Kind::Namespaces, &namespace));
    assert!(!change(Kind::Namespaces, &namespace));
    let of = [(Kind::Pods, &pod), (Kind::Definitions, &definition), (Kind::Namespaces, &namespace)];
    for (kind, object) in of {
        assert!(is_written_after(kind, WatchEvent::Deleted, object), "{kind:?}");
        assert!(!is_written_after(kind, WatchEvent::Deleted, object), "{kind:?}: it was not known");
    }
}

#[test]
fn a_damaged_snapshot_is_passed_over() {
    let rig = Rig::new();
    rig.api.apply(PODS, api_pod("a", "p", "u"));
    drop(rig.synced());
    let file = rig.state_dir().join("cluster-snapshot.json");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("net-a", "net-b")).unwrap();
    let watched = rig.synced();
    let pod = ask(&watched, &pod_ref("a", "p", None), LONG).unwrap();
    assert_eq!(pod.annotations["k8s.v1.cni.cncf.io/networks"], "net-a");
}

#[test]
fn events_that_are_gone_make_it_list_again() {
    let rig = Rig::new();
    rig.api.apply(PODS, api_pod("a", "gone", "u"));
    let watched = rig.synced();
    rig.api.delete_silently(PODS, "a", "gone");
    rig.api.compact();
    let answer = || ask(&watched, &pod_ref("a", "gone", Some("u")), Duration::ZERO);
    until("the list", || matches!(answer(), Err(ClusterError::PodDeleted { .. })));
    rig.api.apply(PODS, api_pod("a", "after", "u"));
    ask(&watched, &pod_ref("a", "after", Some("u")), LONG).unwrap();
}

#[test]
fn a_call_that_waits_has_all_listed_anew_soon_after_an_outage_that_the_events_did_not_outlive() {
    let mut rig = Rig::new();
    let watched = rig.synced();
    rig.api.down();
    until("the failure", || watched.last_error().is_some());
    // The third pause has begun: the one after it is four seconds at least.
    thread::sleep(Duration::from_secs(4));
    rig.api.apply_silently(DEFINITIONS, api_definition("a", "made-meanwhile", "{}"));
    rig.api.compact();
    rig.api.up();
    let back = Instant::now();
    define(&watched, "a", "made-meanwhile", LONG).unwrap();
    assert!(back.elapsed() < Duration::from_secs(3), "{:?}", back.elapsed());
}

#[test]
fn that_there_is_none_is_no_answer_while_all_are_listed_anew() {
    let rig = Rig::new();
    let watched = rig.synced();
    let none = define(&watched, "a", "net", LONG).unwrap_err();
    assert!(matches!(none, ClusterError::NoDefinition { .. }), "{none}");
    let lists = || {
        let is_list = |request: &&String| request.contains(DEFINITIONS) && !request.contains("watch=");
        rig.api.with(|state| state.requests.iter().filter(is_list).count())
    };
    let before = lists();
    rig.api.with(|state| state.thinks = Duration::from_secs(1));
    rig.api.apply_silently(DEFINITIONS, api_definition("a", "net", "{}"));
    rig.api.compact();
    until("the list", || lists() > before);
    define(&watched, "a", "net", LONG).unwrap();
    assert_eq!(watched.last_error(), None, "it is no failure");
}

#[test]
fn an_api_server_that_refuses_or_ends_every_watch_is_not_asked_in_a_loop() {
    let rig = Rig::new();
    rig.api.with(|state| state.ends_watches = true);
    let watched = rig.watched();
    thread::sleep(Duration::from_secs(2));
    assert!(watched.requests().reads <= 4 * 5, "{:?}", watched.requests());
    rig.api.with(|state| {
        state.ends_watches = false;
        state.refuses = Some(500);
    });
    until("the failure", || watched.last_error().is_some_and(|e| e.contains("500")));
    rig.api.with(|state| state.refuses = None);
    rig.api.apply(PODS, api_pod("a", "p", "u"));
    ask(&watched, &pod_ref("a", "p", None), LONG).unwrap();
}

#[test]
fn a_slow_api_server_is_waited_for_and_the_snapshot_counts_after_two_seconds() {
    let rig = Rig::new();
    rig.api.apply(PODS, api_pod("a", "p", "u"));
    drop(rig.synced());
    rig.api.with(|state| state.thinks = Duration::from_secs(60));
    let begun = Instant::now();
    let watched = rig.watched();
    ask(&watched, &pod_ref("a", "p", Some("u")), LONG).unwrap();
    assert!(begun.elapsed() > Duration::from_secs(1) && begun.elapsed() < LONG);
}

#[test]
fn a_kind_that_the_api_lacks_is_no_failure_and_is_watched_once_it_is_there() {
    let rig = Rig::new();
    rig.api.with(|state| state.absent.extend([DEFINITIONS, NETWORKS]));
    let watched = rig.synced();
    assert_eq!(watched.last_error(), None);
    let error = define(&watched, "a", "net", Duration::from_millis(100)).unwrap_err();
    assert!(matches!(error, ClusterError::DefinitionNotSeen { .. }), "it may come: {error}");
    assert!(error.to_string().contains("apply its CustomResourceDefinition"), "{error}");
    rig.api.with(|state| state.absent.clear());
    rig.api.apply(DEFINITIONS, api_definition("a", "net", "{}"));
    define(&watched, "a", "net", LONG).expect("who waits has the kind looked for at once");
}

#[test]
fn a_legacy_network_is_answered_at_once_where_the_api_lacks_its_kind_and_the_kind_is_looked_for() {
    let rig = Rig::new();
    rig.api.with(|state| state.absent.extend([NETWORKS]));
    let watched = rig.synced();
    let asked = Instant::now();
    let error = legacy(&watched, "a", "old", LONG).unwrap_err();
    assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
    assert!(matches!(error, ClusterError::LegacyNetworkNotSeen { .. }), "it may come: {error}");
    for word in ["does not have the kind", "networks.alpha.network.k8s.io", "out of the pod"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    rig.api.apply(NETWORKS, json!({ "metadata": { "namespace": "a", "name": "old" }, "spec": {} }));
    rig.api.with(|state| state.absent.clear());
    let applied = Instant::now();
    until("the kind", || legacy(&watched, "a", "old", Duration::ZERO).is_ok());
    assert!(applied.elapsed() < AT_ONCE, "whoever asks has it looked for: {:?}", applied.elapsed());
}

#[test]
fn without_the_right_to_the_legacy_kind_all_else_is_served_and_who_names_it_is_told_why() {
    let rig = Rig::new();
    rig.api.apply(PODS, api_pod("a", "p", "u"));
    rig.api.apply(NETWORKS, json!({ "metadata": { "namespace": "a", "name": "old" }, "spec": {} }));
    rig.api.with(|state| state.forbidden.extend([NETWORKS]));
    let watched = rig.watched();
    let of_legacy = || {
        let watches = watched.health().watches;
        watches.into_iter().find(|watch| watch.kind == "networks.alpha.network.k8s.io").unwrap()
    };
    until("the refusal", || of_legacy().last_error.is_some_and(|error| error.contains("403")));
    until("the first lists", || watched.is_synced());
    assert_eq!(watched.last_error(), None);
    ask(&watched, &pod_ref("a", "p", Some("u")), LONG).unwrap();
    let error = legacy(&watched, "a", "old", Duration::from_millis(100)).unwrap_err();
    assert!(matches!(error, ClusterError::LegacyNetworkNotSeen { .. }), "it may be there: {error}");
    assert!(error.to_string().contains("403"), "{error}");
    rig.api.with(|state| state.forbidden.clear());
    legacy(&watched, "a", "old", LONG).expect("who waits has it looked for");
    until("the watch", || of_legacy().is_working);
}

#[test]
fn definitions_beyond_a_namespaces_bound_are_unusable_until_others_of_it_are_deleted() {
    let mut rig = Rig::new();
    let long = "x".repeat(64_000);
    for n in 0..16 {
        rig.api.apply(DEFINITIONS, api_definition("shop", &format!("n{n}"), &long));
    }
    rig.api.apply(DEFINITIONS, api_definition("other", "net", &long));
    let watched = rig.synced();
    let is_refused = |watched: &Watched| {
        let error = define(watched, "shop", "a-seventeenth", LONG).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, ClusterError::UnusableDefinition { .. }), "{text}");
        for word in ["namespace shop", "1048576 bytes", "delete or shorten some"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        for n in 0..16 {
            define(watched, "shop", &format!("n{n}"), LONG).unwrap();
        }
        define(watched, "other", "net", LONG).unwrap();
    };
    rig.api.apply(DEFINITIONS, api_definition("shop", "a-seventeenth", &long));
    until("its event", || watched.health().watches.iter().any(|watch| watch.objects == 18));
    is_refused(&watched);
    drop(watched);
    // After a restart a list has it before those that were known, which the snapshot tells of.
    rig.api.down();
    let watched = rig.watched();
    rig.api.up();
    until("the first lists", || watched.is_synced());
    is_refused(&watched);
    rig.api.delete(DEFINITIONS, api_definition("shop", "n3", ""));
    until("its turn", || define(&watched, "shop", "a-seventeenth", Duration::ZERO).is_ok());
    define(&watched, "shop", "n15", LONG).unwrap();
}

#[test]
fn one_object_of_a_hostile_tenant_keeps_no_other_from_being_read() {
    let rig = Rig::new();
    let deep: Value = (0..120).fold(json!(1), |inner, _| json!([inner]));
    rig.api.apply(
        DEFINITIONS,
        json!({ "metadata": { "namespace": "a", "name": "deep" }, "spec": { "config": deep } }),
    );
    rig.api.apply(DEFINITIONS, json!({ "metadata": { "namespace": "a", "name": "words" }, "spec": "words" }));
    rig.api.apply(
        DEFINITIONS,
        json!({ "metadata": { "namespace": "a", "name": "odd", "labels": 7 }, "spec": {} }),
    );
    rig.api.apply(DEFINITIONS, api_definition("a", "good", "{}"));
    let watched = rig.synced();
    define(&watched, "a", "good", LONG).unwrap();
    for bad in ["deep", "words"] {
        let error = define(&watched, "a", bad, LONG).unwrap_err();
        assert!(matches!(error, ClusterError::UnusableDefinition { .. }), "{error}");
    }
    rig.api.apply(DEFINITIONS, json!({ "metadata": { "namespace": "a", "name": "odd", "labels": 8 } }));
    rig.api.apply(DEFINITIONS, api_definition("a", "better", "{}"));
    until("the event after it", || define(&watched, "a", "better", Duration::ZERO).is_ok());
}

#[test]
fn namespaces_are_watched_from_when_their_labels_are_wanted() {
    let rig = Rig::new();
    rig.api.apply(NAMESPACES, json!({ "metadata": { "name": "a", "labels": { "tier": "gold" } } }));
    let watched = Watched::start(Settings { namespace_labels: false, ..rig.settings() }).unwrap();
    until("the first lists", || watched.is_synced());
    assert_eq!(watched.namespace_labels("a"), None);
    watched.watch_namespace_labels();
    until("the labels", || watched.namespace_labels("a").is_some_and(|labels| labels["tier"] == "gold"));
    watched.watch_namespace_labels();
    rig.api.apply(NAMESPACES, json!({ "metadata": { "name": "a", "labels": { "tier": "iron" } } }));
    until("its news", || watched.namespace_labels("a").is_some_and(|labels| labels["tier"] == "iron"));
    assert_eq!(watched.health().watches.iter().filter(|watch| watch.kind == "namespaces").count(), 1);
}
