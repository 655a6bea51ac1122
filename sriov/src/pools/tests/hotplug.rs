//! Members that come and go under their pool: events about them, those that vanish and are created anew, their names, a reboot.

use fairlead_host::double::KernelRequest;
use fairlead_host::watch::{Action, DeviceEvent};

use super::*;
use crate::vf_netdev::Appearance;

/// Both VFs vanish, and come back each with the name that the kernel found free, which is the other's.
fn made_anew_under_each_others_names(rig: &Rig, meanwhile: impl Fn()) {
    [VF, SECOND].iter().for_each(|address| rig.unplug(address));
    rig.keep();
    assert_eq!(rig.states(), ["gone", "gone"]);
    for (from, to) in [("vf0", "eth9"), ("vf1", "vf0"), ("eth9", "vf1")] {
        rig.rename(from, to);
    }
    meanwhile();
    [VF, SECOND].iter().for_each(|address| rig.plug_in_again(address));
}

/// Has both VFs worked on at a time.
fn work_with_two(rig: &Rig) {
    let pools = rig.pools();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| pools.work_here());
        }
    });
}

#[test]
fn x17_news_of_a_ready_vf_have_it_alone_compared_and_no_settings_read() {
    let rig = kept(POOL);
    let news = |device: &str, action| {
        rig.kernel.forget_calls();
        rig.pools().device_events(&[DeviceEvent::Pci { device: device.to_owned(), action }]);
        rig.look(Look::News);
        assert_eq!(rig.asked(|asked| matches!(asked, KernelRequest::Vfs(_))), 0);
    };
    rig.kernel.unbind(VF).unwrap();
    news(SECOND, Action::Bound);
    assert_eq!(rig.states(), ["ready", "ready"], "nobody has told of the first one");
    news(VF, Action::Unbound);
    assert_eq!(rig.states(), ["preparing", "ready"]);
    rig.pools().work_here();
    assert_eq!(rig.states(), ["ready", "ready"]);
    news(VF, Action::Bound);
    assert_eq!((rig.states(), rig.changes()), (vec!["ready".to_owned(); 2], 0), "what the pool did itself");
}

#[test]
fn x17_lost_news_have_everything_compared_once() {
    let rig = kept(POOL);
    rig.kernel.unbind(SECOND).unwrap(); // which nobody tells
    rig.pools().device_events(&[DeviceEvent::Overflow, DeviceEvent::Overflow]);
    let how = rig.pools().next_look(Instant::now() + Duration::from_secs(3600)).unwrap();
    assert_eq!(how, Look::Thorough);
    rig.look(how);
    rig.pools().work_here();
    assert_eq!(rig.states(), ["ready", "ready"]);
    assert_eq!(rig.asked(|asked| matches!(asked, KernelRequest::Bind(address, ..) if address == SECOND)), 2);
}

#[test]
fn x17_new_vfs_are_looked_for_when_their_pf_has_them_all() {
    let mut rig = with(POOL);
    rig.restart();
    rig.look_due();
    for (device, action, how) in [
        (SECOND, Action::Added, Look::Thorough),
        (SECOND, Action::Changed, Look::Thorough),
        ("0000:21:00.0", Action::Changed, Look::Quick),
        (SECOND, Action::Removed, Look::Quick),
    ] {
        rig.pools().device_events(&[DeviceEvent::Pci { device: device.to_owned(), action }]);
        assert_eq!(rig.look_due(), how, "{device} {action:?}");
    }
}

#[test]
fn x24_after_a_reboot_everything_is_prepared_anew_and_the_mac_address_stays() {
    let mut rig = kept(POOL);
    let mac = |rig: &Rig| rig.kernel.snapshot().vfs.values().next().unwrap()[0].mac;
    let (before, lasting) = (rig.kernel.calls().len(), mac(&rig));
    rig.rewrite_records(|record| {
        record["was"]["bootId"] = "another".into();
        record["was"]["interface"]["name"] = "of-that-boot".into();
    });
    fs::remove_dir_all(rig.dir.path().join("run/pools")).unwrap();
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["ready", "ready"]);
    assert!(rig.kernel.calls().len() > before);
    assert_eq!(mac(&rig), lasting);
    assert!(rig.kernel.host().unwrap().link_by_name("of-that-boot").unwrap().is_none());
}

