//! What becomes of a pool's VFs when they break, hang or are somebody else's, and when the daemon dies: on a kernel in
//! memory.

use fairlead_cni::Code;
use fairlead_host::Op;
use fairlead_host::double::KernelRequest;
use fairlead_sriov::pools::Verb;

use super::pools::{POOL, SECOND, config, kept, with};
use super::*;

#[test]
fn x07_a_vf_that_fails_twice_is_quarantined_by_name_and_reason_until_it_is_released() {
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
    assert!(rig.engine().core.kinds.sriov.pools.trouble().contains("1 VFs of pools are quarantined"));
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["quarantined", "ready"], "it outlives the daemon");
    rig.kernel.set_dead(VF, false);
    rig.order(Verb::Release, VF);
    assert_eq!(rig.states(), ["ready", "ready"]);
    rig.add(&config(VF, "")).unwrap();
}

#[test]
fn x07_a_hiccup_of_a_pf_quarantines_none_and_costs_no_ready_one_its_place() {
    let rig = kept(POOL);
    // While they are ready: nothing is done to them, and it is told.
    rig.rename(PF, "elsewhere");
    rig.kernel.forget_calls();
    rig.check_pools();
    rig.check_pools();
    assert_eq!((rig.states(), rig.changes()), (vec!["ready".to_owned(), "ready".to_owned()], 0));
    let trouble = rig.engine().core.kinds.sriov.pools.trouble();
    assert!(trouble.contains("PF 0000:21:00.0 cannot be asked"), "{trouble}");
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
    assert!(refused.to_string().contains("not ready yet (preparing: the PF"), "{refused}");
    rig.rename("elsewhere", PF);
    rig.keep_on();
    rig.check_pools();
    assert_eq!(
        (rig.states(), rig.engine().core.kinds.sriov.pools.trouble().as_str()),
        (vec!["ready".to_owned(); 2], "")
    );
}

#[test]
fn a_vf_that_somebody_uses_is_left_alone_and_taken_when_it_is_free() {
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
