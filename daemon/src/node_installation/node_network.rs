//! Which network the runtime takes on this node, and why that is not what the settings want, as `status` tells it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fairlead_cni::config::{ConfList, Fairlead};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Map;

use super::first_in_conf_dir::first_file;
use crate::conf_dir;
use crate::engine::OWN_TYPE;

/// What the installer has seen last; `None` before its first look. Whoever asks reads no directory, which may be on a disk that hangs.
pub(crate) type SeenNetwork = Arc<Mutex<Option<NodeNetwork>>>;

/// The network that the runtime takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeNetwork {
    /// The first file of the conf dir; `None`: there is none.
    pub(super) file: Option<PathBuf>,
    /// Whether that file has a plugin of our type: then no pod starts without the daemon.
    pub(super) fairlead: bool,
    /// The network that pods get first, where that file names one.
    pub(super) cluster_network: Option<String>,
    /// Why the node is not as `install` of the settings wants it; `None`: it is.
    pub(super) failing: Option<String>,
    /// The host has replaced a directory: nobody knows what the runtime takes.
    pub(super) replaced: bool,
}

impl NodeNetwork {
    /// Reads the conf dir.
    pub(super) fn in_dir(conf_dir: &Path, failing: Option<String>) -> NodeNetwork {
        let file = first_file(conf_dir);
        let list = file.as_deref().and_then(|file| conf_dir::load(file).ok());
        NodeNetwork {
            file,
            fairlead: list.as_ref().is_some_and(|list| list.plugin_types().any(|t| t == OWN_TYPE)),
            cluster_network: list.as_ref().and_then(cluster_network_of),
            failing,
            replaced: false,
        }
    }

    /// That of a node whose directories are not seen.
    pub(super) fn unknown(failing: Option<String>) -> NodeNetwork {
        NodeNetwork { file: None, fairlead: false, cluster_network: None, failing, replaced: true }
    }
}

/// The network that pods get first by a configuration of ours; `None`: it is none of ours, or names none.
pub(crate) fn cluster_network_of(list: &ConfList) -> Option<String> {
    let conf = list.plugin_conf(0, None, &Map::new()).ok().filter(|conf| conf.plugin_type == OWN_TYPE)?;
    match Fairlead::parse(&conf) {
        Ok(Fairlead::ClusterNetwork(node)) => Some(node.name),
        _ => None,
    }
}
