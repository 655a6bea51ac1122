//! The networks of a pod: its default one and those that it asks for, all of them or none.

use fairlead_host::{NetKernel, Op};
use fairlead_kube::PodRef;
use fairlead_kube::fake_cluster::FakeCluster;
use fairlead_kube::npwg::DEFAULT_NETWORK;
use nix::errno::Errno;
use serde_json::{Value, json};

use super::*;
use crate::delegate::script;

const OWN: &str = r#"{"cniVersion":"1.1.0","name":"cluster","type":"fairlead","clusterNetwork":"net"}"#;
pub(super) const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_UID=u-1";
pub(super) const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

pub(super) fn web() -> PodRef {
    PodRef { namespace: "shop".into(), name: "web-0".into(), uid: Some("u-1".into()) }
}

/// A macvlan with addresses of its own and a default route.
pub(super) fn definition(name: &str, subnet: &str) -> String {
    format!(
        r#"{{"cniVersion":"1.0.0","name":"{name}","type":"macvlan","master":"eth0","ipam":{{"type":"host-local","subnet":"{subnet}","routes":[{{"dst":"0.0.0.0/0"}},{{"dst":"10.99.0.0/16"}}]}}}}"#
    )
}

pub(super) struct Cluster {
    pub(super) rig: Rig,
    pub(super) api: Arc<FakeCluster>,
}

impl Cluster {
    /// A node whose default network is a macvlan, and a cluster with the definitions `radio` and `oam`.
    pub(super) fn new() -> Cluster {
        Cluster::on(Rig::new())
    }

    /// The same where programs can be executed: they run in the mounts of this machine's first process.
    pub(super) fn on_this_host() -> Cluster {
        Cluster::on(Rig::on_this_host())
    }

