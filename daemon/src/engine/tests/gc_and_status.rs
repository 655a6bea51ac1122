//! GC and STATUS of all networks that a node's pods have (X3, X4).

use std::fs;

use fairlead_cni::Code;
use serde_json::{Value, json};

use super::pod_networks::{Cluster, NETWORKS, web};
use super::*;
use crate::delegate::script;

const OTHER_POD: &str = "/run/netns/other";

/// A node whose cluster network is a macvlan with an executed plugin after it; a definition has such a plugin, too.
struct Node {
    cluster: Cluster,
    dir: tempfile::TempDir,
}

fn list(name: &str, version: &str, plugins: &Value) -> String {
    json!({"cniVersion": version, "name": name, "plugins": plugins}).to_string()
}

impl Node {
    fn new() -> Node {
        let node = Node { cluster: Cluster::on_this_host(), dir: tempfile::tempdir().unwrap() };
        node.cluster.rig.kernel.add_namespace(OTHER_POD);
        node.plugin("");
        let macvlan = node.macvlan("10.1.0.0/24");
        node.conf("10-net.conflist", &list("net", "1.1.0", &json!([macvlan, {"type": "listens"}])));
        let radio = list("radio", "1.1.0", &json!([{"type": "listens"}]));
        node.cluster.api.put_definition("shop", "radio", &radio, None);
        let old = list("old", "1.0.0", &json!([{"type": "listens"}]));
        node.cluster.api.put_definition("shop", "old", &old, None);
        node.restarted()
    }

