//! The lists that kubelet is told: which VFs are in them and healthy, by which resource, and from when to when.

use std::fs;

use fairlead_host::Op;
use fairlead_host::watch::DeviceEvent;
use fairlead_kubelet::fake_kubelet::device;
use fairlead_sriov::pools::{Look, Verb};

use super::super::pools::SECOND;
use super::*;

#[test]
fn x17_x23_vfs_are_announced_when_they_are_verified_and_withdrawn_while_they_are_not() {
    let (rig, kubelet) = rig(&pool(""));
    hears(&kubelet, "");
    rig.keep();
    hears(&kubelet, "0 2");
    rig.order(Verb::Quarantine, VF);
    hears(&kubelet, "0! 2");
    rig.order(Verb::Release, VF);
    hears(&kubelet, "0 2");
    rig.kernel.set_dead(VF, true);
    rig.check_pools();
    hears(&kubelet, "0! 2");
    assert_eq!(rig.states(), ["preparing", "ready"], "at once, not with the second try");
    rig.keep_on();
    rig.order(Verb::Release, VF);
    assert!(kubelet.hears_nothing(Duration::from_millis(300)), "it is still broken");
    rig.kernel.set_dead(VF, false);
    rig.order(Verb::Release, VF);
    hears(&kubelet, "0 2");
}

#[test]
fn x17_x23_one_that_is_back_from_wherever_it_was_is_healthy_when_it_is_verified_and_not_before() {
    let (rig, kubelet) = rig(&pool(""));
    rig.keep();
    hears(&kubelet, "0 2");
    let comes_back = || {
        rig.engine().look_at_pools(Look::Quick);
        assert_eq!(rig.states(), ["ready", "preparing"]);
        assert!(kubelet.hears_nothing(Duration::from_millis(300)), "it is not verified");
        let refused = kubelet.allocate(RADIO, &[&[SECOND]]).unwrap_err();
        assert!(refused.message().contains("it is preparing"), "{refused}");
        rig.engine().core.kinds.sriov.pools.work_here();
        hears(&kubelet, "0 2");
    };
    rig.unplug(SECOND); // made anew
    rig.keep();
    hears(&kubelet, "0 2!");
    rig.plug_in_again(SECOND);
    comes_back();
    let address = rig.use_it("vf1"); // somebody else's
    rig.check_pools();
    hears(&kubelet, "0 2!");
    rig.in_host(Op::DeleteAddress(address));
    comes_back();
}

#[test]
fn x17_after_our_restart_the_first_list_is_complete() {
    let (mut rig, kubelet) = rig(&pool(""));
    rig.keep();
    hears(&kubelet, "0 2");
    kubelet.answers.lock().unwrap().pods = vec![pod("ran", "du-0", &[("app", &[(RADIO, VF, 0)])])];
    rig.of_pod(Command::Add, "net1").unwrap();
    rig.restart();
    rig.engine().offer_to_kubelet();
    let (resource, list) = kubelet.next_list();
    let told = |id: &str| (id.to_owned(), "Healthy".to_owned());
    let list: Vec<(String, String)> = list.into_iter().map(|(id, health, _)| (id, health)).collect();
    assert_eq!((resource.as_str(), list), (RADIO, vec![told(VF), told(SECOND)]), "the pod's own too");
}

#[test]
fn x17_what_was_being_cleaned_at_our_restart_is_in_the_first_list_unless_it_is_broken() {
    for dead in [false, true] {
        let (mut rig, kubelet) = rig(&pool(", profile: {vlan: 7}"));
        rig.keep();
        hears(&kubelet, "0 2");
        a_pod_came_and_went(&rig, &kubelet);
        rig.kernel.set_dead(VF, dead);
        rig.restart();
        assert_eq!(rig.states(), ["preparing", "ready"]);
        rig.engine().offer_to_kubelet();
        let first: Vec<AnnouncedDevice> = kubelet.next_list().1;
        assert!(first.iter().all(|(_, health, _)| health == "Healthy"), "{first:?}");
        assert_eq!(first.len(), if dead { 1 } else { 2 });
        if !dead {
            allocated(&rig, &kubelet, VF).unwrap(); // when it is clean
        }
    }
}

#[test]
fn x23_what_was_never_verified_is_in_no_list_after_our_restart_either() {
    let (mut rig, kubelet) = rig(&pool(""));
    rig.kernel.set_dead(VF, true);
    rig.keep();
    hears(&kubelet, "2");
    rig.kernel.set_dead(VF, false);
    rig.restart();
    rig.engine().offer_to_kubelet();
    assert_eq!(kubelet.next_list().1.len(), 1, "it was adopted, and that is all");
    rig.keep();
    hears(&kubelet, "0 2");
}

