//! Only what is provably meant is removed.

use fairlead_host::{Kind, MacvlanMode, NetKernel, NewLink, Op, Parent, SetLink};

use super::*;
use crate::store::Phase;

pub(super) fn macvlan_link() -> Kind {
    Kind::Macvlan { mode: MacvlanMode::Bridge, bc_queue_len: None }
}

#[test]
fn k09_del_of_an_older_sandbox_changes_nothing() {
    let rig = Rig::new();
    rig.add(&macvlan()).unwrap();
    let before = rig.state();
    rig.call(rig.request(Command::Del, "older", &macvlan())).unwrap();
    assert_eq!(rig.state(), before);
}

#[test]
fn a_caller_whose_own_network_is_not_the_daemons_is_refused() {
    use fairlead_cni::wire::Inode;
    let rig = Rig::new();
    let host = rig.kernel.host().unwrap().id().clone();
    let (inode, cookie) = (Inode { dev: host.dev, ino: host.ino }, host.cookie.unwrap());
    let elsewhere = Inode { ino: inode.ino + 1, ..inode };
    for (own_netns, own_netns_cookie) in [(Some(elsewhere), None), (None, Some(cookie + 1))] {
        let request = Request { own_netns, own_netns_cookie, ..rig.request(Command::Add, "c1", &macvlan()) };
        let error = rig.call(request).unwrap_err();
        assert!(error.to_string().contains("network namespace"), "{error}");
        assert!(rig.allocations().is_empty() && rig.engine().core.store.all().is_empty());
    }
    let own = Request {
        own_netns: Some(inode),
        own_netns_cookie: Some(cookie),
        ..rig.request(Command::Add, "c1", &macvlan())
    };
    rig.call(own).unwrap();
}

#[test]
fn k10_del_of_a_pod_never_seen_removes_what_the_configuration_implies() {
    let rig = Rig::new();
    rig.kernel.add_link(POD, "net1", macvlan_link()).unwrap();
    let dir = rig.dir.path().join("root/var/lib/cni/networks/net");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("10.1.0.7"), "c1\r\nnet1").unwrap();
    std::fs::write(dir.join("10.1.0.8"), "c2\r\nnet1").unwrap();
    rig.del(&macvlan()).unwrap();
    assert_eq!(rig.allocations(), ["10.1.0.8"]);
    let links = rig.kernel.snapshot().namespaces.into_values().flat_map(|n| n.links.into_values());
    assert!(!links.into_iter().any(|l| l.name == "net1"));
}

#[test]
fn k10_del_of_a_pod_never_seen_leaves_a_link_of_another_kind_alone() {
    let rig = Rig::new();
    rig.kernel.add_link(POD, "net1", Kind::Dummy).unwrap();
    let before = rig.state();
    rig.del(&macvlan()).unwrap();
    assert_eq!(rig.state(), before);
}

#[test]
fn r03_teardown_with_a_namespace_that_is_gone_succeeds() {
    let rig = Rig::new();
    rig.add(&macvlan()).unwrap();
    rig.kernel.kill_namespace(POD);
    rig.del(&macvlan()).unwrap();
    rig.reap();
    assert_eq!(rig.allocations(), Vec::<String>::new());
    assert!(rig.engine().core.store.all().is_empty());
}

#[test]
fn x03_a_namespace_that_died_is_collected_without_anyones_gc() {
    let rig = Rig::new();
    rig.add(&macvlan()).unwrap();
    let nsid = rig.engine().core.store.all()[0].netns.nsid.unwrap();
    rig.kernel.kill_namespace(POD);
    rig.engine().core.namespace_died(nsid);
    rig.reap();
    assert_eq!(rig.allocations(), Vec::<String>::new());
    assert!(rig.engine().core.store.all().is_empty());
}

#[test]
fn x03_who_saw_it_attached_does_not_take_back_that_a_del_has_silenced_it() {
    let rig = Rig::new();
    rig.add(&macvlan()).unwrap();
    let core = &rig.engine().core;
    let seen = core.store.all().remove(0);
    rig.kernel.kill_namespace(POD);
    core.store.enter(seen.id, Phase::Silenced).unwrap();
    core.collect_if_dead(&seen, seen.netns.nsid);
    assert_eq!(core.store.get(seen.id).unwrap().phase, Phase::Silenced);
    assert!(core.store.find(&seen.key).is_none(), "a repeated DEL would work on it beside the queue");
}

#[test]
fn x22_a_new_namespace_with_the_dead_ones_inode_keeps_its_interface() {
    let rig = Rig::new();
    rig.kernel.reuse_inodes();
    rig.add(&macvlan()).unwrap();
    rig.kernel.kill_namespace(POD);
    rig.kernel.add_namespace(POD);
    rig.kernel.add_link(POD, "net1", macvlan_link()).unwrap();
    rig.call(rig.request(Command::Add, "c2", &macvlan())).unwrap_err();
    let before = rig.kernel.snapshot();
    rig.del(&macvlan()).unwrap();
    rig.reap();
    assert_eq!(rig.kernel.snapshot(), before, "the DEL of the dead namespace's attachment");
}

#[test]
fn x22_an_older_sandbox_never_loses_a_newer_one_its_link_in_the_same_namespace() {
    let rig = Rig::new();
    rig.add(&macvlan()).unwrap();
    rig.del(&macvlan()).unwrap();
    rig.call(rig.request(Command::Add, "c2", &macvlan())).unwrap();
    rig.reap();
    rig.del(&macvlan()).unwrap();
    let attachments = rig.engine().core.store.all();
    assert_eq!(attachments.len(), 1);
    let links = rig.kernel.snapshot().namespaces.into_values().flat_map(|n| n.links.into_values());
    assert_eq!(links.into_iter().filter(|l| l.name == "net1").count(), 1);
}

