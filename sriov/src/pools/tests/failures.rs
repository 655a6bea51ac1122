//! What becomes of members when they break, hang or are somebody else's, and when the daemon dies.

use std::os::unix::fs::symlink;
use std::thread;

use fairlead_host::double::KernelRequest;
use fairlead_host::watch::{Action, DeviceEvent};
use fairlead_host::{Address, AddressFlags, AttachedProgram, NetKernel, Op, ProgramHook};

use super::*;

#[test]
fn x05_killed_at_any_call_of_preparing_or_draining_the_next_start_ends_it() {
    let before = with(POOL).machine();
    for n in 0.. {
        let mut rig = with(POOL);
        rig.restart();
        rig.kernel.forget_calls();
        rig.kernel.fail_from(n, nix::errno::Errno::EIO);
        rig.keep();
        let survived = rig.kernel.calls().len() <= n;
        rig.kernel.heal();
        assert_eq!(held(&rig), 0, "killed at call {n}: each was tried once");
        rig.restart();
        rig.keep();
        assert_eq!(rig.states(), ["ready", "ready"], "killed at call {n} of preparing");
        rig.kernel.forget_calls();
        rig.kernel.fail_from(n, nix::errno::Errno::EIO);
        rig.order(Verb::Drain, "radio");
        rig.kernel.heal();
        forget_holds(&rig);
        rig.restart();
        rig.keep();
        rig.order(Verb::Drain, "radio");
        assert_eq!(rig.machine(), before, "killed at call {n} of draining");
        if survived {
            return;
        }
    }
}

/// Members that something holds, as it is on record.
fn held(rig: &Rig) -> usize {
    rig.records().iter().filter(|file| fs::read_to_string(file).unwrap().contains("\"held\"")).count()
}

/// The operator was told of a refusal, not of a kill: a daemon that was killed has quarantined nothing.
fn forget_holds(rig: &Rig) {
    rig.rewrite_records(|record| drop(record.remove("held")));
}

#[test]
fn x07_the_second_try_is_when_the_pause_is_over_and_not_with_the_next_look() {
    let rig = kept(POOL);
    let pools = rig.pools();
    thread::scope(|scope| {
        scope.spawn(|| while pools.next_look(Instant::now() + Duration::from_secs(600)).is_some() {});
        thread::sleep(Duration::from_millis(100)); // so that it waits when the VF fails
        rig.kernel.set_dead(VF, true);
        rig.check_pools();
        let broken = rig.states();
        rig.kernel.set_dead(VF, false);
        let until = Instant::now() + Duration::from_secs(60);
        while rig.states() != ["ready", "ready"] && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
        pools.stop();
        assert_eq!(broken, ["preparing", "ready"]);
    });
    assert_eq!(rig.states(), ["ready", "ready"]);
}

#[test]
fn x17_one_that_breaks_while_it_is_ready_is_withdrawn_by_the_next_check() {
    let rig = kept(POOL);
    rig.kernel.set_dead(VF, true);
    rig.check_pools();
    rig.keep_on();
    assert_eq!(rig.states(), ["quarantined", "ready"]);
}

#[test]
fn x07_a_vf_that_fails_while_its_physical_one_is_down_is_tried_until_that_is_up() {
    let mut rig = with(POOL);
    rig.restart();
    rig.set_up(PF, false);
    rig.kernel.set_dead(VF, true); // as it may seem then
    rig.keep();
    for _ in 0..4 {
        rig.keep_on();
    }
    let row = rig.members().remove(0);
    assert_eq!(row["state"], "preparing");
    assert!(row["reason"].as_str().unwrap().contains("0000:21:00.0 is down"), "{row}");
    let trouble = rig.pools().trouble();
    assert_eq!(trouble, "1 VFs of pools are kept from being ready by something else");
    rig.set_up(PF, true);
    rig.kernel.set_dead(VF, false);
    // At once, not when the pause is over.
    let device = "0000:21:00.0".to_owned();
    rig.pools().device_events(&[DeviceEvent::Carrier { device, carrier: true }]);
    rig.pools().work_here();
    assert_eq!(rig.states(), ["ready", "ready"]);
}

