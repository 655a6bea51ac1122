//! Members that come and go under their pool: events about them, those that vanish and are created anew, their names, a reboot.

use fairlead_host::double::KernelRequest;
use fairlead_host::watch::{Action, DeviceEvent};

use super::*;

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
