//! Our own type, `fairlead`: a network by name for the pod's default, or one interface by the first of several paths.
//!
//! Unlike the types that others defined, it is read strictly: keys match exactly and an unknown one is refused by
//! name, so that a slip never turns into a path silently not taken.

use serde_json::{Map, Value};

use super::{HostDevice, Ipvlan, Macvlan, NetConf, Sriov, Vlan};
use crate::error::{CniError, Code};
use crate::names::{self, shown};

/// A configuration of type `fairlead`.
#[derive(Debug, Clone, PartialEq)]
pub enum Own {
    /// `clusterNetwork`: the name of a configuration in the conf dir.
    ClusterNetwork(String),
    /// `paths`: the first that can be had is taken.
    Paths {
        /// Each path as a configuration of its own type, with this one's name, version, `ipam` and runtime parts.
        paths: Vec<NetConf>,
        /// `numa`; `None` when it is not told.
        numa: Option<Numa>,
    },
}

/// `numa`: how firmly a device must be on the pod's NUMA node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Numa {
    /// `strict`: no other node's device.
    Strict,
    /// `preferred`: another node's where there is none.
    Preferred,
    /// `any`
    Any,
}

/// Keys that every plugin's configuration may have.
const COMMON: &[&str] = &[
    "cniVersion",
    "name",
    "type",
    "capabilities",
    "args",
    "runtimeConfig",
    "prevResult",
    "dns",
    "ipam",
    "cni.dev/valid-attachments",
    "cni.dev/attachments",
];

/// What a meta plugin puts into a network's configuration: the device that kubelet has given the pod.
const DEVICE: &[&str] = &["deviceID", "pciBusID"];

/// Keys of a path, by its type.
const PATHS: &[(&str, &[&str])] = &[
    ("macvlan", &["master", "mode", "mtu", "mac", "linkInContainer", "bcqueuelen"]),
    ("ipvlan", &["master", "mode", "mtu", "linkInContainer"]),
    ("vlan", &["master", "vlanId", "mtu", "linkInContainer"]),
    ("host-device", &["device", "hwaddr", "kernelpath", "pciBusID"]),
    (
        "sriov",
        &[
            "pool",
            "resourceName",
            "driver",
            "deviceAccess",
            "vlan",
            "vlanQoS",
            "vlanProto",
            "mac",
            "spoofchk",
            "trust",
            "link_state",
            "min_tx_rate",
            "max_tx_rate",
        ],
    ),
    ("vhost-user", &["switch", "mac"]),
];

impl Own {
    /// Reads a configuration of our own type. Code 7, or 6 for a wrong type of a value.
    pub fn parse(conf: &NetConf) -> Result<Own, CniError> {
        let whole = exact(&conf.raw)?;
        let forms = (whole.get("clusterNetwork"), whole.get("paths"));
        match forms {
            (Some(network), None) => {
                only(
                    &whole,
                    &[COMMON, &["clusterNetwork"]],
                    "a fairlead configuration with \"clusterNetwork\"",
                )?;
                let name =
                    network.as_str().ok_or_else(|| wrong("clusterNetwork", "the name of a network"))?;
                names::network_name(name)?;
                Ok(Own::ClusterNetwork(name.to_owned()))
            }
            (None, Some(paths)) => {
                only(
                    &whole,
                    &[COMMON, DEVICE, &["paths", "numa"]],
                    "a fairlead configuration with \"paths\"",
                )?;
                Ok(Own::Paths { paths: read_paths(&whole, paths)?, numa: numa(whole.get("numa"))? })
            }
            _ => Err(CniError::new(
                Code::InvalidConfig,
                "a fairlead configuration needs either \"clusterNetwork\" or \"paths\"",
            )
            .with(
                "\"clusterNetwork\" names the pod's default network, \"paths\" lists ways to one interface",
            )),
        }
    }
}

/// The text with its keys as given. It was read before, so this fails only for what the lax reading let pass.
fn exact(raw: &str) -> Result<Map<String, Value>, CniError> {
    serde_json::from_str(raw)
        .map_err(|e| CniError::new(Code::Decode, format!("the JSON cannot be read: {e}")))
}

fn only(keys: &Map<String, Value>, known: &[&[&str]], what: &str) -> Result<(), CniError> {
    match keys.keys().find(|key| !known.iter().any(|known| known.contains(&key.as_str()))) {
        None => Ok(()),
        Some(key) => {
            Err(CniError::new(Code::InvalidConfig, format!("{what} has an unknown key {}", shown(key)))
                .with(format!("known keys: {}", known.concat().join(", "))))
        }
    }
}

fn wrong(key: &str, expected: &str) -> CniError {
    CniError::new(Code::Decode, format!("\"{key}\" of a fairlead configuration must be {expected}"))
}

fn numa(value: Option<&Value>) -> Result<Option<Numa>, CniError> {
    match value {
        None => Ok(None),
        Some(Value::String(text)) => match text.as_str() {
            "strict" => Ok(Some(Numa::Strict)),
            "preferred" => Ok(Some(Numa::Preferred)),
            "any" => Ok(Some(Numa::Any)),
            other => {
                let msg = format!("\"numa\" is {}, expected strict, preferred or any", shown(other));
                Err(CniError::new(Code::InvalidConfig, msg))
            }
        },
        Some(_) => Err(wrong("numa", "strict, preferred or any")),
    }
}

fn read_paths(whole: &Map<String, Value>, paths: &Value) -> Result<Vec<NetConf>, CniError> {
    let paths = paths.as_array().ok_or_else(|| wrong("paths", "a list"))?;
    if paths.is_empty() {
        return Err(CniError::new(Code::InvalidConfig, "\"paths\" is empty")
            .with("give at least one, as in {\"type\": \"macvlan\", \"master\": \"eth0\"}"));
    }
    let read = |(at, path)| {
        read_path(whole, path).map_err(|e| CniError { msg: format!("\"paths[{at}]\": {}", e.msg), ..e })
    };
    paths.iter().enumerate().map(read).collect()
}

fn read_path(whole: &Map<String, Value>, path: &Value) -> Result<NetConf, CniError> {
    let path = path.as_object().ok_or_else(|| wrong("paths", "a list of objects"))?;
    let kind = path.get("type").and_then(Value::as_str).unwrap_or_default();
    let Some((kind, keys)) = PATHS.iter().find(|(known, _)| *known == kind) else {
        let known: Vec<&str> = PATHS.iter().map(|(kind, _)| *kind).collect();
        let msg = format!("its type is {}, expected one of {}", shown(kind), known.join(", "));
        return Err(CniError::new(Code::InvalidConfig, msg));
    };
    only(path, &[&["type"], keys], &format!("a path of type {kind}"))?;
    let mut text = whole.clone();
    text.remove("paths");
    text.remove("numa");
    if *kind != "sriov" {
        DEVICE.iter().for_each(|key| drop(text.remove(*key)));
    }
    text.extend(path.clone());
    let conf = NetConf::parse(&Value::Object(text).to_string())?;
    match *kind {
        "macvlan" => Macvlan::parse(&conf).map(drop),
        "ipvlan" => Ipvlan::parse(&conf).map(drop),
        "vlan" => Vlan::parse(&conf).map(drop),
        "host-device" => HostDevice::parse(&conf).map(drop),
        "sriov" => Sriov::parse(&conf).map(drop),
        // Its values are read where it is served.
        _ => Ok(()),
    }?;
    Ok(conf)
}
