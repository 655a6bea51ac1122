//! Rates of a NIC whose cable is out, which it takes only while it has a carrier: on a kernel in memory.

use fairlead_cni::Code;
use fairlead_host::watch::DeviceEvent;
use fairlead_sriov::pools::Verb;

use super::pools::{SECOND, config, kept, with};
use super::vf::TAGGED;
use super::*;

const RATED: &str =
    "pools: [{name: radio, selectors: {vendors: ['8086']}, profile: {trust: on, maxTxRate: 200}}]";

impl Rig {
    fn cable(&self, is_in: bool) {
        self.kernel.set_carrier(PF, is_in);
        let device = "0000:21:00.0".to_owned();
        self.engine()
            .core
            .kinds
            .sriov
            .pools
            .device_events(&[DeviceEvent::Carrier { device, carrier: is_in }]);
        self.engine().core.kinds.sriov.pools.work_here();
    }

    fn rate(&self) -> u32 {
        self.settings().rate.unwrap().max
    }
}

#[test]
fn an_add_that_wants_a_rate_of_a_nic_without_a_carrier_is_told_so_and_to_try_again() {
    let rig = Rig::new();
    rig.cable(false);
    let before = rig.state();
    let refused = rig.add(&config(VF, TAGGED)).unwrap_err();
    assert_eq!(refused.code, Code::TryAgain, "{refused}");
    assert!(refused.msg.contains("by 0000:21:00.0, which has no carrier"), "{refused}");
    assert!(refused.details.contains("its cable is in"), "{refused}");
    assert_eq!(rig.state(), before);
    rig.cable(true);
    rig.add(&config(VF, TAGGED)).unwrap();
    assert_eq!(rig.rate(), 200);
}

