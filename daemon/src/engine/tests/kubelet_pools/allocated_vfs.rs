//! The VFs that kubelet allocates: what a pod gets of them, and that the next one gets them clean, whether an ADD came or not.

use std::fs;

use fairlead_cni::Code;
use fairlead_host::double::KernelRequest;
use fairlead_host::process::boot_id;
use fairlead_host::{IommuGroup, NetKernel, Op, SetLink};
use fairlead_sriov::pools::Verb;

use super::super::pools::SECOND;
use super::super::switchdev::PHYSICAL;
use super::super::vf::join_group;
use super::*;

#[test]
fn x10_k27_a_pod_has_of_the_pool_what_kubelet_has_given_it_and_it_stays_healthy_on_its_way_home() {
    let (rig, kubelet) = rig(&pool(", profile: {vlan: 7}"));
    rig.keep();
    hears(&kubelet, "0 2");
    kubelet.answers.lock().unwrap().pods = vec![pod("ran", "du-0", &[("app", &[(RADIO, SECOND, 0)])])];
    rig.kernel.forget_calls();
    let answer = rig.of_pod(Command::Add, "net1").unwrap();
    assert!(answer.contains(SECOND), "{answer}");
    assert!(
        !rig.kernel.calls().iter().any(|call| matches!(call.request, KernelRequest::Vfs(_))),
        "the pool knows it"
    );
    assert_eq!(rig.states(), ["ready", "lent"]);
    let none = rig.of_pod(Command::Add, "net2").unwrap_err();
    assert_eq!(none.code, Code::InvalidConfig, "it is not drawn instead: {none}");
    rig.of_pod(Command::Del, "net1").unwrap();
    rig.reap();
    assert_eq!(rig.states(), ["ready", "preparing"]);
    rig.engine().core.kinds.sriov.pools.work_here();
    assert_eq!(rig.states(), ["ready", "ready"]);
    assert!(kubelet.hears_nothing(Duration::from_millis(300)), "it was healthy all the while");
}

#[test]
fn adds_that_wait_in_vain_for_a_vf_on_its_way_home_are_no_failure_of_it_and_kubelet_sees_it_healthy() {
    let (mut rig, kubelet) = rig(&pool(""));
    rig.call_settings.vf_wait = Duration::from_millis(50);
    rig.restart();
    rig.engine().offer_to_kubelet();
    rig.keep();
    hears(&kubelet, "0 2");
    kubelet.answers.lock().unwrap().pods = vec![pod("ran", "du-0", &[("app", &[(RADIO, SECOND, 0)])])];
    rig.of_pod(Command::Add, "net1").unwrap();
    rig.of_pod(Command::Del, "net1").unwrap();
    // First the old sandbox's attachment is waited for, then its pool's work: either way this is the only VF it may have.
    for _ in 0..3 {
        let late = rig.of_pod(Command::Add, "net2").unwrap_err();
        assert_eq!(late.code, Code::TryAgain, "{late}");
    }
    rig.reap();
    for _ in 0..3 {
        let late = rig.of_pod(Command::Add, "net2").unwrap_err();
        assert!(late.code == Code::TryAgain && late.msg.contains("it is not ready yet"), "{late}");
    }
    rig.engine().core.kinds.sriov.pools.work_here();
    assert_eq!(rig.states(), ["ready", "ready"], "none of that quarantines it");
    assert!(rig.of_pod(Command::Add, "net2").unwrap().contains(SECOND));
    assert!(kubelet.hears_nothing(Duration::from_millis(300)), "it was healthy all the while");
}

