//! A `master` that is a list: the new interface stands on the one nearest to the pod.

use std::fs;

use fairlead_host::{NetKernel, Op, Parent};
use fairlead_kubelet::fake_kubelet::{FakeKubelet, pod};

use super::*;
use crate::call::Lane;

/// Two NICs, on nodes 0 and 1, and one that no machine tells the node of.
pub(super) fn rig() -> Rig {
    let rig = Rig::new();
    let sys = rig.dir.path().join("sys");
    let put = |path: String, text: &str| {
        let path = sys.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put("devices/system/node/online".into(), "0-1\n");
    for (node, cpus, distance) in [(0, "0-1\n", "10 21\n"), (1, "2-3\n", "21 10\n")] {
        put(format!("devices/system/node/node{node}/cpulist"), cpus);
        put(format!("devices/system/node/node{node}/distance"), distance);
        put(format!("class/net/nic{node}/device/numa_node"), &format!("{node}\n"));
        rig.kernel.add_host_link(&format!("nic{node}"));
    }
    rig
}

fn on(kind: &str, masters: &str, more: &str) -> String {
    format!(r#"{{"cniVersion":"1.1.0","name":"net","type":"{kind}","master":{masters}{more}}}"#)
}

fn of_node(node: u32) -> String {
    format!(r#","args":{{"cni":{{"numaNodes":[{node}]}}}}"#)
}

/// The host's interface that the last one made stands on.
pub(super) fn stands_on(rig: &Rig) -> String {
    let made = rig.ops().into_iter().rev().find_map(|op| match op {
        Op::CreateLink(new) => Some(new.parent),
        _ => None,
    });
    let Some(Parent::Host(index)) = made else { panic!("{made:?}") };
    rig.kernel.host().unwrap().link_by_index(index).unwrap().unwrap().name
}

#[test]
fn x09_of_several_masters_the_nearest_to_the_pod_is_taken_and_told() {
    for (kind, more) in
        [("macvlan", ""), ("ipvlan", r#","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}"#)]
    {
        for (node, nearest) in [(0, "nic0"), (1, "nic1")] {
            let rig = rig();
            let before = rig.state();
            let config = on(kind, r#"["eth0","absent0","nic0","nic1"]"#, &format!("{more}{}", of_node(node)));
            let answer = rig.add(&config).unwrap();
            assert_eq!(stands_on(&rig), nearest, "{kind} {node}");
            let row = &rig.engine().table("attachments").unwrap()[0];
            assert_eq!(row["near"], format!("on the pod's NUMA node {node}"), "{row}");
            rig.check(&config, &answer).unwrap();
            rig.del(&config).unwrap();
            rig.reap();
            assert_eq!(rig.state(), before);
        }
    }
}

#[test]
fn x09_the_master_nearest_to_the_cpus_that_kubelet_gave_the_pod_is_taken() {
    for (cpus, node) in [([0, 1], 0), ([2, 3], 1)] {
        let rig = rig();
        let kubelet = FakeKubelet::running(&rig.root);
        let mut du = pod("ran", "du-0", &[("app", &[])]);
        du.containers[0].cpu_ids = cpus.to_vec();
        kubelet.answers.lock().unwrap().pods = vec![pod("ran", "du-1", &[("app", &[])]), du];
        let config = on("macvlan", r#"["eth0","nic0","nic1"]"#, "");
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ran;K8S_POD_NAME=du-0;K8S_POD_UID=u".to_owned();
        rig.call(Request { args, ..rig.request(Command::Add, "c1", &config) }).unwrap();
        assert_eq!(stands_on(&rig), format!("nic{node}"));
        let row = &rig.engine().table("attachments").unwrap()[0];
        assert_eq!(row["near"], format!("on the pod's NUMA node {node}"), "{row}");
    }
}

#[test]
fn where_nobody_knows_the_pod_the_first_master_that_there_is_is_taken() {
    let rig = rig();
    rig.add(&on("macvlan", r#"["absent0","nic1","nic0"]"#, "")).unwrap();
    assert_eq!(stands_on(&rig), "nic1");
}

#[test]
fn x09_strict_refuses_where_no_master_is_near_and_where_none_is_there_the_next_path_is_taken() {
    let rig = rig();
    let paths = |masters: &str, numa: &str| {
        format!(
            r#"{{"cniVersion":"1.1.0","name":"net","type":"fairlead","numa":"{numa}","paths":[{{"type":"macvlan","master":{masters}}},{{"type":"macvlan","master":"eth0"}}],"ipam":{{}}{}}}"#,
            of_node(1)
        )
    };
    let told = rig.add(&paths(r#"["nic0","eth0"]"#, "strict")).unwrap_err();
    assert!(told.msg.contains("no device is on the pod's NUMA node 1"), "{told}");
    assert!(told.details.contains("numa: preferred"), "{told:?}");
    rig.add(&paths(r#"["gone0","gone1"]"#, "strict")).unwrap();
    assert_eq!(stands_on(&rig), "eth0");
}

#[test]
fn a_list_of_masters_of_which_none_is_there_is_told_with_all_names() {
    let rig = rig();
    let told = rig.add(&on("macvlan", r#"["gone0","gone1"]"#, "")).unwrap_err();
    assert!(told.msg.contains(r#"master "gone0" or "gone1": the host has no interface"#), "{told}");
}

#[test]
fn an_add_that_may_ask_kubelet_which_master_is_near_keeps_no_thread_of_the_fast_lane() {
    let rig = rig();
    let lane = |config: &str| rig.prepare(rig.request(Command::Add, "c1", config)).lane();
    let (one, several) = (on("macvlan", r#""nic0""#, ""), on("macvlan", r#"["nic0","nic1"]"#, ""));
    assert_eq!((lane(&one), lane(&several)), (Lane::Fast, Lane::Fast), "there is no kubelet");
    let _kubelet = FakeKubelet::running(&rig.root);
    assert_eq!((lane(&one), lane(&several)), (Lane::Fast, Lane::Slow));
}
