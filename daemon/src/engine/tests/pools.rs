//! Pools on a kernel in memory: what a member goes through, and what an ADD has of it.

use std::fs;

use fairlead_cni::Code;
use fairlead_host::double::{Asked, Snapshot};
use fairlead_host::watch::{Action, DeviceEvent};
use fairlead_host::{Address, AddressFlags, IommuGroup, Kernel, Op, SetLink};
use fairlead_sriov::PciAddr;
use fairlead_sriov::pool::Refusal;
use serde_json::Value;

use super::*;
use crate::call::Lane;
use crate::pools::{DrawError, Look, Verb};

pub(super) const SECOND: &str = "0000:21:10.2";
const POOL: &str = "pools: [{name: radio, selectors: {vendors: ['8086']}, profile: {vlan: 7, trust: on}}]";

fn settings(text: &str) -> Settings {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    fs::write(&path, text).unwrap();
    Settings::load(&path).unwrap()
}

fn config(device: &str, more: &str) -> String {
    format!(r#"{{"cniVersion":"1.1.0","name":"lab-net","type":"sriov","deviceID":"{device}"{more}}}"#)
}

fn pci(address: &str) -> PciAddr {
    address.parse().unwrap()
}

/// A machine with two functions and this configuration; nothing was looked at yet.
pub(super) fn with(text: &str) -> Rig {
    let mut rig = Rig::new();
    let pf = rig.kernel.host().unwrap().link_by_name(PF).unwrap().unwrap().index;
    let sys = rig.dir.path().join("sys");
    functions::plug(&sys, ("0000:21:00.0", PF), 1, (SECOND, "vf1"));
    functions::driven(&sys, SECOND, "igbvf");
    rig.kernel.add_vf(pf, SECOND, "vf1");
    rig.kernel.show_in(&rig.dir.path().join("sys"));
    rig.settings = settings(text);
    rig
}

impl Rig {
    pub(super) fn configure(&mut self, text: &str) {
        self.settings = settings(text);
        self.engine().configure(&self.settings);
        self.keep();
    }

    /// What the keeper's threads would do.
    pub(super) fn keep(&self) {
        self.engine().look_at_pools(Look::Quick);
        self.engine().pools.work_here();
    }

    pub(super) fn check_pools(&self) {
        self.engine().look_at_pools(Look::Thorough);
        self.engine().pools.work_here();
    }

    /// The look that the keeper takes next; the thorough one, which is due at its time, where nothing else is.
    pub(super) fn look_due(&self) -> Look {
        self.engine().pools.next_look(Instant::now() + Duration::from_millis(30)).unwrap()
    }

    pub(super) fn members(&self) -> Vec<Value> {
        let table = self.engine().table("pools").unwrap();
        table["functions"].as_array().unwrap().clone()
    }

    pub(super) fn states(&self) -> Vec<String> {
        self.members().iter().map(|row| row["state"].as_str().unwrap().to_owned()).collect()
    }

    fn asked(&self, is: impl Fn(&Asked) -> bool) -> usize {
        self.kernel.calls().iter().filter(|call| is(&call.asked)).count()
    }

    fn changes(&self) -> usize {
        self.asked(|asked| {
            matches!(
                asked,
                Asked::Op(_) | Asked::Unbind(_) | Asked::Bind(..) | Asked::Reset(_) | Asked::SetSysctl(..)
            )
        })
    }

    pub(super) fn order(&self, verb: Verb, of: &str) {
        // The keeper would do it while the order is waited for.
        std::thread::scope(|scope| {
            let ordered = scope.spawn(|| self.engine().order_pools(verb, of).unwrap());
            while !ordered.is_finished() {
                self.engine().pools.work_here();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    }

    /// Without what no give-back can bring back: a new interface has another index.
    fn machine(&self) -> Snapshot {
        self.state().kernel
    }
}

#[test]
fn k25_x23_a_pools_functions_are_set_up_and_verified_before_anybody_has_them() {
    let mut rig = with(POOL);
    rig.restart();
    assert_eq!(rig.states(), ["preparing", "preparing"]);
    rig.keep();
    assert_eq!(rig.states(), ["ready", "ready"]);
    let snapshot = rig.kernel.snapshot();
    for vf in snapshot.vfs.values().next().unwrap() {
        assert_eq!((vf.vlan.unwrap().id, vf.trust), (7, Some(true)));
        let local = vf.mac.unwrap().0[0] & 3;
        assert_eq!(local, 2, "a local address, not multicast");
    }
    let row = &rig.members()[0];
    assert_eq!((row["pool"].as_str(), row["driver"].as_str()), (Some("radio"), Some("igbvf")));
}

#[test]
fn an_add_of_a_ready_function_reads_no_settings_and_sends_none_that_fit() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    for (more, messages) in [("", 0), (r#","vlan":7"#, 0), (r#","vlan":100,"max_tx_rate":200"#, 1)] {
        rig.kernel.forget_calls();
        rig.add(&config(VF, more)).unwrap();
        assert_eq!(rig.asked(|asked| matches!(asked, Asked::Vfs(_))), 0, "{more}");
        assert_eq!(rig.asked(|asked| matches!(asked, Asked::Op(Op::SetVfs { .. }))), messages, "{more}");
        assert_eq!(rig.states(), ["lent", "ready"]);
        assert_eq!(rig.members()[0]["attachment"], "c1/net1");
        rig.del(&config(VF, more)).unwrap();
        assert_eq!(rig.states(), ["preparing", "ready"]);
        rig.engine().pools.work_here();
        assert_eq!(rig.states(), ["ready", "ready"]);
        let vf = rig.kernel.snapshot().vfs.values().next().unwrap()[0].clone();
        assert_eq!((vf.vlan.unwrap().id, vf.rate.unwrap().max), (7, 0));
    }
}

#[test]
fn an_add_that_finds_its_function_as_it_wants_it_is_not_handed_to_another_thread() {
    let mut rig = with(POOL);
    rig.restart();
    let lane = |rig: &Rig, more| rig.engine().lane(&rig.request(Command::Add, "c1", &config(VF, more)));
    assert_eq!(lane(&rig, ""), Lane::Slow, "it is not ready yet");
    rig.keep();
    for (more, expected) in [("", Lane::Fast), (r#","vlan":7"#, Lane::Fast), (r#","vlan":100"#, Lane::Slow)] {
        assert_eq!(lane(&rig, more), expected, "{more}");
    }
    rig.add(&config(VF, "")).unwrap();
    assert_eq!(lane(&rig, ""), Lane::Slow, "it is lent");
}

#[test]
fn x07_what_comes_home_is_reset_and_set_up_anew_before_the_next_pod_has_it() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    rig.add(&config(VF, "")).unwrap();
    rig.del(&config(VF, "")).unwrap();
    rig.kernel.forget_calls();
    // Between the DEL and the preparing the daemon is killed: it looks clean, and is not.
    rig.restart();
    assert_eq!(rig.states(), ["preparing", "ready"]);
    rig.keep();
    assert_eq!(rig.asked(|asked| *asked == Asked::Reset(VF.to_owned())), 1);
    assert_eq!(rig.asked(|asked| *asked == Asked::Reset(SECOND.to_owned())), 0);
    assert_eq!(rig.states(), ["ready", "ready"]);
}

#[test]
fn k25_after_a_restart_what_fits_is_ready_untouched_with_one_reading_of_the_settings() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    rig.kernel.forget_calls();
    rig.restart();
    assert_eq!(rig.states(), ["ready", "ready"]);
    rig.keep();
    assert_eq!(rig.changes(), 0);
    assert_eq!(rig.asked(|asked| matches!(asked, Asked::Vfs(_))), 1);
}

#[test]
fn k26_drained_functions_are_as_they_were_and_stay_so_until_they_are_filled() {
    let mut rig = with(POOL);
    let before = rig.machine();
    rig.restart();
    rig.keep();
    assert_ne!(rig.machine(), before);
    rig.order(Verb::Drain, "radio");
    assert_eq!(rig.states(), ["drained", "drained"]);
    assert_eq!(rig.machine(), before);
    rig.restart();
    rig.keep();
    assert_eq!((rig.states(), rig.machine()), (vec!["drained".to_owned(), "drained".to_owned()], before));
    rig.order(Verb::Fill, SECOND);
    assert_eq!(rig.states(), ["drained", "ready"]);
}

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
        forget_holds(&rig);
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

/// A daemon that was killed has quarantined nothing.
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
fn x17_one_that_breaks_while_it_is_ready_is_withdrawn_by_the_next_check() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    rig.kernel.set_dead(VF, true);
    rig.check_pools();
    assert_eq!(rig.states(), ["quarantined", "ready"]);
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
fn x22_a_function_that_is_being_prepared_is_waited_for_and_then_told_to_be_tried_again() {
    let mut rig = with(POOL);
    rig.restart();
    let now = Instant::now();
    let pools = &rig.engine().pools;
    let refused = pools.lend(pci(VF), now).err().unwrap();
    assert_eq!(refused.why, Refusal::NotYet("preparing"));
    std::thread::scope(|scope| {
        let waits = scope
            .spawn(|| pools.lend(pci(VF), now + Duration::from_secs(30)).map(|loan| loan.known().is_some()));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waits.is_finished());
        pools.work_here();
        assert!(waits.join().unwrap().unwrap());
    });
    assert_eq!(rig.states(), ["ready", "ready"], "a loan that is not kept is none");
}

#[test]
fn x19_a_path_whose_function_is_being_prepared_is_waited_for_and_one_that_is_quarantined_is_passed_over() {
    let paths = format!(
        r#"{{"cniVersion":"1.1.0","name":"lab-net","type":"fairlead","ipam":{{}},
            "runtimeConfig":{{"deviceID":"{VF}"}},"paths":[{{"type":"sriov"}},{{"type":"macvlan","master":"eth0"}}]}}"#
    );
    let mut rig = with(POOL);
    rig.restart();
    rig.kernel.drive(VF, None).unwrap(); // as it is in the middle of it
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| rig.add(&paths));
        std::thread::sleep(Duration::from_millis(20));
        rig.kernel.drive(VF, Some("igbvf")).unwrap();
        rig.engine().pools.work_here();
        assert!(waits.join().unwrap().unwrap().contains(VF));
    });
    rig.del(&paths).unwrap();
    rig.reap();
    rig.order(Verb::Quarantine, VF);
    let answer = rig.add(&paths).unwrap();
    assert!(!answer.contains(VF), "{answer}");
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
    std::os::unix::fs::symlink(format!("../{SECOND}"), link).unwrap();
    rig.keep();
    assert_eq!(rig.kernel.snapshot().vfs.values().next().unwrap()[1].mac, lasting);
}

