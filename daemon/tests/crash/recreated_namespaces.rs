//! Namespaces that die and are made again while the daemon is down: the same path, the same inode, the same number, an
//! interface with the same name and index. The old attachment is collected, the new namespace is never touched.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::rig::{Call, Pod, Reply, Rig, until};

/// The number of attempts when somebody else gets the inode first.
const ATTEMPTS: usize = 15;

/// Makes a new namespace at the same path with the same inode; `None` when another program on this machine got
/// the inode first.
fn made_anew(rig: &Rig, old: Pod) -> Option<Pod> {
    let inode = old.inode();
    let name = old.path().file_name().unwrap().to_str().unwrap().to_owned();
    drop(old);
    let limit = Instant::now() + Duration::from_secs(1);
    loop {
        let pod = rig.pod(&name);
        if pod.inode() == inode {
            return Some(pod);
        }
        if Instant::now() >= limit {
            return None;
        }
        drop(pod);
        sleep(Duration::from_millis(2));
    }
}

/// Makes an interface of another plugin, of the same name, kind and index as in the old namespace.
fn put_stranger(rig: &Rig, pod: &Pod, index: u64) {
    rig.ip(&format!("link add link eth0 name stranger index {index} type macvlan mode bridge"));
    rig.ip(&format!("link set stranger netns {} name eth0", pod.path().display()));
    pod.ip("link set eth0 up");
    pod.ip("addr add 192.0.2.7/24 dev eth0");
}

/// Replaces the namespace after `prepare`, which leaves a killed daemon. After a restart nothing of the old
/// namespace may be on record, and the new one must be as it was.
fn replaced(prepare: impl Fn(&Rig, &Call<'_>), with_stranger: bool) {
    let done = (0..ATTEMPTS).any(|_| try_replaced(&prepare, with_stranger));
    assert!(done, "the kernel did not give the inode out again in {ATTEMPTS} attempts");
}

fn try_replaced(prepare: &impl Fn(&Rig, &Call<'_>), with_stranger: bool) -> bool {
    let rig = Rig::new();
    let config = rig.macvlan("net");
    let before = {
        let _daemon = rig.start();
        rig.leftovers(&[])
    };
    let pod = rig.pod("pod");
    let call = rig.call("c1", &pod, &config);
    prepare(&rig, &call);
    let index = pod.index();
    let Some(pod) = made_anew(&rig, pod) else { return false };
    if with_stranger {
        put_stranger(&rig, &pod, index.unwrap());
    }
    let untouched = pod.links();
    let _daemon = rig.start();
    rig.is_as(&before, &[], "the restart");
    assert_eq!(pod.links(), untouched, "the new namespace was touched");
    // The new namespace is a pod like any other, and a late DEL of the old one is a success that touches nothing.
    let mut next = rig.call("c2", &pod, &config);
    next.ifname = "net1".to_owned();
    pod.has_what_was_answered("net1", &next.add().result());
    let with_next = pod.links();
    let mut late = rig.call("c1", &pod, &config);
    late.ifname = "gone0".to_owned();
    late.del().succeeds();
    assert_eq!(pod.links(), with_next);
    next.del().succeeds();
    until("the new namespace is as it was", || pod.links() == untouched);
    rig.is_as(&before, &[], "the end");
    true
}

fn attached(rig: &Rig, call: &Call<'_>) {
    let daemon = rig.start();
    call.add().succeeds();
    daemon.kill();
}

#[test]
fn x22_an_attachment_whose_namespace_was_replaced_while_the_daemon_was_down_is_collected() {
    replaced(attached, false);
}

#[test]
fn x22_a_link_of_the_new_namespace_with_the_old_ones_name_and_index_is_not_touched() {
    replaced(attached, true);
}

#[test]
fn x22_a_half_made_attachment_is_not_undone_in_the_namespace_that_came_after() {
    let die = |step: &'static str| {
        move |rig: &Rig, call: &Call<'_>| {
            let daemon = rig.start_dying_at(step);
            assert!(matches!(call.add(), Reply::Lost));
            daemon.dies();
        }
    };
    replaced(die("add.linked"), true);
    replaced(die("add.allocated"), false);
}

#[test]
fn x22_a_half_done_removal_is_not_finished_in_the_namespace_that_came_after() {
    let die = |step: &'static str| {
        move |rig: &Rig, call: &Call<'_>| {
            let daemon = rig.start_dying_at(step);
            call.add().succeeds();
            assert!(matches!(call.del(), Reply::Lost));
            daemon.dies();
        }
    };
    replaced(die("del.removing"), true);
    replaced(die("del.silenced"), false);
}
