//! What every configuration has, whatever its type (libcni `types.PluginConf`), and what the runtime has added to it.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::error::{CniError, Code};
use crate::go_json::{self, Fields, Item};
use crate::names;
use crate::result::{CniResult, Dns};
use crate::version::CniVersion;
use crate::wire::MAX_CONFIG;

/// What a GC must keep: the key of today, and the one before 1.1.0 was final.
const VALID_ATTACHMENTS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

/// A network configuration as a plugin reads it on stdin.
#[derive(Debug, Clone, PartialEq)]
pub struct NetConf {
    /// The text as the runtime wrote it.
    pub raw: Arc<str>,
    /// The text as [`go_json::parse`] reads it, with struct keys in lower case.
    pub value: Value,
    /// The key `cniVersion`.
    pub version: CniVersion,
    /// The key `name`: the network's name.
    pub name: String,
    /// The key `type`: the name of the plugin.
    pub plugin_type: String,
    /// The key `ipam.type`; `None` without an IPAM (`"ipam": {}` makes a layer 2 interface).
    pub ipam_type: Option<String>,
    /// The key `prevResult`: the result of the plugin before in a list.
    pub prev_result: Option<CniResult>,
    /// The key `runtimeConfig`.
    pub runtime: RuntimeConfig,
    /// The key `args.cni.ips`: requested addresses, as written.
    pub args_cni_ips: Vec<String>,
    /// The key `args.cni.numaNodes`: the pod's NUMA nodes, for a caller that knows them better than kubelet.
    pub args_cni_numa_nodes: Vec<u32>,
    /// The key `dns`.
    pub dns: Dns,
    /// The attachments that a GC must keep. `None` when neither key is there: an old caller, for whom nothing may be removed.
    /// Empty for `null` and `[]`: nothing is kept.
    pub valid_attachments: Option<Vec<AttachmentRef>>,
}

/// What a runtime passes to a plugin that declared a capability.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RuntimeConfig {
    /// The key `mac`: a requested MAC address, as written.
    pub mac: Option<String>,
    /// The key `ips`: requested addresses, as written, with or without prefix length.
    pub ips: Vec<String>,
    /// The key `deviceID`: the device that was allocated to the pod.
    pub device_id: Option<String>,
    /// The key `CNIDeviceInfoFile`: where the plugin is to write the device information.
    pub device_info_file: Option<String>,
    /// The key `portMappings`.
    pub port_mappings: Option<Value>,
}

/// An attachment as a GC refers to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttachmentRef {
    /// The key `containerID`.
    pub container_id: String,
    /// The key `ifname`.
    pub ifname: String,
}

impl NetConf {
    /// Reads a configuration.
    ///
    /// # Errors
    /// Code 6 when it can't be decoded; 7 when a name or type is missing or outside the grammar, or when the text is too long;
    /// 1 when its version is not supported.
    pub fn parse(text: &str) -> Result<NetConf, CniError> {
        NetConf::read(text, true)
    }

    /// Reads a configuration for a removal, which must not fail for a `prevResult` or an `args.cni` that can't be read: another plugin may
    /// have made the pod and read neither. They are left out.
    ///
    /// # Errors
    /// As for [`NetConf::parse`].
    pub fn parse_for_removal(text: &str) -> Result<NetConf, CniError> {
        NetConf::read(text, false)
    }

    fn read(text: &str, strict: bool) -> Result<NetConf, CniError> {
        if text.len() > MAX_CONFIG {
            let msg = format!("the network configuration has {} bytes, more than {MAX_CONFIG}", text.len());
            return Err(CniError::new(Code::InvalidConfig, msg).with("shorten it"));
        }
        let value = go_json::parse(text)?;
        let fields = Fields::of(&value)?;
        let name = fields.text("name")?.unwrap_or_default();
        names::network_name(&name)?;
        let version = version(&fields)?;
        let plugin_type =
            fields.text("type")?.ok_or_else(|| fields.missing("type", "the name of a plugin"))?;
        names::plugin_type(&plugin_type)?;
        let prev_result = or_absent(prev_result(&fields, version), strict)?;
        let (runtime, of_args) = (runtime(&fields)?, or_absent(args_cni(&fields), strict)?);
        let (ipam_type, dns, valid_attachments) =
            (ipam_type(&fields)?, dns(&fields)?, valid_attachments(&fields)?);
        Ok(NetConf {
            raw: text.into(),
            version,
            name,
            plugin_type,
            ipam_type,
            prev_result,
            runtime,
            args_cni_ips: of_args.ips,
            args_cni_numa_nodes: of_args.numa_nodes,
            dns,
            valid_attachments,
            value,
        })
    }

