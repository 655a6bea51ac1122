//! What callers are answered, from memory.
//!
//! What is known is answered at once, however old. "There is none" is answered only while the API server can be asked; else a
//! caller waits until it can, or until its time is up. The legacy kind alone is not waited for where the cluster does not have it: few
//! clusters do, and every pod that names it would hold a thread for as long as a call may wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Watched;
use super::pods::Found;
use super::reports::Whether;
use super::shared::Known;
use super::watch_state::{Kind, Phase};
use crate::cluster::{Cluster, ClusterError, Definition, KnownDefinition, LegacyNetwork, ONE_BEFORE, Wait};
use crate::pod::{Pod, PodRef};

/// How often it is asked whether somebody still waits.
const LOOK: Duration = Duration::from_millis(100);
/// Why an object of the legacy kind is not known where the cluster does not have the kind, and what to do about it.
const NO_LEGACY_KIND: &str = "this cluster does not have the kind: apply the CustomResourceDefinition networks.alpha.network.k8s.io, \
                              or take the annotation alpha.network.k8s.io/networks out of the pod";

impl Watched {
    /// Looks until there is an answer, whoever asks has gone, or the time is up. Wakes at once when something becomes known.
    fn wait<T>(
        &self,
        kind: Kind,
        wait: &Wait<'_>,
        mut look: impl FnMut(&Known) -> Option<Result<T, ClusterError>>,
        given_up: impl FnOnce(String) -> ClusterError,
    ) -> Result<T, ClusterError> {
        loop {
            let gone = (wait.gone)();
            let mut known = self.shared.known.lock();
            if let Some(answer) = look(&known) {
                return answer;
            }
            let now = Instant::now();
            if gone || now >= wait.deadline {
                return Err(given_up(known.watch(kind).reason()));
            }
            if known.watch(kind).phase != Phase::Live {
                self.shared.wake.watch(kind).notify_one();
            }
            self.shared.news.wait_until(&mut known, wait.deadline.min(now + LOOK));
        }
    }
}

impl Cluster for Watched {
    fn pod(&self, wanted: &PodRef, wait: &Wait<'_>) -> Result<Arc<Pod>, ClusterError> {
        let since = Instant::now();
        let look = |known: &Known| {
            let watch = known.watch(Kind::Pods);
            match known.pods.find(wanted, since) {
                Found::Present { pod, confirmed } if confirmed || watch.snapshot_counts() => Some(Ok(pod)),
                Found::Deleted { successor } => Some(Err(gone(wanted, successor))),
                Found::Other { uid, confirmed: true }
                    if watch.absence_counts() && since.elapsed() >= ONE_BEFORE =>
                {
                    Some(Err(another_uid(wanted, uid)))
                }
                Found::Present { .. } | Found::Other { .. } | Found::Nothing => None,
            }
        };
        self.wait(Kind::Pods, wait, look, |reason| ClusterError::PodNotSeen {
            namespace: wanted.namespace.clone(),
            name: wanted.name.clone(),
            reason,
        })
    }

    fn must_not_be_gone(&self, wanted: &PodRef, wait: &Wait<'_>) -> Result<(), ClusterError> {
        let since = Instant::now();
        let look = |known: &Known| {
            let watch = known.watch(Kind::Pods);
            match known.pods.find(wanted, since) {
                Found::Deleted { successor } => Some(Err(gone(wanted, successor))),
                Found::Other { uid, confirmed: true } if watch.absence_counts() => {
                    (since.elapsed() >= ONE_BEFORE).then(|| Err(another_uid(wanted, uid)))
                }
                Found::Present { .. } | Found::Other { .. } | Found::Nothing => Some(Ok(())),
            }
        };
        let deadline = wait.deadline.min(since + ONE_BEFORE + LOOK);
        let not_known_in_time = |reason| ClusterError::PodNotSeen {
            namespace: wanted.namespace.clone(),
            name: wanted.name.clone(),
            reason,
        };
        self.wait(Kind::Pods, &Wait { deadline, gone: wait.gone }, look, not_known_in_time)
    }

    fn known_pods(&self, meant: &dyn Fn(&PodRef) -> bool) -> Vec<Arc<Pod>> {
        let known = self.shared.known.lock();
        known.pods.all().map(|api| &api.pod).filter(|pod| meant(&pod.id)).cloned().collect()
    }

    fn known_definitions(&self) -> Vec<KnownDefinition> {
        let known = self.shared.known.lock();
        let one = |((namespace, name), found): (&(String, String), &Result<Arc<Definition>, String>)| {
            KnownDefinition { namespace: namespace.clone(), name: name.clone(), found: found.clone() }
        };
        known.definitions.all().map(one).collect()
    }

