//! A sysfs that is made for a test.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use fairlead_sriov::{Inventory, PciAddr};

/// A sysfs of its own.
pub(crate) struct Machine(tempfile::TempDir);

/// Intel E810-C.
pub(crate) const ICE: Card = Card { vendor: "8086", physical: ("1592", "ice"), vf: ("1889", "iavf") };
/// Intel X710.
pub(crate) const I40E: Card = Card { vendor: "8086", physical: ("1572", "i40e"), vf: ("154c", "iavf") };
/// NVIDIA ConnectX-5.
pub(crate) const MLX5: Card =
    Card { vendor: "15b3", physical: ("1017", "mlx5_core"), vf: ("1018", "mlx5_core") };

/// What kind of card, by its PCI ids, and who drives it.
#[derive(Clone, Copy)]
pub(crate) struct Card {
    pub(crate) vendor: &'static str,
    pub(crate) physical: (&'static str, &'static str),
    pub(crate) vf: (&'static str, &'static str),
}

impl Machine {
    pub(crate) fn new() -> Machine {
        Machine(tempfile::tempdir().unwrap())
    }

    pub(crate) fn inventory(&self) -> Inventory {
        Inventory::new(self.0.path())
    }

    pub(crate) fn dir(&self, address: &str) -> PathBuf {
        self.0.path().join("bus/pci/devices").join(address)
    }

    pub(crate) fn device(&self, address: &str, driver: &str, interfaces: &[&str], node: i32) {
        self.attribute(address, "numa_node", &node.to_string());
        if !driver.is_empty() {
            symlink(format!("../../../../bus/pci/drivers/{driver}"), self.dir(address).join("driver"))
                .unwrap();
        }
        for name in interfaces {
            fs::create_dir_all(self.dir(address).join("net").join(name)).unwrap();
        }
    }

    /// A file in a device's directory; an empty text is an empty directory in its place.
    pub(crate) fn attribute(&self, address: &str, name: &str, text: &str) {
        let path = self.dir(address).join(name);
        if text.is_empty() {
            return fs::create_dir_all(path).unwrap();
        }
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    pub(crate) fn virtual_of(&self, physical: &str, index: u32, address: &str) {
        symlink(format!("../{physical}"), self.dir(address).join("physfn")).unwrap();
        symlink(format!("../{address}"), self.dir(physical).join(format!("virtfn{index}"))).unwrap();
    }

    pub(crate) fn group(&self, address: &str, group: u32) {
        let to = format!("../../../../kernel/iommu_groups/{group}");
        symlink(to, self.dir(address).join("iommu_group")).unwrap();
        let devices = self.0.path().join(format!("kernel/iommu_groups/{group}/devices"));
        fs::create_dir_all(&devices).unwrap();
        symlink(self.dir(address), devices.join(address)).unwrap();
    }

    /// An attribute that is no device's.
    pub(crate) fn of_the_machine(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// A vDPA device; `below` is where among a VF's devices.
    pub(crate) fn vdpa(&self, name: &str, below: &str) {
        let devices = self.0.path().join("bus/vdpa/devices");
        fs::create_dir_all(&devices).unwrap();
        let to = format!("../../../devices/pci0000:00/0000:00:03.0/{below}/{name}");
        symlink(to, devices.join(name)).unwrap();
    }

    /// A network card's PF.
    pub(crate) fn physical(&self, card: Card, address: &str, interface: &str, node: i32) {
        let (device, driver) = card.physical;
        self.device(address, driver, &[], node);
        self.ids(address, card.vendor, device);
        self.attribute(address, "sriov_totalvfs", "64");
        self.interface(address, interface, "1");
        self.attribute(address, &format!("net/{interface}/carrier"), "1");
    }

    /// A VF of one that is there.
    pub(crate) fn vf(&self, card: Card, physical: &str, index: u32, address: &str, node: i32) {
        let (device, driver) = card.vf;
        self.device(address, driver, &[], node);
        self.ids(address, card.vendor, device);
        self.virtual_of(physical, index, address);
    }

    pub(crate) fn interface(&self, address: &str, name: &str, link_type: &str) {
        self.attribute(address, &format!("net/{name}/type"), link_type);
    }

    pub(crate) fn ids(&self, address: &str, vendor: &str, device: &str) {
        self.attribute(address, "class", "0x020000");
        self.attribute(address, "vendor", &format!("0x{vendor}"));
        self.attribute(address, "device", &format!("0x{device}"));
    }
}

pub(crate) fn at(address: &str) -> PciAddr {
    address.parse().unwrap()
}
