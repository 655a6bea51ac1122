//! What becomes of a pool's functions when they break, vanish, are made anew or are somebody else's, and when the daemon or the
//! machine dies: on a kernel in memory.

use std::fs;
use std::os::unix::fs::symlink;

use fairlead_cni::Code;
use fairlead_host::double::Asked;
use fairlead_host::watch::{Action, DeviceEvent};
use fairlead_host::{Address, AddressFlags, Kernel, Op, SetLink};
use serde_json::Value;

use super::pools::{POOL, SECOND, config, with};
use super::*;
use crate::pools::{Look, Verb};

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
    let files = fs::read_dir(rig.dir.path().join("state/pools")).unwrap();
    files
        .filter(|file| fs::read_to_string(file.as_ref().unwrap().path()).unwrap().contains("\"held\""))
        .count()
}

/// The operator was told of a refusal, not of a kill: a daemon that was killed has quarantined nothing.
fn forget_holds(rig: &Rig) {
    for file in fs::read_dir(rig.dir.path().join("state/pools")).unwrap() {
        let path = file.unwrap().path();
        let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        record.as_object_mut().unwrap().remove("held");
        fs::write(&path, record.to_string()).unwrap();
    }
}

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
    assert!(rig.engine().pools.trouble().contains("1 functions of pools are quarantined"));
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["quarantined", "ready"], "it outlives the daemon");
    rig.kernel.set_dead(VF, false);
    rig.order(Verb::Release, VF);
    assert_eq!(rig.states(), ["ready", "ready"]);
    rig.add(&config(VF, "")).unwrap();
}

#[test]
fn x07_the_second_try_is_when_the_pause_is_over_and_not_with_the_next_look() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    let pools = &rig.engine().pools;
    std::thread::scope(|scope| {
        scope.spawn(|| while pools.next_look(Instant::now() + Duration::from_secs(600)).is_some() {});
        std::thread::sleep(Duration::from_millis(100)); // so that it waits when the function fails
        rig.kernel.set_dead(VF, true);
        rig.check_pools();
        let broken = rig.states();
        rig.kernel.set_dead(VF, false);
        let until = Instant::now() + Duration::from_secs(60);
        while rig.states() != ["ready", "ready"] && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        pools.stop();
        assert_eq!(broken, ["preparing", "ready"]);
    });
    assert_eq!(rig.states(), ["ready", "ready"]);
}

#[test]
fn x17_one_that_breaks_while_it_is_ready_is_withdrawn_by_the_next_check() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    rig.kernel.set_dead(VF, true);
    rig.check_pools();
    rig.keep_on();
    assert_eq!(rig.states(), ["quarantined", "ready"]);
}

/// Has an interface of the host another name.
fn rename(rig: &Rig, from: &str, to: &str) {
    let mut host = rig.kernel.host().unwrap();
    let index = host.link_by_name(from).unwrap().unwrap().index;
    host.batch(&[Op::SetLink(SetLink { index, name: Some(to.to_owned()), ..SetLink::default() })]).unwrap();
}

#[test]
fn x07_a_hiccup_of_a_physical_function_quarantines_none_and_costs_no_ready_one_its_place() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    // While they are ready: nothing is done to them, and it is told.
    rename(&rig, PF, "elsewhere");
    rig.kernel.forget_calls();
    rig.check_pools();
    rig.check_pools();
    assert_eq!((rig.states(), rig.changes()), (vec!["ready".to_owned(), "ready".to_owned()], 0));
    let trouble = rig.engine().pools.trouble();
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
    let refused = rig.engine().pools.lend(VF.parse().unwrap(), Instant::now()).err().unwrap();
    assert!(refused.to_string().contains("not ready yet (preparing: the physical function"), "{refused}");
    rename(&rig, "elsewhere", PF);
    rig.keep_on();
    rig.check_pools();
    assert_eq!((rig.states(), rig.engine().pools.trouble().as_str()), (vec!["ready".to_owned(); 2], ""));
}

