//! Type `host-device`: moves an interface of the host into the pod.

use super::{Loopback, NetConf};
use crate::error::{CniError, Code};
use crate::names::shown;

/// A configuration of type `host-device`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostDevice {
    /// How the device is found.
    pub device: Device,
    /// The device's id on a bus: `runtimeConfig.deviceID` (PCI or auxiliary), else `pciBusID`. A device with a user-space
    /// driver (vfio-pci, …) has no interface and is not moved, however the configuration names it.
    pub bus_id: Option<String>,
}

/// How the device is found. Where a configuration has several of the keys, the first of these counts, as in the reference
/// plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Device {
    /// By the key `device`, an interface's name.
    Name(String),
    /// By the key `hwaddr`, a MAC address as written.
    HwAddr(String),
    /// By the key `kernelpath`, a path below `/sys/devices/`.
    KernelPath(String),
    /// By [`HostDevice::bus_id`], the PCI address or the name on the auxiliary bus.
    BusId(String),
}

impl HostDevice {
    /// Reads the type's fields. Code 6 for a wrong type, 7 for a wrong or missing value.
    pub fn parse(conf: &NetConf) -> Result<HostDevice, CniError> {
        let read = HostDevice::read(conf)?.ok_or_else(|| {
            CniError::new(Code::InvalidConfig, "host-device names no device")
                .with("specify one of \"device\", \"hwaddr\", \"kernelpath\" and \"pciBusID\", or have the runtime pass deviceID")
        })?;
        // A device with a user-space driver is not moved, whatever "device" says.
        if read.bus_id.is_none() && matches!(&read.device, Device::Name(name) if name == Loopback::IFNAME) {
            let msg = "\"device\" is \"lo\", and the loopback interface cannot be lent to a pod";
            return Err(CniError::new(Code::InvalidConfig, msg)
                .with("name another device: a pod has a \"lo\" of its own"));
        }
        Ok(read)
    }

    /// The same; `None` where nobody names a device yet, as long as the runtime has not passed the one that it gives the pod.
    pub fn read(conf: &NetConf) -> Result<Option<HostDevice>, CniError> {
        let fields = conf.fields()?;
        let (name, hwaddr) = (fields.text("device")?, fields.text("hwaddr")?);
        let (kernel_path, pci) = (fields.text("kernelpath")?, fields.text("pciBusID")?);
        let bus_id = conf.runtime.device_id.clone().or(pci);
        if let Some(id) = bus_id.as_deref().filter(|id| id.contains('/') || id.starts_with('.')) {
            return Err(fields.invalid(
                "pciBusID",
                &shown(id),
                "a PCI address such as 0000:21:00.1, or a device id",
            ));
        }
        let device = if let Some(name) = name {
            Device::Name(name)
        } else if let Some(mac) = hwaddr {
            Device::HwAddr(mac)
        } else if let Some(path) = kernel_path {
            // With `..` it could lead anywhere.
            if !path.starts_with("/sys/devices/") || path.split('/').any(|part| part == "..") {
                return Err(fields.invalid(
                    "kernelpath",
                    &shown(&path),
                    "a path that begins with /sys/devices/, without \"..\"",
                ));
            }
            Device::KernelPath(path)
        } else if let Some(id) = &bus_id {
            Device::BusId(id.clone())
        } else {
            return Ok(None);
        };
        Ok(Some(HostDevice { device, bus_id }))
    }
}
