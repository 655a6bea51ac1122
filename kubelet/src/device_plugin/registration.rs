//! Keeps one resource registered with kubelet, whatever either side does.
//!
//! When kubelet starts it forgets every plugin, removes the sockets in its directory and creates its own again. Therefore we
//! compare the state itself and keep no history: whether our socket exists, whether kubelet's socket is the one that we
//! registered with, and whether somebody follows our list. Events only say when to compare.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_host::backoff::Backoff;
use fairlead_host::stable_hash;
use futures_util::{StreamExt, stream};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tracing::{info, warn};

use super::super::kubelet_dir::{KUBELET_SOCKET, KubeletDir, SocketDir, SocketFile};
use super::super::proto::deviceplugin as wire;
use super::DIRECTORY;
use super::service::{Endpoint, OPTIONS, Offer};
use wire::device_plugin_server::DevicePluginServer;
use wire::registration_client::RegistrationClient;

/// How long to wait for an event before the next comparison.
const COMPARE_EVERY: Duration = Duration::from_secs(10);
/// How long kubelet may take for an answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// The pauses while the resource can't be registered.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// How long to wait after an `accept` that failed: it would fail again at once, for example without free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long kubelet has to call back after the n-th registration in a row that nobody followed.
const CALLS_BACK: Backoff = Backoff::new(Duration::from_secs(3), Duration::from_secs(60));

/// The most bytes of a path in a socket's address, `sun_path` of unix(7) less its NUL. Kubelet dials the whole path.
const LONGEST_PATH: usize = 107;

