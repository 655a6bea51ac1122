//! What was spooled while no daemon was there means the pods, and the namespaces, of that time.

use fairlead_cni::wire::{Inode, Spooled};
use fairlead_host::NetKernel;
use fairlead_host::process::boot_id;

use super::identity::macvlan_link;
use super::pod_networks::{Cluster, web};
use super::*;
use crate::boot_time::BootTime;
use crate::store::Attachment;

/// A GC that keeps nothing, as it is sent to a daemon: made at this time.
fn gc(rig: &Rig, issued: BootTime) -> Request {
    let config = macvlan()
        .replace(r#""cniVersion":"1.0.0""#, r#""cniVersion":"1.1.0","cni.dev/valid-attachments":[]"#);
    Request { issued_ns: Some(issued.0), ..rig.request(Command::Gc, "", &config) }
}

/// The same as it is spooled. That was years later by the machine's clock, which says nothing.
fn spooled(request: Request) -> Request {
    let spooled = Some(Spooled { boot_id: boot_id().unwrap(), at: 4_000_000_000, cookie: None });
    Request { spooled, ..request }
}

fn only_attachment(rig: &Rig) -> Arc<Attachment> {
    let all = rig.engine().core.store.all();
    assert_eq!(all.len(), 1);
    Arc::clone(&all[0])
}

/// A time between the begin of an attachment's ADD and its commit.
fn during_add(attachment: &Attachment) -> BootTime {
    let (BootTime(begun), BootTime(committed)) = (attachment.begun.unwrap(), attachment.committed.unwrap());
    assert!(begun < committed);
    BootTime(begun.midpoint(committed))
}

#[test]
fn x03_a_gc_takes_only_what_was_committed_before_it_was_made_whichever_daemon_carries_it_out_and_when() {
    let ways: [fn(Request) -> Request; 2] = [|request| request, spooled];
    for as_sent in ways {
        let mut rig = Rig::new();
        let before = BootTime::now().unwrap();
        rig.add(&macvlan()).unwrap();
        // Not in its list: it came later, or its ADD was under way.
        let issued = [before, during_add(&only_attachment(&rig))];
        for issued in issued {
            rig.call(as_sent(gc(&rig, issued))).unwrap();
            only_attachment(&rig);
        }
        rig.restart();
        for issued in issued {
            rig.call(as_sent(gc(&rig, issued))).unwrap();
            only_attachment(&rig);
        }
        rig.call(as_sent(gc(&rig, BootTime::now().unwrap()))).unwrap();
        assert!(rig.engine().core.store.all().is_empty() && rig.allocations().is_empty());
    }
}

#[test]
fn x03_a_spooled_gc_of_another_boot_or_of_unknown_age_takes_nothing() {
    let mut rig = Rig::new();
    rig.add(&macvlan()).unwrap();
    rig.restart();
    let mut of_another_boot = spooled(gc(&rig, BootTime(u64::MAX)));
    of_another_boot.spooled.as_mut().unwrap().boot_id = "another".to_owned();
    let of_earlier_release = Request { issued_ns: None, ..spooled(gc(&rig, BootTime(0))) };
    for request in [of_another_boot, of_earlier_release] {
        rig.call(request).unwrap();
        only_attachment(&rig);
    }
    assert_eq!(rig.allocations().len(), 2);
}

/// A DEL that was done and is still in the spool takes nothing that came later; one that came later takes it.
fn stays_until_its_own_del(rig: &Rig, del: &Request) {
    let all = || rig.engine().core.store.all();
    let seen = || (all().iter().map(|a| (a.id, a.phase)).collect::<Vec<_>>(), rig.allocations());
    let attached = seen();
    // A network's own record is older than those of its plugins.
    let BootTime(begun) = all()[0].begun.unwrap();
    let made_at = |issued| spooled(Request { issued_ns: Some(issued), ..del.clone() });
    rig.call(made_at(begun - 1)).unwrap();
    assert_eq!(seen(), attached, "the ADD came after the DEL");
    rig.call(made_at(begun)).unwrap();
    rig.reap();
    assert!(all().is_empty() && rig.allocations().is_empty());
}

#[test]
fn a_spooled_del_that_was_done_and_could_not_be_removed_leaves_a_later_attachment_of_the_same_name() {
    let rig = Rig::new();
    rig.add(&macvlan()).unwrap();
    stays_until_its_own_del(&rig, &rig.request(Command::Del, "c1", &macvlan()));
    let cluster = Cluster::new();
    cluster.api.put_pod(&web(), &[]);
    cluster.add().unwrap();
    stays_until_its_own_del(&cluster.rig, &cluster.request(Command::Del));
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