/// The next boot: records are of another one, and marks are gone.
fn reboot(rig: &mut Rig) {
    rig.rewrite_records(|record| record["was"]["bootId"] = "another".into());
    fs::remove_dir_all(rig.dir.path().join("run/pools")).unwrap();
    rig.restart();
    rig.keep();
}

#[test]
fn x24_what_a_pod_has_left_on_a_vf_is_gone_with_a_reboot() {
    let mut rig = kept(POOL);
    let lent = rig.pools().lend(pci(VF), Instant::now()).ok().unwrap();
    rig.pools().soiled(pci(VF), "XDP (driver) program 7");
    lent.keep();
    rig.pools().take_back(pci(VF), || Ok::<(), ()>(())).unwrap();
    reboot(&mut rig);
    assert_eq!(rig.states(), ["ready", "ready"]);
    let file = fs::read_to_string(rig.dir.path().join(format!("state/pools/{VF}.json"))).unwrap();
    assert!(!file.contains("XDP"), "{file}");
}

const RDMA: &str = "pools: [{name: radio, selectors: {vendors: ['8086'], isRdma: true}}]";

/// VFs with RDMA devices, everything ready; and the lasting MAC address of the first one.
fn with_rdma() -> (Rig, Option<fairlead_host::Mac>) {
    let mut rig = with(RDMA);
    [VF, SECOND].iter().for_each(|vf| rig.kernel.add_rdma(vf).unwrap());
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["ready", "ready"]);
    let mac = rig.settings().mac;
    (rig, mac)
}

#[test]
fn x17_a_vf_whose_rdma_device_goes_with_its_driver_stays_its_pools_while_it_has_none() {
    for is_told_by_record in [true, false] {
        let (mut rig, mac) = with_rdma();
        rig.kernel.unbind(VF).unwrap(); // as in the middle of its preparation
        if !is_told_by_record {
            // As an earlier release has left it.
            rig.rewrite_records(|record| drop(record["was"].as_object_mut().unwrap().remove("rdma")));
            rig.restart();
        }
        rig.look(Look::Quick);
        assert_eq!(rig.members().len(), 2);
        assert!(!rig.states().contains(&"draining".to_owned()), "{:?}", rig.states());
        rig.check_pools();
        assert_eq!((rig.states(), rig.settings().mac), (vec!["ready".to_owned(); 2], mac));
    }
}

#[test]
fn x17_a_vf_that_has_its_rdma_device_no_more_is_given_to_nobody_where_its_pool_goes_by_that() {
    let (rig, _) = with_rdma();
    rig.take_rdma(VF);
    rig.look(Look::Thorough);
    assert_eq!(rig.states(), ["preparing", "ready"]);
    rig.pools().work_here();
    assert_eq!(rig.states(), ["ready", "ready"], "bound anew it has one again");
}

#[test]
fn x17_a_vf_whose_rdma_module_is_away_waits_for_it_and_is_not_quarantined() {
    let (rig, mac) = with_rdma();
    rig.unload_rdma(VF);
    rig.check_pools();
    assert_eq!(rig.states(), ["preparing", "ready"]);
    assert!(rig.pools().lock().member(pci(VF)).unwrap().1.is_hindered(), "it is no fault of the VF");
    let reason = rig.members()[0]["reason"].to_string();
    assert!(reason.contains("see that the driver's module for RDMA is loaded"), "{reason}");
    rig.kernel.add_rdma(VF).unwrap();
    rig.keep_on();
    assert_eq!((rig.states(), rig.settings().mac), (vec!["ready".to_owned(); 2], mac));
}

