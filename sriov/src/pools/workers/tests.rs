//! Work that panics, on a kernel in memory.

use std::fs;
use std::iter::from_fn;
use std::os::unix::fs::symlink;
use std::path::Path;

use fairlead_host::double::FakeKernel;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::super::{Look, PoolMetrics, PoolsConfiguration, PoolsContext, VfOwners};
use super::*;
use crate::{Administrator, Inventory};

const VF: &str = "0000:21:10.0";
const PF: &str = "0000:21:00.0";

fn pci(address: &str) -> PciAddr {
    address.parse().unwrap()
}

/// The machine's sysfs: a PF and its VF.
fn sysfs(root: &Path) {
    let devices = root.join("bus/pci/devices");
    for (address, interface) in [(PF, "pf0"), (VF, "vf0")] {
        let dir = devices.join(address);
        fs::create_dir_all(dir.join("net").join(interface)).unwrap();
        for (file, text) in [("class", "0x020000"), ("vendor", "0x8086"), ("device", "0x10ca")] {
            fs::write(dir.join(file), text).unwrap();
        }
    }
    fs::write(devices.join(PF).join("sriov_totalvfs"), "7").unwrap();
    symlink(format!("../{PF}"), devices.join(VF).join("physfn")).unwrap();
    symlink(format!("../{VF}"), devices.join(PF).join("virtfn0")).unwrap();
    symlink("../../../bus/pci/drivers/igbvf", devices.join(VF).join("driver")).unwrap();
}

/// Pools that panic when they read a VF's settings: no moment is so late as they would wait.
fn pools(dir: &Path) -> Arc<Pools> {
    let (sys, state, run) = (dir.join("sys"), dir.join("state"), dir.join("run"));
    sysfs(&sys);
    fs::create_dir(&state).unwrap();
    fs::create_dir(&run).unwrap();
    let kernel = Arc::new(FakeKernel::new());
    kernel.add_vf(kernel.add_host_link("pf0"), VF, "vf0");
    kernel.show_in(&sys);
    let kernel: Arc<dyn fairlead_host::Kernel> = kernel;
    let context = PoolsContext {
        state_dir: &state,
        run_dir: &run,
        boot_id: "this boot",
        admin: Arc::new(Administrator::new(Arc::clone(&kernel), Duration::MAX)),
        kernel,
        inventory: Inventory::new(&sys),
        udev: dir.join("udev"),
        dev: dir.join("dev"),
        metrics: PoolMetrics::new(&mut Registry::default(), || Histogram::new([0.1])),
        random: Box::new(|| 7),
    };
    Arc::new(Pools::open(context).unwrap())
}

#[test]
fn x17_a_vf_whose_preparation_panics_is_tried_once_more_and_then_quarantined() {
    let dir = tempfile::tempdir().unwrap();
    let pools = pools(dir.path());
    let radio = serde_saphyr::from_str("{name: radio, selectors: {vendors: ['8086']}}").unwrap();
    pools.configure(PoolsConfiguration { pools: vec![radio], ..PoolsConfiguration::default() });
    pools.look(Look::First, VfOwners { ours: &|_| None, sriov_cni: &|| Ok(Arc::default()) });
    let stands = || {
        let state = pools.lock();
        let (_, member) = state.member(pci(VF)).unwrap();
        (member.state_name(), member.reason().to_owned())
    };
    assert_eq!(stands(), ("preparing", String::new()));
    pools.work_here();
    let why = "the work on it has met a fault in Fairlead: overflow when adding duration to instant";
    assert_eq!(stands(), ("preparing", why.to_owned()), "it waits for the next try");
    pools.wake(Instant::now() + Duration::from_secs(3600));
    pools.work_here();
    assert_eq!(stands(), ("quarantined", why.to_owned()));
}

#[test]
fn x17_a_worker_that_panics_is_counted_no_more_and_another_one_begins() {
    let dir = tempfile::tempdir().unwrap();
    let pools = pools(dir.path());
    pools.lock().work_queue.push(pci(PF), Work::Member(Task::Prepare(pci(VF))));
    let begun = || from_fn(|| pools.lock().work_queue.begin()).count();
    let all = begun();
    let panics = || {
        let _worker = Worker { pools: &pools, physical: pci(PF), has_ended: false };
        let is_stopped = pools.lock().stopped;
        assert!(is_stopped, "as asked");
    };
    for _ in 0..all {
        catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
    }
    assert_eq!((all > 0, begun()), (true, all));
}

#[test]
fn x17_a_creation_of_vfs_that_panics_is_tried_again_with_the_next_look() {
    let dir = tempfile::tempdir().unwrap();
    let pools = pools(dir.path());
    pools.lock().creating.insert(pci(PF));
    pools.creation_panicked(pci(PF), "a fault".to_owned());
    let state = pools.lock();
    assert!(state.creating.is_empty());
    assert_eq!(state.failed_creations[&pci(PF)].seen, "a fault");
}