    fn definition(
        &self,
        namespace: &str,
        name: &str,
        wait: &Wait<'_>,
    ) -> Result<Arc<Definition>, ClusterError> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let key = (namespace.clone(), name.clone());
        let look = |known: &Known| {
            let watch = known.watch(Kind::Definitions);
            let (namespace, name) = key.clone();
            match known.definitions.get(&key) {
                Some((found, confirmed)) if confirmed || watch.snapshot_counts() => {
                    let unusable = |reason| ClusterError::UnusableDefinition { namespace, name, reason };
                    Some(found.clone().map_err(unusable))
                }
                None if watch.absence_counts() => {
                    Some(Err(match known.definitions.too_many_of(&namespace) {
                        Some(reason) => ClusterError::UnusableDefinition { namespace, name, reason },
                        None => ClusterError::NoDefinition { namespace, name },
                    }))
                }
                _ => None,
            }
        };
        self.wait(Kind::Definitions, wait, look, |reason| ClusterError::DefinitionNotSeen {
            namespace,
            name,
            reason,
        })
    }

    fn legacy_network(
        &self,
        namespace: &str,
        name: &str,
        wait: &Wait<'_>,
    ) -> Result<Arc<LegacyNetwork>, ClusterError> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let key = (namespace.clone(), name.clone());
        let look = |known: &Known| {
            let watch = known.watch(Kind::LegacyNetworks);
            let (namespace, name) = key.clone();
            match known.legacy_networks.get(&key) {
                Some((found, confirmed)) if confirmed || watch.snapshot_counts() => {
                    let unusable = |reason| ClusterError::UnusableLegacyNetwork { namespace, name, reason };
                    Some(found.clone().map_err(unusable))
                }
                None if watch.absence_counts() => {
                    Some(Err(match known.legacy_networks.too_many_of(&namespace) {
                        Some(reason) => ClusterError::UnusableLegacyNetwork { namespace, name, reason },
                        None => ClusterError::NoLegacyNetwork { namespace, name },
                    }))
                }
                None if watch.phase == Phase::NoSuchKind => {
                    // Somebody may have applied it since.
                    self.shared.wake.watch(Kind::LegacyNetworks).notify_one();
                    let reason = NO_LEGACY_KIND.to_owned();
                    Some(Err(ClusterError::LegacyNetworkNotSeen { namespace, name, reason }))
                }
                _ => None,
            }
        };
        self.wait(Kind::LegacyNetworks, wait, look, |reason| ClusterError::LegacyNetworkNotSeen {
            namespace,
            name,
            reason,
        })
    }

    fn watch_namespace_labels(&self) {
        if self.shared.change(|known| known.want(Kind::Namespaces)) {
            self.shared.wake.wanted.notify_one();
        }
    }

    fn namespace_labels(&self, namespace: &str) -> Option<Arc<BTreeMap<String, String>>> {
        let known = self.shared.known.lock();
        known.namespaces.get(&(String::new(), namespace.to_owned())).map(|(labels, _)| Arc::clone(labels))
    }

    fn report(&self, pod: &PodRef, network_status: String) {
        self.push_report(pod, &network_status, Whether::InAnyCase);
    }

    fn report_again(&self, pod: &PodRef, network_status: String) {
        self.push_report(pod, &network_status, Whether::UnlessItIsThere);
    }

    fn late_reports(&self, longer_than: Duration) -> Vec<PodRef> {
        self.shared.reports.lock().late(longer_than)
    }

    fn annotate(&self, pod: &PodRef, annotations: Vec<(&'static str, String)>) {
        self.shared.reports.lock().push_annotations(pod.clone(), annotations);
        self.shared.wake.reports.notify_one();
    }

    fn warn(&self, pod: &PodRef, reason: &'static str, message: &str) {
        self.shared.warnings.lock().push(pod, reason, message);
        self.shared.wake.warnings.notify_one();
    }
}

impl Watched {
    fn push_report(&self, pod: &PodRef, network_status: &str, whether: Whether) {
        self.shared.reports.lock().push(pod.clone(), network_status, whether);
        self.shared.wake.reports.notify_one();
        self.shared.wake.saved_reports.notify_one();
    }
}

/// The pod was seen and is no more; `successor`: the uid of the pod that has its name now.
fn gone(wanted: &PodRef, successor: Option<String>) -> ClusterError {
    match successor {
        Some(found) => another_uid(wanted, found),
        None => ClusterError::PodDeleted { namespace: wanted.namespace.clone(), name: wanted.name.clone() },
    }
}

fn another_uid(wanted: &PodRef, found: String) -> ClusterError {
    ClusterError::AnotherUid {
        namespace: wanted.namespace.clone(),
        name: wanted.name.clone(),
        wanted: wanted.uid.clone().unwrap_or_default(),
        found,
    }
}
