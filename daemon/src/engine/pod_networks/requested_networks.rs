//! What the pod of a runtime's call asks for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use fairlead_cni::config::ClusterNetwork;
use fairlead_cni::{CniError, Code};
use fairlead_kube::npwg::{self, InterfaceNames, NetworkSelection, ObjectKind, RequestError};
use fairlead_kube::{Pod, PodRef, Wait, says_of_networks};
use serde_json::{Map, Value};

use super::{AskedNetwork, PodNetworks, told_of_cluster};
use crate::engine::Engine;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::cluster_network::runtime_config;
use crate::policy::{self, Refusal};

/// The capability by which containerd hands over what the pod is annotated with.
pub(in crate::engine) const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

impl Engine {
    /// What the pod asks for; `None` where nobody can say, and for a call that no pod of a cluster makes.
    pub(in crate::engine) fn networks_of_pod(
        &self,
        request: &AttachmentRequest<'_>,
        node: &ClusterNetwork,
    ) -> Result<Option<PodNetworks>, CniError> {
        // What a definition names is no pod's default network.
        if request.nested || request.namespace.is_some() {
            return Ok(None);
        }
        let Some(named) = PodRef::of_args(request.args) else { return Ok(None) };
        let known = self.pod_of_call(&named, request).map_err(|error| self.told(&named, error))?;
        let added = node.default_networks_of(&named.namespace);
        let (pod, is_watched) = match known {
            Some(known) => known,
            None if added.is_empty() => return Ok(None),
            // What every pod gets needs nobody's word.
            None => (annotated(&named, BTreeMap::new()), false),
        };
        let asked = asked(&pod, &named, &request.key.ifname, node);
        let asked = asked.and_then(|asked| asked.allowed_by(node)).and_then(|asked| {
            self.may_have_ports(&asked)?;
            Ok(asked)
        });
        let asked = asked.map_err(|error| {
            self.told(&named, CniError { msg: format!("pod {named}: {}", error.msg), ..error })
        })?;
        for ignored in &asked.ignored {
            tracing::warn!(pod = %named, ignored, "a part of the pod's annotations has no meaning");
            if let Some(cluster) = &self.cluster {
                cluster.warn(&named, "IgnoredNetworkAnnotation", ignored);
            }
        }
        Ok(Some(PodNetworks { watched_pod: is_watched.then_some(pod), ..asked }))
    }

    /// The ports of the node that the pod asks for must be such as the policy lets its namespace have.
    fn may_have_ports(&self, asked: &PodNetworks) -> Result<(), CniError> {
        let selections = asked.others.iter().map(|other| &other.selection).chain(&asked.default_network);
        let mut with_ports = selections.filter(|selection| !selection.port_mappings.is_empty()).peekable();
        if with_ports.peek().is_none() {
            return Ok(());
        }
        let namespace = &asked.pod.namespace;
        let call_settings = self.core.call_settings();
        let unknown = || Refusal::PolicyUnknown { namespace: namespace.clone() };
        let policy = call_settings.policy.as_deref().ok_or_else(unknown)?;
        let pods = self.tenant(namespace)?;
        with_ports.try_for_each(|selection| {
            let ports = selection.port_mappings.iter().map(|mapping| mapping.host_port);
            let (network, metrics) = (selection.reference(), call_settings.metrics_port);
            Ok(policy::may_have_host_ports(policy, &pods, &network, metrics, ports)?)
        })
    }

    /// The pod, and whether the watch tells what it asks for, and not the call itself.
    fn pod_of_call(
        &self,
        named: &PodRef,
        request: &AttachmentRequest<'_>,
    ) -> Result<Option<(Arc<Pod>, bool)>, CniError> {
        let runtime = runtime_config(&request.conf.raw);
        let cluster = self.cluster.as_deref();
        if let Some(annotations) = annotations(&runtime)? {
            if let Some(cluster) = cluster {
                let wait = Wait { deadline: request.waiting.deadline, gone: &|| request.waiting.gone.get() };
                // K12, whoever tells the annotations.
                cluster.must_not_be_gone(named, &wait).map_err(|why| told_of_cluster(&why))?;
            }
            return Ok(Some((annotated(named, annotations), false)));
        }
        let Some(cluster) = cluster else { return Ok(None) };
        let deadline = request.waiting.deadline.min(Instant::now() + self.core.call_settings().pod_wait);
        let wait = Wait { deadline, gone: &|| request.waiting.gone.get() };
        cluster.pod(named, &wait).map(|pod| Some((pod, true))).map_err(|why| told_of_cluster(&why))
    }
}

/// A pod of which no more is known than how it is called and annotated.
pub(super) fn annotated(named: &PodRef, annotations: BTreeMap<String, String>) -> Arc<Pod> {
    Arc::new(Pod { id: named.clone(), annotations, is_static: false, shared_dir: None })
}

/// What a pod gets: what every pod has, and then what its annotations ask for, in its order.
pub(super) fn asked(
    pod: &Pod,
    named: &PodRef,
    ifname: &str,
    node: &ClusterNetwork,
) -> Result<PodNetworks, CniError> {
    let wrong = |wrong: RequestError| CniError::new(Code::InvalidConfig, wrong.to_string());
    let requested = npwg::selections(&pod.annotations, &named.namespace, &node.namespace).map_err(wrong)?;
    let added = node.default_networks_of(&named.namespace);
    let names = InterfaceNames { default: ifname, added: added.len() };
    let own = names.of(&requested).map_err(wrong)?;
    let of_every_pod = added.iter().map(|name| NetworkSelection {
        object: ObjectKind::OfEveryPod,
        namespace: node.namespace.clone(),
        name: name.clone(),
        ..NetworkSelection::default()
    });
    let named_all = names.of_added().into_iter().chain(own);
    let others = of_every_pod.chain(requested.networks).zip(named_all);
    let others = others.map(|(selection, interface)| AskedNetwork { selection, interface }).collect();
    let ignored = requested.ignored.iter().map(ToString::to_string).collect();
    let of_networks = pod.annotations.iter().filter(|(annotation, _)| says_of_networks(annotation));
    Ok(PodNetworks {
        pod: named.clone(),
        watched_pod: None,
        annotations: of_networks.map(|(annotation, text)| annotation.len() + text.len()).sum(),
        default_network: requested.default_network,
        others,
        ignored,
    })
}

impl PodNetworks {
    /// What the pod asks for must be of namespaces that the node's configuration lets it use. What every pod gets is no pod's asking.
    fn allowed_by(self, node: &ClusterNetwork) -> Result<PodNetworks, CniError> {
        if let Some(global) = &node.isolated_but_for {
            let others = self.others.iter().map(|asked| &asked.selection);
            let others = others.filter(|selection| selection.object != ObjectKind::OfEveryPod);
            // The administrator's own default networks are there to be chosen among.
            let own = self.default_network.iter().filter(|selection| selection.namespace != node.namespace);
            for selection in others.chain(own) {
                policy::may_use_isolated(global, &self.pod.namespace, &selection.namespace)?;
            }
        }
        Ok(self)
    }
}

/// The annotations that came with the call, where the runtime gives them.
pub(super) fn annotations(
    runtime: &Map<String, Value>,
) -> Result<Option<BTreeMap<String, String>>, CniError> {
    let Some(given) = runtime.get(ANNOTATIONS) else { return Ok(None) };
    serde_json::from_value(given.clone()).map(Some).map_err(|e| {
        let msg = format!("runtimeConfig.{ANNOTATIONS} holds no annotations: {e}");
        CniError::new(Code::InvalidConfig, msg).with("the runtime writes an object of texts")
    })
}
