//! Metrics on a TCP port, for who cannot reach the daemon's socket: a Prometheus on another machine. Off unless it is configured.
//!
//! Nothing of the socket's API is here but `/metrics`. What comes over the network is bounded: connections, their time, what they send,
//! how often the metrics are put together and how often the API server is asked about a token. All of it happens on a thread of its
//! own, so whatever stands still here holds up no call.

mod authorization;
mod certificate;
mod connection;
mod settings;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use fairlead_host::blocking_threads::runtime_with_a_kept_thread;
use fairlead_kube::ApiServer;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use self::authorization::{Authorization, ByApiServer, Reviewer};
use self::certificate::FileCertificate;
use self::connection::{Door, Tls, WHOLE};
pub use self::settings::{MetricsSettings, TlsFiles};

/// The one path.
const PATH: &str = "/metrics";
/// The pause after a port could not be had.
const AGAIN: Duration = Duration::from_secs(5);
/// The pause after each connection: a flood of them costs the node little.
const BETWEEN: Duration = Duration::from_millis(10);
/// So long the same text is told to everybody.
const FRESH: Duration = Duration::from_millis(500);

/// How much may come in.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Connections at once; further ones wait.
    connections: usize,
    /// The time within which TLS must stand, and then the head of the request be there.
    head: Duration,
    /// The time for all of a connection.
    whole: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { connections: 16, head: Duration::from_secs(5), whole: WHOLE }
    }
}

/// The text of the metrics, put together by one at a time and never twice at once.
#[derive(Clone)]
struct Exposed {
    source: Arc<dyn Fn() -> String + Send + Sync>,
    last: Arc<tokio::sync::Mutex<Option<(Instant, Bytes)>>>,
}

impl Exposed {
    async fn text(&self) -> Result<Bytes, String> {
        // Goes along to the other thread: while that one is held up nobody begins a second one.
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if let Some((at, text)) = &*last
            && at.elapsed() < FRESH
        {
            return Ok(text.clone());
        }
        let source = Arc::clone(&self.source);
        let made = tokio::task::spawn_blocking(move || {
            let text = Bytes::from(source());
            *last = Some((Instant::now(), text.clone()));
            text
        });
        made.await.map_err(|error| error.to_string())
    }
}

/// How it stands with the port.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PortState {
    /// None is wanted.
    #[default]
    Off,
    /// Metrics are served at this address.
    Listening(SocketAddr),
    /// Nobody is served, for this reason; it is tried again.
    Failing(String),
}

impl PortState {
    /// As the daemon's status tells it.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            PortState::Off => serde_json::Value::Null,
            PortState::Listening(address) => serde_json::json!({ "listening": address }),
            PortState::Failing(reason) => serde_json::json!({ "failing": reason }),
        }
    }
}

/// The thread of the port. Dropping it closes the port.
#[derive(Debug)]
pub struct MetricsPort {
    wanted: watch::Sender<Option<MetricsSettings>>,
    state: Arc<Mutex<PortState>>,
}

/// What the thread works with.
struct Port {
    exposed: Exposed,
    reviewer: Box<dyn Fn() -> Box<dyn Reviewer> + Send>,
    state: Arc<Mutex<PortState>>,
    limits: Limits,
}

impl MetricsPort {
    /// Starts the thread, which listens where the settings say so. `source` puts the text of the metrics together; `api`: who is
    /// asked about tokens.
    ///
    /// # Errors
    /// The thread, or its runtime, cannot be had.
    pub fn start(
        settings: Option<MetricsSettings>,
        source: Arc<dyn Fn() -> String + Send + Sync>,
        api: Option<ApiServer>,
    ) -> io::Result<MetricsPort> {
        let reviewer = Box::new(move || Box::new(ByApiServer::new(api.clone())) as Box<dyn Reviewer>);
        MetricsPort::start_with(settings, source, reviewer, Limits::default())
    }