    fn on(mut rig: Rig) -> Cluster {
        let file = rig.dir.path().join("root/etc/cni/net.d/10-net.conflist");
        let plugin = macvlan().replace(r#""cniVersion":"1.0.0","name":"net","#, "");
        std::fs::write(file, format!(r#"{{"cniVersion":"1.0.0","name":"net","plugins":[{plugin}]}}"#))
            .unwrap();
        let api = Arc::new(FakeCluster::default());
        api.put_definition("shop", "radio", &definition("radio", "10.9.0.0/24"), None);
        api.put_definition("shop", "oam", &definition("oam", "10.8.0.0/24"), None);
        rig.cluster = Some(Arc::clone(&api));
        rig.call_settings.pod_wait = Duration::from_millis(200);
        rig.restart();
        Cluster { rig, api }
    }

    /// The same with a pod that asks for these networks.
    pub(super) fn asking(networks: &str) -> Cluster {
        let cluster = Cluster::new();
        cluster.api.put_pod(&web(), &[(NETWORKS, networks)]);
        cluster
    }

    pub(super) fn request(&self, command: Command) -> Request {
        Request { args: ARGS.into(), ifname: "eth0".into(), ..self.rig.request(command, "c1", OWN) }
    }

    pub(super) fn add(&self) -> Result<String, CniError> {
        self.rig.call(self.request(Command::Add))
    }

    pub(super) fn del(&self) -> Result<String, CniError> {
        self.rig.call(self.request(Command::Del))
    }

    /// The interfaces of the pod, without `lo`, and the interface of each default route.
    pub(super) fn pod(&self) -> (Vec<String>, Vec<String>) {
        let mut pod = self.rig.kernel.pod(Path::new(POD)).unwrap();
        let links = pod.links().unwrap();
        let name = |index: u32| links.iter().find(|link| link.index == index).unwrap().name.to_string();
        let mut names: Vec<String> = links.iter().map(|link| name(link.index)).collect();
        names.retain(|name| name != "lo");
        names.sort();
        let mut defaults: Vec<String> = pod
            .routes()
            .unwrap()
            .into_iter()
            .filter(|route| route.dst.prefix_len() == 0)
            .map(|route| format!("{} {}", route.dst, name(route.index)))
            .collect();
        defaults.sort();
        (names, defaults)
    }
}

/// How many calls of the kernel a call makes.
pub(super) fn calls_of(cluster: &Cluster, call: impl Fn(&Cluster) -> Result<String, CniError>) -> usize {
    cluster.rig.kernel.forget_calls();
    call(cluster).unwrap();
    cluster.rig.kernel.calls().len()
}

#[test]
fn k23_a_pod_has_its_default_network_and_those_that_it_asks_for_and_one_default_route() {
    let cluster = Cluster::asking("radio, oam@mgmt");
    let before = cluster.rig.state();
    let answer = cluster.add().unwrap();
    assert!(answer.contains("10.1.0.2/24") && !answer.contains("10.9."), "the default network's: {answer}");
    let (interfaces, defaults) = cluster.pod();
    assert_eq!(interfaces, ["eth0", "mgmt", "net1"]);
    assert_eq!(defaults, ["0.0.0.0/0 eth0", "::/0 eth0"]);
    cluster.del().unwrap();
    cluster.rig.reap();
    assert_eq!(cluster.rig.state(), before);
}

#[test]
fn the_operator_has_a_table_of_what_pods_can_ask_for() {
    let cluster = Cluster::new();
    let table = cluster.rig.engine().table("definitions").unwrap();
    let rows = table.as_array().unwrap();
    let of = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
    assert_eq!(rows.len(), 2, "{table}");
    assert_eq!((&of("radio")["namespace"], &of("radio")["unusable"]), (&json!("shop"), &Value::Null));
    assert_eq!(of("radio")["config"], definition("radio", "10.9.0.0/24"));
    assert!(of("oam")["config"].is_string());
    assert_eq!(Rig::new().engine().table("definitions"), Some(json!([])), "in no cluster");
}

#[test]
fn x14_what_of_an_annotation_has_no_meaning_is_told_of_the_pod() {
    let cluster = Cluster::asking(r#"[{"name":"radio","macc":"02:00:00:00:00:01"}]"#);
    cluster.add().unwrap();
    let warnings = cluster.api.warnings();
    assert!(warnings.iter().any(|(pod, words)| *pod == web() && words.contains("macc")), "{warnings:?}");
}

#[test]
fn m14_what_the_pod_asks_for_reaches_the_plugin_or_fails_the_pod() {
    let cluster = Cluster::asking(
        r#"[{"name":"radio","ips":["10.9.0.77/24"],"mac":"02:00:00:00:00:55","cni-args":{"x":"y"}}]"#,
    );
    cluster.add().unwrap();
    let (_, status) = cluster.api.reports().pop().unwrap();
    assert!(status.contains("10.9.0.77") && status.contains("02:00:00:00:00:55"), "{status}");
    cluster.del().unwrap();
    cluster.api.put_pod(
        &web(),
        &[(NETWORKS, r#"[{"name":"radio","portMappings":[{"hostPort":8080,"containerPort":80}]}]"#)],
    );
    let told = cluster.add().unwrap_err();
    assert!(told.to_string().contains("portMappings") && told.code.number() == 7, "{told}");
}

#[test]
fn m14_a_pod_takes_no_port_of_the_node_itself_but_one_that_the_policy_gives_its_namespace() {
    let mut cluster = Cluster::new();
    let declaring = definition("radio", "10.9.0.0/24");
    let declaring = declaring.replacen('{', r#"{"capabilities":{"portMappings":true},"#, 1);
    cluster.api.put_definition("shop", "radio", &declaring, None);
    let of_port = |port: u16| {
        format!(r#"{{"name":"radio","portMappings":[{{"hostPort":{port},"containerPort":80}}]}}"#)
    };
    for asks in [(NETWORKS, format!("[{}]", of_port(10250))), (DEFAULT_NETWORK, format!("[{}]", of_port(22)))]
    {
        cluster.api.put_pod(&web(), &[(asks.0, &asks.1)]);
        let before = cluster.rig.state();
        let refused = cluster.add().unwrap_err();
        assert!(refused.msg.contains("of the node") && refused.code.number() == 7, "{refused}");
        assert!(refused.msg.contains("pod shop/web-0"), "{refused}");
        assert_eq!(cluster.rig.state(), before, "it is refused before anything is made");
    }
    cluster.api.put_pod(&web(), &[(NETWORKS, &format!("[{}]", of_port(22)))]);
    let policy = r#"{rules: [{namespaces: [shop], hostPorts: [22]}]}"#;
    cluster.rig.call_settings.policy = Some(Arc::new(serde_saphyr::from_str(policy).unwrap()));
    cluster.rig.restart();
    cluster.add().unwrap();
}

#[test]
fn m08_x05_an_add_that_is_refused_at_any_call_leaves_the_host_as_before() {
    let unrefused = Cluster::asking("radio,oam");
    let calls = calls_of(&unrefused, Cluster::add);
    let whole = unrefused.rig.pod_has();
    for n in 0..calls {
        let cluster = Cluster::asking("radio,oam");
        let before = cluster.rig.state();
        cluster.rig.kernel.forget_calls();
        cluster.rig.kernel.fail_at(n, Errno::ENOBUFS);
        let answer = cluster.add();
        cluster.rig.kernel.heal();
        if answer.is_ok() {
            assert_eq!(cluster.rig.pod_has(), whole, "call {n} of {calls}");
            cluster.del().unwrap();
        }
        cluster.rig.reap();
        assert_eq!(cluster.rig.state(), before, "call {n} of {calls}: {answer:?}");
    }
}

#[test]
fn x05_a_del_that_is_refused_at_any_call_is_done_by_the_next_one() {
    let attached = Cluster::asking("radio,oam");
    attached.add().unwrap();
    let calls = calls_of(&attached, Cluster::del);
    for n in 0..calls {
        let cluster = Cluster::asking("radio,oam");
        let before = cluster.rig.state();
        cluster.add().unwrap();
        cluster.rig.kernel.forget_calls();
        cluster.rig.kernel.fail_at(n, Errno::ENOBUFS);
        let first = cluster.del();
        cluster.rig.kernel.heal();
        cluster.del().unwrap_or_else(|e| panic!("call {n}: second DEL: {e}"));
        cluster.rig.reap();
        assert_eq!(cluster.rig.state(), before, "call {n} of {calls}: {first:?}");
    }
}

#[test]
fn k14_an_add_that_dies_with_its_undo_is_undone_after_the_restart() {
    let calls = calls_of(&Cluster::asking("radio,oam"), Cluster::add);
    for n in 0..calls {
        let mut cluster = Cluster::asking("radio,oam");
        let before = cluster.rig.state();
        cluster.rig.kernel.forget_calls();
        cluster.rig.kernel.fail_from(n, Errno::ENOBUFS);
        let answer = cluster.add();
        cluster.rig.kernel.heal();
        cluster.rig.restart();
        cluster.rig.reap();
        cluster.rig.reap();
        if answer.is_err() {
            assert_eq!(cluster.rig.state(), before, "call {n} of {calls}: {answer:?}");
        }
        let again = cluster.add();
        assert_eq!(again.is_ok(), answer.is_err(), "call {n}: the retried ADD: {again:?}");
    }
}

#[test]
fn m08_one_network_that_cannot_be_had_undoes_all_and_is_named() {
    let cluster = Cluster::new();
    let before = cluster.rig.state();
    // The one is not there, which is seen before anything is made, and the other cannot be attached.
    let undeclared =
        r#"[{"name":"radio"},{"name":"oam","portMappings":[{"hostPort":8080,"containerPort":80}]}]"#;
    for (asked, named, makes_some) in
        [("radio,missing", "shop/missing", false), (undeclared, "shop/oam", true)]
    {
        cluster.api.put_pod(&web(), &[(NETWORKS, asked)]);
        cluster.rig.kernel.forget_calls();
        let told = cluster.add().unwrap_err();
        assert_eq!(!cluster.rig.ops().is_empty(), makes_some, "{named}");
        cluster.rig.reap();
        assert_eq!(cluster.rig.state(), before);
        for words in ["pod shop/web-0", named, "\"net2\""] {
            assert!(told.msg.contains(words), "{told}");
        }
        let (pod, event) = cluster.api.warnings().pop().unwrap();
        assert_eq!(pod, web());
        assert!(event.contains(named), "{event}");
    }
}

#[test]
fn an_add_that_is_made_again_gets_its_answer_although_a_definition_is_gone() {
    let mut cluster = Cluster::asking("radio,oam");
    cluster.rig.call_settings.pod_wait = Duration::from_millis(100);
    cluster.rig.restart();
    let add = |cluster: &Cluster| {
        let request = cluster.request(Command::Add);
        cluster.rig.serve(request, Instant::now(), Duration::from_secs(30)).outcome
    };
    let unconfirmed = add(&cluster).unwrap();
    cluster.api.delete_definition("shop", "oam");
    assert_eq!(add(&cluster).unwrap(), unconfirmed);
    assert!(cluster.api.warnings().is_empty(), "{:?}", cluster.api.warnings());
}

#[test]
fn m09_del_takes_down_all_networks_although_pod_and_definitions_are_gone() {
    let mut cluster = Cluster::asking("radio,oam");
    let before = cluster.rig.state();
    cluster.add().unwrap();
    cluster.api.delete_pod(&web());
    cluster.api.delete_definition("shop", "radio");
    cluster.rig.cluster = None;
    cluster.rig.restart();
    cluster.del().unwrap();
    cluster.rig.reap();
    assert_eq!(cluster.rig.state(), before);
}

#[test]
fn annotations_that_come_with_the_call_need_no_watch() {
    let cluster = Cluster::new();
    let own = json!({
        "cniVersion": "1.1.0", "name": "cluster", "type": "fairlead", "clusterNetwork": "net",
        "runtimeConfig": {"io.kubernetes.cri.pod-annotations": {NETWORKS: "radio"}},
    });
    let request = Request { config: own.to_string(), ..cluster.request(Command::Add) };
    cluster.rig.call(request).unwrap();
    assert_eq!(cluster.pod().0, ["eth0", "net1"]);
}

/// Our configuration with the annotations that containerd hands over.
fn with_annotations(annotations: &Value) -> String {
    json!({
        "cniVersion": "1.1.0", "name": "cluster", "type": "fairlead", "clusterNetwork": "net",
        "runtimeConfig": {"io.kubernetes.cri.pod-annotations": annotations},
    })
    .to_string()
}

#[test]
fn of_the_annotations_that_come_with_the_call_those_of_networks_go_on_record() {
    let mut cluster = Cluster::new();
    let foreign = "x".repeat(240_000);
    let status = "k8s.v1.cni.cncf.io/network-status";
    let config = with_annotations(&json!({NETWORKS: "radio", "example.com/notes": foreign, status: foreign}));
    let request = || Request { config: config.clone(), ..cluster.request(Command::Add) };
    let unconfirmed = cluster.rig.serve(request(), Instant::now(), Duration::from_secs(30)).outcome.unwrap();
    for attachment in cluster.rig.engine().core.store.all() {
        assert!(attachment.config.len() < 2_000, "{} bytes", attachment.config.len());
    }
    let journal = cluster.rig.dir.path().join("run/attachments.journal");
    let written = std::fs::read(&journal).unwrap();
    assert!(!String::from_utf8_lossy(&written).contains(&"x".repeat(100)));
    let again = cluster.rig.serve(request(), Instant::now(), Duration::from_secs(30)).outcome.unwrap();
    assert_eq!(again, unconfirmed, "the same call gets the same answer");
    // After a restart network-status still goes by what the pod asked for.
    cluster.rig.restart();
    cluster.rig.engine().report_again(Instant::now());
    let (_, status) = cluster.api.reports().pop().unwrap();
    assert!(status.contains("shop/radio"), "{status}");
}

#[test]
fn k12_the_sandbox_of_another_pod_of_the_same_name_is_refused_whoever_tells_its_annotations() {
    let mut cluster = Cluster::new();
    cluster.rig.call_settings.pod_wait = Duration::from_secs(10);
    cluster.rig.restart();
    let newer = PodRef { uid: Some("u-2".into()), ..web() };
    // As after a restart of the daemon: nobody has seen the end of the pod that is asked for.
    cluster.api.put_pod(&newer, &[]);
    let with_call = Request { config: with_annotations(&json!({})), ..cluster.request(Command::Add) };
    for request in [cluster.request(Command::Add), with_call] {
        let told = cluster.rig.serve(request, Instant::now(), Duration::from_secs(60)).outcome.unwrap_err();
        assert_eq!(told.code.number(), 3, "{told}");
        assert!(told.msg.contains("u-2"), "{told}");
    }
}

#[test]
fn k12_a_pod_that_the_watch_will_see_in_a_moment_is_not_taken_for_the_one_before_it() {
    let cluster = Cluster::new();
    cluster.api.put_pod(&PodRef { uid: Some("u-0".into()), ..web() }, &[]);
    let request =
        Request { config: with_annotations(&json!({NETWORKS: "radio"})), ..cluster.request(Command::Add) };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            cluster.api.put_pod(&web(), &[]);
        });
        cluster.rig.serve(request, Instant::now(), Duration::from_secs(60)).outcome.unwrap();
    });
    assert_eq!(cluster.pod().0, ["eth0", "net1"]);
}

#[test]
fn k07_an_add_waits_for_its_pod_and_goes_on_when_it_is_seen() {
    let mut cluster = Cluster::new();
    let told = cluster.add().unwrap_err();
    assert_eq!(told.code.number(), 11, "{told}");
    assert_eq!(cluster.api.warnings().len(), 1);
    cluster.rig.call_settings.pod_wait = Duration::from_secs(5);
    cluster.rig.restart();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            cluster.api.put_pod(&web(), &[(NETWORKS, "radio")]);
        });
        cluster.add().unwrap();
    });
    assert_eq!(cluster.pod().0, ["eth0", "net1"]);
}