#[test]
fn k27_kubelet_gets_the_nodes_of_a_vf_under_vfio() {
    let (rig, kubelet) = rig(&pool(", driver: vfio-pci"));
    rig.keep();
    hears(&kubelet, "0 2");
    let given = kubelet.allocate(RADIO, &[&[VF]]).unwrap().remove(0);
    assert_eq!(given.envs["PCIDEVICE_INTEL_COM_RADIO"], VF);
    let nodes: Vec<&str> = given.devices.iter().map(|d| d.host_path.as_str()).collect();
    assert_eq!(nodes, ["/dev/vfio/vfio", "/dev/vfio/20"]);
    rig.order(Verb::Quarantine, VF);
    let refused = kubelet.allocate(RADIO, &[&[VF]]).unwrap_err();
    assert!(refused.message().contains("it is quarantined by order of the operator"), "{refused}");
}

/// The next boot: records are of another one, marks are gone, and VFs have their kernel driver. No daemon runs.
fn reboot(rig: &mut Rig) {
    rig.engine = None;
    for path in rig.records() {
        let record = fs::read_to_string(&path).unwrap();
        fs::write(&path, record.replace(&boot_id().unwrap(), "another")).unwrap();
    }
    fs::remove_dir_all(rig.dir.path().join("run/pools")).unwrap();
    [VF, SECOND].iter().for_each(|vf| rig.kernel.drive(vf, Some("igbvf")).unwrap());
}

#[test]
fn k27_after_a_reboot_a_pod_is_refused_a_vf_with_another_node_than_kubelet_gives_its_containers() {
    let (mut rig, kubelet) = rig(&pool(", driver: vfio-pci"));
    rig.keep();
    hears(&kubelet, "0 2");
    kubelet.answers.lock().unwrap().pods = vec![pod("ran", "du-0", &[("app", &[(RADIO, VF, 0)])])];
    kubelet.allocate(RADIO, &[&[VF]]).unwrap();
    // As mostly, the group is the same: kubelet is not asked again, and need not be.
    reboot(&mut rig);
    serve_by_another_daemon(&mut rig, &kubelet);
    rig.of_pod(Command::Add, "net1").unwrap();
    rig.of_pod(Command::Del, "net1").unwrap();
    rig.reap();
    reboot(&mut rig);
    join_group(&rig.sys(), VF, 30);
    serve_by_another_daemon(&mut rig, &kubelet);
    let refused = rig.of_pod(Command::Add, "net1").unwrap_err();
    assert_eq!(refused.code, Code::InvalidConfig, "{refused}");
    let says = "its nodes are those of IOMMU group 30 by now, and kubelet gives its pod's containers those of IOMMU group 20";
    assert!(refused.msg.contains(says) && refused.details.contains("delete the pod"), "{refused:?}");
    assert_eq!(rig.states(), ["ready", "ready"]);
    // The pod is made anew, and kubelet asks again.
    kubelet.allocate(RADIO, &[&[VF]]).unwrap();
    assert!(rig.of_pod(Command::Add, "net1").unwrap().contains(VF));
}

#[test]
fn k27_without_an_iommu_a_vf_goes_to_a_pod_only_where_its_pool_allows_that() {
    for allowed in [true, false] {
        let more = if allowed { ", driver: vfio-pci, allowNoIommu: true" } else { ", driver: vfio-pci" };
        let (rig, kubelet) = rig(&pool(more));
        for group in [20, 22] {
            rig.kernel.set_group(group, IommuGroup::NoIommu);
        }
        rig.keep();
        rig.keep_on();
        kubelet.answers.lock().unwrap().pods = vec![pod("ran", "du-0", &[("app", &[(RADIO, VF, 0)])])];
        if !allowed {
            assert_eq!(rig.states(), ["quarantined", "quarantined"]);
            let reason = rig.members()[0].to_string();
            assert!(reason.contains("allowNoIommu: true permits that"), "{reason}");
            continue;
        }
        hears(&kubelet, "0 2");
        let given = kubelet.allocate(RADIO, &[&[VF]]).unwrap().remove(0);
        let nodes = given.devices.iter().map(|d| (d.host_path.as_str(), d.container_path.as_str()));
        let wanted = [("/dev/vfio/vfio", "/dev/vfio/vfio"), ("/dev/vfio/noiommu-20", "/dev/vfio/20")];
        assert_eq!(nodes.collect::<Vec<_>>(), wanted);
        assert!(rig.of_pod(Command::Add, "net1").unwrap().contains(VF));
        rig.of_pod(Command::Del, "net1").unwrap();
        rig.keep();
        assert_eq!(rig.states(), ["ready", "ready"]);
    }
}

