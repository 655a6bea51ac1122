//! network-status, told to the cluster once the answer has left (X11, K23), and the Event of a fallback beside it (X19).

use fairlead_kube::PodRef;
use serde_json::{Value, json};

use super::fallback::{MACVLAN, SRIOV, config};
use super::pod_networks::{ARGS, Cluster, NETWORKS, definition, web};
use super::*;
use crate::delegate::script;
use crate::store::Attachment;

#[test]
fn what_a_pod_has_got_is_reported_once_it_is_answered() {
    let cluster = Cluster::asking("radio@up");
    cluster.add().unwrap();
    let (pod, status) = cluster.api.reports().pop().unwrap();
    assert_eq!(pod, web());
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status[0]["name"], "net");
    assert_eq!((&status[0]["interface"], &status[0]["default"]), (&json!("eth0"), &json!(true)));
    assert_eq!((&status[1]["name"], &status[1]["interface"]), (&json!("shop/radio"), &json!("up")));
    assert_eq!(status[1]["ips"], json!(["10.9.0.2"]));
}

#[test]
fn x11_network_status_is_told_only_when_the_answer_has_left() {
    let cluster = Cluster::asking("radio");
    let call = cluster.rig.prepare(cluster.request(Command::Add));
    let now = Instant::now();
    let deadline = now + Duration::from_secs(5);
    let reply = call.serve(Waiting { arrived: now, deadline, gone: CallerGone::default() });
    reply.outcome.unwrap();
    assert!(cluster.api.reports().is_empty(), "the caller still waits");
    call.answered(true);
    assert_eq!(cluster.api.reports().len(), 1);
}

#[test]
fn x11_a_daemon_killed_before_it_told_network_status_tells_it_after_the_restart_and_only_then() {
    let mut cluster = Cluster::asking("radio");
    cluster.api.put_pod(&of_name("web-1"), &[(NETWORKS, "oam")]);
    let add = |cluster: &Cluster, container: &str, name: &str, told: bool| {
        let args = ARGS.replace("web-0", name);
        let request = Request { container_id: container.into(), args, ..cluster.request(Command::Add) };
        let call = cluster.rig.prepare(Request { netns: format!("/run/netns/{container}"), ..request });
        let deadline = Instant::now() + Duration::from_secs(5);
        cluster.rig.kernel.add_namespace(format!("/run/netns/{container}"));
        let waiting = Waiting { arrived: Instant::now(), deadline, gone: CallerGone::default() };
        call.serve(waiting).outcome.unwrap();
        if told {
            call.answered(true);
        }
    };
    add(&cluster, "c1", "web-0", true);
    let told = cluster.api.reports();
    add(&cluster, "c2", "web-1", false);
    cluster.rig.restart();
    cluster.rig.engine().report_again(Instant::now());
    let again = cluster.api.reports().split_off(told.len());
    assert_eq!(again.iter().map(|(pod, _)| pod.name.as_str()).collect::<Vec<_>>(), ["web-1"]);
    let status: Value = serde_json::from_str(&again[0].1).unwrap();
    assert_eq!(status[1]["name"], "shop/oam", "{status}");
    assert_eq!((&status[1]["interface"], &status[0]["default"]), (&json!("net1"), &json!(true)));
}

/// The name and the interface of each network, as network-status told it last.
fn named(cluster: &Cluster) -> Vec<String> {
    let status = last_status(cluster);
    let word = |entry: &Value, key: &str| entry[key].as_str().unwrap().to_owned();
    let entries = status.as_array().unwrap().iter();
    entries.map(|entry| format!("{} {}", word(entry, "name"), word(entry, "interface"))).collect()
}