    fn restarted(mut self) -> Node {
        self.cluster.rig.restart();
        self
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn macvlan(&self, subnet: &str) -> Value {
        let ipam = json!({"type": "host-local", "subnet": subnet, "dataDir": self.path("addresses")});
        json!({"type": "macvlan", "master": "eth0", "ipam": ipam})
    }

    /// `also`: what the plugin does beside telling of its call.
    fn plugin(&self, also: &str) {
        let text = format!(
            r#"conf=$(cat)
[ "$CNI_COMMAND" = VERSION ] && echo '{{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}}' && exit
printf '{{"command":"%s","container":"%s","conf":%s}}\n' "$CNI_COMMAND" "$CNI_CONTAINERID" "$conf" | tr -d '\n' >> {0}/calls; echo >> {0}/calls
{also}
[ "$CNI_COMMAND" != ADD ] || echo '{{"cniVersion":"1.1.0","interfaces":[{{"name":"'$CNI_IFNAME'","sandbox":"/x"}}],"ips":[],"dns":{{}}}}'"#,
            self.dir.path().display()
        );
        script::write(&self.dir.path().join("listens"), &text);
    }

    fn conf(&self, file: &str, text: &str) {
        fs::write(self.cluster.rig.dir.path().join("root/etc/cni/net.d").join(file), text).unwrap();
    }

    fn call(&self, command: Command, container: &str, more: &Value) -> Result<String, CniError> {
        let mut own =
            json!({"cniVersion": "1.1.0", "name": "fairlead", "type": "fairlead", "clusterNetwork": "net"});
        own.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        let mut of = self.cluster.request(command);
        if container == "c2" {
            of.netns = OTHER_POD.to_owned();
        }
        let (config, container_id) = (own.to_string(), container.to_owned());
        let request = Request { path: self.dir.path().display().to_string(), config, container_id, ..of };
        // What a STATUS executes is killed soon after its arrival, and this machine may be slow: it arrives later.
        let arrives = Duration::from_secs(if command == Command::Status { 120 } else { 0 });
        self.cluster.rig.serve(request, Instant::now() + arrives, Duration::from_secs(60)).outcome
    }

    fn gc(&self, valid: &[&str]) -> Result<String, CniError> {
        let valid: Vec<Value> =
            valid.iter().map(|container| json!({"containerID": container, "ifname": "eth0"})).collect();
        self.call(Command::Gc, "", &json!({ "cni.dev/valid-attachments": valid }))
    }

    /// The runtime's own call of the macvlan of this network of the conf dir.
    fn call_directly(&self, command: Command, name: &str, subnet: &str, more: &Value) {
        let mut config = self.macvlan(subnet);
        for keys in [&json!({"cniVersion": "1.1.0", "name": name}), more] {
            config.as_object_mut().unwrap().extend(keys.as_object().cloned().unwrap());
        }
        let of = self.cluster.rig.request(command, "direct", &config.to_string());
        let request = Request { netns: OTHER_POD.to_owned(), ..of };
        self.cluster.rig.serve(request, Instant::now(), Duration::from_secs(60)).outcome.unwrap();
    }

    /// The container and the network of each attachment that nobody has begun to remove.
    fn attached(&self) -> Vec<String> {
        let all = self.cluster.rig.engine().core.store.all();
        let attached = all.iter().filter(|a| a.phase == crate::store::Phase::Attached);
        attached.map(|a| format!("{} {}", a.key.container, a.key.network)).collect()
    }

    /// What the plugin was called with for this command, by the name of the network.
    fn calls(&self, command: &str) -> Vec<(String, Value)> {
        let calls = fs::read_to_string(self.path("calls")).unwrap_or_default();
        let calls = calls.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let of = calls.filter(|call| call["command"] == command);
        of.map(|call| (call["conf"]["name"].as_str().unwrap().to_owned(), call)).collect()
    }
}

fn valid_of(call: &Value) -> Vec<String> {
    let valid = &call["conf"]["cni.dev/valid-attachments"];
    assert_eq!(valid, &call["conf"]["cni.dev/attachments"], "libcni sends the old key, too");
    let word = |one: &Value| format!("{} {}", one["containerID"], one["ifname"]).replace('"', "");
    let mut words: Vec<String> = valid.as_array().unwrap().iter().map(word).collect();
    words.sort();
    words.dedup();
    words
}

#[test]
fn x03_gc_reaches_every_plugin_of_the_cluster_network_and_of_what_pods_have_asked_for() {
    let node = Node::new();
    node.cluster.api.put_pod(&web(), &[(NETWORKS, "radio,old")]);
    node.call(Command::Add, "c1", &json!({})).unwrap();
    node.cluster.api.put_pod(&web(), &[(NETWORKS, "radio")]);
    node.call(Command::Add, "c2", &json!({})).unwrap();
    let orphan = node.dir.path().join("addresses/net/10.1.0.77");
    fs::write(&orphan, "gone\r\neth0").unwrap();
    // Of a pod that Multus has made and that still runs.
    let multus = node.cluster.rig.dir.path().join("multus");
    fs::create_dir(&multus).unwrap();
    let config = list("radio", "1.0.0", &json!([{"type": "listens"}]));
    let entry = fairlead_kube::multus::entry("shop/radio", &serde_json::from_str(&config).unwrap(), "net7");
    fs::write(multus.join("m1"), json!([entry]).to_string()).unwrap();
    let told = json!({
        "cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}], "cniDir": multus,
    });
    node.call(Command::Gc, "", &told).unwrap();
    let calls = node.calls("GC");
    let names: Vec<&str> = calls.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["net", "radio"], "a list of before 1.1.0 has no GC");
    assert_eq!(valid_of(&calls[0].1), ["c1 eth0"]);
    assert_eq!(valid_of(&calls[1].1), ["c1 eth0", "c1 net1", "m1 net7"]);
    assert!(!orphan.exists(), "the IPAM of a built-in plugin is collected");
    // What is silenced goes when its namespace has had its time.
    let all = node.cluster.rig.engine().core.store.all();
    let left: std::collections::BTreeSet<String> = all
        .iter()
        .filter(|a| a.phase == crate::store::Phase::Attached)
        .map(|a| a.key.container.clone())
        .collect();
    assert_eq!(left.into_iter().collect::<Vec<_>>(), ["c1"]);
    node.call(Command::Del, "c1", &json!({})).unwrap();
}

#[test]
fn x03_gc_leaves_a_definition_alone_whose_pods_are_gone_and_reaches_it_again_with_its_next_pod() {
    let node = Node::new();
    node.cluster.api.put_pod(&web(), &[(NETWORKS, "radio")]);
    let reached = |valid: &[&str]| {
        let before = node.calls("GC").len();
        node.gc(valid).unwrap();
        let calls = node.calls("GC");
        calls.into_iter().skip(before).map(|(name, call)| (name, valid_of(&call))).collect::<Vec<_>>()
    };
    let of = |name: &str, valid: &[&str]| (name.to_owned(), valid.iter().map(|v| (*v).to_owned()).collect());
    node.call(Command::Add, "c1", &json!({})).unwrap();
    node.call(Command::Del, "c1", &json!({})).unwrap();
    assert_eq!(node.calls("DEL").len(), 2, "each plugin has had its DEL");
    node.cluster.rig.reap();
    assert!(node.cluster.rig.engine().core.store.all().is_empty());
    assert_eq!(reached(&[]), [of("net", &[])]);
    node.call(Command::Add, "c2", &json!({})).unwrap();
    assert_eq!(reached(&["c2"]), [of("net", &["c2 eth0"]), of("radio", &["c2 eth0", "c2 net1"])]);
}

