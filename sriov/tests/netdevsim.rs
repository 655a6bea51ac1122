//! Settings on the real kernel, with its simulated NIC (netdevsim) whose 64 VFs take what igb refuses. Run in the lab
//! by `lab/tests/netdevsim.sh`, which makes the NIC and has the kernel count messages and readings.
//!
//! netdevsim is on no PCI bus: a tree of sysfs made here shows it as a card, with the kernel's own files of its interfaces.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use fairlead_host::real::RealKernel;
use fairlead_host::{NetError, NetKernel, Op, PciKernel, Vf, VfChange, VfLinkState, VfVlan, VlanProto};
use fairlead_sriov::wait_out_reset::SETTLES;
use fairlead_sriov::{Administrator, Inventory, ScannedPf, SettingError, VfDevice, VfProfile};
use nix::errno::Errno;

const CARD: &str = "0000:99:00.0";
/// It takes a priority of up to 7.
const REFUSED: VfVlan = VfVlan { id: 120, qos: 9, proto: VlanProto::Dot1q };

struct Card {
    kernel: Arc<RealKernel>,
    administrator: Administrator,
    inventory: Inventory,
    vfs: Vec<VfDevice>,
    pf: u32,
    device: PathBuf,
    _sysfs: tempfile::TempDir,
}

impl Card {
    /// The NIC with so many new VFs.
    fn with(count: u32) -> Card {
        let device = PathBuf::from(std::env::var("LAB_NETDEVSIM").unwrap());
        fs::write(device.join("sriov_numvfs"), "0").unwrap();
        fs::write(device.join("sriov_numvfs"), count.to_string()).unwrap();
        let sysfs = tempfile::tempdir().unwrap();
        let devices = sysfs.path().join("bus/pci/devices");
        let pci = |address: &str| {
            let dir = devices.join(address);
            fs::create_dir_all(&dir).unwrap();
            for (file, text) in [("class", "0x020000"), ("vendor", "0x8086"), ("device", "0x1592")] {
                fs::write(dir.join(file), text).unwrap();
            }
            dir
        };
        let card = pci(CARD);
        fs::write(card.join("sriov_totalvfs"), "64").unwrap();
        symlink(device.join("net"), card.join("net")).unwrap();
        let inventory = Inventory::new(sysfs.path());
        let vfs = (0..count).map(|n| {
            let address = format!("0000:99:{:02x}.{}", 8 + n / 8, n % 8);
            symlink(format!("../{CARD}"), pci(&address).join("physfn")).unwrap();
            symlink(format!("../{address}"), card.join(format!("virtfn{n}"))).unwrap();
            inventory.vf(address.parse().unwrap()).unwrap()
        });
        let vfs: Vec<_> = vfs.collect();
        let kernel = Arc::new(RealKernel::new().unwrap());
        let name = vfs[0].physical.interfaces[0].clone();
        let pf = kernel.host().unwrap().link_by_name(&name).unwrap().unwrap().index;
        let administrator = Administrator::new(Arc::clone(&kernel) as _, SETTLES);
        Card { kernel, administrator, inventory, vfs, pf, device, _sysfs: sysfs }
    }

    /// As the machine with the card, whose devlink device is not on the PCI bus either.
    fn seen(&self) -> ScannedPf {
        let mut devlink = self.kernel.devlink().unwrap();
        let device = devlink.iter_mut().find(|device| device.bus == "netdevsim").unwrap();
        (device.bus, device.name) = ("pci".to_owned(), CARD.to_owned());
        self.inventory.scan(&devlink).unwrap().physical.remove(0)
    }

    fn settings(&self) -> Vec<Vf> {
        self.kernel.host().unwrap().vfs(self.pf).unwrap()
    }

    /// Messages that changed a link, and readings of all VFs, while `work` was done.
    fn counted(&self, work: impl FnOnce()) -> (usize, usize) {
        let (set, read) = (hits("set"), hits("read"));
        work();
        (hits("set") - set, (hits("read") - read).div_ceil(self.vfs.len()))
    }
}

fn hits(event: &str) -> usize {
    let profile = fs::read_to_string("/sys/kernel/tracing/kprobe_profile").unwrap();
    let mut lines = profile.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.find(|words| words[0] == event).unwrap()[1].parse().unwrap()
}

