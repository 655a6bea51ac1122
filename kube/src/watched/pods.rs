//! The pods of this node, by namespace, name and uid (K5).
//!
//! A pod leaves once: with the event of its deletion, with the list that does not have it any more, or because the API has a pod
//! of its name with another uid (K6). Its uid is remembered for a while after that, so that whoever asks for it is told at once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::object::ApiPod;
use crate::pod::{Pod, PodRef};

/// How long it is remembered that a pod was deleted, and of how many pods.
const REMEMBERED: Duration = Duration::from_secs(600);
const MOST_REMEMBERED: usize = 2048;

/// Namespace and name.
pub(super) type ObjectName = (String, String);

/// The list in which an object was seen last. What a snapshot says has none.
pub(super) type Round = u64;
/// The round of what was read from the snapshot and not seen in the API since.
pub(super) const FROM_SNAPSHOT: Round = 0;

/// All pods that are known.
#[derive(Debug, Default)]
pub(super) struct Pods {
    present: BTreeMap<ObjectName, Present>,
    deleted: BTreeMap<ObjectName, Vec<Deleted>>,
    /// Who was deleted, the longest ago first.
    deletions: VecDeque<(ObjectName, Instant)>,
    round: Round,
}

#[derive(Debug)]
struct Present {
    api: ApiPod,
    seen: Round,
}

#[derive(Debug)]
struct Deleted {
    uid: String,
    runtime_uid: Option<String>,
    at: Instant,
}

/// What is known of a pod that is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The API has it; `confirmed` is false while only the snapshot says so.
    Present { pod: Arc<Pod>, confirmed: bool },
    /// It was deleted; the uid of a pod that has its name now.
    Deleted { successor: Option<String> },
    /// The name is known with this uid, and the one that is asked for was never seen: it is an older pod or a newer one.
    Other { uid: String, confirmed: bool },
    /// Nothing of this name is known.
    Nothing,
}

impl Present {
    fn uid(&self) -> &str {
        self.api.pod.id.uid.as_deref().unwrap_or_default()
    }

    fn is(&self, uid: &str) -> bool {
        self.uid() == uid || self.api.runtime_uid.as_deref() == Some(uid)
    }
}

impl Pods {
    /// What is known of a pod. Without a uid any pod of the name is meant, and a deletion counts that came after `since`.
    pub(super) fn find(&self, wanted: &PodRef, since: Instant) -> Found {
        let name = (wanted.namespace.clone(), wanted.name.clone());
        let present = self.present.get(&name);
        if let Some(known) = present
            && wanted.uid.as_deref().is_none_or(|uid| known.is(uid))
        {
            return Found::Present {
                pod: Arc::clone(&known.api.pod),
                confirmed: known.seen != FROM_SNAPSHOT,
            };
        }
        let was_deleted = self.deleted.get(&name).is_some_and(|of_name| {
            of_name.iter().any(|gone| match &wanted.uid {
                Some(uid) => gone.uid == *uid || gone.runtime_uid.as_ref() == Some(uid),
                None => gone.at >= since,
            })
        });
        match present {
            _ if was_deleted => Found::Deleted { successor: present.map(|now| now.uid().to_owned()) },
            Some(known) => {
                Found::Other { uid: known.uid().to_owned(), confirmed: known.seen != FROM_SNAPSHOT }
            }
            None => Found::Nothing,
        }
    }

    /// What the API says is written to a pod, as [`super::object::digest`] has it; `None` while only the snapshot has it.
    pub(super) fn network_status(&self, pod: &PodRef) -> Option<Option<u64>> {
        let known = self.present.get(&(pod.namespace.clone(), pod.name.clone()))?;
        (known.seen != FROM_SNAPSHOT).then_some(known.api.network_status)
    }

    /// Takes what the API says of a pod. One of the same name with another uid has come to its end. Answers whether the snapshot
    /// has something else now.
    pub(super) fn apply(&mut self, api: ApiPod) -> bool {
        let name = (api.pod.id.namespace.clone(), api.pod.id.name.clone());
        let (pod, runtime_uid) = (Arc::clone(&api.pod), api.runtime_uid.clone());
        let Some(old) = self.present.insert(name.clone(), Present { api, seen: self.round }) else {
            return true;
        };
        let changed = old.api.pod != pod || old.api.runtime_uid != runtime_uid;
        if old.api.pod.id.uid != pod.id.uid {
            self.remember(name, old.api);
        }
        changed
    }

    /// Takes a pod from the snapshot.
    pub(super) fn restore(&mut self, api: ApiPod) {
        let name = (api.pod.id.namespace.clone(), api.pod.id.name.clone());
        self.present.entry(name).or_insert(Present { api, seen: FROM_SNAPSHOT });
    }

    /// Takes the deletion of a pod. One of the same name with another uid stays. Answers whether it was known.
    pub(super) fn delete(&mut self, api: ApiPod) -> bool {
        let name = (api.pod.id.namespace.clone(), api.pod.id.name.clone());
        let known = self.present.get(&name).is_some_and(|known| known.api.pod.id.uid == api.pod.id.uid);
        if known {
            self.present.remove(&name);
        }
        self.remember(name, api);
        known
    }

    /// A list of all pods begins.
    pub(super) fn begin_list(&mut self) {
        self.round += 1;
    }

    /// The list is whole: whatever it does not have was deleted.
    pub(super) fn end_list(&mut self) {
        let round = self.round;
        let gone: Vec<_> = self.present.extract_if(.., |_, known| known.seen != round).collect();
        for (name, known) in gone {
            self.remember(name, known.api);
        }
    }