#[test]
fn x07_a_function_that_fails_while_its_physical_one_is_down_is_tried_until_that_is_up() {
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
    let trouble = rig.engine().pools.trouble();
    assert_eq!(trouble, "1 functions of pools are kept from being ready by something else");
    rig.set_up(PF, true);
    rig.kernel.set_dead(VF, false);
    // At once, not when the pause is over.
    let device = "0000:21:00.0".to_owned();
    rig.engine().pools.heard(&[DeviceEvent::Carrier { device, carrier: true }]);
    rig.engine().pools.work_here();
    assert_eq!(rig.states(), ["ready", "ready"]);
}

#[test]
fn x17_news_of_a_ready_function_have_it_alone_compared_and_no_settings_read() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    let news = |device: &str, action| {
        rig.kernel.forget_calls();
        rig.engine().pools.heard(&[DeviceEvent::Pci { device: device.to_owned(), action }]);
        rig.engine().look_at_pools(Look::Glance);
        assert_eq!(rig.asked(|asked| matches!(asked, Asked::Vfs(_))), 0);
    };
    rig.kernel.unbind(VF).unwrap();
    news(SECOND, Action::Bound);
    assert_eq!(rig.states(), ["ready", "ready"], "nobody has told of the first one");
    news(VF, Action::Unbound);
    assert_eq!(rig.states(), ["preparing", "ready"]);
    rig.engine().pools.work_here();
    assert_eq!(rig.states(), ["ready", "ready"]);
    news(VF, Action::Bound);
    assert_eq!((rig.states(), rig.changes()), (vec!["ready".to_owned(); 2], 0), "what the pool did itself");
}

#[test]
fn x17_news_of_a_function_that_is_lent_or_of_no_pool_make_nobody_look() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    rig.add(&config(VF, "")).unwrap();
    rig.kernel.forget_calls();
    for device in [VF, "0000:99:00.0", "virtio2"] {
        let device = device.to_owned();
        let name = "net1".to_owned();
        rig.engine().pools.heard(&[DeviceEvent::Interface { device, name, action: Action::Removed }]);
    }
    rig.engine().look_at_pools(Look::Glance);
    assert!(rig.kernel.calls().is_empty());
    assert_eq!(rig.states(), ["lent", "ready"]);
}

#[test]
fn x17_lost_news_have_everything_compared_once() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    rig.kernel.unbind(SECOND).unwrap(); // which nobody tells
    rig.engine().pools.heard(&[DeviceEvent::Overflow, DeviceEvent::Overflow]);
    let how = rig.engine().pools.next_look(Instant::now() + Duration::from_secs(3600)).unwrap();
    assert_eq!(how, Look::Thorough);
    rig.engine().look_at_pools(how);
    rig.engine().pools.work_here();
    assert_eq!(rig.states(), ["ready", "ready"]);
    assert_eq!(rig.asked(|asked| matches!(asked, Asked::Bind(address, ..) if address == SECOND)), 2);
}

#[test]
fn x17_new_functions_are_looked_for_when_their_physical_function_has_them_all() {
    let mut rig = with(POOL);
    rig.restart();
    rig.look_due();
    for (device, action, how) in [
        (SECOND, Action::Added, Look::Thorough),
        (SECOND, Action::Changed, Look::Thorough),
        ("0000:21:00.0", Action::Changed, Look::Quick),
        (SECOND, Action::Removed, Look::Quick),
    ] {
        rig.engine().pools.heard(&[DeviceEvent::Pci { device: device.to_owned(), action }]);
        assert_eq!(rig.look_due(), how, "{device} {action:?}");
    }
}

#[test]
fn what_somebody_changed_of_a_ready_function_is_put_right_by_the_next_check() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    let mut host = rig.kernel.host().unwrap();
    let pf = host.link_by_name(PF).unwrap().unwrap().index;
    let change = fairlead_host::VfChange { trust: Some(false), ..Default::default() };
    host.batch(&[Op::SetVfs { pf, changes: vec![(1, change)] }]).unwrap();
    rig.check_pools();
    assert_eq!(rig.states(), ["ready", "ready"]);
    assert_eq!(rig.kernel.snapshot().vfs.values().next().unwrap()[1].trust, Some(true));
}

