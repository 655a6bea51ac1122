//! What device information says of a VF.
//!
//! What the device plugin told of the same device, with which the file was begun by us or by the meta plugin, stays where we know nothing
//! better (`vhost-net`); anything else is replaced.
//!
//! How the device lies to the pod's NUMA node has no key in that specification. It is told under a key of our own name beside the
//! specified ones, so that no later version of it means something else by it: the specification names keys that must be there and
//! forbids none, and those who read the files pass over what they do not know (Multus) or keep it (accelerated-bridge-cni).

use fairlead_cni::CniError;
use fairlead_sriov::numa::Locality;
use serde::Serialize;
use serde_json::{Map, Value};

use super::reserve::unusable;
use super::services::SriovServices;
use crate::engine::kinds::device_info::VERSION;
use crate::store::{Attachment, VfRecord};

#[derive(Serialize)]
struct DeviceInfo<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    version: &'a str,
    pci: Pci,
    #[serde(skip_serializing_if = "Option::is_none")]
    fairlead: Option<Own<'a>>,
}

/// What the specification has no key for.
#[derive(Serialize)]
struct Own<'a> {
    numa: &'a Locality,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Pci {
    pci_address: String,
    pf_pci_address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    rdma_device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    representor_device: Option<String>,
    /// What the device plugin told besides.
    #[serde(flatten)]
    told: Map<String, Value>,
}

impl SriovServices {
    /// Writes the file, where the attachment has one. Its path is on record.
    pub(crate) fn write_device_info(&self, attachment: &Attachment) -> Result<(), CniError> {
        let Some((path, vf)) = attachment.device_info.as_deref().zip(attachment.vf()) else {
            return Ok(());
        };
        let fairlead = attachment.locality.as_ref().map(|numa| Own { numa });
        let pci = self.pci(vf, self.of_same_device(path, vf))?;
        self.device_info.write(attachment, &DeviceInfo { kind: "pci", version: VERSION, pci, fairlead })
    }

    /// What the file says already, if it is about the same device.
    fn of_same_device(&self, path: &str, vf: &VfRecord) -> Map<String, Value> {
        // Whatever is wrong with this file, it is replaced: it could only add what a device plugin told.
        let pci = self.device_info.read(path).and_then(|there| there.get("pci")?.as_object().cloned());
        let same = |pci: &Map<String, Value>| {
            pci.get("pci-address").and_then(Value::as_str) == Some(vf.address.to_string().as_str())
        };
        pci.filter(same).unwrap_or_default()
    }

    fn pci(&self, vf: &VfRecord, mut told: Map<String, Value>) -> Result<Pci, CniError> {
        let unread = |e| unusable(&e);
        let rdma = self.inventory.rdma(vf.address).map_err(unread)?.devices;
        let devlink = || {
            // A VF of a pool goes by the last scan: devlink may take seconds to answer.
            let known = self.pools.devlink_of(vf.address);
            known.unwrap_or_else(|| self.kernel.devlink_or_none())
        };
        // `told` is flattened into the same object: these keys would stand there twice.
        for ours in ["pci-address", "pf-pci-address", "rdma-device", "representor-device"] {
            told.remove(ours);
        }
        Ok(Pci {
            pci_address: vf.address.to_string(),
            pf_pci_address: vf.pf.to_string(),
            rdma_device: (!rdma.is_empty()).then(|| rdma.join(",")),
            representor_device: self.inventory.representor(vf.pf, vf.index, devlink).map_err(unread)?,
            told,
        })
    }
}