fn resets(rig: &Rig) -> usize {
    rig.kernel.calls().iter().filter(|call| call.request == KernelRequest::Reset(VF.to_owned())).count()
}

#[test]
fn x07_a_vf_that_a_pod_had_without_an_add_is_cleaned_before_the_next_one_has_it() {
    let (mut rig, kubelet) = rig(&pool(", profile: {vlan: 7}"));
    rig.keep();
    hears(&kubelet, "0 2");
    rig.kernel.forget_calls();
    allocated(&rig, &kubelet, VF).unwrap();
    assert_eq!(
        (rig.states(), resets(&rig)),
        (vec!["given".into(), "ready".into()], 0),
        "the first has it clean"
    );
    // In the host's network a pod does with it what it likes, and nothing is done about that meanwhile.
    let kernel = Arc::clone(&rig.kernel);
    let mut host = kernel.host().unwrap();
    let index = host.link_by_name("vf0").unwrap().unwrap().index;
    host.batch(&[Op::SetLink(SetLink { index, mtu: Some(1300), ..SetLink::default() })]).unwrap();
    rig.check_pools();
    rig.restart();
    rig.check_pools();
    assert_eq!(
        (rig.states(), resets(&rig)),
        (vec!["given".into(), "ready".into()], 0),
        "nor by the next daemon"
    );
    rig.engine().offer_to_kubelet();
    hears(&kubelet, "0 2");
    allocated(&rig, &kubelet, VF).unwrap();
    assert_eq!((rig.states(), resets(&rig)), (vec!["given".into(), "ready".into()], 1));
    assert_ne!(host.link_by_name("vf0").unwrap().unwrap().mtu, 1300);
    // One whose ADD comes is as clean as any.
    kubelet.answers.lock().unwrap().pods = vec![pod("ran", "du-0", &[("app", &[(RADIO, VF, 0)])])];
    rig.of_pod(Command::Add, "net1").unwrap();
    assert_eq!(rig.states(), ["lent", "ready"]);
    rig.of_pod(Command::Del, "net1").unwrap();
    rig.reap();
    rig.engine().core.kinds.sriov.pools.work_here();
    allocated(&rig, &kubelet, VF).unwrap();
    assert_eq!(resets(&rig), 2, "by the DEL");
}

#[test]
fn x07_what_a_pod_without_an_add_has_left_on_a_vfs_interface_is_nobodys() {
    let (mut rig, kubelet) = rig(&pool(""));
    rig.keep();
    hears(&kubelet, "0 2");
    allocated(&rig, &kubelet, VF).unwrap();
    rig.use_it("vf0"); // by a pod in the host's network
    serve_by_another_daemon(&mut rig, &kubelet);
    allocated(&rig, &kubelet, VF).unwrap();
    assert_eq!(rig.states(), ["given", "ready"], "the next pod has it without that");
    let has_one = |rig: &Rig| {
        let mut host = rig.kernel.host().unwrap();
        let index = host.link_by_name("vf0").unwrap().unwrap().index;
        !host.addresses(index).unwrap().is_empty()
    };
    assert!(!has_one(&rig));
    // Killed while it is cleaned for the next pod.
    rig.use_it("vf0");
    fs::write(rig.dir.path().join("run/pools").join(VF), "awaited").unwrap();
    rig.restart();
    rig.keep();
    assert_eq!((rig.states(), has_one(&rig)), (vec!["given".to_owned(), "ready".to_owned()], false));
    // By order of the operator, also as it is given back.
    rig.use_it("vf0");
    rig.order(Verb::Release, VF);
    assert_eq!((rig.states(), has_one(&rig)), (vec!["ready".to_owned(); 2], false));
    rig.engine().offer_to_kubelet();
    hears(&kubelet, "0 2");
    allocated(&rig, &kubelet, VF).unwrap();
    rig.use_it("vf0");
    rig.order(Verb::Drain, VF);
    rig.order(Verb::Release, VF);
    assert_eq!((rig.states(), has_one(&rig)), (vec!["drained".to_owned(), "ready".to_owned()], false));
    // Once it is nobody's such an address is somebody's.
    rig.order(Verb::Fill, VF);
    rig.use_it("vf0");
    rig.check_pools();
    assert_eq!(rig.states(), ["foreign", "ready"]);
}

