//! A runtime's list of plugins, and the configuration that each plugin of it gets, as libcni builds it
//! (`NetworkConfFromBytes`, `buildOneConfig`, `injectRuntimeConfig`).
//!
//! Unlike plugins, libcni matches a list's own keys exactly; only a plugin's `type` and `capabilities` match in any case. A
//! plugin gets its own object with all its keys, and what is injected.

use serde_json::{Map, Value, json};

use super::netconf::put_valid_attachments;
use super::{AttachmentRef, NetConf, netconf};
use crate::error::{CniError, Code};
use crate::go_json::{Fields, folded};
use crate::names;
use crate::result::CniResult;
use crate::version::CniVersion;

/// A list of plugins that make one attachment, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfList {
    /// The key `name`: the network's name.
    pub name: String,
    /// The newest supported version of `cniVersion` and `cniVersions`.
    pub version: CniVersion,
    /// The version of `cniVersion` alone, by which a runtime of before CNI 1.1 goes: it does not read `cniVersions`. It is `version` where
    /// that key names one that is not supported.
    pub plain_version: CniVersion,
    /// The key `disableCheck`: the runtime sends no CHECK.
    pub disable_check: bool,
    /// The key `disableGC`: the runtime sends no GC.
    pub disable_gc: bool,
    /// The key `loadOnlyInlinedPlugins`. When it is false, `<conf dir>/<name>/*.conf` come after the plugins of the list itself.
    pub load_only_inlined_plugins: bool,
    plugins: Vec<Plugin>,
}

#[derive(Debug, Clone, PartialEq)]
struct Plugin {
    kind: String,
    capabilities: Vec<String>,
    keys: Map<String, Value>,
}

impl ConfList {
    /// Reads a list, or one plugin's configuration, which becomes a list of one. A list may be empty when its plugins are
    /// in a directory.
    ///
    /// # Errors
    /// Code 6 or 7, or 1 for a version that is not supported.
    pub fn parse(text: &str) -> Result<ConfList, CniError> {
        let keys = object(text)?;
        let name = match keys.get("name") {
            Some(Value::String(name)) => name.clone(),
            Some(_) => return Err(wrong("name", "a string")),
            None => String::new(),
        };
        names::network_name(&name)?;
        let single = !keys.contains_key("plugins") && keys.contains_key("type");
        let (version, plain_version) = versions(&keys)?;
        let mut list = ConfList {
            name,
            version,
            plain_version,
            disable_check: flag(&keys, "disableCheck")?,
            disable_gc: flag(&keys, "disableGC")?,
            load_only_inlined_plugins: single || flag(&keys, "loadOnlyInlinedPlugins")?,
            plugins: Vec::new(),
        };
        match keys.get("plugins") {
            _ if single => list.plugins.push(Plugin::read(Value::Object(keys))?),
            Some(Value::Array(plugins)) if !plugins.is_empty() => {
                list.plugins = plugins.iter().cloned().map(Plugin::read).collect::<Result<_, _>>()?;
            }
            Some(Value::Array(_)) => return Err(invalid("\"plugins\" is empty", "name at least one plugin")),
            Some(_) => return Err(wrong("plugins", "a list")),
            None if list.load_only_inlined_plugins => {
                return Err(invalid(
                    "\"loadOnlyInlinedPlugins\" is true and there is no \"plugins\"",
                    "add \"plugins\"",
                ));
            }
            None => {}
        }
        Ok(list)
    }

    /// Adds a plugin that stands in a file of its own, `<conf dir>/<name>/*.conf`.
    pub fn push_plugin(&mut self, text: &str) -> Result<(), CniError> {
        self.plugins.push(Plugin::read(Value::Object(object(text)?))?);
        Ok(())
    }

    /// The list as one text that contains the plugins of a directory too. It is for a record that must do without the files.
    pub fn to_text(&self) -> String {
        let plugins: Vec<&Map<String, Value>> = self.plugins.iter().map(|plugin| &plugin.keys).collect();
        json!({
            "cniVersion": self.version.as_str(),
            "name": self.name,
            "disableCheck": self.disable_check,
            "disableGC": self.disable_gc,
            "loadOnlyInlinedPlugins": true,
            "plugins": plugins,
        })
        .to_string()
    }

