//! VFs that vfio-pci has: nothing of one is in the pod's namespace, and it comes back as it was.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::thread;

use fairlead_cni::Code;
use fairlead_host::double::KernelRequest;
use fairlead_host::{IommuGroup, NetKernel, Op, SetLink, Vf, VfChange};

use super::vf::{TAGGED, config as kernel_config, join_group};
use super::*;
use crate::call::Lane;
use crate::engine::core::Rank;
use crate::store::{Attachment, Phase};

pub(super) const INFO: &str = "/var/run/k8s.cni.cncf.io/devinfo/cni/default-net-c1_net1.json";

fn config(more: &str) -> String {
    kernel_config(more).replace(VF, VFIO)
}

pub(super) fn informed() -> String {
    config(&format!(r#","runtimeConfig":{{"CNIDeviceInfoFile":"{INFO}"}}"#))
}

impl Rig {
    fn settings_given(&self) -> Vf {
        self.kernel.snapshot().vfs.values().nth(1).unwrap()[0].clone()
    }

    fn settings_sent(&self) -> usize {
        self.ops().into_iter().filter(|op| matches!(op, Op::SetVfs { .. })).count()
    }

    /// The first VF of a PF gets another MAC address, as a process that drives it can have its PF take one.
    pub(super) fn takes_another_mac(&self, pf: &str) {
        let pf = self.kernel.host().unwrap().link_by_name(pf).unwrap().unwrap().index;
        let mac = Some("02:00:00:00:00:99".parse().unwrap());
        self.in_host(Op::SetVfs { pf, changes: vec![(0, VfChange { mac, ..VfChange::default() })] });
    }

    pub(super) fn sys(&self) -> PathBuf {
        self.dir.path().join("sys")
    }

    /// What another pod's ADD of this configuration is told.
    fn refused(&self, container: &str, config: &str) -> CniError {
        self.call(self.request(Command::Add, container, config)).unwrap_err()
    }

    fn told_of_device(&self) -> PathBuf {
        self.root.join(INFO.trim_start_matches('/'))
    }

    /// The device information that was written last.
    pub(super) fn device_information(&self) -> serde_json::Value {
        serde_json::from_slice(&fs::read(self.told_of_device()).unwrap()).unwrap()
    }
}

#[test]
fn k27_d24_the_answer_tells_address_mac_and_device_and_no_link_is_touched() {
    let rig = Rig::new();
    let before = rig.state();
    let ipam =
        r#","mac":"02:00:00:00:00:78","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}"#;
    let answer = rig.add(&config(ipam)).unwrap();
    let told: serde_json::Value = serde_json::from_str(&answer).unwrap();
    let wanted = serde_json::json!({
        "name": "net1", "mac": "02:00:00:00:00:78", "mtu": 1500, "pciID": VFIO, "sandbox": POD,
    });
    assert_eq!(told["interfaces"], serde_json::json!([wanted]));
    assert_eq!((told["ips"][0]["interface"].as_u64(), rig.allocations().len()), (Some(0), 1));
    let changes = |op: &Op| !matches!(op, Op::SetVfs { .. });
    assert!(!rig.ops().iter().any(changes), "{:?}", rig.ops());
    assert_eq!(rig.settings_sent(), 1);
    rig.check(&config(ipam), &answer).unwrap();
    rig.del(&config(ipam)).unwrap();
    assert_eq!(rig.state(), before);
    let bound = |asked: &KernelRequest| {
        matches!(asked, KernelRequest::Bind(..) | KernelRequest::Unbind(_) | KernelRequest::Reset(_))
    };
    assert_eq!(rig.count(bound), 0, "nothing is bound, unbound or reset");
}

#[test]
fn d24_a_mac_that_nobody_asked_for_is_told_as_the_pf_has_it() {
    let rig = Rig::new();
    let answer: serde_json::Value = serde_json::from_str(&rig.add(&config("")).unwrap()).unwrap();
    let mac = rig.settings_given().mac.unwrap().to_string();
    assert_eq!(answer["interfaces"][0]["mac"].as_str(), Some(mac.as_str()));
    assert_eq!(rig.settings_sent(), 0);
}

#[test]
fn d24_the_mtu_is_told_as_the_pfs_own_interface_has_it_and_check_does_not_go_by_it() {
    let rig = Rig::new();
    let of_pf = |rig: &Rig, mtu| {
        let index = rig.kernel.host().unwrap().link_by_name(VFIO_LINK).unwrap().unwrap().index;
        rig.in_host(Op::SetLink(SetLink { index, mtu: Some(mtu), ..SetLink::default() }));
    };
    let told = |answer: &str| {
        let answer: serde_json::Value = serde_json::from_str(answer).unwrap();
        answer["interfaces"][0]["mtu"].clone()
    };
    let net = rig.sys().join("bus/pci/devices").join(VFIO_PF).join("net");
    // A representor, by whatever name, comes before the uplink.
    rig.kernel.add_host_link("a0");
    for (name, port) in [("a0", "pf0vf0"), (VFIO_LINK, "p0")] {
        fs::create_dir_all(net.join(name)).unwrap();
        fs::write(net.join(name).join("phys_switch_id"), "1234").unwrap();
        fs::write(net.join(name).join("phys_port_name"), port).unwrap();
    }
    of_pf(&rig, 9000);
    let answer = rig.add(&config("")).unwrap();
    assert_eq!(told(&answer), 9000);
    let on_record = rig.engine().core.store.all().pop().unwrap();
    let of_record = rig.engine().core.kinds.recorded_mtu(&on_record);
    assert_eq!(of_record, Some(9000), "for network-status, where a result below 1.1.0 cannot tell it");
    of_pf(&rig, 1500);
    rig.check(&config(""), &answer).unwrap();
    let mut of_earlier_release: serde_json::Value = serde_json::from_str(&answer).unwrap();
    of_earlier_release["interfaces"][0].as_object_mut().unwrap().remove("mtu").unwrap();
    rig.check(&config(""), &of_earlier_release.to_string()).unwrap();
    rig.del(&config("")).unwrap();
    // Both are in another namespace.
    fs::remove_dir_all(net).unwrap();
    assert_eq!(told(&rig.add(&config("")).unwrap()), serde_json::Value::Null);
    rig.del(&config("")).unwrap();
}

#[test]
fn d24_an_mtu_that_cannot_be_read_is_left_out_of_the_answer_and_fails_no_add() {
    let rig = Rig::new();
    let net = rig.sys().join("bus/pci/devices").join(VFIO_PF).join("net");
    fs::create_dir_all(net.join(VFIO_LINK).join("phys_switch_id")).unwrap(); // cannot be read as a file
    let answer: serde_json::Value = serde_json::from_str(&rig.add(&config("")).unwrap()).unwrap();
    assert_eq!(answer["interfaces"][0]["mtu"], serde_json::Value::Null);
    rig.del(&config("")).unwrap();
}

#[test]
fn k27_settings_are_set_in_one_message_and_given_back_in_one() {
    let rig = Rig::new();
    let before = rig.settings_given();
    rig.add(&config(TAGGED)).unwrap();
    assert_eq!((rig.settings_given().vlan.unwrap().id, rig.settings_sent()), (100, 1));
    rig.del(&config(TAGGED)).unwrap();
    assert_eq!((rig.settings_given(), rig.settings_sent()), (before, 2));
}

#[test]
fn the_mac_address_that_a_process_has_taken_goes_with_its_pod_whether_or_not_a_setting_was_wanted() {
    type End = fn(&Rig, &str);
    let del: End = |rig, config| drop(rig.del(config).unwrap());
    let death: End = |rig, _| {
        rig.kernel.kill_namespace(POD);
        rig.engine().core.sweep();
        rig.reap();
    };
    for (more, end) in [(r#","trust":"on""#, del), ("", del), (r#","trust":"on""#, death), ("", death)] {
        let rig = Rig::new();
        let before = rig.settings_given();
        rig.add(&config(more)).unwrap();
        rig.takes_another_mac(VFIO_LINK);
        assert_ne!(rig.settings_given().mac, before.mac);
        end(&rig, &config(more));
        assert_eq!(rig.settings_given(), before, "{more}");
        assert!(rig.engine().core.store.all().is_empty());
    }
}

#[test]
fn without_its_pfs_interface_del_of_a_vf_fails_only_where_add_has_changed_a_setting() {
    for (more, has_changed) in [("", false), (TAGGED, true), (r#","mac":"02:00:00:00:00:78""#, true)] {
        let rig = Rig::new();
        let before = rig.settings_given();
        rig.add(&config(more)).unwrap();
        let interface = rig.sys().join("bus/pci/devices").join(VFIO_PF).join("net").join(VFIO_LINK);
        fs::remove_dir_all(&interface).unwrap(); // it is in another namespace
        let done = rig.del(&config(more));
        fs::create_dir_all(&interface).unwrap();
        if has_changed {
            let error = done.unwrap_err();
            assert!(error.msg.contains("has no interface here that tells its settings"), "{more}: {error}");
            rig.del(&config(more)).unwrap();
        } else {
            done.unwrap();
        }
        assert_eq!((rig.settings_given(), rig.engine().core.store.all().len()), (before, 0), "{more}");
    }
}

#[test]
fn a_vf_that_a_process_has_is_told_as_in_use_before_anything_is_changed() {
    let rig = Rig::new();
    let before = rig.state();
    rig.kernel.set_group(GROUP, IommuGroup::InUse);
    let error = rig.add(&config(TAGGED)).unwrap_err();
    assert_eq!(error.code, Code::TryAgain);
    let says = "VF 0000:41:10.0 is in use: a process has its IOMMU group 21 open (/dev/vfio/21)";
    assert!(error.msg.contains(says), "{error}");
    assert_eq!((rig.state(), rig.settings_sent()), (before, 0));
}

#[test]
fn what_vfio_must_not_be_given_is_refused_with_the_reason_and_a_remedy() {
    let rig = Rig::new();
    let before = rig.state();
    let told = |says: &str| {
        let error = rig.add(&config("")).unwrap_err();
        assert!(error.msg.contains(says) && !error.details.is_empty(), "{error:?}");
        error.code
    };
    rig.kernel.set_group(GROUP, IommuGroup::NoIommu);
    assert_eq!(told("VF 0000:41:10.0 is behind no IOMMU (/dev/vfio/noiommu-21)"), Code::InvalidConfig);
    rig.kernel.set_group(GROUP, IommuGroup::Absent);
    assert_eq!(told("VF 0000:41:10.0 has no node /dev/vfio/21"), Code::Io);
    rig.kernel.set_group(GROUP, IommuGroup::Free);
    // Another VF of its group is a host driver's.
    join_group(&rig.sys(), VF, GROUP as usize);
    assert_eq!(
        told("VF 0000:41:10.0 shares IOMMU group 21 with 0000:21:10.0, which igbvf drives"),
        Code::InvalidConfig
    );
    fs::remove_file(rig.sys().join("bus/pci/devices").join(VFIO).join("iommu_group")).unwrap();
    assert_eq!(told("VF 0000:41:10.0 is in no IOMMU group"), Code::InvalidConfig);
    assert_eq!(rig.state(), before);
}

#[test]
fn two_pods_never_have_vfs_of_one_group_and_one_pod_may() {
    let rig = Rig::new();
    rig.kernel.drive(VF, Some("vfio-pci")).unwrap();
    join_group(&rig.sys(), VF, GROUP as usize);
    rig.add(&config("")).unwrap();
    let error = rig.refused("c2", &config(""));
    assert_eq!(error.code, Code::TryAgain);
    assert!(error.msg.contains("VF 0000:41:10.0 cannot be had: it is interface \"net1\" of container c1"));
    let error = rig.refused("c2", &kernel_config(""));
    assert_eq!(error.code, Code::TryAgain);
    let says =
        "VF 0000:21:10.0 cannot be had: of its IOMMU group 21, it is interface \"net1\" of container c1";
    assert!(error.msg.contains(says), "{error}");
    let mut second = rig.request(Command::Add, "c1", &kernel_config(""));
    second.ifname = "net2".to_owned();
    rig.call(second).unwrap();
}

#[test]
fn settings_stay_until_no_process_has_the_vf_any_more() {
    let rig = Rig::new();
    let before = rig.state();
    rig.add(&config(TAGGED)).unwrap();
    rig.kernel.set_group(GROUP, IommuGroup::InUse);
    let error = rig.del(&config(TAGGED)).unwrap_err();
    assert_eq!((error.code, rig.settings_given().vlan.unwrap().id), (Code::TryAgain, 100));
    thread::scope(|s| {
        s.spawn(|| {
            thread::sleep(Duration::from_millis(100));
            rig.kernel.set_group(GROUP, IommuGroup::Free);
        });
        rig.del(&config(TAGGED)).unwrap();
    });
    assert_eq!(rig.state(), before);
}

#[test]
fn a_vf_that_its_process_lets_go_long_after_the_last_del_comes_back_all_the_same() {
    let mut rig = Rig::new();
    let before = rig.state();
    rig.add(&config(TAGGED)).unwrap();
    rig.kernel.set_group(GROUP, IommuGroup::InUse);
    rig.del(&config(TAGGED)).unwrap_err();
    // What works in the background waits for no process: it would keep others' VFs from coming home.
    let looks = |rig: &Rig| rig.count(|asked| matches!(asked, KernelRequest::IommuGroup(_)));
    for _ in 0..3 {
        rig.kernel.forget_calls();
        rig.reap();
        assert_eq!((looks(&rig), rig.settings_given().vlan.unwrap().id), (1, 100));
    }
    rig.kernel.forget_calls();
    rig.restart();
    assert_eq!(looks(&rig), 1);
    rig.reap();
    rig.kernel.set_group(GROUP, IommuGroup::Free);
    rig.reap();
    assert_eq!(rig.state(), before);
}

#[test]
fn while_the_del_of_a_vf_waits_for_its_process_nothing_else_touches_it() {
    let rig = Rig::new();
    rig.add(&config(TAGGED)).unwrap();
    rig.kernel.set_group(GROUP, IommuGroup::InUse);
    rig.kernel.forget_calls();
    thread::scope(|s| {
        let del = s.spawn(|| rig.del(&config(TAGGED)));
        while rig.engine().core.store.all()[0].phase != Phase::Removing {
            thread::sleep(Duration::from_millis(1));
        }
        rig.kernel.kill_namespace(POD);
        rig.engine().core.namespace_died(rig.engine().core.store.all()[0].netns.nsid.unwrap());
        rig.reap();
        rig.kernel.set_group(GROUP, IommuGroup::Free);
        del.join().unwrap().unwrap();
    });
    assert_eq!(rig.settings_sent(), 1);
    assert_eq!(rig.engine().core.removals.waiting(), 1, "it was looked at, and left to the DEL");
    rig.reap();
    assert_eq!((rig.engine().core.removals.waiting(), rig.engine().core.store.all().len()), (0, 0));
}

#[test]
fn x22_an_add_has_the_vf_of_a_pod_whose_process_ends_while_it_waits() {
    let rig = Rig::new();
    rig.add(&config(TAGGED)).unwrap();
    rig.kernel.set_group(GROUP, IommuGroup::InUse);
    rig.del(&config(TAGGED)).unwrap_err();
    let (engine, id) = (rig.engine(), rig.engine().core.store.all()[0].id);
    let held = engine.core.removals.failure(id).unwrap();
    for _ in 0..10 {
        engine.core.removals.again(id, &held);
    }
    engine.core.removals.drain(); // as after hours: the next try is minutes away
    engine.core.removals.again(id, &held);
    thread::scope(|s| {
        s.spawn(|| {
            while let Some(errand) = engine.core.removals.next(Rank::Regular) {
                engine.core.attend(errand)
            }
        });
        let add = s.spawn(|| rig.call(rig.request(Command::Add, "c2", &config(""))));
        thread::sleep(Duration::from_millis(50));
        rig.kernel.set_group(GROUP, IommuGroup::Free);
        let added = add.join().unwrap();
        engine.core.removals.stop();
        added.unwrap();
    });
}

#[test]
fn whatever_became_of_it_del_is_success_and_the_settings_are_given_back() {
    type Fate = fn(&Rig);
    let dies: Fate = |rig| rig.kernel.kill_namespace(POD);
    let unmounted: Fate = |rig| rig.kernel.unmount(POD);
    let driven: Fate = |rig| rig.kernel.drive(VFIO, Some("igbvf")).unwrap();
    let unbound: Fate = |rig| rig.kernel.drive(VFIO, None).unwrap();
    for (name, fate) in [("dies", dies), ("unmounted", unmounted), ("driven", driven), ("unbound", unbound)] {
        let rig = Rig::new();
        let before = rig.settings_given().vlan;
        rig.add(&config(TAGGED)).unwrap();
        fate(&rig);
        rig.kernel.forget_calls();
        rig.del(&config(TAGGED)).unwrap();
        assert_eq!(rig.settings_given().vlan, before, "{name}");
        assert_eq!(
            rig.count(|asked| matches!(asked, KernelRequest::Bind(..) | KernelRequest::Unbind(_))),
            0,
            "{name}"
        );
        assert!(rig.engine().core.store.all().is_empty(), "{name}");
    }
    let rig = Rig::new();
    rig.add(&config(TAGGED)).unwrap();
    fs::remove_dir_all(rig.sys().join("bus/pci/devices").join(VFIO)).unwrap();
    rig.del(&config(TAGGED)).unwrap();
    assert!(rig.engine().core.store.all().is_empty());
}

#[test]
fn the_death_of_its_namespace_brings_a_given_vf_back() {
    let rig = Rig::new();
    let before = rig.settings_given();
    rig.add(&config(TAGGED)).unwrap();
    rig.kernel.kill_namespace(POD);
    rig.engine().core.sweep();
    rig.reap();
    assert_eq!(rig.settings_given(), before);
    assert!(rig.engine().core.store.all().is_empty());
}

#[test]
fn check_looks_at_the_driver_and_at_the_settings() {
    let rig = Rig::new();
    let result = rig.add(&config(TAGGED)).unwrap();
    rig.check(&config(TAGGED), &result).unwrap();
    let mut host = rig.kernel.host().unwrap();
    let pf = host.link_by_name(VFIO_LINK).unwrap().unwrap().index;
    let vlan = fairlead_host::VfVlan { id: 7, ..Default::default() };
    let change = VfChange { vlan: Some(vlan), ..Default::default() };
    host.batch(&[Op::SetVfs { pf, changes: vec![(0, change)] }]).unwrap();
    let error = rig.check(&config(TAGGED), &result).unwrap_err();
    assert!(error.msg.contains("settings of its VF 0000:41:10.0 have changed: vlan 7"), "{error}");
    rig.kernel.drive(VFIO, Some("igbvf")).unwrap();
    let error = rig.check(&config(TAGGED), &result).unwrap_err();
    let says = "its VF 0000:41:10.0 is bound to igbvf instead of vfio-pci";
    assert!(error.code == Code::Changed && error.msg.contains(says), "{error}");
}

#[test]
fn device_information_is_told_to_everybody_and_withdrawn() {
    let kernels = informed().replace(VFIO, VF);
    for (config, device, pf) in [(informed(), VFIO, VFIO_PF), (kernels, VF, "0000:21:00.0")] {
        let rig = Rig::new();
        rig.add(&config).unwrap();
        let text = fs::read_to_string(rig.told_of_device()).unwrap();
        let told: serde_json::Value = serde_json::from_str(&text).unwrap();
        let pci = serde_json::json!({ "pci-address": device, "pf-pci-address": pf });
        assert_eq!(told, serde_json::json!({ "type": "pci", "version": "1.1.0", "pci": pci }));
        assert_eq!(fs::metadata(rig.told_of_device()).unwrap().permissions().mode() & 0o777, 0o444);
        rig.del(&config).unwrap();
        assert!(!rig.told_of_device().exists());
    }
}

#[test]
fn device_information_keeps_what_the_device_plugin_told_of_the_same_device_and_of_no_other() {
    for (device, kept) in [(VFIO, Some("/dev/vhost-net")), ("0000:99:00.0", None)] {
        let rig = Rig::new();
        let before = format!(
            r#"{{"type":"pci","version":"1.0.0","pci":{{"pci-address":"{device}","vhost-net":"/dev/vhost-net","pf-pci-address":"x"}}}}"#
        );
        fs::create_dir_all(rig.told_of_device().parent().unwrap()).unwrap();
        fs::write(rig.told_of_device(), before).unwrap();
        rig.add(&informed()).unwrap();
        let told = rig.device_information();
        assert_eq!((told["version"].as_str(), told["pci"]["vhost-net"].as_str()), (Some("1.1.0"), kept));
        assert_eq!(told["pci"]["pf-pci-address"], VFIO_PF);
    }
}

#[test]
fn device_information_tells_rdma_device_and_representor() {
    let rig = Rig::new();
    let devices = rig.sys().join("bus/pci/devices");
    fs::create_dir_all(devices.join(VFIO).join("infiniband/mlx5_2")).unwrap();
    for (name, port) in [(VFIO_LINK, "p0"), ("pf0vf0", "pf0vf0")] {
        let dir = devices.join(VFIO_PF).join("net").join(name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("phys_switch_id"), "1234").unwrap();
        fs::write(dir.join("phys_port_name"), port).unwrap();
    }
    rig.add(&informed()).unwrap();
    let told = rig.device_information();
    assert_eq!(
        (told["pci"]["rdma-device"].as_str(), told["pci"]["representor-device"].as_str()),
        (Some("mlx5_2"), Some("pf0vf0"))
    );
}

#[test]
fn device_information_that_cannot_be_written_fails_the_add_and_leaves_the_host_as_before() {
    let rig = Rig::new();
    let before = rig.state();
    let relative = config(r#","runtimeConfig":{"CNIDeviceInfoFile":"devinfo.json"}"#);
    let error = rig.add(&relative).unwrap_err();
    assert!(
        error.code == Code::InvalidConfig && error.msg.contains("\"devinfo.json\" is no file in /var/run/")
    );
    fs::create_dir_all(rig.root.join("var/run")).unwrap();
    symlink("/nowhere", rig.root.join("var/run/k8s.cni.cncf.io")).unwrap();
    let error = rig.add(&informed()).unwrap_err();
    assert!(error.code == Code::Io && error.msg.contains("device information"), "{error}");
    assert_eq!(rig.state(), before);
}

#[test]
fn device_information_is_written_in_its_own_directory_only() {
    let rig = Rig::new();
    let before = rig.state();
    let victim = rig.root.join("etc/shadow");
    fs::create_dir_all(victim.parent().unwrap()).unwrap();
    fs::write(&victim, "of the host").unwrap();
    let own = "/var/run/k8s.cni.cncf.io/devinfo";
    for path in [
        "/etc/shadow",
        "/var/run/k8s.cni.cncf.io/devinfo/cni/../../../../etc/shadow",
        "/var/run/../run/k8s.cni.cncf.io/devinfo/cni/a.json",
        &format!("{own}/cni/"),
        &format!("{own}/cni/.."),
        &format!("{own}/cni/a/b.json"),
        &format!("{own}/dp/intel.com-radio-0000:41:10.0-device.json"),
    ] {
        let error = rig.add(&informed().replace(INFO, path)).unwrap_err();
        assert_eq!(error.code, Code::InvalidConfig, "{path}: {error}");
        assert!(error.msg.contains("runtimeConfig.CNIDeviceInfoFile"), "{path}: {error}");
    }
    assert_eq!((fs::read_to_string(&victim).unwrap().as_str(), rig.state()), ("of the host", before));
}

#[test]
fn where_device_information_goes_nothing_of_another_kind_is_replaced_or_removed() {
    let rig = Rig::new();
    let victim = rig.root.join("victim");
    fs::write(&victim, "of the host").unwrap();
    let at = rig.told_of_device();
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    let before = rig.engine().core.store.all().len();
    type Trick = fn(&Path, &Path);
    let tricks: [Trick; 4] = [
        |victim, at| symlink(victim, at).unwrap(),
        |victim, at| fs::hard_link(victim, at).unwrap(),
        |_, at| nix::unistd::mkfifo(at, nix::sys::stat::Mode::S_IRWXU).unwrap(),
        |_, at| fs::create_dir(at).unwrap(),
    ];
    for trick in tricks {
        trick(&victim, &at);
        let error = rig.add(&informed()).unwrap_err();
        assert!(error.code == Code::InvalidConfig && error.msg.contains("CNIDeviceInfoFile"), "{error}");
        assert_eq!(rig.engine().core.store.all().len(), before, "the undo does not wait for it");
        fs::remove_file(&at).or_else(|_| fs::remove_dir(&at)).expect("it is still there");
        rig.add(&informed()).unwrap();
        fs::remove_file(&at).unwrap();
        trick(&victim, &at);
        rig.del(&informed()).unwrap();
        fs::remove_file(&at).or_else(|_| fs::remove_dir(&at)).expect("it is no device information");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "of the host");
    }
}

#[test]
fn the_device_information_of_an_earlier_releases_attachment_elsewhere_stays_and_its_del_succeeds() {
    let rig = Rig::new();
    rig.add(&informed()).unwrap();
    let elsewhere = rig.root.join("etc/passwd");
    fs::create_dir_all(elsewhere.parent().unwrap()).unwrap();
    fs::write(&elsewhere, "of the host").unwrap();
    let of_earlier_release = Attachment {
        device_info: Some("/etc/passwd".to_owned()),
        ..rig.engine().core.store.all().remove(0).as_ref().clone()
    };
    rig.engine().core.kinds.device_info.withdraw(&of_earlier_release).unwrap();
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "of the host");
    rig.del(&informed().replace(INFO, "/etc/passwd")).unwrap();
    assert_eq!(rig.engine().core.store.all().len(), 0);
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "of the host");
}

#[test]
fn the_device_information_of_one_attachment_is_not_replaced_nor_removed_for_another() {
    let rig = Rig::new();
    rig.add(&informed()).unwrap();
    let told = fs::read(rig.told_of_device()).unwrap();
    let same = INFO.replace("/var/run", "/run");
    let other = kernel_config(&format!(r#","runtimeConfig":{{"CNIDeviceInfoFile":"{same}"}}"#));
    let error = rig.refused("c2", &other);
    assert!(error.code == Code::InvalidConfig && error.msg.contains("another attachment's"), "{error}");
    assert_eq!(fs::read(rig.told_of_device()).unwrap(), told);
    rig.del(&informed()).unwrap();
    assert!(!rig.told_of_device().exists());
}

#[test]
fn the_del_of_what_a_process_may_have_is_for_a_thread_that_may_wait_and_that_of_an_interface_is_not() {
    let rig = Rig::new();
    let ipam = r#","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}"#;
    for (config, expected) in [(kernel_config(ipam), Lane::Fast), (config(ipam), Lane::Slow)] {
        let lane = || rig.prepare(rig.request(Command::Del, "c1", &config)).lane();
        assert_eq!(lane(), Lane::Slow, "what is not on record may be sriov-cni's");
        rig.add(&config).unwrap();
        assert_eq!(lane(), expected);
        rig.del(&config).unwrap();
        rig.reap();
    }
}