fn tagged(n: u32) -> VfChange {
    let vlan = VfVlan { id: 100 + u16::try_from(n).unwrap(), qos: 3, proto: VlanProto::Dot1ad };
    VfChange { vlan: Some(vlan), trust: Some(true), ..VfChange::default() }
}

#[test]
#[ignore = "needs netdevsim: lab/tests/netdevsim.sh"]
fn k27_what_igb_refuses_is_set_read_back_and_restored() {
    let card = Card::with(4);
    let vf = &card.vfs[2];
    let none = VfProfile::default;
    let before = card.administrator.settings(vf).unwrap();
    for wanted in [
        VfProfile { link_state: Some(VfLinkState::Enable), ..none() },
        VfProfile { link_state: Some(VfLinkState::Disable), ..none() },
        VfProfile { vlan: tagged(0).vlan, ..none() },
        VfProfile { min_rate: Some(100), max_rate: Some(500), ..none() },
        VfProfile {
            mac: Some("02:00:00:00:00:77".parse().unwrap()),
            vlan: tagged(7).vlan,
            spoofchk: Some(true),
            trust: Some(true),
            link_state: Some(VfLinkState::Disable),
            min_rate: Some(10),
            max_rate: None,
        },
    ] {
        let plan = wanted.plan(&before);
        let change = || {
            card.administrator.set(vf, &plan.change).unwrap();
        };
        assert_eq!(card.counted(change), (1, 0), "{}", plan.change.describe());
        card.administrator.settle(vf, &plan.change).unwrap();
        let now = card.administrator.settings(vf).unwrap();
        assert_eq!(now, before.after(&plan.change));
        card.administrator.set(vf, &plan.undo).unwrap();
        assert_eq!(card.administrator.settings(vf).unwrap(), before, "{}", plan.undo.describe());
    }
    // `auto` is what it begins with.
    let up = VfChange { link_state: Some(VfLinkState::Enable), ..VfChange::default() };
    let auto = VfChange { link_state: Some(VfLinkState::Auto), ..VfChange::default() };
    for change in [up, auto] {
        card.administrator.set(vf, &change).unwrap();
        assert_eq!(card.administrator.settings(vf).unwrap().link_state, change.link_state);
    }
}

#[test]
#[ignore = "needs netdevsim: lab/tests/netdevsim.sh"]
fn a_plan_that_fits_costs_no_message_and_no_reading_however_many_vfs_there_are() {
    for count in [4, 16, 64] {
        let card = Card::with(count);
        let wanted = VfProfile { vlan: tagged(5).vlan, trust: Some(true), ..VfProfile::default() };
        let known: Vec<Vf> = card.settings().iter().map(|vf| vf.after(&wanted.plan(vf).change)).collect();
        let all = || {
            for (vf, known) in card.vfs.iter().zip(&known) {
                card.administrator.set(vf, &wanted.plan(known).change).unwrap();
            }
        };
        assert_eq!(card.counted(all), (0, 0), "{count} VFs");
        let one = || card.administrator.set(&card.vfs[1], &tagged(9)).unwrap();
        assert_eq!(card.counted(one), (1, 0), "{count} VFs");
        let read = || assert_eq!(card.administrator.settings(&card.vfs[1]).unwrap().index, 1);
        assert_eq!(card.counted(read), (0, 1), "{count} VFs");
    }
}

