//! Whole machines as a scan tells them. The cards are written after the kernel's documentation
//! (`Documentation/networking/device_drivers/ethernet/{intel/i40e,intel/ice,mellanox/mlx5/}`, `Documentation/networking/
//! {switchdev,representors}.rst`, `Documentation/driver-api/vfio.rst`, `Documentation/ABI/testing/sysfs-bus-pci`,
//! `sysfs-class-net`, `sysfs-class-infiniband`) and the PCI id list.

use std::sync::Arc;

use fairlead_host::{DevlinkDevice, DevlinkEnd, DevlinkPort};
use fairlead_sriov::{LinkType, Model, ScannedPf, ScannedVf};

use crate::machine::{Card, I40E, ICE, MLX5, Machine, at};

fn scanned(machine: &Machine) -> Vec<ScannedPf> {
    let scan = machine.inventory().scan(&[]).unwrap();
    assert!(scan.unreadable.is_empty(), "{:?}", scan.unreadable);
    scan.physical
}

fn vfs(machine: &Machine) -> Vec<ScannedVf> {
    scanned(machine).into_iter().flat_map(|physical| physical.vfs).collect()
}

#[test]
fn cards_of_two_kinds_are_told_in_the_order_of_their_addresses_with_all_that_they_have() {
    let machine = Machine::new();
    machine.physical(ICE, "0000:98:00.0", "ens7f0", 1);
    machine.vf(ICE, "0000:98:00.0", 0, "0000:98:01.0", 1);
    machine.interface("0000:98:01.0", "ens7f0v0", "1");
    machine.group("0000:98:01.0", 120);
    machine.physical(I40E, "0000:3b:00.0", "eno1", 0);
    machine.vf(I40E, "0000:3b:00.0", 0, "0000:3b:02.0", 0);
    machine.attribute("0000:3b:02.0", "acpi_index", "101");
    let [i40e, ice] = &scanned(&machine)[..] else { panic!("two cards") };
    assert_eq!((i40e.address, i40e.driver.as_deref()), (at("0000:3b:00.0"), Some("i40e")));
    assert_eq!((ice.address, ice.numa_node, ice.most, ice.has), (at("0000:98:00.0"), Some(1), 64, 1));
    let own = ice.interface.as_ref().unwrap();
    assert_eq!(
        (own.name.as_str(), own.link_type, own.carrier),
        ("ens7f0", Some(LinkType::Ether), Some(true))
    );
    let vf = &ice.vfs[0];
    assert_eq!(vf.model, Model { vendor: 0x8086, device: 0x1889 });
    assert_eq!((vf.link_type, vf.acpi_index), (Some(LinkType::Ether), None));
    assert_eq!(vf.vf.physical.interfaces, ["ens7f0"]);
    assert_eq!((vf.group.len(), &vf.representor), (0, &None));
    let vf = &i40e.vfs[0];
    assert_eq!((vf.link_type, vf.acpi_index), (None, Some(101)));
    assert_eq!(vf.vf, machine.inventory().vf(at("0000:3b:02.0")).unwrap());
}

/// `cat /sys/class/net/*/phys_port_name` in switchdev mode: p0, pf0vf0, pf0vf1 (kernel commit c12ecc230564).
fn switchdev() -> Machine {
    let machine = Machine::new();
    let pf = "0000:08:00.0";
    machine.physical(MLX5, pf, "enp8s0f0np0", 0);
    for (name, port) in
        [("enp8s0f0np0", "p0"), ("a0", "pf0vf0"), ("a1", "pf0vf1"), ("a2", "c1pf0vf1"), ("a3", "pf0")]
    {
        machine.interface(pf, name, "1");
        machine.attribute(pf, &format!("net/{name}/phys_switch_id"), "a4f16d00038ccc08");
        machine.attribute(pf, &format!("net/{name}/phys_port_name"), port);
    }
    for (index, address) in [(0, "0000:08:00.2"), (1, "0000:08:00.3"), (2, "0000:08:00.4")] {
        machine.vf(MLX5, pf, index, address, 0);
        machine.attribute(address, &format!("infiniband/mlx5_{index}/ports/1/pkeys/0"), "0xffff");
        machine.attribute(address, &format!("infiniband_mad/umad{index}"), "");
        machine.attribute(address, &format!("infiniband_mad/issm{index}"), "");
        machine.attribute(address, &format!("infiniband_verbs/uverbs{index}"), "");
    }
    machine
}

