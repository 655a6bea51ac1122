//! Pools on a kernel in memory: what a member goes through, and what an ADD has of it.

use std::fs;

use fairlead_host::double::{KernelRequest, Snapshot};
use fairlead_host::{NetKernel, Op};
use fairlead_sriov::pools::{Look, Verb};
use serde_json::Value;

use super::*;
use crate::call::Lane;

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

/// A machine with two VFs and this configuration; nothing was looked at yet.
pub(super) fn with(text: &str) -> Rig {
    on(FakeKernel::new(), text)
}

/// The same, with this kernel.
pub(super) fn on(kernel: FakeKernel, text: &str) -> Rig {
    let mut rig = Rig::on(kernel);
    let pf = rig.kernel.host().unwrap().link_by_name(PF).unwrap().unwrap().index;
    let sys = rig.dir.path().join("sys");
    vf::plug(&sys, ("0000:21:00.0", PF), 1, (SECOND, "vf1"));
    vf::driven(&sys, SECOND, "igbvf");
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

    /// What the pool reconciler's threads would do.
    pub(super) fn keep(&self) {
        self.engine().look_at_pools(Look::Quick);
        self.engine().core.kinds.sriov.pools.work_here();
    }

    /// The same when every pause is over.
    pub(super) fn keep_on(&self) {
        self.engine().core.kinds.sriov.pools.wake(Instant::now() + Duration::from_secs(3600));
        self.engine().core.kinds.sriov.pools.work_here();
    }

    pub(super) fn check_pools(&self) {
        self.engine().look_at_pools(Look::Thorough);
        self.engine().core.kinds.sriov.pools.work_here();
    }

    /// The look that the pool reconciler takes next; the thorough one, which is due at its time, where nothing else is.
    pub(super) fn look_due(&self) -> Look {
        // Before the second look of any start: a slow machine comes to nothing else.
        let at_the_start = Instant::now() - Duration::from_secs(3600);
        self.engine().core.kinds.sriov.pools.take_look(at_the_start).unwrap_or(Look::Thorough)
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
        // The pool reconciler would do it while the order is waited for.
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
fn an_add_of_a_ready_vf_reads_no_settings_and_sends_none_that_fit() {
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
        assert_eq!(rig.members()[0]["attachment"], "net1 of container c1");
        rig.del(&config(VF, more)).unwrap();
        assert_eq!(rig.states(), ["preparing", "ready"]);
        rig.engine().core.kinds.sriov.pools.work_here();
        assert_eq!(rig.states(), ["ready", "ready"]);
        let vf = rig.kernel.snapshot().vfs.values().next().unwrap()[0].clone();
        assert_eq!((vf.vlan.unwrap().id, vf.rate.unwrap().max), (7, 0));
    }
}

#[test]
fn an_add_that_finds_its_vf_as_it_wants_it_is_not_handed_to_another_thread() {
    let mut rig = with(POOL);
    rig.restart();
    let lane = |rig: &Rig, more| rig.prepare(rig.request(Command::Add, "c1", &config(VF, more))).lane();
    assert_eq!(lane(&rig, ""), Lane::Slow, "it is not ready yet");
    rig.keep();
    for (more, expected) in [("", Lane::Fast), (r#","vlan":7"#, Lane::Fast), (r#","vlan":100"#, Lane::Slow)] {
        assert_eq!(lane(&rig, more), expected, "{more}");
    }
    rig.add(&config(VF, "")).unwrap();
    assert_eq!(lane(&rig, ""), Lane::Slow, "it is lent");
}

#[test]
fn x07_the_mac_address_of_a_vf_under_vfio_is_its_pools_again_and_its_del_reads_no_settings() {
    let rig = kept("pools: [{name: radio, selectors: {vendors: ['8086']}, driver: vfio-pci}]");
    let lasting = rig.settings().mac;
    rig.add(&config(VF, "")).unwrap();
    rig.takes_another_mac(PF);
    assert_ne!(rig.settings().mac, lasting);
    rig.kernel.forget_calls();
    rig.del(&config(VF, "")).unwrap();
    assert_eq!(rig.asked(|asked| matches!(asked, KernelRequest::Vfs(_))), 0);
    rig.engine().core.kinds.sriov.pools.work_here();
    assert_eq!((rig.settings().mac, rig.states()), (lasting, vec!["ready".to_owned(); 2]));
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
fn x19_a_path_whose_vf_is_being_prepared_is_waited_for_and_one_that_is_quarantined_is_passed_over() {
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
        rig.engine().core.kinds.sriov.pools.work_here();
        assert!(waits.join().unwrap().unwrap().contains(VF));
    });
    rig.del(&paths).unwrap();
    rig.reap();
    rig.order(Verb::Quarantine, VF);
    let answer = rig.add(&paths).unwrap();
    assert!(!answer.contains(VF), "{answer}");
}

#[test]
fn k25_an_idle_vf_that_an_add_names_has_its_pools_settings_before_the_pod_has_it() {
    let rig = kept(&POOL.replace("}}]", "}, min: 1}]"));
    assert_eq!(rig.states(), ["ready", "idle"]);
    std::thread::scope(|scope| {
        let adds = scope.spawn(|| rig.add(&config(SECOND, "")));
        while !adds.is_finished() {
            rig.engine().core.kinds.sriov.pools.work_here();
            std::thread::sleep(Duration::from_millis(1));
        }
        adds.join().unwrap().unwrap();
    });
    let vf = rig.kernel.snapshot().vfs.values().next().unwrap()[1].clone();
    assert_eq!((rig.states()[1].as_str(), vf.vlan.unwrap().id, vf.trust), ("lent", 7, Some(true)));
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
fn d24_an_add_of_a_ready_vf_for_user_space_reads_no_settings_and_tells_the_pools_mac_address() {
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
        rig.engine().core.kinds.sriov.pools.work_here();
        assert_eq!(rig.states(), ["ready", "ready"]);
        assert_eq!(rig.kernel.snapshot().vfs.values().next().unwrap()[0].vlan.unwrap().id, 7);
    }
}