#[test]
fn x17_a_vf_is_ready_when_its_rdma_device_has_its_node_for_verbs_too() {
    let (rig, _) = with_rdma();
    rig.unload_rdma(VF);
    rig.look(Look::Thorough);
    // The kernel makes the device first.
    fs::create_dir_all(rig.device(VF).join("infiniband/mlx5_9")).unwrap();
    let has_waited = std::thread::scope(|scope| {
        let working = scope.spawn(|| rig.pools().work_here());
        std::thread::sleep(Duration::from_millis(200));
        let is_at_work = !working.is_finished();
        fs::create_dir_all(rig.device(VF).join("infiniband_verbs/uverbs9")).unwrap();
        working.join().unwrap();
        is_at_work
    });
    assert_eq!((has_waited, rig.states()), (true, vec!["ready".to_owned(); 2]));
}

#[test]
fn a_vf_whose_pool_does_not_ask_for_its_rdma_device_is_cleaned_without_waiting_for_that() {
    let mut rig = with(POOL);
    rig.kernel.add_rdma(VF).unwrap();
    rig.restart();
    rig.keep();
    rig.unload_rdma(VF);
    rig.pools().lend(pci(VF), Instant::now()).unwrap().keep();
    rig.pools().take_back(pci(VF), || Ok::<(), ()>(())).unwrap();
    let begun = Instant::now();
    rig.pools().work_here();
    assert_eq!(rig.states(), ["ready", "ready"]);
    assert!(begun.elapsed() < crate::vf_netdev::APPEARS);
}

#[test]
fn x24_a_vf_whose_rdma_device_comes_late_after_a_reboot_keeps_its_mac_address() {
    let (mut rig, mac) = with_rdma();
    [VF, SECOND].iter().for_each(|vf| rig.take_rdma(vf));
    reboot(&mut rig);
    assert_eq!((rig.members().len(), rig.records().len()), (0, 2));
    [VF, SECOND].iter().for_each(|vf| rig.kernel.add_rdma(vf).unwrap());
    rig.keep();
    assert_eq!((rig.states(), rig.settings().mac), (vec!["ready".to_owned(); 2], mac));
}

#[test]
fn x24_vfs_that_are_not_made_yet_after_a_reboot_have_their_mac_address_when_they_are() {
    let mut rig = kept(POOL);
    let lasting = rig.kernel.snapshot().vfs.values().next().unwrap()[1].mac;
    rig.unplug(SECOND);
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["ready"]);
    rig.plug_in_again(SECOND);
    rig.keep();
    assert_eq!(rig.kernel.snapshot().vfs.values().next().unwrap()[1].mac, lasting);
}

#[test]
fn x17_vfs_that_are_made_anew_under_other_names_get_the_names_of_those_before_them() {
    let rig = kept(POOL);
    made_anew_under_each_others_names(&rig, || ());
    rig.look(Look::Quick);
    work_with_two(&rig);
    assert_eq!(rig.states(), ["ready", "ready"]);
    assert_eq!((rig.named("vf0").as_deref(), rig.named("vf1").as_deref()), (Some(VF), Some(SECOND)));
}

#[test]
fn vfs_are_made_where_there_are_none_and_their_number_is_not_changed_where_there_are() {
    let many = "pools: [{name: radio, selectors: {rootDevices: ['0000:21:00.0']}, numvfs: 4}]";
    let mut rig = with(many);
    let made = |rig: &Rig| rig.asked(|asked| matches!(asked, KernelRequest::CreateVfs(..)));
    rig.restart();
    rig.keep();
    assert_eq!(made(&rig), 0);
    let notice = rig.table()["notices"][0]["seen"].clone();
    assert_eq!(notice, "0000:21:00.0 has 2 VFs, and pool \"radio\" wants 4");
    rig.without_vfs();
    rig.restart();
    assert_eq!(made(&rig), 0, "nobody waits for it at the start");
    rig.keep();
    assert_eq!(rig.asked(|asked| *asked == KernelRequest::CreateVfs("0000:21:00.0".to_owned(), 4)), 1);
    // By a worker: the pool reconciler waits for no driver, and begins none twice.
    rig.kernel.forget_calls();
    rig.look(Look::Quick);
    rig.look(Look::Quick);
    assert_eq!(made(&rig), 0);
    rig.pools().work_here();
    assert_eq!(made(&rig), 1);
}

