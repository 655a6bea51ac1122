//! What a pod could do between the look at a lent device and its move.

use fairlead_host::Op;
use fairlead_host::double::{KernelRequest, Place};
use nix::errno::Errno;

use super::*;
use crate::store::Attachment;

const HIDEOUT: &str = "/run/netns/hideout";

/// The host's own namespace in a state.
fn host(state: &State) -> fairlead_host::double::NetnsSnapshot {
    state.kernel.namespaces[&Place::Host].clone()
}

#[test]
fn a_link_that_its_pod_swaps_for_a_lent_device_at_the_last_moment_is_deleted_and_the_device_looked_for() {
    for (name, config) in configurations() {
        if !["host-device", "sriov, just as it is"].contains(&name) {
            continue;
        }
        let rig = Rig::new();
        rig.kernel.add_namespace(HIDEOUT);
        let before = rig.state();
        rig.add(&config).unwrap();
        rig.kernel.swap_at_next_move(HIDEOUT);
        // A VF's DEL is answered before the VF is moved; what the queue finds then is for the log.
        let _ = rig.del(&config);
        rig.reap();
        let now = rig.state();
        let strangers = host(&now).links.into_values().filter(|l| l.kind.name() == "veth").count();
        assert_eq!((strangers, now.records), (0, 1), "{name}: {now:#?}");
        rig.kernel.kill_namespace(HIDEOUT);
        rig.kernel.kill_namespace(POD);
        let _ = rig.del(&config);
        rig.reap();
        let now = rig.state();
        assert_eq!((host(&now), now.records, now.allocations.len()), (host(&before), 0, 0), "{name}");
    }
}

#[test]
fn an_interface_whose_name_cannot_be_freed_goes_before_its_del_is_answered() {
    for (name, config) in configurations() {
        let renamed = |rig: &Rig| {
            let calls = rig.kernel.calls();
            calls.iter().position(|call| {
                matches!(&call.request, KernelRequest::Op(Op::SetLink(set))
                    if set.name.as_ref().is_some_and(|name| name.starts_with("fl")))
            })
        };
        let trial = Rig::new();
        trial.add(&config).unwrap();
        trial.kernel.forget_calls();
        trial.del(&config).unwrap();
        // Not all of them are answered when they are silent.
        let Some(at) = renamed(&trial) else { continue };
        let rig = Rig::new();
        let before = rig.state();
        rig.add(&config).unwrap();
        rig.kernel.forget_calls();
        rig.kernel.fail_at(at, Errno::EEXIST);
        rig.del(&config).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(rig.state(), before, "{name}: nothing is left for later");
    }
}

#[test]
fn the_name_under_which_a_lent_device_comes_home_is_drawn_for_it_and_on_record() {
    let names = || {
        let rig = Rig::new();
        let (_, config) = configurations().into_iter().find(|(name, _)| *name == "host-device").unwrap();
        rig.add(&config).unwrap();
        let attachment = rig.engine().core.store.all().pop().unwrap();
        assert_eq!(attachment.parked.as_deref(), Some(&*attachment.parked_name()));
        let text = serde_json::to_string(&*attachment).unwrap();
        assert_eq!(serde_json::from_str::<Attachment>(&text).unwrap(), *attachment);
        let old = Attachment { parked: None, ..(*attachment).clone() };
        assert_eq!(old.parked_name(), format!("fl{:x}", attachment.id & 0xfff_ffff_ffff), "of 0.1.0");
        attachment.parked_name().into_owned()
    };
    let (one, other) = (names(), names());
    assert!(one != other && one.len() <= 15, "{one} {other}");
}