#[test]
fn what_somebody_changed_of_a_ready_vf_is_put_right_by_the_next_check() {
    let rig = kept(POOL);
    let mut host = rig.kernel.host().unwrap();
    let pf = host.link_by_name(PF).unwrap().unwrap().index;
    let change = fairlead_host::VfChange { trust: Some(false), ..Default::default() };
    host.batch(&[Op::SetVfs { pf, changes: vec![(1, change)] }]).unwrap();
    rig.check_pools();
    assert_eq!(rig.states(), ["ready", "ready"]);
    assert_eq!(rig.kernel.snapshot().vfs.values().next().unwrap()[1].trust, Some(true));
}

#[test]
fn what_is_not_served_of_a_pool_is_left_alone_and_taken_when_it_is_free() {
    let mut rig = with("pools: [{name: radio, selectors: [{pfNames: ['pf0#0']}, {isRdma: true}]}]");
    let sys = rig.dir.path().join("sys");
    let vdpa = sys.join("bus/vdpa/devices/vdpa0");
    fs::create_dir_all(vdpa.parent().unwrap()).unwrap();
    symlink(format!("../../../devices/pci0000:20/{VF}/vdpa0"), &vdpa).unwrap();
    let mode = sys.join("module/ib_core/parameters/netns_mode");
    fs::create_dir_all(mode.parent().unwrap()).unwrap();
    for dir in ["infiniband/mlx5_2", "infiniband_verbs/uverbs2"] {
        fs::create_dir_all(rig.device(SECOND).join(dir)).unwrap();
    }
    fs::write(&mode, "N\n").unwrap();
    rig.kernel.forget_calls();
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["foreign", "foreign"]);
    let told = rig.members().iter().map(|row| row["reason"].as_str().unwrap().to_owned()).collect::<String>();
    assert!(told.contains("vDPA device vdpa0") && told.contains("RDMA device mlx5_2"), "{told}");
    assert_eq!(rig.changes(), 0);
    fs::remove_file(vdpa).unwrap();
    fs::write(mode, "Y\n").unwrap();
    rig.keep();
    rig.pools().work_here();
    assert_eq!(rig.states(), ["ready", "ready"]);
}

#[test]
fn rdma_devices_of_one_namespace_alone_hinder_no_pool_that_gives_pods_none() {
    let mut rig = with(POOL);
    let mode = rig.sys().join("module/ib_core/parameters/netns_mode");
    fs::create_dir_all(mode.parent().unwrap()).unwrap();
    fs::write(mode, "N\n").unwrap();
    fs::create_dir_all(rig.device(SECOND).join("infiniband/mlx5_2")).unwrap();
    rig.restart();
    rig.keep();
    rig.check_pools();
    assert_eq!(rig.states(), ["ready", "ready"]);
    assert_eq!(rig.pools().unserved(pci(SECOND)).unwrap(), None);
}

#[test]
fn a_vf_whose_driver_has_made_no_interface_or_has_given_it_up_is_bound_anew_and_ready() {
    let mut rig = with(POOL);
    rig.kernel.give_interface_up(VF).unwrap();
    rig.restart();
    for found in ["new", "ready until then"] {
        rig.kernel.forget_calls();
        rig.check_pools();
        assert_eq!(rig.states(), ["ready", "ready"], "{found}");
        let bindings = rig.asked(|asked| matches!(asked, KernelRequest::Bind(address, ..) if address == VF));
        assert_eq!((bindings, rig.at_home().is_some()), (1, true), "{found}");
        rig.kernel.give_interface_up(VF).unwrap();
    }
}

