//! Namespaces that die and are made anew while the daemon is down: the same path, the same inode, the same number, an
//! interface with the same name and index. The old attachment is collected, the new namespace is never touched.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::rig::{Call, Pod, Reply, Rig, until};

/// A new namespace at the same path with the same inode, and in it an interface of another plugin with the same name,
/// kind and index.
fn made_anew(rig: &Rig, old: Pod, stranger: Option<u64>) -> Pod {
    let inode = old.inode();
    let name = old.path().file_name().unwrap().to_str().unwrap().to_owned();
    drop(old);
    let limit = Instant::now() + Duration::from_secs(15);
    let pod = loop {
        let pod = rig.pod(&name);
        if pod.inode() == inode {
            break pod;
        }
        assert!(Instant::now() < limit, "the kernel did not give the inode out again");
        drop(pod);
        sleep(Duration::from_millis(2));
    };
    if let Some(index) = stranger {
        let path = pod.path().display().to_string();
        rig.ip(&format!("link add link eth0 name stranger index {index} type macvlan mode bridge"));
        rig.ip(&format!("link set stranger netns {path} name eth0"));
        pod.ip("link set eth0 up");
        pod.ip("addr add 192.0.2.7/24 dev eth0");
    }
    pod
}

/// Kills by `kill`, replaces the namespace, restarts: nothing of the old one is on record, the new one is as it was.
fn replaced(prepare: impl Fn(&Rig, &Call<'_>), with_stranger: bool) {
    let rig = Rig::new();
    let config = rig.macvlan("net");
    let before = {
        let _daemon = rig.start();
        rig.inventory(&[])
    };
    let pod = rig.pod("pod");
    let call = rig.call("c1", &pod, &config);
    prepare(&rig, &call);
    let stranger = if with_stranger { pod.index() } else { None };
    let pod = made_anew(&rig, pod, stranger);
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
