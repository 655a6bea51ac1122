//! Files as that plugin's releases write them (read from its public source, `pkg/types` and `pkg/utils`).

use std::fs;
use std::time::Duration;

use super::*;

/// 2.9 and later sort their keys and leave `DPDKMode` out.
const OF_2_10: &str = r#"{"MAC":"02:00:00:00:00:77","MTU":1500,"Master":"eth2","OrigVfState":{"AdminMAC":"00:00:00:00:00:00",
 "EffectiveMAC":"02:00:00:00:00:05","HostIFName":"eth5","LinkState":2,"MTU":1400,"MaxTxRate":50,"MinTxRate":5,"SpoofChk":true,
 "Trust":false,"Vlan":7,"VlanProto":34984,"VlanQoS":3},"VFID":0,"cniVersion":"1.0.0","deviceID":"0000:21:10.0",
 "ipam":{"type":"static"},"link_state":"enable","max_tx_rate":200,"min_tx_rate":null,"name":"net","runtimeConfig":{},
 "spoofchk":"off","trust":"on","type":"sriov","vlan":100,"vlanProto":"802.1q","vlanQoS":0}"#;
/// 2.6 to 2.8: no MTU, at first no trust and no protocol either.
const OF_2_7: &str = r#"{"cniVersion":"0.3.1","name":"net","type":"sriov","ipam":{"type":"host-local"},"dns":{},
 "OrigVfState":{"HostIFName":"","SpoofChk":false,"AdminMAC":"02:00:00:00:00:09","EffectiveMAC":"","Vlan":0,"VlanQoS":0,"MinTxRate":0,
 "MaxTxRate":0,"LinkState":0},"DPDKMode":true,"Master":"eth2","MAC":"","vlan":5,"vlanQoS":null,"deviceID":"0000:21:10.2","VFID":1,
 "ContIFNames":"net1","min_tx_rate":null,"max_tx_rate":null,"spoofchk":"on","trust":"on","runtimeConfig":{}}"#;
/// 2.2 to 2.5: how the VF was is taken for granted.
const OF_2_2: &str = r#"{"cniVersion":"0.3.1","name":"net","type":"sriov","ipam":{},"dns":{},"DPDKMode":false,"Master":"eth2",
 "MAC":"","adminMAC":"","effectiveMAC":"02:00:00:00:00:06","vlan":0,"vlanQoS":0,"deviceID":"0000:21:10.4","VFID":2,
 "HostIFNames":"eth6","ContIFNames":"net1","min_tx_rate":null,"max_tx_rate":10,"spoofchk":"off","runtimeConfig":{}}"#;

/// A host with these files.
struct Host(tempfile::TempDir);

impl Host {
    fn new(files: &[(&str, &str)]) -> Host {
        let host = Host(tempfile::tempdir().unwrap());
        fs::create_dir_all(host.path("pci/vf_lock")).unwrap();
        fs::write(host.path("pci/vf_lock/0000:21:10.0.lock"), "").unwrap();
        for (at, (name, text)) in (1..).zip(files) {
            fs::write(host.path(name), text).unwrap();
            let written = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
            File::options().write(true).open(host.path(name)).unwrap().set_modified(written).unwrap();
        }
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("var/lib/cni/sriov").join(name)
    }

    fn root(&self) -> HostRoot {
        HostRoot::new(self.0.path().into())
    }

    fn leftovers(&self) -> SriovCniFiles {
        read_all(&self.root()).unwrap()
    }
}

#[test]
fn a_record_tells_how_the_vf_was_as_far_as_its_network_changed_it() {
    let host = Host::new(&[("c1-net1", OF_2_10), ("c2-net1", OF_2_7), ("c3-net1", OF_2_2)]);
    let told = |container: &str| {
        let left = host.leftovers();
        let record = left.of(container, "net1").unwrap().clone();
        let was = record.interface.map(|was| (was.name, was.mac.map(|mac| mac.to_string()), was.mtu));
        (record.device.to_string(), was, record.before.mac, record.before.describe())
    };
    let (device, was, mac, before) = told("c1");
    assert_eq!(device, "0000:21:10.0");
    assert_eq!(was, Some(("eth5".into(), Some("02:00:00:00:00:05".into()), Some(1400))));
    assert!(mac.unwrap().is_zero());
    let all = "mac 00:00:00:00:00:00, vlan 7 qos 3 proto 802.1ad, min_tx_rate 5 max_tx_rate 50, spoofchk on, link_state disable, trust off";
    assert_eq!(before, all);
    let (device, was, mac, before) = told("c2");
    assert_eq!((device.as_str(), was, mac), ("0000:21:10.2", None, None));
    assert_eq!(before, "vlan 0, spoofchk off, trust off");
    let (_, was, _, before) = told("c3");
    assert_eq!(was, Some(("eth6".into(), Some("02:00:00:00:00:06".into()), None)));
    assert_eq!(before, "vlan 0, min_tx_rate 0 max_tx_rate 0, spoofchk on");
}

#[test]
fn the_last_record_of_a_vf_is_its_holders_and_each_is_forgotten_alone() {
    let host =
        Host::new(&[("old-net1", OF_2_10), ("new-net1", OF_2_10), ("pci/0000:21:10.0", "/run/netns/p\n")]);
    let left = host.leftovers();
    let device = "0000:21:10.0".parse().unwrap();
    assert_eq!(left.holder(device).unwrap().name, "new-net1");
    assert_eq!(left.taken[&device], Path::new("/run/netns/p"));
    assert_eq!(left.vfs()[&device], "new-net1");
    let old = left.of("old", "net1").unwrap();
    for _ in 0..2 {
        forget(&host.root(), old).unwrap();
        forget_taken(&host.root(), device).unwrap();
    }
    let left = host.leftovers();
    assert_eq!((left.records.len(), left.taken.len()), (1, 0));
    assert!(host.path("pci/vf_lock/0000:21:10.0.lock").exists(), "that plugin may still be at work");
}

#[test]
fn what_cannot_be_read_is_told_and_what_is_no_file_of_its_own_is_passed_over() {
    let host = Host::new(&[("c1-net1", "{"), ("c2-net1", r#"{"deviceID":"eth0"}"#), ("pci/readme", "x")]);
    std::os::unix::fs::symlink("/etc/passwd", host.path("c3-net1")).unwrap();
    nix::unistd::mkfifo(&host.path("c4-net1"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    let left = host.leftovers();
    let mut names: Vec<&str> = left.unreadable.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!((names, left.records.len(), left.taken.len()), (vec!["c1-net1", "c2-net1"], 0, 0));
    assert!(left.unreadable.iter().any(|(_, why)| why.contains("\"eth0\" is no PCI address")));
    assert!(!left.is_empty());
}

#[test]
fn where_that_plugin_never_was_there_is_nothing() {
    let host = Host(tempfile::tempdir().unwrap());
    assert!(host.leftovers().is_empty());
    forget_taken(&host.root(), "0000:21:10.0".parse().unwrap()).unwrap();
}
