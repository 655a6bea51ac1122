//! What becomes of a pool's functions when they break, hang or are somebody else's, and when the daemon dies: on a kernel in
//! memory.

use fairlead_cni::Code;
use fairlead_host::double::KernelRequest;
use fairlead_host::watch::{Action, DeviceEvent};
use fairlead_host::{NetKernel, Op};
use serde_json::Value;

use super::pools::{POOL, SECOND, config, kept, with};
use super::*;
use fairlead_sriov::pools::Verb;

#[test]
fn x07_a_function_that_fails_twice_is_quarantined_by_name_and_reason_until_it_is_released() {
    let mut rig = with(POOL);
    rig.restart();
    rig.kernel.set_dead(VF, true);
    rig.keep();
    assert_eq!(rig.states(), ["preparing", "ready"], "the second try is after a pause");
    rig.keep_on();
    assert_eq!(rig.states(), ["quarantined", "ready"]);
    let refused = rig.add(&config(VF, "")).unwrap_err();
    assert_eq!(refused.code, Code::TryAgain);
    assert!(
        refused.msg.contains(VF) && refused.msg.contains("configuration space does not answer"),
        "{refused}"
    );
    assert!(rig.engine().core.kinds.sriov.pools.trouble().contains("1 functions of pools are quarantined"));
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["quarantined", "ready"], "it outlives the daemon");
    rig.kernel.set_dead(VF, false);
    rig.order(Verb::Release, VF);
    assert_eq!(rig.states(), ["ready", "ready"]);
    rig.add(&config(VF, "")).unwrap();
}

#[test]
fn x07_a_hiccup_of_a_physical_function_quarantines_none_and_costs_no_ready_one_its_place() {
    let rig = kept(POOL);
    // While they are ready: nothing is done to them, and it is told.
    rig.rename(PF, "elsewhere");
    rig.kernel.forget_calls();
    rig.check_pools();
    rig.check_pools();
    assert_eq!((rig.states(), rig.changes()), (vec!["ready".to_owned(), "ready".to_owned()], 0));
    let trouble = rig.engine().core.kinds.sriov.pools.trouble();
    assert!(trouble.contains("physical function 0000:21:00.0 cannot be asked"), "{trouble}");
    // Nor does one that comes home meanwhile count as broken.
    rig.add(&config(VF, "")).unwrap();
    rig.del(&config(VF, "")).unwrap();
    for _ in 0..4 {
        rig.keep_on();
    }
    let row = rig.members().remove(0);
    assert_eq!(row["state"], "preparing");
    assert!(row["reason"].as_str().unwrap().contains("0000:21:00.0"), "{row}");
    let refused =
        rig.engine().core.kinds.sriov.pools.lend(VF.parse().unwrap(), Instant::now()).err().unwrap();
    assert!(refused.to_string().contains("not ready yet (preparing: the physical function"), "{refused}");
    rig.rename("elsewhere", PF);
    rig.keep_on();
    rig.check_pools();
    assert_eq!(
        (rig.states(), rig.engine().core.kinds.sriov.pools.trouble().as_str()),
        (vec!["ready".to_owned(); 2], "")
    );
}

#[test]
fn a_function_that_somebody_uses_is_left_alone_and_taken_when_it_is_free() {
    let mut rig = with(POOL);
    let address = rig.use_it("vf1");
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["ready", "foreign"]);
    assert!(rig.members()[1]["reason"].as_str().unwrap().contains("192.0.2.7/24"));
    assert_eq!(rig.asked(|asked| *asked == KernelRequest::Unbind(SECOND.to_owned())), 0);
    let refused = rig.add(&config(SECOND, "")).unwrap_err();
    assert!(refused.msg.contains("somebody else uses it"), "{refused}");
    rig.in_host(Op::DeleteAddress(address));
    rig.keep();
    rig.engine().core.kinds.sriov.pools.work_here();
    assert_eq!(rig.states(), ["ready", "ready"]);
}

