//! Which VFs kubelet is advised to give to a pod: those that neither it nor the pod's ADD has to wait for.

use super::super::pools::SECOND;
use super::*;

#[test]
fn k27_a_ready_vf_is_preferred_to_one_that_a_pod_has_or_had_until_that_is_clean() {
    let (rig, kubelet) = rig(&pool(""));
    rig.keep();
    hears(&kubelet, "0 2");
    let preferred = || kubelet.preferred(RADIO, &[VF, SECOND], &[], 1);
    assert_eq!(preferred(), [VF]);
    a_pod_came_and_went(&rig, &kubelet);
    assert_eq!(rig.states(), ["preparing", "ready"]);
    assert_eq!(preferred(), [SECOND]);
    assert_eq!(kubelet.preferred(RADIO, &[VF], &[], 1), [VF], "there is no other");
    rig.engine().core.kinds.sriov.pools.work_here();
    assert_eq!(rig.states(), ["ready", "ready"]);
    assert_eq!(preferred(), [VF], "it is clean");
    // Kubelet holds a pod's devices for free as soon as its containers have ended, which is before its DEL.
    rig.of_pod(Command::Add, "net1").unwrap();
    assert_eq!(rig.states(), ["lent", "ready"]);
    assert_eq!(preferred(), [SECOND]);
    rig.of_pod(Command::Del, "net1").unwrap();
    rig.reap();
    rig.engine().core.kinds.sriov.pools.work_here();
    // A pod without an ADD may have left anything on it.
    allocated(&rig, &kubelet, VF).unwrap();
    assert_eq!(rig.states(), ["given", "ready"]);
    assert_eq!(preferred(), [SECOND]);
    assert!(kubelet.hears_nothing(Duration::from_millis(300)), "its list was the same all the while");
}
