//! What a pod does to the link that was made for it.

use std::fs::File;

use fairlead_host::NetKernel;
use serde_json::Value;

use crate::rig::{Rig, until};

/// A pod whose namespace is held by somebody else than its path, with a macvlan whose MAC address it has changed.
fn node_with_a_pod_that_changed_its_mac() -> (Rig, crate::rig::Daemon, crate::rig::Pod, File) {
    let rig = Rig::new();
    let daemon = rig.start();
    let pod = rig.pod("p1");
    rig.call("c1", &pod, &rig.macvlan("net")).add().succeeds();
    pod.ip("link set eth0 address 02:00:00:00:0b:0b");
    let held = File::open(pod.path()).unwrap();
    (rig, daemon, pod, held)
}

#[test]
fn a_pod_that_changed_its_mac_keeps_its_address_while_it_lives_though_its_path_is_gone() {
    let (rig, daemon, pod, held) = node_with_a_pod_that_changed_its_mac();
    drop(pod);
    // A start looks through everything, as the sweep does every 33 s.
    daemon.kill();
    let _daemon = rig.start();
    assert_eq!(rig.attachments().len(), 1, "its namespace lives");
    assert_eq!(rig.allocations().len(), 2, "it still answers for its addresses");
    drop(held);
    until("the death of the namespace is noticed", || rig.attachments().is_empty());
    assert_eq!(rig.allocations().len(), 0);
}

#[test]
fn the_del_of_a_pod_that_changed_its_mac_frees_its_address_only_with_its_link() {
    let (rig, _daemon, pod, held) = node_with_a_pod_that_changed_its_mac();
    let call = rig.call("c1", &pod, &rig.macvlan("net"));
    drop(pod);
    call.del().succeeds();
    until("nothing is on record", || rig.attachments().is_empty());
    assert_eq!(rig.allocations().len(), 0);
    let links = held_links(&held);
    assert!(!links.contains("macvlan"), "the link went before its addresses: {links}");
}

/// What `ip` shows in a namespace that has no path any more.
fn held_links(held: &File) -> String {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/{}/fd/{}", std::process::id(), held.as_raw_fd());
    let out = std::process::Command::new("nsenter")
        .arg(format!("--net={path}"))
        .args(["ip", "-d", "link", "show"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn a_link_that_a_pod_has_deleted_is_no_error_for_its_del() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let pod = rig.pod("p1");
    let call = rig.call("c1", &pod, &rig.macvlan("net"));
    call.add().succeeds();
    pod.ip("link del eth0");
    call.del().succeeds();
    until("nothing is on record", || rig.attachments() == Vec::<Value>::new());
    assert_eq!(rig.allocations().len(), 0);
}

/// Takes the pod's interface out of its namespace and back, while another one takes its index.
fn renumber(rig: &Rig, pod: &crate::rig::Pod) {
    let nest = rig.pod("nest");
    let index = pod.inside(|kernel| kernel.host().unwrap().link_by_name("eth0").unwrap().unwrap().index);
    pod.ip(&format!("link set eth0 netns {}", nest.path().display()));
    pod.ip(&format!("link add b0 index {index} type bridge"));
    nest.inside(|_| ip(&format!("link set eth0 netns {}", pod.path().display())));
    pod.ip("address add 10.60.0.99/24 dev eth0");
    pod.ip("link set eth0 up");
}

#[test]
fn a_pod_that_gave_its_interface_another_index_keeps_its_address_while_it_lives_though_its_path_is_gone() {
    let rig = Rig::new();
    let daemon = rig.start();
    let pod = rig.pod("p1");
    rig.call("c1", &pod, &rig.macvlan("net")).add().succeeds();
    renumber(&rig, &pod);
    let held = File::open(pod.path()).unwrap();
    drop(pod);
    daemon.kill();
    let _daemon = rig.start();
    assert_eq!(rig.attachments().len(), 1, "its namespace lives");
    assert_eq!(rig.allocations().len(), 2, "it may still answer for its addresses");
    drop(held);
    until("the death of the namespace is noticed", || rig.attachments().is_empty());
    assert_eq!(rig.allocations().len(), 0);
}

#[test]
fn the_del_of_a_pod_that_gave_its_interface_another_index_deletes_it_before_its_addresses_are_free() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let pod = rig.pod("p1");
    let (call, mut beside) =
        (rig.call("c1", &pod, &rig.macvlan("net")), rig.call("c1", &pod, &rig.macvlan("net2")));
    beside.ifname = "eth1".to_owned();
    call.add().succeeds();
    beside.add().succeeds();
    renumber(&rig, &pod);
    call.del().succeeds();
    let held = File::open(pod.path()).unwrap();
    let links = held_links(&held);
    assert!(!links.contains("eth0") && links.contains("eth1"), "{links}");
    beside.del().succeeds();
    until("nothing is on record", || rig.attachments() == Vec::<Value>::new());
    assert_eq!(rig.allocations().len(), 0);
}

/// Runs `ip` where this thread is.
fn ip(words: &str) {
    let out = std::process::Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(out.status.success(), "{words}: {out:?}");
}