#[test]
fn x06_a_vf_of_no_pool_has_its_rate_back_before_the_next_pod_has_it() {
    let rig = Rig::new();
    let before = rig.state();
    rig.add(&config(VF, &format!(r#"{TAGGED},"trust":"on""#))).unwrap();
    rig.cable(false);
    rig.del(&config(VF, TAGGED)).unwrap(); // a pod ends all the same
    rig.del(&config(VF, TAGGED)).unwrap();
    let others = rig.settings();
    assert_eq!((others.vlan.unwrap().id, others.trust), (0, Some(false)), "what can be is put back");
    assert_eq!(rig.rate(), 200);
    rig.reap();
    rig.cable(true);
    rig.engine().core.sweep();
    rig.reap();
    assert_eq!(rig.state(), before);
}

#[test]
fn x06_until_it_has_its_rate_back_a_vf_of_no_pool_is_nobody_elses_whether_a_rate_is_wanted_or_not() {
    let mut rig = Rig::new();
    rig.call_settings.vf_wait = Duration::from_millis(20);
    rig.restart();
    rig.add(&config(VF, TAGGED)).unwrap();
    rig.cable(false);
    rig.del(&config(VF, TAGGED)).unwrap();
    for kept in [false, true] {
        if kept {
            rig.restart();
        }
        rig.reap();
        let told = rig.engine().table("attachments").unwrap()[0].clone();
        assert_eq!((told["phase"].as_str(), &told["addresses"]), (Some("silenced"), &serde_json::json!([])));
        assert!(told["broken"].as_str().unwrap().contains("by 0000:21:00.0, which has no carrier"), "{told}");
        for (container, more) in [("c2", ""), ("c2", TAGGED), ("c1", "")] {
            let late = rig.call(rig.request(Command::Add, container, &config(VF, more))).unwrap_err();
            assert_eq!(late.code, Code::TryAgain, "{late}");
            assert!(
                late.msg.contains(
                    "it has not come home from its last pod yet: setting min_tx_rate 0 max_tx_rate 0"
                ),
                "{late}"
            );
            assert!(late.msg.contains("which has no carrier"), "{late}");
            assert!(late.details.contains("its cable is in"), "{late}");
        }
    }
    rig.cable(true);
    rig.engine().core.sweep();
    rig.reap();
    rig.call(rig.request(Command::Add, "c2", &config(VF, ""))).unwrap();
    assert_eq!(rig.rate(), 0);
}

#[test]
fn x05_killed_at_any_call_of_a_del_without_a_carrier_the_next_daemon_gives_the_rate_back_when_there_is_one() {
    for n in 0.. {
        let mut rig = Rig::new();
        let before = rig.state();
        rig.add(&config(VF, TAGGED)).unwrap();
        rig.kernel.set_carrier(PF, false);
        rig.kernel.forget_calls();
        rig.kernel.fail_from(n, nix::errno::Errno::EIO);
        let done = rig.del(&config(VF, TAGGED));
        let survived = rig.kernel.calls().len() <= n;
        assert_eq!(done.is_ok(), survived, "killed at call {n}: {done:?}");
        rig.kernel.heal();
        rig.restart();
        rig.reap();
        assert_eq!((rig.rate(), rig.engine().core.store.all().len()), (200, 1), "killed at call {n}");
        rig.kernel.set_carrier(PF, true);
        rig.engine().core.sweep();
        rig.reap();
        assert_eq!(rig.state(), before, "killed at call {n}");
        if survived {
            return;
        }
    }
}

#[test]
fn x06_one_that_waits_for_a_carrier_holds_no_address_and_takes_none_from_the_next_of_its_name() {
    let ipam = r#","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}"#;
    let rated = format!(r#"{ipam},"max_tx_rate":200"#);
    let mut rig = with("");
    rig.call_settings.del_waits = true;
    rig.restart();
    for when_silent in [false, true] {
        rig.call_settings.del_waits = !when_silent;
        rig.restart();
        rig.add(&config(VF, &rated)).unwrap();
        rig.cable(false);
        rig.del(&config(VF, &rated)).unwrap();
        rig.reap();
        assert_eq!(rig.allocations(), Vec::<String>::new());
        rig.add(&config(SECOND, ipam)).unwrap(); // the same container and interface
        let its = rig.allocations();
        rig.cable(true);
        rig.engine().core.sweep();
        rig.reap();
        assert_eq!((rig.allocations(), rig.rate()), (its, 0));
        rig.del(&config(SECOND, ipam)).unwrap();
        rig.reap();
        assert_eq!((rig.engine().core.store.all().len(), rig.allocations().len()), (0, 0));
    }
}

#[test]
fn x06_a_vf_in_user_space_has_its_rate_back_too_when_there_is_a_carrier() {
    let rig = Rig::new();
    let before = rig.state();
    rig.add(&config(VFIO, TAGGED)).unwrap();
    rig.kernel.set_carrier(VFIO_LINK, false);
    rig.del(&config(VFIO, TAGGED)).unwrap();
    rig.kernel.set_carrier(VFIO_LINK, true);
    rig.reap();
    assert_eq!(rig.state(), before);
}

#[test]
fn x07_vfs_of_a_pool_with_a_rate_wait_for_their_nics_carrier_and_none_is_quarantined() {
    let mut rig = with(RATED);
    rig.kernel.set_carrier(PF, false); // as when its VFs have just been made
    rig.restart();
    rig.keep();
    (0..4).for_each(|_| rig.keep_on());
    assert_eq!(rig.states(), ["preparing", "preparing"]);
    let reason = rig.members()[0]["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("which has no carrier"), "{reason}");
    rig.cable(true);
    assert_eq!(
        (rig.states(), rig.rate()),
        (vec!["ready".to_owned(); 2], 200),
        "at once, not when the pause is over"
    );
}

#[test]
fn x07_one_that_comes_home_with_another_rate_while_the_cable_is_out_is_ready_again_when_it_is_in() {
    let rig = kept(RATED);
    rig.add(&config(VF, r#","max_tx_rate":300"#)).unwrap();
    rig.cable(false);
    rig.del(&config(VF, "")).unwrap(); // a pod ends all the same
    rig.engine().core.kinds.sriov.pools.work_here();
    (0..4).for_each(|_| rig.keep_on());
    assert_eq!((rig.states(), rig.rate()), (vec!["preparing".to_owned(), "ready".to_owned()], 300));
    rig.cable(true);
    assert_eq!((rig.states(), rig.rate()), (vec!["ready".to_owned(); 2], 200));
    rig.order(Verb::Drain, "radio");
    assert_eq!(rig.rate(), 0);
}