    fn start_with(
        settings: Option<MetricsSettings>,
        source: Arc<dyn Fn() -> String + Send + Sync>,
        reviewer: Box<dyn Fn() -> Box<dyn Reviewer> + Send>,
        limits: Limits,
    ) -> io::Result<MetricsPort> {
        let (wanted, changes) = watch::channel(settings);
        let state: Arc<Mutex<PortState>> = Arc::default();
        let exposed = Exposed { source, last: Arc::default() };
        let port = Port { exposed, reviewer, state: Arc::clone(&state), limits };
        let mut builder = tokio::runtime::Builder::new_current_thread();
        // The text, and the name of the API server.
        let runtime = runtime_with_a_kept_thread(builder.enable_all().thread_name("metrics-text"), 2)?;
        std::thread::Builder::new().name("metrics-port".into()).spawn(move || {
            runtime.block_on(port.follow(changes));
            // A text that is being put together may be held up for long.
            runtime.shutdown_background();
        })?;
        Ok(MetricsPort { wanted, state })
    }

    /// Takes changed settings; nothing happens where they are the same.
    pub fn configure(&self, settings: Option<MetricsSettings>) {
        self.wanted.send_if_modified(|wanted| {
            let changed = *wanted != settings;
            *wanted = settings;
            changed
        });
    }

    /// How it stands with the port.
    pub fn state(&self) -> Arc<Mutex<PortState>> {
        Arc::clone(&self.state)
    }
}

impl Port {
    /// Listens where it is wanted, until nobody wants anything any more.
    async fn follow(&self, mut changes: watch::Receiver<Option<MetricsSettings>>) {
        loop {
            let wanted = changes.borrow_and_update().clone();
            *self.state.lock() = PortState::Off;
            // What is under way ends with the settings that it was begun by.
            let changed = match wanted {
                None => changes.changed().await,
                Some(settings) => tokio::select! {
                    changed = changes.changed() => changed,
                    never = self.listen(&settings) => match never {},
                },
            };
            if changed.is_err() {
                return;
            }
        }
    }

    async fn listen(&self, settings: &MetricsSettings) -> std::convert::Infallible {
        loop {
            let reason = match (self.door(settings), TcpListener::bind(settings.listen).await) {
                (Ok(door), Ok(listener)) => {
                    let address = listener.local_addr().unwrap_or(settings.listen);
                    info!(%address, tls = settings.tls.is_some(), token = settings.token_review, "metrics are served");
                    *self.state.lock() = PortState::Listening(address);
                    accept(&listener, &Arc::new(door)).await
                }
                (Err(error), _) => error.to_string(),
                (_, Err(error)) => format!("{} cannot be listened at: {error}", settings.listen),
            };
            let failing = PortState::Failing(reason);
            if *self.state.lock() != failing {
                warn!(state = ?failing, "metrics are not served; it is tried again");
                *self.state.lock() = failing;
            }
            sleep(AGAIN).await;
        }
    }

    fn door(&self, settings: &MetricsSettings) -> Result<Door, certificate::CertificateError> {
        let tls = match &settings.tls {
            Some(files) => {
                let mut files = FileCertificate::new(files.clone());
                files.current(Instant::now())?;
                Tls::Files(Arc::new(Mutex::new(files)))
            }
            None if settings.token_review => Tls::Own(certificate::own()?),
            None => Tls::Off,
        };
        let authorization = settings.token_review.then(|| Authorization::new((self.reviewer)()));
        Ok(Door { tls, authorization, exposed: self.exposed.clone(), limits: self.limits })
    }
}

/// Takes connections; each ends within its time.
async fn accept(listener: &TcpListener, door: &Arc<Door>) -> ! {
    let places = Arc::new(Semaphore::new(door.limits.connections));
    let mut connections = JoinSet::new();
    loop {
        let place = Arc::clone(&places).acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let serving = timeout(door.limits.whole, Arc::clone(door).serve(stream));
                connections.spawn(async move {
                    let _ = serving.await;
                    drop(place);
                });
            }
            Err(error) => {
                warn!(%error, "a connection to the metrics' port could not be accepted");
                // Mostly for want of descriptors, and that takes a while to end.
                sleep(AGAIN).await;
            }
        }
        while connections.try_join_next().is_some() {}
        sleep(BETWEEN).await;
    }
}
