//! A cluster in memory, for tests of whoever attaches pods.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, ClusterError, Definition, LegacyNetwork, Wait};
use crate::pod::{Pod, PodRef};

#[derive(Debug, Default)]
struct Seen {
    pods: HashMap<(String, String), Arc<Pod>>,
    deleted: Vec<PodRef>,
    definitions: HashMap<(String, String), Arc<Definition>>,
    networks: HashMap<(String, String), Arc<LegacyNetwork>>,
    labels: HashMap<String, Arc<BTreeMap<String, String>>>,
    reports: Vec<(PodRef, String)>,
    warnings: Vec<(PodRef, String)>,
    labels_wanted: bool,
}

/// The cluster: what a test puts in is seen, and what is told to it can be read.
#[derive(Debug, Default)]
pub struct FakeCluster {
    seen: Mutex<Seen>,
    changed: Condvar,
}

impl FakeCluster {
    fn change(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.seen.lock().unwrap());
        self.changed.notify_all();
    }

    /// A pod is there, with these annotations.
    pub fn put_pod(&self, id: &PodRef, annotations: &[(&str, &str)]) {
        let annotations = annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let pod = Pod { id: id.clone(), annotations, is_static: false };
        self.change(|seen| {
            seen.pods.insert((id.namespace.clone(), id.name.clone()), Arc::new(pod));
        });
    }

    /// A pod is deleted.
    pub fn delete_pod(&self, id: &PodRef) {
        self.change(|seen| {
            seen.pods.remove(&(id.namespace.clone(), id.name.clone()));
            seen.deleted.push(id.clone());
        });
    }

    /// A definition is there.
    pub fn put_definition(&self, namespace: &str, name: &str, config: &str, resource: Option<&str>) {
        let definition = Definition {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            config: (!config.is_empty()).then(|| config.into()),
            resource: resource.map(str::to_owned),
        };
        self.change(|seen| {
            seen.definitions.insert((namespace.to_owned(), name.to_owned()), Arc::new(definition));
        });
    }

    /// A `Network` of the legacy API is there.
    pub fn put_legacy_network(&self, namespace: &str, name: &str, plugin: Option<&str>) {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let network = LegacyNetwork {
            namespace: namespace.clone(),
            name: name.clone(),
            plugin: plugin.map(str::to_owned),
        };
        self.change(|seen| {
            seen.networks.insert((namespace, name), Arc::new(network));
        });
    }

    /// A definition is deleted.
    pub fn delete_definition(&self, namespace: &str, name: &str) {
        self.change(|seen| {
            seen.definitions.remove(&(namespace.to_owned(), name.to_owned()));
        });
    }

    /// The labels of a namespace are known.
    pub fn label_namespace(&self, namespace: &str, labels: &[(&str, &str)]) {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        self.change(|seen| {
            seen.labels.insert(namespace.to_owned(), Arc::new(labels));
        });
    }

    /// Whether the labels of namespaces were asked to be watched.
    pub fn labels_wanted(&self) -> bool {
        self.seen.lock().unwrap().labels_wanted
    }

    /// What was reported, in its order.
    pub fn reports(&self) -> Vec<(PodRef, String)> {
        self.seen.lock().unwrap().reports.clone()
    }

    /// What was warned of, in its order.
    pub fn warnings(&self) -> Vec<(PodRef, String)> {
        self.seen.lock().unwrap().warnings.clone()
    }
}

impl Cluster for FakeCluster {
    fn pod(&self, wanted: &PodRef, wait: &Wait<'_>) -> Result<Arc<Pod>, ClusterError> {
        let (namespace, name) = (wanted.namespace.clone(), wanted.name.clone());
        let mut seen = self.seen.lock().unwrap();
        loop {
            if let Some(pod) = seen.pods.get(&(namespace.clone(), name.clone())) {
                return match (&wanted.uid, &pod.id.uid) {
                    (Some(wanted), Some(found)) if wanted != found && !pod.is_static => {
                        let (wanted, found) = (wanted.clone(), found.clone());
                        Err(ClusterError::AnotherUid { namespace, name, wanted, found })
                    }
                    _ => Ok(Arc::clone(pod)),
                };
            }
            if seen.deleted.contains(wanted) {
                return Err(ClusterError::PodDeleted { namespace, name });
            }
            if Instant::now() >= wait.deadline || (wait.gone)() {
                return Err(ClusterError::PodNotSeen {
                    namespace,
                    name,
                    reason: "a test has not put it".into(),
                });
            }
            seen = self.changed.wait_timeout(seen, Duration::from_millis(20)).unwrap().0;
        }
    }

    fn known_pods(&self, meant: &dyn Fn(&PodRef) -> bool) -> Vec<Arc<Pod>> {
        let seen = self.seen.lock().unwrap();
        seen.pods.values().filter(|pod| meant(&pod.id)).cloned().collect()
    }

    fn definition(&self, namespace: &str, name: &str, _: &Wait<'_>) -> Result<Arc<Definition>, ClusterError> {
        let found =
            self.seen.lock().unwrap().definitions.get(&(namespace.to_owned(), name.to_owned())).cloned();
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        found.ok_or(ClusterError::NoDefinition { namespace, name })
    }

    fn legacy_network(
        &self,
        namespace: &str,
        name: &str,
        _: &Wait<'_>,
    ) -> Result<Arc<LegacyNetwork>, ClusterError> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let found = self.seen.lock().unwrap().networks.get(&(namespace.clone(), name.clone())).cloned();
        found.ok_or(ClusterError::NoLegacyNetwork { namespace, name })
    }

    fn watch_namespace_labels(&self) {
        self.change(|seen| seen.labels_wanted = true);
    }

    fn namespace_labels(&self, namespace: &str) -> Option<Arc<BTreeMap<String, String>>> {
        self.seen.lock().unwrap().labels.get(namespace).cloned()
    }

    fn report(&self, pod: &PodRef, network_status: String) {
        self.change(|seen| seen.reports.push((pod.clone(), network_status)));
    }

    fn report_again(&self, pod: &PodRef, network_status: String) {
        let told = |(of, status): &&(PodRef, String)| of == pod && *status == network_status;
        self.change(|seen| {
            if seen.reports.iter().rev().find(|(of, _)| of == pod).filter(told).is_none() {
                seen.reports.push((pod.clone(), network_status.clone()));
            }
        });
    }

    fn warn(&self, pod: &PodRef, _: &'static str, message: &str) {
        self.change(|seen| seen.warnings.push((pod.clone(), message.to_owned())));
    }
}
