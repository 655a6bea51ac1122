//! VFs of a pool that come and go under it: news of them, those that vanish and are made anew, their names, a reboot: on a
//! kernel in memory.

use fairlead_host::watch::{Action, DeviceEvent};
use fairlead_sriov::pools::Look;

use super::pools::{POOL, SECOND, config, kept};
use super::*;

#[test]
fn x17_news_of_a_vf_that_is_lent_or_of_no_pool_make_nobody_look() {
    let rig = kept(POOL);
    rig.add(&config(VF, "")).unwrap();
    rig.kernel.forget_calls();
    for device in [VF, "0000:99:00.0", "virtio2"] {
        let device = device.to_owned();
        let name = "net1".to_owned();
        rig.engine().core.kinds.sriov.pools.device_events(&[DeviceEvent::Interface {
            device,
            name,
            action: Action::Removed,
        }]);
    }
    rig.engine().look_at_pools(Look::News);
    assert!(rig.kernel.calls().is_empty());
    assert_eq!(rig.states(), ["lent", "ready"]);
}

#[test]
fn x17_a_vf_that_vanishes_is_withdrawn_and_offered_when_it_is_back() {
    let rig = kept(POOL);
    rig.unplug(SECOND);
    rig.keep();
    assert_eq!(rig.states(), ["ready", "gone"]);
    let refused = rig.add(&config(SECOND, "")).unwrap_err();
    assert!(refused.msg.contains("does not have it any more"), "{refused}");
    rig.plug_in_again(SECOND);
    rig.keep();
    assert_eq!(rig.states(), ["ready", "ready"]);
}

#[test]
fn x17_the_del_of_a_pools_vf_whose_name_another_one_has_by_chance_is_success() {
    let rig = kept(POOL);
    rig.add(&config(VF, "")).unwrap();
    rig.kernel.add_host_link("vf0");
    rig.del(&config(VF, "")).unwrap();
    rig.rename("vf0", "eth9");
    rig.engine().core.kinds.sriov.pools.work_here();
    assert_eq!(rig.states(), ["ready", "ready"]);
    assert_eq!(rig.named("vf0").as_deref(), Some(VF));
}

#[test]
fn x17_one_to_which_nothing_was_done_comes_home_under_its_own_name_only() {
    let mut rig = kept("pools: []");
    rig.add(&config(SECOND, "")).unwrap();
    rig.configure("pools: [{name: radio, selectors: {vendors: ['8086']}, min: 1}]");
    assert_eq!(rig.states(), ["ready", "lent"]);
    rig.kernel.add_host_link("vf1");
    let error = rig.del(&config(SECOND, "")).unwrap_err();
    assert!(error.msg.contains("bringing VF 0000:21:10.2 home"), "{error}");
    rig.rename("vf1", "eth9");
    rig.del(&config(SECOND, "")).unwrap();
    assert_eq!(rig.named("vf1").as_deref(), Some(SECOND));
}
