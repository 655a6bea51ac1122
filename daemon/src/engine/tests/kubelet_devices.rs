//! Configurations that name a resource: kubelet says which VF the pod has.

use fairlead_cni::Code;
use fairlead_host::NetKernel;
use fairlead_kubelet::fake_kubelet::{FakeKubelet, Get, exhausted, pod};

use super::*;

/// A second VF beside [`VF`].
pub(super) const OTHER: &str = "0000:21:10.2";
pub(super) const RADIO: &str = "intel.com/radio";
const CONFIG: &str =
    r#"{"cniVersion":"1.1.0","name":"radio","type":"sriov","resourceName":"intel.com/radio","vlan":100}"#;

impl Rig {
    /// The host gets the second VF.
    pub(super) fn plug_other_vf(&self) {
        let sys = self.dir.path().join("sys");
        vf::plug(&sys, ("0000:21:00.0", PF), 1, (OTHER, "vf1"));
        vf::driven(&sys, OTHER, "igbvf");
        let pf = self.kernel.host().unwrap().link_by_name(PF).unwrap().unwrap().index;
        self.kernel.add_vf(pf, OTHER, "vf1");
    }
}

/// A rig whose host has two VFs and a kubelet that has given the pod both.
fn rig() -> (Rig, FakeKubelet) {
    let rig = Rig::new();
    rig.plug_other_vf();
    let kubelet = FakeKubelet::running(&rig.root);
    kubelet.answers.lock().unwrap().pods = vec![
        pod("ran", "cu-0", &[("app", &[(RADIO, "0000:21:10.4", 0)])]),
        pod("ran", "du-0", &[("app", &[(RADIO, OTHER, 1), (RADIO, VF, 1)]), ("log", &[])]),
    ];
    (rig, kubelet)
}

/// The call of a runtime for pod ran/du-0.
fn request(rig: &Rig, command: Command, ifname: &str, config: &str) -> Request {
    Request {
        ifname: ifname.to_owned(),
        args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=ran;K8S_POD_NAME=du-0;K8S_POD_UID=u".to_owned(),
        ..rig.request(command, "c1", config)
    }
}

fn add(rig: &Rig, ifname: &str) -> Result<String, CniError> {
    rig.call(request(rig, Command::Add, ifname, CONFIG))
}

/// The device that an answer tells.
fn device(answer: &str) -> String {
    let answer: serde_json::Value = serde_json::from_str(answer).unwrap();
    answer["interfaces"][0]["pciID"].as_str().unwrap().to_owned()
}

#[test]
fn k27_x10_every_network_of_a_pod_gets_the_next_of_its_vfs_and_a_repeated_add_the_same() {
    for get in [Get::Served, Get::Disabled] {
        let (rig, kubelet) = rig();
        kubelet.answers.lock().unwrap().get = get;
        let before = rig.state();
        let first = add(&rig, "net1").unwrap();
        let second = add(&rig, "net2").unwrap();
        assert_eq!((device(&first).as_str(), device(&second).as_str()), (VF, OTHER), "{get:?}");
        // The one that is free is the next one, whichever it is.
        rig.call(request(&rig, Command::Del, "net1", CONFIG)).unwrap();
        rig.reap();
        assert_eq!(device(&add(&rig, "net1").unwrap()), VF);
        for ifname in ["net2", "net1"] {
            rig.call(request(&rig, Command::Del, ifname, CONFIG)).unwrap();
        }
        rig.reap();
        assert_eq!(rig.state(), before, "{get:?}");
    }
}

