//! Device information (Network Plumbing Working Group, device-info 1.1.0): a file that tells the pod's other parts, through the
//! meta plugin that named it, which device the network is.
//!
//! Its path is on record before it is written, and it goes with the attachment. What the device plugin told of the same device,
//! which the meta plugin has copied there, stays where we know nothing better (`vhost-net`); anything else is replaced.
//!
//! How the device lies to the pod's NUMA node has no key in that specification. It is told under a key of our own name beside the
//! specified ones, so that no later version of it means something else by it: the specification names keys that must be there and
//! forbids none, and those who read the files pass over what they do not know (Multus) or keep it (accelerated-bridge-cni).

use std::path::Path;

use fairlead_cni::{CniError, Code};
use fairlead_sriov::numa::Locality;
use serde::Serialize;
use serde_json::{Map, Value};

use super::reserve::unusable;
use super::services::SriovServices;
use crate::engine::errors;
use crate::store::{Attachment, VfRecord};

const VERSION: &str = "1.1.0";
/// Everybody may read it, as the device plugin's.
const MODE: u32 = 0o444;
/// A longer file is no device information.
const LIMIT: u64 = 64 << 10;

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
        let pci = self.pci(vf, self.of_same_device(Path::new(path), vf))?;
        let info = DeviceInfo { kind: "pci", version: VERSION, pci, fairlead };
        let text = serde_json::to_vec(&info)
            .map_err(|e| CniError::new(Code::Internal, format!("device information: {e}")))?;
        self.root.replace(Path::new(path), &text, MODE).map_err(|e| {
            let what = format!("the device information {path} cannot be written");
            errors::file(what, &e, Code::Io, "make its directory writable for the daemon")
        })
    }

    /// Removes the file; one that is gone is success.
    pub(crate) fn withdraw_device_info(&self, attachment: &Attachment) -> Result<(), CniError> {
        let Some(path) = &attachment.device_info else { return Ok(()) };
        self.root.remove(Path::new(path)).map_err(|e| {
            let what = format!("the device information {path} cannot be removed");
            errors::file(what, &e, Code::Io, "make its directory writable for the daemon")
        })
    }

    /// What the file says already, if it is about the same device.
    fn of_same_device(&self, path: &Path, vf: &VfRecord) -> Map<String, Value> {
        // Whatever is wrong with this file, it is replaced: it could only add what a device plugin told.
        let text = self.root.read(path, LIMIT).ok();
        let there = text.and_then(|text| serde_json::from_str::<Value>(&text).ok());
        let pci = there.and_then(|there| there.get("pci")?.as_object().cloned());
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