#[test]
fn a_vf_whose_driver_makes_no_interface_while_its_pf_does_not_answer_is_tried_until_it_is_ready() {
    let rig = kept(POOL);
    rig.kernel.withhold_interface(VF, true);
    let try_anew = || {
        // One that no driver has is bound without waiting for an interface that its driver may be making.
        rig.kernel.drive(VF, None).unwrap();
        rig.look(Look::Thorough);
        rig.keep_on();
    };
    for n in 0..state::FAILURES {
        try_anew();
        let row = rig.members().remove(0);
        let told = "driver igbvf makes no interface for it: see that its PF 0000:21:00.0 is up";
        assert_eq!(row["state"], "preparing", "try {n}: {row}");
        assert!(row["reason"].as_str().unwrap().starts_with(told), "try {n}: {row}");
    }
    assert_eq!(held(&rig), 0);
    rig.kernel.withhold_interface(VF, false);
    try_anew();
    assert_eq!(rig.states(), ["ready", "ready"], "without an order of the operator");
}

#[test]
fn a_vf_under_a_driver_that_makes_no_interface_is_left_alone() {
    let drivers = [
        ("mlx5_vfio_pci", None),
        ("pci-stub", None),
        ("ifcvf", None),
        ("vp-vdpa", None),
        ("octep_vdpa", None),
        ("pds_core", None),
        // With `enable_eth` and `enable_rdma` off, and no vDPA device yet.
        ("mlx5_core", Some("mlx5_core.vnet.2")),
    ];
    for (driver, auxiliary) in drivers {
        let mut rig = with(POOL);
        rig.kernel.drive(VF, Some(driver)).unwrap();
        rig.kernel.give_interface_up(VF).unwrap();
        auxiliary.into_iter().for_each(|name| rig.add_auxiliary(VF, name));
        rig.kernel.forget_calls();
        rig.restart();
        rig.keep();
        let row = rig.members().remove(0);
        let told = format!("it is bound to {driver}, which makes no interface for it");
        assert_eq!((&row["state"], &row["reason"]), (&"foreign".into(), &told.into()));
        let unbound = rig.asked(|asked| matches!(asked, KernelRequest::Unbind(address) if address == VF));
        assert_eq!(unbound, 0);
    }
}

#[test]
fn a_vf_with_an_address_of_dhcp_or_a_router_is_somebody_elses_and_what_to_do_is_told() {
    for dynamic in [false, true] {
        let mut rig = with(POOL);
        let (index, net) = (rig.at_home().unwrap().index, "192.0.2.7/24".parse().unwrap());
        let flags = AddressFlags { dynamic, ..AddressFlags::default() };
        rig.in_host(Op::AddAddress(Address { index, net, broadcast: None, flags }));
        rig.restart();
        rig.keep();
        let row = rig.members().remove(0);
        let reason = row["reason"].as_str().unwrap();
        assert_eq!(row["state"], "foreign");
        assert!(reason.contains("has the address 192.0.2.7/24"), "{reason}");
        assert_eq!(reason.contains("NetworkManager"), dynamic, "{reason}");
    }
}

#[test]
fn an_interface_that_was_set_up_by_hand_is_ready_all_the_same() {
    let rig = kept(POOL);
    rig.set_up("vf1", true);
    rig.kernel.forget_calls();
    rig.check_pools();
    assert_eq!((rig.changes(), rig.states()), (0, vec!["ready".to_owned(), "ready".to_owned()]));
}

#[test]
fn a_ready_vf_to_which_udev_gives_an_alternative_name_stays_ready_and_is_given_back_without_it() {
    let before = with(POOL).machine();
    let rig = kept(POOL);
    let index = rig.at_home().unwrap().index;
    rig.in_host(Op::AddAltName { index, name: "enx020000000007".into() });
    rig.kernel.forget_calls();
    rig.pools().device_events(&[DeviceEvent::Pci { device: VF.to_owned(), action: Action::Bound }]);
    rig.look(Look::News);
    rig.check_pools();
    assert_eq!((rig.changes(), rig.states()), (0, vec!["ready".to_owned(), "ready".to_owned()]));
    rig.order(Verb::Drain, "radio");
    assert_eq!(rig.machine(), before);
}

