//! network-status, and what other annotations a pod is told by, written after the pods' calls were answered: one PATCH for all of a pod
//! (X11).
//!
//! A value waits here until it is written, replaced by a newer one, or its pod is gone; also one that an admission policy refuses,
//! which may be taken away while the pod runs. The PATCH names the uid of the pod: a successor of the same name is never written to.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use kube::api::{Patch, PatchParams};
use kube::core::Request;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::backoff::{Backoff, TokenBucket};
use super::client::{Connection, reason, status_code};
use super::object::digest;
use super::pods::Found;
use super::shared::Shared;
use super::watch_state::Kind;
use crate::npwg::network_status::NETWORK_STATUS;
use crate::pod::PodRef;

/// PATCHes under way at once.
const AT_ONCE: usize = 4;
/// PATCHes at once after a quiet time, and in a second: a node's share of what an API server bears.
const BURST: u32 = 120;
const PER_SECOND: f64 = 30.0;
/// More pods than a node has; the value of the one that waits longest makes room.
const MOST: usize = 1024;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A PATCH that takes longer has failed.
const ANSWER: Duration = Duration::from_secs(30);
/// A pod that a whole watch has not told of for this long is gone.
const UNSEEN: Duration = Duration::from_secs(120);
/// A refusal with 409 is a conflict with another writer as often; after so many it is given up.
const MOST_CONFLICTS: u32 = 5;
/// How often it is looked whether a pod that was not seen yet has come; its event wakes earlier.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Annotations by their names.
type Values = BTreeMap<&'static str, Arc<str>>;

/// The values that wait.
#[derive(Debug, Default)]
pub(super) struct Reports {
    waiting: BTreeMap<PodRef, Report>,
    next_number: u64,
}

#[derive(Debug)]
struct Report {
    /// By the names of the annotations.
    values: Values,
    whether: Whether,
    /// Which value this is: one that replaced it while it was written is not done.
    number: u64,
    since: Instant,
    not_before: Instant,
    backoff: Backoff,
    conflicts: u32,
    /// A value of its pod was refused with 422, which the log tells once.
    is_invalid: bool,
    under_way: bool,
    /// Its pod was looked for, and is not known yet.
    unseen: bool,
}

/// One PATCH to be sent.
#[derive(Debug)]
struct Job {
    pod: PodRef,
    uid: String,
    values: Values,
    number: u64,
}

/// What became of a PATCH.
#[derive(Debug)]
enum Outcome {
    Written,
    Gone,
    /// For good.
    Refused(String),
    /// With 422: for what is in it, or by an admission policy.
    Invalid(String),
    Conflict(String),
    Failed(String),
}

/// Whether a value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whether {
    InAnyCase,
    /// Not to a pod that has it already: an earlier daemon may have written it.
    UnlessItIsThere,
}

/// How the pod of a report stands.
#[derive(Debug)]
enum Addressee {
    /// Its uid, and the network-status that it has; `None` as long as only the snapshot tells of it.
    Present(String, Option<Option<u64>>),
    Gone,
    NotSeen,
}

impl Reports {
    /// Takes a value; it replaces the one that waits.
    pub(super) fn push(&mut self, pod: PodRef, status: &str, whether: Whether) {
        let waits = |report: &Report| report.values.contains_key(NETWORK_STATUS);
        if whether == Whether::UnlessItIsThere && self.waiting.get(&pod).is_some_and(waits) {
            // What the earlier daemon knew it had not written, or what has come since.
            return;
        }
        self.put(pod, [(NETWORK_STATUS, Arc::from(status))], whether);
    }