#[test]
fn x17_a_pf_without_a_carrier_withdraws_its_vfs_where_the_pool_says_so() {
    let carrier = |rig: &Rig, text: &str| {
        let net = rig.dir.path().join("sys/bus/pci/devices/0000:21:00.0/net").join(PF);
        fs::write(net.join("carrier"), text).unwrap();
    };
    let (dark, kubelet) = rig(&pool(", withdrawOnLinkDown: true"));
    carrier(&dark, "1\n");
    dark.keep();
    hears(&kubelet, "0 2");
    carrier(&dark, "0\n");
    let news = DeviceEvent::Carrier { device: "0000:21:00.0".into(), carrier: false };
    dark.look_due();
    dark.engine().core.kinds.sriov.pools.device_events(std::slice::from_ref(&news));
    assert_eq!(dark.look_due(), Look::Quick, "at once, not with the next check");
    dark.keep();
    hears(&kubelet, "0! 2!");
    carrier(&dark, "1\n");
    dark.keep();
    hears(&kubelet, "0 2");
    let (bright, kubelet) = rig(&pool(""));
    carrier(&bright, "0\n");
    bright.look_due();
    bright.engine().core.kinds.sriov.pools.device_events(&[news]);
    assert_eq!(bright.look_due(), Look::Thorough, "nothing is due before that");
    bright.keep();
    hears(&kubelet, "0 2");
}

#[test]
fn a_vf_that_another_device_plugin_announces_too_is_told_unless_the_pool_is_its_own() {
    let external = pool(", allocator: external");
    for (text, told) in [(pool(""), true), (external, false)] {
        let (rig, kubelet) = rig(&text);
        rig.keep();
        kubelet.answers.lock().unwrap().allocatable = vec![
            device(RADIO, VF, 0),
            device("other.org/vf", SECOND, 0),
            device("other.org/gpu", "gpu-1", 0),
        ];
        rig.engine().core.kinds.sriov.look_for_doubles();
        let trouble = rig.engine().core.kinds.sriov.pools.trouble();
        let wanted = format!(
            "another device plugin announces {SECOND} of pool \"radio\" to kubelet, as \"other.org/vf\""
        );
        assert_eq!(trouble, if told { wanted } else { String::new() });
        assert_eq!(rig.exposition.text().contains("fairlead_pool_notices 1"), told);
    }
}

#[test]
fn a_pool_for_another_device_plugin_that_none_announces_is_told_until_one_does() {
    let (rig, kubelet) = rig(&pool(", allocator: external"));
    rig.keep();
    let trouble = || {
        rig.engine().core.kinds.sriov.look_for_doubles();
        rig.engine().core.kinds.sriov.pools.trouble()
    };
    kubelet.answers.lock().unwrap().allocatable = vec![device("other.org/gpu", "gpu-1", 0)];
    assert_eq!(trouble(), "", "it may be about to register");
    assert!(trouble().starts_with("pool \"radio\" is another allocator's, and no device plugin announces"));
    assert!(rig.exposition.text().contains("fairlead_pool_notices 1"));
    kubelet.answers.lock().unwrap().allocatable = vec![device("other.org/vf", VF, 0)];
    assert_eq!(trouble(), "");
}

#[test]
fn pools_come_to_kubelet_and_go_with_the_configuration() {
    let (mut rig, kubelet) = rig("pools: [{name: radio, selectors: {vendors: ['8086']}}]");
    rig.keep();
    assert!(kubelet.hears_nothing(Duration::from_millis(300)), "ADD draws from it");
    rig.configure(&pool(""));
    hears(&kubelet, "0 2");
    rig.configure(&pool(", allocator: external"));
    let socket = kubelet.plugin_dir().join("fairlead-intel.com_radio.sock");
    until("it is offered still", || !socket.exists());
    assert_eq!(rig.states(), ["ready", "ready"]);
    rig.configure("pools: [{name: core, selectors: {vendors: ['8086']}}]");
    let told = rig.exposition.text();
    assert!(told.contains(r#"pool="core""#) && !told.contains(r#"pool="radio""#), "{told}");
}

#[test]
fn x17_vfs_whose_resource_is_renamed_are_not_to_be_had_by_its_old_name_too() {
    const CORE: &str = "intel.com/core";
    let (mut rig, kubelet) = rig(&pool(""));
    rig.keep();
    hears(&kubelet, "0 2");
    rig.configure(&pool("").replace(RADIO, CORE));
    hears(&kubelet, "0 2");
    until("the old resource's list stands", || !kubelet.follows(RADIO));
    let refused = kubelet.allocate(RADIO, &[&[VF]]).unwrap_err();
    assert!(refused.message().contains(r#"resource "intel.com/radio" is not offered any more"#), "{refused}");
    assert_eq!(rig.states(), ["ready", "ready"]);
    kubelet.allocate(CORE, &[&[VF]]).unwrap();
    assert_eq!(rig.states(), ["given", "ready"]);
}

#[test]
fn pools_that_the_start_could_not_offer_to_kubelet_are_offered_with_a_thorough_look_and_no_second_time() {
    let mut rig = with(&pool(""));
    rig.restart();
    // This start has offered nothing, as one that had no descriptor for it.
    let kubelet = FakeKubelet::running(&rig.root);
    rig.keep();
    rig.engine().look_when_due(Look::Quick);
    assert!(kubelet.hears_nothing(Duration::from_millis(300)), "it comes too often to try each time");
    rig.engine().look_when_due(Look::Thorough);
    hears(&kubelet, "0 2");
    rig.engine().look_when_due(Look::Thorough);
    assert!(kubelet.hears_nothing(Duration::from_millis(300)));
    assert_eq!((kubelet.registrations().len(), kubelet.follows(RADIO)), (1, true));
}