#[test]
fn x07_nothing_is_done_to_a_given_vf_by_drain_release_or_another_configuration_also_after_a_restart() {
    let (mut rig, kubelet) = rig(&pool(""));
    rig.keep();
    hears(&kubelet, "0 2");
    for id in [VF, SECOND] {
        allocated(&rig, &kubelet, id).unwrap();
    }
    rig.kernel.forget_calls();
    rig.order(Verb::Quarantine, VF);
    rig.restart();
    rig.keep();
    rig.order(Verb::Release, VF);
    rig.order(Verb::Drain, SECOND);
    rig.restart();
    rig.keep();
    rig.order(Verb::Release, "radio");
    assert_eq!(rig.states(), ["given", "draining"]);
    rig.configure("pools: []");
    rig.keep();
    rig.restart();
    rig.keep();
    assert_eq!((rig.states(), resets(&rig)), (vec!["draining".into(), "draining".into()], 0));
    let why = rig.members()[0].to_string();
    assert!(why.contains("release it by its address when no pod has it"), "{why}");
    rig.order(Verb::Release, VF);
    rig.keep_on();
    assert_eq!((rig.states(), resets(&rig)), (vec!["draining".into()], 1), "nobody has that one");
}

#[test]
fn x07_one_given_while_its_last_pod_has_it_still_is_cleaned_for_the_next_also_after_a_restart() {
    let (mut rig, kubelet) = rig(&pool(""));
    rig.keep();
    hears(&kubelet, "0 2");
    kubelet.answers.lock().unwrap().pods = vec![pod("ran", "du-0", &[("app", &[(RADIO, VF, 0)])])];
    rig.of_pod(Command::Add, "net1").unwrap();
    kubelet.allocate(RADIO, &[&[VF]]).unwrap();
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["lent", "ready"]);
    rig.kernel.forget_calls();
    rig.of_pod(Command::Del, "net1").unwrap();
    rig.reap();
    rig.restart();
    rig.keep();
    assert_eq!((rig.states(), resets(&rig)), (vec!["given".into(), "ready".into()], 1));
    rig.restart();
    rig.keep();
    assert_eq!((rig.states(), resets(&rig)), (vec!["given".into(), "ready".into()], 1), "not under its pod");
}

#[test]
fn x07_a_vf_that_is_being_cleaned_is_answered_to_kubelet_when_it_is_ready() {
    let (rig, kubelet) = rig(&pool(""));
    rig.keep();
    hears(&kubelet, "0 2");
    a_pod_came_and_went(&rig, &kubelet);
    assert_eq!(rig.states(), ["preparing", "ready"]);
    allocated(&rig, &kubelet, VF).unwrap();
    assert_eq!(rig.states(), ["given", "ready"], "when it is answered");
}

#[test]
fn a_vf_whose_mark_cannot_be_written_is_refused_to_kubelet() {
    let (rig, kubelet) = rig(&pool(""));
    rig.keep();
    hears(&kubelet, "0 2");
    let mark = rig.dir.path().join("run/pools").join(VF);
    fs::remove_file(&mark).unwrap();
    fs::create_dir(&mark).unwrap();
    // Nor has the pod the other one that it wanted beside it.
    for asked in [&[VF][..], &[SECOND, VF]] {
        let refused = kubelet.allocate(RADIO, &[asked]).unwrap_err();
        assert!(refused.message().contains("make room in the run directory"), "{refused}");
        assert_eq!(rig.states(), ["ready", "ready"]);
    }
    fs::remove_dir(&mark).unwrap();
    kubelet.allocate(RADIO, &[&[VF]]).unwrap();
    assert_eq!(rig.states(), ["given", "ready"]);
}