#[test]
fn x03_gc_of_a_network_of_the_conf_dir_itself_leaves_what_pods_have_of_it_by_ours() {
    let node = Node::new();
    node.conf("30-sidecar.conflist", &list("sidecar", "1.1.0", &json!([node.macvlan("10.2.0.0/24")])));
    let node = node.restarted();
    node.cluster.api.put_pod(&web(), &[]);
    node.call(Command::Add, "c1", &json!({"defaultNetworks": ["sidecar"]})).unwrap();
    let (of_pod, interfaces) = (node.attached(), node.cluster.pod().0);
    assert_eq!((of_pod.len(), interfaces.len()), (4, 2), "two lists with a macvlan each: {of_pod:?}");
    // libcni writes that there is none as `null`.
    let none = json!({"cni.dev/valid-attachments": null, "cni.dev/attachments": null});
    for (name, subnet) in [("net", "10.1.0.0/24"), ("sidecar", "10.2.0.0/24")] {
        node.call_directly(Command::Add, name, subnet, &json!({}));
        assert_eq!(node.attached().len(), 5);
        node.call_directly(Command::Gc, name, subnet, &none);
        assert_eq!(node.attached(), of_pod, "{name}: the runtime's own attachment goes, and nothing else");
        assert_eq!(node.cluster.pod().0, interfaces, "{name}");
    }
    assert_eq!(files(&node.dir.path().join("addresses")), ["10.1.0.2", "10.2.0.2"]);
    // What has lost its pod goes with the whole, by the GC of our own network.
    node.gc(&[]).unwrap();
    assert_eq!(node.attached(), Vec::<String>::new());
}

#[test]
fn x03_what_a_gc_takes_down_is_told_of_its_container_and_its_pod() {
    let node = Node::new();
    node.cluster.api.put_pod(&web(), &[]);
    node.call(Command::Add, "c1", &json!({})).unwrap();
    let collected = |named: &str| Service::describe(node.cluster.rig.engine(), named)["collected"].clone();
    assert_eq!(collected("c1"), json!([]));
    node.gc(&[]).unwrap();
    for named in ["c1", "shop/web-0"] {
        let rows = collected(named);
        let of = |key: &str| rows[0][key].as_str().unwrap_or_default().to_owned();
        assert_eq!((of("container"), of("ifname")), ("c1".to_owned(), "eth0".to_owned()), "{rows}");
    }
    assert_eq!(collected("c2"), json!([]));
    assert_eq!(Service::describe(node.cluster.rig.engine(), "c1")["why"], Value::Null);
}

#[test]
fn x03_gc_goes_past_errors_and_without_a_list_of_what_is_valid_it_collects_nothing() {
    let node = Node::new();
    node.cluster.api.put_pod(&web(), &[(NETWORKS, "radio")]);
    node.call(Command::Add, "c1", &json!({})).unwrap();
    node.call(Command::Gc, "", &json!({})).unwrap();
    assert!(node.calls("GC").is_empty());
    node.plugin(r#"[ "$CNI_COMMAND" != GC ] || { echo '{"cniVersion":"1.1.0","code":105,"msg":"store locked"}'; exit 1; }"#);
    let told = node.gc(&["c1"]).unwrap_err();
    assert_eq!(node.calls("GC").len(), 2, "one network's error keeps no other from being collected");
    for words in ["network \"net\": ", "namespace shop, network \"radio\": ", "store locked"] {
        assert!(told.to_string().contains(words), "{told}");
    }
    assert!(node.cluster.rig.engine().core.store.all().len() > 1, "what is valid stays");
}

#[test]
fn x03_an_add_that_comes_while_plugins_collect_begins_when_they_have_ended() {
    let node = Node::new();
    node.cluster.api.put_pod(&web(), &[]);
    let waits = format!(
        r#"[ "$CNI_COMMAND" != GC ] || {{ touch {0}/begun; while [ ! -e {0}/go ]; do sleep 0.02; done; echo '{{"command":"GC ended","conf":{{"name":"net"}}}}' >> {0}/calls; }}"#,
        node.dir.path().display()
    );
    node.plugin(&waits);
    std::thread::scope(|scope| {
        let collecting = scope.spawn(|| node.gc(&[]));
        let since = Instant::now();
        while !node.dir.path().join("begun").exists() {
            assert!(since.elapsed() < Duration::from_secs(120), "no plugin is called");
            std::thread::sleep(Duration::from_millis(10));
        }
        let adding = scope.spawn(|| node.call(Command::Add, "c9", &json!({})));
        std::thread::sleep(Duration::from_millis(500));
        fs::write(node.path("go"), "").unwrap();
        collecting.join().unwrap().unwrap();
        adding.join().unwrap().unwrap();
    });
    let calls = fs::read_to_string(node.path("calls")).unwrap();
    assert!(calls.find("GC ended").unwrap() < calls.find("\"ADD\"").unwrap(), "{calls}");
}

#[test]
fn x04_status_asks_the_cluster_network_and_what_every_pod_gets() {
    let node = Node::new();
    node.conf("30-sidecar.conflist", &list("sidecar", "1.1.0", &json!([{"type": "listens"}])));
    let tap = list("tap", "1.1.0", &json!([{"type": "listens"}]));
    node.cluster.api.put_definition("kube-system", "tap", &tap, None);
    let node = node.restarted();
    let every_pod = |names: &[&str]| json!({ "defaultNetworks": names });
    node.call(Command::Status, "", &every_pod(&["sidecar", "tap"])).unwrap();
    let names: Vec<String> = node.calls("STATUS").into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["net", "sidecar", "tap"]);
    let absent = node.call(Command::Status, "", &every_pod(&["sidecar", "gone"])).unwrap_err();
    assert!(
        absent.msg.contains("defaultNetworks \"gone\"") && absent.msg.contains("kube-system/gone"),
        "{absent}"
    );
    node.plugin(
        r#"case "$CNI_COMMAND$conf" in STATUS*sidecar*) echo '{"cniVersion":"1.1.0","code":50,"msg":"no lease server"}'; exit 1;; esac"#,
    );
    let told = node.call(Command::Status, "", &every_pod(&["sidecar"])).unwrap_err();
    assert_eq!(told.code, Code::NotAvailable, "{told}");
    assert!(
        told.msg.contains("defaultNetworks \"sidecar\"") && told.msg.contains("no lease server"),
        "{told}"
    );
    node.call(Command::Status, "", &json!({})).unwrap();
}

