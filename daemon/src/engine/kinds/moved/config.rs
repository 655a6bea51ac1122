//! What a configuration of type `host-device` asks for.

use fairlead_cni::config::host_device::Device;
use fairlead_cni::config::{self, NetConf};
use fairlead_cni::names::shown;
use fairlead_cni::{CniError, Code};
use fairlead_host::Mac;
use fairlead_sriov::PciAddr;

/// The types of configurations that are served here.
pub(crate) const TYPES: [&str; 1] = ["host-device"];

/// A validated configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostDevice {
    /// The device that is to be moved.
    pub(crate) device: DeviceRef,
    /// Its bus address, where one is given: by it the driver is looked up.
    pub(crate) bus_id: Option<String>,
}

/// How a device of the host is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DeviceRef {
    /// By interface name.
    Name(String),
    /// By MAC address.
    Mac(Mac),
    /// By a device directory under /sys (`kernelpath`), with a `net/` directory in it.
    Sysfs(String),
    /// By PCI or auxiliary bus address.
    Bus(String),
}

impl HostDevice {
    /// Reads the configuration: `runtimeConfig.deviceID` goes before the config's own four ways to name a device.
    pub(crate) fn validate(conf: &NetConf) -> Result<HostDevice, CniError> {
        let read = config::HostDevice::parse(conf)?;
        read.bus_id.as_deref().map_or(Ok(()), must_be_bus_id)?;
        let device = match read.device {
            Device::Name(name) => DeviceRef::Name(name),
            Device::HwAddr(mac) => DeviceRef::Mac(
                mac.parse().map_err(|e| CniError::new(Code::InvalidConfig, format!("hwaddr: {e}")))?,
            ),
            Device::KernelPath(path) => DeviceRef::Sysfs(path),
            Device::BusId(id) => DeviceRef::Bus(id),
        };
        Ok(HostDevice { device, bus_id: read.bus_id })
    }

    /// The PCI address that the device is named by.
    pub(super) fn pci_address(&self) -> Option<PciAddr> {
        let DeviceRef::Bus(id) = &self.device else { return None };
        id.parse().ok()
    }

    /// For a sentence: the device, as configured.
    pub(crate) fn of_device(&self) -> String {
        match &self.device {
            DeviceRef::Name(text) | DeviceRef::Sysfs(text) | DeviceRef::Bus(text) => {
                format!(" of device {text:?}")
            }
            DeviceRef::Mac(mac) => format!(" of device {mac}"),
        }
    }
}

/// Refuses what is neither a PCI address nor has the form of a name on the auxiliary bus, as `mlx5_core.sf.4`: no device could have it.
fn must_be_bus_id(id: &str) -> Result<(), CniError> {
    let is_auxiliary = || {
        let parts: Vec<&str> = id.split('.').collect();
        let numbered = parts.last().is_some_and(|last| last.parse::<u32>().is_ok());
        parts.len() >= 3 && numbered && !id.contains(':')
    };
    if id.parse::<PciAddr>().is_ok() || is_auxiliary() {
        return Ok(());
    }
    let msg = format!("the device id {} is no address of a bus", shown(id));
    let remedy = "give \"pciBusID\" a PCI address such as 0000:21:00.1, or a name on the auxiliary bus such as mlx5_core.sf.4";
    Err(CniError::new(Code::InvalidConfig, msg).with(remedy))
}

impl DeviceRef {
    /// For a sentence: the key of the configuration, and its value.
    pub(super) fn described(&self) -> String {
        match self {
            DeviceRef::Name(name) => format!("device {name:?}"),
            DeviceRef::Mac(mac) => format!("hwaddr {mac}"),
            DeviceRef::Sysfs(path) => format!("kernelpath {path:?}"),
            DeviceRef::Bus(id) => format!("device id {id:?}"),
        }
    }
}
