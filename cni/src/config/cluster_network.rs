//! `clusterNetwork` of our own type: a pod's default network by its name, and what every pod of the node goes by beside it.
//!
//! The other keys have Multus' names, meanings and defaults, so that a node's Multus configuration can be taken over as it is.

use serde_json::{Map, Value};

use super::fairlead::wrong;
use crate::error::{CniError, Code};
use crate::names::{self, shown};

/// The keys beside `clusterNetwork`.
pub(super) const KEYS: &[&str] = &[
    "defaultNetworks",
    "systemNamespaces",
    "multusNamespace",
    "namespaceIsolation",
    "globalNamespaces",
    "readinessindicatorfile",
    "cniDir",
];

/// The most networks that every pod gets beside its default one.
const MAX_DEFAULT_NETWORKS: usize = 64;

/// Where Multus keeps what it attached, unless it is told otherwise.
pub const MULTUS_CNI_DIR: &str = "/var/lib/cni/multus";

/// The configuration of a node's networks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterNetwork {
    /// `clusterNetwork`: the name of a configuration in the conf dir.
    pub name: String,
    /// `defaultNetworks`: what every pod gets after its default network, by the name of a configuration in the conf dir, or of a
    /// definition in `namespace`.
    pub default_networks: Vec<String>,
    /// `systemNamespaces`, whose pods do not get `default_networks`; `kube-system`.
    pub system_namespaces: Vec<String>,
    /// `multusNamespace`: whose definitions are meant where the administrator, or a pod's `v1.multus-cni.io/default-network`, names
    /// none; `kube-system`.
    pub namespace: String,
    /// `namespaceIsolation` and `globalNamespaces` (`default`): the namespaces whose definitions every pod may use beside its own;
    /// `None`: those of all.
    pub isolated_but_for: Option<Vec<String>>,
    /// `readinessindicatorfile`: the absolute path of a file of the host; before it is there, the default network is not ready.
    pub readiness_file: Option<String>,
    /// `cniDir`: the directory of the host in which Multus keeps what it attached.
    pub multus_dir: String,
}

impl ClusterNetwork {
    /// With Multus' defaults for all but the name.
    pub fn named(name: &str) -> ClusterNetwork {
        ClusterNetwork {
            name: name.to_owned(),
            default_networks: Vec::new(),
            system_namespaces: vec!["kube-system".to_owned()],
            namespace: "kube-system".to_owned(),
            isolated_but_for: None,
            readiness_file: None,
            multus_dir: MULTUS_CNI_DIR.to_owned(),
        }
    }

    /// The networks that a pod of this namespace gets after its default one.
    pub fn default_networks_of(&self, pod_namespace: &str) -> &[String] {
        match self.system_namespaces.iter().any(|system| system == pod_namespace) {
            true => &[],
            false => &self.default_networks,
        }
    }

    /// Reads the keys, of which the caller has seen to it that there are no others.
    pub(super) fn read(keys: &Map<String, Value>) -> Result<ClusterNetwork, CniError> {
        let name = text(keys, "clusterNetwork")?.unwrap_or_default();
        names::network_name(&name)?;
        let mut read = ClusterNetwork::named(&name);
        read.default_networks = texts(keys, "defaultNetworks")?.unwrap_or_default();
        read.default_networks.iter().try_for_each(|name| names::network_name(name))?;
        if read.default_networks.len() > MAX_DEFAULT_NETWORKS {
            let msg = format!("\"defaultNetworks\" has more than {MAX_DEFAULT_NETWORKS} networks");
            return Err(CniError::new(Code::InvalidConfig, msg).with("every pod would get them: name fewer"));
        }
        read.system_namespaces = texts(keys, "systemNamespaces")?.unwrap_or(read.system_namespaces);
        read.namespace = text(keys, "multusNamespace")?.unwrap_or(read.namespace);
        let global = text(keys, "globalNamespaces")?.unwrap_or_else(|| "default".to_owned());
        let global = global.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
        read.isolated_but_for = flag(keys, "namespaceIsolation")?.then(|| global.collect());
        read.readiness_file = absolute(keys, "readinessindicatorfile")?;
        read.multus_dir = absolute(keys, "cniDir")?.unwrap_or(read.multus_dir);
        Ok(read)
    }
}

