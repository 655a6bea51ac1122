//! Multus' configuration: `00-multus.conf` of the conf dir, and the `daemon-config.json` of its daemon.

use fairlead_cni::CniError;
use fairlead_cni::go_json::{self, Fields};
use serde_json::{Map, Value};

/// The `type` of Multus' executables: the one that does all by itself, and the one that asks the daemon.
const TYPES: [&str; 2] = ["multus", "multus-shim"];

/// Where the configuration of a network stands (`getNetDelegate` in Multus' pkg/k8sclient).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkSource {
    /// A definition of this name in [`MultusConfig::namespace`], else a configuration of this name in [`MultusConfig::conf_dir`].
    Name(String),
    /// A file, or a directory whose first file counts. Multus' daemon often writes the path as its container has it
    /// (`/host/etc/cni/net.d/…`).
    Path(String),
}

impl NetworkSource {
    fn of(text: String) -> NetworkSource {
        match text.contains('/') {
            true => NetworkSource::Path(text),
            false => NetworkSource::Name(text),
        }
    }
}

/// What Multus is told, with its defaults (`GetDefaultNetConf` and `LoadNetConf` in pkg/types/conf.go).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MultusConfig {
    /// `clusterNetwork`: the default network of every pod. `None` with [`MultusConfig::delegates`], and where Multus' daemon
    /// takes the first configuration of [`MultusConfig::first_of`].
    pub cluster_network: Option<NetworkSource>,
    /// `defaultNetworks`: what every pod has besides, except those of [`MultusConfig::system_namespaces`].
    pub default_networks: Vec<NetworkSource>,
    /// `delegates`: the old form. The first one is the default network, and each is the text of a configuration.
    pub delegates: Vec<String>,
    /// `systemNamespaces`; `kube-system`.
    pub system_namespaces: Vec<String>,
    /// `multusNamespace`, whose definitions the cluster's networks are; `kube-system`.
    pub namespace: String,
    /// `namespaceIsolation`: pods use definitions of their own namespace and of [`MultusConfig::global_namespaces`] only.
    pub namespace_isolation: bool,
    /// `globalNamespaces`; `default`.
    pub global_namespaces: Vec<String>,
    /// `readinessindicatorfile`: before it is there the default network is not ready.
    pub readiness_indicator_file: Option<String>,
    /// `capabilities`: what the runtime shall hand over.
    pub capabilities: Vec<String>,
    /// `auxiliaryCNIChainName`: plugins of the directory of this name beside the cluster network's file are run last.
    pub auxiliary_chain: Option<String>,
    /// `confDir`; `/etc/cni/multus/net.d`.
    pub conf_dir: String,
    /// `cniDir`, where the files of [`super::cached_attachments`] are; `/var/lib/cni/multus`.
    pub cni_dir: String,
    /// `binDir`; `/opt/cni/bin`.
    pub bin_dir: String,
    /// `multusMasterCNI`: the file of the cluster network, in [`MultusConfig::first_of`].
    pub master_file: Option<String>,
    /// `multusAutoconfigDir`, else `cniConfigDir`: where the daemon finds the cluster network, and writes `00-multus.conf`;
    /// `/etc/cni/net.d`.
    pub first_of: String,
}

/// Whether this is a configuration of Multus.
pub fn is_multus(config: &str) -> bool {
    let value = go_json::parse(config);
    let kind = value.as_ref().ok().and_then(|value| Fields::of(value).ok()?.text("type").ok()?);
    kind.is_some_and(|kind| TYPES.contains(&kind.as_str()))
}

