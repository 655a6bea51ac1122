//! Which netdevs a bus address or a device path has, and whether a process in user space has the device instead.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fairlead_cni::{CniError, Code};
use fairlead_sriov::USER_SPACE_DRIVERS;

use super::config::DeviceRef;
use crate::engine::errors;

const BUSES: [&str; 2] = ["bus/pci/devices", "bus/auxiliary/devices"];

/// The names of a device's netdevs. Where it has several (mlx4's two ports) the first by name is host-device's, as the reference
/// plugin has it.
pub(super) fn netdevs_of(sysfs: &Path, device: &DeviceRef) -> Result<Vec<String>, CniError> {
    let mut names = Vec::new();
    for dir in directories(sysfs, device) {
        names.extend(entries(&dir.join("net"))?);
        // A virtio device hides its netdev one directory deeper.
        for child in virtio_devices(&dir)? {
            names.extend(entries(&dir.join(child).join("net"))?);
        }
    }
    Ok(names)
}

/// What the kernel calls the device of such a netdev (`IFLA_PARENT_DEV_NAME`), wherever the netdev is by now.
pub(super) fn devices_of(sysfs: &Path, device: &DeviceRef) -> Result<Vec<String>, CniError> {
    let mut names = Vec::new();
    for dir in directories(sysfs, device) {
        // A path may lead over symbolic links.
        let own = fs::canonicalize(&dir).unwrap_or_else(|_| dir.clone());
        names.extend(own.file_name().and_then(|name| name.to_str()).map(str::to_owned));
        names.extend(virtio_devices(&dir)?);
    }
    Ok(names)
}

fn directories(sysfs: &Path, device: &DeviceRef) -> Vec<PathBuf> {
    match device {
        DeviceRef::Bus(id) => BUSES.iter().map(|bus| sysfs.join(bus).join(id)).collect(),
        // `kernelpath` is a path of the host; the daemon may have its sysfs elsewhere.
        DeviceRef::Sysfs(path) => vec![sysfs.join(path.trim_start_matches("/sys/"))],
        DeviceRef::Name(_) | DeviceRef::Mac(_) => Vec::new(),
    }
}

fn virtio_devices(dir: &Path) -> Result<impl Iterator<Item = String>, CniError> {
    Ok(entries(dir)?.into_iter().filter(|child| child.starts_with("virtio")))
}

/// Whether a driver for user space has the PCI device at this address.
pub(super) fn is_in_user_space(sysfs: &Path, id: &str) -> bool {
    // The link is missing where no driver has the device.
    let driver = fs::read_link(sysfs.join(BUSES[0]).join(id).join("driver")).ok();
    let name = driver.as_deref().and_then(Path::file_name).and_then(|n| n.to_str()).map(str::to_owned);
    name.is_some_and(|name| USER_SPACE_DRIVERS.contains(&name.as_str()))
}

/// Whether the device is still there, under a driver that gives it a netdev.
pub(super) fn has_a_netdev(sysfs: &Path, bus: &str, device: &str) -> Result<bool, CniError> {
    let dir = sysfs.join("bus").join(bus).join("devices").join(device);
    let driver = match fs::read_link(dir.join("driver")) {
        Ok(driver) => driver,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(false);
        }
        Err(e) => return Err(errors::file(dir.display(), &e, Code::Io, "")),
    };
    let name = driver.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    Ok(!USER_SPACE_DRIVERS.contains(&name))
}

fn entries(dir: &Path) -> Result<Vec<String>, CniError> {
    let read = match fs::read_dir(dir) {
        Ok(read) => read,
        // The device is not on this bus, or its driver has made no netdev.
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(e) => return Err(errors::file(dir.display(), &e, Code::Io, "")),
    };
    let mut names: Vec<String> =
        read.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_netdevs_the_first_by_name_comes_first_in_whatever_order_the_kernel_lists_them() {
        let sysfs = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..8).map(|port| format!("ens1d{port}")).collect();
        // In an order that is neither that of the names nor its reverse, as file systems list by either.
        for name in [3, 0, 7, 1, 6, 2, 5, 4].map(|port: usize| &names[port]) {
            fs::create_dir_all(sysfs.path().join("bus/pci/devices/0000:05:00.0/net").join(name)).unwrap();
        }
        let found = netdevs_of(sysfs.path(), &DeviceRef::Bus("0000:05:00.0".into())).unwrap();
        assert_eq!(found, names);
    }
}