/// Why a resource is not registered at the moment.
#[derive(Debug, thiserror::Error)]
enum RegistrationError {
    #[error("kubelet's directory can't be used: {0}")]
    Directory(#[source] io::Error),
    #[error("no socket for kubelet to call can be had: {0}")]
    Listen(#[source] io::Error),
    #[error("kubelet is not there: {0}")]
    Unreachable(#[source] io::Error),
    #[error("kubelet refuses: {}", .0.message())]
    Refused(#[source] tonic::Status),
    #[error("kubelet does not answer")]
    Late,
}

/// The name of a resource's socket in kubelet's directory: a hash where the path would be too long with the resource's own name, which
/// has an underscore for the slash and so is no hash.
fn socket_name(resource: &str, directory: &Path) -> String {
    let name = format!("fairlead-{}.sock", resource.replace('/', "_"));
    match directory.join(&name).as_os_str().len() <= LONGEST_PATH {
        true => name,
        false => format!("fairlead-{:016x}.sock", stable_hash::fnv1a(resource)),
    }
}

/// Our socket. It is served as long as this exists.
struct Serving {
    file: SocketFile,
    server: JoinHandle<()>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        // This ends the listener alone. The connection that kubelet has goes on; the list in it ends with the `Offer`.
        self.server.abort();
    }
}

/// A registration that kubelet accepted.
struct Registered {
    /// Kubelet's socket at that time. Another file is another run of kubelet, which knows nothing of us.
    with: SocketFile,
    at: Instant,
    /// Which registration in a row this is that nobody has followed yet, from 1.
    attempt: u32,
}

/// One resource, and whether kubelet knows it.
pub(super) struct Registration {
    offer: Arc<Offer>,
    directory: Arc<KubeletDir>,
    changed: watch::Receiver<()>,
    socket: String,
    serving: Option<Serving>,
    registered: Option<Registered>,
    failing: Option<String>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.serving.take().is_some()
            && let Ok(directory) = self.directory.open(DIRECTORY)
        {
            directory.remove(&self.socket);
        }
    }
}

impl Registration {
    pub(super) fn new(
        offer: Arc<Offer>,
        directory: Arc<KubeletDir>,
        changed: watch::Receiver<()>,
    ) -> Registration {
        let socket = socket_name(offer.devices.resource(), &directory.host_path(DIRECTORY));
        Registration { offer, directory, changed, socket, serving: None, registered: None, failing: None }
    }

    /// Compares and repairs for ever. Ends when the resource does.
    pub(super) async fn run(mut self) {
        // X23: nothing is registered before what exists has been compared with what should exist.
        if self.offer.devices.watch().next().await.is_none() {
            return;
        }
        let mut followers = self.offer.followers.subscribe();
        let mut attempts = BACKOFF.start();
        loop {
            let wait = match self.compare_and_repair().await {
                Ok(wait) => {
                    attempts.succeeded();
                    self.failing = None;
                    wait
                }
                Err(error) => {
                    self.log(&error);
                    attempts.failed()
                }
            };
            tokio::select! {
                // The sender goes with the watch of the directory: nothing is to be offered any more.
                changed = self.changed.changed() => if changed.is_err() { return },
                // That its stream has ended may be the only sign that kubelet has dropped the registration.
                _ = followers.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Compares, and repairs what is not as it should be. Returns when to compare again.
    async fn compare_and_repair(&mut self) -> Result<Duration, RegistrationError> {
        let directory = self.directory.open(DIRECTORY).map_err(RegistrationError::Directory)?;
        // Before the registration: kubelet calls back at once.
        self.listen(&directory)?;
        // Read before the registration: a kubelet that starts after this has another file, and is registered with again.
        let file = directory.file(KUBELET_SOCKET).map_err(RegistrationError::Directory)?;
        let Some(kubelet) = file else {
            self.registered = None;
            return Err(RegistrationError::Unreachable(io::Error::from(io::ErrorKind::NotFound)));
        };
        let followed = *self.offer.followers.borrow() > 0;
        let mut attempt = 1;
        match &mut self.registered {
            // The same kubelet follows our list: all is well, and a later loss is the first one again.
            Some(registered) if registered.with == kubelet && followed => {
                registered.attempt = 1;
                return Ok(COMPARE_EVERY);
            }
            // Nobody follows it yet. Kubelet calls back after a registration, so it gets its time before the next one.
            Some(registered) if registered.with == kubelet => {
                let left = CALLS_BACK.after(registered.attempt).saturating_sub(registered.at.elapsed());
                if !left.is_zero() {
                    return Ok(left);
                }
                attempt = registered.attempt.saturating_add(1);
            }
            _ => {}
        }
        self.register(&directory).await?;
        self.registered = Some(Registered { with: kubelet, at: Instant::now(), attempt });
        Ok(CALLS_BACK.after(attempt))
    }

    /// Listens again where our socket is gone, is not ours any more, or is not served any more.
    fn listen(&mut self, directory: &SocketDir) -> Result<(), RegistrationError> {
        let there = directory.file(&self.socket).map_err(RegistrationError::Directory)?;
        let alive = |serving: &Serving| there == Some(serving.file) && !serving.server.is_finished();
        if self.serving.as_ref().is_some_and(alive) {
            return Ok(());
        }
        // Kubelet knows the old socket only, so a new one needs a new registration.
        self.serving = None;
        self.registered = None;
        let listener = directory.listen(&self.socket).map_err(RegistrationError::Listen)?;
        let listener = UnixListener::from_std(listener).map_err(RegistrationError::Listen)?;
        let file = directory.file(&self.socket).map_err(RegistrationError::Listen)?;
        let file = file.ok_or_else(|| RegistrationError::Listen(io::ErrorKind::NotFound.into()))?;
        let callers = stream::unfold(listener, |listener| async move {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            if accepted.is_err() {
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            Some((accepted, listener))
        });
        let service = DevicePluginServer::new(Endpoint::of(&self.offer));
        let server = tokio::spawn(async move {
            if let Err(error) = Server::builder().add_service(service).serve_with_incoming(callers).await {
                warn!(%error, "kubelet is not served any more; it will be again");
            }
        });
        self.serving = Some(Serving { file, server });
        Ok(())
    }

    async fn register(&self, directory: &SocketDir) -> Result<(), RegistrationError> {
        let resource = self.offer.devices.resource();
        let request = wire::RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint: self.socket.clone(),
            resource_name: resource.to_owned(),
            options: Some(OPTIONS),
        };
        let registered = async {
            let channel = directory.connect(KUBELET_SOCKET).await.map_err(RegistrationError::Unreachable)?;
            let answer = RegistrationClient::new(channel).register(request).await;
            answer.map_err(RegistrationError::Refused)
        };
        tokio::time::timeout(CALL_TIMEOUT, registered).await.map_err(|_| RegistrationError::Late)??;
        info!(resource, socket = %directory.host_path(&self.socket).display(), "registered with kubelet");
        Ok(())
    }

    /// Logs an error, unless it is the same as the one before.
    fn log(&mut self, error: &RegistrationError) {
        let text = error.to_string();
        if self.failing.as_ref() != Some(&text) {
            let resource = self.offer.devices.resource();
            warn!(resource, reason = text, "kubelet is not offered this resource; it is tried again");
            self.failing = Some(text);
        }
    }
}
