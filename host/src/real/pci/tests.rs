//! On a tree of files in place of sysfs; the real one is `lab/tests/vfio.sh`'s.

use std::os::unix::fs::symlink;
use std::thread;

use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;
use crate::VFIO_PCI;
use crate::seam::Answers;

const ADDRESS: &str = "0000:21:10.0";

/// A device in IOMMU group 19 with a driver.
struct Tree {
    _dir: tempfile::TempDir,
    bus: PciBus,
}

impl Tree {
    fn new(driver: Option<&str>) -> Tree {
        let dir = tempfile::tempdir().unwrap();
        let (sysfs, nodes) = (dir.path().join("sys"), dir.path().join("vfio"));
        let bus = PciBus::at(&sysfs, &nodes, Duration::from_millis(500));
        let device = bus.device(ADDRESS);
        for dir in [&device, &nodes] {
            fs::create_dir_all(dir).unwrap();
        }
        for driver in ["igbvf", VFIO_PCI] {
            let driver = bus.bus.join("drivers").join(driver);
            fs::create_dir_all(&driver).unwrap();
            for file in ["bind", "unbind"] {
                fs::write(driver.join(file), "").unwrap();
            }
        }
        for file in ["driver_override", "reset"] {
            fs::write(device.join(file), "").unwrap();
        }
        symlink("/groups/19", device.join("iommu_group")).unwrap();
        if let Some(driver) = driver {
            symlink(bus.bus.join("drivers").join(driver), device.join("driver")).unwrap();
        }
        fs::write(nodes.join("19"), "").unwrap();
        Tree { _dir: dir, bus }
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.bus.bus.join(file)).unwrap()
    }

    fn of_device(&self, file: &str) -> String {
        self.read(&format!("devices/{ADDRESS}/{file}"))
    }
}

#[test]
fn the_address_is_written_to_unbind_and_to_bind() {
    let tree = Tree::new(Some("igbvf"));
    tree.bus.bind(ADDRESS, "igbvf", Override::Keep).unwrap();
    for file in ["unbind", "bind"] {
        assert_eq!(tree.read(&format!("drivers/igbvf/{file}")), ADDRESS, "{file}");
    }
    assert_eq!(tree.of_device("driver_override"), "");
}

#[test]
fn a_device_without_a_driver_is_only_bound() {
    let tree = Tree::new(None);
    tree.bus.unbind(ADDRESS).unwrap();
    tree.bus.bind(ADDRESS, "igbvf", Override::Keep).unwrap();
    assert_eq!(tree.read("drivers/igbvf/bind"), ADDRESS);
}

#[test]
fn a_driver_that_has_no_devices_of_its_own_is_fixed_for_the_device_and_back() {
    let tree = Tree::new(Some("igbvf"));
    assert_eq!(tree.bus.fixed_driver(ADDRESS).unwrap(), None);
    tree.bus.bind(ADDRESS, VFIO_PCI, Override::Set).unwrap();
    assert_eq!(tree.of_device("driver_override"), VFIO_PCI);
    assert_eq!(tree.bus.fixed_driver(ADDRESS).unwrap().as_deref(), Some(VFIO_PCI));
    assert_eq!(tree.read("drivers/igbvf/unbind"), ADDRESS);
    assert_eq!(tree.read("drivers/vfio-pci/bind"), ADDRESS);
    tree.bus.bind(ADDRESS, "igbvf", Override::Clear).unwrap();
    assert_eq!(tree.of_device("driver_override"), "\nfio-pci", "a file keeps what sysfs does not");
}

#[test]
fn what_driver_is_fixed_is_waited_for_no_longer_than_a_look_lasts() {
    let tree = Tree::new(Some("igbvf"));
    let file = tree.bus.device(ADDRESS).join("driver_override");
    fs::write(&file, "(null)\n").unwrap(); // as sysfs says that there is none
    assert_eq!(tree.bus.fixed_driver(ADDRESS).unwrap(), None);
    fs::remove_file(&file).unwrap();
    mkfifo(&file, Mode::S_IRWXU).unwrap(); // opened only when somebody writes
    let error = tree.bus.fixed_driver(ADDRESS).unwrap_err();
    assert!(error.timed_out(), "{error}");
    drop(OpenOptions::new().write(true).open(&file)); // it ends
}