#[test]
fn a_function_that_somebody_uses_is_left_alone_and_taken_when_it_is_free() {
    let mut rig = with(POOL);
    let index = rig.kernel.host().unwrap().link_by_name("vf1").unwrap().unwrap().index;
    let net = "192.0.2.7/24".parse().unwrap();
    let address = Address { index, net, broadcast: None, flags: AddressFlags::default() };
    rig.kernel.host().unwrap().batch(&[Op::AddAddress(address.clone())]).unwrap();
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["ready", "foreign"]);
    assert!(rig.members()[1]["reason"].as_str().unwrap().contains("192.0.2.7/24"));
    assert_eq!(rig.asked(|asked| *asked == Asked::Unbind(SECOND.to_owned())), 0);
    let refused = rig.add(&config(SECOND, "")).unwrap_err();
    assert!(refused.msg.contains("somebody else uses it"), "{refused}");
    rig.kernel.host().unwrap().batch(&[Op::DeleteAddress(address)]).unwrap();
    rig.keep();
    rig.engine().pools.work_here();
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
fn x24_after_a_reboot_everything_is_prepared_anew_and_the_mac_address_stays() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    let mac = |rig: &Rig| rig.kernel.snapshot().vfs.values().next().unwrap()[0].mac;
    let (before, lasting) = (rig.kernel.calls().len(), mac(&rig));
    for file in fs::read_dir(rig.dir.path().join("state/pools")).unwrap() {
        let path = file.unwrap().path();
        let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        record["was"]["bootId"] = "another".into();
        record["was"]["interface"]["name"] = "of-that-boot".into();
        fs::write(&path, record.to_string()).unwrap();
    }
    fs::remove_dir_all(rig.dir.path().join("run/pools")).unwrap();
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["ready", "ready"]);
    assert!(rig.kernel.calls().len() > before);
    assert_eq!(mac(&rig), lasting);
    assert!(rig.kernel.host().unwrap().link_by_name("of-that-boot").unwrap().is_none());
}

#[test]
fn x24_functions_that_are_not_made_yet_after_a_reboot_have_their_mac_address_when_they_are() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    let lasting = rig.kernel.snapshot().vfs.values().next().unwrap()[1].mac;
    let sys = rig.dir.path().join("sys/bus/pci/devices");
    let (link, dir, aside) =
        (sys.join("0000:21:00.0/virtfn1"), sys.join(SECOND), rig.dir.path().join("aside"));
    fs::remove_file(&link).unwrap();
    fs::rename(&dir, &aside).unwrap();
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["ready"]);
    fs::rename(&aside, &dir).unwrap();
    symlink(format!("../{SECOND}"), link).unwrap();
    rig.keep();
    assert_eq!(rig.kernel.snapshot().vfs.values().next().unwrap()[1].mac, lasting);
}

#[test]
fn x17_a_function_that_vanishes_is_withdrawn_and_offered_when_it_is_back() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    let sys = rig.dir.path().join("sys/bus/pci/devices");
    let (link, dir) = (sys.join("0000:21:00.0/virtfn1"), sys.join(SECOND));
    fs::remove_file(&link).unwrap();
    fs::rename(&dir, rig.dir.path().join("aside")).unwrap();
    rig.keep();
    assert_eq!(rig.states(), ["ready", "gone"]);
    let refused = rig.add(&config(SECOND, "")).unwrap_err();
    assert!(refused.msg.contains("does not have it any more"), "{refused}");
    fs::rename(rig.dir.path().join("aside"), &dir).unwrap();
    symlink(format!("../{SECOND}"), link).unwrap();
    rig.keep();
    assert_eq!(rig.states(), ["ready", "ready"]);
}