#[test]
#[ignore = "needs netdevsim: lab/tests/netdevsim.sh"]
fn the_kernel_takes_64_vfs_in_one_message_and_stops_at_the_first_that_is_refused() {
    let card = Card::with(64);
    let changes = |refused: u32| {
        let change = |n| match n == refused {
            true => (n, VfChange { vlan: Some(REFUSED), ..tagged(n) }),
            false => (n, tagged(n)),
        };
        Op::SetVfs { pf: card.pf, changes: (0..64).map(change).collect() }
    };
    let mut host = card.kernel.host().unwrap();
    let mut outcome = Ok(());
    assert_eq!(card.counted(|| outcome = host.batch(&[changes(20)])), (1, 0));
    let Err(NetError::Op(error)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(error.errno, Errno::EINVAL);
    for (vf, was) in card.settings().iter().zip(Card::with(64).settings()) {
        assert_eq!(*vf, if vf.index < 20 { was.after(&tagged(vf.index)) } else { was });
    }
    host.batch(&[changes(64)]).unwrap();
    for vf in card.settings() {
        assert_eq!(vf, vf.after(&tagged(vf.index)));
    }
}

#[test]
#[ignore = "needs netdevsim: lab/tests/netdevsim.sh"]
fn x08_64_at_once_share_messages_and_only_the_one_that_is_refused_fails() {
    let card = Card::with(64);
    let before = card.settings();
    let begin = Barrier::new(64);
    let set = |vf: &VfDevice| {
        let change = match vf.index {
            20 => VfChange { vlan: Some(REFUSED), ..tagged(20) },
            n => tagged(n),
        };
        begin.wait();
        card.administrator.set(vf, &change)
    };
    let done = AtomicBool::new(false);
    let sent = hits("set");
    let outcomes: Vec<_> = thread::scope(|scope| {
        // Somebody who reads all VFs over and over has the kernel's lock most of the time.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                card.settings();
            }
        });
        let all: Vec<_> = card.vfs.iter().map(|vf| scope.spawn(move || set(vf))).collect();
        let outcomes = all.into_iter().map(|one| one.join().unwrap()).collect();
        done.store(true, Ordering::Relaxed);
        outcomes
    });
    let sent = hits("set") - sent;
    for (n, outcome) in (0..).zip(outcomes) {
        match outcome {
            Ok(()) => assert_ne!(n, 20),
            Err(SettingError::NotSet { setting, .. }) => {
                assert_eq!((n, setting.as_str()), (20, "vlan 120 qos 9"))
            }
            Err(other) => panic!("{n}: {other}"),
        }
    }
    for (vf, was) in card.settings().iter().zip(before) {
        assert_eq!(*vf, if vf.index == 20 { was } else { was.after(&tagged(vf.index)) });
    }
    println!("64 VFs at once: {sent} messages");
    assert!(sent < 32, "{sent} messages");
}

/// Back to what it was, whatever happens.
struct Switchdev<'c>(&'c Card);

impl Switchdev<'_> {
    fn set(&self, mode: &str) {
        let device = format!("netdevsim/{}", self.0.device.file_name().unwrap().to_str().unwrap());
        let told = Command::new("devlink").args(["dev", "eswitch", "set", &device, "mode", mode]).output();
        let told = told.unwrap();
        assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    }
}

impl Drop for Switchdev<'_> {
    fn drop(&mut self) {
        self.set("legacy");
    }
}

#[test]
#[ignore = "needs netdevsim: lab/tests/netdevsim.sh"]
fn in_switchdev_mode_representors_are_seen_and_the_settings_are_the_uplinks() {
    let card = Card::with(4);
    let legacy = card.seen();
    assert!(!legacy.switchdev && legacy.vfs.iter().all(|vf| vf.representor.is_none()));
    let switchdev = Switchdev(&card);
    switchdev.set("switchdev");
    let seen = card.seen();
    assert!(seen.switchdev);
    assert_eq!(seen, card.inventory.scan(&[]).unwrap().physical[0], "by the names in sysfs alone");
    let own = seen.interface.unwrap().name;
    for vf in &seen.vfs {
        let representor = vf.representor.clone().unwrap();
        let port = card.device.join("net").join(&representor).join("phys_port_name");
        assert_eq!(fs::read_to_string(port).unwrap().trim(), format!("pf0vf{}", vf.vf.index));
        assert_ne!(representor, own);
    }
    // An interface that has gone elsewhere is told by nobody, and the switch still is one.
    let gone = seen.vfs[0].representor.clone().unwrap();
    let ip = |words: &str| assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success());
    ip("netns add elsewhere");
    ip(&format!("link set {gone} netns elsewhere"));
    let now = card.seen();
    ip("netns del elsewhere");
    assert!(now.switchdev && now.vfs[0].representor.is_none() && now.vfs[1].representor.is_some());
    let vf = &seen.vfs[3].vf;
    assert_eq!(vf.physical.interfaces.len(), 5);
    let trusted = VfChange { trust: Some(true), ..VfChange::default() };
    card.administrator.set(vf, &trusted).unwrap();
    assert_eq!(card.administrator.settings(vf).unwrap().trust, Some(true));
    let rate = VfProfile { max_rate: Some(100), ..VfProfile::default() };
    let change = rate.plan(&card.administrator.settings(vf).unwrap()).change;
    let refused = card.administrator.set(vf, &change).unwrap_err();
    assert!(refused.is_refusal() && refused.to_string().contains("max_tx_rate 100"), "{refused}");
}
