//! VFs on a kernel in memory: how one is set up, and how it comes home whatever happened.

use std::fs;
use std::os::unix::fs::symlink;

use fairlead_cni::Code;
use fairlead_host::double::{KernelRequest, NetnsSnapshot, Resets};
use fairlead_host::{IommuGroup, Link, LinkName, LinkSettings, Mac, NetKernel, Op, Override, SetLink, Vf};

use super::*;

/// The machine's sysfs: two PFs, each with a virtual one. No pool can have the second.
pub(super) fn sysfs(root: &Path) {
    plug(root, ("0000:21:00.0", PF), 0, (VF, "vf0"));
    drive(root, "igbvf");
    plug(root, (VFIO_PF, VFIO_LINK), 0, (VFIO, "vf1"));
    driven(root, VFIO, "vfio-pci");
    fs::remove_file(root.join("bus/pci/devices").join(VFIO_PF).join("sriov_totalvfs")).unwrap();
}

/// A VF and its physical one, each with its interface.
pub(super) fn plug(root: &Path, pf: (&str, &str), index: u32, vf: (&str, &str)) {
    let devices = root.join("bus/pci/devices");
    for (address, interface) in [pf, vf] {
        let dir = devices.join(address);
        fs::create_dir_all(dir.join("net").join(interface)).unwrap();
        for (file, text) in [("class", "0x020000"), ("vendor", "0x8086"), ("device", "0x10ca")] {
            fs::write(dir.join(file), text).unwrap();
        }
    }
    fs::write(devices.join(pf.0).join("sriov_totalvfs"), "7").unwrap();
    symlink(format!("../{}", pf.0), devices.join(vf.0).join("physfn")).unwrap();
    symlink(format!("../{}", vf.0), devices.join(pf.0).join(format!("virtfn{index}"))).unwrap();
    join_group(root, vf.0, 20 + fs::read_dir(root.join("kernel/iommu_groups")).map_or(0, Iterator::count));
}

/// Puts a device into an IOMMU group.
pub(super) fn join_group(root: &Path, address: &str, group: usize) {
    let device = root.join("bus/pci/devices").join(address);
    let members = root.join("kernel/iommu_groups").join(group.to_string()).join("devices");
    fs::create_dir_all(&members).unwrap();
    let _ = fs::remove_file(device.join("iommu_group"));
    symlink(format!("../../../../kernel/iommu_groups/{group}"), device.join("iommu_group")).unwrap();
    symlink(&device, members.join(address)).unwrap();
}

pub(super) fn drive(root: &Path, driver: &str) {
    driven(root, VF, driver);
}

pub(super) fn driven(root: &Path, vf: &str, driver: &str) {
    let link = root.join("bus/pci/devices").join(vf).join("driver");
    let _ = fs::remove_file(&link);
    symlink(format!("../../../bus/pci/drivers/{driver}"), link).unwrap();
}

/// An interface that a driver made anew has another index.
pub(super) fn forget_indices(netns: &mut NetnsSnapshot) {
    let mine = |link: &Link| link.device.is_some();
    let mut found: Vec<Link> = netns.links.values().filter(|link| mine(link)).cloned().collect();
    found.sort_by(|a, b| a.device.cmp(&b.device));
    netns.links.retain(|_, link| !mine(link));
    for (at, link) in (0..).zip(found) {
        netns.links.insert(u32::MAX - at, Link { index: 0, ..link });
    }
}

