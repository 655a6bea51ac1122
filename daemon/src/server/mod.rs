//! The door: HTTP/1.1 with JSON on a unix socket, for the executable and for the operator.
//!
//! Only uid 0 is served. Every answer to a call, the server's own rejections included, is a CNI result or a CNI error
//! object with a `Content-Length`. All of it runs on one thread, which never waits for a call: calls go through
//! [`Admission`], and what is slow to look up goes to a thread for that.

mod answer;
mod calls;
mod operator;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use futures_util::FutureExt;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::unix::SocketAddr;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore};
use tower::ServiceExt;
use tracing::{debug, warn};

use self::answer::Slip;
use crate::admission::{Admission, Receipt};
use crate::call::Service;
use crate::health::{Health, Readiness};
use crate::metrics::Exposition;

/// A caller that connects must have sent its request's head by then.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// At the end: so long without a further connection means that the backlog is empty.
const LAST_ONES: Duration = Duration::from_millis(10);
/// At the end: the last answers have so long to leave.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// Bodies held at once, in KiB: what waits in the queue can't eat the node's memory (row X12).
const BODIES_KIB: u32 = 32 << 10;

/// What the server answers from.
#[derive(Clone)]
pub struct Door {
    /// Where calls go.
    pub admission: Admission,
    /// The engine, once it has been started.
    pub service: Arc<OnceLock<Arc<dyn Service>>>,
    /// What is still to be done before calls are begun.
    pub readiness: Arc<Readiness>,
    /// Whether all is well.
    pub health: Arc<Health>,
    /// What `/metrics` shows.
    pub exposition: Arc<Exposition>,
    /// Tells of the daemon itself in `/v1/status`: what is refused, and where things lie.
    pub about: Arc<dyn Fn() -> serde_json::Value + Send + Sync>,
    bodies: Arc<Semaphore>,
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").field("readiness", &self.readiness).finish_non_exhaustive()
    }
}

impl Door {
    /// A door in front of `admission`, without an engine yet.
    pub fn new(
        admission: Admission,
        readiness: Arc<Readiness>,
        health: Arc<Health>,
        exposition: Arc<Exposition>,
    ) -> Door {
        Door {
            admission,
            service: Arc::default(),
            readiness,
            health,
            exposition,
            about: Arc::new(|| serde_json::Value::Null),
            bodies: Arc::new(Semaphore::new(BODIES_KIB as usize)),
        }
    }
}

/// All routes.
pub fn router(door: Door) -> Router {
    calls::routes().merge(operator::routes()).fallback(answer::no_such_path).with_state(door)
}

/// Accepts connections until `closing`, then those that are still in the backlog, and waits for their answers to
/// leave. The socket's file must be gone by then.
pub async fn serve(listener: UnixListener, door: Door, closing: Arc<Notify>) {
    let router = router(door);
    let open = Arc::new(());
    let closed = closing.notified();
    tokio::pin!(closed);
    loop {
        tokio::select! {
            accepted = listener.accept() => accept(accepted, &router, &open).await,
            () = &mut closed => break,
        }
    }
    while let Ok(accepted) = tokio::time::timeout(LAST_ONES, listener.accept()).await {
        accept(accepted, &router, &open).await;
    }
    drop(listener);
    let until = Instant::now() + LAST_ANSWERS;
    while Arc::strong_count(&open) > 1 && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn accept(accepted: io::Result<(UnixStream, SocketAddr)>, router: &Router, open: &Arc<()>) {
    match accepted {
        Ok((stream, _)) => {
            let (router, open) = (router.clone(), Arc::clone(open));
            tokio::spawn(async move {
                connection(stream, router).await;
                drop(open);
            });
        }
        Err(error) => {
            // Out of descriptors, mostly: those that wait stay in the backlog meanwhile.
            warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// One request, one answer.
async fn connection(stream: UnixStream, router: Router) {
    let root = stream.peer_cred().is_ok_and(|peer| peer.uid() == 0);
    let slip: Slip = Slip::default();
    let service = hyper::service::service_fn(|request: hyper::Request<hyper::body::Incoming>| {
        let (router, slip) = (router.clone(), Arc::clone(&slip));
        async move {
            if !root {
                return Ok::<_, Infallible>(answer::not_root());
            }
            let mut response = caught(router, request.map(Body::new)).await;
            if let Some(receipt) = response.extensions_mut().remove::<Slip>() {
                pass(&receipt, &slip);
            }
            Ok(response)
        }
    });
    let served = http1::Builder::new()
        .keep_alive(false)
        .auto_date_header(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Some(receipt) = take(&slip) {
        receipt.give_back(served.is_ok());
    }
    if let Err(error) = served {
        debug!(%error, "a connection ended early");
    }
}

fn take(slip: &Slip) -> Option<Receipt> {
    slip.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn pass(from: &Slip, to: &Slip) {
    let receipt = take(from);
    *to.lock().unwrap_or_else(PoisonError::into_inner) = receipt;
}

/// A panic in a handler is answered like any other failure.
async fn caught(router: Router, request: Request) -> Response {
    match AssertUnwindSafe(router.oneshot(request)).catch_unwind().await {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(panic) => answer::fault(crate::admission::panic_text(&*panic)),
    }
}
