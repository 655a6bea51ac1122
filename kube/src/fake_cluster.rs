//! A cluster in memory, for tests of whoever attaches pods.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, ClusterError, Definition, KnownDefinition, LegacyNetwork, ONE_BEFORE, Wait};
use crate::pod::{Pod, PodRef, SharedDirVolume};

#[derive(Debug, Default)]
struct Seen {
    pods: HashMap<(String, String), Arc<Pod>>,
    deleted: Vec<PodRef>,
    definitions: BTreeMap<(String, String), Arc<Definition>>,
    networks: HashMap<(String, String), Arc<LegacyNetwork>>,
    labels: HashMap<String, Arc<BTreeMap<String, String>>>,
    reports: Vec<(PodRef, String)>,
    late_reports: Vec<PodRef>,
    warnings: Vec<(PodRef, String)>,
    annotations: Vec<(PodRef, &'static str, String)>,
    labels_wanted: bool,
}

/// What is known of a pod that is asked for, as the watch of a real cluster knows it.
enum Found {
    Present(Arc<Pod>),
    /// It is no more.
    Gone(ClusterError),
    /// The name is known with another uid, and the one that is asked for was never seen: it may be the newer one.
    Other,
    Nothing,
}

impl Seen {
    fn find(&self, wanted: &PodRef, since: Instant) -> Found {
        let (namespace, name) = (wanted.namespace.clone(), wanted.name.clone());
        let present = self.pods.get(&(namespace.clone(), name.clone()));
        let is_another = |pod: &&Arc<Pod>| {
            wanted.uid.is_some() && pod.id.uid.is_some() && wanted.uid != pod.id.uid && !pod.is_static
        };
        let another = || {
            let uid = |of: &PodRef| of.uid.clone().unwrap_or_default();
            let found = present.map(|pod| uid(&pod.id)).unwrap_or_default();
            ClusterError::AnotherUid {
                namespace: namespace.clone(),
                name: name.clone(),
                wanted: uid(wanted),
                found,
            }
        };
        match present {
            Some(pod) if !is_another(&pod) => Found::Present(Arc::clone(pod)),
            Some(_) if self.deleted.contains(wanted) || since.elapsed() >= ONE_BEFORE => {
                Found::Gone(another())
            }
            Some(_) => Found::Other,
            None if self.deleted.contains(wanted) => {
                Found::Gone(ClusterError::PodDeleted { namespace, name })
            }
            None => Found::Nothing,
        }
    }
}

fn not_seen(wanted: &PodRef) -> ClusterError {
    let (namespace, name) = (wanted.namespace.clone(), wanted.name.clone());
    ClusterError::PodNotSeen { namespace, name, reason: "a test has not put it".into() }
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
        self.put(Pod { id: id.clone(), annotations, is_static: false, shared_dir: None });
    }

    /// A pod is there, with this volume `shared-dir`.
    pub fn put_pod_with_shared_dir(&self, id: &PodRef, volume: SharedDirVolume) {
        let shared_dir = Some(volume);
        self.put(Pod { id: id.clone(), annotations: BTreeMap::new(), is_static: false, shared_dir });
    }

    fn put(&self, pod: Pod) {
        let id = pod.id.clone();
        self.change(|seen| {
            let before = seen.pods.insert((id.namespace.clone(), id.name.clone()), Arc::new(pod));
            // Its end was seen with the one that has its name now.
            seen.deleted
                .extend(before.filter(|before| before.id.uid != id.uid).map(|before| before.id.clone()));
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

    /// The network-status of a pod cannot be written, and has not been for long.
    pub fn leave_unwritten(&self, id: &PodRef) {
        self.change(|seen| seen.late_reports.push(id.clone()));
    }

    /// The annotations that were told beside network-status, in their order.
    pub fn annotations(&self) -> Vec<(PodRef, &'static str, String)> {
        self.seen.lock().unwrap().annotations.clone()
    }

    /// The pod has this volume `shared-dir`.
    pub fn put_shared_dir(&self, id: &PodRef, volume: SharedDirVolume) {
        self.change(|seen| {
            let pod = seen.pods.get_mut(&(id.namespace.clone(), id.name.clone())).unwrap();
            Arc::make_mut(pod).shared_dir = Some(volume);
        });
    }

    /// What was warned of, in its order.
    pub fn warnings(&self) -> Vec<(PodRef, String)> {
        self.seen.lock().unwrap().warnings.clone()
    }
}

impl Cluster for FakeCluster {
    fn pod(&self, wanted: &PodRef, wait: &Wait<'_>) -> Result<Arc<Pod>, ClusterError> {
        let since = Instant::now();
        let mut seen = self.seen.lock().unwrap();
        loop {
            match seen.find(wanted, since) {
                Found::Present(pod) => return Ok(pod),
                Found::Gone(why) => return Err(why),
                Found::Other | Found::Nothing if Instant::now() >= wait.deadline || (wait.gone)() => {
                    return Err(not_seen(wanted));
                }
                Found::Other | Found::Nothing => {}
            }
            seen = self.changed.wait_timeout(seen, Duration::from_millis(20)).unwrap().0;
        }
    }

    fn must_not_be_gone(&self, wanted: &PodRef, wait: &Wait<'_>) -> Result<(), ClusterError> {
        let since = Instant::now();
        let mut seen = self.seen.lock().unwrap();
        loop {
            match seen.find(wanted, since) {
                Found::Gone(why) => return Err(why),
                Found::Present(_) | Found::Nothing => return Ok(()),
                Found::Other if Instant::now() >= wait.deadline || (wait.gone)() => {
                    return Err(not_seen(wanted));
                }
                Found::Other => {}
            }
            seen = self.changed.wait_timeout(seen, Duration::from_millis(20)).unwrap().0;
        }
    }

    fn known_pods(&self, meant: &dyn Fn(&PodRef) -> bool) -> Vec<Arc<Pod>> {
        let seen = self.seen.lock().unwrap();
        seen.pods.values().filter(|pod| meant(&pod.id)).cloned().collect()
    }

    fn known_definitions(&self) -> Vec<KnownDefinition> {
        let seen = self.seen.lock().unwrap();
        let one = |((namespace, name), definition): (&(String, String), &Arc<Definition>)| KnownDefinition {
            namespace: namespace.clone(),
            name: name.clone(),
            found: Ok(Arc::clone(definition)),
        };
        seen.definitions.iter().map(one).collect()
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

    fn late_reports(&self, _: Duration) -> Vec<PodRef> {
        self.seen.lock().unwrap().late_reports.clone()
    }

    fn annotate(&self, pod: &PodRef, annotations: Vec<(&'static str, String)>) {
        self.change(|seen| {
            seen.annotations.extend(annotations.into_iter().map(|(name, value)| (pod.clone(), name, value)));
        });
    }

    fn warn(&self, pod: &PodRef, _: &'static str, message: &str) {
        self.change(|seen| seen.warnings.push((pod.clone(), message.to_owned())));
    }
}
