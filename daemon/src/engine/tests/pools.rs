//! Pools on a kernel in memory: what a member goes through, and what an ADD has of it.

use std::fs;

use fairlead_host::double::{KernelRequest, Snapshot};
use fairlead_host::{IommuGroup, NetKernel, Op};
use fairlead_sriov::PciAddr;
use fairlead_sriov::pool::Refusal;
use serde_json::Value;

use super::*;
use crate::call::Lane;
use crate::pools::{DrawError, Holders, Look, Verb};

pub(super) const SECOND: &str = "0000:21:10.2";
pub(super) const POOL: &str =
    "pools: [{name: radio, selectors: {vendors: ['8086']}, profile: {vlan: 7, trust: on}}]";

pub(super) fn settings(text: &str) -> Settings {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    fs::write(&path, text).unwrap();
    Settings::load(&path).unwrap()
}

pub(super) fn config(device: &str, more: &str) -> String {
    format!(r#"{{"cniVersion":"1.1.0","name":"lab-net","type":"sriov","deviceID":"{device}"{more}}}"#)
}

fn pci(address: &str) -> PciAddr {
    address.parse().unwrap()
}

/// A machine with two functions and this configuration; nothing was looked at yet.
pub(super) fn with(text: &str) -> Rig {
    on(FakeKernel::new(), text)
}

/// The same, with this kernel.
pub(super) fn on(kernel: FakeKernel, text: &str) -> Rig {
    let mut rig = Rig::on(kernel);
    let pf = rig.kernel.host().unwrap().link_by_name(PF).unwrap().unwrap().index;
    let sys = rig.dir.path().join("sys");
    functions::plug(&sys, ("0000:21:00.0", PF), 1, (SECOND, "vf1"));
    functions::driven(&sys, SECOND, "igbvf");
    rig.kernel.add_vf(pf, SECOND, "vf1");
    rig.set_up(PF, true);
    rig.kernel.show_in(&rig.dir.path().join("sys"));
    rig.settings = settings(text);
    rig
}

/// The first, by a daemon that has everything ready.
pub(super) fn kept(text: &str) -> Rig {
    let mut rig = with(text);
    rig.restart();
    rig.keep();
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

    /// The same when every pause is over.
    pub(super) fn keep_on(&self) {
        self.engine().pools.wake(Instant::now() + Duration::from_secs(3600));
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

    pub(super) fn asked(&self, is: impl Fn(&KernelRequest) -> bool) -> usize {
        self.kernel.calls().iter().filter(|call| is(&call.request)).count()
    }

    pub(super) fn changes(&self) -> usize {
        self.asked(|asked| {
            matches!(
                asked,
                KernelRequest::Op(_)
                    | KernelRequest::Unbind(_)
                    | KernelRequest::Bind(..)
                    | KernelRequest::Reset(_)
                    | KernelRequest::SetSysctl(..)
            )
        })
    }

    pub(super) fn order(&self, verb: Verb, of: &str) {
        // The keeper would do it while the order is waited for.
        std::thread::scope(|scope| {
            let ordered = scope.spawn(|| self.engine().order_pools(verb, of).unwrap());
            while !ordered.is_finished() {
                self.keep_on();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    }

    /// Without what no give-back can bring back: a new interface has another index.
    pub(super) fn machine(&self) -> Snapshot {
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
    let rig = kept(POOL);
    for (more, messages) in [("", 0), (r#","vlan":7"#, 0), (r#","vlan":100,"max_tx_rate":200"#, 1)] {
        rig.kernel.forget_calls();
        rig.add(&config(VF, more)).unwrap();
        assert_eq!(rig.asked(|asked| matches!(asked, KernelRequest::Vfs(_))), 0, "{more}");
        assert_eq!(
            rig.asked(|asked| matches!(asked, KernelRequest::Op(Op::SetVfs { .. }))),
            messages,
            "{more}"
        );
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
    let mut rig = kept(POOL);
    rig.add(&config(VF, "")).unwrap();
    rig.del(&config(VF, "")).unwrap();
    rig.kernel.forget_calls();
    // Between the DEL and the preparing the daemon is killed: it looks clean, and is not.
    rig.restart();
    assert_eq!(rig.states(), ["preparing", "ready"]);
    rig.keep();
    assert_eq!(rig.asked(|asked| *asked == KernelRequest::Reset(VF.to_owned())), 1);
    assert_eq!(rig.asked(|asked| *asked == KernelRequest::Reset(SECOND.to_owned())), 0);
    assert_eq!(rig.states(), ["ready", "ready"]);
}

#[test]
fn k25_after_a_restart_what_fits_is_ready_untouched_with_one_reading_of_the_settings() {
    let mut rig = kept(POOL);
    rig.kernel.forget_calls();
    rig.restart();
    assert_eq!(rig.states(), ["ready", "ready"]);
    rig.keep();
    assert_eq!(rig.changes(), 0);
    assert_eq!(rig.asked(|asked| matches!(asked, KernelRequest::Vfs(_))), 1);
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
fn x22_a_function_that_is_being_prepared_is_waited_for_and_then_told_to_be_tried_again() {
    let mut rig = with(POOL);
    rig.restart();
    let now = Instant::now();
    let pools = &rig.engine().pools;
    let refused = pools.lend(pci(VF), now).err().unwrap();
    assert_eq!(refused.why, Refusal::NotYet("preparing".to_owned()));
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
fn a_changed_profile_is_given_to_what_is_ready_at_once() {
    let mut rig = kept(POOL);
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
    assert_eq!(rig.records().len(), 0);
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
    let rig = kept(overlap);
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
    let rig = kept(POOL);
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
        assert_eq!(rig.asked(|asked| matches!(asked, KernelRequest::Vfs(_))), 0, "{more}");
        assert_eq!(
            rig.asked(|asked| matches!(asked, KernelRequest::Op(Op::SetVfs { .. }))),
            messages,
            "{more}"
        );
        assert_eq!(rig.states(), ["lent", "ready"]);
        rig.del(&config(VF, more)).unwrap();
        rig.engine().pools.work_here();
        assert_eq!(rig.states(), ["ready", "ready"]);
        assert_eq!(rig.kernel.snapshot().vfs.values().next().unwrap()[0].vlan.unwrap().id, 7);
    }
}

#[test]
fn what_a_pool_knows_of_its_functions_is_counted() {
    let rig = kept(POOL);
    let text = rig.exposition.text();
    assert!(text.contains(r#"fairlead_pool_functions{pool="radio",state="ready"} 2"#), "{text}");
    assert!(text.contains(r#"fairlead_pool_work_seconds_count{task="prepare"} 2"#), "{text}");
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
    rig.settings = settings(&text);
    rig.kernel.forget_calls();
    rig.restart();
    rig.keep();
    assert_eq!((rig.states(), rig.changes()), (vec!["ready".to_owned(), "ready".to_owned()], 0));
}

#[test]
fn a_configuration_that_is_refused_at_the_start_is_no_order_to_give_everything_back() {
    let mut rig = kept(POOL);
    let whole = std::mem::replace(&mut rig.settings, Settings { unread: true, ..Settings::default() });
    rig.kernel.forget_calls();
    rig.restart();
    rig.keep();
    rig.check_pools();
    assert_eq!((rig.members().len(), rig.changes()), (0, 0));
    rig.engine().configure(&whole);
    rig.keep();
    assert_eq!((rig.states(), rig.changes()), (vec!["ready".to_owned(), "ready".to_owned()], 0));
}

#[test]
fn what_was_counted_of_a_pool_goes_with_it() {
    let mut rig = kept(POOL);
    rig.configure("pools: []");
    assert!(rig.members().is_empty());
    rig.configure("pools: [{name: other, selectors: {vendors: ['15b3']}}]");
    let text = rig.exposition.text();
    assert!(!text.contains(r#"pool="radio""#) && text.contains(r#"pool="other",state="ready"} 0"#), "{text}");
}

#[test]
fn a_draw_that_waits_asks_no_more_often_for_a_ready_function_that_is_quarantined() {
    let rig = kept(POOL);
    rig.order(Verb::Quarantine, "radio");
    let asked = std::cell::Cell::new(0);
    let rank = |_: &fairlead_sriov::pool::Member| {
        asked.set(asked.get() + 1);
        Some(0)
    };
    let limit = Instant::now() + Duration::from_millis(200);
    let drawn = rig.engine().pools.draw_by("radio", limit, rank).err();
    assert!(matches!(drawn, Some(DrawError::Empty { .. })), "{drawn:?}");
    assert!(asked.get() < 100, "{}", asked.get());
}

#[test]
fn the_second_look_comes_when_kubelet_has_its_list_and_at_once_where_functions_are_to_be_made() {
    let mut rig = kept(POOL);
    rig.restart();
    assert_eq!(rig.look_due(), Look::Thorough, "which is due at its time");
    let next = rig.engine().pools.next_look(Instant::now() + Duration::from_secs(60));
    assert_eq!(next, Some(Look::Quick));
    assert_eq!(rig.look_due(), Look::Thorough);
    let mut rig = with("pools: [{name: radio, selectors: {rootDevices: ['0000:21:00.0']}, numvfs: 2}]");
    rig.restart();
    assert_eq!(rig.look_due(), Look::Quick);
}

#[test]
fn whose_a_function_is_by_files_is_asked_while_nobody_waits_for_the_pools() {
    let rig = kept(POOL);
    rig.add(&config(VF, "")).unwrap();
    let pools = &rig.engine().pools;
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let inherited = || {
        // Whoever else wants the pools has them meanwhile.
        std::thread::scope(|scope| drop(scope.spawn(|| pools.trouble()).join().unwrap()));
        asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Arc::default())
    };
    let holders = Holders { ours: &|_| None, inherited: &inherited };
    pools.table(holders);
    pools.order(Verb::Fill, "radio", holders).unwrap();
    pools.look(Look::Thorough, holders);
    assert!(asked.into_inner() >= 5);
}

#[test]
fn a_function_that_a_look_finds_in_a_calls_hands_is_looked_at_when_that_has_ended() {
    let rig = with("");
    let loan = rig.engine().pools.lend(pci(VF), Instant::now()).unwrap();
    rig.engine().configure(&settings(POOL));
    assert_eq!(rig.look_due(), Look::Thorough);
    rig.keep();
    assert_eq!(rig.states(), ["ready"], "the other one");
    drop(loan);
    assert_eq!(rig.look_due(), Look::Quick);
    rig.keep();
    assert_eq!(rig.states(), ["ready", "ready"]);
}
