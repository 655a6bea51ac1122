//! What whoever attaches a pod asks of the cluster, and tells it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::pod::{Pod, PodRef};

/// So long a pod of another uid may be the one before the one that is asked for, whose event is still on its way.
pub const ONE_BEFORE: Duration = Duration::from_secs(2);

/// How long an answer may take, and who waits for it.
#[derive(Clone, Copy)]
pub struct Wait<'a> {
    /// The time by which there must be an answer.
    pub deadline: Instant,
    /// Asked now and then; true ends the wait, because nobody is there any more who wants the answer.
    pub gone: &'a dyn Fn() -> bool,
}

impl fmt::Debug for Wait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// A network that a tenant, or the administrator of the cluster, has defined in the API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// The namespace of the object.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// `spec.config`: a CNI configuration or a list of plugins. `None` where it is empty, and a configuration of this name in the
    /// conf dir is meant (NPWG 1.3, section 3.3).
    pub config: Option<Arc<str>>,
    /// The annotation `k8s.v1.cni.cncf.io/resourceName`: the resource of the device plugin whose devices the network takes.
    pub resource: Option<String>,
}

/// A definition that the cluster has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownDefinition {
    /// The namespace of the object.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// The definition, or why it cannot be used.
    pub found: Result<Arc<Definition>, String>,
}

/// An object `Network` of the legacy API `alpha.network.k8s.io/v1`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LegacyNetwork {
    /// The namespace of the object.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// `spec.plugin`: the program to call with a generated configuration. `None` where it is empty, and the configuration of
    /// this name in the conf dir is meant.
    pub plugin: Option<String>,
}

/// Why the cluster gives no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// The watch has not seen it until the deadline; it may come.
    #[error("pod {namespace}/{name} is not known on this node yet ({reason})")]
    PodNotSeen {
        /// The namespace of the pod.
        namespace: String,
        /// The name of the pod.
        name: String,
        /// Whether the API server answers.
        reason: String,
    },
    /// The pod was deleted, before or while it was waited for.
    #[error("pod {namespace}/{name} was deleted")]
    PodDeleted {
        /// The namespace of the pod.
        namespace: String,
        /// The name of the pod.
        name: String,
    },
    /// The API has another pod of this name.
    #[error("pod {namespace}/{name} has the uid {found} by now, and the sandbox is that of {wanted}")]
    AnotherUid {
        /// The namespace of the pod.
        namespace: String,
        /// The name of the pod.
        name: String,
        /// The uid of the runtime's pod.
        wanted: String,
        /// The uid of the API's pod.
        found: String,
    },
    /// The API has no such definition.
    #[error("the API has no NetworkAttachmentDefinition {namespace}/{name}")]
    NoDefinition {
        /// The namespace of the definition.
        namespace: String,
        /// The name of the definition.
        name: String,
    },
    /// There is such a definition, and it cannot be used.
    #[error("NetworkAttachmentDefinition {namespace}/{name} cannot be used: {reason}")]
    UnusableDefinition {
        /// The namespace of the definition.
        namespace: String,
        /// The name of the definition.
        name: String,
        /// What is wrong with the object, and what to do about it.
        reason: String,
    },
    /// The API has no such legacy network.
    #[error("the API has no Network {namespace}/{name} (alpha.network.k8s.io/v1)")]
    NoLegacyNetwork {
        /// The namespace of the object.
        namespace: String,
        /// The name of the object.
        name: String,
    },
    /// There is such a legacy network, and it cannot be used.
    #[error("Network {namespace}/{name} (alpha.network.k8s.io/v1) cannot be used: {reason}")]
    UnusableLegacyNetwork {
        /// The namespace of the object.
        namespace: String,
        /// The name of the object.
        name: String,
        /// What is wrong with the object, and what to do about it.
        reason: String,
    },
    /// It is not known whether there is such a legacy network.
    #[error("Network {namespace}/{name} (alpha.network.k8s.io/v1) is not known ({reason})")]
    LegacyNetworkNotSeen {
        /// The namespace of the object.
        namespace: String,
        /// The name of the object.
        name: String,
        /// Why the watch has nothing.
        reason: String,
    },
    /// It is not known whether there is such a definition.
    #[error("NetworkAttachmentDefinition {namespace}/{name} is not known ({reason})")]
    DefinitionNotSeen {
        /// The namespace of the definition.
        namespace: String,
        /// The name of the definition.
        name: String,
        /// Why the watch has nothing.
        reason: String,
    },
}

/// The cluster. All answers come from memory; what is told is written later, by a thread of the cluster's own.
pub trait Cluster: fmt::Debug + Send + Sync {
    /// The pod of this name; one with another uid is refused, unless it is static. Waits until the pod is seen, and wakes at once
    /// when it is.
    ///
    /// # Errors
    /// Why there is no such pod: it was deleted, it is another one, or it was not seen in time.
    fn pod(&self, wanted: &PodRef, wait: &Wait<'_>) -> Result<Arc<Pod>, ClusterError>;

    /// Whether the cluster knows that this pod is no more: it was deleted, or another one has its name. A pod of which nothing is known is
    /// no such one, and neither is any while the API server cannot be asked. Where the name is known with another uid, it waits until it
    /// is clear which of the two is the newer, at most [`ONE_BEFORE`].
    ///
    /// # Errors
    /// Why it is no more.
    fn must_not_be_gone(&self, wanted: &PodRef, wait: &Wait<'_>) -> Result<(), ClusterError>;

    /// The pods of this node that are meant, as they were seen last. Never waits.
    fn known_pods(&self, meant: &dyn Fn(&PodRef) -> bool) -> Vec<Arc<Pod>>;

    /// All definitions, as they were seen last. Never waits.
    fn known_definitions(&self) -> Vec<KnownDefinition>;

    /// The definition of this name. Waits while the watch has not listed all.
    ///
    /// # Errors
    /// There is none, it cannot be used, or it is not known in time.
    fn definition(
        &self,
        namespace: &str,
        name: &str,
        wait: &Wait<'_>,
    ) -> Result<Arc<Definition>, ClusterError>;

    /// The `Network` of the legacy API of this name. Waits as [`Cluster::definition`] does.
    ///
    /// # Errors
    /// There is none, or that is not known in time.
    fn legacy_network(
        &self,
        namespace: &str,
        name: &str,
        wait: &Wait<'_>,
    ) -> Result<Arc<LegacyNetwork>, ClusterError>;

    /// The labels of a namespace; `None` while they are not known.
    fn namespace_labels(&self, namespace: &str) -> Option<Arc<BTreeMap<String, String>>>;

    /// From now on the labels of namespaces are wanted, which are not watched otherwise. They are known a moment later.
    fn watch_namespace_labels(&self);

    /// Has the annotation network-status of a pod written, as soon as that can be done; a later value replaces one that is not
    /// written yet.
    fn report(&self, pod: &PodRef, network_status: String);

    /// The same after a restart, unless the pod has this very value already: the daemon before may have been killed before it
    /// told anybody.
    fn report_again(&self, pod: &PodRef, network_status: String);

    /// The pods whose network-status has waited for longer than this to be written, whatever keeps it.
    fn late_reports(&self, longer_than: Duration) -> Vec<PodRef>;

    /// Has other annotations of a pod written, as soon as that can be done and in any case; later values replace earlier ones of their
    /// names that are not written yet.
    fn annotate(&self, pod: &PodRef, annotations: Vec<(&'static str, String)>);

    /// Has an Event written that tells a person what the pod lacks. The same words for the same pod are counted, not repeated.
    fn warn(&self, pod: &PodRef, reason: &'static str, message: &str);
}
