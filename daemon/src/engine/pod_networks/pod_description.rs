//! What a pod asks for beside what it has, for the operator who asks why it lacks something. Nothing is waited for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use fairlead_cni::config::{ClusterNetwork, Fairlead};
use fairlead_kube::npwg::ObjectKind;
use fairlead_kube::{ClusterError, Pod, PodRef, Wait};
use serde_json::{Value, json};

use super::requested_networks::{annotations, asked};
use super::{AskedNetwork, PodNetworks};
use crate::call::{CallerGone, Waiting};
use crate::engine::Engine;
use crate::engine::attachment_request::Sandbox;
use crate::engine::cluster_network::runtime_config;
use crate::store::{Attachment, Phase};

/// The interface of the default network where no attachment tells it.
const DEFAULT_INTERFACE: &str = "eth0";

/// Nothing is executed, so nobody's namespace and programs are named.
const NOBODY: Sandbox<'static> = Sandbox {
    container: "",
    netns: "",
    netns_inode: None,
    callers_netns: None,
    callers_cookie: None,
    args: "",
    path: "",
    env: &[],
    spooled: None,
    issued: None,
};

/// A pod whose annotations are known, and what was attached for it.
struct KnownPod {
    pod: Arc<Pod>,
    /// Who has told the annotations; nobody where there is no cluster and no runtime that tells them.
    told_by: Option<&'static str>,
    attachments: Vec<Arc<Attachment>>,
}

impl Engine {
    /// What each of the pods that are meant asks for, and of each network whether the pod has it, or why not. `failures` are the
    /// rows of their failed calls, the last one first.
    pub(in crate::engine) fn asked_and_got(
        &self,
        meant: &dyn Fn(&PodRef) -> bool,
        attachments: &[Arc<Attachment>],
        failures: &[Value],
    ) -> Vec<Value> {
        let pods = self.known_pods(meant, attachments);
        pods.iter().map(|known| self.asked_of(known, failures)).collect()
    }

    /// Why nothing is known of a pod, neither an interface nor a failed call.
    pub(in crate::engine) fn why_nothing(&self, named: &str, is_known: bool) -> String {
        let Some(cluster) = self.cluster.as_deref() else {
            return "the runtime has not asked; no API server is configured, so only pods are known for which it has".to_owned();
        };
        if is_known {
            return "the pod is on this node, and the runtime has not asked: its sandbox is not made yet, it has the host's network, \
                    or the runtime's network is another one"
                .to_owned();
        }
        let Some((namespace, name)) = named.split_once('/') else {
            return "no pod of this name is known on this node; NAMESPACE/POD is looked for in the API"
                .to_owned();
        };
        let pod = PodRef { namespace: namespace.to_owned(), name: name.to_owned(), uid: None };
        match cluster.pod(&pod, &Wait { deadline: Instant::now(), gone: &|| false }) {
            Err(why @ ClusterError::PodDeleted { .. }) => why.to_string(),
            Err(why) => format!("{why}; it may be on another node"),
            Ok(_) => "the runtime has not asked".to_owned(),
        }
    }

    /// By namespace and name: those with attachments, whose call may have told the annotations, then those of the API.
    fn known_pods(&self, meant: &dyn Fn(&PodRef) -> bool, attachments: &[Arc<Attachment>]) -> Vec<KnownPod> {
        let by_name = |pod: &PodRef| (pod.namespace.clone(), pod.name.clone());
        let mut known: BTreeMap<(String, String), KnownPod> = BTreeMap::new();
        for (attachment, id) in attachments.iter().filter_map(|a| Some((a, a.pod.clone()?))) {
            let pod = Pod { id, annotations: BTreeMap::new(), is_static: false, shared_dir: None };
            let one = known.entry(by_name(&pod.id)).or_insert_with(|| KnownPod {
                pod: Arc::new(pod),
                told_by: None,
                attachments: Vec::new(),
            });
            one.attachments.push(Arc::clone(attachment));
        }
        let is_any = |pod: &PodRef| meant(pod) || known.contains_key(&by_name(pod));
        for pod in self.cluster.iter().flat_map(|cluster| cluster.known_pods(&is_any)).collect::<Vec<_>>() {
            let (told_by, attachments) = (Some("the API"), Vec::new());
            let found = known.entry(by_name(&pod.id));
            let one = found.or_insert(KnownPod { pod: Arc::clone(&pod), told_by, attachments });
            (one.pod, one.told_by) = (pod, told_by);
        }
        // What came with the call is what the pod was attached by.
        for one in known.values_mut() {
            let of_call =
                one.attachments.iter().find_map(|a| annotations(&runtime_config(&a.config)).ok()?);
            if let Some(annotations) = of_call {
                one.pod = Arc::new(Pod { annotations, ..Pod::clone(&one.pod) });
                one.told_by = Some("the runtime's call");
            }
        }
        known.into_values().collect()
    }

