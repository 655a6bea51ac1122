//! Events that tell a person what a pod lacks (X14).
//!
//! The same words for the same pod are counted, and written at most once in [`EVERY`]. Written is the old kind of Event (core/v1): it
//! carries its count, so that the right to create Events is enough, and nobody needs the right to change one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::PostParams;
use kube::core::Request;
use tokio::time::{sleep, timeout};

use super::backoff::TokenBucket;
use super::client::{Connection, reason};
use super::pods::Found;
use super::shared::Shared;
use crate::pod::PodRef;

/// One Event for each pod in this time.
const EVERY: Duration = Duration::from_secs(10);
/// Events at once after a quiet time, and in a second, for all pods.
const BURST: u32 = 25;
const PER_SECOND: f64 = 1.0;
/// Pods with Events that wait, and different words for each.
const MOST_PODS: usize = 512;
const MOST_WORDS: usize = 4;
/// What could not be written for this long helps nobody any more.
const TOO_OLD: Duration = Duration::from_secs(300);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(5);
/// A request that takes longer has failed.
const ANSWER: Duration = Duration::from_secs(30);
/// The API server refuses longer messages, in bytes.
const LONGEST_MESSAGE: usize = 1000;

/// What waits to be written. Namespaces take turns, and of one the oldest comes first: all of them share one rate, which the failing
/// pods of a single one could use up.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    pods: BTreeMap<PodRef, OfPod>,
    /// The namespace whose turn was the last one.
    last_turn: String,
    dropped: u64,
}

#[derive(Debug)]
struct OfPod {
    not_before: Instant,
    waiting: Vec<Warning>,
}

/// One Event to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Warning {
    reason: &'static str,
    message: String,
    count: i32,
    first: Timestamp,
    last: Timestamp,
    begun: Instant,
}

impl Warnings {
    /// Takes a warning; the same words are counted.
    pub(super) fn push(&mut self, pod: &PodRef, reason: &'static str, message: &str) {
        let (now, at) = (Instant::now(), Timestamp::now());
        self.forget_quiet(now);
        if self.pods.len() >= MOST_PODS && !self.pods.contains_key(pod) {
            self.dropped += 1;
            return;
        }
        let message = cut(message);
        let of_pod =
            self.pods.entry(pod.clone()).or_insert_with(|| OfPod { not_before: now, waiting: Vec::new() });
        if let Some(same) =
            of_pod.waiting.iter_mut().find(|other| other.reason == reason && other.message == message)
        {
            same.count = same.count.saturating_add(1);
            same.last = at;
        } else if of_pod.waiting.len() < MOST_WORDS {
            let (message, count) = (message.to_owned(), 1);
            of_pod.waiting.push(Warning { reason, message, count, first: at, last: at, begun: now });
        } else {
            self.dropped += 1;
        }
    }

    /// How many were dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The next that is due.
    fn due(&mut self, now: Instant) -> Option<(PodRef, Warning)> {
        self.drop_old(now);
        self.forget_quiet(now);
        let Warnings { pods, last_turn, .. } = self;
        let due = pods.iter_mut().filter(|(_, of_pod)| of_pod.not_before <= now);
        let due = due.filter_map(|(pod, of_pod)| Some((of_pod.waiting.first()?.begun, pod, of_pod)));
        // Those after the last turn's in their order, then from the first one on.
        let (_, pod, of_pod) = due.min_by_key(|(begun, pod, _)| {
            let namespace = pod.namespace.as_str();
            (namespace <= last_turn.as_str(), namespace, *begun)
        })?;
        last_turn.clone_from(&pod.namespace);
        of_pod.not_before = now + EVERY;
        Some((pod.clone(), of_pod.waiting.remove(0)))
    }

    /// The time until something is due.
    fn next(&self, now: Instant) -> Option<Duration> {
        let waiting = self.pods.values().filter(|of_pod| !of_pod.waiting.is_empty());
        waiting.map(|of_pod| of_pod.not_before.saturating_duration_since(now)).min()
    }

    /// Takes back what could not be written; what was said meanwhile is counted with it.
    fn again(&mut self, pod: &PodRef, mut warning: Warning) {
        let Some(of_pod) = self.pods.get_mut(pod) else { return };
        if let Some(at) = of_pod
            .waiting
            .iter()
            .position(|other| other.reason == warning.reason && other.message == warning.message)
        {
            let newer = of_pod.waiting.remove(at);
            warning.count = warning.count.saturating_add(newer.count);
            warning.last = newer.last;
        }
        of_pod.waiting.insert(0, warning);
    }

    fn drop_old(&mut self, now: Instant) {
        for of_pod in self.pods.values_mut() {
            let before = of_pod.waiting.len();
            of_pod.waiting.retain(|warning| now.saturating_duration_since(warning.begun) < TOO_OLD);
            self.dropped += (before - of_pod.waiting.len()) as u64;
        }
    }

    fn forget_quiet(&mut self, now: Instant) {
        self.pods.retain(|_, of_pod| of_pod.not_before > now || !of_pod.waiting.is_empty());
    }
}

/// Writes Events until the task is ended.
pub(super) async fn run(connection: Arc<Connection>, shared: Arc<Shared>) {
    let mut bucket = TokenBucket::new(BURST, PER_SECOND);
    loop {
        let due = shared.warnings.lock().due(Instant::now());
        let Some((pod, warning)) = due else {
            let next = shared.warnings.lock().next(Instant::now());
            tokio::select! {
                () = shared.wake.warnings.notified() => {}
                () = sleep(next.unwrap_or(TOO_OLD)) => {}
            }
            continue;
        };
        while let Err(wait) = bucket.take(Instant::now()) {
            sleep(wait).await;
        }
        let client = connection.current().await;
        if let Err(why) = write(&client, &shared, &pod, &warning).await {
            tracing::debug!(pod = %pod, reason = why, "an Event is not written yet");
            shared.warnings.lock().again(&pod, warning);
            sleep(PAUSE).await;
        }
    }
}