pub(super) fn config(more: &str) -> String {
    format!(r#"{{"cniVersion":"1.1.0","name":"lab-net","type":"sriov","deviceID":"{VF}"{more}}}"#)
}

pub(super) const TAGGED: &str = r#","vlan":100,"spoofchk":"on","max_tx_rate":200"#;

impl Rig {
    pub(super) fn ops(&self) -> Vec<Op> {
        let op = |call: fairlead_host::double::Call| match call.request {
            KernelRequest::Op(op) => Some(op),
            _ => None,
        };
        self.kernel.calls().into_iter().filter_map(op).collect()
    }

    pub(super) fn count(&self, is: impl Fn(&KernelRequest) -> bool) -> usize {
        self.kernel.calls().iter().filter(|call| is(&call.request)).count()
    }

    pub(super) fn settings(&self) -> Vf {
        self.kernel.snapshot().vfs.values().next().unwrap()[0].clone()
    }

    pub(super) fn at_home(&self) -> Option<Link> {
        let links = self.kernel.host().unwrap().links().unwrap();
        links.into_iter().find(|link| link.device.as_deref() == Some(VF))
    }

    pub(super) fn in_pod(&self, ops: impl Fn(u32) -> Vec<Op>) {
        let mut pod = self.kernel.pod(POD.as_ref()).unwrap();
        let index = pod.link_by_name("net1").unwrap().unwrap().index;
        pod.batch(&ops(index)).unwrap();
    }

    pub(super) fn check(&self, config: &str, result: &str) -> Result<String, CniError> {
        let with = format!(r#"{},"prevResult":{result}}}"#, config.strip_suffix('}').unwrap());
        self.call(self.request(Command::Check, "c1", &with))
    }
}

#[test]
fn k27_what_differs_is_set_through_the_pf_in_one_message() {
    let rig = Rig::new();
    rig.add(&config(TAGGED)).unwrap();
    let set: Vec<_> = rig.ops().into_iter().filter(|op| matches!(op, Op::SetVfs { .. })).collect();
    let [Op::SetVfs { changes, .. }] = set.as_slice() else { panic!("{set:?}") };
    let [(0, change)] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!(change.describe(), "vlan 100, min_tx_rate 0 max_tx_rate 200", "spoofchk is on already");
    assert_eq!((rig.settings().vlan.unwrap().id, rig.settings().rate.unwrap().max), (100, 200));
    rig.del(&config(TAGGED)).unwrap();
    assert_eq!((rig.settings().vlan.unwrap().id, rig.settings().rate.unwrap().max), (0, 0));
}

#[test]
fn a_vf_of_which_nothing_is_wanted_is_neither_read_nor_set() {
    let rig = Rig::new();
    rig.add(&config("")).unwrap();
    rig.del(&config("")).unwrap();
    assert_eq!(
        rig.count(|asked| matches!(asked, KernelRequest::Vfs(_) | KernelRequest::Op(Op::SetVfs { .. }))),
        0
    );
    assert_eq!(rig.count(|asked| matches!(asked, KernelRequest::Bind(..))), 0);
}

#[test]
fn the_answer_tells_mtu_and_pci_address_and_the_pod_announces_its_addresses() {
    let rig = Rig::new();
    let answer: serde_json::Value = serde_json::from_str(&rig.add(&config("")).unwrap()).unwrap();
    let interface = &answer["interfaces"][0];
    assert_eq!((interface["mtu"].as_u64(), interface["pciID"].as_str()), (Some(1500), Some(VF)));
    let mut pod = rig.kernel.pod(POD.as_ref()).unwrap();
    for key in ["net/ipv4/conf/net1/arp_notify", "net/ipv6/conf/net1/ndisc_notify"] {
        assert_eq!(pod.sysctl(key).unwrap(), "1", "{key}");
    }
}

#[test]
fn k27_a_requested_mac_is_given_by_the_pf_and_taken_over_by_a_new_binding() {
    let rig = Rig::new();
    let mac: Mac = "02:00:00:00:00:77".parse().unwrap();
    let before = rig.state();
    let with_mac = config(r#","mac":"02:00:00:00:00:77""#);
    let answer = rig.add(&with_mac).unwrap();
    assert!(answer.contains("02:00:00:00:00:77"), "{answer}");
    assert_eq!(rig.settings().mac, Some(mac));
    assert_eq!(rig.count(|asked| matches!(asked, KernelRequest::Bind(..))), 1);
    rig.check(&with_mac, &answer).unwrap();
    rig.del(&with_mac).unwrap();
    assert_eq!(rig.state(), before, "its own MAC address and name, and no administrator's");
}

#[test]
fn an_iavf_takes_the_address_over_when_its_reset_has_ended_and_is_not_bound_anew() {
    let rig = Rig::new();
    drive(&rig.dir.path().join("sys"), "iavf");
    rig.kernel.drive(VF, Some("iavf")).unwrap();
    let reset = Duration::from_millis(40);
    rig.kernel.reset_vfs(Resets { reset, ..Resets::default() });
    let before = rig.at_home();
    let with_mac = config(r#","mac":"02:00:00:00:00:77""#);
    let answer = rig.add(&with_mac).unwrap();
    assert!(answer.contains("02:00:00:00:00:77"), "{answer}");
    let by_itself = |op: &Op| matches!(op, Op::SetLink(SetLink { mac: Some(_), .. }));
    assert!(!rig.ops().iter().any(by_itself), "it follows what its PF says");
    assert_eq!(rig.count(|asked| matches!(asked, KernelRequest::Bind(..))), 0);
    rig.del(&with_mac).unwrap();
    assert_eq!(rig.at_home(), before);
}

#[test]
fn x06_a_vf_whose_pod_died_has_everything_back_whatever_the_pod_did_to_it() {
    let rig = Rig::new();
    let before = rig.at_home().unwrap();
    // Its own MAC address has become the administrator's by that, which it may not change.
    let with_mac = config(r#","mac":"02:00:00:00:00:77""#);
    rig.add(&with_mac).unwrap();
    rig.del(&with_mac).unwrap();
    let tagged = config(&format!(r#"{TAGGED},"trust":"on""#));
    rig.add(&tagged).unwrap();
    let promiscuous = LinkSettings::of_flags(LinkSettings::PROMISCUITY);
    rig.in_pod(|index| {
        vec![
            Op::SetLink(SetLink {
                index,
                mtu: Some(1300),
                mac: Some(Mac([2, 9, 9, 9, 9, 9])),
                ..SetLink::default()
            }),
            Op::SetLink(SetLink { index, alias: Some("mine".into()), ..SetLink::default() }),
            Op::SetLink(SetLink { index, settings: promiscuous, ..SetLink::default() }),
            Op::DeleteAltName { index, name: "vf0-alt".into() },
            Op::AddAltName { index, name: "hidden".into() },
        ]
    });
    rig.kernel.add_host_link("net1"); // so that the kernel has to find it another name
    let settings = Rig::new().settings();
    rig.kernel.kill_namespace(POD);
    assert_ne!(rig.at_home().unwrap().name, before.name);
    rig.del(&tagged).unwrap();
    assert_eq!(forget_index(rig.at_home()), forget_index(Some(before)));
    assert_eq!(rig.settings(), settings);
    assert_eq!(rig.engine().core.store.all().len(), 0);
}

#[test]
fn a_vf_leaves_its_pod_whatever_alternative_names_that_gave_it() {
    let rig = Rig::new();
    let before = rig.at_home().unwrap();
    rig.kernel.add_host_link("up0");
    let config = config("");
    rig.add(&config).unwrap();
    rig.in_pod(|index| {
        let name = |name: &[u8]| Op::AddAltName { index, name: LinkName::from_bytes(name) };
        // A name of the host's, the one that the VF is to have there again, and one that is no UTF-8.
        vec![name(b"up0"), name(before.name.as_bytes()), name(b"\xff\xc3")]
    });
    rig.del(&config).unwrap();
    assert_eq!(forget_index(rig.at_home()), forget_index(Some(before)));
    assert_eq!(rig.engine().core.store.all().len(), 0);
}

#[test]
fn a_setting_that_the_nic_refuses_is_named_and_everything_is_as_before() {
    for (more, says) in [
        (r#","vlan":100,"link_state":"enable""#, "link_state enable"),
        (r#","vlan":100,"vlanProto":"802.1ad","trust":"on""#, "vlan 100 proto 802.1ad"),
        (r#","vlan":100,"min_tx_rate":5"#, "min_tx_rate 5"),
    ] {
        let rig = Rig::new();
        rig.kernel.refuse_what_igb_refuses();
        let before = rig.state();
        let error = rig.add(&config(more)).unwrap_err();
        assert_eq!(error.code, Code::InvalidConfig, "{error}");
        assert!(error.msg.contains(&format!("setting {says}")) && error.msg.contains(VF), "{error}");
        assert!(error.details.contains("this NIC does not take the setting"), "{error}");
        assert_eq!(rig.state(), before, "{more}");
    }
}

#[test]
fn a_vf_that_is_lent_is_refused_to_the_next_pod_with_the_name_of_who_has_it() {
    let rig = Rig::new();
    rig.add(&config(TAGGED)).unwrap();
    let (state, settings) = (rig.state(), rig.settings());
    let error = rig.call(rig.request(Command::Add, "c2", &config(""))).unwrap_err();
    assert_eq!(error.code, Code::TryAgain);
    assert!(error.msg.contains("it is interface \"net1\" of container c1"), "{error}");
    assert_eq!((rig.state(), rig.settings()), (state, settings));
}

#[test]
fn a_driver_that_lets_its_interface_take_an_address_is_not_bound_anew() {
    let rig = Rig::new();
    drive(&rig.dir.path().join("sys"), "mlx5_core");
    let with_mac = config(r#","mac":"02:00:00:00:00:77","trust":"on""#);
    let before = rig.state();
    assert!(rig.add(&with_mac).unwrap().contains("02:00:00:00:00:77"));
    rig.del(&with_mac).unwrap();
    assert_eq!(rig.count(|asked| matches!(asked, KernelRequest::Bind(..))), 0);
    assert_eq!(rig.state(), before);
}

#[test]
fn what_cannot_be_lent_is_refused_with_its_address_the_reason_and_a_remedy() {
    let told = |rig: &Rig, config: &str| rig.add(config).unwrap_err();
    let rig = Rig::new();
    let sys = rig.dir.path().join("sys");
    let of = |device: &str| config("").replace(VF, device);
    for (device, says) in [
        ("0000:21:00.0", "PCI device 0000:21:00.0 is no VF"),
        ("0000:21:12.0", "the machine has no PCI device 0000:21:12.0"),
        ("eth0", "deviceID: \"eth0\" is no PCI address"),
    ] {
        let error = told(&rig, &of(device));
        assert!(error.msg.contains(says) && !error.details.is_empty(), "{error:?}");
        assert_eq!(error.code, Code::InvalidConfig);
    }
    for driver in ["uio_pci_generic", "igb_uio", "mlx5_vfio_pci"] {
        drive(&sys, driver);
        let error = told(&rig, &config(""));
        assert!(error.msg.contains(&format!("VF 0000:21:10.0 is bound to {driver}: of the")), "{error}");
        assert!(error.details.contains("kernel driver"));
    }
    fs::remove_file(sys.join("bus/pci/devices").join(VF).join("driver")).unwrap();
    assert!(told(&rig, &config("")).msg.contains("has no driver"));
    assert_eq!(rig.state(), Rig::new().state());
}

#[test]
fn a_vdpa_device_is_refused_and_an_exclusive_rdma_device_only_where_the_pool_gives_rdma_to_pods() {
    let mut rig = pools::kept("pools: []");
    let sys = rig.dir.path().join("sys");
    let put = |path: &str, text: &str| {
        fs::create_dir_all(sys.join(path).parent().unwrap()).unwrap();
        fs::write(sys.join(path), text).unwrap();
    };
    let mode = "module/ib_core/parameters/netns_mode";
    for device in ["infiniband/mlx5_2", "infiniband_verbs/uverbs2"] {
        fs::create_dir_all(sys.join(format!("bus/pci/devices/{VF}/{device}"))).unwrap();
    }
    let comes_and_goes = |rig: &Rig| {
        rig.add(&config("")).unwrap();
        rig.del(&config("")).unwrap();
        rig.reap();
        rig.keep();
    };
    for text in ["Y\n", "N\n"] {
        put(mode, text);
        comes_and_goes(&rig);
    }
    // Of a pool: it was ready before RDMA devices were exclusive.
    put(mode, "Y\n");
    rig.configure("pools: [{name: radio, selectors: {vendors: ['8086'], isRdma: true}}]");
    assert_eq!(rig.states(), ["ready"]);
    put(mode, "N\n");
    let refused = rig.add(&config("")).unwrap_err();
    let says =
        "VF 0000:21:10.0 has RDMA device mlx5_2, and RDMA devices are exclusive to one network namespace";
    assert!(refused.code == Code::InvalidConfig && refused.msg.contains(says), "{refused}");
    assert!(refused.details.contains("rdma system set netns shared"), "{refused}");
    rig.configure("pools: [{name: radio, selectors: {pciAddresses: ['0000:21:10.0']}}]");
    comes_and_goes(&rig);
    rig.configure("pools: []");
    rig.keep();
    let before = rig.state();
    fs::create_dir_all(sys.join("bus/vdpa/devices")).unwrap();
    symlink(format!("../../../devices/pci0000:20/{VF}/vdpa0"), sys.join("bus/vdpa/devices/vdpa0")).unwrap();
    let refused = rig.add(&config("")).unwrap_err();
    let says = "VF 0000:21:10.0 is vDPA device vdpa0, which is not served yet";
    assert!(refused.code == Code::InvalidConfig && refused.msg.contains(says), "{refused}");
    assert_eq!(rig.state(), before);
    let paths = fallback::config(&[fallback::SRIOV, fallback::MACVLAN], fallback::GIVEN);
    rig.add(&paths).unwrap();
    let rows = rig.engine().table("attachments").unwrap();
    assert!(rows[0]["passedOver"][0].as_str().unwrap().contains("vDPA device vdpa0"), "{rows}");
}

#[test]
fn check_looks_at_the_interface_and_at_the_settings() {
    let rig = Rig::new();
    let result = rig.add(&config(TAGGED)).unwrap();
    rig.check(&config(TAGGED), &result).unwrap();
    let mut host = rig.kernel.host().unwrap();
    let pf = host.link_by_name(PF).unwrap().unwrap().index;
    let vlan = |id| {
        let vlan = Some(fairlead_host::VfVlan { id, ..Default::default() });
        Op::SetVfs { pf, changes: vec![(0, fairlead_host::VfChange { vlan, ..Default::default() })] }
    };
    host.batch(&[vlan(7)]).unwrap();
    let error = rig.check(&config(TAGGED), &result).unwrap_err();
    assert!(error.msg.contains("settings of its VF 0000:21:10.0 have changed: vlan 7 instead of vlan 100"));
    assert_eq!(error.code, Code::Changed);
    host.batch(&[vlan(100)]).unwrap();
    rig.in_pod(|index| vec![Op::SetLink(SetLink { index, up: Some(false), ..SetLink::default() })]);
    assert!(rig.check(&config(TAGGED), &result).unwrap_err().msg.contains("the interface is down"));
}

pub(super) fn forget_index(link: Option<Link>) -> Option<Link> {
    link.map(|link| Link { index: 0, ..link })
}

#[test]
fn a_vf_that_lost_its_driver_is_bound_again() {
    let rig = Rig::new();
    let driver = rig.dir.path().join("sys/bus/pci/devices").join(VF).join("driver");
    let before = rig.state();
    rig.add(&config("")).unwrap();
    fs::remove_file(&driver).unwrap();
    rig.del(&config("")).unwrap();
    let anew = KernelRequest::Bind(VF.to_owned(), "igbvf".to_owned(), Override::Keep);
    assert_eq!(rig.count(|asked| *asked == anew), 1);
    assert_eq!(rig.state(), before);
}

#[test]
fn a_vf_that_got_another_driver_keeps_it_and_loses_its_pods_settings() {
    for (driver, group, more) in [
        ("vfio-pci", IommuGroup::Free, TAGGED),
        // Nothing was set for its pod, so that no process is waited for.
        ("vfio-pci", IommuGroup::InUse, ""),
        ("ixgbevf", IommuGroup::InUse, TAGGED),
    ] {
        let rig = Rig::new();
        rig.add(&config(more)).unwrap();
        rig.kernel.drive(VF, Some(driver)).unwrap();
        rig.kernel.set_group(GROUP - 1, group);
        rig.kernel.forget_calls();
        rig.del(&config(more)).unwrap();
        assert_eq!(rig.settings().vlan.unwrap().id, 0, "{driver} {group:?}");
        let touched = |asked: &KernelRequest| {
            matches!(asked, KernelRequest::Bind(..) | KernelRequest::Unbind(_) | KernelRequest::Reset(_))
        };
        assert_eq!((rig.count(touched), rig.engine().core.store.all().len()), (0, 0));
    }
}

#[test]
fn the_del_of_a_vf_that_is_gone_from_the_machine_is_success() {
    let rig = Rig::new();
    rig.add(&config(TAGGED)).unwrap();
    fs::remove_dir_all(rig.dir.path().join("sys/bus/pci/devices").join(VF)).unwrap();
    rig.kernel.kill_namespace(POD);
    rig.del(&config(TAGGED)).unwrap();
    assert_eq!(rig.engine().core.store.all().len(), 0);
}

#[test]
fn k10_the_del_of_a_pod_never_seen_is_success_and_touches_no_vf() {
    let rig = Rig::new();
    let before = rig.state();
    rig.kernel.forget_calls();
    rig.del(&config(TAGGED)).unwrap();
    assert_eq!(rig.ops(), []);
    assert_eq!(rig.state(), before);
}

#[test]
fn a_vf_that_its_driver_still_resets_is_in_the_pod_and_up_when_that_has_ended() {
    let rig = Rig::new();
    rig.kernel.reset_vf(VF, Duration::from_millis(60));
    rig.add(&config("")).unwrap();
    let taken = rig.ops().iter().filter(|op| matches!(op, Op::TakeFromHost { .. })).count();
    let link = rig.kernel.pod(POD.as_ref()).unwrap().link_by_name("net1").unwrap().unwrap();
    assert_eq!((taken, link.up), (1, true));
}
