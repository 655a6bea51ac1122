//! Our own type with several paths to one interface: which is taken, why the others are not, and that the calls after it
//! are for the one that was taken.

use fairlead_cni::Code;
use fairlead_host::IommuGroup;
use fairlead_sriov::pools::Look;

use super::*;
use crate::store::Phase;

pub(super) const MACVLAN: &str = r#"{"type":"macvlan","master":"pf0"}"#;
pub(super) const SRIOV: &str = r#"{"type":"sriov","vlan":100}"#;
/// What kubelet's choice comes as.
pub(super) const GIVEN: &str = r#","runtimeConfig":{"deviceID":"0000:21:10.0"}"#;

pub(super) fn config(paths: &[&str], more: &str) -> String {
    let paths = paths.join(",");
    format!(
        r#"{{"cniVersion":"1.1.0","name":"radio","type":"fairlead","paths":[{paths}],"ipam":{{"type":"host-local","subnet":"10.9.0.0/24"}}{more}}}"#
    )
}

impl Rig {
    /// What the attachment's link is, and why it is not of an earlier path.
    fn taken(&self) -> (String, Vec<String>) {
        let rows = self.engine().table("attachments").unwrap();
        let reasons = rows[0]["passedOver"].as_array().unwrap().iter();
        (rows[0]["link"].as_str().unwrap().into(), reasons.map(|r| r.as_str().unwrap().into()).collect())
    }
}

