//! The state of VFs in memory: their settings, their drivers, and how the fake tree of sysfs shows those. What the kernel does
//! with them is in `vf_rules`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::vf_resets::Running;
use crate::VFIO_PCI;
use crate::Vf;
use crate::files;
use crate::seam::{AttachedProgram, IommuGroup};

/// What sysfs shows of an RDMA device of a VF: the device, and its nodes in `/dev/infiniband`.
const RDMA: [(&str, &str); 3] =
    [("infiniband", "mlx5_"), ("infiniband_mad", "umad"), ("infiniband_verbs", "uverbs")];

/// All VFs of the machine.
#[derive(Debug, Default)]
pub(super) struct Vfs {
    /// Their settings, by their PF's index.
    pub(super) settings: BTreeMap<u32, Vec<Vf>>,
    /// The VFs as PCI devices, by address.
    pub(super) devices: BTreeMap<String, Device>,
    /// Those whose MAC address is the administrator's: PF's index and VF's number.
    pub(super) fixed: BTreeSet<(u32, u32)>,
    /// IOMMU groups that are not free.
    pub(super) groups: BTreeMap<u32, IommuGroup>,
    sysfs: Option<PathBuf>,
    /// The resets that run now.
    pub(super) resets: Running,
    /// How many RDMA devices there have been.
    rdma_devices: u32,
}

/// A VF as a PCI device.
#[derive(Debug, Clone)]
pub(super) struct Device {
    /// Its PF's index and its number there.
    pub(super) place: (u32, u32),
    pub(super) driver: Option<String>,
    pub(super) fixed: Option<String>,
    pub(super) dead: bool,
    /// Whether its kernel driver makes no interface when it is bound.
    pub(super) without_interface: bool,
    /// What somebody attaches to its interface whenever a driver is bound to it.
    pub(super) attached_when_bound: Option<AttachedProgram>,
    /// The number of the RDMA device that its kernel driver has made last; `None`: it makes none.
    pub(super) rdma: Option<u32>,
}

impl Vfs {
    pub(super) fn drivers(&self) -> BTreeMap<String, (Option<String>, Option<String>)> {
        let drivers = |device: &Device| (device.driver.clone(), device.fixed.clone());
        self.devices.iter().map(|(address, device)| (address.clone(), drivers(device))).collect()
    }

    pub(super) fn set_dead(&mut self, address: &str, dead: bool) {
        if let Some(device) = self.devices.get_mut(address) {
            device.dead = dead;
        }
    }

    /// Takes over the drivers that the tree shows, and shows later changes in it.
    pub(super) fn show_in(&mut self, sysfs: &Path) {
        self.sysfs = Some(sysfs.to_owned());
        for (address, device) in &mut self.devices {
            let shown = last_of_link(&sysfs.join("bus/pci/devices").join(address).join("driver"));
            device.driver = shown.or(device.driver.take());
        }
    }

    /// The PF's index and the VF's number of the device at this PCI address.
    pub(super) fn place(&self, address: &str) -> Option<(u32, u32)> {
        self.devices.get(address).map(|device| device.place)
    }

    /// The PCI address of the VF with this number under this PF.
    pub(super) fn address(&self, place: (u32, u32)) -> Option<&String> {
        self.devices.iter().find(|(_, device)| device.place == place).map(|(address, _)| address)
    }

    pub(super) fn device(&mut self, address: &str) -> Result<&mut Device, Errno> {
        self.devices.get_mut(address).ok_or(Errno::ENODEV)
    }

    pub(super) fn fixed_driver(&self, address: &str) -> Result<Option<String>, Errno> {
        self.devices.get(address).map(|device| device.fixed.clone()).ok_or(Errno::ENODEV)
    }

    fn group_of(&self, address: &str) -> Option<u32> {
        let device = self.sysfs.as_ref()?.join("bus/pci/devices").join(address);
        last_of_link(&device.join("iommu_group"))?.parse().ok()
    }

    /// EBUSY under vfio-pci while a process has the VF's group.
    pub(super) fn check_unused(&self, address: &str) -> Result<(), Errno> {
        let device = self.devices.get(address).ok_or(Errno::ENODEV)?;
        let in_use =
            || self.groups.get(&self.group_of(address)?).filter(|state| **state == IommuGroup::InUse);
        match device.driver.as_deref() == Some(VFIO_PCI) && in_use().is_some() {
            true => Err(Errno::EBUSY),
            false => Ok(()),
        }
    }

    /// A kernel driver makes an RDMA device of a VF, each time under another number.
    pub(super) fn make_rdma(&mut self, address: &str) -> Result<(), Errno> {
        self.rdma_devices += 1;
        let number = self.rdma_devices;
        self.device(address)?.rdma = Some(number);
        self.show(address)
    }

    /// The tree shows that a VF has an interface, or that it has none; what it shows of one is left as it is.
    pub(super) fn show_interface(&self, address: &str, name: Option<&str>) -> Result<(), Errno> {
        let Some(sysfs) = &self.sysfs else { return Ok(()) };
        let device = sysfs.join("bus/pci/devices").join(address);
        let net = device.join("net");
        let shown = match name {
            Some(name) if device.is_dir() && !net.exists() => fs::create_dir_all(net.join(name)),
            Some(_) => Ok(()),
            None => files::gone(fs::remove_dir_all(&net)),
        };
        shown.map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or_default()))
    }

    pub(super) fn show(&self, address: &str) -> Result<(), Errno> {
        let (Some(sysfs), Some(device)) = (&self.sysfs, self.devices.get(address)) else { return Ok(()) };
        let directory = sysfs.join("bus/pci/devices").join(address);
        let link = directory.join("driver");
        let gone = fs::remove_file(&link);
        let fixed = device.fixed.as_deref().unwrap_or("(null)");
        let written = fs::write(directory.join("driver_override"), format!("{fixed}\n"));
        let shown = device
            .driver
            .as_ref()
            .map_or(Ok(()), |driver| symlink(format!("../../../bus/pci/drivers/{driver}"), &link));
        gone.or_else(|e| if e.kind() == ErrorKind::NotFound { Ok(()) } else { Err(e) })
            .and(written)
            .and(shown)
            .and_then(|()| show_rdma(&directory, device))
            .map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or_default()))
    }
}

/// An RDMA device goes with its kernel driver. Of a VF whose driver makes none nothing is touched: a test may have put one there.
fn show_rdma(directory: &Path, device: &Device) -> io::Result<()> {
    let Some(number) = device.rdma else { return Ok(()) };
    let has_one = device.driver.as_deref().is_some_and(|driver| driver != VFIO_PCI);
    for (kind, name) in RDMA {
        let kind = directory.join(kind);
        files::gone(fs::remove_dir_all(&kind))?;
        if has_one {
            fs::create_dir_all(kind.join(format!("{name}{number}")))?;
        }
    }
    Ok(())
}

fn last_of_link(link: &Path) -> Option<String> {
    let to = fs::read_link(link).ok()?;
    Some(to.file_name()?.to_str()?.to_owned())
}
