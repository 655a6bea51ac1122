//! VFs on their way home on a kernel in memory: whatever lies in it, and who waits for them.

use fairlead_cni::Code;
use fairlead_host::double::KernelRequest;
use fairlead_host::{IommuGroup, Kind, NetKernel, Op, SetLink};

use super::vf::{TAGGED, config, forget_index};
use super::*;

#[test]
fn an_add_waits_for_a_vf_that_is_still_coming_home() {
    let rig = Rig::new();
    rig.add(&config(TAGGED)).unwrap();
    rig.kernel.forget_calls();
    rig.kernel.fail_from(0, nix::errno::Errno::ENOBUFS);
    rig.del(&config(TAGGED)).unwrap_err();
    rig.kernel.heal();
    rig.engine().core.removals.expect(rig.engine().core.store.all()[0].id, Instant::now());
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| rig.call(rig.request(Command::Add, "c2", &config(""))));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished());
        rig.reap();
        waits.join().unwrap().unwrap();
    });
    assert_eq!(rig.settings().vlan.unwrap().id, 0);
}

#[test]
fn an_add_for_a_vf_on_its_way_home_is_told_to_try_again_when_its_time_is_over_and_never_falls_back() {
    let mut rig = Rig::new();
    rig.call_settings.vf_wait = Duration::from_millis(100);
    rig.restart();
    let paths = fallback::config(&[fallback::SRIOV, fallback::MACVLAN], fallback::GIVEN);
    rig.add(&paths).unwrap();
    rig.del(&paths).unwrap(); // answered; no removal brings it home
    for config in [config(""), paths.clone()] {
        let begun = Instant::now();
        let late = rig.call(rig.request(Command::Add, "c2", &config)).unwrap_err();
        assert_eq!(late.code, Code::TryAgain, "{late}");
        assert!(late.msg.contains("it has not come home from its last pod yet"), "{late}");
        assert!(begun.elapsed() >= Duration::from_millis(100), "it was waited for");
    }
    let text = rig.exposition.text();
    assert!(!text.contains(r#"outcome="passed-over""#), "{text}");
    rig.reap();
    let answer = rig.call(rig.request(Command::Add, "c2", &paths)).unwrap();
    assert!(answer.contains(VF), "{answer}");
}

#[test]
fn x22_an_add_for_a_vf_of_a_dead_pod_finishes_that_one_first() {
    let rig = Rig::new();
    rig.add(&config(TAGGED)).unwrap();
    rig.kernel.kill_namespace(POD);
    rig.kernel.add_namespace(POD);
    std::thread::scope(|scope| {
        let add = scope.spawn(|| rig.call(rig.request(Command::Add, "c2", &config(""))));
        while !add.is_finished() {
            rig.reap();
            std::thread::sleep(Duration::from_millis(5));
        }
        add.join().unwrap().unwrap();
    });
    assert_eq!(rig.settings().vlan.unwrap().id, 0, "what the dead pod had is gone");
    assert_eq!(rig.engine().core.store.all().len(), 1);
}

#[test]
fn a_vf_whose_driver_has_given_its_interface_up_is_bound_anew_and_comes_home() {
    let rig = Rig::new();
    let before = rig.at_home();
    rig.add(&config(TAGGED)).unwrap();
    rig.kernel.give_interface_up(VF).unwrap();
    rig.del(&config(TAGGED)).unwrap();
    rig.reap();
    assert_eq!(forget_index(rig.at_home()), forget_index(before));
    assert_eq!((rig.settings().vlan.unwrap().id, rig.engine().core.store.all().len()), (0, 0));
}

#[test]
fn a_vf_comes_home_even_where_its_name_is_taken_and_gets_it_when_it_is_free() {
    let rig = Rig::new();
    let before = rig.at_home().unwrap();
    rig.add(&config(TAGGED)).unwrap();
    let thief = rig.kernel.add_host_link("vf0");
    let error = rig.del(&config(TAGGED)).unwrap_err();
    assert!(error.msg.contains("bringing VF 0000:21:10.0 home"), "{error}");
    assert_eq!(rig.settings().vlan.unwrap().id, 0, "its settings need no name");
    assert!(rig.at_home().unwrap().name.starts_with("fl"));
    let away = SetLink { index: thief, name: Some("other".into()), ..SetLink::default() };
    rig.kernel.host().unwrap().batch(&[Op::SetLink(away)]).unwrap();
    rig.del(&config(TAGGED)).unwrap();
    assert_eq!(forget_index(rig.at_home()), forget_index(Some(before)));
}

#[test]
fn del_of_a_vf_with_addresses_is_answered_when_it_is_silent_and_the_next_add_waits_for_it() {
    let rig = Rig::new();
    let before = rig.state();
    let with_address =
        config(r#","vlan":100,"ipam":{"type":"static","addresses":[{"address":"10.8.0.9/24"}]}"#);
    rig.add(&with_address).unwrap();
    rig.kernel.forget_calls();
    rig.del(&with_address).unwrap();
    let renamed = |op: &Op| matches!(op, Op::SetLink(SetLink { name: Some(_), up: None, .. }));
    let ops = rig.ops();
    assert!(ops.iter().all(|op| matches!(op, Op::DeleteAddress(_)) || renamed(op)), "{ops:?}");
    assert_eq!(rig.settings().vlan.unwrap().id, 100, "until it has left the pod, the pod stays on its VLAN");
    assert!(rig.at_home().is_none());
    std::thread::scope(|s| {
        // Another pod's, as soon as its removal is done.
        let next = s.spawn(|| rig.call(rig.request(Command::Add, "c2", &config(""))));
        std::thread::sleep(Duration::from_millis(30));
        assert!(!next.is_finished());
        rig.reap();
        next.join().unwrap().unwrap();
    });
    rig.call(rig.request(Command::Del, "c2", &config(""))).unwrap();
    assert_eq!(rig.state(), before);
}

#[test]
fn a_vf_that_the_kernel_moved_under_its_own_name_is_found_by_its_address_and_nobody_elses_link_is_touched() {
    // Move and rename are one message and two steps: with the name taken the kernel answers EEXIST, and it is in the pod.
    let rig = Rig::new();
    let before = rig.at_home();
    rig.add(&config(TAGGED)).unwrap();
    rig.in_pod(|index| {
        let down = Op::SetLink(SetLink { index, up: Some(false), ..SetLink::default() });
        vec![down, Op::SetLink(SetLink { index, name: Some("vf0".into()), ..SetLink::default() })]
    });
    let other = rig.kernel.add_link(POD, "net1", Kind::Dummy).unwrap();
    rig.del(&config(TAGGED)).unwrap();
    assert_eq!(rig.at_home(), before);
    let mut pod = rig.kernel.pod(POD.as_ref()).unwrap();
    assert_eq!(pod.link_by_name("net1").unwrap().map(|link| link.index), Some(other));
    assert_eq!(pod.links().unwrap().len(), 2, "lo and that one");
}

#[test]
fn a_vf_whose_vm_outlives_the_del_is_nobody_elses_until_its_settings_are_given_back() {
    type End = fn(&Rig);
    let ends: End = |rig| rig.kernel.set_group(GROUP - 1, IommuGroup::Free);
    let is_bound_back: End = |rig| {
        rig.kernel.set_group(GROUP - 1, IommuGroup::Free);
        rig.kernel.drive(VF, Some("igbvf")).unwrap();
    };
    for (end, comes_home, restarted) in
        [(ends, false, false), (ends, false, true), (is_bound_back, true, false), (is_bound_back, true, true)]
    {
        let mut rig = Rig::new();
        rig.call_settings.vf_wait = Duration::from_millis(50);
        rig.restart();
        let (settings, home) = (rig.settings(), rig.at_home());
        let given = config(&format!(
            r#"{TAGGED},"trust":"on","mac":"02:00:00:00:00:77","ipam":{{"type":"host-local","ranges":[[{{"subnet":"10.1.0.0/24"}}]]}}"#
        ));
        rig.add(&given).unwrap();
        let of_pod = rig.settings();
        // The runtime has given the VF to the pod's VM, which is still there when the sandbox goes.
        rig.kernel.drive(VF, Some("vfio-pci")).unwrap();
        rig.kernel.set_group(GROUP - 1, IommuGroup::InUse);
        rig.kernel.forget_calls();
        rig.del(&given).unwrap();
        rig.kernel.kill_namespace(POD);
        rig.kernel.add_namespace(POD);
        if restarted {
            rig.restart();
        }
        rig.reap();
        rig.del(&given).unwrap();
        let gc = format!(r#"{},"cni.dev/valid-attachments":[]}}"#, given.strip_suffix('}').unwrap());
        rig.call(rig.request(Command::Gc, "", &gc)).unwrap();
        let refused = rig.call(rig.request(Command::Add, "c2", &config(""))).unwrap_err();
        let says = "it has not come home from its last pod yet: VF 0000:21:10.0 is in use: a process has its IOMMU group 20 open";
        assert!(refused.code == Code::TryAgain && refused.msg.contains(says), "{refused}");
        let held = |rig: &Rig| (rig.settings(), rig.allocations().len(), rig.engine().core.store.all().len());
        assert_eq!(held(&rig), (of_pod, 1, 1), "nothing changes under the VM");
        let touched = |asked: &KernelRequest| {
            matches!(asked, KernelRequest::Bind(..) | KernelRequest::Unbind(_) | KernelRequest::Reset(_))
        };
        assert_eq!(rig.count(touched), 0);
        end(&rig);
        rig.reap();
        assert_eq!(held(&rig), (settings.clone(), 0, 0));
        let expected = home.filter(|_| comes_home);
        assert_eq!(forget_index(rig.at_home()), forget_index(expected));
        rig.call(rig.request(Command::Add, "c2", &config(""))).unwrap();
        assert_eq!(rig.settings(), settings, "the next pod has nothing of the last one's");
    }
}

#[test]
fn a_pools_vf_whose_vm_outlives_the_del_is_left_to_its_pool() {
    let rig = pools::kept(pools::POOL);
    rig.add(&config(TAGGED)).unwrap();
    rig.kernel.drive(VF, Some("vfio-pci")).unwrap();
    rig.kernel.set_group(GROUP - 1, IommuGroup::InUse);
    rig.del(&config(TAGGED)).unwrap();
    assert_eq!((rig.settings().vlan.unwrap().id, rig.engine().core.store.all().len()), (100, 0));
}