#[test]
fn x04_status_is_50_where_the_record_of_what_a_list_executes_could_not_be_written() {
    let node = Node::new();
    node.call(Command::Status, "", &json!({})).unwrap();
    let state = node.cluster.rig.dir.path().join("state");
    fs::rename(state.join("attachments"), state.join("away")).unwrap();
    let told = node.call(Command::Status, "", &json!({})).unwrap_err();
    assert_eq!(told.code, Code::NotAvailable, "{told}");
    assert!(told.msg.contains("the records of executed plugins in"), "{told}");
    node.cluster.api.put_pod(&web(), &[]);
    let refused = node.call(Command::Add, "c1", &json!({})).unwrap_err();
    assert!(refused.code == Code::TryAgain && refused.msg.contains("cannot be written"), "{refused}");
}

#[test]
fn x03_an_ipam_plugin_that_is_executed_is_told_at_gc_of_what_came_after_the_runtimes_list() {
    let rig = Rig::on_this_host();
    let dir = tempfile::tempdir().unwrap();
    let calls = dir.path().join("calls");
    let text = format!(
        r#"conf=$(cat)
[ "$CNI_COMMAND" = GC ] && printf '%s\n' "$conf" >> {}
[ "$CNI_COMMAND" != ADD ] || echo '{{"cniVersion":"1.1.0","ips":[{{"address":"10.9.0.2/24"}}],"dns":{{}}}}'"#,
        calls.display()
    );
    script::write(&dir.path().join("leases"), &text);
    let config = |more: Value| {
        let mut all = json!({"cniVersion": "1.1.0", "name": "net", "type": "macvlan", "master": "eth0",
            "ipam": {"type": "leases"}});
        all.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        all.to_string()
    };
    let path = dir.path().display().to_string();
    let add = Request { path: path.clone(), ..rig.request(Command::Add, "c1", &config(json!({}))) };
    let arrived = Instant::now();
    rig.serve(add, arrived, Duration::from_secs(60)).outcome.unwrap();
    let listed = json!({"cni.dev/valid-attachments": [{"containerID": "c0", "ifname": "net1"}]});
    let gc = Request { path, ..rig.request(Command::Gc, "", &config(listed)) };
    rig.serve(gc, arrived, Duration::from_secs(60)).outcome.unwrap();
    assert_eq!(rig.engine().core.store.all().len(), 1);
    let told: Value = serde_json::from_str(&fs::read_to_string(calls).unwrap()).unwrap();
    let valid = json!([{"containerID": "c0", "ifname": "net1"}, {"containerID": "c1", "ifname": "net1"}]);
    assert_eq!((&told["cni.dev/valid-attachments"], &told["cni.dev/attachments"]), (&valid, &valid));
}
