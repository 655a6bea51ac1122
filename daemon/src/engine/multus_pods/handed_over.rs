//! Our pods when Multus gets the node back: each gets a file of Multus' form, by which Multus' DEL calls our executable. It also names
//! host-local where a tenant's addresses were put on file in Multus' directory, too.

use std::collections::BTreeMap;
use std::sync::Arc;

use fairlead_cni::CniError;
use fairlead_cni::config::{ConfList, NetConf};
use fairlead_kube::multus::{cached_attachments, entry};
use serde_json::{Value, json};

use super::addresses::{Places, places};
use super::{MultusFiles, unusable};
use crate::engine::Engine;
use crate::engine::attachment_request::OWN_TYPE;
use crate::store::{Attachment, LinkRecord, Phase};

/// By this name our entry is known among Multus'.
const NAME: &str = "handed-over-by-fairlead";

impl Engine {
    /// Writes the file of each pod that has none.
    pub(super) fn hand_over(&self, files: &MultusFiles) -> Vec<CniError> {
        let all = self.core.store.all();
        // Those of pods: the default network's record is of our own type, and made with no other.
        let firsts = all.iter().filter(|a| {
            a.key.plugin == OWN_TYPE
                && a.made_with.is_none()
                && a.namespace.is_none()
                && a.phase == Phase::Attached
        });
        let mut errors = Vec::new();
        for first in firsts {
            match files.read(&first.key.container) {
                Ok(None) => errors.extend(self.hand_over_pod(first, files)),
                Ok(Some(_)) => {}
                Err(error) => errors.push(error),
            }
        }
        errors
    }

    fn hand_over_pod(&self, first: &Arc<Attachment>, files: &MultusFiles) -> Vec<CniError> {
        let mut errors = Vec::new();
        let mut entries = Vec::new();
        for other in self.core.made_with(first) {
            for (namespace, places) in places_of(&other) {
                let conf = host_local(&places.conf, &places.of_multus.data_dir);
                let of = (other.key.container.as_str(), other.key.ifname.as_str());
                match self.copy_held(places, namespace, of, true) {
                    Ok(0) => {}
                    Ok(_) => entries.push(entry(NAME, &conf, &other.key.ifname)),
                    Err(error) => errors.push(error),
                }
            }
        }
        // Multus begins at the end: ours comes first, and the addresses are free when the pod is off them.
        entries.push(entry(NAME, &own_conf(first), &first.key.ifname));
        let path = files.path(&first.key.container);
        let written = files.root.replace(&path, Value::Array(entries).to_string().as_bytes(), 0o600);
        errors.extend(written.err().map(|error| unusable(&path, &error)));
        errors
    }

    /// The node is ours again: the files that Multus was given for our pods go, with what they name of Multus' directories.
    pub(super) fn take_back(&self, files: &MultusFiles) -> Vec<CniError> {
        let containers = match files.containers() {
            Ok(containers) => containers,
            Err(error) => return vec![error],
        };
        let of_ours: BTreeMap<String, Arc<Attachment>> = self
            .core
            .store
            .all()
            .into_iter()
            .filter(|a| a.key.plugin == OWN_TYPE && a.made_with.is_none())
            .map(|a| (a.key.container.clone(), a))
            .collect();
        containers
            .iter()
            .filter_map(|container| self.take_back_one(container, of_ours.get(container), files).err())
            .collect()
    }

    fn take_back_one(
        &self,
        container: &str,
        first: Option<&Arc<Attachment>>,
        files: &MultusFiles,
    ) -> Result<(), CniError> {
        let Some(text) = files.read(container)?.filter(|text| text.contains(NAME)) else { return Ok(()) };
        let attachments = cached_attachments(&text, container, "eth0")?;
        if !attachments.iter().any(|attachment| attachment.network == NAME) {
            return Ok(());
        }
        for other in first.map(|first| self.core.made_with(first)).unwrap_or_default() {
            for (namespace, places) in places_of(&other) {
                self.release_in(places.of_multus, namespace, (container, &other.key.ifname))?;
            }
        }
        let path = files.path(container);
        files.root.remove_trusted(&path).map_err(|error| unusable(&path, &error))
    }
}

/// Where a network of a tenant has its addresses, by its record.
fn places_of(attachment: &Attachment) -> Vec<(&str, Places)> {
    let Some(namespace) = attachment.namespace.as_deref() else { return Vec::new() };
    let text: &str = match &attachment.link {
        LinkRecord::Conflist { conflist, .. } => conflist,
        _ => &attachment.config,
    };
    let list = ConfList::parse(text);
    list.map(|list| places(&list, namespace).into_iter().map(|of| (namespace, of)).collect())
        .unwrap_or_default()
}

/// Enough for our DEL, which goes by the record.
fn own_conf(first: &Attachment) -> Value {
    let mut conf: Value = serde_json::from_str(&first.config).unwrap_or_default();
    for of_one_call in ["runtimeConfig", "prevResult", "capabilities"] {
        conf.as_object_mut().map(|keys| keys.remove(of_one_call));
    }
    conf
}

/// host-local by itself, which gives back what it finds for container and interface.
fn host_local(conf: &NetConf, data_dir: &str) -> Value {
    let mut ipam: Value =
        serde_json::from_str::<Value>(&conf.raw).map(|raw| raw["ipam"].clone()).unwrap_or_default();
    ipam["dataDir"] = data_dir.into();
    json!({"cniVersion": conf.version.as_str(), "name": conf.name, "type": "host-local", "ipam": ipam})
}