fn text(keys: &Map<String, Value>, key: &str) -> Result<Option<String>, CniError> {
    match keys.get(key) {
        None => Ok(None),
        Some(Value::String(text)) if !text.is_empty() => Ok(Some(text.clone())),
        Some(_) => Err(wrong(key, "a text that is not empty")),
    }
}

fn texts(keys: &Map<String, Value>, key: &str) -> Result<Option<Vec<String>>, CniError> {
    let Some(value) = keys.get(key) else { return Ok(None) };
    serde_json::from_value(value.clone()).map(Some).map_err(|_| wrong(key, "a list of names"))
}

fn flag(keys: &Map<String, Value>, key: &str) -> Result<bool, CniError> {
    keys.get(key).map_or(Ok(false), |value| value.as_bool().ok_or_else(|| wrong(key, "true or false")))
}

/// A relative path would be looked for in the daemon's own directory, and `..` leads to nobody knows where.
fn absolute(keys: &Map<String, Value>, key: &str) -> Result<Option<String>, CniError> {
    let Some(path) = text(keys, key)? else { return Ok(None) };
    match path.starts_with('/') && !path.split('/').any(|part| part == "..") {
        true => Ok(Some(path)),
        false => {
            let msg = format!("\"{key}\" is {}, which is no absolute path without \"..\"", shown(&path));
            Err(CniError::new(Code::InvalidConfig, msg).with("give the path on the host"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Fairlead, NetConf};
    use super::*;

    fn read(more: &str) -> Result<Fairlead, CniError> {
        let text = format!(
            r#"{{"cniVersion":"1.0.0","name":"fairlead","type":"fairlead","clusterNetwork":"cbr0"{more}}}"#
        );
        Fairlead::parse(&NetConf::parse(&text)?)
    }

    #[test]
    fn a_cluster_network_takes_multus_keys_with_multus_defaults() {
        assert_eq!(read("").unwrap(), Fairlead::ClusterNetwork(ClusterNetwork::named("cbr0")));
        let more = r#","defaultNetworks":["sidecar"],"systemNamespaces":["kube-system","admin"],"multusNamespace":"net",
            "namespaceIsolation":true,"globalNamespaces":"default, shared,","readinessindicatorfile":"/run/ready","cniDir":"/var/lib/multus""#;
        let Fairlead::ClusterNetwork(all) = read(more).unwrap() else { panic!() };
        assert_eq!(all.default_networks_of("shop"), ["sidecar"]);
        assert_eq!(all.default_networks_of("admin"), Vec::<String>::new());
        assert_eq!(all.isolated_but_for, Some(vec!["default".to_owned(), "shared".to_owned()]));
        assert_eq!((all.namespace.as_str(), all.multus_dir.as_str()), ("net", "/var/lib/multus"));
        assert_eq!(all.readiness_file.as_deref(), Some("/run/ready"));
        let Fairlead::ClusterNetwork(open) = read(r#","globalNamespaces":"a""#).unwrap() else { panic!() };
        assert_eq!(open.isolated_but_for, None);
    }

    #[test]
    fn what_is_wrong_in_a_cluster_network_is_told_by_key() {
        for (more, told) in [
            (
                r#","defaultNetworks":"a""#,
                "\"defaultNetworks\" of a fairlead configuration must be a list of names",
            ),
            (r#","defaultNetworks":["a/b"]"#, "a/b"),
            (r#","namespaceIsolation":"yes""#, "true or false"),
            (r#","readinessindicatorfile":"run/ready""#, "\"readinessindicatorfile\" is \"run/ready\""),
            (r#","cniDir":"/var/../etc""#, "\"cniDir\""),
            (r#","defaultNetwork":["a"]"#, "unknown key"),
        ] {
            let error = read(more).unwrap_err();
            assert!(error.msg.contains(told), "{error}");
        }
        let many = format!(",\"defaultNetworks\":{:?}", vec!["a"; 65]);
        assert!(read(&many).unwrap_err().msg.contains("more than 64"));
    }
}
