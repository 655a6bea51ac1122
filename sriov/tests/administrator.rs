//! Changes of many VFs of one NIC at once, on a kernel in memory whose VFs are reset after each.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use fairlead_host::double::{FakeKernel, KernelRequest, Resets};
use fairlead_host::{NetKernel, Op, SetLink, VfChange, VfLinkState, VfRate, VfVlan};
use fairlead_sriov::wait_out_reset::SETTLES;
use fairlead_sriov::{Administrator, Inventory, SettingError, VfDevice};
use nix::errno::Errno;

const NIC: &str = "0000:81:00.0";

/// A NIC with some VFs.
struct Machine {
    kernel: Arc<FakeKernel>,
    administrator: Administrator,
    vfs: Vec<VfDevice>,
    pf: u32,
    dir: tempfile::TempDir,
}

impl Machine {
    fn new(count: u32) -> Machine {
        let kernel = Arc::new(FakeKernel::new());
        let dir = tempfile::tempdir().unwrap();
        let devices = dir.path().join("bus/pci/devices");
        let pf = kernel.add_host_link("ens81");
        fs::create_dir_all(devices.join(NIC).join("net/ens81")).unwrap();
        let inventory = Inventory::new(dir.path());
        let vfs = (0..count).map(|n| {
            let address = format!("0000:81:{:02x}.{}", 8 + n / 8, n % 8);
            kernel.add_vf(pf, &address, &format!("v{n}"));
            fs::create_dir_all(devices.join(&address)).unwrap();
            symlink(format!("../{NIC}"), devices.join(&address).join("physfn")).unwrap();
            symlink(format!("../{address}"), devices.join(NIC).join(format!("virtfn{n}"))).unwrap();
            inventory.vf(address.parse().unwrap()).unwrap()
        });
        let vfs = vfs.collect();
        kernel.refuse_what_igb_refuses();
        let administrator = Administrator::new(Arc::clone(&kernel) as _, SETTLES);
        Machine { kernel, administrator, vfs, pf, dir }
    }

    fn resets(&self, reset: Duration) {
        let ms = Duration::from_millis;
        self.kernel.reset_vfs(Resets { message: ms(15), reading: ms(40), reset });
    }

    fn messages(&self) -> usize {
        self.count(|asked| matches!(asked, KernelRequest::Op(Op::SetVfs { .. })))
    }

    fn count(&self, is: impl Fn(&KernelRequest) -> bool) -> usize {
        self.kernel.calls().iter().filter(|call| is(&call.request)).count()
    }
}

fn tagged(id: u16) -> VfChange {
    VfChange { vlan: Some(VfVlan { id, ..VfVlan::default() }), trust: Some(true), ..VfChange::default() }
}

fn tagged_as(vf: &VfDevice) -> VfChange {
    tagged(100 + u16::try_from(vf.index).unwrap())
}

