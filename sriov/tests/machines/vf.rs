//! One VF at a time: an Intel 82576 as captured from the lab, and what it cannot show, written after the kernel's
//! `Documentation/ABI/testing/sysfs-bus-pci`, its mlx5 and ice documentation and `PCI/iov.c`.

use std::fs;
use std::os::unix::fs::symlink;

use fairlead_host::{DevlinkDevice, DevlinkEnd, DevlinkPort};
use fairlead_sriov::InventoryError;

use crate::machine::{MLX5, Machine, at};

#[test]
fn a_vf_of_the_labs_igb_is_read_whole() {
    let machine = Machine::new();
    machine.device("0000:21:00.0", "igb", &["eth2"], 0);
    machine.device("0000:21:10.0", "igbvf", &["eth3"], 0);
    machine.device("0000:21:10.2", "igbvf", &["eth4"], 0);
    machine.virtual_of("0000:21:00.0", 0, "0000:21:10.0");
    machine.virtual_of("0000:21:00.0", 1, "0000:21:10.2");
    machine.group("0000:21:10.2", 20);
    let vf = machine.inventory().vf(at("0000:21:10.2")).unwrap();
    assert_eq!((vf.index, vf.physical.address), (1, at("0000:21:00.0")));
    assert_eq!(vf.physical.interfaces, ["eth2"]);
    assert_eq!(vf.interfaces, ["eth4"]);
    assert_eq!(vf.driver.as_deref(), Some("igbvf"));
    assert_eq!((vf.iommu_group, vf.numa_node), (Some(20), Some(0)));
}

#[test]
fn a_vf_behind_another_bus_and_domain_is_its_pfs_all_the_same() {
    // More VFs than a bus has room for go on to the next one; a VMD controller opens a domain of its own.
    let machine = Machine::new();
    machine.device("10000:e1:00.0", "ice", &["ens801f0"], 1);
    machine.device("10000:e2:01.0", "iavf", &["ens801f0v255"], 1);
    machine.virtual_of("10000:e1:00.0", 255, "10000:e2:01.0");
    let vf = machine.inventory().vf(at("10000:e2:01.0")).unwrap();
    assert_eq!((vf.index, vf.physical.address), (255, at("10000:e1:00.0")));
}

#[test]
fn a_node_of_minus_1_is_no_node_and_a_machine_without_an_iommu_has_no_groups() {
    let machine = Machine::new();
    machine.device("0000:01:00.0", "igb", &["eth0"], -1);
    machine.device("0000:01:10.0", "igbvf", &["eth5"], -1);
    machine.virtual_of("0000:01:00.0", 0, "0000:01:10.0");
    let vf = machine.inventory().vf(at("0000:01:10.0")).unwrap();
    assert_eq!((vf.numa_node, vf.iommu_group), (None, None));
}

#[test]
fn an_mlx5_in_switchdev_mode_shows_its_representors_beside_its_own_interface() {
    // mlx5 switchdev: the uplink and the representors of all VFs hang on the PF's device.
    let machine = Machine::new();
    machine.device("0000:08:00.0", "mlx5_core", &["enp8s0f0np0", "enp8s0f0npf0vf0", "enp8s0f0npf0vf1"], 0);
    machine.device("0000:08:00.2", "mlx5_core", &["enp8s0f0v0"], 0);
    machine.virtual_of("0000:08:00.0", 0, "0000:08:00.2");
    let vf = machine.inventory().vf(at("0000:08:00.2")).unwrap();
    assert_eq!(vf.physical.interfaces, ["enp8s0f0np0", "enp8s0f0npf0vf0", "enp8s0f0npf0vf1"]);
    assert_eq!(vf.driver.as_deref(), Some("mlx5_core"));
}

