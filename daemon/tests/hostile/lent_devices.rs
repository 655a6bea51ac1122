//! What a pod does to a netdev that the host has lent to it.

use std::time::Duration;

use fairlead_host::scratch_program::ScratchProgram;
use fairlead_host::{LinkSettings, NetKernel, NetdevSettings, Op, ProgramHook, SetLink};
use nix::mount::{MntFlags, umount2};
use serde_json::{Value, json};

use crate::rig::{Pod, Reply, Rig, until};

/// A node with `nic0` to be lent, and `up0`, which is the host's own.
pub(crate) fn node() -> Rig {
    let rig = Rig::new();
    rig.ip("link add nic0 mtu 1400 address 02:00:00:00:0a:01 type veth peer name nic0-peer");
    rig.ip("link property add dev nic0 altname nic0-own");
    rig.ip("link set nic0 alias mine up");
    rig.ip("link set nic0-peer up");
    rig.ip("link add up0 type veth peer name up0-peer");
    rig
}

pub(crate) fn nic0() -> Value {
    json!({ "cniVersion": "1.0.0", "name": "nic", "type": "host-device", "device": "nic0", "ipam": {} })
}

fn lend<'r>(rig: &'r Rig, pod: &Pod) -> crate::rig::Call<'r> {
    let call = rig.call("c1", pod, &nic0());
    call.add().succeeds();
    call
}

#[test]
fn a_pods_own_veth_with_alias_name_and_mac_of_the_lent_device_never_enters_the_host() {
    let rig = node();
    let _daemon = rig.start();
    let before = rig.links();
    let pod = rig.pod("p1");
    pod.ip("link add index 3 name bait type veth peer name bait-peer");
    let call = lend(&rig, &pod);
    pod.ip("link set eth0 name hidden");
    pod.ip("link set hidden alias something-else address 02:00:00:00:0b:0b");
    pod.ip("link set bait address 02:00:00:00:0a:01 alias nic0 name eth0");
    call.del().succeeds();
    assert_eq!(rig.links(), before, "the host has its own device, and nothing of the pod's");
    assert_eq!(pod.links().iter().filter(|l| l.contains("veth")).count(), 2, "the pod keeps its own");
    assert_eq!(rig.attachments(), Vec::<Value>::new());
}

#[test]
fn a_device_that_its_pod_has_renamed_and_readdressed_comes_home_as_it_was() {
    let rig = node();
    let _daemon = rig.start();
    let before = rig.links();
    let pod = rig.pod("p1");
    let call = lend(&rig, &pod);
    pod.ip("link set eth0 name net7 mtu 1300");
    pod.ip("link set net7 alias eth9 address 02:00:00:00:0b:0b promisc on up");
    pod.ip("address add 10.99.0.1/24 dev net7");
    call.del().succeeds();
    assert_eq!(rig.links(), before);
    assert_eq!(rig.attachments(), Vec::<Value>::new());
}

#[test]
fn a_veth_that_its_pod_has_given_another_index_comes_home_by_its_peer() {
    let rig = node();
    let _daemon = rig.start();
    let before = rig.links();
    let (pod, nest) = (rig.pod("p1"), rig.pod("nest"));
    let call = lend(&rig, &pod);
    let index = pod.inside(|kernel| kernel.host().unwrap().link_by_name("eth0").unwrap().unwrap().index);
    pod.ip(&format!("link set eth0 netns {}", nest.path().display()));
    pod.ip(&format!("link add thief index {index} type veth peer name thief-peer"));
    nest.ip(&format!("link set eth0 netns {}", pod.path().display()));
    call.del().succeeds();
    let names = |links: Vec<String>| links.iter().filter(|link| link.contains("nic0")).count();
    assert_eq!(names(rig.links()), names(before), "{:?}", rig.links());
    assert_eq!(pod.links().iter().filter(|l| l.contains("veth")).count(), 2, "the pod keeps its own");
    assert_eq!(rig.attachments(), Vec::<Value>::new());
}

#[test]
fn an_alternative_name_of_the_hosts_does_not_keep_a_device_in_its_pod() {
    let rig = node();
    let _daemon = rig.start();
    let before = rig.links();
    let pod = rig.pod("p1");
    let call = lend(&rig, &pod);
    for name in ["up0", "wire0", "lent-away"] {
        pod.ip(&format!("link property add dev eth0 altname {name}"));
    }
    pod.ip("link property del dev eth0 altname nic0-own");
    call.del().succeeds();
    assert_eq!(rig.links(), before, "the pod's alternative names are gone, the host's are back");
}