#[test]
fn x17_functions_that_are_made_anew_under_other_names_get_the_names_of_those_before_them() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    let sys = rig.dir.path().join("sys/bus/pci/devices");
    let places = [(VF, 0, "vf0"), (SECOND, 1, "vf1")];
    // The next ones: each has what the kernel finds free, which is the other's.
    for (from, to) in [("vf0", "eth9"), ("vf1", "vf0"), ("eth9", "vf1")] {
        let mut host = rig.kernel.host().unwrap();
        let index = host.link_by_name(from).unwrap().unwrap().index;
        host.batch(&[Op::SetLink(SetLink { index, name: Some(to.to_owned()), ..SetLink::default() })])
            .unwrap();
    }
    for (address, n, _) in places {
        fs::remove_file(sys.join(format!("0000:21:00.0/virtfn{n}"))).unwrap();
        fs::rename(sys.join(address), rig.dir.path().join(address)).unwrap();
    }
    rig.keep();
    assert_eq!(rig.states(), ["gone", "gone"]);
    for (address, n, _) in places {
        fs::rename(rig.dir.path().join(address), sys.join(address)).unwrap();
        let link = sys.join(format!("0000:21:00.0/virtfn{n}"));
        symlink(format!("../{address}"), link).unwrap();
    }
    rig.engine().look_at_pools(Look::Quick);
    let pools = &rig.engine().pools;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| pools.work_here());
        }
    });
    assert_eq!(rig.states(), ["ready", "ready"]);
    let mut host = rig.kernel.host().unwrap();
    for (address, _, name) in places {
        assert_eq!(host.link_by_name(name).unwrap().unwrap().device.as_deref(), Some(address), "{name}");
    }
}

#[test]
fn x17_the_del_of_a_pools_function_whose_name_another_one_has_by_chance_is_success() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    rig.add(&config(VF, "")).unwrap();
    let index = rig.kernel.add_host_link("vf0");
    rig.del(&config(VF, "")).unwrap();
    let mut host = rig.kernel.host().unwrap();
    host.batch(&[Op::SetLink(SetLink { index, name: Some("eth9".to_owned()), ..SetLink::default() })])
        .unwrap();
    rig.engine().pools.work_here();
    assert_eq!(rig.states(), ["ready", "ready"]);
    assert_eq!(host.link_by_name("vf0").unwrap().unwrap().device.as_deref(), Some(VF));
}

#[test]
fn functions_are_made_where_there_are_none_and_their_number_is_not_changed_where_there_are() {
    let many = "pools: [{name: radio, selectors: {rootDevices: ['0000:21:00.0']}, numvfs: 4}]";
    let mut rig = with(many);
    let made = |rig: &Rig| rig.asked(|asked| matches!(asked, Asked::MakeFunctions(..)));
    rig.restart();
    rig.keep();
    assert_eq!(made(&rig), 0);
    let notice = rig.engine().table("pools").unwrap()["notices"][0]["seen"].clone();
    assert_eq!(notice, "0000:21:00.0 has 2 functions, and pool \"radio\" wants 4");
    for n in 0..2 {
        fs::remove_file(rig.dir.path().join(format!("sys/bus/pci/devices/0000:21:00.0/virtfn{n}"))).unwrap();
    }
    rig.restart();
    assert_eq!(made(&rig), 0, "nobody waits for it at the start");
    rig.keep();
    assert_eq!(rig.asked(|asked| *asked == Asked::MakeFunctions("0000:21:00.0".to_owned(), 4)), 1);
    // By a worker: the keeper waits for no driver, and begins none twice.
    rig.kernel.forget_calls();
    rig.engine().look_at_pools(Look::Quick);
    rig.engine().look_at_pools(Look::Quick);
    assert_eq!(made(&rig), 0);
    rig.engine().pools.work_here();
    assert_eq!(made(&rig), 1);
}

