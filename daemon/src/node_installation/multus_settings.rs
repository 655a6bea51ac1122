//! What Multus is told on this node, for our own configuration: the same keys, with the networks by their names in the conf dir.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use fairlead_cni::config::ConfList;
use fairlead_cni::config::cluster_network::MULTUS_CNI_DIR;
use fairlead_kube::multus::{MultusConfig, NetworkSource, is_multus};
use serde_json::{Map, Value, json};

use super::{CONFLIST, NETWORK, attaches, first_network};
use crate::conf_dir::Networks;
use crate::engine::OWN_TYPE;

/// How Multus' daemon sees the host's root from its container.
const ROOTS_OF_DAEMON: [&str; 2] = ["/hostroot/", "/host/"];

/// Multus' settings, and the networks of the node that they name.
#[derive(Debug)]
pub(super) struct MultusSettings {
    config: MultusConfig,
    /// Its `defaultNetworks`, and what `delegates` has beside the first.
    default_networks: Vec<String>,
    cluster_network: Option<Arc<ConfList>>,
    missing: Option<String>,
}

impl MultusSettings {
    /// Those of the node; `None` where Multus is not its network, and nothing of its daemon's settings is given.
    ///
    /// # Errors
    /// What cannot be read, or names a network that the conf dir does not have.
    pub(super) fn on_node(
        networks: &Networks,
        of_daemon: Option<&Path>,
    ) -> Result<Option<MultusSettings>, String> {
        let config = config_on_node(networks, of_daemon)?;
        config.map(|config| MultusSettings::of(config, networks)).transpose()
    }

    fn of(config: MultusConfig, networks: &Networks) -> Result<MultusSettings, String> {
        if let Some(chain) = &config.auxiliary_chain {
            tracing::warn!(
                chain,
                "Multus' auxiliaryCNIChainName is not taken over: add those plugins to the cluster network's own list"
            );
        }
        let mut default_networks = Vec::new();
        for source in &config.default_networks {
            default_networks.push(match source {
                // A definition of this name is looked for when a pod comes.
                NetworkSource::Name(name) => name.clone(),
                NetworkSource::Path(path) => by_path(path, networks)?.name.clone(),
            });
        }
        for delegate in config.delegates.iter().skip(1) {
            default_networks.push(by_delegate(delegate, networks)?.name.clone());
        }
        let found = match (&config.cluster_network, config.delegates.first(), &config.master_file) {
            // Taken for the first of the conf dir: it says as little of the cluster network as that directory.
            _ if attaches_ours(&config, networks) => Ok(None),
            (Some(NetworkSource::Name(name)), ..) => {
                by_name(name, networks, || format!("clusterNetwork {name:?}")).map(Some)
            }
            // It names none, only where the runtime's first is looked for.
            (Some(NetworkSource::Path(path)), ..) if is_conf_dir(path, networks) => Ok(None),
            (Some(NetworkSource::Path(path)), ..) => by_path(path, networks).map(Some),
            (None, Some(delegate), _) => by_delegate(delegate, networks).map(Some),
            (None, None, Some(file)) => by_path(file, networks).map(Some),
            (None, None, None) => Ok(None),
        };
        let (cluster_network, missing) = match found {
            Ok(found) => (found, None),
            Err(missing) => (None, Some(missing)),
        };
        Ok(MultusSettings { config, default_networks, cluster_network, missing })
    }

    /// The network that it attaches first; `None`: the runtime's first beside it.
    ///
    /// # Errors
    /// It names one that the conf dir does not have.
    pub(super) fn cluster_network(&self) -> Result<Option<Arc<ConfList>>, String> {
        match &self.missing {
            Some(missing) => Err(missing.clone()),
            None => Ok(self.cluster_network.clone()),
        }
    }

    /// Where it keeps what it attached.
    pub(super) fn cni_dir(&self) -> String {
        on_host(&self.config.cni_dir)
    }

    /// The keys of our own configuration; those that have Multus' defaults are left out.
    pub(super) fn keys(&self) -> Map<String, Value> {
        let config = &self.config;
        let mut keys = Map::new();
        let mut set = |key: &str, value: Value, is_default: bool| {
            if !is_default {
                keys.insert(key.to_owned(), value);
            }
        };
        let capabilities: Map<String, Value> =
            config.capabilities.iter().map(|name| (name.clone(), Value::Bool(true))).collect();
        set("capabilities", Value::Object(capabilities), config.capabilities.is_empty());
        set("defaultNetworks", json!(self.default_networks), self.default_networks.is_empty());
        set("systemNamespaces", json!(config.system_namespaces), config.system_namespaces == ["kube-system"]);
        set("multusNamespace", json!(config.namespace), config.namespace == "kube-system");
        set("namespaceIsolation", json!(true), !config.namespace_isolation);
        let global = config.global_namespaces.join(",");
        set("globalNamespaces", json!(global), global == "default" || !config.namespace_isolation);
        let file = config.readiness_indicator_file.as_deref().map(on_host);
        set("readinessindicatorfile", json!(file), file.is_none());
        set("cniDir", json!(self.cni_dir()), self.cni_dir() == MULTUS_CNI_DIR);
        keys
    }
}

