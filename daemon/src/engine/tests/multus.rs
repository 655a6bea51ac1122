//! What Multus' configuration says of every pod, in our own; and what a pod asks of its default network.

use fairlead_kube::PodRef;
use serde_json::{Value, json};

use super::pod_networks::{ARGS, Cluster, NETWORKS, definition, web};
use super::*;
use crate::delegate::script;

const DEFAULT_NETWORK: &str = "v1.multus-cni.io/default-network";

/// Our own type with these keys of Multus' beside `clusterNetwork`.
fn own(more: &str) -> String {
    format!(r#"{{"cniVersion":"1.1.0","name":"cluster","type":"fairlead","clusterNetwork":"net"{more}}}"#)
}

/// A call with that configuration, of the pod `web-0` in this namespace.
fn call(cluster: &Cluster, command: Command, namespace: &str, config: String) -> Result<String, CniError> {
    let args = ARGS.replace("=shop", &format!("={namespace}"));
    cluster.rig.call(Request { config, args, ..cluster.request(command) })
}

fn with_sidecar(cluster: &mut Cluster) {
    let file = cluster.rig.dir.path().join("root/etc/cni/net.d/20-sidecar.conf");
    std::fs::write(file, definition("sidecar", "10.7.0.0/24")).unwrap();
    cluster.rig.restart();
}

#[test]
fn m07_every_pod_has_the_administrators_networks_first_except_pods_of_system_namespaces() {
    let mut cluster = Cluster::asking("radio, oam@mgmt");
    with_sidecar(&mut cluster);
    cluster.api.put_definition("kube-system", "by-api", &definition("by-api", "10.6.0.0/24"), None);
    let config = own(r#","defaultNetworks":["sidecar","by-api"],"systemNamespaces":["admin"]"#);
    let before = cluster.rig.state();
    call(&cluster, Command::Add, "shop", config.clone()).unwrap();
    assert_eq!(cluster.pod().0, ["eth0", "mgmt", "net1", "net2", "net3"]);
    let status: Value = serde_json::from_str(&cluster.api.reports().pop().unwrap().1).unwrap();
    let of = |at: usize| (status[at]["interface"].clone(), status[at]["ips"][0].clone());
    assert_eq!(of(1), (json!("net1"), json!("10.7.0.2")), "{status}");
    assert_eq!(of(2), (json!("net2"), json!("10.6.0.2")), "{status}");
    assert_eq!(of(3), (json!("net3"), json!("10.9.0.2")), "{status}");
    call(&cluster, Command::Del, "shop", config.clone()).unwrap();
    cluster.rig.reap();
    assert_eq!(cluster.rig.state(), before);

    let admin = PodRef { namespace: "admin".into(), ..web() };
    cluster.api.put_pod(&admin, &[]);
    call(&cluster, Command::Add, "admin", config).unwrap();
    assert_eq!(cluster.pod().0, ["eth0"]);
}

#[test]
fn m06_m07_no_pod_takes_the_interface_of_an_administrators_network() {
    let mut cluster = Cluster::asking("radio@net1");
    with_sidecar(&mut cluster);
    let told = call(&cluster, Command::Add, "shop", own(r#","defaultNetworks":["sidecar"]"#)).unwrap_err();
    assert_eq!(told.code.number(), 7, "{told}");
    assert!(told.msg.contains("a network that every pod has"), "{told}");
}

#[test]
fn m07_namespace_isolation_and_multus_namespace_are_taken_from_the_nodes_own_configuration() {
    let cluster = Cluster::asking("other/radio");
    cluster.api.put_definition("other", "radio", &definition("radio", "10.5.0.0/24"), None);
    cluster.api.put_definition("net-system", "own", &definition("own", "10.4.0.0/24"), None);
    let isolated =
        |more: &str| own(&format!(r#","namespaceIsolation":true,"multusNamespace":"net-system"{more}"#));
    let told = call(&cluster, Command::Add, "shop", isolated("")).unwrap_err();
    assert_eq!(told.code.number(), 7, "{told}");
    assert!(told.msg.contains("namespace other"), "{told}");
    assert_eq!(cluster.rig.state().records, 0);
    call(&cluster, Command::Add, "shop", isolated(r#","globalNamespaces":"default, other""#)).unwrap();
    call(&cluster, Command::Del, "shop", isolated("")).unwrap();
    cluster.rig.reap();

    cluster.api.put_pod(&web(), &[(DEFAULT_NETWORK, "own")]);
    let answer = call(&cluster, Command::Add, "shop", isolated("")).unwrap();
    assert!(answer.contains("10.4.0.2/24"), "{answer}");
}

#[test]
fn x01_an_add_waits_for_the_readiness_indicator_file_and_status_tells_that_it_is_not_there() {
    let mut cluster = Cluster::asking("");
    cluster.rig.call_settings.pod_wait = Duration::from_secs(60);
    cluster.rig.restart();
    let config = own(r#","readinessindicatorfile":"/run/ovn/ready""#);
    let status = call(&cluster, Command::Status, "shop", config.clone()).unwrap_err();
    assert_eq!(status.code.number(), 50, "{status}");
    let file = cluster.rig.dir.path().join("root/run/ovn/ready");
    std::thread::scope(|scope| {
        let add = scope.spawn(|| call(&cluster, Command::Add, "shop", config.clone()));
        std::thread::sleep(Duration::from_millis(150));
        assert!(!add.is_finished());
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "").unwrap();
        add.join().unwrap().unwrap();
    });
    call(&cluster, Command::Status, "shop", config.clone()).unwrap();
    call(&cluster, Command::Del, "shop", config.clone()).unwrap();
    std::fs::remove_file(file).unwrap();
    cluster.rig.call_settings.pod_wait = Duration::from_millis(100);
    cluster.rig.restart();
    let told = call(&cluster, Command::Add, "shop", config).unwrap_err();
    assert_eq!(told.code.number(), 11, "{told}");
    assert!(told.msg.contains("/run/ovn/ready"), "{told}");
    assert!(cluster.api.warnings().pop().unwrap().1.contains("is not ready"));
}

#[test]
fn m14_what_the_pod_asks_of_its_own_default_network_reaches_its_plugins() {
    let cluster = Cluster::new();
    let text = definition("special", "10.3.0.0/24")
        .replace(r#""type":"macvlan""#, r#""type":"macvlan","capabilities":{"ips":true,"mac":true}"#);
    cluster.api.put_definition("kube-system", "special", &text, None);
    let asks = r#"[{"name":"special","ips":["10.3.0.77/24"],"mac":"02:00:00:00:00:99","cni-args":{"x":"y"},"interface":"eth0"}]"#;
    cluster.api.put_pod(&web(), &[(DEFAULT_NETWORK, asks), (NETWORKS, "radio")]);
    let before = cluster.rig.state();
    let answer = cluster.add().unwrap();
    assert!(answer.contains("10.3.0.77/24") && answer.contains("02:00:00:00:00:99"), "{answer}");
    assert_eq!(cluster.pod().0, ["eth0", "net1"]);
    let list = cluster
        .rig
        .engine()
        .core
        .store
        .all()
        .into_iter()
        .find(|a| a.made_with.is_none() && a.key.plugin == "fairlead");
    let list = list.unwrap();
    assert!(
        list.config.contains("10.3.0.77") && list.caller.args.contains("MAC=02:00:00:00:00:99"),
        "{list:?}"
    );
    cluster.del().unwrap();
    cluster.rig.reap();
    assert_eq!(cluster.rig.state(), before);

    let asks = r#"[{"name":"special","bandwidth":{"ingressRate":1000,"ingressBurst":1000}}]"#;
    cluster.api.put_pod(&web(), &[(DEFAULT_NETWORK, asks)]);
    let told = cluster.add().unwrap_err();
    assert!(told.msg.contains("bandwidth") && told.code.number() == 7, "what nobody would do: {told}");
}

#[test]
fn an_address_that_a_pod_asks_of_its_own_default_network_is_judged_as_that_of_any_other() {
    let rules = r#"rules: [{namespaces: ["radio-*"], types: [macvlan], masters: [eth0], ranges: ["10.9.0.0/16"], ipamTypes: [static]}]"#;
    let mut cluster = Cluster::new();
    cluster.rig.call_settings.policy = Some(Arc::new(serde_saphyr::from_str(rules).unwrap()));
    cluster.rig.restart();
    let before = cluster.rig.state();
    for capabilities in ["", r#""capabilities":{"ips":true},"#] {
        let text = format!(
            r#"{{"cniVersion":"1.0.0","name":"mv","type":"macvlan","master":"eth0",{capabilities}"ipam":{{"type":"static"}}}}"#
        );
        cluster.api.put_definition("radio-a", "mv", &text, None);
        let asks = |ip: &str| json!([{"name": "mv", "namespace": "radio-a", "ips": [ip]}]).to_string();
        for annotation in [DEFAULT_NETWORK, NETWORKS] {
            cluster.api.put_pod(&web(), &[(annotation, &asks("192.168.66.6/24"))]);
            let told = cluster.add().unwrap_err();
            assert_eq!(told.code.number(), 7, "{annotation}: {told}");
            for part in ["pod shop/web-0, network radio-a/mv", "192.168.66.6/24", "[10.9.0.0/16]"] {
                assert!(told.msg.contains(part), "{annotation}, {capabilities}: {told}");
            }
            let (_, event) = cluster.api.warnings().pop().unwrap();
            assert!(event.contains("radio-a/mv"), "{event}");
            cluster.rig.reap();
            assert_eq!(cluster.rig.state(), before, "{annotation}, {capabilities}");
        }
        cluster.api.put_pod(&web(), &[(DEFAULT_NETWORK, &asks("10.9.66.6/24"))]);
        let answer = cluster.add().unwrap();
        assert!(answer.contains("10.9.66.6/24"), "{capabilities}: {answer}");
        cluster.del().unwrap();
        cluster.rig.reap();
    }
}

#[test]
fn x14_a_default_network_that_fails_is_told_in_one_event() {
    let cluster = Cluster::new();
    cluster.api.put_pod(&web(), &[(DEFAULT_NETWORK, "missing")]);
    cluster.add().unwrap_err();
    let told = cluster.api.warnings();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].1.contains("kube-system/missing"), "{told:?}");
    // A list whose own plugin fails, and one that is not there.
    cluster.api.put_definition(
        "kube-system",
        "missing",
        &definition("m", "10.3.0.0/24").replace("eth0", "gone0"),
        None,
    );
    cluster.add().unwrap_err();
    assert!(cluster.api.warnings()[1].1.contains("gone0"), "{:?}", cluster.api.warnings());
    cluster.api.put_pod(&web(), &[]);
    let config = own("").replace(r#":"net""#, r#":"nowhere""#);
    call(&cluster, Command::Add, "shop", config).unwrap_err();
    assert!(cluster.api.warnings()[2].1.contains("\"nowhere\""), "{:?}", cluster.api.warnings());
    // What another network lacks is told once, in its own words.
    cluster.api.put_pod(&web(), &[(NETWORKS, "absent")]);
    cluster.add().unwrap_err();
    assert_eq!(cluster.api.warnings().len(), 4, "{:?}", cluster.api.warnings());
}

/// Answers VERSION, notes what it was called with, and gives an address.
const PLUGIN: &str = r#"dir=$(dirname "$0"); conf=$(cat)
if [ $CNI_COMMAND = VERSION ]; then echo asked >>$dir/asked; echo '{"cniVersion":"9.0.0","supportedVersions":["0.3.1","0.4.0","9.0.0"]}'; exit; fi
echo "$CNI_COMMAND $conf" >>$dir/calls
[ $CNI_COMMAND != ADD ] || echo '{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.2.0.9/24"}]}'"#;

#[test]
fn m02_m05_a_network_object_whose_plugin_is_executed_speaks_the_newest_version_of_both() {
    let mut cluster = Cluster::on_this_host();
    let bin = tempfile::tempdir().unwrap();
    script::write(&bin.path().join("radio-plugin"), PLUGIN);
    cluster.api.put_legacy_network("shop", "old", Some("radio-plugin"));
    cluster.api.put_pod(&web(), &[("alpha.network.k8s.io/networks", "old")]);
    let ask = |cluster: &Cluster, command| {
        let path = bin.path().to_str().unwrap().to_owned();
        cluster.rig.call(Request { path, ..cluster.request(command) })
    };
    let calls = || std::fs::read_to_string(bin.path().join("calls")).unwrap_or_default();
    let answer = ask(&cluster, Command::Add).unwrap();
    assert!(answer.contains("10.2.0.9/24"), "{answer}");
    let expected = r#""cniVersion":"0.4.0""#;
    assert!(calls().contains(expected) && calls().contains(r#""type":"radio-plugin""#), "{}", calls());
    ask(&cluster, Command::Del).unwrap();
    assert!(calls().contains("DEL"), "{}", calls());

    // A tenant's word has nothing executed that the policy does not allow, VERSION neither.
    std::fs::remove_file(bin.path().join("asked")).unwrap();
    cluster.rig.call_settings.policy = Some(Arc::new(serde_saphyr::from_str("execute: [tuning]").unwrap()));
    cluster.rig.restart();
    let told = ask(&cluster, Command::Add).unwrap_err();
    assert_eq!(told.code.number(), 7, "{told}");
    assert!(!bin.path().join("asked").exists());
}

#[test]
fn m02_m05_a_plugin_that_cannot_say_its_version_is_named() {
    let cluster = Cluster::on_this_host();
    let bin = tempfile::tempdir().unwrap();
    script::write(&bin.path().join("mute"), "echo oops >&2; kill -SEGV $$");
    for (plugin, told) in [("mute", "\"mute\", VERSION"), ("absent", "\"absent\"")] {
        cluster.api.put_legacy_network("shop", "old", Some(plugin));
        cluster.api.put_pod(&web(), &[("alpha.network.k8s.io/networks", "old")]);
        let path = bin.path().to_str().unwrap().to_owned();
        let error = cluster.rig.call(Request { path, ..cluster.request(Command::Add) }).unwrap_err();
        assert!(error.msg.contains(told), "{error}");
    }
}