#[test]
fn a_device_that_its_pod_has_hidden_stays_on_record_until_it_is_found() {
    let rig = node();
    let _daemon = rig.start();
    let before = rig.links();
    let (pod, nested) = (rig.pod("p1"), rig.pod("nested"));
    let call = lend(&rig, &pod);
    pod.ip(&format!("link set eth0 netns {}", nested.path().display()));
    pod.ip("link add eth0 type veth peer name bait-peer");
    pod.ip("link set eth0 alias nic0 address 02:00:00:00:0a:01");
    call.del().succeeds();
    assert_eq!(rig.attachments().len(), 1, "it is not forgotten");
    let told = rig.call("c2", &rig.pod("p2"), &nic0()).add();
    assert!(matches!(&told, Reply::Refused(e) if e.msg.contains("nic0")), "{told:?}");
    // The kernel keeps its index, which is free in the pod.
    nested.ip(&format!("link set eth0 name back0 netns {}", pod.path().display()));
    until("it is home", || rig.links() == before);
    until("its record is gone", || rig.attachments().is_empty());
}

#[test]
fn a_del_whose_name_on_the_host_is_taken_fails_and_changes_nothing() {
    let rig = node();
    let _daemon = rig.start();
    let before = rig.links();
    let pod = rig.pod("p1");
    let call = lend(&rig, &pod);
    rig.ip("link add nic0 type bridge");
    let in_pod = pod.links();
    let told = call.del();
    assert!(
        matches!(&told, Reply::Refused(e) if e.msg.contains("nic0") && e.msg.contains("rename")),
        "{told:?}"
    );
    assert_eq!(pod.links(), in_pod, "up, and with its alias, as it was");
    rig.ip("link del nic0");
    call.del().succeeds();
    assert_eq!(rig.links(), before);
}

#[test]
fn after_the_del_of_a_lent_device_nothing_of_ours_keeps_the_namespace_mounted() {
    let rig = node();
    let _daemon = rig.start();
    let mut config = nic0();
    config["ipam"] = json!({ "type": "static", "addresses": [{ "address": "10.77.0.5/24" }] });
    for n in 0..24 {
        let pod = rig.pod(&format!("p{n}"));
        let call = rig.call("c1", &pod, &config);
        call.add().succeeds();
        // The announcer begins 10 to 100 ms after an ADD, and listens for up to 350 ms.
        std::thread::sleep(Duration::from_millis(n * 10));
        call.del().succeeds();
        umount2(pod.path(), MntFlags::empty()).unwrap();
    }
}

#[test]
fn programs_and_features_that_a_pod_has_changed_on_a_lent_device_are_undone_at_home() {
    let rig = node();
    let _daemon = rig.start();
    let index = |links: &[fairlead_host::Link]| links.iter().find(|l| l.alias.is_some()).unwrap().index;
    let before = rig.inside(|kernel| {
        let mut host = kernel.host().unwrap();
        let nic = host.link_by_name("nic0").unwrap().unwrap().index;
        host.netdev_settings(nic).unwrap()
    });
    let pod = rig.pod("p1");
    let call = lend(&rig, &pod);
    let held = pod.inside(|kernel| {
        let mut own = kernel.host().unwrap();
        let lent = index(&own.links().unwrap());
        ScratchProgram::load(ProgramHook::TcxIngress).unwrap().attach(lent).unwrap();
        let all_off = NetdevSettings {
            features: before.features.as_ref().map(|f| "0".repeat(f.len())),
            ..before.clone()
        };
        own.restore_netdev_settings(lent, &all_off).unwrap();
        assert_ne!(own.netdev_settings(lent).unwrap(), before, "the pod has changed something");
        ScratchProgram::load(ProgramHook::XdpDriver).unwrap().attach_by_link(lent).unwrap()
    });
    call.del().succeeds();
    rig.inside(|kernel| {
        let mut host = kernel.host().unwrap();
        let nic = host.link_by_name("nic0").unwrap().unwrap().index;
        assert_eq!(host.attached_programs(nic).unwrap(), []);
        assert_eq!(host.netdev_settings(nic).unwrap(), before);
    });
    drop(held);
}

#[test]
fn a_program_of_the_hosts_that_its_pod_has_attached_in_another_way_does_not_come_home() {
    let rig = node();
    let _daemon = rig.start();
    let attached = || {
        rig.inside(|kernel| {
            let mut host = kernel.host().unwrap();
            let nic = host.link_by_name("nic0").unwrap().unwrap().index;
            (nic, host.attached_programs(nic).unwrap())
        })
    };
    let program = ScratchProgram::load(ProgramHook::TcxIngress).unwrap();
    let (nic, _) = attached();
    let own = rig.inside(|_| program.attach_by_link(nic).unwrap());
    let (_, before) = attached();
    assert_eq!(before.len(), 1);
    let (pod, quiet) = (rig.pod("p1"), rig.pod("p2"));
    let call = rig.call("c2", &quiet, &nic0());
    call.add().succeeds();
    call.del().succeeds();
    assert_eq!(attached().1, before, "one that only went along comes home");
    let call = lend(&rig, &pod);
    pod.inside(|kernel| {
        let lent = kernel.host().unwrap().link_by_name("eth0").unwrap().unwrap().index;
        // The same program, by no bpf_link of the host's any more. Whoever looks through all links of the kernel, as other tests do, holds
        // each of them for a moment.
        drop(own);
        let mut host = kernel.host().unwrap();
        until("the host's link is gone", || host.attached_programs(lent).unwrap().is_empty());
        program.attach(lent).unwrap();
    });
    call.del().succeeds();
    assert_eq!(attached().1, []);
}

