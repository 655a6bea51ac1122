//! Rates of a NIC whose cable is out, which it takes only while it has a carrier: on a kernel in memory.

use fairlead_cni::Code;
use fairlead_host::watch::DeviceEvent;

use super::functions::TAGGED;
use super::pools::{config, kept, with};
use super::*;
use crate::pools::Verb;

const RATED: &str =
    "pools: [{name: radio, selectors: {vendors: ['8086']}, profile: {trust: on, maxTxRate: 200}}]";

impl Rig {
    fn cable(&self, is_in: bool) {
        self.kernel.set_carrier(PF, is_in);
        let device = "0000:21:00.0".to_owned();
        self.engine().pools.heard(&[DeviceEvent::Carrier { device, carrier: is_in }]);
        self.engine().pools.work_here();
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
fn x06_a_function_of_no_pool_has_its_rate_back_before_the_next_pod_has_it() {
    let rig = Rig::new();
    let before = rig.state();
    rig.add(&config(VF, &format!(r#"{TAGGED},"trust":"on""#))).unwrap();
    rig.cable(false);
    let waits = rig.del(&config(VF, TAGGED)).unwrap_err();
    assert!(waits.code == Code::TryAgain && waits.msg.contains("has no carrier"), "{waits}");
    let others = rig.settings();
    assert_eq!((others.vlan.unwrap().id, others.trust), (0, Some(false)), "what can be is put back");
    rig.cable(true);
    rig.del(&config(VF, TAGGED)).unwrap();
    assert_eq!(rig.state(), before);
}

#[test]
fn x07_functions_of_a_pool_with_a_rate_wait_for_their_nics_carrier_and_none_is_quarantined() {
    let mut rig = with(RATED);
    rig.kernel.set_carrier(PF, false); // as when its functions have just been made
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
    rig.engine().pools.work_here();
    (0..4).for_each(|_| rig.keep_on());
    assert_eq!((rig.states(), rig.rate()), (vec!["preparing".to_owned(), "ready".to_owned()], 300));
    rig.cable(true);
    assert_eq!((rig.states(), rig.rate()), (vec!["ready".to_owned(); 2], 200));
    rig.order(Verb::Drain, "radio");
    assert_eq!(rig.rate(), 0);
}