#[test]
fn k11_a_pod_that_is_deleted_while_its_add_waits_ends_the_wait() {
    let mut cluster = Cluster::new();
    cluster.rig.call_settings.pod_wait = Duration::from_secs(60);
    cluster.rig.restart();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            cluster.api.delete_pod(&web());
        });
        assert_eq!(cluster.add().unwrap_err().code.number(), 3);
    });
    assert!(begun.elapsed() < Duration::from_secs(30));
    cluster.del().unwrap();
}

#[test]
fn x04_check_looks_at_every_network_of_the_pod() {
    let cluster = Cluster::asking("radio,oam");
    let answer: Value = serde_json::from_str(&cluster.add().unwrap()).unwrap();
    let mut conf: Value = serde_json::from_str(OWN).unwrap();
    conf["prevResult"] = answer;
    let check = || cluster.rig.call(Request { config: conf.to_string(), ..cluster.request(Command::Check) });
    check().unwrap();
    let mut pod = cluster.rig.kernel.pod(Path::new(POD)).unwrap();
    let link = pod.link_by_name("net2").unwrap().unwrap();
    pod.batch(&[Op::DeleteLink(link.index)]).unwrap();
    drop(pod);
    let told = check().unwrap_err();
    assert!(told.msg.contains("net2"), "{told}");
}

