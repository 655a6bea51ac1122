//! The one door by which a tenant's text comes in.

use std::sync::Arc;

use fairlead_cni::args::Args;
use fairlead_cni::config::host_local::DEFAULT_DATA_DIR;
use fairlead_cni::config::{ConfList, NetConf};
use fairlead_cni::go_json::folded;
use fairlead_cni::{CniError, CniVersion, Code};
use serde_json::{Map, Value, json};

use super::refusal::shown;
use super::{Interface, PolicySettings, Refusal, Source, Tenant, decide};

/// The longest text of a tenant's definition, in bytes.
const MAX_BYTES: usize = 64 << 10;
/// The most plugins of a list, and the most `paths` of one interface: each gets a copy of what they have in common.
const MAX_PLUGINS: usize = 16;
/// The longest name of a directory, in bytes.
const MAX_NAME: usize = 255;
/// The keys that only a runtime or libcni adds to a configuration.
const OF_RUNTIME: [&str; 4] =
    ["runtimeConfig", "prevResult", "cni.dev/valid-attachments", "cni.dev/attachments"];

/// Why a tenant's definition cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionError {
    /// It has what no definition of a tenant may have, or what the policy does not allow.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It is no configuration of a network.
    #[error("{0}")]
    Unreadable(CniError),
}

impl From<CniError> for DefinitionError {
    fn from(error: CniError) -> DefinitionError {
        DefinitionError::Unreadable(error)
    }
}

impl From<DefinitionError> for CniError {
    fn from(error: DefinitionError) -> CniError {
        match error {
            DefinitionError::Refused(refusal) => refusal.into(),
            DefinitionError::Unreadable(error) => error,
        }
    }
}

/// A definition that a tenant wrote: read, within its bounds, with the capability arguments of one attachment.
#[derive(Debug, Clone)]
pub struct Definition {
    source: Source,
    list: ConfList,
    runtime: Map<String, Value>,
    plugins: Vec<Arc<NetConf>>,
    interfaces: Vec<Interface>,
}

impl Definition {
    /// Reads a definition: a plugin's configuration, or a list of them. `object` is the name of the definition in the API: the
    /// network's where the text has none, and the name of the administrator's network that is meant where there is no text.
    /// `runtime` are the capability arguments; each plugin gets those that it declares.
    ///
    /// # Errors
    /// When the text is none of a network, is too long, has too much of something, or has what only the runtime gives.
    pub fn read(
        tenant: &Tenant,
        text: &str,
        object: Option<&str>,
        runtime: &Map<String, Value>,
        args: &Args,
    ) -> Result<Definition, DefinitionError> {
        let namespace = || tenant.namespace().to_owned();
        if text.len() > MAX_BYTES {
            return Err(
                Refusal::TooLong { namespace: namespace(), bytes: text.len(), most: MAX_BYTES }.into()
            );
        }
        let text = with_name(text, object)?;
        of_runtime(&text, tenant)?;
        let list = ConfList::parse(&text)?;
        // Files of the conf dir beside the list are the administrator's.
        if list.is_empty() {
            let error = CniError::new(Code::InvalidConfig, "the list has no plugins");
            return Err(error.with("name at least one in \"plugins\"").into());
        }
        at_most(list.len(), "plugins", tenant)?;
        // '@' and the namespace are part of the directory's name.
        if list.name.len() + 1 + tenant.namespace().len() > MAX_NAME {
            let (key, value) = ("name".to_owned(), shown(&list.name));
            let (why, remedy) =
                ("too long for a directory's name", "give the network a shorter one".to_owned());
            return Err(Refusal::Never { namespace: namespace(), key, value, why, remedy }.into());
        }
        let mut definition = Definition {
            source: Source::Tenant(tenant.clone()),
            runtime: runtime.clone(),
            plugins: Vec::with_capacity(list.len()),
            interfaces: Vec::new(),
            list,
        };
        for index in 0..definition.list.len() {
            definition.read_plugin(index, tenant, args)?;
        }
        Ok(definition)
    }

    fn read_plugin(&mut self, index: usize, tenant: &Tenant, args: &Args) -> Result<(), DefinitionError> {
        let mut conf = self.list.plugin_conf(index, None, &self.runtime)?;
        let place = if self.list.len() == 1 { String::new() } else { format!("plugins[{index}]") };
        // Two spellings of one key could mean one plugin to the list and another to the plugin.
        if self.list.plugin_types().nth(index) != Some(&conf.plugin_type) || conf.name != self.list.name {
            let key = if place.is_empty() { "type".to_owned() } else { format!("{place}.type") };
            let value = shown(&conf.plugin_type);
            let (why, remedy) = ("written twice in two spellings", "write each key once".to_owned());
            return Err(
                Refusal::Never { namespace: tenant.namespace().to_owned(), key, value, why, remedy }.into()
            );
        }
        at_most(number_of_paths(&conf), "paths", tenant)?;
        let mut interfaces = Interface::read(&place, conf.clone(), args)?;
        // By the network's name alone it would share the addresses of another namespace's network of that name. A directory that
        // the tenant names is judged as it stands.
        let shares = interfaces.iter().any(Interface::executes_host_local);
        if shares && !names_data_dir(&serde_json::from_str(&conf.raw).unwrap_or_default()) {
            self.list.set_ipam_key(index, "dataDir", &executed_data_dir(tenant.namespace()))?;
            conf = self.list.plugin_conf(index, None, &self.runtime)?;
            interfaces = Interface::read(&place, conf.clone(), args)?;
        }
        self.interfaces.extend(interfaces);
        self.plugins.push(Arc::new(conf));
        Ok(())
    }

