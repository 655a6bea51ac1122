//! The networks of a pod: its default one, and those that it asks for beside it.
//!
//! What a pod asks for comes with the call (containerd's capability `io.kubernetes.cri.pod-annotations`), else from the cluster's
//! watch. The default network is attached first, then the others in the pod's order. Their records say with which attachment they
//! were made: that one is committed last and removed last, so the pod has all of its networks or none (row M8).

mod allocated_devices;
mod attach_others;
mod check_others;
mod default_routes;
mod definitions;
mod lane;
mod lists_of_every_pod;
mod network_status_report;
mod pod_description;
mod requested_networks;
mod taken_path;
mod text_limit;

pub(super) use self::allocated_devices::{AllocatedDevices, without_device};
pub(super) use self::definitions::{DefaultList, FoundDefinition, OwnDefault};
pub(super) use self::lane::ImmediateNetworks;
pub(super) use self::network_status_report::own_name;
pub(super) use self::requested_networks::ANNOTATIONS;

use std::sync::Arc;

use fairlead_cni::{CniError, Code};
use fairlead_kube::npwg::NetworkSelection;
use fairlead_kube::{ClusterError, Pod, PodRef};

/// What a pod asks for.
#[derive(Debug)]
pub(crate) struct PodNetworks {
    pod: PodRef,
    /// The pod as the watch has told it; `None` where the runtime's call, or nobody, says what it asks for.
    watched_pod: Option<Arc<Pod>>,
    /// How much text of its annotations says something of networks, in bytes.
    annotations: usize,
    default_network: Option<NetworkSelection>,
    others: Vec<AskedNetwork>,
    /// What of the annotations has no meaning, in words.
    ignored: Vec<String>,
}

/// A network that a pod asks for beside its default one.
#[derive(Debug)]
struct AskedNetwork {
    selection: NetworkSelection,
    /// The name of the interface in the pod.
    interface: String,
}

impl PodNetworks {
    /// The network that the pod wants for its default one, in place of the cluster's.
    pub(super) fn default_network(&self) -> Option<&NetworkSelection> {
        self.default_network.as_ref()
    }

    /// The pod.
    pub(super) fn pod(&self) -> &PodRef {
        &self.pod
    }

    /// The pod as the watch has told it.
    pub(super) fn watched_pod(&self) -> Option<&Arc<Pod>> {
        self.watched_pod.as_ref()
    }
}

/// What the cluster does not say, as the runtime hears it: what may come is tried again.
fn told_of_cluster(why: &ClusterError) -> CniError {
    let (code, remedy) = match why {
        ClusterError::PodNotSeen { .. }
        | ClusterError::DefinitionNotSeen { .. }
        | ClusterError::LegacyNetworkNotSeen { .. } => (
            Code::TryAgain,
            "the runtime will try again; if it stays so: `fairleadd status` tells whether the API server answers",
        ),
        ClusterError::PodDeleted { .. } | ClusterError::AnotherUid { .. } => (
            Code::UnknownContainer,
            "the sandbox is that of a pod that is no more; its DEL is answered as always",
        ),
        ClusterError::NoDefinition { .. } | ClusterError::NoLegacyNetwork { .. } => (
            Code::InvalidConfig,
            "make it, or take it out of the pod's annotation; the runtime will try again",
        ),
        ClusterError::UnusableDefinition { .. } | ClusterError::UnusableLegacyNetwork { .. } => {
            (Code::InvalidConfig, "put the object right; the runtime will try again")
        }
    };
    CniError::new(code, why.to_string()).with(remedy)
}
