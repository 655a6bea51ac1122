//! What the plugins of a network are told of a pod's request: capability arguments, which a list of plugins gives as
//! `runtimeConfig` to those that declare them, `args.cni`, and `CNI_ARGS`.
//!
//! Names and forms are those of CNI's CONVENTIONS.md as Multus writes them (`newCNIRuntimeConf`, `injectCNIArgs` in
//! pkg/types/conf.go). Two things are not as there. Multus gives the runtime's own arguments, host ports included, to every network:
//! NPWG 1.3, section 7.5, wants them on the default network only, so [`of_network`] never sees them. And Multus tells addresses by
//! `CNI_ARGS` to those plugins too that have them as a capability argument ([`cni_args_pairs_of`]).

use fairlead_cni::config::ConfList;
use serde_json::{Map, Value, json};

use super::NetworkSelection;

/// Where a network's plugin writes what it knows of a device (NPWG device information 1.1.0).
const DEVICE_INFO_DIRECTORY: &str = "/var/run/k8s.cni.cncf.io/devinfo/cni";
/// The longest name that such a file gets, in bytes: a draft beside it has a longer one, and 255 is the most.
const MAX_DEVICE_INFO_NAME: usize = 240;

/// The device that kubelet has given the pod for a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device<'a> {
    /// Its id, as the device plugin calls it.
    pub id: &'a str,
    /// The file in which the plugin is to describe it.
    pub info_file: &'a str,
}

/// The file of a device's description, as Multus names it: unique by network, container and interface.
pub fn device_info_file(network: &str, container_id: &str, interface: &str) -> String {
    let name = format!("{network}-{container_id}_{interface}").replace('/', "-");
    // Of a longer name the end is enough: no other attachment has this container and this interface.
    let end = name.get(name.len().saturating_sub(MAX_DEVICE_INFO_NAME)..).unwrap_or(&name);
    format!("{DEVICE_INFO_DIRECTORY}/{end}")
}

/// The capability arguments of one of a pod's further networks.
pub fn of_network(selection: &NetworkSelection, device: Option<Device<'_>>) -> Map<String, Value> {
    let mut args = Map::new();
    if !selection.port_mappings.is_empty() {
        args.insert("portMappings".to_owned(), json!(selection.port_mappings));
    }
    if let Some(bandwidth) = &selection.bandwidth {
        args.insert("bandwidth".to_owned(), json!(bandwidth));
    }
    if !selection.ips.is_empty() {
        args.insert("ips".to_owned(), json!(selection.ips));
    }
    if let Some(mac) = &selection.mac {
        args.insert("mac".to_owned(), json!(mac));
    }
    if let Some(guid) = &selection.infiniband_guid {
        args.insert("infinibandGUID".to_owned(), json!(guid));
    }
    if let Some(device) = device {
        args.insert("deviceID".to_owned(), json!(device.id));
        args.insert("CNIDeviceInfoFile".to_owned(), json!(device.info_file));
    }
    args
}

/// The capability arguments of the default network: those of the runtime, and over them what the pod asks of a default network
/// of its own.
pub fn of_default_network(
    of_runtime: Map<String, Value>,
    selection: Option<&NetworkSelection>,
    device: Option<Device<'_>>,
) -> Map<String, Value> {
    let mut args = of_runtime;
    if let Some(selection) = selection {
        args.extend(of_network(selection, device));
    }
    args
}

/// What the pod asks for and no plugin of the list declares, so that nobody would do it. Sections 4.1.2.1.3 to 4.1.2.1.10 have such a
/// pod fail.
pub fn undeclared(selection: &NetworkSelection, plugins: &ConfList) -> Vec<String> {
    let all = of_network(selection, None).into_iter().map(|(name, _)| name);
    all.filter(|name| !declares(plugins, name)).collect()
}

fn declares(plugins: &ConfList, capability: &str) -> bool {
    (0..plugins.len()).any(|index| plugins.declares(index, capability))
}

/// The pairs that Multus adds to a further network's `CNI_ARGS`, for plugins that declare no capability.
pub fn cni_args_pairs(selection: &NetworkSelection) -> Vec<(&'static str, String)> {
    let mac = selection.mac.clone().map(|mac| ("MAC", mac));
    let ips = (!selection.ips.is_empty()).then(|| ("IP", selection.ips.join(",")));
    mac.into_iter().chain(ips).collect()
}

/// The same for a network whose plugins are known: without the addresses, where each plugin with an IPAM declares `ips`. It has them as a
/// capability argument then, and the IPAM host-local refuses two addresses by `CNI_ARGS`, where it looks for one.
pub fn cni_args_pairs_of(selection: &NetworkSelection, plugins: &ConfList) -> Vec<(&'static str, String)> {
    let mut pairs = cni_args_pairs(selection);
    let mut with_ipam = (0..plugins.len()).filter(|index| plugins.has_ipam(*index)).peekable();
    if with_ipam.peek().is_some() && with_ipam.all(|index| plugins.declares(index, "ips")) {
        pairs.retain(|(key, _)| *key != "IP");
    }
    pairs
}

/// Why `cni-args` cannot be put into a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CniArgsError {
    /// It is no JSON object.
    #[error("the network configuration cannot be read ({0}); it must be one JSON object")]
    Unreadable(String),
    /// Something on the way to `args.cni` is of another type.
    #[error(
        "\"{0}\" of the network configuration is no object, so cni-args cannot be put into it; make it one"
    )]
    NoObject(&'static str),
}

/// The configuration, of one plugin or of a list, with the pod's `cni-args` as `args.cni` of every plugin. What the pod says counts
/// before what is there (section 4.1.2.1.6.2). Without `cni-args` the text stays as it is.
///
/// # Errors
/// The text is no configuration that could take them.
pub fn with_cni_args(config: &str, cni_args: &Map<String, Value>) -> Result<String, CniArgsError> {
    if cni_args.is_empty() {
        return Ok(config.to_owned());
    }
    let mut keys: Map<String, Value> =
        serde_json::from_str(config).map_err(|error| CniArgsError::Unreadable(error.to_string()))?;
    match keys.get_mut("plugins") {
        Some(Value::Array(plugins)) => {
            for plugin in plugins {
                inject(plugin.as_object_mut().ok_or(CniArgsError::NoObject("plugins"))?, cni_args)?;
            }
        }
        Some(_) => return Err(CniArgsError::NoObject("plugins")),
        None => inject(&mut keys, cni_args)?,
    }
    Ok(Value::Object(keys).to_string())
}

fn inject(plugin: &mut Map<String, Value>, cni_args: &Map<String, Value>) -> Result<(), CniArgsError> {
    let cni = object(object(plugin, "args", "args")?, "cni", "args.cni")?;
    cni.extend(cni_args.clone());
    Ok(())
}

fn object<'a>(
    map: &'a mut Map<String, Value>,
    key: &str,
    place: &'static str,
) -> Result<&'a mut Map<String, Value>, CniArgsError> {
    let value = map.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().ok_or(CniArgsError::NoObject(place))
}
