//! What a pod does to a lent device between the daemon's look at it and its move home.

use std::fs;
use std::thread;

use serde_json::json;

use super::rig::{Rig, until};

/// More often than a daemon that tries three times in all would stand.
const RACES: usize = 8;

#[test]
fn a_pod_that_puts_a_name_of_the_hosts_back_before_each_try_still_loses_its_device_in_the_same_del() {
    let rig = Rig::new();
    rig.ip("link add nic0 type veth peer name nic0w");
    rig.ip("link set nic0 up");
    let _daemon = rig.start_pausing_at("del.leaving");
    let (before, pod) = (rig.links(), rig.pod("pod"));
    let config =
        json!({ "cniVersion": "1.0.0", "name": "lent", "type": "host-device", "device": "nic0", "ipam": {} });
    let call = rig.call("c1", &pod, &config);
    call.add().succeeds();
    let (paused, index) = (rig.path("paused"), pod.index().unwrap());
    thread::scope(|scope| {
        let del = scope.spawn(|| call.del());
        for race in 0..RACES {
            until("the daemon is about to move the device", || del.is_finished() || paused.exists());
            assert!(!del.is_finished(), "the DEL gave up at race {race}");
            let name = pod.name_of(index);
            pod.ip(&format!("link property add dev {name} altname wire0"));
            fs::remove_file(&paused).unwrap();
        }
        until("the daemon tries once more", || del.is_finished() || paused.exists());
        let _ = fs::remove_file(&paused);
        del.join().unwrap().succeeds();
    });
    assert_eq!(rig.links(), before, "it is home, without the pod's name");
    assert!(rig.attachments().is_empty());
}
