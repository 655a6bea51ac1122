//! Device information (Network Plumbing Working Group, device-info 1.1.0): a file that tells the pod's other parts, through the
//! meta plugin that named it, which device the network is.
//!
//! Its path is on record before it is written, and it goes with the attachment. What stood there is replaced: the meta plugin
//! has copied what the device plugin knew of the same device.
//!
//! How the device lies to the pod's NUMA node has no key in that specification. It is told under a key of our own name beside the
//! specified ones, so that no later version of it means something else by it: the specification names keys that must be there and
//! forbids none, and those who read the files pass over what they do not know (Multus) or keep it (accelerated-bridge-cni).

use std::path::Path;

use fairlead_cni::{CniError, Code};
use fairlead_sriov::numa::Locality;
use serde::Serialize;

use super::{Engine, errors, functions};
use crate::store::{Attachment, LentVf};

const VERSION: &str = "1.1.0";
/// Everybody may read it, as the device plugin's.
const MODE: u32 = 0o444;

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
}

impl Engine {
    /// Writes the file, where the attachment has one.
    pub(super) fn tell_of_device(&self, attachment: &Attachment) -> Result<(), CniError> {
        let Some((path, vf)) = attachment.device_info.as_deref().zip(attachment.function()) else {
            return Ok(());
        };
        let fairlead = attachment.near.as_ref().map(|numa| Own { numa });
        let info = DeviceInfo { kind: "pci", version: VERSION, pci: self.pci(vf)?, fairlead };
        let text = serde_json::to_vec(&info)
            .map_err(|e| CniError::new(Code::Internal, format!("device information: {e}")))?;
        self.root.replace(Path::new(path), &text, MODE).map_err(|e| {
            let what = format!("the device information {path} cannot be written");
            errors::file(what, &e, Code::Io, "make its directory writable for the daemon")
        })
    }

    /// Removes it.
    pub(super) fn withdraw_device_info(&self, attachment: &Attachment) -> Result<(), CniError> {
        let Some(path) = &attachment.device_info else { return Ok(()) };
        self.root.remove(Path::new(path)).map_err(|e| {
            let what = format!("the device information {path} cannot be removed");
            errors::file(what, &e, Code::Io, "make its directory writable for the daemon")
        })
    }

    fn pci(&self, vf: &LentVf) -> Result<Pci, CniError> {
        let unread = |e| functions::unusable(&e);
        Ok(Pci {
            pci_address: vf.address.to_string(),
            pf_pci_address: vf.physical.to_string(),
            rdma_device: self.inventory.rdma(vf.address).map_err(unread)?.devices.into_iter().next(),
            representor_device: self.inventory.representor(vf.physical, vf.index).map_err(unread)?,
        })
    }
}