#[test]
fn the_uplink_that_devlink_named_is_the_pfs_own_interface_without_a_reading_of_each_representor() {
    let machine = Machine::new();
    machine.device("0000:08:00.0", "mlx5_core", &["enp8s0f0np0", "enp8s0f0npf0vf0"], 0);
    machine.attribute("0000:08:00.0", "net/enp8s0f0npf0vf0/phys_switch_id", ""); // cannot be read
    let own = |uplink: &str| {
        let port = |end, link: &str| DevlinkPort { end, link: Some(link.to_owned()) };
        let devlink = DevlinkDevice {
            bus: "pci".to_owned(),
            name: "0000:08:00.0".to_owned(),
            switchdev: Some(true),
            ports: vec![port(DevlinkEnd::Vf(0), "enp8s0f0npf0vf0"), port(DevlinkEnd::Wire, uplink)],
        };
        machine.inventory().own_interface(at("0000:08:00.0"), &[devlink])
    };
    assert_eq!(own("enp8s0f0np0").unwrap().as_deref(), Some("enp8s0f0np0"));
    // It has another name by now: sysfs is asked.
    assert!(matches!(own("p0"), Err(InventoryError::Io { .. })));
}

#[test]
fn an_rdma_device_is_in_nobodys_way_until_each_is_in_one_network_namespace_alone() {
    let machine = Machine::new();
    machine.physical(MLX5, "0000:08:00.0", "enp8s0f0np0", 0);
    machine.vf(MLX5, "0000:08:00.0", 0, "0000:08:00.2", 0);
    machine.vf(MLX5, "0000:08:00.0", 1, "0000:08:00.3", 0);
    machine.attribute("0000:08:00.2", "infiniband/mlx5_2", "");
    let unserved = |address| machine.inventory().unserved(at(address)).unwrap();
    assert_eq!(unserved("0000:08:00.2"), None, "a kernel without ib_core");
    let mode = "module/ib_core/parameters/netns_mode"; // drivers/infiniband/core/device.c
    machine.of_the_machine(mode, "Y");
    assert_eq!(unserved("0000:08:00.2"), None);
    machine.of_the_machine(mode, "N");
    let told = unserved("0000:08:00.2").unwrap().to_string();
    assert!(told.starts_with("VF 0000:08:00.2 has RDMA device mlx5_2, and RDMA devices are"), "{told}");
    assert_eq!(unserved("0000:08:00.3"), None, "one that has none");
}

#[test]
fn what_a_vf_speaks_is_told_by_its_interface_and_without_one_by_its_pfs() {
    let machine = Machine::new();
    machine.physical(MLX5, "0000:5e:00.0", "ib0", 0);
    machine.vf(MLX5, "0000:5e:00.0", 0, "0000:5e:00.1", 0);
    let speaks_infiniband = || {
        let inventory = machine.inventory();
        inventory.speaks_infiniband(&inventory.vf(at("0000:5e:00.1")).unwrap()).unwrap()
    };
    assert!(!speaks_infiniband());
    machine.interface("0000:5e:00.0", "ib0", "32");
    assert!(speaks_infiniband(), "as under vfio-pci");
    machine.interface("0000:5e:00.1", "ib0v0", "1");
    assert!(!speaks_infiniband(), "a card whose ports speak one each");
    machine.interface("0000:5e:00.1", "ib0v0", "32");
    assert!(speaks_infiniband());
}

#[test]
fn a_vf_that_a_vdpa_device_is_made_of_is_told_as_that() {
    // ifcvf hangs it on the VF itself; drivers/vdpa/pds on an auxiliary device of it.
    let machine = Machine::new();
    let unserved = |address| machine.inventory().unserved(at(address)).unwrap();
    assert_eq!(unserved("0000:65:00.2"), None);
    machine.vdpa("vdpa0", "0000:65:00.2");
    machine.vdpa("vdpa1", "0000:65:00.3/pds_core.vDPA.1");
    for (address, device) in [("0000:65:00.2", "vdpa0"), ("0000:65:00.3", "vdpa1")] {
        let told = unserved(address).unwrap().to_string();
        assert_eq!(told, format!("VF {address} is vDPA device {device}, which is not served yet"));
    }
    assert_eq!(unserved("0000:65:00.4"), None);
}

#[test]
fn a_vf_without_driver_or_interface_is_read_as_such() {
    let machine = Machine::new();
    machine.device("0000:21:00.0", "igb", &["eth2"], 0);
    machine.device("0000:21:10.0", "", &[], 0);
    machine.virtual_of("0000:21:00.0", 0, "0000:21:10.0");
    let vf = machine.inventory().vf(at("0000:21:10.0")).unwrap();
    assert_eq!((vf.driver, vf.interfaces), (None, Vec::new()));
}