#[test]
fn a_changed_profile_is_given_to_what_is_ready_at_once() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    rig.settings = settings(&POOL.replace("vlan: 7", "vlan: 9"));
    rig.engine().configure(&rig.settings);
    assert_eq!(rig.engine().pools.next_look(Instant::now() + Duration::from_secs(9)), Some(Look::Thorough));
    rig.check_pools();
    let vfs = rig.kernel.snapshot().vfs;
    assert!(vfs.values().next().unwrap().iter().all(|vf| vf.vlan.unwrap().id == 9));
}

#[test]
fn a_changed_configuration_is_taken_while_the_daemon_runs_and_a_pod_keeps_what_it_has() {
    let mut rig = with(POOL);
    let before = rig.machine();
    rig.restart();
    rig.keep();
    rig.add(&config(VF, "")).unwrap();
    rig.configure("pools: []");
    assert_eq!(rig.members().len(), 1, "the pod's");
    assert_eq!(rig.states(), ["lent"]);
    rig.del(&config(VF, "")).unwrap();
    rig.keep();
    assert_eq!((rig.members().len(), rig.machine()), (0, before));
    assert_eq!(fs::read_dir(rig.dir.path().join("state/pools")).unwrap().count(), 0);
}

#[test]
fn a_pool_that_went_from_the_configuration_while_the_daemon_was_down_is_given_back() {
    let mut rig = with(POOL);
    let before = rig.machine();
    rig.restart();
    rig.keep();
    rig.settings = Settings::default();
    rig.restart();
    rig.keep();
    assert_eq!((rig.members().len(), rig.machine()), (0, before));
}

