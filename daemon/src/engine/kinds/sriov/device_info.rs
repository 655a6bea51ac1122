//! Device information (Network Plumbing Working Group, device-info 1.1.0): a file that tells the pod's other parts, through the
//! meta plugin that named it, which device the network is.
//!
//! Who writes the configuration may name the file, and it is never anything but device information: it has its place in the
//! directory that the specification gives network plugins, and what is there already is a file of root's and no other attachment's.
//!
//! Its path is on record before it is written, and it goes with the attachment. What the device plugin told of the same device,
//! which the meta plugin has copied there, stays where we know nothing better (`vhost-net`); anything else is replaced.
//!
//! How the device lies to the pod's NUMA node has no key in that specification. It is told under a key of our own name beside the
//! specified ones, so that no later version of it means something else by it: the specification names keys that must be there and
//! forbids none, and those who read the files pass over what they do not know (Multus) or keep it (accelerated-bridge-cni).

use std::path::Path;

use fairlead_cni::names::shown;
use fairlead_cni::{CniError, Code};
use fairlead_host::trusted_file::is_untrusted;
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

/// The directory of network plugins' files, by both of its names. The one of device plugins beside it (`dp`) is theirs.
const DIRECTORIES: [&str; 2] = ["/var/run/k8s.cni.cncf.io/devinfo/cni/", "/run/k8s.cni.cncf.io/devinfo/cni/"];

/// The configuration's key for the file.
const KEY: &str = "runtimeConfig.CNIDeviceInfoFile";

/// The name of a file in the directory of device information; `None` for any other path.
fn name_in_directory(path: &str) -> Option<&str> {
    let name = DIRECTORIES.iter().find_map(|directory| path.strip_prefix(directory))?;
    let is_name = !matches!(name, "" | "." | "..") && !name.contains(|c: char| c == '/' || c.is_control());
    is_name.then_some(name)
}

/// The path that a configuration gives, where device information may be written there. Code 7 otherwise.
pub(super) fn validate(path: &str) -> Result<String, CniError> {
    if name_in_directory(path).is_some() {
        return Ok(path.to_owned());
    }
    let msg = format!("{KEY}: {} is no file in {}", shown(path), DIRECTORIES[0]);
    Err(CniError::new(Code::InvalidConfig, msg).with("it is the meta plugin that gives it"))
}

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
        let info = DeviceInfo { kind: "pci", version: VERSION, pci, fairlead };
        let text = serde_json::to_vec(&info)
            .map_err(|e| CniError::new(Code::Internal, format!("device information: {e}")))?;
        if self.is_also_anothers(attachment, path) {
            let msg = format!("{KEY}: {path} is another attachment's");
            return Err(
                CniError::new(Code::InvalidConfig, msg).with("each interface needs a file of its own")
            );
        }
        self.root.replace(Path::new(path), &text, MODE).map_err(|e| match is_untrusted(&e) {
            true => CniError::new(Code::InvalidConfig, format!("{KEY}: {path} can't be written: {e}"))
                .with("remove it; it is nothing that a device plugin or the meta plugin has made"),
            false => {
                let what = format!("the device information {path} cannot be written");
                errors::file(what, &e, Code::Io, "make its directory writable for the daemon")
            }
        })
    }

    /// Removes the file; one that is gone is success. What is no device information stays, and is told: the removal of all else
    /// must not wait for it.
    pub(crate) fn withdraw_device_info(&self, attachment: &Attachment) -> Result<(), CniError> {
        let Some(path) = &attachment.device_info else { return Ok(()) };
        // Earlier releases wrote wherever the configuration said.
        if name_in_directory(path).is_none() {
            tracing::warn!(container = %attachment.key.container, path, "the device information of this attachment is outside its directory and stays; look at it, and remove it");
            return Ok(());
        }
        if self.is_also_anothers(attachment, path) {
            return Ok(());
        }
        match self.root.remove_trusted(Path::new(path)) {
            Err(error) if is_untrusted(&error) => {
                tracing::warn!(container = %attachment.key.container, path, %error, "what is there instead of device information stays");
                Ok(())
            }
            done => done.map_err(|e| {
                let what = format!("the device information {path} cannot be removed");
                errors::file(what, &e, Code::Io, "make its directory writable for the daemon")
            }),
        }
    }

    /// What a file of device information says, whoever wrote it; `None` for one that cannot be read or lies elsewhere.
    pub(crate) fn device_info(&self, path: &str) -> Option<Value> {
        name_in_directory(path)?;
        let text = self.root.read_trusted(Path::new(path), LIMIT).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Whether another attachment has this file on record.
    fn is_also_anothers(&self, attachment: &Attachment, path: &str) -> bool {
        let name = name_in_directory(path);
        let has = |other: &Attachment| other.device_info.as_deref().and_then(name_in_directory) == name;
        self.store.all().iter().any(|other| other.id != attachment.id && has(other))
    }

    /// What the file says already, if it is about the same device.
    fn of_same_device(&self, path: &str, vf: &VfRecord) -> Map<String, Value> {
        // Whatever is wrong with this file, it is replaced: it could only add what a device plugin told.
        let pci = self.device_info(path).and_then(|there| there.get("pci")?.as_object().cloned());
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