#[test]
fn x08_vfs_that_are_still_resetting_are_waited_for_and_hold_nobody_up() {
    let machine = Machine::new(64);
    let slow = |index: u32| index % 8 == 5;
    machine.resets(Duration::from_millis(100));
    for vf in machine.vfs.iter().filter(|vf| slow(vf.index)) {
        machine.kernel.reset_vf(&vf.address.to_string(), Duration::from_secs(2));
    }
    let begin = Barrier::new(64);
    let set = |vf: &VfDevice| {
        let refused = (vf.index == 20).then_some(VfLinkState::Enable);
        let change = VfChange { link_state: refused, ..tagged_as(vf) };
        begin.wait();
        let done = machine.administrator.set(vf, &change);
        (vf.index, done, Instant::now())
    };
    let ends: Vec<_> = thread::scope(|scope| {
        let all: Vec<_> = machine.vfs.iter().map(|vf| scope.spawn(move || set(vf))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    for (index, done, _) in &ends {
        match done {
            Ok(()) => assert_ne!(*index, 20),
            Err(SettingError::NotSet { setting, .. }) => {
                assert_eq!((*index, setting.as_str()), (20, "link_state enable"))
            }
            Err(other) => panic!("{index}: {other}"),
        }
    }
    let of = |wanted: bool| ends.iter().filter(move |(index, ..)| slow(*index) == wanted).map(|end| end.2);
    assert!(of(false).max() < of(true).min(), "whoever was not being reset did not wait for those that were");
    assert!(machine.messages() < 64, "{} messages", machine.messages());
    for vf in machine.kernel.snapshot().vfs.values().flatten() {
        assert_eq!(u32::from(vf.vlan.unwrap().id), 100 + vf.index);
        assert_eq!(vf.trust, Some(vf.index != 20), "what comes behind the refused setting is not set");
    }
}

#[test]
fn x08_a_change_counts_as_done_when_the_vf_has_settled() {
    let machine = Machine::new(2);
    machine.resets(Duration::from_millis(200));
    let vf = &machine.vfs[1];
    let begun = Instant::now();
    machine.administrator.set(vf, &tagged(7)).unwrap();
    machine.administrator.settle(vf, &tagged(7)).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(200));
    assert_eq!(machine.messages(), 1);
}

#[test]
fn x08_one_that_never_ends_resetting_is_blamed_alone_and_holds_up_none_of_its_batch() {
    let mut machine = Machine::new(64);
    let limit = Duration::from_secs(5);
    machine.administrator = Administrator::new(Arc::clone(&machine.kernel) as _, limit);
    machine.resets(Duration::from_millis(20));
    let (busy, untold) = (7, 21);
    let address = |n: usize| machine.vfs[n].address.to_string();
    machine.kernel.keep_busy(&address(busy), true);
    machine.kernel.reset_vf(&address(untold), Duration::from_secs(3600));
    let begin = Barrier::new(64);
    let set = |vf: &VfDevice| {
        begin.wait();
        let begun = Instant::now();
        (machine.administrator.set(vf, &tagged_as(vf)), begun.elapsed())
    };
    let ends: Vec<_> = thread::scope(|scope| {
        let all: Vec<_> = machine.vfs.iter().map(|vf| scope.spawn(move || set(vf))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    for (n, (done, took)) in ends.into_iter().enumerate() {
        match done {
            Ok(()) => assert!(n != busy && n != untold && took < limit, "{n}: {took:?}"),
            Err(error) => {
                assert!(n == busy || n == untold, "{n}: {error}");
                assert!(took >= limit && !error.is_of_physical(), "{n}: {error}");
                let says = format!("VF {} does not end resetting", address(n));
                assert!(error.to_string().starts_with(&says), "{error}");
            }
        }
    }
}

#[test]
fn x07_while_a_pf_takes_no_change_at_all_none_of_its_vfs_is_blamed() {
    let mut machine = Machine::new(4);
    let limit = Duration::from_secs(1);
    machine.administrator = Administrator::new(Arc::clone(&machine.kernel) as _, limit);
    let all = |does: &(dyn Fn(&VfDevice) + Sync)| {
        thread::scope(|scope| machine.vfs.iter().for_each(|one| drop(scope.spawn(move || does(one)))));
    };
    machine.administrator.set(&machine.vfs[0], &tagged(7)).unwrap();
    all(&|one| machine.kernel.keep_busy(&one.address.to_string(), true));
    all(&|one| {
        let refused = machine.administrator.set(one, &tagged(9)).unwrap_err();
        assert!(refused.is_of_physical(), "{refused}");
    });
    all(&|one| machine.kernel.keep_busy(&one.address.to_string(), false));
    all(&|one| machine.kernel.reset_vf(&one.address.to_string(), Duration::from_secs(3600)));
    all(&|one| {
        let untold = machine.administrator.settings(one).unwrap_err();
        assert!(matches!(untold, SettingError::NoAnswer { .. }) && untold.is_of_physical(), "{untold}");
    });
}

#[test]
fn what_a_nic_refuses_is_passed_over_where_that_is_asked_for() {
    let machine = Machine::new(1);
    let wanted = VfChange { link_state: Some(VfLinkState::Enable), ..tagged(9) };
    let refused = machine.administrator.set_what_is_taken(&machine.vfs[0], &wanted).unwrap();
    assert!(
        refused[0].to_string().starts_with("setting link_state enable for VF 0000:81:08.0 by 0000:81:00.0")
    );
    let now = machine.administrator.settings(&machine.vfs[0]).unwrap();
    assert_eq!((refused.len(), now.trust, now.vlan.unwrap().id), (1, Some(true), 9));
}

#[test]
fn a_rate_that_is_refused_as_the_carrier_comes_is_set() {
    let machine = Machine::new(1);
    let rate = |max| VfChange { rate: Some(VfRate { min: 0, max }), ..VfChange::default() };
    for message in [1, 5] {
        machine.kernel.fail_at(message, Errno::EINVAL); // with others, and alone
    }
    machine.administrator.set(&machine.vfs[0], &rate(200)).unwrap();
    assert_eq!(machine.messages(), 3);
    machine.kernel.set_carrier("ens81", false);
    let refused = machine.administrator.set(&machine.vfs[0], &rate(300)).unwrap_err();
    assert!(matches!(refused, SettingError::NoCarrier { .. }) && refused.is_of_physical(), "{refused}");
}

#[test]
fn of_several_interfaces_of_a_nic_the_one_that_tells_the_settings_is_found_once() {
    let machine = Machine::new(1);
    let representor = machine.kernel.add_host_link("ens81r0");
    fs::create_dir_all(machine.dir.path().join("bus/pci/devices").join(NIC).join("net/a-ens81r0")).unwrap();
    let mut vf = machine.vfs[0].clone();
    vf.physical.interfaces = vec!["ens81r0".into(), "ens81".into()];
    machine.administrator.set(&vf, &tagged(5)).unwrap();
    machine.administrator.set(&vf, &tagged(6)).unwrap();
    assert_eq!(machine.count(|asked| *asked == KernelRequest::Vfs(representor)), 1);
    assert_eq!(machine.count(|asked| *asked == KernelRequest::Vfs(machine.pf)), 1);
    vf.physical.interfaces = vec!["gone".into()];
    let error = machine.administrator.settings(&vf).unwrap_err();
    assert!(matches!(error, SettingError::NoInterface { .. }), "{error}");
}

#[test]
fn a_pf_whose_interface_has_changed_names_with_another_pfs_is_asked_and_not_the_other() {
    let machine = Machine::new(1);
    let own = machine.kernel.add_host_link_of(NIC, "ens81f0");
    let other = machine.kernel.add_host_link_of("0000:81:00.1", "ens81f1");
    for (pf, vf, name) in [(own, "0000:81:10.0", "f0v0"), (other, "0000:81:14.0", "f1v0")] {
        machine.kernel.add_vf(pf, vf, name);
    }
    let mut vf = machine.vfs[0].clone();
    vf.physical.interfaces = vec!["ens81f0".into()];
    for (index, name) in [(own, "swapped"), (other, "ens81f0"), (own, "ens81f1")] {
        let renamed = Op::SetLink(SetLink { index, name: Some(name.to_owned()), ..SetLink::default() });
        machine.kernel.host().unwrap().batch(&[renamed]).unwrap();
    }
    machine.administrator.set(&vf, &tagged(9)).unwrap();
    let vlan_by = |pf: u32| machine.kernel.snapshot().vfs[&pf][0].vlan.unwrap().id;
    assert_eq!((vlan_by(own), vlan_by(other)), (9, 0));
}