#[test]
fn a_function_goes_to_the_first_pool_that_selects_it_and_two_announcers_are_a_fault() {
    let overlap = "pools: [{name: a, selectors: {pfNames: ['pf0#1']}, resourceName: x/a}, \
                   {name: b, selectors: {vendors: ['8086']}, resourceName: x/b}]";
    let mut rig = with(overlap);
    rig.restart();
    rig.keep();
    let pools: Vec<String> =
        rig.members().iter().map(|row| row["pool"].as_str().unwrap().to_owned()).collect();
    assert_eq!(pools, ["a", "b"]);
    let notices = rig.engine().table("pools").unwrap()["notices"].clone();
    assert_eq!(notices[0]["wrong"], true);
    assert!(notices[0]["seen"].as_str().unwrap().contains(&format!("both announce {SECOND}")), "{notices}");
    let drawn = rig.engine().pools.draw("a", |_| Some(0)).err();
    assert_eq!(drawn, Some(DrawError::NotDrawnFrom("a".to_owned())));
}

#[test]
fn k25_a_draw_gives_a_ready_function_once_and_an_empty_pool_says_how_it_stands() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    let pools = &rig.engine().pools;
    let (first, second) =
        (pools.draw("radio", |_| Some(0)).unwrap(), pools.draw("radio", |_| Some(0)).unwrap());
    assert_eq!([first.address(), second.address()], [pci(VF), pci(SECOND)]);
    let empty = pools.draw("radio", |_| Some(0)).err().unwrap().to_string();
    assert_eq!(empty, "pool \"radio\" has no function ready: 2 lent");
    drop(first);
    assert_eq!(pools.draw("radio", |_| Some(0)).unwrap().address(), pci(VF));
    assert_eq!(pools.draw("other", |_| Some(0)).err(), Some(DrawError::NoSuchPool("other".to_owned())));
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
    std::os::unix::fs::symlink(format!("../{SECOND}"), link).unwrap();
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
        std::os::unix::fs::symlink(format!("../{address}"), link).unwrap();
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
fn a_pool_for_user_space_has_its_functions_under_vfio_and_gives_them_back_to_their_driver() {
    let vfio = "pools: [{name: dpdk, selectors: {drivers: [igbvf]}, driver: vfio-pci}]";
    let mut rig = with(vfio);
    let before = rig.machine();
    rig.restart();
    rig.kernel.set_group(22, IommuGroup::InUse);
    rig.keep();
    assert_eq!(rig.states(), ["ready", "foreign"], "a process has the second one's group open");
    rig.restart();
    assert_eq!(rig.states(), ["ready", "foreign"], "though its driver is not what the selector says");
    rig.kernel.set_group(22, IommuGroup::Free);
    rig.keep();
    rig.engine().pools.work_here();
    assert_eq!(rig.states(), ["ready", "ready"]);
    rig.order(Verb::Drain, "dpdk");
    assert_eq!(rig.machine(), before);
}