#[test]
fn k27_check_and_del_go_by_what_is_on_record_and_not_by_what_kubelet_says_now() {
    let (rig, mut kubelet) = rig();
    let before = rig.state();
    let answer = add(&rig, "net1").unwrap();
    kubelet.stop();
    let with = format!(r#"{},"prevResult":{answer}}}"#, CONFIG.strip_suffix('}').unwrap());
    rig.call(request(&rig, Command::Check, "net1", &with)).unwrap();
    rig.call(request(&rig, Command::Del, "net1", CONFIG)).unwrap();
    rig.reap();
    assert_eq!(rig.state(), before);
    let unknown = rig.call(request(&rig, Command::Check, "net1", &with)).unwrap_err();
    assert_eq!(unknown.code, Code::Changed, "{unknown}");
}

#[test]
fn d23_a_pod_that_has_none_left_or_none_at_all_is_refused_with_resource_and_pod() {
    let (rig, kubelet) = rig();
    add(&rig, "net1").unwrap();
    add(&rig, "net2").unwrap();
    let before = rig.state();
    let none_left = add(&rig, "net3").unwrap_err();
    assert_eq!(none_left.code, Code::InvalidConfig);
    let wanted = r#"network "radio", interface "net3": pod ran/du-0 has 2 of resource "intel.com/radio", and its other interfaces have all of them"#;
    assert_eq!(none_left.msg, wanted);
    kubelet.answers.lock().unwrap().pods[1] = pod("ran", "du-0", &[("app", &[("a/b", VF, 0)])]);
    let none = add(&rig, "net3").unwrap_err();
    assert!(none.msg.contains(r#"pod ran/du-0 has no device of resource "intel.com/radio""#), "{none}");
    assert_eq!(rig.state(), before);
}

#[test]
fn x10_kubelet_that_does_not_tell_is_code_11_and_never_a_pod_without_a_device() {
    let (rig, mut kubelet) = rig();
    let before = rig.state();
    let call = |rig: &Rig| {
        let request = request(rig, Command::Add, "net1", CONFIG);
        rig.serve(request, Instant::now(), Duration::from_secs(2)).outcome
    };
    kubelet.answers.lock().unwrap().refusals = vec![exhausted(); 1000].into();
    let refused = call(&rig).unwrap_err();
    assert_eq!(refused.code, Code::TryAgain, "{refused}");
    assert!(refused.msg.contains("is not known: kubelet refuses to tell"), "{refused}");
    kubelet.stop();
    let silent = call(&rig).unwrap_err();
    assert_eq!(silent.code, Code::TryAgain, "{silent}");
    assert!(silent.details.contains("kubelet.dir"), "{silent}");
    assert_eq!(rig.state(), before);
}

#[test]
fn k27_a_call_that_names_no_pod_is_refused_and_a_named_device_needs_no_kubelet() {
    let (rig, mut kubelet) = rig();
    let nameless = rig.add(CONFIG).unwrap_err();
    assert_eq!(nameless.code, Code::BadEnvironment);
    assert!(nameless.msg.contains(r#""resourceName" needs K8S_POD_NAMESPACE in CNI_ARGS"#), "{nameless}");
    kubelet.stop();
    let with_device = CONFIG.replace("\"vlan\"", &format!(r#""deviceID":"{OTHER}","vlan""#));
    assert_eq!(device(&rig.add(&with_device).unwrap()), OTHER);
}

#[test]
fn a_resource_whose_devices_are_no_vfs_is_told_so() {
    let (rig, kubelet) = rig();
    kubelet.answers.lock().unwrap().pods[1] = pod("ran", "du-0", &[("app", &[(RADIO, "gpu-1", 0)])]);
    let error = add(&rig, "net1").unwrap_err();
    assert_eq!(error.code, Code::InvalidConfig);
    assert!(error.msg.contains(r#""gpu-1" is no PCI address"#), "{error}");
}

#[test]
fn x19_a_path_for_a_resource_is_passed_over_only_when_kubelet_says_that_the_pod_has_none() {
    let (rig, mut kubelet) = rig();
    let config = r#"{"cniVersion":"1.1.0","name":"radio","type":"fairlead","ipam":{},
        "paths":[{"type":"sriov","resourceName":"intel.com/radio"},{"type":"macvlan","master":"pf0"}]}"#;
    let add = |rig: &Rig, ifname: &str| rig.call(request(rig, Command::Add, ifname, config));
    assert_eq!(device(&add(&rig, "net1").unwrap()), VF);
    kubelet.answers.lock().unwrap().pods[1] = pod("ran", "du-0", &[("app", &[])]);
    assert!(!add(&rig, "net2").unwrap().contains("pciID"));
    let rows = rig.engine().table("attachments").unwrap();
    let passed =
        rows.as_array().unwrap().iter().find(|row| row["ifname"] == "net2").unwrap()["passedOver"].clone();
    let why = passed[0].as_str().unwrap();
    assert!(why.starts_with(r#"sriov: pod ran/du-0 has no device of resource "intel.com/radio""#), "{why}");
    kubelet.stop();
    assert_eq!(add(&rig, "net3").unwrap_err().code, Code::TryAgain);
}