    /// This configuration for a GC that keeps `valid`, under the key of today and the old one.
    ///
    /// # Errors
    /// Code 6 when the text is one that only [`go_json::parse`] reads.
    pub fn gc_config(&self, valid: &[AttachmentRef]) -> Result<String, CniError> {
        let mut keys: Map<String, Value> = serde_json::from_str(&self.raw)
            .map_err(|e| CniError::new(Code::Decode, format!("network {:?}: {e}", self.name)))?;
        put_valid_attachments(&mut keys, valid);
        Ok(Value::Object(keys).to_string())
    }

    /// The keys of the configuration.
    pub fn fields(&self) -> Result<Fields<'_>, CniError> {
        Fields::of(&self.value)
    }
}

/// Says in a plugin's configuration what a GC keeps.
pub(super) fn put_valid_attachments(keys: &mut Map<String, Value>, valid: &[AttachmentRef]) {
    let valid: Vec<Value> =
        valid.iter().map(|a| json!({"containerID": a.container_id, "ifname": a.ifname})).collect();
    for key in VALID_ATTACHMENTS {
        keys.insert(key.to_owned(), Value::Array(valid.clone()));
    }
}

/// What was read. Where the reading is not `strict`, what can't be read counts as absent.
fn or_absent<T: Default>(read: Result<T, CniError>, strict: bool) -> Result<T, CniError> {
    read.or_else(|error| if strict { Err(error) } else { Ok(T::default()) })
}

fn version(fields: &Fields<'_>) -> Result<CniVersion, CniError> {
    supported(&fields.text("cniVersion")?.unwrap_or_default())
}

/// Checks `cniVersion`. Code 1 when it is not supported.
pub(super) fn supported(text: &str) -> Result<CniVersion, CniError> {
    CniVersion::parse(text).ok_or_else(|| {
        let spoken: Vec<&str> = CniVersion::ALL.iter().map(|v| v.as_str()).collect();
        let msg = format!("the configuration's \"cniVersion\" {} is not supported", names::shown(text));
        CniError::new(Code::IncompatibleVersion, msg).with(format!("supported: {}", spoken.join(", ")))
    })
}

fn prev_result(fields: &Fields<'_>, version: CniVersion) -> Result<Option<CniResult>, CniError> {
    let Some(item) = fields.item("prevResult") else { return Ok(None) };
    item.object()?;
    let parsed = CniResult::parse(item.value(), version);
    parsed.map(Some).map_err(|error| CniError { msg: format!("\"prevResult\": {}", error.msg), ..error })
}

fn ipam_type(fields: &Fields<'_>) -> Result<Option<String>, CniError> {
    let Some(ipam) = fields.object("ipam")? else { return Ok(None) };
    let kind = ipam.text("type")?;
    if let Some(kind) = &kind {
        names::plugin_type(kind)?;
    }
    Ok(kind)
}

fn runtime(fields: &Fields<'_>) -> Result<RuntimeConfig, CniError> {
    let Some(runtime) = fields.object("runtimeConfig")? else { return Ok(RuntimeConfig::default()) };
    Ok(RuntimeConfig {
        mac: runtime.text("mac")?,
        ips: runtime.texts("ips")?,
        device_id: runtime.text("deviceID")?,
        device_info_file: runtime.text("CNIDeviceInfoFile")?,
        port_mappings: runtime.item("portMappings").map(|item| item.value().clone()),
    })
}

/// What is read of `args.cni`.
#[derive(Default)]
struct ArgsCni {
    ips: Vec<String>,
    numa_nodes: Vec<u32>,
}

fn args_cni(fields: &Fields<'_>) -> Result<ArgsCni, CniError> {
    let Some(args) = fields.object("args")? else { return Ok(ArgsCni::default()) };
    // `args` is a convention, not a struct: only an object under `cni` is ours to read.
    let Some(cni) = args.item("cni").filter(|item| item.value().is_object()) else {
        return Ok(ArgsCni::default());
    };
    let cni = cni.object()?;
    Ok(ArgsCni { ips: cni.texts("ips")?, numa_nodes: cni.each("numaNodes", |node| node.number())? })
}

fn dns(fields: &Fields<'_>) -> Result<Dns, CniError> {
    fields.object("dns")?.map_or_else(|| Ok(Dns::default()), |dns| Dns::read(&dns))
}

/// Reads the attachments that a GC must keep, from the newer key where there are both: libcni sends both.
fn valid_attachments(fields: &Fields<'_>) -> Result<Option<Vec<AttachmentRef>>, CniError> {
    let is_present = |key: &&str| fields.raw(key).is_some();
    let Some(key) = VALID_ATTACHMENTS.into_iter().find(is_present) else {
        return Ok(None);
    };
    fields.each(key, |item| attachment(&item)).map(Some)
}

fn attachment(item: &Item<'_>) -> Result<AttachmentRef, CniError> {
    let fields = item.object()?;
    Ok(AttachmentRef {
        container_id: fields.text("containerID")?.unwrap_or_default(),
        ifname: fields.text("ifname")?.unwrap_or_default(),
    })
}
