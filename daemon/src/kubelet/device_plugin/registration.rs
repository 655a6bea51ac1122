//! Keeps one resource registered with kubelet, whatever either side does.
//!
//! Kubelet forgets every plugin when it starts, removes the sockets in its directory and makes its own anew. So what is
//! looked at is the world as it is: whether our socket is there, whether kubelet's is the one that we registered with, and
//! whether somebody follows our list. Events only say when to look.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tracing::{info, warn};

use super::super::place::{KUBELET_SOCKET, KubeletDir, SocketDir, SocketFile};
use super::super::proto::deviceplugin as wire;
use super::DIRECTORY;
use super::service::{Endpoint, OPTIONS, Offer};
use wire::device_plugin_server::DevicePluginServer;
use wire::registration_client::RegistrationClient;

/// Without an event it is looked so often.
const LOOK: Duration = Duration::from_secs(10);
/// Kubelet may take so long for an answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Between two tries, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Kubelet calls back within this time after a registration; twice as long after each one in vain.
const CALLS_BACK: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(60));

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

/// Our socket, served as long as this is held.
struct Serving {
    file: SocketFile,
    server: JoinHandle<()>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// With whom we are registered.
struct Registered {
    with: SocketFile,
    at: Instant,
    /// By then it must have called.
    calls_back: Duration,
}

/// One resource and how it stands with kubelet.
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
        let socket = format!("fairlead-{}.sock", offer.devices.resource().replace('/', "_"));
        Registration { offer, directory, changed, socket, serving: None, registered: None, failing: None }
    }

    /// Looks and does what is to be done, for ever; ends with the resource.
    pub(super) async fn run(mut self) {
        // X23: not before what is there has been compared with what should be.
        if self.offer.devices.list().wait_for(Option::is_some).await.is_err() {
            return;
        }
        let mut followers = self.offer.followers.subscribe();
        let (mut pause, longest) = PAUSES;
        loop {
            let next_look = match self.look().await {
                Ok(wait) => {
                    pause = PAUSES.0;
                    self.failing = None;
                    wait
                }
                Err(error) => {
                    self.tell(&error);
                    let wait = pause;
                    pause = longest.min(pause * 2);
                    wait
                }
            };
            tokio::select! {
                changed = self.changed.changed() => if changed.is_err() { return },
                _ = followers.changed() => {}
                () = tokio::time::sleep(next_look) => {}
            }
        }
    }

    /// Compares, and mends; answers when to look again.
    async fn look(&mut self) -> Result<Duration, RegistrationError> {
        let directory = self.directory.open(DIRECTORY).map_err(RegistrationError::Directory)?;
        self.listen(&directory)?;
        let file = directory.file(KUBELET_SOCKET).map_err(RegistrationError::Directory)?;
        let Some(kubelet) = file else {
            self.registered = None;
            return Err(RegistrationError::Unreachable(io::Error::from(io::ErrorKind::NotFound)));
        };
        let followed = *self.offer.followers.borrow() > 0;
        let mut calls_back = CALLS_BACK.0;
        match &mut self.registered {
            Some(registered) if registered.with == kubelet && followed => {
                registered.calls_back = CALLS_BACK.0;
                return Ok(LOOK);
            }
            Some(registered) if registered.with == kubelet => {
                let left = registered.calls_back.saturating_sub(registered.at.elapsed());
                if !left.is_zero() {
                    return Ok(left);
                }
                calls_back = CALLS_BACK.1.min(registered.calls_back * 2);
            }
            _ => {}
        }
        self.register(&directory).await?;
        self.registered = Some(Registered { with: kubelet, at: Instant::now(), calls_back });
        Ok(calls_back)
    }

    /// Listens, where our socket is not there or is not ours any more.
    fn listen(&mut self, directory: &SocketDir) -> Result<(), RegistrationError> {
        let there = directory.file(&self.socket).map_err(RegistrationError::Directory)?;
        let alive = |serving: &Serving| there == Some(serving.file) && !serving.server.is_finished();
        if self.serving.as_ref().is_some_and(alive) {
            return Ok(());
        }
        self.serving = None;
        self.registered = None;
        let listener = directory.listen(&self.socket).map_err(RegistrationError::Listen)?;
        let listener = UnixListener::from_std(listener).map_err(RegistrationError::Listen)?;
        let file = directory.file(&self.socket).map_err(RegistrationError::Listen)?;
        let file = file.ok_or_else(|| RegistrationError::Listen(io::ErrorKind::NotFound.into()))?;
        let callers = stream::unfold(listener, |listener| async move {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            if accepted.is_err() {
                tokio::time::sleep(PAUSES.0).await;
            }
            Some((accepted, listener))
        });
        let service = DevicePluginServer::new(Endpoint(Arc::clone(&self.offer)));
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
        let asked = async {
            let channel = directory.connect(KUBELET_SOCKET).await.map_err(RegistrationError::Unreachable)?;
            let answer = RegistrationClient::new(channel).register(request).await;
            answer.map_err(RegistrationError::Refused)
        };
        tokio::time::timeout(ANSWER, asked).await.map_err(|_| RegistrationError::Late)??;
        info!(resource, socket = %directory.told(&self.socket).display(), "registered with kubelet");
        Ok(())
    }

    /// Once for each reason.
    fn tell(&mut self, error: &RegistrationError) {
        let text = error.to_string();
        if self.failing.as_ref() != Some(&text) {
            let resource = self.offer.devices.resource();
            warn!(resource, reason = text, "kubelet is not offered this resource; it is tried again");
            self.failing = Some(text);
        }
    }
}