impl MultusConfig {
    /// Reads the configuration of the conf dir, and the daemon's, whose keys count before those
    /// (`overrideCNIConfigWithServerConfig` in pkg/server).
    ///
    /// # Errors
    /// Code 6 for a text or a key that cannot be read.
    pub fn read(config: &str, of_daemon: Option<&str>) -> Result<MultusConfig, CniError> {
        let mut keys = keys(config)?;
        let mut delegates = raw_delegates(config);
        if let Some(text) = of_daemon {
            keys.extend(self::keys(text)?);
            delegates = raw_delegates(text).or(delegates);
        }
        let value = Value::Object(keys);
        let fields = Fields::of(&value)?;
        let text = |key, default: &str| Ok(fields.text(key)?.unwrap_or_else(|| default.to_owned()));
        let cluster_network = fields.text("clusterNetwork")?.map(NetworkSource::of);
        Ok(MultusConfig {
            delegates: match cluster_network {
                Some(_) => Vec::new(),
                None => delegates.unwrap_or_default(),
            },
            cluster_network,
            default_networks: fields.texts("defaultNetworks")?.into_iter().map(NetworkSource::of).collect(),
            system_namespaces: match fields.item("systemNamespaces") {
                Some(_) => fields.texts("systemNamespaces")?,
                None => vec!["kube-system".to_owned()],
            },
            namespace: text("multusNamespace", "kube-system")?,
            namespace_isolation: fields.flag("namespaceIsolation")?,
            global_namespaces: comma_list(&text("globalNamespaces", "default")?),
            readiness_indicator_file: fields.text("readinessindicatorfile")?,
            capabilities: capabilities(&fields)?,
            auxiliary_chain: fields.text("auxiliaryCNIChainName")?,
            conf_dir: text("confDir", "/etc/cni/multus/net.d")?,
            cni_dir: text("cniDir", "/var/lib/cni/multus")?,
            bin_dir: text("binDir", "/opt/cni/bin")?,
            master_file: fields.text("multusMasterCNI")?,
            first_of: text("multusAutoconfigDir", &text("cniConfigDir", "/etc/cni/net.d")?)?,
        })
    }

    /// The networks that pods of a namespace have beside the default one, before those that they ask for.
    pub fn default_networks_of(&self, pod_namespace: &str) -> &[NetworkSource] {
        match self.system_namespaces.iter().any(|system| system == pod_namespace) {
            true => &[],
            false => &self.default_networks,
        }
    }
}

fn keys(text: &str) -> Result<Map<String, Value>, CniError> {
    let value = go_json::parse(text)?;
    Fields::of(&value)?;
    match value {
        Value::Object(keys) => Ok(keys),
        _ => Ok(Map::new()),
    }
}

/// The texts of `delegates`, with their keys as they were written: not every plugin takes them in any case.
fn raw_delegates(text: &str) -> Option<Vec<String>> {
    let value: Value = serde_json::from_str(text).ok()?;
    let list = Fields::of(&value).ok()?.raw("delegates")?.as_array()?;
    Some(list.iter().filter(|delegate| delegate.is_object()).map(Value::to_string).collect())
}