    /// Judges every interface of the definition.
    ///
    /// # Errors
    /// Why the first one that may not be made may not.
    pub fn judge(&self, settings: &PolicySettings) -> Result<(), Refusal> {
        self.interfaces.iter().try_for_each(|interface| decide(settings, &self.source, interface))
    }

    /// Whose it is.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Its interfaces: one for each plugin of a list, and for each of `paths`.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// The whole of it, as a list of plugins.
    pub fn list(&self) -> &ConfList {
        &self.list
    }

    /// The capability arguments of the attachment.
    pub fn runtime(&self) -> &Map<String, Value> {
        &self.runtime
    }

    /// The configuration of each plugin, with what the runtime passes it.
    pub fn plugins(&self) -> &[Arc<NetConf>] {
        &self.plugins
    }
}

/// The text with the network's name; without a text, that of the administrator's network of this name.
pub(crate) fn with_name(text: &str, object: Option<&str>) -> Result<String, CniError> {
    let Some(object) = object else { return Ok(text.to_owned()) };
    if text.trim().is_empty() {
        let version = CniVersion::LATEST.as_str();
        let meant =
            json!({"cniVersion": version, "name": object, "type": "fairlead", "clusterNetwork": object});
        return Ok(meant.to_string());
    }
    match serde_json::from_str::<Map<String, Value>>(text) {
        Ok(mut keys) if keys.get("name").is_none_or(|name| name.is_null() || name == "") => {
            keys.insert("name".to_owned(), Value::String(object.to_owned()));
            Ok(Value::Object(keys).to_string())
        }
        // What is wrong with the text, its parser says.
        Ok(_) | Err(_) => Ok(text.to_owned()),
    }
}

/// Refuses what only the runtime gives, wherever it stands and however it is spelled.
fn of_runtime(text: &str, tenant: &Tenant) -> Result<(), Refusal> {
    let Ok(tree) = serde_json::from_str::<Value>(text) else { return Ok(()) };
    match runtime_key(&tree) {
        Some(key) => Err(Refusal::OfRuntime { namespace: tenant.namespace().to_owned(), key }),
        None => Ok(()),
    }
}

fn runtime_key(value: &Value) -> Option<String> {
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(at, item)| runtime_key(item).map(|key| format!("[{at}].{key}"))),
        Value::Object(keys) => keys.iter().find_map(|(key, value)| {
            let spelled = folded(key);
            let known = OF_RUNTIME.iter().find(|known| folded(known) == spelled);
            match known {
                Some(known) => Some((*known).to_owned()),
                None => runtime_key(value).map(|below| match below.starts_with('[') {
                    true => format!("{key}{below}"),
                    false => format!("{key}.{below}"),
                }),
            }
        }),
        _ => None,
    }
}

/// Where an executed host-local keeps the addresses of this namespace's networks.
pub(crate) fn executed_data_dir(namespace: &str) -> String {
    format!("{DEFAULT_DATA_DIR}/@{namespace}")
}

/// Whether a plugin's configuration says, in any spelling, where its addresses are kept.
pub(super) fn names_data_dir(plugin: &Value) -> bool {
    let below = |value: &Value, key: &str| {
        let keys = value.as_object().into_iter().flatten();
        keys.filter(|(name, _)| folded(name) == key).map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    below(plugin, "ipam").iter().any(|ipam| !below(ipam, "datadir").is_empty())
}

/// The number of paths, by the key as our own type reads it.
fn number_of_paths(conf: &NetConf) -> usize {
    let keys = serde_json::from_str::<Map<String, Value>>(&conf.raw).unwrap_or_default();
    keys.get("paths").and_then(Value::as_array).map_or(0, Vec::len)
}

fn at_most(number: usize, key: &str, tenant: &Tenant) -> Result<(), Refusal> {
    if number <= MAX_PLUGINS {
        return Ok(());
    }
    let (namespace, key) = (tenant.namespace().to_owned(), key.to_owned());
    Err(Refusal::TooMany { namespace, key, number, most: MAX_PLUGINS })
}