#[test]
fn a_vf_that_udev_has_not_named_yet_is_taken_when_it_has_and_given_back_with_that_name() {
    let mut rig = with(POOL);
    let done = |rig: &Rig, interface: &str| {
        let index = rig.kernel.host().unwrap().link_by_name(interface).unwrap().unwrap().index;
        fs::write(rig.udev().join(format!("data/n{index}")), "").unwrap();
    };
    fs::create_dir_all(rig.udev().join("data")).unwrap();
    fs::write(rig.udev().join("control"), "").unwrap();
    done(&rig, "vf1");
    rig.restart();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(100));
            rig.rename("vf0", "enp33s0f0v0");
            done(&rig, "enp33s0f0v0");
        });
        rig.keep();
    });
    assert_eq!(rig.states(), ["ready", "ready"]);
    assert_eq!(rig.named("enp33s0f0v0"), Some(VF.to_owned()));
    rig.order(Verb::Drain, "radio");
    assert_eq!(rig.named("enp33s0f0v0"), Some(VF.to_owned()));
}

#[test]
fn vfs_that_speak_infiniband_are_left_alone_and_given_back_where_a_pool_has_had_them() {
    let mut rig = with(POOL);
    let before = rig.machine();
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["ready", "ready"], "as an earlier release has had them");
    rig.speaks(VF, "vf0", "32\n");
    rig.check_pools();
    assert_eq!(rig.states(), ["foreign", "ready"]);
    let row = rig.members().remove(0);
    assert!(row["reason"].as_str().unwrap().contains("speaks InfiniBand, which is not served yet"), "{row}");
    rig.configure("pools: []");
    assert_eq!((rig.members().len(), rig.machine()), (0, before));
    // Before anything is done to them; one without an interface goes by its PF.
    fs::remove_dir_all(rig.sys().join("bus/pci/devices").join(VF).join("net")).unwrap();
    rig.speaks(SECOND, "vf1", "32\n");
    rig.speaks(PHYSICAL, PF, "32\n");
    rig.kernel.forget_calls();
    rig.configure(POOL);
    assert_eq!((rig.changes(), rig.states()), (0, vec!["foreign".to_owned(), "foreign".to_owned()]));
}

#[test]
fn what_is_a_member_no_more_stays_on_record_until_it_can_be_given_back() {
    let mut rig = with(POOL);
    let before = rig.machine();
    rig.restart();
    rig.keep();
    let address = rig.use_it("vf1");
    rig.configure("pools: []");
    assert_eq!(rig.states(), ["foreign"]);
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["foreign"], "a restart forgets it no more than that");
    rig.in_host(Op::DeleteAddress(address));
    rig.kernel.fail_from(0, nix::errno::Errno::EIO);
    for _ in 0..4 {
        rig.keep_on();
    }
    rig.kernel.heal();
    rig.keep();
    rig.keep_on();
    assert_eq!((rig.members().len(), rig.machine()), (0, before));
    assert_eq!(rig.records().len(), 0);
}

#[test]
fn x07_what_somebody_has_had_is_not_ready_after_a_restart_before_it_is_prepared_anew() {
    let mut rig = kept(POOL);
    // A VM's, and free again when the next daemon looks.
    rig.set_up("vf1", false);
    let address = rig.use_it("vf1");
    rig.check_pools();
    assert_eq!(rig.states(), ["ready", "foreign"]);
    rig.in_host(Op::DeleteAddress(address));
    // The other one's ADD is killed before anything of it is on record.
    std::mem::forget(rig.pools().lend(VF.parse().unwrap(), Instant::now()).ok());
    rig.restart();
    assert_eq!(rig.states(), ["preparing", "preparing"]);
    rig.keep();
    assert_eq!(rig.states(), ["ready", "ready"]);
    rig.restart();
    assert_eq!(rig.states(), ["ready", "ready"]);
}

