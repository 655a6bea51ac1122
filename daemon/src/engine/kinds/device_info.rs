//! Device information (Network Plumbing Working Group, device-info 1.1.0): a file that tells the pod's other parts, through the
//! meta plugin that named it, which device the network is.
//!
//! Who writes the configuration may name the file, and it is never anything but device information: it has its place in the
//! directory that the specification gives network plugins, and what is there already is a file of root's and no other attachment's.
//! Its path is on record before it is written, and it goes with the attachment. What stands in it, the kinds say, or the device plugin
//! that serves the device, or a plugin that is executed.

use std::io;
use std::path::Path;
use std::sync::Arc;

use fairlead_cni::names::shown;
use fairlead_cni::{CniError, Code};
use fairlead_host::HostRoot;
use fairlead_host::trusted_file::is_untrusted;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::engine::errors;
use crate::store::{Attachment, Store};

/// The version of the specification by which files are written.
pub(super) const VERSION: &str = "1.1.0";
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

/// The files of device information, by their rules.
pub(crate) struct DeviceInfoFiles {
    root: Arc<HostRoot>,
    store: Arc<Store>,
}

impl DeviceInfoFiles {
    /// Files below the host's root. What an attachment has is in the store.
    pub(crate) fn new(root: Arc<HostRoot>, store: Arc<Store>) -> DeviceInfoFiles {
        DeviceInfoFiles { root, store }
    }

    /// Writes the file, where the attachment has one. Its path is on record.
    pub(super) fn write(&self, attachment: &Attachment, info: &impl Serialize) -> Result<(), CniError> {
        let Some(path) = attachment.device_info.as_deref() else { return Ok(()) };
        let text = serde_json::to_vec(info)
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

    /// Begins the file with what a device plugin says of the device in the file `told`, as Multus does before it calls a plugin: the
    /// plugin may add to it, and need not write anything. No ADD fails for it.
    pub(crate) fn begin(&self, attachment: &Attachment, told: &str) {
        let text = match self.root.read_trusted(Path::new(told), LIMIT) {
            Ok(text) => text,
            // Not every device plugin writes one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                tracing::warn!(container = %attachment.key.container, told, %error, "what a device plugin says of a device is not read");
                return;
            }
        };
        let begun = serde_json::from_str::<Map<String, Value>>(&text)
            .map_err(|error| CniError::new(Code::Decode, error.to_string()))
            .and_then(|info| self.write(attachment, &info));
        if let Err(error) = begun {
            tracing::warn!(container = %attachment.key.container, told, %error, "what a device plugin says of a device is not passed on");
        }
    }

    /// Removes the file of an attachment.
    pub(crate) fn withdraw(&self, attachment: &Attachment) -> Result<(), CniError> {
        match &attachment.device_info {
            Some(path) if !self.is_also_anothers(attachment, path) => {
                self.remove(path, &attachment.key.container)
            }
            _ => Ok(()),
        }
    }

    /// Removes the file that a container has; one that is gone is success. What is no device information stays, and is told: the removal
    /// of all else must not wait for it.
    pub(crate) fn remove(&self, path: &str, container: &str) -> Result<(), CniError> {
        // Earlier releases wrote wherever the configuration said.
        if name_in_directory(path).is_none() {
            tracing::warn!(
                container,
                path,
                "the device information of an attachment is outside its directory and stays; look at it, and remove it"
            );
            return Ok(());
        }
        match self.root.remove_trusted(Path::new(path)) {
            Err(error) if is_untrusted(&error) => {
                tracing::warn!(container, path, %error, "what is there instead of device information stays");
                Ok(())
            }
            done => done.map_err(|e| {
                let what = format!("the device information {path} cannot be removed");
                errors::file(what, &e, Code::Io, "make its directory writable for the daemon")
            }),
        }
    }

    /// What a file of device information says, whoever wrote it; `None` for one that cannot be read or lies elsewhere.
    pub(crate) fn read(&self, path: &str) -> Option<Value> {
        name_in_directory(path)?;
        let text = self.root.read_trusted(Path::new(path), LIMIT).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Whether another attachment has this file on record. A list and its plugins have the same one.
    fn is_also_anothers(&self, attachment: &Attachment, path: &str) -> bool {
        let Some(name) = name_in_directory(path) else { return false };
        let has = |other: &Attachment| other.device_info.as_deref().and_then(name_in_directory) == Some(name);
        let is_another = |other: &Attachment| {
            other.id != attachment.id && !other.has_plugin(attachment) && !attachment.has_plugin(other)
        };
        self.store.all().iter().any(|other| is_another(other) && has(other))
    }
}