    /// The number of plugins in the list.
    pub fn len(&self) -> usize {
        self.plugins.len()
    }

    /// Whether the list has no plugin yet.
    pub fn is_empty(&self) -> bool {
        self.plugins.is_empty()
    }

    /// The `type` of each plugin.
    pub fn plugin_types(&self) -> impl DoubleEndedIterator<Item = &str> + ExactSizeIterator {
        self.plugins.iter().map(|plugin| plugin.kind.as_str())
    }

    /// Whether a plugin declares the capability.
    pub fn declares(&self, index: usize, capability: &str) -> bool {
        self.plugins.get(index).is_some_and(|plugin| plugin.capabilities.iter().any(|c| c == capability))
    }

    /// Gives every plugin the capability, whether or not its text declares it.
    pub fn declare(&mut self, capability: &str) {
        for plugin in &mut self.plugins {
            plugin.capabilities.push(capability.to_owned());
        }
    }

    /// Whether plugin `index` has addresses from an IPAM.
    pub fn has_ipam(&self, index: usize) -> bool {
        let is_ipam = |(name, value): (&String, &Value)| {
            folded(name) == "ipam" && value.as_object().is_some_and(|ipam| !ipam.is_empty())
        };
        self.plugins.get(index).is_some_and(|plugin| plugin.keys.iter().any(is_ipam))
    }

    /// Gives the IPAM of plugin `index` the text key `key`, in place of what it has by any spelling of it.
    ///
    /// # Errors
    /// Code 7 where the plugin has no IPAM, or several spellings of one.
    pub fn set_ipam_key(&mut self, index: usize, key: &str, text: &str) -> Result<(), CniError> {
        let keys = self.plugins.get_mut(index).map(|plugin| &mut plugin.keys);
        let mut ipams = keys.into_iter().flat_map(Map::iter_mut).filter(|(name, _)| folded(name) == "ipam");
        match (ipams.next(), ipams.next()) {
            (Some((_, Value::Object(ipam))), None) => {
                ipam.retain(|name, _| folded(name) != folded(key));
                ipam.insert(key.to_owned(), Value::String(text.to_owned()));
                Ok(())
            }
            (Some((_, Value::Object(_))), Some(_)) => {
                Err(invalid("\"ipam\" is there in several spellings", "write each key once"))
            }
            _ => Err(wrong("ipam", "an object")),
        }
    }

    /// The configuration of plugin `index`: name and version of the list, the previous plugin's result, and of
    /// `runtime` what the plugin declares in `capabilities`.
    pub fn plugin_config(
        &self,
        index: usize,
        prev: Option<&CniResult>,
        runtime: &Map<String, Value>,
    ) -> Result<String, CniError> {
        let (plugin, mut keys) = self.begin(index)?;
        if let Some(prev) = prev {
            keys.insert("prevResult".to_owned(), value_of(&prev.to_json(self.version)?)?);
        }
        let declared =
            plugin.capabilities.iter().filter_map(|c| runtime.get(c).map(|data| (c.clone(), data.clone())));
        let declared: Map<String, Value> = declared.collect();
        if !declared.is_empty() {
            keys.insert("runtimeConfig".to_owned(), Value::Object(declared));
        }
        Ok(Value::Object(keys).to_string())
    }

    /// The configuration of plugin `index` for a GC that keeps `valid`, under the key of today and the old one.
    pub fn gc_config(&self, index: usize, valid: &[AttachmentRef]) -> Result<String, CniError> {
        let (_, mut keys) = self.begin(index)?;
        put_valid_attachments(&mut keys, valid);
        Ok(Value::Object(keys).to_string())
    }

    /// The configuration of [`ConfList::plugin_config`], parsed.
    pub fn plugin_conf(
        &self,
        index: usize,
        prev: Option<&CniResult>,
        runtime: &Map<String, Value>,
    ) -> Result<NetConf, CniError> {
        NetConf::parse(&self.plugin_config(index, prev, runtime)?)
    }