#[test]
fn a_driver_that_is_not_there_is_told_before_anything_is_changed() {
    let tree = Tree::new(Some("igbvf"));
    let error = tree.bus.bind(ADDRESS, "uio_pci_generic", Override::Set).unwrap_err();
    assert_eq!(
        error.to_string(),
        "device 0000:21:10.0: binding it to uio_pci_generic: the kernel has no such driver; load its module"
    );
    assert_eq!((tree.of_device("driver_override"), tree.read("drivers/igbvf/unbind")), Default::default());
}

#[test]
fn a_pf_is_told_how_many_it_shall_have() {
    let tree = Tree::new(Some("igb"));
    let file = tree.bus.device(ADDRESS).join("sriov_numvfs");
    fs::write(&file, "").unwrap();
    tree.bus.create_vfs(ADDRESS, 7).unwrap();
    assert_eq!(tree.of_device("sriov_numvfs"), "7");
    fs::remove_file(file).unwrap();
    let error = tree.bus.create_vfs(ADDRESS, 7).unwrap_err().to_string();
    assert!(error.starts_with("device 0000:21:10.0: making 7 VFs: "), "{error}");
}

#[test]
fn only_a_device_that_vfio_or_nobody_has_is_reset() {
    for driver in [None, Some(VFIO_PCI)] {
        let tree = Tree::new(driver);
        tree.bus.reset(ADDRESS).unwrap();
        assert_eq!(tree.of_device("reset"), "1", "{driver:?}");
    }
    let tree = Tree::new(Some("igbvf"));
    let error = tree.bus.reset(ADDRESS).unwrap_err();
    assert_eq!(
        error.to_string(),
        "device 0000:21:10.0: resetting it: igbvf drives it: only a device that vfio-pci or nobody has is reset"
    );
    assert_eq!(tree.of_device("reset"), "");
}

#[test]
fn a_device_whose_group_cannot_be_held_is_neither_reset_nor_unbound() {
    let tree = Tree::new(Some(VFIO_PCI));
    fs::remove_file(tree.bus.nodes.join("19")).unwrap();
    fs::create_dir(tree.bus.nodes.join("19")).unwrap(); // cannot be opened for writing
    let bound = tree.bus.bind(ADDRESS, "igbvf", Override::Set);
    for refused in [tree.bus.reset(ADDRESS), tree.bus.unbind(ADDRESS), bound] {
        assert_eq!(refused.unwrap_err().errno(), Some(Errno::EISDIR));
    }
    assert_eq!(tree.of_device("driver_override"), "");
    assert_eq!((tree.of_device("reset"), tree.read("drivers/vfio-pci/unbind")), Default::default());
}

#[test]
fn a_group_is_free_absent_or_behind_no_iommu() {
    let tree = Tree::new(Some(VFIO_PCI));
    assert_eq!(tree.bus.group(19).unwrap(), IommuGroup::Free);
    assert_eq!(tree.bus.group(20).unwrap(), IommuGroup::Absent);
    fs::write(tree.bus.nodes.join("noiommu-20"), "").unwrap();
    assert_eq!(tree.bus.group(20).unwrap(), IommuGroup::NoIommu);
}

#[test]
fn who_looks_at_a_group_waits_for_another_of_us_and_never_takes_that_for_a_process() {
    let tree = Tree::new(Some(VFIO_PCI));
    let held = tree.bus.hold(ADDRESS).unwrap();
    thread::scope(|scope| {
        let looks = scope.spawn(|| tree.bus.group(19));
        thread::sleep(Duration::from_millis(50));
        assert!(!looks.is_finished());
        drop(held);
        assert_eq!(looks.join().unwrap().unwrap(), IommuGroup::Free);
    });
    let _held = tree.bus.hold(ADDRESS).unwrap();
    let late = tree.bus.group(19).unwrap_err();
    assert!(late.timed_out(), "{late}");
}

#[test]
fn a_vf_answers_although_its_vendor_reads_as_ones() {
    let tree = Tree::new(Some("igbvf"));
    let config = tree.bus.device(ADDRESS).join("config");
    fs::write(&config, [0xff, 0xff, 0xff, 0xff, 0, 0, 0x10, 0, 1, 0, 0, 2, 0, 0, 0, 0]).unwrap();
    assert!(tree.bus.answers(ADDRESS).unwrap());
    fs::write(&config, [0xff; 64]).unwrap();
    assert!(!tree.bus.answers(ADDRESS).unwrap());
}