#[test]
fn two_functions_that_come_back_under_each_others_names_get_their_own() {
    let mut rig = with(POOL);
    rig.restart();
    rig.engine().look_at_pools(Look::Quick);
    // Adopted under names as the kernel gives them, and all unbound before any is bound.
    let mut host = rig.kernel.host().unwrap();
    for (name, kernels) in [("vf0", "eth5"), ("vf1", "eth1")] {
        let index = host.link_by_name(name).unwrap().unwrap().index;
        let name = Some(kernels.to_owned());
        host.batch(&[Op::SetLink(SetLink { index, name, ..SetLink::default() })]).unwrap();
    }
    drop(host);
    let pools = &rig.engine().pools;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| pools.work_here());
        }
    });
    let mut host = rig.kernel.host().unwrap();
    for (name, device) in [("eth5", VF), ("eth1", SECOND)] {
        assert_eq!(host.link_by_name(name).unwrap().unwrap().device.as_deref(), Some(device), "{name}");
    }
}

#[test]
fn an_interface_that_was_set_up_by_hand_is_ready_all_the_same() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    let mut host = rig.kernel.host().unwrap();
    let index = host.link_by_name("vf1").unwrap().unwrap().index;
    host.batch(&[Op::SetLink(SetLink { index, up: Some(true), ..SetLink::default() })]).unwrap();
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
    let index = rig.kernel.host().unwrap().link_by_name("vf1").unwrap().unwrap().index;
    let net = "192.0.2.7/24".parse().unwrap();
    let address = Address { index, net, broadcast: None, flags: AddressFlags::default() };
    rig.kernel.host().unwrap().batch(&[Op::AddAddress(address.clone())]).unwrap();
    rig.configure("pools: []");
    assert_eq!(rig.states(), ["foreign"]);
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["foreign"], "a restart forgets it no more than that");
    rig.kernel.host().unwrap().batch(&[Op::DeleteAddress(address)]).unwrap();
    rig.kernel.fail_from(0, nix::errno::Errno::EIO);
    for _ in 0..4 {
        rig.keep_on();
    }
    rig.kernel.heal();
    rig.keep();
    rig.keep_on();
    assert_eq!((rig.members().len(), rig.machine()), (0, before));
    assert_eq!(fs::read_dir(rig.dir.path().join("state/pools")).unwrap().count(), 0);
}

#[test]
fn x07_what_somebody_has_had_is_not_ready_after_a_restart_before_it_is_prepared_anew() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    // A VM's, and free again when the next daemon looks.
    rig.set_up("vf1", false);
    let index = rig.kernel.host().unwrap().link_by_name("vf1").unwrap().unwrap().index;
    let net = "192.0.2.7/24".parse().unwrap();
    let address = Address { index, net, broadcast: None, flags: AddressFlags::default() };
    rig.kernel.host().unwrap().batch(&[Op::AddAddress(address.clone())]).unwrap();
    rig.check_pools();
    assert_eq!(rig.states(), ["ready", "foreign"]);
    rig.kernel.host().unwrap().batch(&[Op::DeleteAddress(address)]).unwrap();
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
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
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
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    let is_look = |asked: &Asked| matches!(asked, Asked::Answers(_));
    rig.kernel.forget_calls();
    rig.check_pools();
    assert_eq!(rig.asked(is_look), 2);
    let first = rig.kernel.calls().iter().position(|call| is_look(&call.asked)).unwrap();
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
    let first = rig.kernel.calls().iter().position(|call| is_look(&call.asked)).unwrap();
    glance();
    rig.kernel.fail_at(first, nix::errno::Errno::ETIMEDOUT);
    rig.engine().look_at_pools(Look::Glance);
    assert_eq!((rig.asked(is_look), rig.states()), (1, vec!["preparing".to_owned(), "ready".to_owned()]));
}

#[test]
fn x17_a_card_of_which_one_hangs_at_the_start_has_the_others_untouched() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    rig.kernel.forget_calls();
    rig.restart();
    let is_look = |asked: &Asked| matches!(asked, Asked::Answers(_));
    let first = rig.kernel.calls().iter().position(|call| is_look(&call.asked)).unwrap();
    rig.kernel.forget_calls();
    rig.kernel.fail_at(first, nix::errno::Errno::ETIMEDOUT);
    rig.restart();
    assert_eq!(rig.states(), ["preparing"]);
    rig.keep();
    assert_eq!(rig.states(), ["ready", "ready"]);
    assert_eq!(rig.asked(|asked| *asked == Asked::Reset(SECOND.to_owned())), 0);
}

