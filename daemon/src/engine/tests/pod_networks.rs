//! The networks of a pod: its default one and those that it asks for, all of them or none.

use fairlead_cni::Code;
use fairlead_host::double::{Call, KernelRequest};
use fairlead_host::{NetKernel, Op, Route};
use fairlead_kube::PodRef;
use fairlead_kube::fake_cluster::FakeCluster;
use nix::errno::Errno;
use serde_json::{Value, json};

use super::*;
use crate::call::Lane;

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
        rig.policy.pod_wait = Duration::from_millis(200);
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
fn calls_of(cluster: &Cluster, call: impl Fn(&Cluster) -> Result<String, CniError>) -> usize {
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
fn m14_the_network_that_is_asked_to_has_the_default_route() {
    let cluster = Cluster::asking(r#"[{"name":"radio","default-route":["10.9.0.1"]},{"name":"oam"}]"#);
    let answer: Value = serde_json::from_str(&cluster.add().unwrap()).unwrap();
    assert_eq!(cluster.pod().1, ["0.0.0.0/0 net1", "::/0 eth0"]);
    let routes = answer["routes"].as_array().unwrap();
    assert!(routes.iter().all(|route| route["dst"] != "0.0.0.0/0"), "what eth0 has no more: {answer}");
}

#[test]
fn m14_x04_the_default_route_by_a_gateway_is_in_network_status_and_check_misses_it() {
    let asked = json!([{"name": "radio", "default-route": ["10.9.0.1"]}]);
    let cluster = Cluster::asking(&asked.to_string());
    let without_routes = r#"{"cniVersion":"1.0.0","type":"macvlan","master":"eth0","ipam":{"type":"host-local","subnet":"10.9.0.0/24"}}"#;
    cluster.api.put_definition("shop", "radio", without_routes, None);
    let call = cluster.rig.prepare(cluster.request(Command::Add));
    let now = Instant::now();
    let waiting =
        || Waiting { arrived: now, deadline: now + Duration::from_secs(5), gone: CallerGone::default() };
    call.serve(waiting()).outcome.unwrap();
    call.answered(true);
    let status: Value = serde_json::from_str(&cluster.api.reports()[0].1).unwrap();
    assert_eq!(status[1]["gateway"], json!(["10.9.0.1"]), "{status}");
    let check = || cluster.rig.call(cluster.request(Command::Check));
    check().unwrap();
    let mut pod = cluster.rig.kernel.pod(Path::new(POD)).unwrap();
    let gateway = Some("10.9.0.1".parse().unwrap());
    let is_it = |route: &Route| route.gateway == gateway && route.dst.prefix_len() == 0;
    let route = pod.routes().unwrap().into_iter().find(is_it).unwrap();
    pod.batch(&[Op::DeleteRoute(route)]).unwrap();
    drop(pod);
    let missed = check().unwrap_err();
    assert_eq!(missed.code, Code::Changed);
    assert!(missed.msg.contains("default route by 10.9.0.1"), "{missed}");
}

#[test]
fn x14_what_of_an_annotation_has_no_meaning_is_told_of_the_pod() {
    let cluster = Cluster::asking(r#"[{"name":"radio","macc":"02:00:00:00:00:01"}]"#);
    cluster.add().unwrap();
    let warnings = cluster.api.warnings();
    assert!(warnings.iter().any(|(pod, words)| *pod == web() && words.contains("macc")), "{warnings:?}");
}

#[test]
fn m14_without_gateways_the_default_route_is_that_of_the_networks_own_configuration() {
    let cluster = Cluster::asking(r#"[{"name":"oam"},{"name":"radio","default-route":[]}]"#);
    let answer: Value = serde_json::from_str(&cluster.add().unwrap()).unwrap();
    // The definition says nothing of IPv6, which stays with the default network.
    assert_eq!(cluster.pod().1, ["0.0.0.0/0 net2", "::/0 eth0"]);
    let of_v6 = |route: &Value| route["dst"] == "::/0";
    assert!(answer["routes"].as_array().unwrap().iter().any(of_v6), "{answer}");
    assert!(!answer.to_string().contains("0.0.0.0/0"), "{answer}");
}

#[test]
fn m14_two_networks_share_the_default_route_one_for_each_family() {
    let cluster = Cluster::asking(
        r#"[{"name":"radio","default-route":["10.9.0.1"]},{"name":"six","default-route":["fd00:8::1"]}]"#,
    );
    let six = definition("six", "fd00:8::/64").replace(r#"{"dst":"0.0.0.0/0"},{"dst":"10.99.0.0/16"}"#, "");
    cluster.api.put_definition("shop", "six", &six, None);
    let answer: Value = serde_json::from_str(&cluster.add().unwrap()).unwrap();
    assert_eq!(cluster.pod().1, ["0.0.0.0/0 net1", "::/0 net2"]);
    let routes = answer["routes"].as_array().into_iter().flatten();
    let defaults = routes.filter(|route| route["dst"] == "0.0.0.0/0" || route["dst"] == "::/0");
    assert_eq!(defaults.count(), 0, "what eth0 has no more: {answer}");
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
        &[(NETWORKS, r#"[{"name":"radio","portMappings":[{"hostPort":80,"containerPort":80}]}]"#)],
    );
    let told = cluster.add().unwrap_err();
    assert!(told.to_string().contains("portMappings") && told.code.number() == 7, "{told}");
}

#[test]
fn m08_x05_an_add_that_is_refused_at_any_call_leaves_the_host_as_before() {
    let calls = calls_of(&Cluster::asking("radio,oam"), Cluster::add);
    for n in 0..calls {
        let cluster = Cluster::asking("radio,oam");
        let before = cluster.rig.state();
        cluster.rig.kernel.forget_calls();
        cluster.rig.kernel.fail_at(n, Errno::ENOBUFS);
        let answer = cluster.add();
        cluster.rig.kernel.heal();
        if answer.is_ok() {
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
    let cluster = Cluster::asking("radio,missing");
    let before = cluster.rig.state();
    let told = cluster.add().unwrap_err();
    cluster.rig.reap();
    assert_eq!(cluster.rig.state(), before);
    for words in ["pod shop/web-0", "shop/missing", "\"net2\""] {
        assert!(told.msg.contains(words), "{told}");
    }
    let (pod, event) = cluster.api.warnings().pop().unwrap();
    assert_eq!(pod, web());
    assert!(event.contains("shop/missing"), "{event}");
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

#[test]
fn k12_the_sandbox_of_another_pod_of_the_same_name_is_refused_whoever_tells_its_annotations() {
    let cluster = Cluster::new();
    let newer = PodRef { uid: Some("u-2".into()), ..web() };
    cluster.api.put_pod(&newer, &[]);
    assert_eq!(cluster.add().unwrap_err().code.number(), 3);
    let own = OWN.replace(
        r#""clusterNetwork""#,
        r#""runtimeConfig":{"io.kubernetes.cri.pod-annotations":{}},"clusterNetwork""#,
    );
    let told = cluster.rig.call(Request { config: own, ..cluster.request(Command::Add) }).unwrap_err();
    assert_eq!(told.code.number(), 3, "{told}");
    assert!(told.msg.contains("u-2"), "{told}");
}

#[test]
fn k07_an_add_waits_for_its_pod_and_goes_on_when_it_is_seen() {
    let mut cluster = Cluster::new();
    let told = cluster.add().unwrap_err();
    assert_eq!(told.code.number(), 11, "{told}");
    assert_eq!(cluster.api.warnings().len(), 1);
    cluster.rig.policy.pod_wait = Duration::from_secs(5);
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
    cluster.rig.policy.pod_wait = Duration::from_secs(60);
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
fn a_pod_may_use_only_what_isolation_and_policy_allow() {
    let mut cluster = Cluster::asking("kube-system/radio");
    cluster.api.put_definition("kube-system", "radio", &definition("radio", "10.9.0.0/24"), None);
    let settings = "namespaceIsolation: true";
    cluster.rig.policy.tenants = Some(Arc::new(serde_saphyr::from_str(settings).unwrap()));
    cluster.rig.restart();
    let before = cluster.rig.state();
    let told = cluster.add().unwrap_err();
    assert_eq!(told.code.number(), 7, "{told}");
    assert!(told.msg.contains("kube-system"), "{told}");
    cluster.rig.reap();
    assert_eq!(cluster.rig.state(), before);

    cluster.api.put_pod(&web(), &[(NETWORKS, "radio")]);
    let settings = "rules: [{namespaces: [{labels: {tier: ran}}]}]";
    cluster.rig.policy.tenants = Some(Arc::new(serde_saphyr::from_str(settings).unwrap()));
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
fn x14_a_gateway_that_the_network_does_not_reach_is_the_pods_mistake_with_a_remedy() {
    // What the kernel says for IPv4, for IPv6, and for the pod's own address.
    for errno in [Errno::ENETUNREACH, Errno::EHOSTUNREACH, Errno::EINVAL] {
        let asks = r#"[{"name":"radio","default-route":["10.9.0.1"]}]"#;
        let calls = calls_of(&Cluster::asking(asks), Cluster::add);
        let mut told = 0;
        for n in 0..calls {
            let cluster = Cluster::asking(asks);
            cluster.rig.kernel.forget_calls();
            cluster.rig.kernel.fail_at(n, errno);
            let Err(error) = cluster.add() else { continue };
            if !error.msg.contains("\"default-route\"") {
                continue;
            }
            told += 1;
            assert_eq!(error.code.number(), 7, "{error}");
            assert!(
                error.msg.contains("[10.9.0.1]")
                    && !error.msg.contains("Route {")
                    && error.details.contains("own subnet"),
                "{error}"
            );
        }
        assert!(told > 0, "{errno}: no call of {calls} sets the route");
    }
}

/// What `describe` says of the pod's networks: interface, network, and the phase or why there is none.
fn described(cluster: &Cluster, named: &str) -> (Value, Vec<[String; 3]>) {
    let value = Service::describe(cluster.rig.engine(), named);
    let word = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let networks = value["asked"][0]["networks"].as_array().into_iter().flatten();
    let how = |row: &Value| word(row, "phase") + &word(row, "why");
    let rows = networks.map(|row| [word(row, "interface"), word(row, "network"), how(row)]).collect();
    (value, rows)
}

#[test]
fn x14_describe_tells_the_networks_that_a_pod_asks_for_beside_those_that_it_got() {
    let cluster = Cluster::asking("radio,later@data0");
    let (value, rows) = described(&cluster, "web-0");
    let why = value["why"].as_str().unwrap();
    assert!(why.contains("the pod is on this node, and the runtime has not asked"), "{value}");
    assert!(rows[0][2].contains("the runtime has not asked"), "{value}");

    cluster.add().unwrap_err();
    let (value, rows) = described(&cluster, "shop/web-0");
    assert_eq!((&value["why"], value["failures"].as_array().unwrap().len()), (&Value::Null, 1), "{value}");
    assert!(rows[0][2].contains("another network of the pod has failed"), "{value}");
    let lacking = &rows[1];
    assert_eq!((lacking[0].as_str(), lacking[1].as_str()), ("data0", "shop/later"));
    assert!(lacking[2].contains("the API has no NetworkAttachmentDefinition shop/later"), "{value}");

    cluster.api.put_definition("shop", "later", &definition("later", "10.7.0.0/24"), None);
    cluster.add().unwrap();
    // By the container too, which is no pod's name.
    for named in ["web-0", "u-1", "c1"] {
        let (value, rows) = described(&cluster, named);
        let got = ["net1", "shop/radio", "attached", "data0", "shop/later", "attached"];
        assert_eq!(rows.concat(), got, "{value}");
        assert_eq!(value["asked"][0]["toldBy"], "the API", "{value}");
    }
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

#[test]
fn x14_describe_tells_an_annotation_that_is_wrong_and_a_pod_that_is_not_on_this_node() {
    let cluster = Cluster::asking("[{\"name\": 7}]");
    let (value, _) = described(&cluster, "web-0");
    let refused = value["asked"][0]["refused"].as_str().unwrap();
    assert!(refused.contains(NETWORKS), "{value}");
    let (value, rows) = described(&cluster, "shop/web-7");
    assert_eq!((rows.len(), &value["asked"]), (0, &json!([])));
    assert!(value["why"].as_str().unwrap().contains("pod shop/web-7 is not known on this node"), "{value}");
    let (value, _) = described(&cluster, "web-7");
    assert!(value["why"].as_str().unwrap().contains("no pod of this name"), "{value}");
}

#[test]
fn x14_a_removal_that_fails_and_an_address_without_owner_are_told_with_their_pod() {
    let cluster = Cluster::asking("radio");
    cluster.add().unwrap();
    cluster.rig.kernel.fail_from(0, Errno::EBUSY);
    cluster.del().unwrap_err();
    cluster.rig.kernel.heal();
    let removals = cluster.rig.engine().table("removals").unwrap();
    let row = &removals[0];
    assert_eq!((&row["pod"], &row["podUid"]), (&json!("shop/web-0"), &json!("u-1")), "{removals}");

    let root = cluster.rig.dir.path().join("root/var/lib/cni");
    std::fs::create_dir_all(root.join("results")).unwrap();
    let call = r#"{"cniArgs":[["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","gone-0"]]}"#;
    std::fs::write(root.join("results/net-c9-eth0"), call).unwrap();
    std::fs::write(root.join("networks/net/10.1.0.99"), "c9\r\neth0").unwrap();
    let orphans = cluster.rig.engine().table("orphans").unwrap();
    let of = |ip: &str| orphans.as_array().unwrap().iter().find(|row| row["ip"] == ip).cloned();
    assert_eq!(of("10.1.0.99").unwrap()["pod"], "shop/gone-0", "{orphans}");
}

#[test]
fn k23_a_pod_whose_networks_take_only_the_kernel_is_attached_on_the_fast_lane() {
    let lane = |cluster: &Cluster| cluster.rig.prepare(cluster.request(Command::Add)).lane();
    let cluster = Cluster::asking("radio, oam@mgmt");
    assert_eq!(lane(&cluster), Lane::Fast);
    let executed = definition("radio", "10.9.0.0/24").replace("host-local", "whereabouts");
    cluster.api.put_definition("shop", "radio", &executed, None);
    assert_eq!(lane(&cluster), Lane::Slow, "a plugin is executed");
    cluster.api.put_definition("shop", "radio", &definition("radio", "10.9.0.0/24"), Some("vendor/vf"));
    assert_eq!(lane(&cluster), Lane::Slow, "kubelet is asked");
    assert_eq!(lane(&Cluster::asking("radio, other")), Lane::Slow, "a definition is waited for");
    assert_eq!(lane(&Cluster::new()), Lane::Slow, "the pod is waited for");
    assert_eq!(cluster.rig.prepare(cluster.request(Command::Del)).lane(), Lane::Slow);
}

/// How often an ADD enters the pod's namespace.
fn visits(cluster: &Cluster) -> usize {
    let opens = |call: &Call| matches!(&call.request, KernelRequest::Open(path) if path == Path::new(POD));
    cluster.rig.kernel.forget_calls();
    cluster.add().unwrap();
    cluster.rig.kernel.calls().iter().filter(|call| opens(call)).count()
}

#[test]
fn k23_networks_that_take_only_the_kernel_share_one_visit_of_the_namespace() {
    assert_eq!(visits(&Cluster::asking("radio, oam@mgmt")), 1);
    let with_default_route = json!([{"name": "radio"}, {"name": "oam", "default-route": ["10.8.0.1"]}]);
    assert_eq!(
        visits(&Cluster::asking(&with_default_route.to_string())),
        1,
        "the routes are of the same visit"
    );
}

#[test]
fn k23_a_definition_without_a_name_is_as_fast_as_one_with() {
    let cluster = Cluster::asking("radio");
    let unnamed = definition("radio", "10.9.0.0/24").replace(r#""name":"radio","#, "");
    cluster.api.put_definition("shop", "radio", &unnamed, None);
    assert_eq!(cluster.rig.prepare(cluster.request(Command::Add)).lane(), Lane::Fast);
    assert_eq!(visits(&cluster), 1);
}

#[test]
fn m14_x22_a_network_that_may_wait_can_have_the_default_route() {
    let asked = json!([{"name": "radio", "default-route": ["10.9.0.1"]}, {"name": "oam"}]);
    let cluster = Cluster::asking(&asked.to_string());
    let several = definition("radio", "10.9.0.0/24").replace(r#""eth0""#, r#"["eth0","eth1"]"#);
    cluster.api.put_definition("shop", "radio", &several, None);
    cluster.add().unwrap();
    assert_eq!(cluster.pod().1, ["0.0.0.0/0 net1", "::/0 eth0"]);
    cluster.del().unwrap();
    // It is not there, and is asked of kubelet, outside the namespace in which the routes were looked at.
    cluster.api.put_definition("shop", "radio", &definition("radio", "10.9.0.0/24"), Some("vendor/vf"));
    let refused = cluster.add().unwrap_err();
    assert!(refused.msg.contains("vendor/vf"), "{refused}");
}

#[test]
fn x22_what_may_wait_is_not_waited_for_within_the_shared_visit() {
    let cluster = Cluster::asking("radio, oam");
    // The nearest of several is chosen by what kubelet says of the pod.
    let several = definition("radio", "10.9.0.0/24").replace(r#""eth0""#, r#"["eth0","eth1"]"#);
    cluster.api.put_definition("shop", "radio", &several, None);
    assert_eq!(visits(&cluster), 2, "left before the first of them, and entered again for both");
    cluster.del().unwrap();
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

fn of_name(name: &str) -> PodRef {
    PodRef { name: name.into(), ..web() }
}