#[test]
fn x19_the_vf_that_the_pod_was_given_is_taken_and_without_one_the_next_path() {
    let rig = Rig::new();
    let before = rig.state();
    let paths = [SRIOV, MACVLAN];
    rig.add(&config(&paths, GIVEN)).unwrap();
    assert_eq!(rig.taken(), ("lent vf0".to_owned(), vec![]));
    rig.del(&config(&paths, GIVEN)).unwrap();
    rig.reap();
    assert_eq!(rig.state(), before);
    rig.add(&config(&paths, "")).unwrap();
    assert_eq!(rig.taken(), ("macvlan".to_owned(), vec!["sriov: sriov names no device".to_owned()]));
    let text = rig.exposition.text();
    for line in [
        r#"fairlead_paths_total{type="sriov",outcome="taken"} 1"#,
        r#"fairlead_paths_total{type="sriov",outcome="passed-over"} 1"#,
        r#"fairlead_paths_total{type="macvlan",outcome="taken"} 1"#,
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
}

#[test]
fn x19_a_path_of_host_device_that_was_given_no_device_makes_room_for_the_next() {
    const ANY: &str = r#"{"type":"host-device"}"#;
    let rig = Rig::new();
    rig.add(&config(&[ANY, MACVLAN], "")).unwrap();
    let not_given = "host-device: host-device names no device".to_owned();
    assert_eq!(rig.taken(), ("macvlan".to_owned(), vec![not_given]));
    rig.del(&config(&[ANY, MACVLAN], "")).unwrap();
    rig.reap();
    // Without another path it is the answer.
    let refused = rig.add(&config(&[ANY], "")).unwrap_err();
    assert!(refused.msg.ends_with(": host-device names no device"), "{refused}");
}

#[test]
fn x19_what_the_host_lacks_is_told_for_every_path_that_was_passed_over() {
    let rig = Rig::new();
    let paths = [
        r#"{"type":"vhost-user","switch":"fairlead"}"#,
        r#"{"type":"sriov"}"#,
        r#"{"type":"host-device","device":"ens9"}"#,
        r#"{"type":"macvlan","master":"ens9"}"#,
        MACVLAN,
    ];
    rig.add(&config(&paths, r#","runtimeConfig":{"deviceID":"0000:99:10.0"}"#)).unwrap();
    let (link, reasons) = rig.taken();
    assert_eq!(link, "macvlan");
    let expected = [
        "vhost-user: ",
        "sriov: the machine has no PCI device 0000:99:10.0",
        "host-device: ",
        "macvlan: the host has no interface \"ens9\"",
    ];
    assert_eq!(reasons.len(), expected.len(), "{reasons:?}");
    for (reason, begin) in reasons.iter().zip(expected) {
        assert!(reason.starts_with(begin), "{reason} instead of {begin}…");
    }
}

#[test]
fn x19_a_port_of_the_switch_that_runs_is_taken_in_its_turn_and_removed_by_del() {
    const PORT: &str = r#"{"type":"vhost-user","directory":"/run/sockets"}"#;
    let rig = Rig::new();
    let sockets = rig.root.join("run/sockets");
    std::fs::create_dir_all(&sockets).unwrap();
    let (server, ports) = vhost_user::switch(&rig);
    let before = rig.state();
    let not_given = "sriov: sriov names no device";
    for (paths, passed_over) in [(vec![PORT, MACVLAN], vec![]), (vec![SRIOV, PORT, MACVLAN], vec![not_given])]
    {
        let paths = config(&paths, "");
        let answer = rig.add(&paths).unwrap();
        assert!(answer.contains("/run/sockets/c1-net1.sock") && answer.contains("10.9.0."), "{answer}");
        let passed_over: Vec<String> = passed_over.into_iter().map(str::to_owned).collect();
        assert_eq!(rig.taken(), ("socket /run/sockets/c1-net1.sock".to_owned(), passed_over));
        assert_eq!(ports.only().network, "radio");
        vhost_user::connect(&sockets.join("c1-net1.sock")).unwrap();
        rig.del(&paths).unwrap();
        rig.reap();
        assert!(ports.names().is_empty() && std::fs::read_dir(&sockets).unwrap().count() == 0);
        assert_eq!(rig.state(), before);
    }
    // An earlier path that can be had is taken, and nothing of the later one is made.
    rig.add(&config(&[MACVLAN, PORT], "")).unwrap();
    assert_eq!(rig.taken().0, "macvlan");
    assert!(ports.names().is_empty());
    rig.del(&config(&[MACVLAN, PORT], "")).unwrap();
    rig.reap();
    drop(server);
    rig.add(&config(&[PORT, MACVLAN], "")).unwrap();
    let (link, reasons) = rig.taken();
    assert!(link == "macvlan" && reasons[0].starts_with("vhost-user: "), "{link} {reasons:?}");
}

/// A path for the VF that vfio-pci has.
const BY_VFIO: &str = r#"{"type":"sriov","deviceAccess":"host"}"#;
const GIVEN_BY_VFIO: &str = r#","runtimeConfig":{"deviceID":"0000:41:10.0"}"#;

#[test]
fn x19_a_vf_whose_iommu_group_is_unfit_is_passed_over_and_one_that_a_process_has_is_not() {
    type Cause = fn(&Rig);
    let without: Cause = |rig| rig.kernel.set_group(GROUP, IommuGroup::NoIommu);
    let shared: Cause = |rig| vf::join_group(&rig.dir.path().join("sys"), VF, GROUP as usize);
    for (cause, why) in [
        (without, "sriov: VF 0000:41:10.0 is behind no IOMMU"),
        (shared, "sriov: VF 0000:41:10.0 shares IOMMU group 21 with 0000:21:10.0, which igbvf drives"),
    ] {
        let rig = Rig::new();
        let before = rig.state();
        cause(&rig);
        let last = r#"{"type":"macvlan","master":"ens9"}"#;
        let told = rig.add(&config(&[BY_VFIO, last], GIVEN_BY_VFIO)).unwrap_err();
        assert!(told.details.contains(&format!("path sriov was passed over: {}", &why[7..])), "{told:?}");
        let paths = config(&[BY_VFIO, MACVLAN], GIVEN_BY_VFIO);
        rig.add(&paths).unwrap();
        let (link, reasons) = rig.taken();
        assert_eq!((link.as_str(), reasons.len()), ("macvlan", 1));
        assert!(reasons[0].starts_with(why), "{reasons:?}");
        rig.del(&paths).unwrap();
        rig.reap();
        assert_eq!(rig.state(), before);
    }
    let rig = Rig::new();
    rig.kernel.set_group(GROUP, IommuGroup::InUse);
    let told = rig.add(&config(&[BY_VFIO, MACVLAN], GIVEN_BY_VFIO)).unwrap_err();
    assert!(told.code == Code::TryAgain && told.msg.contains("is in use"), "{told}");
    assert_eq!(rig.state().records, 0);
}

/// A machine with a pool of two VFs under vfio-pci; the first one's IOMMU group is 20.
fn with_a_pool_for_user_space() -> Rig {
    let rig = pools::kept("pools: [{name: dpdk, selectors: {drivers: [igbvf]}, driver: vfio-pci}]");
    while rig.look_due() != Look::Thorough {} // what is due since the start
    rig
}

const DRAWN: &str = r#"{"type":"sriov","pool":"dpdk","deviceAccess":"host"}"#;

/// The pool reconciler has looked at the first one alone, and the next ADD has the other.
fn doubted(rig: &Rig, state: &str) {
    assert_eq!(rig.states(), ["ready", "ready"]);
    assert_eq!(rig.look_due(), Look::News);
    rig.engine().look_at_pools(Look::News);
    assert_eq!(rig.states(), [state, "ready"]);
    let next = rig.request(Command::Add, "c2", &config(&[DRAWN, MACVLAN], ""));
    assert!(rig.call(next).unwrap().contains(pools::SECOND));
}

#[test]
fn a_drawn_vf_that_a_process_has_is_told_and_not_drawn_again() {
    let rig = with_a_pool_for_user_space();
    rig.kernel.set_group(20, IommuGroup::InUse);
    let told = rig.add(&config(&[DRAWN, MACVLAN], "")).unwrap_err();
    assert!(told.code == Code::TryAgain && told.msg.contains("is in use"), "{told}");
    doubted(&rig, "foreign");
}

#[test]
fn x19_a_drawn_vf_whose_iommu_group_is_unfit_is_passed_over_and_not_drawn_again() {
    let rig = with_a_pool_for_user_space();
    // Beside it in its group a host driver has begun to drive another device.
    let sys = rig.dir.path().join("sys");
    vf::join_group(&sys, VFIO, 20);
    rig.kernel.drive(VFIO, Some("igbvf")).unwrap();
    rig.add(&config(&[DRAWN, MACVLAN], "")).unwrap();
    let (link, reasons) = rig.taken();
    assert_eq!((link.as_str(), reasons.len()), ("macvlan", 1));
    assert!(reasons[0].contains("shares IOMMU group 20 with 0000:41:10.0"), "{reasons:?}");
    doubted(&rig, "preparing");
}

#[test]
fn x19_when_no_path_can_be_had_the_last_ones_error_tells_of_all() {
    let rig = Rig::new();
    let before = rig.state();
    let last = r#"{"type":"macvlan","master":"ens9"}"#;
    let told = rig.add(&config(&[SRIOV, last], "")).unwrap_err();
    assert!(told.msg.contains("ens9"), "{told}");
    assert!(told.details.contains("path sriov was passed over: sriov names no device"), "{told}");
    let told = rig.add(&config(&[r#"{"type":"vhost-user"}"#], "")).unwrap_err();
    assert_eq!(told.code, Code::InvalidConfig, "no uid tells the pod's volumes: {told}");
    assert_eq!(rig.state(), before);
}

#[test]
fn a_path_that_is_wrong_is_refused_even_behind_one_that_can_be_had() {
    let rig = Rig::new();
    let wrong = r#"{"type":"macvlan","master":"pf0","mac":"01:00:00:00:00:01"}"#;
    let told = rig.add(&config(&[MACVLAN, wrong], "")).unwrap_err();
    assert_eq!(told.code, Code::InvalidConfig);
    assert!(told.msg.contains("\"paths[1]\": mac 01:00:00:00:00:01"), "{told}");
    assert_eq!(rig.state().records, 0);
}

#[test]
fn what_cannot_be_asked_is_no_reason_to_take_the_next_path() {
    let rig = Rig::new();
    rig.kernel.fail_from(0, nix::errno::Errno::ENOBUFS);
    let told = rig.add(&config(&[MACVLAN, SRIOV], GIVEN)).unwrap_err();
    assert!(!told.to_string().contains("passed over"), "{told}");
}

#[test]
fn the_identical_add_gets_its_answer_again_and_check_is_for_the_path_that_was_taken() {
    let rig = Rig::new();
    let config = config(&[SRIOV, MACVLAN], "");
    // As a caller that has not had its answer yet makes it.
    let undelivered = |config: &str| {
        let request = rig.request(Command::Add, "c1", config);
        rig.serve(request, Instant::now(), Duration::from_secs(5)).outcome
    };
    let first = undelivered(&config).unwrap();
    assert_eq!(undelivered(&config).unwrap(), first);
    let checked = |result: &str| {
        let with = format!(r#"{},"prevResult":{result}}}"#, config.strip_suffix('}').unwrap());
        rig.call(rig.request(Command::Check, "c1", &with))
    };
    checked(&first).unwrap();
    rig.add(&config).unwrap();
    assert_eq!(rig.add(&config).unwrap_err().code, Code::AlreadyThere);
    rig.del(&config).unwrap();
    assert_eq!(rig.engine().core.store.all()[0].phase, Phase::Silenced, "as for a macvlan of its own");
    assert_eq!(checked(&first).unwrap_err().code, Code::UnknownContainer);
}

#[test]
fn status_is_success_while_one_path_can_be_had_and_gc_takes_what_any_path_made() {
    let rig = Rig::new();
    let status = |paths: &[&str]| rig.call(rig.request(Command::Status, "", &config(paths, "")));
    let no_such = r#"{"type":"vhost-user"}"#;
    status(&[no_such, MACVLAN]).unwrap();
    status(&[SRIOV]).unwrap();
    assert_eq!(status(&[no_such]).unwrap_err().code, Code::NotAvailable);
    let before = rig.state();
    rig.add(&config(&[SRIOV, MACVLAN], "")).unwrap();
    rig.add(&config(&[SRIOV, MACVLAN], "")).unwrap_err();
    let collected =
        rig.request(Command::Gc, "", &config(&[SRIOV, MACVLAN], r#","cni.dev/valid-attachments":[]"#));
    rig.call(collected).unwrap();
    rig.reap();
    assert_eq!(rig.state(), before);
}
