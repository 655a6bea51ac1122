//! Paths that draw from a pool, and where the pod is: which VF is taken, and what is told or refused.

use std::fs;

use fairlead_cni::Code;
use fairlead_kubelet::fake_kubelet::{FakeKubelet, pod};
use fairlead_sriov::pools::Verb;

use super::pools::{SECOND, with};
use super::*;

const POOL: &str = "pools: [{name: radio, selectors: {vendors: ['8086']}}]";
const DRAWN: &str = r#"{"type":"sriov","pool":"radio","vlan":100}"#;

/// Two VFs, on nodes 0 and 1, ready in a pool; 21 between the nodes.
fn rig(text: &str) -> Rig {
    let mut rig = with(text);
    let sys = rig.dir.path().join("sys");
    let put = |path: String, text: &str| {
        let path = sys.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put("devices/system/node/online".into(), "0-1\n");
    for (node, cpus, distance, vf) in [(0, "0-1\n", "10 21\n", VF), (1, "2-3\n", "21 10\n", SECOND)] {
        put(format!("devices/system/node/node{node}/cpulist"), cpus);
        put(format!("devices/system/node/node{node}/distance"), distance);
        put(format!("bus/pci/devices/{vf}/numa_node"), &format!("{node}\n"));
    }
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["ready", "ready"]);
    rig
}

fn config(paths: &[&str], numa: &str, more: &str) -> String {
    let paths = paths.join(",");
    format!(
        r#"{{"cniVersion":"1.1.0","name":"radio","type":"fairlead","numa":"{numa}","paths":[{paths}],"ipam":{{}}{more}}}"#
    )
}