#[test]
fn an_mlx5_in_switchdev_mode_has_its_uplink_the_representors_of_its_vfs_and_their_rdma_devices() {
    let machine = switchdev();
    let card = &scanned(&machine)[0];
    assert_eq!(card.interface.as_ref().unwrap().name, "enp8s0f0np0", "not the first of its interfaces");
    assert!(card.switchdev);
    let of = |index: usize| card.vfs[index].representor.as_deref();
    assert_eq!([of(0), of(1), of(2)], [Some("a0"), Some("a1"), None]);
    let vf = &card.vfs[1];
    assert_eq!(vf.rdma.devices, ["mlx5_1"]);
    assert_eq!(vf.rdma.nodes, ["issm1", "umad1", "uverbs1"]);
    assert_eq!(vf.partition_key, Some(0xffff));
}

fn told(switchdev: bool, ports: &[(DevlinkEnd, &str)]) -> [DevlinkDevice; 2] {
    let ports = ports.iter().map(|(end, link)| DevlinkPort { end: *end, link: Some((*link).to_owned()) });
    let of = |name: &str, ports| DevlinkDevice {
        bus: "pci".to_owned(),
        name: name.to_owned(),
        switchdev: Some(switchdev),
        ports,
    };
    let strangers = vec![DevlinkPort { end: DevlinkEnd::Vf(2), link: Some("b2".to_owned()) }];
    [of("0000:08:00.1", strangers), of("0000:08:00.0", ports.collect())]
}

#[test]
fn what_devlink_says_goes_before_the_names_in_sysfs_and_these_before_nothing() {
    let machine = switchdev();
    let devlink = told(
        true,
        &[
            (DevlinkEnd::Wire, "a3"),
            (DevlinkEnd::Vf(1), "a0"),
            (DevlinkEnd::Other, "a1"),
            (DevlinkEnd::Vf(2), "kept_elsewhere"), // before kernel 5.9 it hangs on no device
        ],
    );
    let scan = machine.inventory().scan(&devlink).unwrap();
    let card = &scan.physical[0];
    assert_eq!(card.interface.as_ref().unwrap().name, "a3");
    let of = |index: usize| card.vfs[index].representor.as_deref();
    assert_eq!([of(0), of(1), of(2)], [None, Some("a0"), Some("kept_elsewhere")]);
    let asked = |index| {
        machine.inventory().representor(at("0000:08:00.0"), index, || devlink.to_vec().into()).unwrap()
    };
    assert_eq!([asked(0).as_deref(), asked(1).as_deref()], [None, Some("a0")]);
}

#[test]
fn switchdev_mode_is_what_devlink_says_with_representors_or_without() {
    let machine = switchdev();
    let is_switchdev = |machine: &Machine, devlink: &[DevlinkDevice]| {
        machine.inventory().scan(devlink).unwrap().physical[0].switchdev
    };
    // ice shows the switch in legacy mode, too.
    assert!(!is_switchdev(&machine, &told(false, &[])));
    let machine = Machine::new();
    machine.physical(MLX5, "0000:08:00.0", "enp8s0f0np0", 0);
    assert!(!is_switchdev(&machine, &[]));
    assert!(is_switchdev(&machine, &told(true, &[(DevlinkEnd::Wire, "enp8s0f0np0")])));
    let unasked = || -> Arc<[DevlinkDevice]> { panic!("a card without a switch has no representors") };
    assert_eq!(machine.inventory().representor(at("0000:08:00.0"), 0, unasked).unwrap(), None);
}

#[test]
fn sixty_four_vfs_on_two_buses_are_in_the_order_of_their_numbers() {
    let machine = Machine::new();
    machine.physical(ICE, "0000:98:00.0", "ens7f0", 1);
    let address = |index: u32| {
        format!("0000:{:02x}:{:02x}.{}", 0x98 + (8 + index) / 40, (8 + index) / 8 % 5, index % 8)
    };
    for index in (0..64).rev() {
        machine.vf(ICE, "0000:98:00.0", index, &address(index), 1);
    }
    let found = vfs(&machine);
    assert_eq!(found.len(), 64);
    for (index, vf) in (0..).zip(found) {
        assert_eq!((vf.vf.index, vf.vf.address), (index, at(&address(index))));
    }
}