#[test]
fn a_veth_of_the_pods_whose_peer_it_has_in_place_of_a_third_namespace_never_enters_the_host() {
    let rig = node();
    let (pod, nested, third) = (rig.pod("p1"), rig.pod("nested"), rig.pod("third"));
    rig.ip(&format!("link add nic1 type veth peer name far netns {}", third.path().display()));
    let _daemon = rig.start();
    let mut config = nic0();
    config["device"] = json!("nic1");
    let call = rig.call("c1", &pod, &config);
    call.add().succeeds();
    let (index, peer) = pod.inside(|kernel| {
        let lent = kernel.host().unwrap().link_by_name("eth0").unwrap().unwrap();
        (lent.index, lent.parent.unwrap())
    });
    let without = rig.links();
    pod.ip(&format!("link set eth0 netns {}", nested.path().display()));
    pod.ip(&format!("link add bait index {index} type veth peer name baitp index {peer}"));
    call.del().succeeds();
    assert_eq!(rig.links(), without, "nothing of the pod's is in the host");
    assert_eq!(rig.attachments().len(), 1, "the device is not forgotten");
}

/// The number of the youngest attachment, which a pod can guess from what it has seen of others.
fn youngest(rig: &Rig) -> u64 {
    let files = std::fs::read_dir(rig.path("run")).unwrap().flatten();
    let texts = files.filter_map(|file| std::fs::read(file.path()).ok());
    let ids = texts.flat_map(|bytes| {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let parts = text.split("\"id\":").skip(1);
        let digits = parts.map(|part| part.chars().take_while(char::is_ascii_digit).collect::<String>());
        digits.filter_map(|digits| digits.parse().ok()).collect::<Vec<u64>>()
    });
    ids.max().unwrap()
}

#[test]
fn a_pod_cannot_take_the_name_beforehand_that_its_silenced_interface_gets() {
    let rig = node();
    let _daemon = rig.start();
    let before = rig.links();
    let mut lent = nic0();
    lent["ipam"] = json!({ "type": "static", "addresses": [{ "address": "10.77.0.5/24" }] });
    for (n, config) in [rig.macvlan("net"), lent].iter().enumerate() {
        let pod = rig.pod(&format!("p{n}"));
        let call = rig.call("c1", &pod, config);
        call.add().succeeds();
        pod.ip(&format!("link property add dev lo altname fl{:x}", youngest(&rig) & 0xfff_ffff_ffff));
        call.del().succeeds();
        until("nothing is on record", || rig.attachments().is_empty());
        until("the device is home", || rig.links() == before);
    }
}

#[test]
fn whatever_else_a_pod_has_set_of_a_lent_device_is_as_it_was_at_home() {
    let rig = node();
    rig.ip("link set nic0 group 3 txqueuelen 700 multicast off dynamic on");
    let _daemon = rig.start();
    let settings =
        || rig.inside(|kernel| kernel.host().unwrap().link_by_name("nic0").unwrap().unwrap().settings);
    let (before, was) = (rig.links(), settings());
    let pod = rig.pod("p1");
    let call = lend(&rig, &pod);
    pod.ip("link set eth0 arp off group 7 txqueuelen 5 multicast on dynamic off promisc on allmulticast on");
    pod.ip("link set eth0 mode dormant broadcast 02:00:00:00:00:0f");
    let sizes = LinkSettings {
        gso_max_size: Some(3000),
        gso_max_segs: Some(9),
        gro_max_size: Some(4000),
        gso_ipv4_max_size: Some(2500),
        gro_ipv4_max_size: Some(3500),
        ..LinkSettings::default()
    };
    pod.inside(|kernel| {
        let mut own = kernel.host().unwrap();
        let index = own.link_by_name("eth0").unwrap().unwrap().index;
        own.batch(&[Op::SetLink(SetLink { index, settings: sizes, ..SetLink::default() })]).unwrap();
        let now = own.link_by_index(index).unwrap().unwrap().settings;
        assert_eq!(was.differing(&now).len(), 10, "all but what a veth does not take: {now:?}");
    });
    call.del().succeeds();
    assert_eq!((rig.links(), settings()), (before, was));
}

#[test]
fn promiscuity_that_the_host_has_given_a_device_itself_outlasts_its_pods() {
    let rig = node();
    rig.ip("link set nic0 promisc on allmulticast on");
    let _daemon = rig.start();
    let before = rig.links();
    for orders in [None, Some("promisc on allmulticast on"), Some("promisc off allmulticast off")] {
        let pod = rig.pod("p1");
        let call = lend(&rig, &pod);
        orders.into_iter().for_each(|orders| pod.ip(&format!("link set eth0 {orders}")));
        call.del().succeeds();
        assert_eq!(rig.links(), before, "{orders:?}");
    }
}