    /// Takes values of other annotations.
    pub(super) fn push_annotations(&mut self, pod: PodRef, values: Vec<(&'static str, String)>) {
        let values = values.into_iter().map(|(name, value)| (name, Arc::from(value)));
        self.put(pod, values, Whether::InAnyCase);
    }

    fn put(
        &mut self,
        pod: PodRef,
        values: impl IntoIterator<Item = (&'static str, Arc<str>)>,
        whether: Whether,
    ) {
        let now = Instant::now();
        if self.waiting.len() >= MOST && !self.waiting.contains_key(&pod) {
            let oldest =
                self.waiting.iter().min_by_key(|(_, report)| report.since).map(|(pod, _)| pod.clone());
            if let Some(oldest) = oldest {
                self.waiting.remove(&oldest);
            }
        }
        let whether = if self.waiting.contains_key(&pod) { Whether::InAnyCase } else { whether };
        self.next_number += 1;
        let number = self.next_number;
        let report = self.waiting.entry(pod).or_insert_with(|| Report {
            values: Values::new(),
            whether,
            number,
            since: now,
            not_before: now,
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            conflicts: 0,
            is_invalid: false,
            under_way: false,
            unseen: false,
        });
        report.values.extend(values);
        report.whether = whether;
        report.number = number;
        if report.is_invalid {
            // What was wrong with the one before need not be wrong with this one.
            report.not_before = now;
        }
    }

    /// A pod of this name is known now: its report need not wait until it is looked for again.
    pub(super) fn seen(&mut self, namespace: &str, name: &str) {
        let first = PodRef { namespace: namespace.to_owned(), name: name.to_owned(), uid: None };
        let of_name = self.waiting.range_mut(first..);
        for (_, report) in of_name.take_while(|(pod, _)| pod.namespace == namespace && pod.name == name) {
            report.look_now();
        }
    }

    /// All pods of the node are known now.
    pub(super) fn all_seen(&mut self) {
        self.waiting.values_mut().for_each(Report::look_now);
    }

    /// The values of network-status that wait, for the snapshot. What else waits is told again from the records.
    pub(super) fn all(&self) -> impl Iterator<Item = (&PodRef, &Arc<str>)> {
        self.waiting.iter().filter_map(|(pod, report)| Some((pod, report.values.get(NETWORK_STATUS)?)))
    }

    /// The pods whose network-status has waited for longer than this.
    pub(super) fn late(&self, longer_than: Duration) -> Vec<PodRef> {
        let is_late = |report: &Report| {
            report.values.contains_key(NETWORK_STATUS) && report.since.elapsed() > longer_than
        };
        self.waiting.iter().filter(|(_, report)| is_late(report)).map(|(pod, _)| pod.clone()).collect()
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Those that are due, at most so many, and the time until the next one is. Reports of pods that are gone are dropped.
    fn due(
        &mut self,
        now: Instant,
        most: usize,
        addressee: impl Fn(&PodRef, Instant) -> Addressee,
    ) -> (Vec<Job>, Option<Duration>) {
        let (mut jobs, mut gone, mut next) = (Vec::new(), Vec::new(), None::<Duration>);
        for (pod, report) in self.waiting.iter_mut().filter(|(_, report)| !report.under_way) {
            if report.not_before > now || jobs.len() >= most {
                let wait = report.not_before.saturating_duration_since(now);
                next = Some(next.map_or(wait, |other| other.min(wait)));
                continue;
            }
            let is_conditional = report.whether == Whether::UnlessItIsThere;
            match addressee(pod, report.since) {
                Addressee::Gone => gone.push(pod.clone()),
                Addressee::Present(_, Some(there))
                    if is_conditional
                        && there == report.values.get(NETWORK_STATUS).map(|text| digest(text)) =>
                {
                    gone.push(pod.clone());
                }
                Addressee::Present(_, None) if is_conditional => {
                    next = Some(next.map_or(LOOK_AGAIN, |other| other.min(LOOK_AGAIN)));
                    report.look_later(now);
                }
                Addressee::NotSeen => {
                    next = Some(next.map_or(LOOK_AGAIN, |other| other.min(LOOK_AGAIN)));
                    report.look_later(now);
                }
                Addressee::Present(uid, _) => {
                    report.under_way = true;
                    jobs.push(Job {
                        pod: pod.clone(),
                        uid,
                        values: report.values.clone(),
                        number: report.number,
                    });
                }
            }
        }
        for pod in gone {
            self.waiting.remove(&pod);
        }
        (jobs, next)
    }

    /// Takes what became of a PATCH.
    fn done(&mut self, job: &Job, outcome: Outcome, now: Instant) {
        let Some(report) = self.waiting.get_mut(&job.pod) else { return };
        report.under_way = false;
        let dropped = match outcome {
            Outcome::Written => {
                report.backoff.reset();
                report.number == job.number
            }
            Outcome::Gone => true,
            Outcome::Refused(why) => {
                tracing::warn!(pod = %job.pod, reason = why, "the API server refuses the pod's network-status; it is not written");
                true
            }
            Outcome::Invalid(why) => {
                let is_newest = report.number == job.number;
                report.not_before = if is_newest { now + LONGEST_PAUSE } else { now };
                if !mem::replace(&mut report.is_invalid, true) {
                    tracing::warn!(
                        pod = %job.pod,
                        reason = why,
                        "the API server refuses the pod's network-status; it is tried again each minute"
                    );
                }
                false
            }
            Outcome::Conflict(why) => {
                report.conflicts += 1;
                report.not_before = now + report.backoff.pause();
                tracing::debug!(pod = %job.pod, reason = why, "network-status: conflict");
                report.conflicts >= MOST_CONFLICTS
            }
            Outcome::Failed(why) => {
                report.not_before = now + report.backoff.pause();
                tracing::debug!(pod = %job.pod, reason = why, "network-status is not written yet");
                false
            }
        };
        if dropped {
            self.waiting.remove(&job.pod);
        }
    }
}

impl Report {
    fn look_later(&mut self, now: Instant) {
        self.unseen = true;
        self.not_before = now + LOOK_AGAIN;
    }

    fn look_now(&mut self) {
        if mem::take(&mut self.unseen) {
            self.not_before = Instant::now();
        }
    }
}

/// Writes reports until the task is ended.
pub(super) async fn run(connection: Arc<Connection>, shared: Arc<Shared>) {
    let mut bucket = TokenBucket::new(BURST, PER_SECOND);
    let mut under_way = JoinSet::new();
    loop {
        let (jobs, next) = {
            let known = shared.known.lock();
            let free = AT_ONCE.saturating_sub(under_way.len());
            shared.reports.lock().due(Instant::now(), free, |pod, since| {
                let absent = known.watch(Kind::Pods).absence_counts() && since.elapsed() > UNSEEN;
                match known.pods.find(pod, since) {
                    Found::Present { pod, .. } => Addressee::Present(
                        pod.id.uid.clone().unwrap_or_default(),
                        known.pods.network_status(&pod.id),
                    ),
                    Found::Deleted { .. } => Addressee::Gone,
                    _ if absent => Addressee::Gone,
                    _ => Addressee::NotSeen,
                }
            })
        };
        for job in jobs {
            while let Err(wait) = bucket.take(Instant::now()) {
                sleep(wait).await;
            }
            let connection = Arc::clone(&connection);
            under_way.spawn(async move {
                let outcome = write(&connection.current().await, &job).await;
                (job, outcome)
            });
        }
        let full = under_way.len() >= AT_ONCE;
        tokio::select! {
            Some(Ok((job, outcome))) = under_way.join_next() => {
                shared.reports.lock().done(&job, outcome, Instant::now());
                shared.wake.saved_reports.notify_one();
            }
            () = shared.wake.reports.notified(), if !full => {}
            () = sleep(next.unwrap_or(LONGEST_PAUSE)), if !full => {}
        }
    }
}

/// One PATCH, of the subresource `status`: it can change the annotation, and whoever may write it cannot change what a pod runs.
async fn write(client: &Client, job: &Job) -> Outcome {
    let annotations: BTreeMap<&str, &str> =
        job.values.iter().map(|(name, value)| (*name, &**value)).collect();
    let patch = Patch::Merge(json!({
        "metadata": { "uid": job.uid, "annotations": annotations }
    }));
    let pods = Request::new(format!("/api/v1/namespaces/{}/pods", job.pod.namespace));
    let request = match pods.patch_subresource("status", &job.pod.name, &PatchParams::default(), &patch) {
        Ok(request) => request,
        Err(e) => return Outcome::Refused(e.to_string()),
    };
    match timeout(ANSWER, client.request_text(request)).await {
        Err(_) => Outcome::Failed(format!("no answer within {} s", ANSWER.as_secs())),
        Ok(Ok(_)) => Outcome::Written,
        Ok(Err(e)) => match status_code(&e) {
            Some(404) => Outcome::Gone,
            Some(409) => Outcome::Conflict(reason(&e)),
            Some(400 | 413) => Outcome::Refused(reason(&e)),
            Some(422) => Outcome::Invalid(reason(&e)),
            _ => Outcome::Failed(reason(&e)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> PodRef {
        PodRef { namespace: "a".into(), name: "p".into(), uid: Some("u".into()) }
    }

    /// What is due then; the pod is there.
    fn due(reports: &mut Reports, now: Instant) -> Vec<Job> {
        reports.due(now, AT_ONCE, |_, _| Addressee::Present("u".into(), Some(None))).0
    }

    fn refused() -> Outcome {
        Outcome::Invalid("422".into())
    }

    #[test]
    fn a_value_that_is_refused_with_422_is_tried_again_each_minute_and_the_next_value_at_once() {
        let mut reports = Reports::default();
        reports.push(pod(), "[1]", Whether::InAnyCase);
        let begun = Instant::now();
        for minute in 0..3 {
            let now = begun + LONGEST_PAUSE * minute;
            let jobs = due(&mut reports, now);
            assert_eq!(jobs.len(), 1, "{minute}");
            reports.done(&jobs[0], refused(), now);
            assert_eq!(reports.len(), 1, "{minute}");
            assert!(due(&mut reports, now + LONGEST_PAUSE / 2).is_empty(), "{minute}");
        }
        reports.push(pod(), "[2]", Whether::InAnyCase);
        let jobs = due(&mut reports, Instant::now());
        assert_eq!(&*jobs[0].values[NETWORK_STATUS], "[2]");
        // It is replaced while it is written.
        reports.push(pod(), "[3]", Whether::InAnyCase);
        reports.done(&jobs[0], refused(), Instant::now());
        let jobs = due(&mut reports, Instant::now());
        assert_eq!(&*jobs[0].values[NETWORK_STATUS], "[3]");
        reports.done(&jobs[0], Outcome::Written, Instant::now());
        assert_eq!(reports.len(), 0);
    }

    #[test]
    fn a_value_that_is_refused_for_good_is_dropped() {
        let mut reports = Reports::default();
        reports.push(pod(), "[1]", Whether::InAnyCase);
        let now = Instant::now();
        let jobs = due(&mut reports, now);
        reports.done(&jobs[0], Outcome::Refused("413".into()), now);
        assert_eq!(reports.len(), 0);
    }
}