fn on_node(node: u32) -> String {
    format!(r#","args":{{"cni":{{"numaNodes":[{node}]}}}}"#)
}

/// All pods of these tests are in one namespace: each has an interface of its own.
fn named(request: Request) -> Request {
    Request { ifname: request.container_id.clone(), ..request }
}

impl Rig {
    fn add_as(&self, container: &str, config: &str) -> Result<String, CniError> {
        self.call(named(self.request(Command::Add, container, config)))
    }

    fn row_of(&self, container: &str) -> serde_json::Value {
        let rows = self.engine().table("attachments").unwrap();
        rows.as_array().unwrap().iter().find(|row| row["container"] == container).unwrap().clone()
    }
}

/// The VF that an answer tells.
fn device(answer: &str) -> String {
    let answer: serde_json::Value = serde_json::from_str(answer).unwrap();
    answer["interfaces"][0]["pciID"].as_str().unwrap_or("none").to_owned()
}

#[test]
fn x09_the_vf_on_the_pods_own_node_is_drawn_and_the_choice_is_told() {
    for (node, wanted) in [(0, VF), (1, SECOND)] {
        let rig = rig(POOL);
        let config = config(&[DRAWN], "preferred", &on_node(node));
        let answer = rig.add_as("c1", &config).unwrap();
        assert_eq!(device(&answer), wanted);
        assert_eq!(rig.row_of("c1")["near"], format!("on the pod's NUMA node {node}"));
        let text = rig.exposition.text();
        for line in [
            r#"fairlead_numa_choices_total{locality="local"} 1"#,
            r#"fairlead_numa_distance_sum{locality="local"} 10.0"#,
            r#"fairlead_numa_distance_bucket{le="10.0",locality="local"} 1"#,
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        let with = format!(r#"{},"prevResult":{answer}}}"#, config.strip_suffix('}').unwrap());
        rig.call(named(rig.request(Command::Check, "c1", &with))).unwrap();
        rig.call(named(rig.request(Command::Del, "c1", &config))).unwrap();
        rig.reap();
        rig.keep();
        assert_eq!(rig.states(), ["ready", "ready"]);
    }
}

#[test]
fn x09_preferred_takes_the_other_node_when_its_own_has_none_and_strict_does_not() {
    let rig = rig(POOL);
    let (preferred, strict) =
        (config(&[DRAWN], "preferred", &on_node(1)), config(&[DRAWN], "strict", &on_node(1)));
    assert_eq!(device(&rig.add_as("c1", &preferred).unwrap()), SECOND);
    let next = config(&[DRAWN, fallback::MACVLAN], "strict", &on_node(1));
    assert_eq!(device(&rig.add_as("c2", &next).unwrap()), "none", "the next path");
    let why = rig.row_of("c2")["passedOver"][0].as_str().unwrap().to_owned();
    let wanted = "sriov: pool \"radio\" has no VF ready: 1 ready, 1 lent; numa is strict";
    assert!(why.starts_with(wanted), "{why}");
    let request = named(rig.request(Command::Add, "c3", &strict));
    let waited = rig.serve(request, Instant::now(), Duration::from_secs(1)).outcome.unwrap_err();
    assert_eq!(waited.code, Code::TryAgain, "{waited}");
    assert_eq!(device(&rig.add_as("c4", &preferred).unwrap()), VF);
    assert_eq!(rig.row_of("c4")["near"], "on NUMA node 0, while the pod is on 1 (distance 21)");
}

#[test]
fn x09_choice_and_distance_are_told_in_the_device_information_and_in_the_metrics() {
    const INFO: &str = "/var/run/k8s.cni.cncf.io/devinfo/cni/of-c1.json";
    let rig = rig(POOL);
    let told = |policy: &str, more: &str| {
        let more = format!(r#"{more},"runtimeConfig":{{"CNIDeviceInfoFile":"{INFO}"}}"#);
        let config = config(&[DRAWN], policy, &more);
        rig.add_as("c1", &config).unwrap();
        let text = fs::read_to_string(rig.root.join(INFO.trim_start_matches('/'))).unwrap();
        rig.call(named(rig.request(Command::Del, "c1", &config))).unwrap();
        rig.reap();
        rig.keep();
        let told: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((told["type"].as_str(), told["version"].as_str()), (Some("pci"), Some("1.1.0")));
        told["fairlead"]["numa"].to_string()
    };
    assert_eq!(told("strict", &on_node(1)), r#"{"distance":10,"locality":"local","node":1}"#);
    rig.order(Verb::Drain, SECOND);
    let remote = told("preferred", &on_node(1));
    assert_eq!(remote, r#"{"distance":21,"locality":"remote","node":0,"pod":[1]}"#);
    assert_eq!(told("preferred", ""), r#"{"locality":"pod_unknown"}"#);
    let text = rig.exposition.text();
    assert!(text.contains(r#"fairlead_numa_distance_sum{locality="remote"} 21.0"#), "{text}");
    assert!(!text.contains(r#"fairlead_numa_distance_sum{locality="pod_unknown"}"#), "{text}");
}

#[test]
fn x09_a_pod_whose_node_nobody_knows_is_served_by_all_but_strict_which_names_the_cpu_manager() {
    let rig = rig(POOL);
    let refused = rig.add_as("c1", &config(&[DRAWN], "strict", "")).unwrap_err();
    assert_eq!(refused.code, Code::InvalidConfig);
    assert!(refused.to_string().contains("CPU manager"), "{refused}");
    rig.add_as("c1", &config(&[DRAWN], "preferred", "")).unwrap();
    rig.add_as("c2", &config(&[DRAWN], "any", "")).unwrap();
}

#[test]
fn x09_where_the_pod_is_kubelet_knows_by_its_processors_and_its_silence_is_code_11() {
    let rig = rig(POOL);
    let mut kubelet = FakeKubelet::running(&rig.root);
    let mut assigned = pod("ran", "du-0", &[("app", &[])]);
    assigned.containers[0].cpu_ids = vec![2, 3];
    kubelet.answers.lock().unwrap().pods = vec![assigned];
    let of_pod = |container: &str, numa: &str| {
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ran;K8S_POD_NAME=du-0".to_owned();
        let request = Request {
            args,
            ..rig.request(Command::Add, container, &config(&[DRAWN, fallback::MACVLAN], numa, ""))
        };
        rig.serve(named(request), Instant::now(), Duration::from_secs(3)).outcome
    };
    assert_eq!(device(&of_pod("c1", "strict").unwrap()), SECOND);
    kubelet.stop();
    let silent = of_pod("c2", "preferred").unwrap_err();
    assert_eq!(silent.code, Code::TryAgain, "{silent}");
    assert!(silent.msg.contains("on which NUMA node pod ran/du-0 is"), "{silent}");
    assert_eq!(device(&of_pod("c3", "any").unwrap()), VF, "nobody asks");
}

#[test]
fn x09_kubelet_is_asked_once_for_an_add_for_the_device_and_for_the_pods_node() {
    let rig = rig(&POOL.replace("'8086']}", "'8086']}, resourceName: intel.com/radio"));
    let kubelet = FakeKubelet::running(&rig.root);
    let mut assigned = pod("ran", "du-0", &[("app", &[("intel.com/radio", SECOND, 1)])]);
    assigned.containers[0].cpu_ids = vec![2];
    kubelet.answers.lock().unwrap().pods = vec![assigned];
    let of_pod = |container: &str| {
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ran;K8S_POD_NAME=du-0".to_owned();
        let config = config(&[DRAWN, fallback::MACVLAN], "strict", "");
        named(Request { args, ..rig.request(Command::Add, container, &config) })
    };
    assert_eq!(device(&rig.call(of_pod("c1")).unwrap()), SECOND);
    assert_eq!(rig.row_of("c1")["near"], "on the pod's NUMA node 1");
    let answers = kubelet.answers.lock().unwrap();
    assert_eq!((answers.gets, answers.lists), (1, 0));
}

#[test]
fn x09_a_vf_that_was_given_on_another_node_is_refused_by_strict_and_told_by_preferred() {
    let rig = rig(POOL);
    let sriov = r#"{"type":"sriov"}"#;
    let more = format!(r#","runtimeConfig":{{"deviceID":"{VF}"}}{}"#, on_node(1));
    let refused = rig.add_as("c1", &config(&[sriov, fallback::MACVLAN], "strict", &more)).unwrap_err();
    assert_eq!(refused.code, Code::InvalidConfig);
    assert!(refused.msg.contains(&format!("VF {VF} was given to the pod, and no device is on")), "{refused}");
    rig.add_as("c1", &config(&[sriov], "preferred", &more)).unwrap();
    assert_eq!(rig.row_of("c1")["near"], "on NUMA node 0, while the pod is on 1 (distance 21)");
}

#[test]
fn x19_an_empty_pool_makes_room_for_the_next_path_at_once_and_is_waited_for_without_one() {
    let rig = rig(POOL);
    let (alone, more) = (config(&[DRAWN], "any", ""), config(&[DRAWN, fallback::MACVLAN], "any", ""));
    rig.add_as("c1", &alone).unwrap();
    rig.add_as("c2", &alone).unwrap();
    let before = Instant::now();
    assert_eq!(device(&rig.add_as("c3", &more).unwrap()), "none");
    assert!(before.elapsed() < Duration::from_secs(5), "it did not wait");
    std::thread::scope(|s| {
        let waits = s.spawn(|| rig.add_as("c4", &alone));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished());
        rig.call(named(rig.request(Command::Del, "c1", &alone))).unwrap();
        rig.reap();
        rig.engine().core.kinds.sriov.pools.work_here();
        assert_eq!(device(&waits.join().unwrap().unwrap()), VF);
    });
}

#[test]
fn x19_a_pool_that_is_not_there_or_is_kubelets_is_told_and_a_wrong_driver_too() {
    let rig =
        rig(&POOL.replace("}}]", "}}, {name: given, selectors: {vendors: ['15b3']}, allocator: external}]"));
    let told = |path: &str| rig.add_as("c1", &config(&[path], "any", "")).unwrap_err().to_string();
    for (path, wanted) in [
        (r#"{"type":"sriov","pool":"other"}"#, "there is no pool \"other\" in the configuration"),
        (r#"{"type":"sriov","pool":"given"}"#, "pool \"given\" is given out by kubelet"),
        (
            r#"{"type":"sriov","pool":"radio","driver":"vfio-pci"}"#,
            "is bound to igbvf, and the path asks for another",
        ),
    ] {
        let told = told(path);
        assert!(told.contains(wanted), "{told}");
    }
    assert_eq!(rig.states(), ["ready", "ready"], "what was not taken is ready again");
}

#[test]
fn x19_a_vf_under_vfio_is_available_only_where_the_pod_can_reach_it() {
    let rig = rig(&POOL.replace("'8086']}", "'8086']}, driver: vfio-pci"));
    let path = |more: &str| format!(r#"{{"type":"sriov","pool":"radio"{more}}}"#);
    let drawn = path("");
    rig.add_as("c1", &config(&[&drawn, fallback::MACVLAN], "any", "")).unwrap();
    let why = rig.row_of("c1")["passedOver"][0].as_str().unwrap().to_owned();
    assert!(why.contains("kubelet has not given it to the pod"), "{why}");
    let on_host = path(r#","deviceAccess":"host""#);
    assert_eq!(device(&rig.add_as("c2", &config(&[&on_host], "any", "")).unwrap()), VF);
}

#[test]
fn x19_d23_a_path_by_a_pool_that_kubelet_gives_out_has_what_kubelet_gave_the_pod_also_under_vfio() {
    let rig = rig(&POOL.replace("'8086']}", "'8086']}, driver: vfio-pci, resourceName: intel.com/radio"));
    let kubelet = FakeKubelet::running(&rig.root);
    kubelet.answers.lock().unwrap().pods = vec![
        pod("ran", "du-0", &[("app", &[("intel.com/radio", SECOND, 1)])]),
        pod("ran", "du-1", &[("app", &[("intel.com/radio", VF, 1)])]),
    ];
    let path = r#"{"type":"sriov","pool":"radio","driver":"vfio-pci"}"#;
    let add = |container: &str, pod: &str, config: &str| {
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ran;K8S_POD_NAME={pod}");
        let request = rig.request(Command::Add, container, config);
        rig.call(named(Request { args, ..request }))
    };
    let first = add("c1", "du-0", &config(&[path, fallback::MACVLAN], "any", ""));
    assert_eq!(device(&first.unwrap()), SECOND);
    // As Multus passes it.
    let of_multus = format!(r#","deviceID":"{VF}","pciBusID":"{VF}""#);
    assert_eq!(device(&add("c2", "du-1", &config(&[path], "any", &of_multus)).unwrap()), VF);
}