#[test]
fn the_hosts_own_namespace_and_what_is_no_namespace_are_refused_by_code() {
    let rig = Rig::new();
    let code = |netns: &str| {
        let request = Request { netns: netns.to_owned(), ..rig.request(Command::Add, "c1", &macvlan()) };
        rig.call(request).unwrap_err().code.number()
    };
    assert_eq!(code(""), 4);
    assert_eq!(code("/run/netns/gone"), 3);
}

#[test]
fn a_namespace_that_is_not_the_one_that_the_executable_saw_is_refused_with_the_remedy() {
    let rig = Rig::new();
    let seen = Some(fairlead_cni::wire::Inode { dev: 1, ino: 1 });
    let request = Request { netns_inode: seen, ..rig.request(Command::Add, "c1", &macvlan()) };
    let told = rig.call(request).unwrap_err();
    assert_eq!(told.code.number(), 8);
    assert!(told.details.contains("mountPropagation"), "{told}");
}

#[test]
fn a_namespace_that_the_executable_saw_and_the_daemon_does_not_see_is_refused_with_the_remedy() {
    let rig = Rig::new();
    rig.kernel.unmount(POD);
    let seen = Some(fairlead_cni::wire::Inode { dev: 1, ino: 1 });
    let request = Request { netns_inode: seen, ..rig.request(Command::Add, "c1", &macvlan()) };
    let told = rig.call(request).unwrap_err();
    assert_eq!(told.code.number(), 8, "{told}");
    assert!(told.msg.contains("the daemon sees nothing"), "{told}");
    assert!(told.details.contains("at its own path"), "{told}");
    assert_eq!(rig.add(&macvlan()).unwrap_err().code.number(), 3, "where nobody looked, it may be gone");
}

/// The index of the interface in the pod.
fn net1(rig: &Rig) -> u32 {
    rig.kernel.pod(POD.as_ref()).unwrap().link_by_name("net1").unwrap().unwrap().index
}

#[test]
fn a_link_is_its_attachments_whatever_mac_address_its_pod_has_given_it_before_cookies_too() {
    for kernel in [FakeKernel::new(), FakeKernel::new().without_cookies()] {
        let rig = Rig::on(kernel);
        let before = rig.state();
        rig.add(&macvlan()).unwrap();
        let mac = Some(fairlead_host::Mac::local(0xbad));
        let changed = Op::SetLink(SetLink { index: net1(&rig), mac, ..SetLink::default() });
        rig.kernel.pod(POD.as_ref()).unwrap().batch(&[changed]).unwrap();
        rig.del(&macvlan()).unwrap();
        rig.reap();
        assert_eq!(rig.state(), before, "link and addresses are gone");
    }
}

#[test]
fn a_link_of_another_kind_at_the_index_on_record_is_left_alone() {
    let rig = Rig::new();
    rig.add(&macvlan()).unwrap();
    let index = net1(&rig);
    let new = NewLink {
        name: "own".to_owned(),
        index: Some(index),
        kind: Kind::Dummy,
        parent: Parent::None,
        mac: None,
        mtu: None,
        up: true,
    };
    rig.kernel.pod(POD.as_ref()).unwrap().batch(&[Op::DeleteLink(index), Op::CreateLink(new)]).unwrap();
    rig.del(&macvlan()).unwrap();
    rig.reap();
    assert!(rig.kernel.pod(POD.as_ref()).unwrap().link_by_name("own").unwrap().is_some());
    assert_eq!(rig.allocations(), Vec::<String>::new());
}

#[test]
fn on_a_kernel_that_cannot_rename_a_link_that_is_up_del_waits_until_the_link_is_gone() {
    let rig = Rig::on(FakeKernel::new().without_rename_while_up());
    let before = rig.state();
    rig.add(&macvlan()).unwrap();
    rig.del(&macvlan()).unwrap();
    assert_eq!(rig.state(), before, "nothing is left to be removed");
}

#[test]
fn m09_a_del_whose_type_was_changed_under_the_pod_takes_down_what_is_on_record() {
    let rig = Rig::new();
    let before = rig.state();
    rig.add(&macvlan()).unwrap();
    let changed = macvlan().replace(r#""type":"macvlan""#, r#""type":"ipvlan""#);
    rig.del(&changed).unwrap();
    rig.reap();
    assert_eq!(rig.state(), before);
}

#[test]
fn x06_a_device_that_falls_home_after_its_namespaces_death_was_told_is_waited_for() {
    for (name, config) in configurations() {
        if !name.starts_with("host-device") && !name.starts_with("sriov") {
            continue;
        }
        let rig = Rig::new();
        let before = rig.state();
        rig.add(&config).unwrap();
        rig.kernel.fall_home_after(Duration::from_millis(300));
        rig.kernel.kill_namespace(POD);
        rig.kernel.add_namespace(POD);
        rig.del(&config).unwrap();
        rig.reap();
        let now = rig.state();
        let home = |state: &State| state.kernel.namespaces.get(&fairlead_host::double::Place::Host).cloned();
        assert_eq!(home(&now), home(&before), "{name}");
        assert_eq!((now.records, now.kernel.vfs), (0, before.kernel.vfs), "{name}");
    }
}
