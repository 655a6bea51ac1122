//! A pod: by what it is known, and what it says of its networks.

use std::collections::BTreeMap;
use std::fmt;

use fairlead_cni::args::Args;
use serde::{Deserialize, Serialize};

use crate::npwg::network_status::NETWORK_STATUS;

/// The annotations that say something of networks begin with one of these.
const OF_NETWORKS: [&str; 6] = [
    "k8s.v1.cni.cncf.io/",
    "v1.multus-cni.io/",
    "alpha.network.k8s.io/",
    "fairlead",
    "kubernetes.io/ingress-bandwidth",
    "kubernetes.io/egress-bandwidth",
];

/// Whether an annotation of a pod says what its networks are to be. What has become of them (network-status) does not.
pub fn says_of_networks(annotation: &str) -> bool {
    annotation != NETWORK_STATUS && OF_NETWORKS.iter().any(|of| annotation.starts_with(of))
}

/// By what a pod is known. The name alone is used again: a StatefulSet's pod comes back under the same one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodRef {
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub name: String,
    /// The uid of the pod; `None` where the runtime does not tell it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

impl PodRef {
    /// The pod that the runtime names in `CNI_ARGS`; `None` where it names none.
    pub fn of_args(args: &Args) -> Option<PodRef> {
        let named = |key| args.get(key).filter(|value| !value.is_empty()).map(str::to_owned);
        Some(PodRef {
            namespace: named("K8S_POD_NAMESPACE")?,
            name: named("K8S_POD_NAME")?,
            uid: named("K8S_POD_UID"),
        })
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A pod as the API server or its runtime describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Whose annotations these are.
    pub id: PodRef,
    /// The annotations that say something of networks.
    pub annotations: BTreeMap<String, String>,
    /// True for a static pod, whose object in the API is a mirror: its uid is not that of the runtime's pod.
    pub is_static: bool,
    /// Its volume for sockets in user space, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_dir: Option<SharedDirVolume>,
}

/// The volume `shared-dir`, by which userspace-cni knows a pod's directory of sockets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedDirVolume {
    /// The directory of the host that it is; `None` where it is of another type than `hostPath`.
    pub host_path: Option<String>,
    /// Where the first container that has it sees it.
    pub mount_path: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_names_a_pod_by_namespace_and_name() {
        let of = |text: &str| PodRef::of_args(&Args::parse(text).unwrap());
        let pod = of("IgnoreUnknown=1;K8S_POD_UID=u-1;K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=shop").unwrap();
        assert_eq!((pod.to_string(), pod.uid.as_deref()), ("shop/web-0".to_owned(), Some("u-1")));
        assert_eq!(of("K8S_POD_NAME=web-0;K8S_POD_NAMESPACE="), None);
        assert_eq!(of("K8S_POD_NAME=a;K8S_POD_NAMESPACE=b").unwrap().uid, None);
    }
}