#[test]
fn k26_of_two_orders_at_once_the_record_keeps_the_one_that_holds() {
    let rig = kept(POOL);
    let orders = |verb| {
        for _ in 0..8 {
            rig.pools().order(verb, VF, nobody()).unwrap();
        }
    };
    thread::scope(|scope| {
        let both = [scope.spawn(|| orders(Verb::Quarantine)), scope.spawn(|| orders(Verb::Release))];
        while !both.iter().all(|one| one.is_finished()) {
            rig.keep_on();
        }
    });
    rig.keep_on();
    let file = fs::read(rig.dir.path().join(format!("state/pools/{VF}.json"))).unwrap();
    let record: Value = serde_json::from_slice(&file).unwrap();
    assert_eq!(record.get("held").is_some(), rig.states()[0] == "quarantined", "{record}");
}

#[test]
fn x17_a_card_that_hangs_is_waited_for_once_a_look_and_not_once_a_vf() {
    let rig = kept(POOL);
    let is_look = |asked: &KernelRequest| matches!(asked, KernelRequest::Answers(_));
    rig.kernel.forget_calls();
    rig.check_pools();
    assert_eq!(rig.asked(is_look), 2);
    let first = rig.kernel.calls().iter().position(|call| is_look(&call.request)).unwrap();
    rig.kernel.forget_calls();
    rig.kernel.fail_at(first, nix::errno::Errno::ETIMEDOUT);
    rig.look(Look::Thorough);
    assert_eq!((rig.asked(is_look), rig.states()), (1, vec!["preparing".to_owned(), "ready".to_owned()]));
    rig.kernel.heal();
    rig.keep_on();
    // News of both.
    let news = |device: &str| DeviceEvent::Pci { device: device.to_owned(), action: Action::Bound };
    let glance = || {
        rig.kernel.forget_calls();
        rig.pools().device_events(&[news(VF), news(SECOND)]);
    };
    glance();
    rig.look(Look::News);
    assert_eq!(rig.asked(is_look), 2);
    let first = rig.kernel.calls().iter().position(|call| is_look(&call.request)).unwrap();
    glance();
    rig.kernel.fail_at(first, nix::errno::Errno::ETIMEDOUT);
    rig.look(Look::News);
    assert_eq!((rig.asked(is_look), rig.states()), (1, vec!["preparing".to_owned(), "ready".to_owned()]));
}

#[test]
fn x17_a_card_of_which_one_hangs_at_the_start_has_the_others_untouched() {
    let mut rig = kept(POOL);
    rig.kernel.forget_calls();
    rig.restart();
    let is_look = |asked: &KernelRequest| matches!(asked, KernelRequest::Answers(_));
    let first = rig.kernel.calls().iter().position(|call| is_look(&call.request)).unwrap();
    rig.kernel.forget_calls();
    rig.kernel.fail_at(first, nix::errno::Errno::ETIMEDOUT);
    rig.restart();
    assert_eq!(rig.states(), ["preparing"]);
    rig.keep();
    assert_eq!(rig.states(), ["ready", "ready"]);
    assert_eq!(rig.asked(|asked| *asked == KernelRequest::Reset(SECOND.to_owned())), 0);
}

#[test]
fn rdma_devices_of_one_namespace_alone_hinder_no_vf_under_vfio_and_no_giving_back() {
    let mut rig = with("pools: [{name: dpdk, selectors: {drivers: [igbvf]}, driver: vfio-pci}]");
    let before = rig.machine();
    let sys = rig.dir.path().join("sys");
    let mode = sys.join("module/ib_core/parameters/netns_mode");
    fs::create_dir_all(mode.parent().unwrap()).unwrap();
    fs::write(&mode, "N\n").unwrap();
    for dir in ["infiniband/mlx5_2", "infiniband_verbs/uverbs2"] {
        fs::create_dir_all(rig.device(SECOND).join(dir)).unwrap();
    }
    rig.restart();
    rig.keep();
    rig.check_pools();
    assert_eq!(rig.states(), ["ready", "ready"]);
    // Somebody else's to the pool that wants it under its kernel driver with its RDMA device, and given back as it was all the same.
    rig.configure("pools: [{name: dpdk, selectors: [{vendors: ['8086']}, {isRdma: true}]}]");
    rig.check_pools();
    assert_eq!(rig.states(), ["ready", "foreign"]);
    rig.order(Verb::Drain, "dpdk");
    rig.keep();
    rig.keep_on();
    assert_eq!((rig.states(), rig.machine()), (vec!["drained".to_owned(); 2], before));
}