#[test]
fn x11_after_a_restart_network_status_goes_by_what_the_pod_was_annotated_with_when_it_was_attached() {
    type Annotations = &'static [(&'static str, &'static str)];
    let cases: [(Annotations, Annotations, &[&str]); 2] = [
        (
            &[(NETWORKS, "radio,oam")],
            &[(NETWORKS, "oam,radio")],
            &["net eth0", "shop/radio net1", "shop/oam net2"],
        ),
        (&[], &[("v1.multus-cni.io/default-network", "other")], &["net eth0"]),
    ];
    for (before, after, names) in cases {
        let mut cluster = Cluster::new();
        cluster.api.put_pod(&web(), before);
        let add = cluster.request(Command::Add);
        cluster.rig.serve(add, Instant::now(), Duration::from_secs(30)).outcome.unwrap();
        cluster.api.put_pod(&web(), after);
        cluster.rig.restart();
        cluster.rig.engine().report_again(Instant::now());
        assert_eq!(named(&cluster), names, "{before:?}");
    }
}

#[test]
fn x11_for_a_record_of_a_release_before_the_watch_says_what_the_pod_asks_for() {
    let mut cluster = Cluster::asking("radio");
    let add = cluster.request(Command::Add);
    cluster.rig.serve(add, Instant::now(), Duration::from_secs(30)).outcome.unwrap();
    let store = &cluster.rig.engine().core.store;
    let first = store.all().into_iter().find(|a| a.annotations.is_some()).unwrap();
    store.begin(Attachment { annotations: None, ..Attachment::clone(&first) }).unwrap();
    cluster.rig.restart();
    cluster.rig.engine().report_again(Instant::now());
    assert_eq!(named(&cluster), ["net eth0", "shop/radio net1"]);
}

fn of_name(name: &str) -> PodRef {
    PodRef { name: name.into(), ..web() }
}

/// The MTU of each interface, as network-status tells it.
fn mtus(cluster: &Cluster) -> Vec<Value> {
    cluster.add().unwrap();
    let (_, status) = cluster.api.reports().pop().unwrap();
    let status: Value = serde_json::from_str(&status).unwrap();
    status.as_array().unwrap().iter().map(|entry| entry["mtu"].clone()).collect()
}

