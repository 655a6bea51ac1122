//! What was spooled while no daemon was there means the pods, and the namespaces, of that time.

use std::time::{SystemTime, UNIX_EPOCH};

use fairlead_cni::wire::{Inode, Spooled};
use fairlead_host::NetKernel;
use fairlead_host::process::boot_id;

use super::identity::macvlan_link;
use super::*;

/// A GC that keeps nothing, as it was spooled so many seconds from now.
fn gc(rig: &Rig, seconds: i64) -> Request {
    let config = macvlan()
        .replace(r#""cniVersion":"1.0.0""#, r#""cniVersion":"1.1.0","cni.dev/valid-attachments":[]"#);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let at = now.saturating_add_signed(seconds);
    let spooled = Some(Spooled { boot_id: boot_id().unwrap(), at, cookie: None });
    Request { spooled, ..rig.request(Command::Gc, "", &config) }
}

#[test]
fn x03_a_spooled_gc_takes_only_what_was_attached_before_it_was_spooled_however_late_it_is_carried_out() {
    let mut rig = Rig::new();
    rig.add(&macvlan()).unwrap();
    rig.call(gc(&rig, 60)).unwrap();
    assert_eq!(rig.engine().core.store.all().len(), 1, "this daemon came after it");
    rig.restart();
    rig.call(gc(&rig, -60)).unwrap();
    assert_eq!(rig.engine().core.store.all().len(), 1, "a daemon before this one came after it");
    rig.call(gc(&rig, 60)).unwrap();
    assert!(rig.engine().core.store.all().is_empty() && rig.allocations().is_empty());
}

/// A DEL of a pod that this daemon has never seen, as it was spooled: of the namespace that is there now, if nothing is changed.
fn del(rig: &Rig) -> Request {
    let pod = rig.kernel.pod(POD.as_ref()).unwrap();
    let (id, boot_id) = (pod.id(), boot_id().unwrap());
    let netns_inode = Some(Inode { dev: id.dev, ino: id.ino });
    let spooled = Some(Spooled { boot_id, at: 1, cookie: id.cookie });
    Request { netns_inode, spooled, ..rig.request(Command::Del, "c1", &macvlan()) }
}

#[test]
fn x22_a_spooled_del_takes_nothing_from_another_namespace_that_has_its_path_by_now() {
    type Change = fn(&mut Request);
    let another_cookie: Change = |request| request.spooled.as_mut().unwrap().cookie = Some(7);
    let without_cookie: Change = |request| request.spooled.as_mut().unwrap().cookie = None;
    let another_inode: Change = |request| {
        request.spooled.as_mut().unwrap().cookie = None;
        request.netns_inode.as_mut().unwrap().ino += 1;
    };
    let nowhere: Change = |request| {
        request.spooled.as_mut().unwrap().cookie = None;
        request.netns_inode = None;
    };
    let another_boot: Change = |request| request.spooled.as_mut().unwrap().boot_id = "another".to_owned();
    let cases = [
        (another_cookie, true),
        (another_inode, true),
        (nowhere, true),
        (another_boot, true),
        (without_cookie, false),
        (|_| {}, false),
    ];
    for (change, stays) in cases {
        let rig = Rig::new();
        rig.kernel.add_link(POD, "net1", macvlan_link()).unwrap();
        let mut request = del(&rig);
        change(&mut request);
        let told = format!("{request:?}");
        rig.call(request).unwrap();
        let link = rig.kernel.pod(POD.as_ref()).unwrap().link_by_name("net1").unwrap();
        assert_eq!(link.is_some(), stays, "{told}");
    }
}
