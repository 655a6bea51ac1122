//! `host-device`: a link of the host, lent to the pod and given back as it was.

use fairlead_cni::config::host_device::Device;
use fairlead_cni::config::{self, NetConf};
use fairlead_cni::{CniError, Code};
use fairlead_host::Link;

use super::{DeviceRef, Facts, LinkPlan};
use crate::store::Lent;

pub use fairlead_sriov::USER_SPACE_DRIVERS;

/// A validated configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostDevice {
    /// Which device.
    pub device: DeviceRef,
    /// Its bus address, where one is given: by it the driver is looked up.
    pub bus_id: Option<String>,
}

impl HostDevice {
    /// Reads the configuration: `runtimeConfig.deviceID` goes before the config's own four ways to name a device.
    pub fn validate(conf: &NetConf) -> Result<HostDevice, CniError> {
        let read = config::HostDevice::parse(conf)?;
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

    /// Moves and renames it; what it was is on record before.
    pub fn plan(&self, facts: &Facts<'_>) -> Result<LinkPlan, CniError> {
        let link =
            facts.parent.ok_or_else(|| CniError::new(Code::InvalidConfig, "the host has no such device"))?;
        if link.loopback {
            return Err(CniError::new(Code::InvalidConfig, "the loopback interface cannot be lent to a pod"));
        }
        Ok(LinkPlan::Lend(Lent::of(link)))
    }

    /// Whether the link in the pod is the device that was lent: it carries its host name as alias.
    pub fn check(&self, link: &Link) -> Result<(), String> {
        match &self.device {
            DeviceRef::Name(name) if link.alias.as_deref() != Some(name) => {
                Err(format!("{:?} is not the host's {name:?}: its alias is {:?}", link.name, link.alias))
            }
            _ => Ok(()),
        }
    }
}