#[test]
fn a_vf_that_is_made_again_at_its_address_is_another_one() {
    let (machine, vf) = (Machine::new(), at("0000:21:10.0"));
    let make = || {
        machine.device("0000:21:10.0", "igbvf", &[], 0);
        symlink("../0000:21:00.0", machine.dir("0000:21:10.0").join("physfn")).unwrap();
    };
    machine.device("0000:21:00.0", "igb", &["eth2"], 0);
    symlink("../0000:21:10.0", machine.dir("0000:21:00.0").join("virtfn0")).unwrap();
    let inventory = machine.inventory();
    assert_eq!(inventory.inode(vf).unwrap(), None);
    make();
    let had = inventory.inode(vf).unwrap();
    assert!(had.is_some());
    fs::remove_file(machine.dir("0000:21:10.0").join("driver")).unwrap();
    assert_eq!(inventory.vf_with_inode(vf, had).unwrap().driver, None);
    // It stays beside the new one: a file system, other than sysfs, may give its number to the next directory.
    fs::rename(machine.dir("0000:21:10.0"), machine.dir("removed")).unwrap();
    make();
    let another = inventory.vf_with_inode(vf, had).unwrap_err();
    assert_eq!(another.to_string(), "PCI device 0000:21:10.0 was made again: it is another one");
    inventory.vf_with_inode(vf, None).unwrap();
}

#[test]
fn what_is_no_vf_is_refused_with_its_address_and_why() {
    let machine = Machine::new();
    machine.device("0000:21:00.0", "igb", &["eth2"], 0);
    // A VF that was handed to this virtual machine: its PF stayed with the host.
    machine.device("0000:00:05.0", "iavf", &["ens5"], -1);
    machine.device("0000:21:10.0", "igbvf", &[], 0);
    symlink("../0000:21:00.0", machine.dir("0000:21:10.0").join("physfn")).unwrap();
    machine.device("0000:21:10.2", "igbvf", &[], 0);
    symlink("../somewhere", machine.dir("0000:21:10.2").join("physfn")).unwrap();
    let told = |address: &str| machine.inventory().vf(at(address)).unwrap_err().to_string();
    assert_eq!(told("0000:21:00.0"), "PCI device 0000:21:00.0 is no VF");
    assert_eq!(told("0000:00:05.0"), "PCI device 0000:00:05.0 is no VF");
    assert_eq!(told("0000:21:11.0"), "the machine has no PCI device 0000:21:11.0");
    assert!(told("0000:21:10.0").contains("belongs to 0000:21:00.0, which has no such VF"));
    let astray = machine.inventory().vf(at("0000:21:10.2")).unwrap_err();
    assert!(matches!(astray, InventoryError::Astray(path) if path.ends_with("0000:21:10.2/physfn")));
}

#[test]
fn an_interface_that_stands_on_others_is_on_their_node_if_they_have_one_in_common() {
    let machine = Machine::new();
    let put = |path: &str, text: &str| machine.of_the_machine(&format!("class/net/{path}"), text);
    for (interface, node) in [("eth0", "0"), ("eth1", "0"), ("eth2", "1"), ("eth3", "-1")] {
        put(&format!("{interface}/device/numa_node"), node);
    }
    // As `netdev_adjacent_sysfs_add` (net/core/dev.c) shows them, and none for a veth or for a bridge without ports.
    for (above, below) in [
        ("bond0", &["eth0", "eth1"][..]),
        ("bond1", &["eth1", "eth2"]),
        ("bond2", &["eth2", "eth3"]),
        ("vlan2", &["eth2"]),
        ("vlan5", &["bond0"]),
        ("vlan6", &["bond1"]),
        ("up0", &[]),
    ] {
        put(&format!("{above}/ifindex"), "7");
        below.iter().for_each(|below| put(&format!("{above}/lower_{below}/ifindex"), "8"));
    }
    let inventory = machine.inventory();
    let nodes = [
        ("eth0", Some(0)),
        ("eth2", Some(1)),
        ("eth3", None),
        ("bond0", Some(0)),
        ("bond1", None),
        ("bond2", None),
        ("vlan2", Some(1)),
        ("vlan5", Some(0)),
        ("vlan6", None),
        ("up0", None),
        ("absent0", None),
    ];
    for (interface, node) in nodes {
        assert_eq!(inventory.node_of(interface).unwrap(), node, "{interface}");
    }
}
