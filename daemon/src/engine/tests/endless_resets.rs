//! VFs that their driver does not end resetting: on a kernel in memory. Whose fault that is, and what their pool makes of it.

use fairlead_cni::Code;
use fairlead_sriov::pools::Verb;

use super::pools::{POOL, SECOND, config, with};
use super::*;

const FOR_EVER: Duration = Duration::from_secs(3600);

/// A pool that nothing was done to yet; it is not waited long for what a driver resets.
fn rig() -> Rig {
    let mut rig = with(POOL);
    rig.settles = Duration::from_millis(100);
    rig.restart();
    rig
}

#[test]
fn x07_one_that_never_ends_resetting_is_quarantined_alone_and_the_others_are_ready() {
    // As i40e has it, which tells its settings meanwhile, and as ice, which does not.
    let i40e = |rig: &Rig| rig.kernel.keep_busy(VF, true);
    let ice = |rig: &Rig| rig.kernel.reset_vf(VF, FOR_EVER);
    for hangs in [&i40e as &dyn Fn(&Rig), &ice] {
        let rig = rig();
        hangs(&rig);
        rig.keep();
        assert_eq!(rig.states(), ["preparing", "ready"]);
        rig.keep_on();
        assert_eq!(rig.states(), ["quarantined", "ready"]);
        let row = rig.members().remove(0);
        let says = format!("VF {VF} does not end resetting: 0000:21:00.0 ");
        assert!(row["reason"].as_str().unwrap().starts_with(&says), "{row}");
        let refused = rig.add(&config(VF, "")).unwrap_err();
        assert!(
            refused.code == Code::TryAgain && refused.msg.contains("does not end resetting"),
            "{refused}"
        );
        rig.add(&config(SECOND, "")).unwrap();
    }
}

#[test]
fn x07_one_that_has_ended_resetting_is_ready_when_it_is_released() {
    let rig = rig();
    rig.kernel.keep_busy(VF, true);
    rig.keep();
    rig.keep_on();
    assert_eq!(rig.states(), ["quarantined", "ready"]);
    rig.kernel.keep_busy(VF, false);
    rig.order(Verb::Release, VF);
    assert_eq!(rig.states(), ["ready", "ready"]);
}

#[test]
fn x07_while_a_pf_is_busy_for_all_none_of_its_vfs_is_quarantined() {
    let rig = rig();
    [VF, SECOND].iter().for_each(|one| rig.kernel.keep_busy(one, true));
    rig.keep();
    (0..4).for_each(|_| rig.keep_on());
    assert_eq!(rig.states(), ["preparing", "preparing"]);
    [VF, SECOND].iter().for_each(|one| rig.kernel.keep_busy(one, false));
    rig.keep_on();
    assert_eq!(rig.states(), ["ready", "ready"]);
}

#[test]
fn x07_one_that_does_not_end_resetting_when_it_comes_home_keeps_no_pod_and_is_no_other_pods() {
    let i40e = |rig: &Rig| rig.kernel.keep_busy(VF, true);
    let ice = |rig: &Rig| rig.kernel.reset_vf(VF, FOR_EVER);
    for hangs in [&i40e as &dyn Fn(&Rig), &ice] {
        let rig = rig();
        rig.keep();
        rig.add(&config(VF, r#","vlan":100,"mac":"02:00:00:00:aa:01""#)).unwrap();
        hangs(&rig);
        rig.del(&config(VF, "")).unwrap();
        assert_eq!(rig.states(), ["preparing", "ready"]);
        (0..2).for_each(|_| rig.keep_on());
        assert_eq!(rig.states(), ["quarantined", "ready"]);
    }
}

#[test]
fn x08_an_add_that_wants_a_setting_of_one_is_told_to_try_again_and_of_which_vf() {
    let mut rig = Rig::new();
    rig.settles = Duration::from_millis(100);
    rig.restart();
    let before = rig.state();
    rig.kernel.keep_busy(VF, true);
    let refused = rig.add(&config(VF, r#","vlan":9"#)).unwrap_err();
    assert_eq!(refused.code, Code::TryAgain, "{refused}");
    assert!(refused.msg.contains(&format!("VF {VF} does not end resetting")), "{refused}");
    assert!(refused.details.contains("the kernel's log"), "{refused}");
    assert_eq!(rig.state(), before);
}
