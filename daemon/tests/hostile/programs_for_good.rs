//! A program that a pod leaves on what was lent to it so that nobody can take it off: the pod holds the same program by a second
//! `bpf_link`, on a link of the same index in another namespace, and the kernel does not tell which of the two is whose.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fairlead_host::scratch_program::ScratchProgram;
use fairlead_host::{AttachedProgram, NetKernel, ProgramHook};
use serde_json::json;

use crate::lent_devices::{nic0, node};
use crate::rig::{Pod, Rig, until};

/// The pod attaches a program to its `eth0` for good, as long as the answer is kept.
fn attach_for_good(pod: &Pod, nested: &Pod) -> [OwnedFd; 2] {
    let program = ScratchProgram::load(ProgramHook::XdpGeneric).unwrap();
    let (index, held) = pod.inside(|kernel| {
        let index = kernel.host().unwrap().link_by_name("eth0").unwrap().unwrap().index;
        (index, program.attach_by_link(index).unwrap())
    });
    nested.ip(&format!("link add bait index {index} type veth peer name bait-peer"));
    [held, nested.inside(|_| program.attach_by_link(index).unwrap())]
}

/// The index of an interface of the node, and what is attached to it.
fn attached(rig: &Rig, name: &str) -> (u32, Vec<AttachedProgram>) {
    rig.inside(|kernel| {
        let mut host = kernel.host().unwrap();
        let index = host.link_by_name(name).unwrap().unwrap().index;
        (index, host.attached_programs(index).unwrap())
    })
}

#[test]
fn a_device_on_which_its_pod_has_left_a_program_for_good_comes_home_and_that_is_told() {
    let rig = node();
    let _daemon = rig.start();
    let before = rig.links();
    let (pod, nested) = (rig.pod("p1"), rig.pod("nested"));
    let call = rig.call("c1", &pod, &nic0());
    call.add().succeeds();
    let held = attach_for_good(&pod, &nested);
    call.del().succeeds();
    assert_eq!(rig.links(), before);
    let (_, left) = attached(&rig, "nic0");
    assert_eq!(left.len(), 1, "nothing but the end of its bpf_link takes it off: {left:?}");
    let log = std::fs::read_to_string(rig.path("log")).unwrap();
    assert!(log.contains("a pod has left something on a netdev that was lent to it"), "{log}");
    drop(held);
    // Another test's child may have a copy of the descriptor until it executes its program.
    until("the program is gone with its bpf_link", || attached(&rig, "nic0").1.is_empty());
}

/// Moves the interface of a VF into the node whenever its driver has made one: drivers make them in the machine's own namespace.
fn follow(rig: &Rig, vf: &str, ended: &AtomicBool) {
    let net = Path::new("/sys/bus/pci/devices").join(vf).join("net");
    while !ended.load(Ordering::Relaxed) {
        for interface in std::fs::read_dir(&net).into_iter().flatten().flatten() {
            rig.take(interface.file_name().to_str().unwrap());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[ignore = "this needs a VF, which LAB_PF, LAB_VF and LAB_NIC name: `make lab-test` runs it"]
fn a_vf_on_which_its_pod_has_left_a_program_for_good_is_bound_anew_before_the_next_pod_has_it() {
    let of_lab = |name: &str| std::env::var(name).unwrap();
    let (pf, vf, nic) = (of_lab("LAB_PF"), of_lab("LAB_VF"), of_lab("LAB_NIC"));
    let rig = node();
    for link in [&pf, &nic] {
        rig.take(link);
    }
    rig.ip(&format!("link set {pf} up"));
    rig.ip(&format!("link set {nic} mtu 1400 alias mine"));
    let _daemon = rig.start();
    let (mut by_name, mut by_address) = (nic0(), nic0());
    by_name["device"] = json!(nic);
    by_address["type"] = json!("sriov");
    by_address["deviceID"] = json!(vf);
    for (n, config) in [by_address, by_name].iter().enumerate() {
        let before = (rig.links(), attached(&rig, &nic));
        let (pod, nested) = (rig.pod(&format!("p{n}")), rig.pod(&format!("n{n}")));
        let call = rig.call("c1", &pod, config);
        call.add().succeeds();
        let held = attach_for_good(&pod, &nested);
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| follow(&rig, &vf, &ended));
            call.del().succeeds();
            until("nothing is on record", || rig.attachments().is_empty());
            ended.store(true, Ordering::Relaxed);
        });
        let (index, left) = attached(&rig, &nic);
        assert_ne!(index, before.1.0, "{config}: another interface");
        assert_eq!((rig.links(), left), (before.0, Vec::new()), "{config}: as it was, and clean");
        let (other, next) = (rig.pod(&format!("o{n}")), rig.links());
        let call = rig.call("c2", &other, config);
        call.add().succeeds();
        call.del().succeeds();
        until("nothing is on record", || rig.attachments().is_empty());
        assert_eq!(
            (rig.links(), attached(&rig, &nic)),
            (next, (index, Vec::new())),
            "and not bound anew again"
        );
        drop(held);
    }
}