#[test]
fn k23_the_mtu_of_built_in_types_is_told_although_their_results_cannot() {
    let cluster = Cluster::asking("radio, oam");
    let smaller = definition("oam", "10.8.0.0/24").replace(r#""master""#, r#""mtu":1400,"master""#);
    cluster.api.put_definition("shop", "oam", &smaller, None);
    // The first is that of a list, the second the master's own.
    assert_eq!(mtus(&cluster), [1500, 1500, 1400].map(Value::from), "results of 1.0.0 have no mtu");
}

/// What network-status was told last.
fn last_status(cluster: &Cluster) -> Value {
    let (_, status) = cluster.api.reports().pop().unwrap();
    serde_json::from_str(&status).unwrap()
}

/// Why `SRIOV` is passed over for a pod that was given no VF, and what an Event says of that behind the network's name.
const NO_VF: &str = "sriov names no device";
const FALLBACK: &str = "path macvlan is taken; path sriov was passed over: sriov names no device";

#[test]
fn x19_the_path_that_was_taken_and_why_no_earlier_one_is_in_network_status_and_an_event() {
    let cluster = Cluster::asking("radio, oam, mgmt");
    let radio = config(&[SRIOV, MACVLAN], "");
    cluster.api.put_definition("shop", "radio", &radio, None);
    let mgmt = radio.replace("radio", "mgmt").replace("10.9.", "10.7.");
    cluster.api.put_definition("shop", "mgmt", &mgmt, None);
    let call = cluster.rig.prepare(cluster.request(Command::Add));
    let now = Instant::now();
    let deadline = now + Duration::from_secs(5);
    let reply = call.serve(Waiting { arrived: now, deadline, gone: CallerGone::default() });
    reply.outcome.unwrap();
    assert!(cluster.api.warnings().is_empty(), "the caller still waits");
    call.answered(true);
    let status = last_status(&cluster);
    let told = json!({"path": "macvlan", "passedOver": [{"type": "sriov", "why": NO_VF}]});
    let keys = status.as_array().unwrap().iter().map(|entry| entry.get("fairlead"));
    assert_eq!(keys.collect::<Vec<_>>(), [None, Some(&told), None, Some(&told)], "{status}");
    let (radio, mgmt) = ("network shop/radio, interface \"net1\"", "network shop/mgmt, interface \"net3\"");
    let words = format!("{radio}: {FALLBACK}. {mgmt}: {FALLBACK}");
    assert_eq!(cluster.api.warnings(), [(web(), words)], "one for the whole ADD");
}

#[test]
fn x19_a_path_that_is_the_first_one_is_in_network_status_and_no_event() {
    let mut cluster = Cluster::asking("radio");
    cluster.api.put_definition("shop", "radio", &config(&[MACVLAN, SRIOV], ""), None);
    cluster.add().unwrap();
    assert_eq!(last_status(&cluster)[1]["fairlead"], json!({"path": "macvlan"}));
    cluster.rig.restart();
    cluster.rig.engine().report_again(Instant::now());
    assert_eq!(cluster.api.reports().len(), 1, "the record tells the same");
    assert!(cluster.api.warnings().is_empty(), "{:?}", cluster.api.warnings());
}

#[test]
fn x19_the_fallback_of_an_add_that_another_runtime_makes_is_an_event_of_its_pod() {
    let cluster = Cluster::new();
    let request = cluster.rig.request(Command::Add, "c1", &config(&[SRIOV, MACVLAN], ""));
    cluster.rig.call(Request { args: ARGS.into(), ..request }).unwrap();
    let words = format!("network radio, interface \"net1\": {FALLBACK}");
    assert_eq!(cluster.api.warnings(), [(web(), words)]);
    assert!(cluster.api.reports().is_empty(), "network-status is that runtime's to tell");
    // Nobody's pod has no Event.
    let nobodys = Cluster::new();
    nobodys.rig.add(&config(&[SRIOV, MACVLAN], "")).unwrap();
    assert!(nobodys.api.warnings().is_empty(), "{:?}", nobodys.api.warnings());
}

#[test]
fn a_pod_whose_network_status_waits_for_long_is_named_where_whereabouts_would_free_its_addresses() {
    let mut cluster = Cluster::on_this_host();
    let conf_dir = cluster.rig.dir.path().join("root/etc/cni/net.d");
    for (file, name, ipam) in [
        ("10-net.conflist", "net", json!({})),
        ("20-leased.conflist", "leased", json!({"type": "whereabouts"})),
    ] {
        let plugin = json!({"type": "macvlan", "master": "eth0", "ipam": ipam});
        let list = json!({"cniVersion": "1.0.0", "name": name, "plugins": [plugin]});
        std::fs::write(conf_dir.join(file), list.to_string()).unwrap();
    }
    let plugins = tempfile::tempdir().unwrap();
    let gives = r#"cat >/dev/null
[ $CNI_COMMAND = DEL ] || echo '{"cniVersion":"1.0.0","ips":[{"address":"10.66.0.2/24"}]}'"#;
    script::write(&plugins.path().join("whereabouts"), gives);
    cluster.rig.restart();
    cluster.api.put_definition("shop", "leased", "", None);
    let call = |command| {
        cluster.rig.call(Request { path: plugins.path().display().to_string(), ..cluster.request(command) })
    };
    let named = || cluster.rig.engine().table("late-network-status").unwrap();
    cluster.api.put_pod(&web(), &[(NETWORKS, "leased")]);
    call(Command::Add).unwrap();
    cluster.api.leave_unwritten(&of_name("web-1"));
    assert_eq!(named(), json!([]), "it is written in time, and the other pod has no such address");
    cluster.api.leave_unwritten(&web());
    assert_eq!(named(), json!([web().to_string()]));
    call(Command::Del).unwrap();
    cluster.rig.reap();
    assert_eq!(named(), json!([]), "its addresses went with it");
}