#[test]
fn d24_an_add_of_a_ready_function_for_user_space_reads_no_settings_and_tells_the_pools_mac_address() {
    let mut rig =
        with("pools: [{name: dpdk, selectors: {drivers: [igbvf]}, driver: vfio-pci, profile: {vlan: 7}}]");
    rig.restart();
    rig.keep();
    for (more, messages) in [("", 0), (r#","vlan":100"#, 1)] {
        rig.kernel.forget_calls();
        let answer: Value = serde_json::from_str(&rig.add(&config(VF, more)).unwrap()).unwrap();
        let mac = rig.kernel.snapshot().vfs.values().next().unwrap()[0].mac.unwrap().to_string();
        assert_eq!(answer["interfaces"][0]["mac"], mac.as_str());
        assert_eq!(rig.asked(|asked| matches!(asked, Asked::Vfs(_))), 0, "{more}");
        assert_eq!(rig.asked(|asked| matches!(asked, Asked::Op(Op::SetVfs { .. }))), messages, "{more}");
        assert_eq!(rig.states(), ["lent", "ready"]);
        rig.del(&config(VF, more)).unwrap();
        rig.engine().pools.work_here();
        assert_eq!(rig.states(), ["ready", "ready"]);
        assert_eq!(rig.kernel.snapshot().vfs.values().next().unwrap()[0].vlan.unwrap().id, 7);
    }
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
fn what_a_pool_knows_of_its_functions_is_counted() {
    let mut rig = with(POOL);
    rig.restart();
    rig.keep();
    let text = rig.exposition.text();
    assert!(text.contains(r#"fairlead_pool_functions{pool="radio",state="ready"} 2"#), "{text}");
    assert!(text.contains(r#"fairlead_pool_work_seconds_count{task="prepare"} 2"#), "{text}");
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
fn a_device_plugins_file_that_cannot_be_read_just_now_is_no_order_to_give_everything_back() {
    let mut rig = with("");
    let file = rig.dir.path().join("config.json");
    let text = format!("devicePluginConfig: {}", file.display());
    fs::write(&file, r#"{"resourceList":[{"resourceName":"radio","selectors":[{"vendors":["8086"]}]}]}"#)
        .unwrap();
    rig.settings = settings(&text);
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["ready", "ready"]);
    fs::write(&file, "{").unwrap();
    rig.configure(&text);
    assert_eq!(rig.states(), ["ready", "ready"]);
    rig.restart();
    rig.keep();
    let notices = rig.engine().table("pools").unwrap()["notices"].to_string();
    assert!(notices.contains("config.json"), "{notices}");
    fs::write(&file, r#"{"resourceList":[{"resourceName":"radio","selectors":[{"vendors":["8086"]}]}]}"#)
        .unwrap();
    rig.kernel.forget_calls();
    rig.restart();
    rig.keep();
    assert_eq!((rig.states(), rig.changes()), (vec!["ready".to_owned(), "ready".to_owned()], 0));
}
