//! Our own type, `fairlead`: the pod's default network by its name, or one interface by the first of several paths that can be
//! had.
//!
//! Unlike the types that others defined, it is read strictly: keys match exactly, and an unknown key is refused by its
//! name. Otherwise a spelling mistake would silently leave out a path.

use serde_json::{Map, Value};

use super::cluster_network::{self, ClusterNetwork};
use super::known_keys::{COMMON, DEVICE, PATHS};
use super::{HostDevice, Ipvlan, Macvlan, NetConf, Sriov, VhostUser, Vlan};
use crate::error::{CniError, Code};
use crate::names::shown;

/// A configuration of type `fairlead`.
#[derive(Debug, Clone, PartialEq)]
pub enum Fairlead {
    /// The key `clusterNetwork`, and those that go with it.
    ClusterNetwork(ClusterNetwork),
    /// The key `paths`: the first path that can be had is taken.
    Paths {
        /// Each path as a configuration of the path's type, with the name, version, `ipam` and runtime parts of the whole.
        paths: Vec<NetConf>,
        /// The key `numa`; `None` when it is absent.
        numa: Option<Numa>,
    },
}

/// How firmly a device must be on the pod's NUMA node, as the key `numa` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Numa {
    /// No device of another node is taken, `strict`.
    Strict,
    /// A device of another node is taken where the pod's node has none, `preferred`.
    Preferred,
    /// The node does not matter, `any`.
    Any,
}

impl Fairlead {
    /// Reads a configuration of type `fairlead`.
    ///
    /// # Errors
    /// Code 7, or 6 for a value of a wrong type.
    pub fn parse(conf: &NetConf) -> Result<Fairlead, CniError> {
        let whole = exact(&conf.raw)?;
        let forms = (whole.get("clusterNetwork"), whole.get("paths"));
        match forms {
            (Some(_), None) => {
                let known = [COMMON, &["clusterNetwork"], cluster_network::KEYS];
                only(&whole, &known, "a fairlead configuration with \"clusterNetwork\"")?;
                ClusterNetwork::read(&whole).map(Fairlead::ClusterNetwork)
            }
            (None, Some(paths)) => {
                only(
                    &whole,
                    &[COMMON, DEVICE, &["paths", "numa"]],
                    "a fairlead configuration with \"paths\"",
                )?;
                Ok(Fairlead::Paths { paths: read_paths(&whole, paths)?, numa: numa(whole.get("numa"))? })
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

/// Reads the text with its keys as they are written. It was read before, so this fails only for what the reading as Go does it
/// lets pass.
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

pub(super) fn wrong(key: &str, expected: &str) -> CniError {
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
        // The device may come with the call: as with sriov, that there is none shows when the path is tried.
        "host-device" => HostDevice::read(&conf).map(drop),
        "sriov" => Sriov::parse(&conf).map(drop),
        "vhost-user" => VhostUser::parse(&conf).map(drop),
        // The kinds read the values when the path is tried.
        _ => Ok(()),
    }?;
    Ok(conf)
}