/// A program that a pod has left on the interface of the first VF.
const LEFT: AttachedProgram = AttachedProgram { id: 7, hook: ProgramHook::XdpDriver, link: None };

#[test]
fn what_a_pod_has_left_on_a_vf_quarantines_it_over_a_restart_until_it_was_bound_anew() {
    let mut rig = kept(POOL);
    let lent = rig.pools().lend(pci(VF), Instant::now()).ok().unwrap();
    let name = rig.at_home().unwrap().name;
    assert!(rig.kernel.attach_program("/proc/1/ns/net", &name, LEFT, true));
    rig.pools().soiled(pci(VF), "XDP (driver) program 7");
    lent.keep();
    rig.pools().take_back(pci(VF), || Ok::<(), ()>(())).unwrap();
    rig.restart();
    let row = &rig.members()[0];
    assert_eq!((&row["state"], &row["reason"]), (&"quarantined".into(), &"XDP (driver) program 7".into()));
    assert!(rig.metrics().contains(r#"state="quarantined"} 1"#), "{}", rig.metrics());
    assert_eq!(rig.pools().draw("radio", |_| Some(0)).ok().unwrap().address(), pci(SECOND));
    rig.keep();
    assert_eq!(rig.states(), ["ready", "ready"]);
    let now = rig.at_home().unwrap();
    assert_eq!(rig.kernel.host().unwrap().attached_programs(now.index).unwrap(), []);
    rig.restart();
    assert_eq!(rig.states(), ["ready", "ready"], "and stays so");
}

#[test]
fn a_vf_on_which_a_pods_program_is_again_after_it_was_bound_anew_is_not_verified() {
    let mut rig = kept(POOL);
    let lent = rig.pools().lend(pci(VF), Instant::now()).ok().unwrap();
    let name = rig.at_home().unwrap().name;
    assert!(rig.kernel.attach_program("/proc/1/ns/net", &name, LEFT, true));
    rig.kernel.attach_when_bound(VF, Some(LEFT));
    rig.pools().soiled(pci(VF), "XDP (driver) program 7");
    lent.keep();
    rig.pools().take_back(pci(VF), || Ok::<(), ()>(())).unwrap();
    for _ in 0..3 {
        rig.keep_on();
    }
    let row = &rig.members()[0];
    assert_eq!(row["state"], "quarantined");
    let told = "XDP (driver) program 7; XDP (driver) program 7 is on its interface again, although it was bound anew";
    assert_eq!(row["reason"], told);
    rig.restart();
    rig.keep_on();
    assert_eq!(rig.states(), ["quarantined", "ready"]);
    rig.kernel.attach_when_bound(VF, None);
    rig.order(Verb::Release, VF);
    assert_eq!(rig.states(), ["ready", "ready"]);
}

#[test]
fn k26_one_that_its_pod_has_left_unclean_is_tried_at_once_when_it_is_released_by_its_address() {
    let rig = kept(POOL);
    let lent = rig.pools().lend(pci(VF), Instant::now()).ok().unwrap();
    rig.pools().soiled(pci(VF), "XDP (driver) program 7");
    lent.keep();
    rig.pools().take_back(pci(VF), || Ok::<(), ()>(())).unwrap();
    rig.kernel.set_dead(VF, true);
    rig.pools().work_here();
    assert_eq!(rig.states(), ["quarantined", "ready"]);
    rig.kernel.set_dead(VF, false);
    let released = thread::scope(|scope| {
        let ordered = scope.spawn(|| rig.pools().order(Verb::Release, VF, nobody()).unwrap());
        let until = Instant::now() + Duration::from_secs(10);
        // No pause ends meanwhile.
        while !ordered.is_finished() && Instant::now() < until {
            rig.pools().work_here();
            thread::sleep(Duration::from_millis(1));
        }
        rig.pools().stop();
        ordered.join().unwrap()
    });
    assert_eq!(released[0]["state"], "ready", "{released}");
}