    fn begin(&self, index: usize) -> Result<(&Plugin, Map<String, Value>), CniError> {
        let plugin = self.plugins.get(index).ok_or_else(|| {
            let msg =
                format!("network {} has {} plugins, none with index {index}", self.name, self.plugins.len());
            CniError::new(Code::Internal, msg)
        })?;
        let mut keys = plugin.keys.clone();
        keys.insert("name".to_owned(), Value::String(self.name.clone()));
        keys.insert("cniVersion".to_owned(), Value::String(self.version.as_str().to_owned()));
        Ok((plugin, keys))
    }
}

impl Plugin {
    fn read(value: Value) -> Result<Plugin, CniError> {
        let Value::Object(keys) = value else { return Err(wrong("plugins", "a list of objects")) };
        let whole = Value::Object(keys);
        let fields = Fields::of(&whole)?;
        let kind = fields
            .text("type")?
            .ok_or_else(|| fields.missing("type", "every plugin of a list has a type"))?;
        names::plugin_type(&kind)?;
        let capabilities = match fields.item("capabilities").map(|item| item.value()) {
            None => Vec::new(),
            Some(Value::Object(map)) => capabilities(map)?,
            Some(_) => return Err(wrong("capabilities", "an object")),
        };
        match whole {
            Value::Object(keys) => Ok(Plugin { kind, capabilities, keys }),
            _ => Err(wrong("plugins", "a list of objects")),
        }
    }
}

fn capabilities(map: &Map<String, Value>) -> Result<Vec<String>, CniError> {
    let mut declared = Vec::new();
    for (name, value) in map {
        match value {
            Value::Bool(true) => declared.push(name.clone()),
            Value::Bool(false) | Value::Null => {}
            _ => return Err(wrong(&format!("capabilities.{name}"), "true or false")),
        }
    }
    Ok(declared)
}

fn object(text: &str) -> Result<Map<String, Value>, CniError> {
    match value_of(text)? {
        Value::Object(keys) => Ok(keys),
        _ => Err(CniError::new(Code::Decode, "a network configuration must be a JSON object")),
    }
}

fn value_of(text: &str) -> Result<Value, CniError> {
    serde_json::from_str(text).map_err(|e| {
        CniError::new(Code::Decode, format!("the JSON cannot be read: {e}"))
            .with("it must be one JSON object in UTF-8, without comments and trailing commas")
    })
}

/// The newest of all versions that are named and supported, as libcni chooses it, and that of `cniVersion` alone.
fn versions(keys: &Map<String, Value>) -> Result<(CniVersion, CniVersion), CniError> {
    let one = match keys.get("cniVersion") {
        None => None,
        Some(Value::String(text)) => Some(text.as_str()),
        Some(_) => return Err(wrong("cniVersion", "a string")),
    };
    let many = match keys.get("cniVersions") {
        None => &[][..],
        Some(Value::Array(list)) => list,
        Some(_) => return Err(wrong("cniVersions", "a list of strings")),
    };
    let mut newest = None;
    for value in many {
        let text = value.as_str().ok_or_else(|| wrong("cniVersions", "a list of strings"))?;
        newest = newest.max(CniVersion::parse(text));
    }
    newest = newest.max(one.filter(|text| !text.is_empty()).and_then(CniVersion::parse));
    // An absent `cniVersion` is 0.1.0 to libcni.
    let plain = one.unwrap_or_default();
    let version = match newest {
        Some(version) => version,
        None => netconf::supported(plain)?,
    };
    Ok((version, CniVersion::parse(plain).unwrap_or(version)))
}

/// Reads a truth value. libcni takes the words "true" and "false" too.
fn flag(keys: &Map<String, Value>, key: &str) -> Result<bool, CniError> {
    match keys.get(key) {
        None => Ok(false),
        Some(Value::Bool(b)) => Ok(*b),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
        Some(_) => Err(wrong(key, "true or false")),
    }
}

fn wrong(key: &str, expected: &str) -> CniError {
    CniError::new(Code::Decode, format!("\"{key}\" of the network configuration must be {expected}"))
}

fn invalid(what: &str, remedy: &str) -> CniError {
    CniError::new(Code::InvalidConfig, format!("the network configuration is invalid: {what}")).with(remedy)
}