#[test]
fn a_pod_may_use_only_what_isolation_and_policy_allow() {
    let mut cluster = Cluster::asking("kube-system/radio");
    cluster.api.put_definition("kube-system", "radio", &definition("radio", "10.9.0.0/24"), None);
    let settings = "namespaceIsolation: true";
    cluster.rig.call_settings.policy = Some(Arc::new(serde_saphyr::from_str(settings).unwrap()));
    cluster.rig.restart();
    let before = cluster.rig.state();
    let told = cluster.add().unwrap_err();
    assert_eq!(told.code.number(), 7, "{told}");
    assert!(told.msg.contains("kube-system"), "{told}");
    cluster.rig.reap();
    assert_eq!(cluster.rig.state(), before);

    cluster.api.put_pod(&web(), &[(NETWORKS, "radio")]);
    let settings = "rules: [{namespaces: [{labels: {tier: ran}}]}]";
    cluster.rig.call_settings.policy = Some(Arc::new(serde_saphyr::from_str(settings).unwrap()));
    cluster.rig.restart();
    assert_eq!(cluster.add().unwrap_err().code.number(), 11, "its labels are not known yet");
    cluster.api.label_namespace("shop", &[("tier", "lab")]);
    assert_eq!(cluster.add().unwrap_err().code.number(), 7);
    cluster.api.label_namespace("shop", &[("tier", "ran")]);
    cluster.add().unwrap();
}