fn comma_list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn capabilities(fields: &Fields<'_>) -> Result<Vec<String>, CniError> {
    fields.object("capabilities")?;
    let map = fields.raw("capabilities").and_then(Value::as_object);
    let declared = map.into_iter().flatten().filter(|(_, value)| **value == Value::Bool(true));
    Ok(declared.map(|(name, _)| name.clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_of_multus_own_documents_is_read() {
        let text = r#"{"cniVersion":"0.3.1","name":"node-cni-network","type":"multus","kubeconfig":"/etc/kubernetes/node.yaml",
            "confDir":"/etc/cni/multus/conf","cniDir":"/var/lib/multus","binDir":"/usr/libexec/cni",
            "capabilities":{"portMappings":true,"Bandwidth":false},"readinessindicatorfile":"/run/ready",
            "namespaceIsolation":true,"globalNamespaces":"default, shared,","clusterNetwork":"/etc/cni/net.d/99-flannel.conf",
            "defaultNetworks":["sidecar","/etc/x/y.conf"],"systemNamespaces":["kube-system","admin"],
            "multusNamespace":"net","auxiliaryCNIChainName":"chain"}"#;
        let config = MultusConfig::read(text, None).unwrap();
        let path = |text: &str| NetworkSource::Path(text.to_owned());
        assert_eq!(config.cluster_network, Some(path("/etc/cni/net.d/99-flannel.conf")));
        let added = [NetworkSource::Name("sidecar".to_owned()), path("/etc/x/y.conf")];
        assert_eq!(config.default_networks_of("shop"), added);
        assert_eq!(config.default_networks_of("admin"), []);
        assert_eq!((config.namespace.as_str(), config.namespace_isolation), ("net", true));
        assert_eq!(config.global_namespaces, ["default", "shared"]);
        assert_eq!(config.readiness_indicator_file.as_deref(), Some("/run/ready"));
        assert_eq!(config.capabilities, ["portMappings"]);
        assert_eq!(config.auxiliary_chain.as_deref(), Some("chain"));
        let directories = [config.conf_dir, config.cni_dir, config.bin_dir];
        assert_eq!(directories, ["/etc/cni/multus/conf", "/var/lib/multus", "/usr/libexec/cni"]);
    }

    #[test]
    fn what_is_not_there_has_multus_own_defaults() {
        let config = MultusConfig::read(r#"{"type":"multus","clusterNetwork":"cbr0"}"#, None).unwrap();
        assert_eq!(config.cluster_network, Some(NetworkSource::Name("cbr0".to_owned())));
        assert_eq!(config.system_namespaces, ["kube-system"]);
        assert_eq!(config.namespace, "kube-system");
        assert_eq!(
            (config.namespace_isolation, config.global_namespaces),
            (false, vec!["default".to_owned()])
        );
        let directories = [config.conf_dir, config.cni_dir, config.bin_dir, config.first_of];
        assert_eq!(
            directories,
            ["/etc/cni/multus/net.d", "/var/lib/cni/multus", "/opt/cni/bin", "/etc/cni/net.d"]
        );
    }

    #[test]
    fn the_keys_of_the_daemon_count_before_those_of_the_conf_dir() {
        let shim = r#"{"cniVersion":"0.3.1","name":"multus-cni-network","type":"multus-shim",
            "clusterNetwork":"/host/etc/cni/net.d/10-flannel.conflist","systemNamespaces":["a"]}"#;
        let daemon = r#"{"chrootDir":"/hostroot","cniVersion":"0.3.1","cniConfigDir":"/host/etc/cni/net.d",
            "multusAutoconfigDir":"/host/etc/cni/auto","multusConfigFile":"auto","multusMasterCNI":"10-flannel.conflist",
            "SystemNamespaces":["b"]}"#;
        assert!(
            is_multus(shim) && !is_multus(daemon) && !is_multus(r#"{"type":"bridge"}"#) && !is_multus("[")
        );
        let config = MultusConfig::read(shim, Some(daemon)).unwrap();
        assert_eq!(config.system_namespaces, ["b"]);
        assert_eq!(config.first_of, "/host/etc/cni/auto");
        assert_eq!(config.master_file.as_deref(), Some("10-flannel.conflist"));
        let file = NetworkSource::Path("/host/etc/cni/net.d/10-flannel.conflist".to_owned());
        assert_eq!(config.cluster_network, Some(file));
        // The daemon alone, before it has written the other file.
        assert_eq!(MultusConfig::read("{}", Some(daemon)).unwrap().cluster_network, None);
    }

    #[test]
    fn delegates_of_the_old_form_keep_their_keys_and_do_not_count_beside_a_cluster_network() {
        let old = r#"{"type":"multus","delegates":[{"Type":"flannel","Delegate":{"isDefaultGateway":true}},{"type":"x"}]}"#;
        let config = MultusConfig::read(old, None).unwrap();
        assert_eq!(config.cluster_network, None);
        assert_eq!(
            config.delegates,
            [r#"{"Delegate":{"isDefaultGateway":true},"Type":"flannel"}"#, r#"{"type":"x"}"#]
        );
        let both = old.replace(r#""type":"multus""#, r#""type":"multus","clusterNetwork":"cbr0""#);
        assert_eq!(MultusConfig::read(&both, None).unwrap().delegates, Vec::<String>::new());
    }

    #[test]
    fn what_cannot_be_read_is_told_by_key() {
        let error = MultusConfig::read(r#"{"defaultNetworks":"a"}"#, None).unwrap_err().msg;
        assert_eq!(error, "\"defaultNetworks\" is the string \"a\", expected a list");
        assert!(MultusConfig::read("[]", None).is_err() && MultusConfig::read("{", None).is_err());
        assert!(MultusConfig::read("{}", Some("7")).is_err());
    }
}
