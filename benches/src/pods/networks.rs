//! The networks of a pod: its default one, the definition that it asks for, and how each subject is told of them.

use std::path::Path;

use serde_json::{Value, json};

use crate::network_config::{SECOND_SUBNET, config};
use crate::node::MASTER;

/// The namespace of the pods and of the definition.
pub(crate) const NAMESPACE: &str = "bench";
/// The name of the definition.
pub(crate) const SECOND: &str = "second";
/// The name of the cluster's default network.
const DEFAULT: &str = "pods";
/// The interfaces that such a pod has.
pub(crate) const INTERFACES: &[&str] = &["eth0", "net1"];
/// The annotation by which a pod asks for networks.
pub(crate) const ANNOTATION: &str = "k8s.v1.cni.cncf.io/networks";

/// The cluster's default network, as a file of the conf dir: the macvlan that is measured alone, too.
pub(crate) fn default_network(data_dir: &Path) -> Value {
    let mut plugin = config(data_dir);
    if let Some(keys) = plugin.as_object_mut() {
        keys.remove("cniVersion");
        keys.remove("name");
    }
    json!({ "cniVersion": "1.0.0", "name": DEFAULT, "plugins": [plugin] })
}

/// The text of the definition.
pub(crate) fn second(data_dir: &Path) -> String {
    json!({
        "cniVersion": "1.0.0", "name": SECOND, "type": "macvlan", "master": MASTER, "mode": "bridge",
        "ipam": { "type": "host-local", "dataDir": data_dir, "ranges": [[{"subnet": SECOND_SUBNET}]] },
    })
    .to_string()
}

/// What the runtime calls ours with, without the pod's annotations.
pub(crate) fn by_watch() -> Value {
    json!({ "cniVersion": "1.0.0", "name": "cluster", "type": "fairlead", "clusterNetwork": DEFAULT })
}

/// The same as containerd calls it, with them.
pub(crate) fn by_call() -> Value {
    let mut config = by_watch();
    config["runtimeConfig"] = json!({ "io.kubernetes.cri.pod-annotations": { ANNOTATION: SECOND } });
    config
}
