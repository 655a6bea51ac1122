//! What userspace-cni tells the pod of its interface: its own "configuration data", in annotations of the pod or in a file beside the
//! socket. Applications read from it whose container and which interface it is, by which the socket is called.

use std::path::Path;

use fairlead_cni::version::CniVersion;
use fairlead_cni::{CniError, CniResult};
use fairlead_host::volume_file;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::services::VhostUserServices;
use super::shared_dir::container_begin;
use super::socket_dir::{is_gone, unusable};
use crate::store::{Attachment, VhostUserRecord};

/// The annotation with the configuration data of all of a pod's interfaces.
const DATA: &str = "userspace/configuration-data";
/// The annotation with the directory of the sockets as the pod sees it.
const MAPPED_DIR: &str = "userspace/mapped-dir";
/// That directory where the pod's mounts are not known, as userspace-cni has it.
const USUAL_DIR: &str = "/var/lib/cni/usrspcni";

/// Of one interface. Its keys, and their order, are userspace-cni's: scripts take them apart by both.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ConfigurationData<'a> {
    container_id: &'a str,
    if_name: &'a str,
    name: &'a str,
    config: Value,
    ip_result: Box<RawValue>,
}

fn data(attachment: &Attachment, record: &VhostUserRecord, result: &CniResult) -> Option<Box<RawValue>> {
    let mut config = record.configuration_data.as_ref()?.config.clone();
    config["vhost"]["socketfile"] = record.socket.as_str().into();
    let key = &attachment.key;
    let data = ConfigurationData {
        container_id: &key.container,
        if_name: &key.ifname,
        name: &key.network,
        config,
        ip_result: RawValue::from_string(result.to_json(CniVersion::V1_0_0).ok()?).ok()?,
    };
    serde_json::value::to_raw_value(&data).ok()
}

/// The annotations of a pod with these attachments; `None` where nobody is told anything by them.
pub(crate) fn annotations<'a>(
    attachments: impl Iterator<Item = (&'a Attachment, CniResult)>,
) -> Option<Vec<(&'static str, String)>> {
    let mut mapped_dir = None;
    let all = attachments.filter_map(|(attachment, result)| {
        let record = attachment.vhost_user().filter(|record| tells_by_annotation(record))?;
        mapped_dir = mapped_dir.take().or(record.mount_path.clone());
        data(attachment, record, &result)
    });
    let all: Vec<Box<RawValue>> = all.collect();
    if all.is_empty() {
        return None;
    }
    let text = serde_json::to_string(&all).ok()?;
    Some(vec![(DATA, text), (MAPPED_DIR, mapped_dir.unwrap_or_else(|| USUAL_DIR.to_owned()))])
}

fn tells_by_annotation(record: &VhostUserRecord) -> bool {
    record.configuration_data.as_ref().is_some_and(|data| !data.in_file)
}

fn file_of(attachment: &Attachment, record: &VhostUserRecord) -> Option<String> {
    record.configuration_data.as_ref().filter(|data| data.in_file)?;
    let key = &attachment.key;
    Some(format!("configData-{}-{}.json", container_begin(&key.container), key.ifname))
}

/// Writes the file, where the pod is told by one.
pub(crate) fn write_file(
    services: &VhostUserServices,
    attachment: &Attachment,
    record: &VhostUserRecord,
    result: &CniResult,
) -> Result<(), CniError> {
    let file = file_of(attachment, record).zip(data(attachment, record, result));
    let Some((name, text)) = file else { return Ok(()) };
    let written =
        services.open_of(record).and_then(|dir| volume_file::write(dir, &name, text.get().as_bytes()));
    written.map_err(|e| unusable(Path::new(&record.directory), &e))
}

impl VhostUserServices {
    /// Removes the file, if there is one.
    pub(super) fn remove_configuration_data(
        &self,
        attachment: &Attachment,
        record: &VhostUserRecord,
    ) -> Result<(), CniError> {
        let Some(name) = file_of(attachment, record) else { return Ok(()) };
        match self.open_of(record).and_then(|dir| volume_file::remove(dir, &name)) {
            // Kubelet has removed the pod's volumes.
            Err(e) if is_gone(&e) => Ok(()),
            done => done.map_err(|e| unusable(Path::new(&record.directory), &e)),
        }
    }
}