/// Threads that ask devices.
fn begun() -> usize {
    let all = fs::read_dir("/proc/self/task").unwrap();
    let names = all.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.trim() == "device").count()
}

#[test]
fn a_driver_that_hangs_is_waited_for_no_longer_than_the_limit_and_named() {
    let tree = Tree::new(Some("igbvf"));
    let unbind = tree.bus.bus.join("drivers/igbvf/unbind");
    fs::remove_file(&unbind).unwrap();
    mkfifo(&unbind, Mode::S_IRWXU).unwrap(); // opened only when somebody reads
    let error = tree.bus.bind(ADDRESS, "igbvf", Override::Keep).unwrap_err();
    assert_eq!(
        error.to_string(),
        "device 0000:21:10.0: binding it to igbvf: the driver did not end within 0.5 s"
    );
    assert!(tree.bus.fixed_driver(ADDRESS).is_err_and(|e| e.timed_out()), "the driver has the device's lock");
    let [told] = &tree.bus.calls.stuck()[..] else { panic!("one hangs") };
    assert!(told.starts_with("writing \"0000:21:10.0\" to ") && told.contains("unbind: since "), "{told}");
    // Nothing more is asked of it, and no thread begun.
    let before = begun();
    for _ in 0..20 {
        let again = tree.bus.answers(ADDRESS).unwrap_err();
        assert!(again.timed_out() && again.to_string().contains("still hanging since "), "{again}");
    }
    assert!(begun() < before + 20, "other tests begin some too");
    assert_eq!(fs::read_to_string(unbind).unwrap(), ADDRESS); // it ends
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while !tree.bus.calls.stuck().is_empty() {
        assert!(std::time::Instant::now() < until);
        thread::yield_now();
    }
}

#[test]
fn many_are_asked_by_one_thread_and_each_is_told_for_itself() {
    let tree = Tree::new(Some(VFIO_PCI));
    fs::write(tree.bus.device(ADDRESS).join("config"), [0; 64]).unwrap();
    let dead = "0000:21:10.2";
    fs::create_dir_all(tree.bus.device(dead)).unwrap();
    fs::write(tree.bus.device(dead).join("config"), [0xff; 64]).unwrap();
    let gone = "0000:21:10.4";
    let Answers { devices, groups } =
        tree.bus.answers_of(&[ADDRESS, dead, gone].map(str::to_owned), &[19, 20]);
    assert!(matches!((&devices[ADDRESS], &devices[dead]), (Ok(true), Ok(false))), "{devices:?}");
    let error = devices[gone].as_ref().unwrap_err();
    assert_eq!(error.to_string(), tree.bus.answers(gone).unwrap_err().to_string());
    assert!(
        matches!((&groups[&19], &groups[&20]), (Ok(IommuGroup::Free), Ok(IommuGroup::Absent))),
        "{groups:?}"
    );
}

#[test]
fn x17_of_many_the_one_that_hangs_is_waited_for_once_and_known_from_then_on() {
    let tree = Tree::new(Some(VFIO_PCI));
    let [well, hangs, behind] = [ADDRESS, "0000:21:10.2", "0000:21:10.4"];
    for address in [well, behind] {
        fs::create_dir_all(tree.bus.device(address)).unwrap();
        fs::write(tree.bus.device(address).join("config"), [0; 64]).unwrap();
    }
    let file = tree.bus.device(hangs).join("config");
    fs::create_dir_all(tree.bus.device(hangs)).unwrap();
    mkfifo(&file, Mode::S_IRWXU).unwrap(); // opened only when somebody writes
    let all = tree.bus.answers_of(&[well, hangs, behind].map(str::to_owned), &[19]);
    assert_eq!(all.devices.keys().collect::<Vec<_>>(), [well]);
    assert!(all.groups.is_empty());
    let error = tree.bus.answers(hangs).unwrap_err();
    assert!(error.timed_out() && error.to_string().contains("still hanging since"), "{error}");
    assert!(tree.bus.answers(behind).unwrap());
    drop(OpenOptions::new().write(true).open(&file)); // it ends
}
