//! The network that every pod gets first, where a call names none: for the remote CNI, whose callers know pods and no networks.

use std::sync::Arc;

use fairlead_cni::config::ConfList;
use fairlead_cni::{CniError, Code};

use crate::conf_dir::{Networks, PLUGIN_DIR};
use crate::node_installation;
use crate::settings::LiveSettings;

/// Finds the network among those of the conf dir.
#[derive(Debug, Clone)]
pub struct DefaultNetwork {
    networks: Arc<Networks>,
    settings: Arc<LiveSettings>,
    plugin_path: Arc<str>,
}

impl DefaultNetwork {
    /// `plugin_dir`: `CNI_PLUGIN_DIR`.
    pub fn new(
        networks: Arc<Networks>,
        settings: Arc<LiveSettings>,
        plugin_dir: Option<&str>,
    ) -> DefaultNetwork {
        let plugin_path = plugin_dir.filter(|dir| !dir.is_empty()).unwrap_or(PLUGIN_DIR).into();
        DefaultNetwork { networks, settings, plugin_path }
    }

    /// Where plugins are looked for, as `CNI_PATH` has it.
    pub(crate) fn plugin_path(&self) -> &str {
        &self.plugin_path
    }

    /// The networks of the conf dir.
    pub(crate) fn networks(&self) -> &Networks {
        &self.networks
    }

    /// The network: the one that the settings name, else the one of an earlier install, else the first of the conf dir. One that
    /// came a moment ago is found, too. Reads files.
    ///
    /// # Errors
    /// Code 11, with what is to be done: the caller tries again.
    pub(crate) fn find(&self) -> Result<Arc<ConfList>, CniError> {
        let find = || {
            let settings = self.settings.current();
            let named = settings.install.as_ref().and_then(|install| install.cluster_network.as_deref());
            node_installation::cluster_network(&self.networks, named)
        };
        let found = find().or_else(|_| {
            self.networks.rescan();
            find()
        });
        found.map_err(|why| {
            CniError::new(Code::TryAgain, "this node has no network for pods").with(why.to_string())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::conf_dir::Directories;
    use crate::metrics::Node;

    fn over(dir: &Path) -> DefaultNetwork {
        let networks = Networks::new(Directories::new(dir, None, None), &["macvlan"], Node::default());
        let settings = LiveSettings::new(&dir.join("config.yaml"), Node::default());
        DefaultNetwork::new(Arc::new(networks), Arc::new(settings), Some("/a:/b"))
    }

    fn found(dir: &Path) -> Result<String, String> {
        over(dir).find().map(|list| list.name.clone()).map_err(|error| error.to_string())
    }

    #[test]
    fn m07_it_is_the_one_of_the_settings_else_of_the_install_else_the_first_that_can_be() {
        let root = tempfile::tempdir().unwrap();
        let (dir, conf) = (root.path(), root.path().join("etc/cni/net.d"));
        let told = found(dir).unwrap_err();
        assert!(told.contains("net.d") && told.contains("clusterNetwork"), "{told}");
        fs::create_dir_all(&conf).unwrap();
        let network = |file: &str, name: &str, plugin: &str| {
            let text = format!(r#"{{"cniVersion":"1.0.0","name":"{name}","plugins":[{plugin}]}}"#);
            fs::write(conf.join(file), text).unwrap();
        };
        network("10-multus.conflist", "multus", r#"{"type":"multus-shim"}"#);
        network("20-a.conflist", "a", r#"{"type":"macvlan"}"#);
        network("30-b.conflist", "b", r#"{"type":"macvlan"}"#);
        assert_eq!(found(dir).as_deref(), Ok("a"));
        network("00-fairlead.conflist", "fairlead", r#"{"type":"fairlead","clusterNetwork":"b"}"#);
        assert_eq!(found(dir).as_deref(), Ok("b"));
        fs::write(dir.join("config.yaml"), "install: {cni: present, clusterNetwork: a}").unwrap();
        assert_eq!(found(dir).as_deref(), Ok("a"));
        assert_eq!(over(dir).plugin_path(), "/a:/b");
    }

    #[test]
    fn r04_a_network_that_came_a_moment_ago_is_found() {
        let root = tempfile::tempdir().unwrap();
        let first = over(root.path());
        assert_eq!(first.find().unwrap_err().code, Code::TryAgain);
        let conf = root.path().join("etc/cni/net.d");
        fs::create_dir_all(&conf).unwrap();
        fs::write(conf.join("10-a.conf"), r#"{"cniVersion":"1.0.0","name":"a","type":"macvlan"}"#).unwrap();
        assert_eq!(first.find().unwrap().name, "a");
    }
}