#[test]
fn x17_functions_made_anew_get_their_names_though_an_idle_one_has_it_by_chance() {
    for renames_while_up in [true, false] {
        made_anew_while_an_idle_one_is_up(renames_while_up);
    }
}

fn made_anew_while_an_idle_one_is_up(renames_while_up: bool) {
    let kernel = match renames_while_up {
        true => FakeKernel::new(),
        false => FakeKernel::new().without_rename_while_up(),
    };
    let mut rig = pools::on(kernel, "pools: [{name: radio, selectors: {vendors: ['8086']}, min: 1}]");
    rig.restart();
    rig.keep();
    rig.order(Verb::Fill, "radio");
    assert_eq!(rig.states(), ["ready", "ready"]);
    let sys = rig.dir.path().join("sys/bus/pci/devices");
    let link = |n| sys.join(format!("0000:21:00.0/virtfn{n}"));
    for (address, n) in [(VF, 0), (SECOND, 1)] {
        fs::remove_file(link(n)).unwrap();
        fs::rename(sys.join(address), rig.dir.path().join(address)).unwrap();
    }
    rig.keep();
    assert_eq!(rig.states(), ["gone", "gone"]);
    for (from, to) in [("vf0", "eth9"), ("vf1", "vf0"), ("eth9", "vf1")] {
        rename(&rig, from, to);
    }
    rig.set_up("vf0", true); // which the idle one has
    for (address, n) in [(VF, 0), (SECOND, 1)] {
        fs::rename(rig.dir.path().join(address), sys.join(address)).unwrap();
        symlink(format!("../{address}"), link(n)).unwrap();
    }
    rig.keep();
    assert_eq!(rig.states(), ["ready", "idle"]);
    let mut host = rig.kernel.host().unwrap();
    for (address, name) in [(VF, "vf0"), (SECOND, "vf1")] {
        assert_eq!(host.link_by_name(name).unwrap().unwrap().device.as_deref(), Some(address), "{name}");
    }
}

#[test]
fn x17_one_to_which_nothing_was_done_comes_home_under_its_own_name_only() {
    let mut rig = with("pools: [{name: radio, selectors: {vendors: ['8086']}, min: 1}]");
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["ready", "idle"]);
    rig.add(&config(SECOND, "")).unwrap();
    rig.kernel.add_host_link("vf1");
    let error = rig.del(&config(SECOND, "")).unwrap_err();
    assert!(error.msg.contains("bringing function 0000:21:10.2 home"), "{error}");
    rename(&rig, "vf1", "eth9");
    rig.del(&config(SECOND, "")).unwrap();
    let home = rig.kernel.host().unwrap().link_by_name("vf1").unwrap().unwrap();
    assert_eq!(home.device.as_deref(), Some(SECOND));
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

#[test]
fn what_could_not_be_made_is_told_as_long_as_it_is_wanted() {
    let many = "pools: [{name: radio, selectors: {rootDevices: ['0000:21:00.0']}, numvfs: 4}]";
    let mut rig = with(many);
    for n in 0..2 {
        fs::remove_file(rig.dir.path().join(format!("sys/bus/pci/devices/0000:21:00.0/virtfn{n}"))).unwrap();
    }
    rig.restart();
    rig.engine().look_at_pools(Look::Quick);
    rig.kernel.forget_calls();
    rig.kernel.fail_from(0, nix::errno::Errno::EIO);
    rig.engine().pools.work_here();
    rig.kernel.heal();
    assert!(rig.engine().pools.trouble().contains("pool \"radio\" wants 4 functions"));
    rig.engine().configure(&pools::settings(&many.replace(", numvfs: 4", "")));
    rig.engine().look_at_pools(Look::Quick);
    assert_eq!(rig.engine().pools.trouble(), "");
}