async fn write(client: &Client, shared: &Shared, pod: &PodRef, warning: &Warning) -> Result<(), String> {
    let api_uid = match shared.known.lock().pods.find(pod, Instant::now()) {
        Found::Present { pod, .. } => pod.id.uid.clone(),
        _ => pod.uid.clone(),
    };
    let event = event(&shared.node, pod, api_uid, warning);
    let body = serde_json::to_vec(&event).map_err(|e| e.to_string())?;
    let events = Request::new(format!("/api/v1/namespaces/{}/events", pod.namespace));
    let request = events.create(&PostParams::default(), body).map_err(|e| e.to_string())?;
    match timeout(ANSWER, client.request_text(request)).await {
        Err(_) => Err(format!("no answer within {} s", ANSWER.as_secs())),
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(status))) if (400..500).contains(&status.code) && status.code != 429 => {
            tracing::debug!(pod = %pod, code = status.code, reason = status.message, "the API server refuses an Event");
            Ok(())
        }
        Ok(Err(e)) => Err(reason(&e)),
    }
}

fn event(node: &str, pod: &PodRef, uid: Option<String>, warning: &Warning) -> Event {
    Event {
        metadata: ObjectMeta {
            namespace: Some(pod.namespace.clone()),
            generate_name: Some(format!("{}.", pod.name)),
            ..Default::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid,
            ..Default::default()
        },
        type_: Some("Warning".to_owned()),
        reason: Some(warning.reason.to_owned()),
        message: Some(warning.message.clone()),
        count: Some(warning.count),
        first_timestamp: Some(Time(warning.first)),
        last_timestamp: Some(Time(warning.last)),
        source: Some(EventSource { component: Some("fairlead".to_owned()), host: Some(node.to_owned()) }),
        reporting_component: Some("fairlead".to_owned()),
        reporting_instance: Some(node.to_owned()),
        ..Default::default()
    }
}

fn cut(message: &str) -> &str {
    let mut end = message.len().min(LONGEST_MESSAGE);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> PodRef {
        PodRef { namespace: "a".into(), name: name.into(), uid: None }
    }

    #[test]
    fn x14_the_same_words_are_counted_and_come_once_in_ten_seconds() {
        let mut warnings = Warnings::default();
        for _ in 0..3 {
            warnings.push(&pod("p"), "NoNetwork", "the words");
        }
        let now = Instant::now();
        let (_, first) = warnings.due(now).unwrap();
        assert_eq!(first.count, 3);
        warnings.push(&pod("p"), "NoNetwork", "the words");
        assert_eq!(warnings.due(now), None);
        assert!(warnings.next(now).unwrap() > EVERY - Duration::from_secs(1));
        assert_eq!(warnings.due(now + EVERY).unwrap().1.count, 1);
    }

    #[test]
    fn x14_what_cannot_be_written_is_counted_on_and_dropped_when_it_is_old() {
        let mut warnings = Warnings::default();
        warnings.push(&pod("p"), "NoNetwork", "the words");
        let now = Instant::now();
        let (of, warning) = warnings.due(now).unwrap();
        warnings.push(&pod("p"), "NoNetwork", "the words");
        warnings.again(&of, warning);
        assert_eq!(warnings.due(now + EVERY).unwrap().1.count, 2);
        warnings.push(&pod("p"), "NoNetwork", "other words");
        assert_eq!((warnings.due(now + TOO_OLD * 2), warnings.dropped()), (None, 1));
    }

    #[test]
    fn x14_failing_pods_of_one_namespace_keep_no_other_from_being_told() {
        let mut warnings = Warnings::default();
        let failing: Vec<PodRef> = (0..15).map(|n| pod(&format!("p{n}"))).collect();
        let other = PodRef { namespace: "z".into(), ..pod("p") };
        warnings.push(&other, "NoNetwork", "the words");
        // Ahead of the time at which the warnings below come.
        let (start, mut told) = (Instant::now() + EVERY, Vec::new());
        for second in 0..30 {
            if second % 10 == 0 {
                failing.iter().for_each(|pod| warnings.push(pod, "NoNetwork", "the words"));
            }
            let due = warnings.due(start + Duration::from_secs(second));
            told.extend(due.map(|(pod, _)| pod));
        }
        assert_eq!(told.iter().position(|pod| *pod == other), Some(1), "{told:?}");
        assert!(failing.iter().all(|pod| told.contains(pod)), "the oldest of a namespace first: {told:?}");
    }

    #[test]
    fn a_flood_of_warnings_takes_bounded_memory_and_a_message_is_cut_between_characters() {
        let mut warnings = Warnings::default();
        for n in 0..10_000 {
            warnings.push(&pod(&format!("p{}", n % 1000)), "R", &format!("{n} {}", "ü".repeat(600)));
        }
        assert_eq!(warnings.pods.len(), MOST_PODS);
        let longest = warnings.pods.values().flat_map(|of| &of.waiting).map(|w| w.message.len()).max();
        assert!(longest.unwrap() <= LONGEST_MESSAGE);
        assert!(warnings.pods.values().all(|of| of.waiting.len() <= MOST_WORDS));
    }
}