#[test]
fn what_is_not_served_of_a_pool_is_left_alone_and_taken_when_it_is_free() {
    let mut rig = with(POOL);
    let sys = rig.dir.path().join("sys");
    let vdpa = sys.join("bus/vdpa/devices/vdpa0");
    fs::create_dir_all(vdpa.parent().unwrap()).unwrap();
    symlink(format!("../../../devices/pci0000:20/{VF}/vdpa0"), &vdpa).unwrap();
    let mode = sys.join("module/ib_core/parameters/netns_mode");
    fs::create_dir_all(mode.parent().unwrap()).unwrap();
    fs::create_dir_all(sys.join("bus/pci/devices").join(SECOND).join("infiniband/mlx5_2")).unwrap();
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
    rig.engine().pools.work_here();
    assert_eq!(rig.states(), ["ready", "ready"]);
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
    std::mem::forget(rig.engine().pools.lend(VF.parse().unwrap(), Instant::now()).ok());
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
            rig.engine().order_pools(verb, VF).unwrap();
        }
    };
    std::thread::scope(|scope| {
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
fn x17_a_card_that_hangs_is_waited_for_once_a_look_and_not_once_a_function() {
    let rig = kept(POOL);
    let is_look = |asked: &KernelRequest| matches!(asked, KernelRequest::Answers(_));
    rig.kernel.forget_calls();
    rig.check_pools();
    assert_eq!(rig.asked(is_look), 2);
    let first = rig.kernel.calls().iter().position(|call| is_look(&call.request)).unwrap();
    rig.kernel.forget_calls();
    rig.kernel.fail_at(first, nix::errno::Errno::ETIMEDOUT);
    rig.engine().look_at_pools(Look::Thorough);
    assert_eq!((rig.asked(is_look), rig.states()), (1, vec!["preparing".to_owned(), "ready".to_owned()]));
    rig.kernel.heal();
    rig.keep_on();
    // News of both.
    let news = |device: &str| DeviceEvent::Pci { device: device.to_owned(), action: Action::Bound };
    let glance = || {
        rig.kernel.forget_calls();
        rig.engine().pools.heard(&[news(VF), news(SECOND)]);
    };
    glance();
    rig.engine().look_at_pools(Look::Glance);
    assert_eq!(rig.asked(is_look), 2);
    let first = rig.kernel.calls().iter().position(|call| is_look(&call.request)).unwrap();
    glance();
    rig.kernel.fail_at(first, nix::errno::Errno::ETIMEDOUT);
    rig.engine().look_at_pools(Look::Glance);
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
fn rdma_devices_of_one_namespace_alone_hinder_no_function_under_vfio_and_no_giving_back() {
    let mut rig = with("pools: [{name: dpdk, selectors: {drivers: [igbvf]}, driver: vfio-pci}]");
    let before = rig.machine();
    let sys = rig.dir.path().join("sys");
    let mode = sys.join("module/ib_core/parameters/netns_mode");
    fs::create_dir_all(mode.parent().unwrap()).unwrap();
    fs::write(&mode, "N\n").unwrap();
    fs::create_dir_all(sys.join("bus/pci/devices").join(SECOND).join("infiniband/mlx5_2")).unwrap();
    rig.restart();
    rig.keep();
    rig.check_pools();
    assert_eq!(rig.states(), ["ready", "ready"]);
    // Somebody else's to the pool that wants it under its kernel driver, and given back as it was all the same.
    rig.configure("pools: [{name: dpdk, selectors: {vendors: ['8086']}}]");
    rig.check_pools();
    assert_eq!(rig.states(), ["ready", "foreign"]);
    rig.order(Verb::Drain, "dpdk");
    rig.keep();
    rig.keep_on();
    assert_eq!((rig.states(), rig.machine()), (vec!["drained".to_owned(); 2], before));
}
