//! Machines' NUMA nodes as sysfs shows them: the lab's two sockets as captured there, what it cannot show written after
//! the kernel's `Documentation/ABI/stable/sysfs-devices-node` and `drivers/base/node.c`, and this machine's own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use fairlead_host::topology::{Topology, TopologyError, isolated};

/// A sysfs of its own.
struct Machine(tempfile::TempDir);

impl Machine {
    /// Nodes with their processors and distances; `online` as the kernel writes it.
    fn new(online: &str, nodes: &[(u32, &str, &str)]) -> Machine {
        let machine = Machine(tempfile::tempdir().unwrap());
        machine.put("node/online", online);
        for (number, cpus, distances) in nodes {
            machine.put(&format!("node/node{number}/cpulist"), cpus);
            machine.put(&format!("node/node{number}/distance"), distances);
        }
        machine
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.0.path().join("devices/system").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn read(&self) -> Topology {
        Topology::read(self.0.path()).unwrap()
    }

    fn numbers(&self) -> Vec<u32> {
        self.read().nodes().map(|(number, _)| number).collect()
    }
}

#[test]
fn the_labs_two_sockets_are_21_apart() {
    let machine = Machine::new("0-1", &[(0, "0-1", "10 21"), (1, "2-3", "21 10")]);
    let topology = machine.read();
    assert_eq!(machine.numbers(), [0, 1]);
    assert_eq!(
        (topology.node_of_cpu(1), topology.node_of_cpu(2), topology.node_of_cpu(4)),
        (Some(0), Some(1), None)
    );
    assert_eq!(
        (topology.distance(0, 0), topology.distance(0, 1), topology.distance(1, 7)),
        (Some(10), Some(21), None)
    );
}

#[test]
fn sub_numa_clusters_of_a_socket_are_nearer_to_each_other_than_the_other_sockets() {
    // SNC-4 on two sockets: eight nodes, hyperthreads in a second range.
    let far = |node: u32| {
        let one = |other: u32| match (node == other, node / 4 == other / 4) {
            (true, _) => "10",
            (false, true) => "12",
            (false, false) => "21",
        };
        (0..8).map(one).collect::<Vec<_>>().join(" ")
    };
    let cpus = |node: u32| format!("{}-{},{}-{}", node * 8, node * 8 + 7, 64 + node * 8, 64 + node * 8 + 7);
    let nodes: Vec<(u32, String, String)> = (0..8).map(|node| (node, cpus(node), far(node))).collect();
    let given: Vec<(u32, &str, &str)> = nodes.iter().map(|(n, c, d)| (*n, c.as_str(), d.as_str())).collect();
    let topology = Machine::new("0-7", &given).read();
    assert_eq!((topology.node_of_cpu(17), topology.node_of_cpu(64 + 17)), (Some(2), Some(2)));
    assert_eq!((topology.distance(2, 3), topology.distance(2, 6)), (Some(12), Some(21)));
}

#[test]
fn nodes_of_memory_alone_have_no_processors_and_a_distance() {
    let machine =
        Machine::new("0-2", &[(0, "0-7", "10 21 14"), (1, "8-15", "21 10 24"), (2, "", "14 24 10")]);
    let topology = machine.read();
    let (_, cxl) = topology.nodes().last().unwrap();
    assert!(cxl.cpus.is_empty());
    assert_eq!((topology.distance(0, 2), topology.distance(1, 2)), (Some(14), Some(24)));
}

#[test]
fn distances_are_those_of_the_nodes_that_are_online_whatever_their_numbers() {
    let machine = Machine::new("0,2", &[(0, "0-7", "10 32"), (1, "", "x"), (2, "8-15", "32 10")]);
    let topology = machine.read();
    assert_eq!(machine.numbers(), [0, 2]);
    assert_eq!((topology.distance(0, 2), topology.distance(0, 1)), (Some(32), None));
    machine.put("node/online", "0-2");
    machine.put("node/node0/distance", "10 14 32");
    machine.put("node/node1/distance", "14 10 32");
    machine.put("node/node2/distance", "32 32 10");
    assert_eq!(machine.numbers(), [0, 1, 2], "it is read anew");
    assert_eq!(machine.read().distance(0, 1), Some(14));
}

#[test]
fn a_single_node_is_one_and_a_kernel_without_numa_has_none() {
    let one = Machine::new("0", &[(0, "0-3", "10")]);
    assert_eq!((one.numbers(), one.read().node_of_cpu(3)), (vec![0], Some(0)));
    let none = Machine(tempfile::tempdir().unwrap());
    assert_eq!((none.numbers(), none.read().node_of_cpu(0)), (vec![], None));
}

#[test]
fn what_the_kernel_would_not_write_is_told_with_its_file() {
    let machine = Machine::new("0-1", &[(0, "0", "10 21"), (1, "1", "21")]);
    let error = Topology::read(machine.0.path()).unwrap_err();
    assert!(matches!(&error, TopologyError::Distances { online: 2, .. }), "{error}");
    assert!(error.to_string().contains("node1/distance has \"21\" for 2 nodes that are online"), "{error}");
    machine.put("node/online", "many");
    let error = Topology::read(machine.0.path()).unwrap_err().to_string();
    assert!(error.contains("node/online: \"many\" is no list of numbers"), "{error}");
}

#[test]
fn isolated_processors_are_those_of_isolcpus_and_of_nohz_full() {
    let machine = Machine::new("0", &[]);
    assert!(isolated(machine.0.path()).unwrap().is_empty());
    machine.put("cpu/isolated", "");
    machine.put("cpu/nohz_full", "  (null)");
    assert!(isolated(machine.0.path()).unwrap().is_empty());
    machine.put("cpu/isolated", "2-3");
    machine.put("cpu/nohz_full", "3,6-7");
    assert_eq!(isolated(machine.0.path()).unwrap().to_string(), "2-3,6-7");
}

#[test]
fn this_machine_can_be_read() {
    let topology = Topology::read(Path::new("/sys")).unwrap();
    for (number, _) in topology.nodes() {
        assert!(topology.distance(number, number).is_some_and(|own| own >= 1));
    }
    isolated(Path::new("/sys")).unwrap();
}
