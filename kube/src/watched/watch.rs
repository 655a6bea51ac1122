//! The watch of one kind: list page by page, then events, for ever.
//!
//! Our own loop, not kube-runtime's `watcher`: that one does not tell that a broken watch works again (until the next event), asks
//! for ever with a resource version that the API server has answered 410 for, and fails as a whole on one object that it cannot
//! parse. All three are what this must not do.

use std::fmt::Display;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use http::Request as HttpRequest;
use kube::api::{ListParams, WatchParams};
use kube::core::{Request, WatchEvent};
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::backoff::Backoff;
use super::client::{Connection, reason, status_code};
use super::object::{Object, Page};
use super::shared::Shared;
use super::watch_state::{Kind, Phase};

/// The API server ends a watch after this many seconds; the next begins where it ended.
const WATCH_SECONDS: u32 = 290;
/// A list's page, or the answer to a watch's beginning, that takes longer has failed.
const ANSWER: Duration = Duration::from_secs(30);
/// Pauses after failures. Somebody who waits shortens one, to this at least.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
/// Pauses while the API has no such kind.
const FIRST_PAUSE_WITHOUT_KIND: Duration = Duration::from_secs(5);
const LONGEST_PAUSE_WITHOUT_KIND: Duration = Duration::from_secs(300);
/// A watch that lives shorter, without an event, counts as a failure: something between us and the API server ends it.
const SHORT_LIVED: Duration = Duration::from_secs(5);
/// A namespace has room again for objects that were left out: all are listed anew after one to five times this, so that the nodes of
/// a cluster do not come at once.
const ROOM_PAUSE: Duration = Duration::from_secs(1);
/// No two such lists within this time: a tenant, who makes and takes away room at will, has none made in a loop.
const ROOM_EVERY: Duration = Duration::from_secs(60);

/// Why an attempt has ended.
#[derive(Debug)]
pub(super) enum Failure {
    /// All are to be listed again: the events since the version that we have are gone, or some objects were left out.
    ListAgain(String),
    /// The API has no such kind.
    NoSuchKind(String),
    /// Anything else.
    Failed(String),
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Failure {
        let words = reason(&error);
        match status_code(&error) {
            Some(404) => Failure::NoSuchKind(words),
            Some(410) => Failure::ListAgain(words),
            _ => Failure::Failed(words),
        }
    }
}

/// The watch of one kind.
pub(super) struct Watch {
    connection: Arc<Connection>,
    shared: Arc<Shared>,
    kind: Kind,
    request: Request,
    fields: Option<String>,
    backoff: Backoff,
    backoff_without_kind: Backoff,
    /// Of its own: after an outage the other one has grown, and what is missing is one list.
    backoff_of_lists: Backoff,
    /// All are listed anew then: a namespace has room for what was left out.
    list_for_room: Option<Instant>,
    no_list_for_room_before: Instant,
}

impl Watch {
    pub(super) fn new(connection: Arc<Connection>, shared: Arc<Shared>, kind: Kind) -> Watch {
        let fields = (kind == Kind::Pods).then(|| format!("spec.nodeName={}", shared.node));
        Watch {
            connection,
            shared,
            kind,
            request: Request::new(kind.path()),
            fields,
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            backoff_without_kind: Backoff::new(FIRST_PAUSE_WITHOUT_KIND, LONGEST_PAUSE_WITHOUT_KIND),
            backoff_of_lists: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            list_for_room: None,
            no_list_for_room_before: Instant::now(),
        }
    }

    /// Lists and watches until the task is ended.
    pub(super) async fn run(mut self) {
        loop {
            let failure = match self.list().await {
                Ok(version) => self.follow(version).await,
                Err(failure) => failure,
            };
            self.failed(failure).await;
        }
    }

