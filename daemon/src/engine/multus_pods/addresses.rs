//! Addresses of host-local while pods of Multus and of ours are on one node.
//!
//! Multus' pods have those of a tenant's network in the directory of the network's name, ours in one of the namespace's own: networks
//! of two namespaces never share one. So what a pod of the other kind holds is put on file in both.

use std::path::Path;

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

impl Engine {
    /// The directory with the root of the policy beneath which a tenant's has to lie; `None` where it lies beneath none: nothing of a
    /// tenant is there, or may be.
    pub(super) fn trusted(&self, dir: NetworkDir, namespace: &str) -> Option<NetworkDir> {
        let policy = self.core.policy();
        let root = data_dir_root(policy.tenants.as_deref()?, namespace, "dataDir", &dir.data_dir);
        let root = root.or_else(|refused| match dir.data_dir == executed_data_dir(namespace) {
            true => Ok(Path::new(DEFAULT_DATA_DIR)),
            false => Err(refused),
        });
        Some(NetworkDir { root: Some(root.ok()?.to_str()?.to_owned()), ..dir })
    }

    /// What Multus' pods hold in tenants' networks is not given to pods of ours. A file that cannot be read is told, and keeps none of
    /// the others from being heeded.
    pub(super) fn keep_addresses_of_multus(&self, files: &MultusFiles) -> Vec<CniError> {
        let containers = match files.containers() {
            Ok(containers) => containers,
            Err(error) => return vec![error],
        };
        *self.core.of_multus.write() = containers.iter().cloned().collect();
        containers.iter().flat_map(|container| self.keep_addresses_of(container, files)).collect()
    }

    fn keep_addresses_of(&self, container: &str, files: &MultusFiles) -> Vec<CniError> {
        // The default network's interface is of no interest: its addresses are the administrator's.
        let attachments = match files.attachments(container, "eth0") {
            Ok(attachments) => attachments.unwrap_or_default(),
            Err(error) => return vec![error],
        };
        let mut errors = Vec::new();
        for attachment in attachments.iter().filter(|attachment| names::ifname(&attachment.interface).is_ok())
        {
            let Some(namespace) = attachment.namespace() else { continue };
            let Ok(list) = ConfList::parse(&attachment.config) else { continue };
            for places in places(&list, namespace) {
                errors.extend(
                    self.copy_held(places, namespace, (container, &attachment.interface), false).err(),
                );
            }
        }
        errors
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
