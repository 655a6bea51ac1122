//! Addresses of host-local while pods of Multus and of ours are on one node.
//!
//! Multus' pods have those of a tenant's network in the directory of the network's name, ours in one of the namespace's own: networks
//! of two namespaces never share one. So what a pod of the other kind holds is put on file in both.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use fairlead_cni::config::host_local::DEFAULT_DATA_DIR;
use fairlead_cni::config::{ConfList, NetConf};
use fairlead_cni::{CniError, names};
use fairlead_ipam::NetworkDir;
use serde_json::Map;

use super::MultusFiles;
use crate::engine::Engine;
use crate::engine::kinds::BUILT_IN;
use crate::policy::{address_directory, data_dir_root, executed_data_dir};

/// The two directories in which one network of a tenant has addresses.
pub(super) struct Places {
    /// Where Multus' pods have them.
    pub(super) of_multus: NetworkDir,
    /// Where ours have them.
    pub(super) own: NetworkDir,
    /// The plugin's configuration.
    pub(super) conf: NetConf,
}

/// The directories of a network of this namespace; of each plugin, and none for a plugin whose addresses are elsewhere.
pub(super) fn places(list: &ConfList, namespace: &str) -> Vec<Places> {
    let of_plugin = |index| {
        let conf = list.plugin_conf(index, None, &Map::new()).ok()?;
        let fields = conf.fields().ok()?;
        let ipam = fields.object("ipam").ok()??;
        if ipam.text("type").ok()?? != "host-local" {
            return None;
        }
        let given = ipam.text("dataDir").ok()?.filter(|dir| !dir.is_empty());
        let executed = executed_data_dir(namespace);
        let (data_dir, own) = match BUILT_IN.contains(&conf.plugin_type.as_str()) {
            true => {
                let data_dir = given.unwrap_or_else(|| DEFAULT_DATA_DIR.to_owned());
                let network = address_directory(&conf.name, Some(namespace)).into_owned();
                (data_dir.clone(), NetworkDir::of_administrator(&data_dir, &network))
            }
            // An executed host-local of one that names its directory has all addresses there.
            false if given.is_some_and(|dir| dir != executed) => return None,
            false => (DEFAULT_DATA_DIR.to_owned(), NetworkDir::of_administrator(&executed, &conf.name)),
        };
        Some(Places { of_multus: NetworkDir::of_administrator(&data_dir, &conf.name), own, conf })
    };
    (0..list.len()).filter_map(of_plugin).collect()
}

/// Each container of Multus' with its interfaces in networks of tenants.
#[derive(Debug, Clone, Default)]
pub(in crate::engine) struct MultusPods(BTreeMap<String, Vec<MultusInterface>>);

impl MultusPods {
    /// Each address that such an interface may hold: the container, the interface, and where.
    fn places(&self) -> impl Iterator<Item = (&str, &MultusInterface, Places)> {
        let interfaces = self.0.iter().flat_map(|(id, held)| held.iter().map(move |one| (id.as_str(), one)));
        interfaces.flat_map(|(id, one)| one.places().into_iter().map(move |places| (id, one, places)))
    }
}

/// An interface of a tenant's network that Multus gave to a pod.
#[derive(Debug, Clone)]
struct MultusInterface {
    name: String,
    namespace: String,
    list: Arc<ConfList>,
}

impl MultusInterface {
    fn places(&self) -> Vec<Places> {
        places(&self.list, &self.namespace)
    }
}

/// The pods that have a file, and the errors of files that cannot be read.
fn pods_of_multus(files: &MultusFiles) -> (MultusPods, Vec<CniError>) {
    let containers = match files.containers() {
        Ok(containers) => containers,
        Err(error) => return (MultusPods::default(), vec![error]),
    };
    let mut errors = Vec::new();
    let pods = containers.into_iter().map(|container| {
        // The default network's interface is of no interest: its addresses are the administrator's.
        let attachments = files.attachments(&container, "eth0").unwrap_or_else(|error| {
            errors.push(error);
            None
        });
        let interfaces = attachments.unwrap_or_default().into_iter().filter_map(|attachment| {
            names::ifname(&attachment.interface).ok()?;
            let namespace = attachment.namespace()?.to_owned();
            let list = Arc::new(ConfList::parse(&attachment.config).ok()?);
            let interface = MultusInterface { name: attachment.interface, namespace, list };
            (!interface.places().is_empty()).then_some(interface)
        });
        (container, interfaces.collect())
    });
    let pods = MultusPods(pods.collect());
    (pods, errors)
}

impl Engine {
    /// The directory with the root of the policy beneath which a tenant's has to lie; `None` where it lies beneath none: nothing of a
    /// tenant is there, or may be.
    pub(super) fn trusted(&self, dir: NetworkDir, namespace: &str) -> Option<NetworkDir> {
        let call_settings = self.core.call_settings();
        let root = data_dir_root(call_settings.policy.as_deref()?, namespace, "dataDir", &dir.data_dir);
        let root = root.or_else(|refused| match dir.data_dir == executed_data_dir(namespace) {
            true => Ok(Path::new(DEFAULT_DATA_DIR)),
            false => Err(refused),
        });
        Some(NetworkDir { root: Some(root.ok()?.to_str()?.to_owned()), ..dir })
    }

    /// What Multus' pods hold in tenants' networks is not given to pods of ours. A file that cannot be read is told, and keeps none of
    /// the others from being heeded.
    pub(super) fn keep_addresses_of_multus(&self, files: &MultusFiles) -> Vec<CniError> {
        let (pods, mut errors) = pods_of_multus(files);
        for (container, interface, places) in pods.places() {
            let of = (container, interface.name.as_str());
            errors.extend(self.copy_held(places, &interface.namespace, of, false).err());
        }
        self.remember(pods);
        errors
    }

    /// No pod of ours can come: what was put on file for those of Multus is taken away, also that of pods which have gone since they
    /// were last looked for.
    pub(super) fn give_up_addresses_of_multus(&self, files: &MultusFiles) -> Vec<CniError> {
        let (pods, mut errors) = pods_of_multus(files);
        let before = self.remember(pods.clone());
        for (container, interface, places) in before.places().chain(pods.places()) {
            let of = (container, interface.name.as_str());
            errors.extend(self.release_in(places.own, &interface.namespace, of).err());
        }
        errors
    }

    /// Returns those of before.
    fn remember(&self, pods: MultusPods) -> MultusPods {
        *self.core.of_multus.write() = pods.0.keys().cloned().collect();
        std::mem::replace(&mut *self.multus_pods.lock(), pods)
    }

    /// Gives back what an interface holds in a directory.
    pub(super) fn release_in(
        &self,
        dir: NetworkDir,
        namespace: &str,
        (container, interface): (&str, &str),
    ) -> Result<(), CniError> {
        let Some(dir) = self.trusted(dir, namespace) else { return Ok(()) };
        self.core.ipam.host_local.release(&dir, container, interface)?;
        Ok(())
    }

    /// Puts what an interface holds in one directory on file in the other.
    pub(super) fn copy_held(
        &self,
        places: Places,
        namespace: &str,
        (container, interface): (&str, &str),
        to_multus: bool,
    ) -> Result<usize, CniError> {
        let (of_multus, own) =
            (self.trusted(places.of_multus, namespace), self.trusted(places.own, namespace));
        let (Some(of_multus), Some(own)) = (of_multus, own) else { return Ok(0) };
        let (from, to) = if to_multus { (own, of_multus) } else { (of_multus, own) };
        Ok(self.core.ipam.host_local.copy_held(&from, &to, container, interface)?)
    }
}
