//! Pools that kubelet gives out, with a fake kubelet: what it is told of them, and what a pod has of that.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use fairlead_cni::Code;
use fairlead_host::double::KernelRequest;
use fairlead_host::watch::DeviceEvent;
use fairlead_host::{IommuGroup, NetKernel, Op, SetLink};
use fairlead_kubelet::fake_kubelet::{AnnouncedDevice, FakeKubelet, LONG, device, pod};
use fairlead_sriov::pools::{Look, Verb};

use super::pools::{SECOND, with};
use super::switchdev::PHYSICAL;
use super::*;

const RADIO: &str = "intel.com/radio";
const NETWORK: &str =
    r#"{"cniVersion":"1.1.0","name":"radio","type":"sriov","resourceName":"intel.com/radio"}"#;

fn pool(more: &str) -> String {
    format!("pools: [{{name: radio, selectors: {{vendors: ['8086']}}, resourceName: {RADIO}{more}}}]")
}

/// A machine with two VFs, this configuration and a kubelet that has heard of nothing yet.
fn rig(text: &str) -> (Rig, FakeKubelet) {
    let mut rig = with(text);
    rig.restart();
    let kubelet = FakeKubelet::running(&rig.root);
    rig.engine().offer_to_kubelet();
    (rig, kubelet)
}

/// The first VF is on its way home from a pod that kubelet gave it to.
fn a_pod_came_and_went(rig: &Rig, kubelet: &FakeKubelet) {
    kubelet.answers.lock().unwrap().pods = vec![pod("ran", "du-0", &[("app", &[(RADIO, VF, 0)])])];
    rig.of_pod(Command::Add, "net1").unwrap();
    rig.of_pod(Command::Del, "net1").unwrap();
    rig.reap();
}

/// Waits for a list: each device by the last digit of its address, with `!` where it is not healthy.
fn hears(kubelet: &FakeKubelet, wanted: &str) {
    let short = |(id, health, _): &AnnouncedDevice| {
        let sick = if health == "Healthy" { "" } else { "!" };
        format!("{}{sick}", id.rsplit('.').next().unwrap())
    };
    let limit = Instant::now() + LONG;
    loop {
        let list: Vec<String> = kubelet.next_list().1.iter().map(short).collect();
        if list.join(" ") == wanted {
            return;
        }
        assert!(Instant::now() < limit, "{list:?} instead of {wanted}");
    }
}

fn until(what: &str, is: impl Fn() -> bool) {
    let limit = Instant::now() + LONG;
    while !is() {
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Rig {
    fn of_pod(&self, command: Command, ifname: &str) -> Result<String, CniError> {
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ran;K8S_POD_NAME=du-0".to_owned();
        let request = self.request(command, "c1", NETWORK);
        self.call(Request { ifname: ifname.to_owned(), args, ..request })
    }
}

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
    rig.policy.vf_wait = Duration::from_millis(50);
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

/// What kubelet is answered, while the pool reconciler works.
fn allocated(rig: &Rig, kubelet: &FakeKubelet, id: &str) -> Result<(), String> {
    let answered = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !answered.load(Ordering::Relaxed) {
                rig.engine().core.kinds.sriov.pools.work_here();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let answer = kubelet.allocate(RADIO, &[&[id]]);
        answered.store(true, Ordering::Relaxed);
        answer.map(drop).map_err(|refused| refused.message().to_owned())
    })
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
    let (rig, kubelet) = rig(&pool(""));
    rig.keep();
    hears(&kubelet, "0 2");
    allocated(&rig, &kubelet, VF).unwrap();
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