/// What Multus is told; `None` where nothing on the node tells it anything.
fn config_on_node(networks: &Networks, of_daemon: Option<&Path>) -> Result<Option<MultusConfig>, String> {
    let of_daemon = of_daemon
        .map(|path| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display())));
    let of_daemon = of_daemon.transpose()?;
    // It may have the name of the network that it attaches.
    let config = networks.with_duplicates_in_file_order().iter().find_map(|list| {
        let conf = list.plugin_conf(0, None, &Map::new()).ok()?;
        is_multus(&conf.raw).then_some(conf.raw)
    });
    if config.is_none() && of_daemon.is_none() {
        return Ok(None);
    }
    let config = MultusConfig::read(config.as_deref().unwrap_or("{}"), of_daemon.as_deref());
    config.map(Some).map_err(|error| error.to_string())
}

/// Whether Multus' settings have it attach our own network first. Those that cannot be read name nothing.
pub(super) fn name_our_network(networks: &Networks, of_daemon: Option<&Path>) -> bool {
    let config = config_on_node(networks, of_daemon).ok().flatten();
    config.is_some_and(|config| attaches_ours(&config, networks))
}

/// Whether what Multus attaches first is our own network, by its name, its file or its plugin.
fn attaches_ours(config: &MultusConfig, networks: &Networks) -> bool {
    let is_our_file = |path: &str| Path::new(path).file_name() == Some(CONFLIST.as_ref());
    match (&config.cluster_network, config.delegates.first()) {
        // Somebody may call a network of his own so.
        (Some(NetworkSource::Name(name)), _) => {
            name == NETWORK && networks.find(name).filter(attaches).is_none()
        }
        (Some(NetworkSource::Path(path)), _) => is_our_file(path),
        (None, Some(delegate)) => {
            let value: Value = serde_json::from_str(delegate).unwrap_or_default();
            let mut plugins = value["plugins"].as_array().into_iter().flatten().chain([&value]);
            plugins.any(|plugin| plugin["type"] == OWN_TYPE)
        }
        (None, None) => config.master_file.as_deref().is_some_and(is_our_file),
    }
}

/// Where Multus keeps what it attached, by our own configuration.
pub(super) fn cni_dir(plugin: &Map<String, Value>) -> String {
    plugin.get("cniDir").and_then(Value::as_str).unwrap_or(MULTUS_CNI_DIR).to_owned()
}

fn on_host(path: &str) -> String {
    let below = ROOTS_OF_DAEMON.iter().find_map(|root| path.strip_prefix(root));
    below.map_or_else(|| path.to_owned(), |below| format!("/{below}"))
}

/// Whether a path is the conf dir, however Multus' container calls it.
fn is_conf_dir(path: &str, networks: &Networks) -> bool {
    networks.directories().conf.ends_with(on_host(path).trim_matches('/'))
}

/// A file of the conf dir, however Multus' container calls that directory; a directory means its first network.
fn by_path(path: &str, networks: &Networks) -> Result<Arc<ConfList>, String> {
    if is_conf_dir(path, networks) {
        return first_network(networks).ok_or_else(|| absent(path));
    }
    let file = Path::new(path).file_name().and_then(|file| file.to_str()).unwrap_or_default();
    networks.of_file(file).filter(attaches).ok_or_else(|| absent(path))
}

/// `what` calls it in the error.
fn by_name(name: &str, networks: &Networks, what: impl FnOnce() -> String) -> Result<Arc<ConfList>, String> {
    networks.find(name).filter(attaches).ok_or_else(|| absent(&what()))
}

fn by_delegate(delegate: &str, networks: &Networks) -> Result<Arc<ConfList>, String> {
    let value: Value = serde_json::from_str(delegate).unwrap_or_default();
    let name = value["name"].as_str().unwrap_or_default();
    by_name(name, networks, || format!("the delegate {name:?}"))
}

fn absent(what: &str) -> String {
    format!(
        "{what} is no network of the conf dir that attaches pods by itself; put its configuration there as a file, or name another by `install: {{clusterNetwork: …}}`"
    )
}
