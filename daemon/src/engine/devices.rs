//! Which interfaces a bus address or a device path has, and whether a process in user space has the device instead.

use std::fs;
use std::io;
use std::path::Path;

use fairlead_cni::{CniError, Code};

use super::{Engine, errors};
use crate::networks::host_device::USER_SPACE_DRIVERS;
use crate::networks::{DeviceRef, Network};

const BUSES: [&str; 2] = ["bus/pci/devices", "bus/auxiliary/devices"];

impl Engine {
    /// Interfaces of a device.
    pub(super) fn interfaces_of(&self, device: &DeviceRef) -> Result<Vec<String>, CniError> {
        let dirs = match device {
            DeviceRef::Bus(id) => BUSES.iter().map(|bus| self.sysfs.join(bus).join(id)).collect(),
            DeviceRef::Sysfs(path) => vec![self.sysfs.join(path.trim_start_matches("/sys/"))],
            DeviceRef::Name(_) | DeviceRef::Mac(_) => Vec::new(),
        };
        let mut names = Vec::new();
        for dir in dirs {
            names.extend(entries(&dir.join("net"))?);
            // A virtio device hides its interface one directory deeper.
            for child in entries(&dir)?.into_iter().filter(|c| c.starts_with("virtio")) {
                names.extend(entries(&dir.join(child).join("net"))?);
            }
        }
        Ok(names)
    }

    /// Whether the device has no interface because a driver for user space has it.
    pub(super) fn is_in_user_space(&self, network: &Network) -> bool {
        let Some(id) = network.device().and_then(|d| d.bus_id.as_deref()) else { return false };
        let driver = fs::read_link(self.sysfs.join(BUSES[0]).join(id).join("driver")).ok();
        let name = driver.as_deref().and_then(Path::file_name).and_then(|n| n.to_str()).map(str::to_owned);
        name.is_some_and(|name| USER_SPACE_DRIVERS.contains(&name.as_str()))
    }
}

fn entries(dir: &Path) -> Result<Vec<String>, CniError> {
    let read = match fs::read_dir(dir) {
        Ok(read) => read,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(e) => return Err(errors::file(dir.display(), &e, Code::Io, "")),
    };
    Ok(read.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}