#[test]
fn a_pod_without_networks_of_its_own_has_the_default_one() {
    let cluster = Cluster::asking("");
    cluster.add().unwrap();
    assert_eq!(cluster.pod().0, ["eth0"]);
    assert_eq!(cluster.api.reports().len(), 1);
}

#[test]
fn the_labels_of_namespaces_are_wanted_from_the_reload_that_makes_the_policy_go_by_them() {
    let cluster = Cluster::asking("");
    let by_name = Settings::default();
    cluster.rig.engine().configure(&by_name);
    assert!(!cluster.api.labels_wanted());
    let policy = serde_saphyr::from_str("rules: [{namespaces: [{labels: {tier: ran}}]}]").unwrap();
    cluster.rig.engine().configure(&Settings { policy, ..by_name });
    assert!(cluster.api.labels_wanted());
}

/// A network of the conf dir whose plugins are told what a pod asks for: it keeps that, call by call.
fn by_name(cluster: &Cluster, capabilities: &Value) -> (tempfile::TempDir, PathBuf) {
    let plugins = tempfile::tempdir().unwrap();
    let told = plugins.path().join("told");
    let script = format!(
        r#"[ "$CNI_COMMAND" = VERSION ] && echo '{{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}}' && exit
cat >> {0}; echo >> {0}
[ "$CNI_COMMAND" != ADD ] || echo '{{"cniVersion":"1.0.0","interfaces":[{{"name":"net1","sandbox":"/x"}}],"ips":[],"dns":{{}}}}'"#,
        told.display()
    );
    script::write(&plugins.path().join("listens"), &script);
    let list = json!({
        "cniVersion": "1.0.0", "name": "storage",
        "plugins": [{"type": "listens", "capabilities": capabilities}],
    });
    let conf_dir = cluster.rig.dir.path().join("root/etc/cni/net.d");
    std::fs::write(conf_dir.join("20-storage.conflist"), list.to_string()).unwrap();
    // The files of host-local would be this machine's own.
    let layer_2 =
        r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"macvlan","master":"eth0","ipam":{}}]}"#;
    std::fs::write(conf_dir.join("10-net.conflist"), layer_2).unwrap();
    (plugins, told)
}

