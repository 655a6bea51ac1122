//! X9: the choice of a device for the pod's NUMA node.

use std::fs;
use std::path::Path;

use proptest::collection::{btree_set, vec};
use proptest::option::of;
use proptest::prelude::*;

use super::*;

/// Three nodes: 0 and 1 are clusters of one socket, 2 is the other socket.
const DISTANCES: [[u32; 3]; 3] = [[10, 12, 21], [12, 10, 21], [21, 21, 10]];

fn machine() -> Topology {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    Topology::read(dir.path()).unwrap()
}

fn write(sysfs: &Path) {
    let nodes = sysfs.join("devices/system/node");
    for (number, distances) in DISTANCES.iter().enumerate() {
        let dir = nodes.join(format!("node{number}"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("cpulist"), format!("{}-{}\n", number * 4, number * 4 + 3)).unwrap();
        fs::write(dir.join("distance"), distances.map(|d| d.to_string()).join(" ")).unwrap();
    }
    fs::write(nodes.join("online"), "0-2\n").unwrap();
}

fn nodes<const N: usize>(nodes: [u32; N]) -> BTreeSet<u32> {
    nodes.into()
}

#[test]
fn x09_the_order_of_the_devices_for_every_policy() {
    use NumaPolicy::{Any, Preferred, Strict};
    let topology = machine();
    let devices = [None, Some(2), Some(1), Some(0), Some(1)];
    type Row = (NumaPolicy, &'static [u32], Result<&'static [usize], &'static str>);
    let table: [Row; 10] = [
        (Any, &[1], Ok(&[0, 1, 2, 3, 4])),
        (Any, &[], Ok(&[0, 1, 2, 3, 4])),
        (Preferred, &[], Ok(&[0, 1, 2, 3, 4])),
        (Preferred, &[1], Ok(&[2, 4, 3, 1, 0])),
        (Preferred, &[2], Ok(&[1, 2, 3, 4, 0])),
        (Preferred, &[0, 2], Ok(&[1, 3, 2, 4, 0])),
        (Preferred, &[9], Ok(&[0, 1, 2, 3, 4])),
        (Strict, &[1], Ok(&[2, 4])),
        (Strict, &[], Err("the pod's NUMA node is not known")),
        (
            Strict,
            &[9],
            Err(
                "on the pod's NUMA node 9, and numa is strict: those that there are lie on none that the machine tells, 0, 1, 2",
            ),
        ),
    ];
    for (policy, pod, expected) in table {
        let found = order(policy, &pod.iter().copied().collect(), &devices, &topology);
        match (found, expected) {
            (Ok(choices), Ok(expected)) => {
                let at: Vec<usize> = choices.iter().map(|choice| choice.at).collect();
                assert_eq!(at, expected, "{policy:?} {pod:?}");
            }
            (Err(error), Err(says)) => assert!(error.to_string().contains(says), "{error}"),
            (found, _) => panic!("{policy:?} {pod:?}: {found:?}"),
        }
    }
}

#[test]
fn x09_a_pod_on_several_nodes_gets_the_device_with_the_smallest_total_distance() {
    let topology = machine();
    let choices = order(NumaPolicy::Preferred, &nodes([0, 1]), &[Some(2), Some(1)], &topology).unwrap();
    assert_eq!(choices[0], Choice { at: 1, locality: Locality::Local { node: 1, distance: Some(22) } });
    assert_eq!(choices[1].locality.to_string(), "on NUMA node 2, while the pod is on 0 and 1 (distance 42)");
}

#[test]
fn x09_a_device_that_kubelet_has_chosen_is_verified_by_strict_and_told_by_preferred() {
    let topology = machine();
    let remote = verify(NumaPolicy::Preferred, &nodes([1]), Some(2), &topology).unwrap();
    assert_eq!(remote.to_string(), "on NUMA node 2, while the pod is on 1 (distance 21)");
    let local = Locality::Local { node: 1, distance: Some(10) };
    assert_eq!(verify(NumaPolicy::Strict, &nodes([1]), Some(1), &topology), Ok(local));
    let refused = verify(NumaPolicy::Strict, &nodes([1]), Some(2), &topology).unwrap_err();
    assert!(refused.to_string().contains("the pod's NUMA node 1, and numa is strict"), "{refused}");
    let nowhere = verify(NumaPolicy::Strict, &nodes([1]), None, &topology).unwrap_err();
    assert!(nowhere.to_string().contains("none that the machine tells"), "{nowhere}");
    assert_eq!(verify(NumaPolicy::Preferred, &nodes([1]), None, &topology), Ok(Locality::Nowhere));
    let unknown = verify(NumaPolicy::Strict, &nodes([]), Some(1), &topology).unwrap_err();
    assert!(unknown.remedy().contains("CPU manager") && unknown.remedy().contains("args.cni.numaNodes"));
    assert_eq!(verify(NumaPolicy::Any, &nodes([]), None, &topology), Ok(Locality::Any));
}

#[test]
fn x09_the_pods_nodes_are_its_processors_else_its_memorys_else_its_devices() {
    let topology = machine();
    let mut pod = Assigned { cpus: nodes([4, 9]), memory_nodes: nodes([0]), device_nodes: nodes([2]) };
    assert_eq!(pod.nodes(&topology), nodes([1, 2]));
    pod.cpus = nodes([99]); // offline by now
    assert_eq!(pod.nodes(&topology), nodes([0]));
    pod.memory_nodes.clear();
    assert_eq!(pod.nodes(&topology), nodes([2]));
    assert_eq!(Assigned::default().nodes(&topology), nodes([]));
    assert_eq!(Assigned { cpus: nodes([1]), ..Assigned::default() }.nodes(&Topology::default()), nodes([]));
}

#[test]
fn a_machine_without_numa_serves_everybody_but_strict() {
    let none = Topology::default();
    let devices = [None, Some(0)];
    let order_of = |policy, pod| order(policy, &pod, &devices, &none).map(|all| all.len());
    assert_eq!(order_of(NumaPolicy::Preferred, nodes([])), Ok(2));
    assert_eq!(order_of(NumaPolicy::Strict, nodes([])), Err(NumaRefusal::PodUnknown));
    // Kubelet knows a node of a device that sysfs tells no distance of: its own node's goes first.
    let choices = order(NumaPolicy::Preferred, &nodes([0]), &devices, &none).unwrap();
    assert_eq!(choices[0].at, 1);
}

#[test]
fn no_device_at_all_is_no_refusal_for_a_pod_that_is_somewhere() {
    assert_eq!(order(NumaPolicy::Strict, &nodes([1]), &[], &machine()), Ok(Vec::new()));
}

fn policy() -> impl Strategy<Value = NumaPolicy> {
    prop_oneof![Just(NumaPolicy::Strict), Just(NumaPolicy::Preferred), Just(NumaPolicy::Any)]
}

proptest! {
    #[test]
    fn x09_no_device_is_lost_none_is_made_up_and_a_nearer_one_is_never_behind(
        policy in policy(), pod in btree_set(0_u32..4, 0..4), devices in vec(of(0_u32..4), 0..8),
    ) {
        let topology = machine();
        match order(policy, &pod, &devices, &topology) {
            Ok(choices) => {
                let mut at: Vec<usize> = choices.iter().map(|choice| choice.at).collect();
                if policy != NumaPolicy::Any && !pod.is_empty() {
                    let totals = at.iter().map(|at| devices[*at].and_then(|node| total(&pod, node, &topology)));
                    let far: Vec<u32> = totals.map(|total| total.unwrap_or(u32::MAX)).collect();
                    prop_assert!(far.is_sorted(), "{far:?}");
                } else {
                    prop_assert!(at.is_sorted(), "nothing is preferred");
                }
                at.sort_unstable();
                let may = |at: &usize| policy != NumaPolicy::Strict || devices[*at].is_some_and(|n| pod.contains(&n));
                let all: Vec<usize> = (0..devices.len()).filter(may).collect();
                prop_assert_eq!(at, all);
            }
            Err(refusal) => {
                prop_assert_eq!(policy, NumaPolicy::Strict);
                prop_assert_eq!(pod.is_empty(), refusal == NumaRefusal::PodUnknown);
                prop_assert!(!devices.iter().flatten().any(|node| pod.contains(node)) || pod.is_empty());
            }
        }
    }

    #[test]
    fn x09_a_given_device_is_refused_exactly_where_it_could_not_have_been_chosen(
        policy in policy(), pod in btree_set(0_u32..4, 0..4), device in of(0_u32..4),
    ) {
        let topology = machine();
        let chosen = order(policy, &pod, &[device], &topology).map(|choices| choices[0].locality.clone());
        prop_assert_eq!(verify(policy, &pod, device, &topology), chosen);
    }
}
