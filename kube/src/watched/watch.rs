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
use kube::Client;
use kube::api::{ListParams, WatchParams};
use kube::core::{Request, WatchEvent};
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep, timeout};

use super::backoff::Backoff;
use super::client::{reason, status_code};
use super::object::{Object, Page};
use super::shared::Shared;
use super::watch_state::{Kind, Phase};

/// Objects in a page of a list: the memory for reading them stays the same, however many there are.
const PAGE: u32 = 100;
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

/// Why an attempt has ended.
#[derive(Debug)]
enum Failure {
    /// The events since the version that we have are gone: list again.
    Expired(String),
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
            Some(410) => Failure::Expired(words),
            _ => Failure::Failed(words),
        }
    }
}

/// The watch of one kind.
pub(super) struct Watch {
    client: Client,
    shared: Arc<Shared>,
    kind: Kind,
    request: Request,
    fields: Option<String>,
    backoff: Backoff,
    backoff_without_kind: Backoff,
}

impl Watch {
    pub(super) fn new(client: Client, shared: Arc<Shared>, kind: Kind) -> Watch {
        let fields = (kind == Kind::Pods).then(|| format!("spec.nodeName={}", shared.node));
        Watch {
            client,
            shared,
            kind,
            request: Request::new(kind.path()),
            fields,
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            backoff_without_kind: Backoff::new(FIRST_PAUSE_WITHOUT_KIND, LONGEST_PAUSE_WITHOUT_KIND),
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
    async fn list(&self) -> Result<String, Failure> {
        self.shared.change(|known| known.begin_list(self.kind));
        let mut params =
            ListParams { field_selector: self.fields.clone(), limit: Some(PAGE), ..Default::default() };
        loop {
            let request = if self.kind.metadata_is_enough() {
                self.request.list_metadata(&params)
            } else {
                self.request.list(&params)
            };
            let text = within(ANSWER, self.client.request_text(built(request)?)).await??;
            let page: Page =
                serde_json::from_str(&text).map_err(|e| failed("its list cannot be read", &e))?;
            let (version, next) = (page.metadata.resource_version, page.metadata.r#continue);
            self.shared.change(|known| {
                known.watch_mut(self.kind).heard();
                for object in page.items.unwrap_or_default() {
                    if let Some(object) = self.parse(&object) {
                        known.apply(self.kind, object);
                    }
                }
            });
            if next.is_empty() {
                self.shared.change(|known| known.end_list(self.kind));
                self.shared.wake.snapshot.notify_one();
                if self.kind == Kind::Pods {
                    self.shared.reports.lock().all_seen();
                    self.shared.wake.reports.notify_one();
                }
                return Ok(version);
            }
            params.continue_token = Some(next);
        }
    }

    /// Follows the events from a version on, through as many watches as it takes.
    async fn follow(&mut self, mut version: String) -> Failure {
        loop {
            let begun = Instant::now();
            let before = version.clone();
            match self.watch_once(&mut version).await {
                Err(failure @ (Failure::Expired(_) | Failure::NoSuchKind(_))) => return failure,
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
        let events = within(ANSWER, self.client.request_events::<Box<RawValue>>(built(request)?)).await??;
        self.live();
        let mut events = pin!(events);
        let silence = Duration::from_secs(WATCH_SECONDS.into()) + ANSWER;
        while let Some(event) = within(silence, events.next()).await? {
            self.take(event?, version)?;
            self.backoff.reset();
        }
        Ok(())
    }

    fn take(&self, event: WatchEvent<Box<RawValue>>, version: &mut String) -> Result<(), Failure> {
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
        self.shared.change(|known| {
            known.watch_mut(self.kind).heard();
            if deleted { known.delete(self.kind, object) } else { known.apply(self.kind, object) }
        });
        self.shared.wake.snapshot.notify_one();
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
        let before = self.shared.change(|known| {
            let watch = known.watch_mut(self.kind);
            let before = watch.phase;
            watch.live();
            before
        });
        if before != Phase::Live {
            tracing::info!(
                kind = self.kind.name(),
                objects = self.shared.known.lock().count(self.kind),
                "watching the API server"
            );
        }
    }

    /// Tells the failure once, and waits before the next attempt; shorter if somebody waits for what it would bring.
    async fn failed(&mut self, failure: Failure) {
        let (phase, words, pause) = match failure {
            Failure::Expired(words) => {
                tracing::debug!(kind = self.kind.name(), reason = words, "listing again");
                return sleep(self.backoff.pause()).await;
            }
            Failure::NoSuchKind(words) => (Phase::NoSuchKind, words, self.backoff_without_kind.pause()),
            Failure::Failed(words) => (Phase::Failing, words, self.backoff.pause()),
        };
        if phase == Phase::Failing {
            self.backoff_without_kind.reset();
        }
        if self.shared.change(|known| known.watch_mut(self.kind).failed(phase, words.clone())) {
            match phase {
                Phase::NoSuchKind => tracing::info!(
                    kind = self.kind.name(),
                    "the API server has no such kind; it is watched as soon as its CustomResourceDefinition is applied"
                ),
                _ => tracing::warn!(
                    kind = self.kind.name(),
                    reason = words,
                    "the API server cannot be watched; what was known before is still answered, and it is tried again"
                ),
            }
        }
        sleep(SHORTEST_PAUSE.min(pause)).await;
        let rest = pause.saturating_sub(SHORTEST_PAUSE);
        let _ = timeout(rest, self.shared.wake.watch(self.kind).notified()).await;
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
    timeout(limit, work)
        .await
        .map_err(|_| Failure::Failed(format!("it does not answer within {} s", limit.as_secs())))
}