#[test]
fn a_card_without_a_node_has_none_and_each_cluster_of_a_socket_is_a_node_of_its_own() {
    let machine = Machine::new();
    // Sub-NUMA clustering: two nodes a socket, and the slots of one socket are on both.
    for (bus, node) in [("05", -1), ("17", 0), ("3a", 1), ("85", 2), ("ae", 3)] {
        let pf = format!("0000:{bus}:00.0");
        machine.physical(ICE, &pf, &format!("e{bus}"), node);
        machine.vf(ICE, &pf, 0, &format!("0000:{bus}:01.0"), node);
    }
    let nodes: Vec<_> = vfs(&machine).iter().map(|found| found.vf.numa_node).collect();
    assert_eq!(nodes, [None, Some(0), Some(1), Some(2), Some(3)]);
}

#[test]
fn the_other_members_of_a_group_are_told_with_who_has_them_and_a_bridge_is_in_nobodys_way() {
    let machine = Machine::new();
    // Behind a bridge without ACS everything is one group.
    machine.device("0000:16:00.0", "pcieport", &[], 0);
    machine.attribute("0000:16:00.0", "class", "0x060400");
    machine.physical(I40E, "0000:17:00.0", "eno1", 0);
    machine.vf(I40E, "0000:17:00.0", 0, "0000:17:02.0", 0);
    machine.vf(Card { vf: ("154c", "vfio-pci"), ..I40E }, "0000:17:00.0", 1, "0000:17:02.1", 0);
    machine.vf(Card { vf: ("154c", ""), ..I40E }, "0000:17:00.0", 2, "0000:17:02.2", 0);
    for address in ["0000:16:00.0", "0000:17:00.0", "0000:17:02.0", "0000:17:02.1", "0000:17:02.2"] {
        machine.group(address, 7);
    }
    let group = &vfs(&machine)[0].group;
    assert_eq!(*group, machine.inventory().group_of(at("0000:17:02.0")).unwrap());
    let told: Vec<_> =
        group.iter().map(|member| (member.device.as_str(), member.is_in_the_way_of_vfio())).collect();
    let wanted =
        [("0000:16:00.0", false), ("0000:17:00.0", true), ("0000:17:02.1", false), ("0000:17:02.2", false)];
    assert_eq!(told, wanted);
}

#[test]
fn an_interface_that_is_down_has_no_carrier_and_one_that_was_moved_away_is_none() {
    let machine = Machine::new();
    machine.physical(ICE, "0000:98:00.0", "ens7f0", 1);
    std::fs::remove_file(machine.dir("0000:98:00.0").join("net/ens7f0/carrier")).unwrap();
    assert_eq!(scanned(&machine)[0].interface.as_ref().unwrap().carrier, None);
    std::fs::remove_dir_all(machine.dir("0000:98:00.0").join("net")).unwrap();
    assert_eq!(scanned(&machine)[0].interface, None);
}

#[test]
fn what_is_no_network_card_is_not_told_and_a_machine_without_pci_has_nothing() {
    let machine = Machine::new();
    assert!(scanned(&machine).is_empty());
    // NVMe controllers have VFs too.
    machine.physical(Card { physical: ("0010", "nvme"), ..MLX5 }, "0000:21:00.0", "none", 0);
    machine.attribute("0000:21:00.0", "class", "0x010802");
    machine.device("0000:00:1f.0", "", &[], 0);
    assert!(scanned(&machine).is_empty());
}

#[test]
fn one_that_vanishes_is_left_out_and_one_that_cannot_be_read_keeps_no_other_from_being_read() {
    let machine = Machine::new();
    machine.physical(ICE, "0000:98:00.0", "ens7f0", 1);
    for index in 0..3 {
        machine.vf(ICE, "0000:98:00.0", index, &format!("0000:98:01.{index}"), 1);
    }
    std::fs::remove_dir_all(machine.dir("0000:98:01.0")).unwrap();
    let card = &scanned(&machine)[0];
    assert_eq!((card.vfs[0].vf.index, card.vfs.len(), card.has), (1, 2, 3));
    std::fs::remove_file(machine.dir("0000:98:01.1").join("numa_node")).unwrap();
    machine.attribute("0000:98:01.1", "numa_node", "");
    let scan = machine.inventory().scan(&[]).unwrap();
    assert_eq!(scan.physical[0].vfs[0].vf.address, at("0000:98:01.2"));
    let told: Vec<_> = scan.unreadable.iter().map(ToString::to_string).collect();
    assert!(told.len() == 1 && told[0].contains("0000:98:01.1/numa_node"), "{told:?}");
}