    /// All objects, page by page. Answers the version from which to watch.
    async fn list(&mut self) -> Result<String, Failure> {
        let client = self.connection.current().await;
        self.list_for_room = None;
        self.shared.change(|known| known.begin_list(self.kind));
        let mut params = ListParams {
            field_selector: self.fields.clone(),
            limit: Some(self.kind.page()),
            ..Default::default()
        };
        loop {
            let request = if self.kind.metadata_is_enough() {
                self.request.list_metadata(&params)
            } else {
                self.request.list(&params)
            };
            let text = within(ANSWER, client.request_text(built(request)?)).await??;
            let page: Page<'_> =
                serde_json::from_str(&text).map_err(|e| failed("its list cannot be read", &e))?;
            let (version, next) = (page.metadata.resource_version, page.metadata.r#continue);
            self.shared.change(|known| {
                known.watch_mut(self.kind).heard();
                for object in page.items.unwrap_or_default() {
                    if let Some(object) = self.parse(object) {
                        known.apply(self.kind, object);
                    }
                }
            });
            if next.is_empty() {
                self.end_list();
                return Ok(version);
            }
            params.continue_token = Some(next);
        }
    }

    fn end_list(&mut self) {
        let has_room = self.shared.change(|known| {
            known.end_list(self.kind);
            known.takes_room(self.kind)
        });
        self.note_room(has_room);
        self.shared.wake.snapshot.notify_one();
        if self.kind == Kind::Pods {
            self.shared.reports.lock().all_seen();
            self.shared.wake.reports.notify_one();
        }
    }

    /// Follows the events from a version on, through as many watches as it takes.
    async fn follow(&mut self, mut version: String) -> Failure {
        loop {
            let begun = Instant::now();
            let before = version.clone();
            match self.watch_once(&mut version).await {
                Err(failure @ (Failure::ListAgain(_) | Failure::NoSuchKind(_))) => return failure,
                Err(failure) => self.failed(failure).await,
                Ok(()) if version == before && begun.elapsed() < SHORT_LIVED => {
                    self.failed(Failure::Failed("it ends each watch at once".to_owned())).await;
                }
                Ok(()) => {}
            }
        }
    }

    /// One watch, until the API server ends it.
    async fn watch_once(&mut self, version: &mut String) -> Result<(), Failure> {
        let params = WatchParams {
            field_selector: self.fields.clone(),
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            ..Default::default()
        };
        let request = if self.kind.metadata_is_enough() {
            self.request.watch_metadata(&params, version)
        } else {
            self.request.watch(&params, version)
        };
        let client = self.connection.current().await;
        let events = within(ANSWER, client.request_events::<Box<RawValue>>(built(request)?)).await??;
        self.live();
        let mut events = pin!(events);
        let silence = Duration::from_secs(WATCH_SECONDS.into()) + ANSWER;
        loop {
            self.ends_for_room()?;
            let silent_until = Instant::now() + silence;
            let until = self.list_for_room.map_or(silent_until, |at| at.min(silent_until));
            match timeout_at(until, events.next()).await {
                Ok(Some(event)) => self.take(event?, version)?,
                Ok(None) => return Ok(()),
                // The list is due.
                Err(_) if until < silent_until => continue,
                Err(_) => return Err(unanswered(silence)),
            }
            self.backoff.reset();
            self.backoff_of_lists.reset();
        }
    }

    /// Has all listed anew some time after a namespace has got room for what was left out.
    fn note_room(&mut self, has_room: bool) {
        if has_room && self.list_for_room.is_none() {
            let soon = Instant::now() + ROOM_PAUSE.mul_f64(1.0 + 4.0 * fastrand::f64());
            self.list_for_room = Some(soon.max(self.no_list_for_room_before));
        }
    }

    fn ends_for_room(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        if self.list_for_room.is_none_or(|at| now < at) {
            return Ok(());
        }
        self.no_list_for_room_before = now + ROOM_EVERY;
        Err(Failure::ListAgain("a namespace has room for what was left out".to_owned()))
    }

    /// Takes what the API tells, and has the snapshot written where it has something else by that.
    pub(super) fn take(
        &mut self,
        event: WatchEvent<Box<RawValue>>,
        version: &mut String,
    ) -> Result<(), Failure> {
        let (text, deleted) = match event {
            WatchEvent::Added(text) | WatchEvent::Modified(text) => (text, false),
            WatchEvent::Deleted(text) => (text, true),
            WatchEvent::Bookmark(mark) => {
                *version = mark.metadata.resource_version;
                self.shared.known.lock().watch_mut(self.kind).heard();
                return Ok(());
            }
            WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
        };
        let Some(object) = self.parse(&text) else { return Ok(()) };
        version.clone_from(&object.metadata.resource_version);
        let (namespace, name) = (object.metadata.namespace.clone(), object.metadata.name.clone());
        let (changed, has_room) = self.shared.change(|known| {
            known.watch_mut(self.kind).heard();
            let changed =
                if deleted { known.delete(self.kind, object) } else { known.apply(self.kind, object) };
            (changed, known.takes_room(self.kind))
        });
        self.note_room(has_room);
        // Most events are of no concern to the snapshot: a pod's status, a definition's other annotations.
        if changed {
            self.shared.wake.snapshot.notify_one();
        }
        if self.kind == Kind::Pods {
            self.shared.reports.lock().seen(&namespace, &name);
            self.shared.wake.reports.notify_one();
        }
        Ok(())
    }

    fn parse(&self, text: &RawValue) -> Option<Object> {
        let told = |e| tracing::warn!(kind = self.kind.name(), error = %e, "an object of the API cannot be read; it is passed over");
        Object::parse(text).map_err(told).ok()
    }

    fn live(&self) {
        if self.shared.change(|known| known.watch_mut(self.kind).live()) {
            tracing::info!(
                kind = self.kind.name(),
                objects = self.shared.known.lock().count(self.kind),
                "watching the API server"
            );
        }
    }

    /// Tells the failure once, and waits before the next attempt; shorter if somebody waits for what it would bring.
    async fn failed(&mut self, failure: Failure) {
        let pause = match &failure {
            Failure::ListAgain(_) => self.backoff_of_lists.pause(),
            Failure::NoSuchKind(_) => self.backoff_without_kind.pause(),
            Failure::Failed(_) => {
                self.backoff_without_kind.reset();
                self.backoff.pause()
            }
        };
        self.tell(&failure);
        sleep(SHORTEST_PAUSE.min(pause)).await;
        let rest = pause.saturating_sub(SHORTEST_PAUSE);
        let _ = timeout(rest, self.shared.wake.watch(self.kind).notified()).await;
    }

    /// Lets whoever waits know why, and the log if it is news.
    fn tell(&self, failure: &Failure) {
        let kind = self.kind.name();
        let failed = |phase, words: &str| {
            self.shared.change(|known| known.watch_mut(self.kind).failed(phase, words.to_owned()))
        };
        match failure {
            Failure::ListAgain(reason) => {
                self.shared.change(|known| known.watch_mut(self.kind).listing());
                tracing::debug!(kind, reason, "listing again");
            }
            Failure::NoSuchKind(reason) => {
                if failed(Phase::NoSuchKind, reason) {
                    tracing::info!(
                        kind,
                        "the API server has no such kind; it is watched as soon as its CustomResourceDefinition is applied"
                    );
                }
            }
            Failure::Failed(reason) => {
                if failed(Phase::Failing, reason) {
                    tracing::warn!(
                        kind,
                        reason,
                        "the API server cannot be watched; what was known before is still answered, and it is tried again"
                    );
                }
            }
        }
    }
}

fn built(
    request: Result<HttpRequest<Vec<u8>>, kube::core::request::Error>,
) -> Result<HttpRequest<Vec<u8>>, Failure> {
    request.map_err(|e| failed("the request cannot be made", &e))
}

fn failed(what: &str, error: &dyn Display) -> Failure {
    Failure::Failed(format!("{what}: {error}"))
}

async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Result<T, Failure> {
    timeout(limit, work).await.map_err(|_| unanswered(limit))
}

fn unanswered(limit: Duration) -> Failure {
    Failure::Failed(format!("it does not answer within {} s", limit.as_secs()))
}