#[test]
fn m14_a_further_network_by_its_name_in_the_conf_dir_gets_what_the_pod_asks_for() {
    let mut cluster = Cluster::on_this_host();
    let (plugins, told) = by_name(&cluster, &json!({"ips": true, "mac": true, "bandwidth": true}));
    cluster.rig.restart();
    cluster.api.put_definition("shop", "storage", "", None);
    let asks = json!([{
        "name": "storage", "ips": ["10.7.0.9/24"], "mac": "02:00:00:00:00:77", "cni-args": {"level": "7"},
        "bandwidth": {"ingressRate": 2048, "ingressBurst": 1600},
    }]);
    cluster.api.put_pod(&web(), &[(NETWORKS, &asks.to_string())]);
    let call = |command| {
        cluster.rig.call(Request { path: plugins.path().display().to_string(), ..cluster.request(command) })
    };
    call(Command::Add).unwrap();
    call(Command::Del).unwrap();
    cluster.rig.reap();
    let calls = std::fs::read_to_string(&told).unwrap();
    let calls: Vec<Value> = calls.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(calls.len(), 2, "ADD and DEL: {calls:?}");
    for conf in calls {
        assert_eq!(conf["args"]["cni"], json!({"level": "7"}), "{conf}");
        assert_eq!(conf["runtimeConfig"]["ips"], json!(["10.7.0.9/24"]), "{conf}");
        assert_eq!(conf["runtimeConfig"]["mac"], "02:00:00:00:00:77", "{conf}");
        assert_eq!(conf["runtimeConfig"]["bandwidth"]["ingressRate"], 2048, "{conf}");
    }
}

#[test]
fn m14_what_no_plugin_of_a_network_by_its_name_declares_fails_the_pod() {
    let mut cluster = Cluster::on_this_host();
    let (_plugins, _) = by_name(&cluster, &json!({}));
    cluster.rig.restart();
    cluster.api.put_definition("shop", "storage", "", None);
    let asks = json!([{"name": "storage", "portMappings": [{"hostPort": 8080, "containerPort": 80}]}]);
    cluster.api.put_pod(&web(), &[(NETWORKS, &asks.to_string())]);
    let refused = cluster.add().unwrap_err();
    assert!(refused.msg.contains("portMappings") && refused.code.number() == 7, "{refused}");
}