#[test]
fn two_vfs_that_come_back_under_each_others_names_get_their_own() {
    let mut rig = with(POOL);
    rig.restart();
    rig.look(Look::Quick);
    // Adopted under names as the kernel gives them, and all unbound before any is bound.
    rig.rename("vf0", "eth5");
    rig.rename("vf1", "eth1");
    work_with_two(&rig);
    assert_eq!((rig.named("eth5").as_deref(), rig.named("eth1").as_deref()), (Some(VF), Some(SECOND)));
}

#[test]
fn x17_vfs_made_anew_get_their_names_though_an_idle_one_has_it_by_chance() {
    for renames_while_up in [true, false] {
        made_anew_while_an_idle_one_is_up(renames_while_up);
    }
}

fn made_anew_while_an_idle_one_is_up(renames_while_up: bool) {
    let kernel = match renames_while_up {
        true => FakeKernel::new(),
        false => FakeKernel::new().without_rename_while_up(),
    };
    let mut rig = on(kernel, "pools: [{name: radio, selectors: {vendors: ['8086']}, min: 1}]");
    rig.restart();
    rig.keep();
    rig.order(Verb::Fill, "radio");
    assert_eq!(rig.states(), ["ready", "ready"]);
    made_anew_under_each_others_names(&rig, || rig.set_up("vf0", true)); // which the idle one has
    rig.keep();
    assert_eq!(rig.states(), ["ready", "idle"]);
    assert_eq!((rig.named("vf0").as_deref(), rig.named("vf1").as_deref()), (Some(VF), Some(SECOND)));
}

#[test]
fn an_idle_vf_that_has_its_own_name_back_makes_no_way_for_who_saw_it_under_another() {
    let mut rig = with("pools: [{name: radio, selectors: {vendors: ['8086']}, min: 1}]");
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["ready", "idle"]);
    rig.rename("vf1", "eth9");
    let wanted = Appearance { name: "eth9".to_owned(), ..Appearance::of(&rig.at_home().unwrap()) };
    // Its own worker ends between the look at who has the name and the reservation.
    let idle = |other: PciAddr| {
        if rig.kernel.host().unwrap().link_by_name("vf1").unwrap().is_none() {
            rig.rename("eth9", "vf1");
        }
        rig.pools().take_idle(other)
    };
    let link = rig.at_home().unwrap();
    rig.pools().provisioner.configure_netdev(pci(VF), link, &wanted.look(), &idle).unwrap();
    assert_eq!((rig.named("eth9").as_deref(), rig.named("vf1").as_deref()), (Some(VF), Some(SECOND)));
}

#[test]
fn what_could_not_be_made_is_told_as_long_as_it_is_wanted() {
    let many = "pools: [{name: radio, selectors: {rootDevices: ['0000:21:00.0']}, numvfs: 4}]";
    let mut rig = with(many);
    rig.without_vfs();
    rig.restart();
    rig.look(Look::Quick);
    rig.kernel.forget_calls();
    rig.kernel.fail_from(0, nix::errno::Errno::EIO);
    rig.pools().work_here();
    rig.kernel.heal();
    assert!(rig.pools().trouble().contains("pool \"radio\" wants 4 VFs"));
    rig.pools().configure(configuration(&many.replace(", numvfs: 4", "")));
    rig.look(Look::Quick);
    assert_eq!(rig.pools().trouble(), "");
}