#[test]
fn x07_one_that_cannot_be_cleaned_is_refused_to_kubelet_with_the_reason() {
    let (mut rig, kubelet) = rig(&pool(""));
    rig.keep();
    hears(&kubelet, "0 2");
    allocated(&rig, &kubelet, VF).unwrap();
    serve_by_another_daemon(&mut rig, &kubelet);
    rig.kernel.set_dead(VF, true);
    let refused = allocated(&rig, &kubelet, VF).unwrap_err();
    assert!(refused.contains("its configuration space does not answer"), "{refused}");
    assert_eq!(rig.states(), ["preparing", "ready"]);
}

#[test]
fn k27_an_rdma_vf_is_lent_as_an_interface_and_its_nodes_go_with_it_where_the_pool_says_so() {
    let is_rdma = pool("").replace("['8086']", "['8086'], isRdma: true");
    for (text, nodes) in [(pool(""), &[][..]), (is_rdma, &["umad1", "uverbs1", "rdma_cm"])] {
        let mut rig = with(&text);
        let sys = rig.dir.path().join("sys");
        let device = sys.join("bus/pci/devices").join(SECOND);
        for dir in ["infiniband/mlx5_1", "infiniband_mad/umad1", "infiniband_verbs/uverbs1"] {
            fs::create_dir_all(device.join(dir)).unwrap();
        }
        fs::create_dir_all(sys.join("class/misc/rdma_cm")).unwrap();
        rig.restart();
        let kubelet = FakeKubelet::running(&rig.root);
        rig.engine().offer_to_kubelet();
        rig.keep();
        hears(&kubelet, if nodes.is_empty() { "0 2" } else { "2" });
        let given = kubelet.allocate(RADIO, &[&[SECOND]]).unwrap();
        let paths: Vec<_> = given[0].devices.iter().map(|node| node.host_path.as_str()).collect();
        let wanted: Vec<_> = nodes.iter().map(|node| format!("/dev/infiniband/{node}")).collect();
        assert_eq!(paths, wanted);
        kubelet.answers.lock().unwrap().pods = vec![pod("ran", "du-0", &[("app", &[(RADIO, SECOND, 0)])])];
        let answer = rig.of_pod(Command::Add, "net1").unwrap();
        assert!(answer.contains(SECOND) && answer.contains("mtu"), "{answer}");
    }
}

#[test]
fn what_a_pod_is_given_goes_by_what_devlink_told_the_last_look_and_asks_it_not() {
    let text = pool("").replace("['8086']", "['8086'], pfNames: [pf0], needVhostNet: true");
    let (rig, kubelet) = rig(&text);
    let stands_in = rig.sys().join("bus/pci/devices").join(PHYSICAL).join("net/of0");
    fs::create_dir(stands_in).unwrap();
    rig.switch(PHYSICAL, true, &[0]);
    rig.keep();
    hears(&kubelet, "0 2");
    rig.kernel.set_devlink(Vec::new());
    rig.kernel.forget_calls();
    let given = kubelet.allocate(RADIO, &[&[VF], &[SECOND]]).unwrap();
    let has_vhost_net = |node: &str| node == "/dev/vhost-net";
    assert!(given.iter().all(|given| given.devices.iter().any(|node| has_vhost_net(&node.host_path))));
    assert_eq!(rig.asked(|asked| *asked == KernelRequest::Devlink), 0);
    rig.keep();
    assert_eq!(rig.asked(|asked| *asked == KernelRequest::Devlink), 1);
    assert_eq!(
        rig.states(),
        ["draining", "draining"],
        "without devlink the card's name is of0, which no pool wants"
    );
}
