//! What befalls the machine under a rig: its sysfs, interfaces that somebody renames or uses, VFs that go and come back, records
//! as another boot left them.

use std::os::unix::fs::symlink;

use fairlead_host::{Address, AddressFlags, Op, SetLink};
use serde_json::Map;

use super::*;

impl Rig {
    /// Has an interface of the host up or down.
    pub(super) fn set_up(&self, name: &str, up: bool) {
        let index = self.index_of(name);
        self.in_host(Op::SetLink(SetLink { index, up: Some(up), ..SetLink::default() }));
    }

    /// Has an interface of the host another name.
    pub(super) fn rename(&self, from: &str, to: &str) {
        let index = self.index_of(from);
        self.in_host(Op::SetLink(SetLink { index, name: Some(to.to_owned()), ..SetLink::default() }));
    }

    /// Somebody uses an interface of the host: with this address, until it is taken away.
    pub(super) fn use_it(&self, name: &str) -> Address {
        let net = "192.0.2.7/24".parse().unwrap();
        let flags = AddressFlags::default();
        let address = Address { index: self.index_of(name), net, broadcast: None, flags };
        self.in_host(Op::AddAddress(address.clone()));
        address
    }

    pub(super) fn in_host(&self, op: Op) {
        self.kernel.host().unwrap().batch(&[op]).unwrap();
    }

    fn index_of(&self, name: &str) -> u32 {
        self.kernel.host().unwrap().link_by_name(name).unwrap().unwrap().index
    }

    /// The VF whose interface has this name.
    pub(super) fn named(&self, name: &str) -> Option<String> {
        self.kernel.host().unwrap().link_by_name(name).unwrap().unwrap().device
    }

    /// Takes a VF out of the machine, as far as sysfs tells.
    pub(super) fn unplug(&self, address: &str) {
        fs::remove_file(self.virtfn(number(address))).unwrap();
        fs::rename(self.device(address), self.dir.path().join(address)).unwrap();
    }

    /// It is there again, or one like it.
    pub(super) fn plug_in_again(&self, address: &str) {
        fs::rename(self.dir.path().join(address), self.device(address)).unwrap();
        symlink(format!("../{address}"), self.virtfn(number(address))).unwrap();
    }

    /// Its driver has not made the RDMA device of a VF yet, or makes it no more.
    pub(super) fn take_rdma(&self, address: &str) {
        for kind in ["infiniband", "infiniband_mad", "infiniband_verbs"] {
            fs::remove_dir_all(self.device(address).join(kind)).unwrap();
        }
    }

    /// The driver of a VF makes an auxiliary device of it.
    pub(super) fn add_auxiliary(&self, address: &str, name: &str) {
        let devices = self.sys().join("bus/auxiliary/devices");
        fs::create_dir_all(&devices).unwrap();
        symlink(format!("../../../devices/pci0000:20/{address}/{name}"), devices.join(name)).unwrap();
    }

    /// The module that makes RDMA devices of a VF for its driver is away.
    pub(super) fn unload_rdma(&self, address: &str) {
        self.kernel.stop_rdma(address).unwrap();
        self.take_rdma(address);
    }

    /// What the interface of a device speaks, by the kernel's number for that.
    pub(super) fn speaks(&self, address: &str, interface: &str, link_type: &str) {
        fs::write(self.device(address).join("net").join(interface).join("type"), link_type).unwrap();
    }

    /// The PF tells of no virtual one.
    pub(super) fn without_vfs(&self) {
        for number in 0..2 {
            fs::remove_file(self.virtfn(number)).unwrap();
        }
    }

    pub(super) fn device(&self, address: &str) -> PathBuf {
        self.dir.path().join("sys/bus/pci/devices").join(address)
    }

    fn virtfn(&self, number: usize) -> PathBuf {
        self.device(PHYSICAL).join(format!("virtfn{number}"))
    }

    /// What is on record of the pools' members.
    pub(super) fn records(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.dir.path().join("state/pools")).unwrap();
        files.map(|file| file.unwrap().path()).collect()
    }

    pub(super) fn rewrite_records(&self, change: impl Fn(&mut Map<String, Value>)) {
        for path in self.records() {
            let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            change(record.as_object_mut().unwrap());
            fs::write(&path, record.to_string()).unwrap();
        }
    }
}

fn number(address: &str) -> usize {
    [VF, SECOND].iter().position(|of_pf| *of_pf == address).unwrap()
}

/// The machine's sysfs: two PFs, each with a virtual one. No pool can have the second.
pub(super) fn sysfs(root: &Path) {
    plug(root, ("0000:21:00.0", PF), 0, (VF, "vf0"));
    drive_by(root, VF, "igbvf");
    plug(root, (VFIO_PF, VFIO_LINK), 0, (VFIO, "vf1-of-vfio"));
    drive_by(root, VFIO, "vfio-pci");
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

pub(super) fn drive_by(root: &Path, vf: &str, driver: &str) {
    let link = root.join("bus/pci/devices").join(vf).join("driver");
    let _ = fs::remove_file(&link);
    symlink(format!("../../../bus/pci/drivers/{driver}"), link).unwrap();
}
