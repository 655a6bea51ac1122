//! VFs that are more than an interface, or another one than Ethernet's, and cannot be given to pods yet: a vDPA device is made of them,
//! their RDMA device, which their pod is to have, would not go with their interface, or they speak InfiniBand.

use super::pf_interfaces::link_type;
use super::sysfs::{last, names, target, text};
use super::{Inventory, InventoryError, LinkType};
use crate::{PciAddr, VfDevice};

/// Why a VF is not given to pods.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unserved {
    /// Its RDMA device would stay in the host's namespace while its interface goes to the pod's. That is in the way only of a pool that
    /// gives pods the RDMA devices too.
    #[error(
        "VF {vf} has RDMA device {device}, and RDMA devices are exclusive to one network namespace on this machine: to give a pod both (isRdma) is not served yet"
    )]
    ExclusiveRdma {
        /// The VF's PCI address.
        vf: PciAddr,
        /// Its RDMA device.
        device: String,
    },
    /// A vDPA device is made of it.
    #[error("VF {vf} is vDPA device {device}, which is not served yet")]
    Vdpa {
        /// The VF's PCI address.
        vf: PciAddr,
        /// The vDPA device.
        device: String,
    },
}

impl Inventory {
    /// What keeps a VF from every pod, or from those that are to have its RDMA device; mostly two looks at directories that are not there.
    pub fn unserved(&self, vf: PciAddr) -> Result<Option<Unserved>, InventoryError> {
        if let Some(device) = self.device_on("vdpa", vf)? {
            return Ok(Some(Unserved::Vdpa { vf, device }));
        }
        let device = names(&self.dir(vf).join("infiniband"))?.into_iter().next();
        match device {
            Some(device) if self.rdma_is_exclusive()? => Ok(Some(Unserved::ExclusiveRdma { vf, device })),
            _ => Ok(None),
        }
    }

    /// Whether a VF speaks InfiniBand: by its interface, and by those of its PF where it has none here.
    pub fn speaks_infiniband(&self, vf: &VfDevice) -> Result<bool, InventoryError> {
        let (of, interfaces) = match vf.interfaces.is_empty() {
            true => (vf.physical.address, &vf.physical.interfaces),
            false => (vf.address, &vf.interfaces),
        };
        let net = self.dir(of).join("net");
        for name in interfaces {
            if link_type(&net.join(name))? == Some(LinkType::Infiniband) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether an RDMA device is in one network namespace only. The parameter is the kernel's own variable: it says what
    /// `rdma system set netns` has made of it since (`RDMA_NLDEV_SYS_ATTR_NETNS_MODE` is read from the same one; seen on 6.12).
    /// Kernels before 5.3 know no such thing.
    fn rdma_is_exclusive(&self) -> Result<bool, InventoryError> {
        Ok(text(&self.sysfs.join("module/ib_core/parameters/netns_mode"))?.as_deref() == Some("N"))
    }

    /// Whether the driver of a VF has made auxiliary devices of it. Other drivers have those, and make interfaces, RDMA or vDPA devices.
    pub(crate) fn has_auxiliary_devices(&self, vf: PciAddr) -> Result<bool, InventoryError> {
        Ok(self.device_on("auxiliary", vf)?.is_some())
    }

    /// The first device of a bus that is made of a VF, itself or by way of other devices, as a vDPA device by way of an auxiliary one.
    fn device_on(&self, bus: &str, vf: PciAddr) -> Result<Option<String>, InventoryError> {
        let devices = self.sysfs.join("bus").join(bus).join("devices");
        let of = vf.to_string();
        for name in names(&devices)? {
            let leads_to = target(&devices.join(&name))?;
            if leads_to.is_some_and(|to| to.ancestors().any(|dir| last(dir).as_ref() == Some(&of))) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }
}