    fn asked_of(&self, known: &KnownPod, failures: &[Value]) -> Value {
        let KnownPod { pod, told_by, attachments } = known;
        // containerd has "lo" made for every pod, too.
        let first = attachments.iter().find(|a| a.made_with.is_none() && a.key.ifname != "lo");
        let ifname = first.map_or(DEFAULT_INTERFACE, |a| a.key.ifname.as_str());
        let mut row = json!({
            "pod": pod.id.to_string(),
            "podUid": pod.id.uid,
            "toldBy": told_by,
            "defaultNetwork": Value::Null,
            "networks": [],
        });
        let node = first.and_then(|first| self.node_of(first));
        match asked(pod, &pod.id, ifname, &node.unwrap_or_else(|| ClusterNetwork::named(""))) {
            Ok(PodNetworks { default_network, others, .. }) => {
                let networks = others.iter().map(|other| self.network_of(known, other, failures));
                row["networks"] = networks.collect();
                row["defaultNetwork"] = default_network.map(|own| own.reference()).into();
            }
            Err(wrong) => row["refused"] = wrong.msg.into(),
        }
        row
    }

    /// What the attachment of a default network says of the node's other networks.
    pub(super) fn node_of(&self, first: &Attachment) -> Option<ClusterNetwork> {
        let conf = self.core.ipam.confs.get(&first.config, true).ok()?;
        match Fairlead::parse(&conf).ok()? {
            Fairlead::ClusterNetwork(node) => Some(node),
            Fairlead::Paths { .. } => None,
        }
    }

    /// One network: in which phase the pod's interface is, or why there is none.
    fn network_of(&self, known: &KnownPod, asked: &AskedNetwork, failures: &[Value]) -> Value {
        let is_there = |a: &Attachment| !matches!(a.phase, Phase::Removing | Phase::Silenced);
        let got = known.attachments.iter().find(|a| a.key.ifname == asked.interface && is_there(a));
        let why = match got {
            Some(_) => None,
            None => Some(self.why_not(&known.pod.id, asked, failures)),
        };
        json!({
            "network": asked.selection.reference(),
            "interface": asked.interface,
            "phase": got.map(|attachment| attachment.phase),
            "why": why,
        })
    }

    /// The last failure that is about the network; else what is wrong with its definition now; else that nobody has asked.
    fn why_not(&self, pod: &PodRef, asked: &AskedNetwork, failures: &[Value]) -> String {
        let network = format!("network {}, interface {:?}", asked.selection.reference(), asked.interface);
        let of_pod = |row: &&Value| row["pod"] == pod.to_string().as_str();
        let about_it = |row: &&Value| row["error"].as_str().is_some_and(|error| error.contains(&network));
        // What asks a plugin for its versions is not executed for somebody who only looks.
        if asked.selection.object == ObjectKind::Network {
            return "an object Network: see the failed calls".to_owned();
        }
        let waiting =
            Waiting { arrived: Instant::now(), deadline: Instant::now(), gone: CallerGone::default() };
        match self.definition(pod, &asked.selection, (NOBODY, &waiting)) {
            Err(wrong) => wrong.msg,
            Ok(_) if failures.iter().filter(of_pod).any(|row| about_it(&row)) => {
                "see the failed calls".to_owned()
            }
            Ok(_) if failures.iter().any(|row| of_pod(&row)) => {
                "its definition is well; another network of the pod has failed, and a pod has all or none"
                    .to_owned()
            }
            Ok(_) => {
                "its definition is well, and the runtime has not asked since the pod wants it".to_owned()
            }
        }
    }
}