    /// All pods with the uids of their runtimes.
    pub(super) fn all(&self) -> impl Iterator<Item = &ApiPod> {
        self.present.values().map(|known| &known.api)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.present.len()
    }

    fn remember(&mut self, name: ObjectName, api: ApiPod) {
        let now = Instant::now();
        while self.deletions.len() >= MOST_REMEMBERED
            || self.deletions.front().is_some_and(|(_, at)| now.duration_since(*at) > REMEMBERED)
        {
            self.forget_oldest();
        }
        let uid = api.pod.id.uid.clone().unwrap_or_default();
        let of_name = self.deleted.entry(name.clone()).or_default();
        if of_name.iter().all(|gone| gone.uid != uid) {
            of_name.push(Deleted { uid, runtime_uid: api.runtime_uid, at: now });
            self.deletions.push_back((name, now));
        }
    }

    /// Those of a name are in the order of their deletion, as all are: its first is the oldest.
    fn forget_oldest(&mut self) {
        let Some((name, _)) = self.deletions.pop_front() else { return };
        if let Some(of_name) = self.deleted.get_mut(&name) {
            of_name.drain(..1.min(of_name.len()));
            if of_name.is_empty() {
                self.deleted.remove(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn api(namespace: &str, name: &str, uid: &str) -> ApiPod {
        let id = PodRef { namespace: namespace.into(), name: name.into(), uid: Some(uid.into()) };
        ApiPod {
            pod: Arc::new(Pod { id, annotations: BTreeMap::new(), is_static: false, shared_dir: None }),
            runtime_uid: None,
            network_status: None,
        }
    }

    fn wanted(namespace: &str, name: &str, uid: Option<&str>) -> PodRef {
        PodRef { namespace: namespace.into(), name: name.into(), uid: uid.map(str::to_owned) }
    }

    #[test]
    fn k5_the_same_name_in_two_namespaces_is_two_pods() {
        let mut pods = Pods::default();
        pods.begin_list();
        pods.apply(api("a", "p", "1"));
        pods.apply(api("b", "p", "2"));
        pods.delete(api("a", "p", "1"));
        let found = pods.find(&wanted("b", "p", None), Instant::now());
        assert!(matches!(found, Found::Present { pod, .. } if pod.id.uid.as_deref() == Some("2")));
    }

    #[test]
    fn k6_a_successor_stays_when_the_event_of_the_old_pods_end_comes_late() {
        let since = Instant::now();
        let mut pods = Pods::default();
        pods.begin_list();
        pods.apply(api("a", "p", "old"));
        pods.apply(api("a", "p", "new"));
        let old = wanted("a", "p", Some("old"));
        let told = Found::Deleted { successor: Some("new".into()) };
        assert_eq!(pods.find(&old, since), told);
        pods.delete(api("a", "p", "old"));
        pods.delete(api("a", "p", "old"));
        assert_eq!(pods.find(&old, since), told);
        assert!(matches!(pods.find(&wanted("a", "p", Some("new")), since), Found::Present { .. }));
        assert_eq!(pods.deletions.len(), 1);
    }

    #[test]
    fn k6_a_list_that_does_not_have_a_pod_is_its_end() {
        let since = Instant::now();
        let mut pods = Pods::default();
        pods.restore(api("a", "gone", "1"));
        pods.restore(api("a", "stays", "2"));
        pods.begin_list();
        pods.apply(api("a", "stays", "2"));
        pods.end_list();
        assert_eq!(pods.find(&wanted("a", "gone", Some("1")), since), Found::Deleted { successor: None });
        assert!(matches!(
            pods.find(&wanted("a", "stays", None), since),
            Found::Present { confirmed: true, .. }
        ));
        assert_eq!(pods.len(), 1);
    }

    #[test]
    fn another_network_status_changes_nothing_of_the_snapshot_and_another_annotation_uid_or_the_end_does() {
        let mut pods = Pods::default();
        let with_status = |status, uid| ApiPod { network_status: status, ..api("a", "p", uid) };
        assert!(pods.apply(with_status(None, "1")));
        assert!(!pods.apply(with_status(Some(1), "1")) && !pods.apply(with_status(Some(2), "1")));
        let mut annotated = api("a", "p", "1");
        let annotations = BTreeMap::from([("fairlead/x".to_owned(), "y".to_owned())]);
        annotated.pod = Arc::new(Pod { annotations, ..Pod::clone(&annotated.pod) });
        assert!(pods.apply(annotated.clone()) && !pods.apply(annotated));
        assert!(pods.apply(api("a", "p", "2")));
        assert!(!pods.delete(api("a", "p", "1")), "its successor stays");
        assert!(pods.delete(api("a", "p", "2")) && !pods.delete(api("a", "p", "2")));
    }

    #[test]
    fn deletions_are_remembered_within_a_bound() {
        let mut pods = Pods::default();
        for n in 0..MOST_REMEMBERED + 100 {
            pods.delete(api("a", &format!("p{}", n % 100), &format!("u{n}")));
        }
        let remembered: usize = pods.deleted.values().map(Vec::len).sum();
        assert_eq!((pods.deletions.len(), remembered), (MOST_REMEMBERED, MOST_REMEMBERED));
        let oldest = wanted("a", "p0", Some("u0"));
        assert_eq!(pods.find(&oldest, Instant::now()), Found::Nothing);
    }
}
