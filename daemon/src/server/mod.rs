//! The server: HTTP/1.1 with JSON on a unix socket, for the executable and for the operator, and gRPC on the same socket
//! (`remote_cni`). They are told apart by a connection's first bytes (`accepted`).
//!
//! Only uid 0 is served. Every answer to a call, the server's own refusals included, is a CNI result or a CNI
//! error object with a `Content-Length`. A usual call is carried out by the thread that accepted its connection (`acceptor`),
//! without HTTP's machinery (`direct_call`). All others are served by one thread, which never waits for a call: calls go
//! through [`Admission`], and slow look-ups go to a thread for blocking.

mod acceptor;
mod answered_calls;
mod cni_routes;
mod direct_call;
mod http2;
mod look_ups;
mod malformed_http;
mod operator_routes;
mod protocol_detection;
mod remote_cni;
mod request_body;
mod responses;
mod stuck_acceptors;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::io;
use std::os::unix::net::UnixListener;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use fairlead_cni::wire::RECEIVED;
use fairlead_host::blocking_threads::runtime_with_a_kept_thread;
use futures_util::FutureExt;
use hyper::server::conn::http1;
use hyper_util::rt::TokioTimer;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Notify, Semaphore, watch};
use tower::ServiceExt;
use tracing::{debug, warn};

use self::acceptor::Acceptors;
use self::cni_routes::PreparedCallSlot;
use self::http2::GrpcServer;
use self::look_ups::LookUps;
use self::malformed_http::HttpConnection;
use self::protocol_detection::{Accepted, CallThatCame, HandedOver, Protocol};
use self::request_body::BODIES_KIB;
use self::responses::ReceiptSlot;
use crate::admission::{Admission, Receipt};
use crate::call::Service;
use crate::default_network::DefaultNetwork;
use crate::health::{Health, Readiness};
use crate::metrics::Exposition;

/// The time within which a caller that connects must have sent its request's head.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// The time that the last answers have to leave, and that any answer has to arrive.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// So many threads look things up at most. The look-ups that may hang have turns ([`LookUps`]), fewer than these: the probes find a
/// thread, whoever asks for how much.
const LOOK_UP_THREADS: usize = 16;

/// Everything that the handlers of requests use.
#[derive(Clone)]
pub struct ServerState {
    /// Where every call of the runtime is handed in.
    pub admission: Admission,
    /// The engine, once it has been started.
    pub service: Arc<OnceLock<Arc<dyn Service>>>,
    /// The conditions to be met before calls are begun.
    pub readiness: Arc<Readiness>,
    /// The health of the daemon.
    pub health: Arc<Health>,
    /// The registry of all metrics, which `/metrics` shows.
    pub exposition: Arc<Exposition>,
    /// Describes the daemon in `/v1/status`: its paths, its settings, and what is refused.
    pub about: Arc<dyn Fn() -> serde_json::Value + Send + Sync>,
    /// The network that pods get first, where a call names none.
    pub default_network: DefaultNetwork,
    /// Whether the daemon before this one has announced, a moment ago, that it stops and comes back.
    pub stop_was_announced: Arc<dyn Fn() -> bool + Send + Sync>,
    bodies: Arc<Semaphore>,
    questions: LookUps,
}

impl std::fmt::Debug for ServerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerState").field("readiness", &self.readiness).finish_non_exhaustive()
    }
}

impl ServerState {
    /// The state of a server in front of `admission`, without an engine yet.
    pub fn new(
        admission: Admission,
        readiness: Arc<Readiness>,
        health: Arc<Health>,
        exposition: Arc<Exposition>,
        default_network: DefaultNetwork,
    ) -> ServerState {
        ServerState {
            admission,
            service: Arc::default(),
            readiness,
            health,
            exposition,
            about: Arc::new(|| serde_json::Value::Null),
            default_network,
            stop_was_announced: Arc::new(|| false),
            bodies: Arc::new(Semaphore::new(BODIES_KIB as usize)),
            questions: LookUps::new(operator_routes::QUESTIONS),
        }
    }
}

/// The routes of the runtime's calls and of the operator's questions.
pub fn router(server: ServerState) -> Router {
    cni_routes::routes().merge(operator_routes::routes()).fallback(responses::no_such_path).with_state(server)
}

/// The runtime of a thread that serves connections.
///
/// # Errors
/// When the kernel has no descriptors left for it, or no thread.
pub fn runtime() -> io::Result<Runtime> {
    // One thread: it does so little for a call that a second thread would only add wake-ups.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    // A node without threads makes no daemon look dead: the probes' look-ups have the thread that is kept.
    runtime_with_a_kept_thread(builder.enable_all().thread_name("look-up"), LOOK_UP_THREADS)
}

/// Accepts connections until `closing`, then those that are still in the backlog, and waits for their answers to
/// leave. The socket's file must be gone by then.
///
/// # Errors
/// When the acceptors can't be had.
pub async fn serve(listener: UnixListener, server: ServerState, closing: Arc<Notify>) -> io::Result<()> {
    let admission = server.admission.clone();
    let (open, stop) = (Arc::new(()), watch::Sender::new(()));
    let grpc = GrpcServer::new(server.clone(), stop.subscribe()).map_err(io::Error::other)?;
    let router = router(server);
    let (hand_over, others) = unbounded_channel();
    let acceptors = Acceptors::begin(listener, &admission, &hand_over)?;
    // The acceptors have the only other senders: when they have ended, the channel closes.
    drop(hand_over);
    let mut others = Others { handed_over: others, router, grpc, open: Arc::clone(&open) };
    tokio::select! {
        () = others.serve() => {}
        () = closing.notified() => {}
    }
    acceptors.close();
    // A caller of gRPC keeps its connection for the next call: it is told that there is none.
    drop(stop);
    let last = async {
        others.serve().await;
        drop(others);
        // Each connection that is still served holds a clone.
        while Arc::strong_count(&open) > 1 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    if tokio::time::timeout(LAST_ANSWERS, last).await.is_err() {
        warn!("callers that do not read their answers are cut off");
    }
    Ok(())
}

/// What the acceptors hand over: every connection that is no usual call, and calls that start other programs or have to wait for others.
struct Others {
    handed_over: UnboundedReceiver<HandedOver>,
    router: Router,
    grpc: GrpcServer,
    open: Arc<()>,
}

impl Others {
    /// Serves them until the acceptors have ended.
    async fn serve(&mut self) {
        while let Some(connection) = self.handed_over.recv().await {
            let (router, grpc, open) = (self.router.clone(), self.grpc.clone(), Arc::clone(&self.open));
            tokio::spawn(async move {
                if let Err(error) = by_protocol(connection, router, grpc).await {
                    warn!(%error, "a connection could not be served");
                }
                drop(open);
            });
        }
    }
}

/// Serves a connection once its first bytes say how.
async fn by_protocol(connection: HandedOver, router: Router, grpc: GrpcServer) -> io::Result<()> {
    let (mut accepted, call) = connection.here()?;
    let spoken = tokio::time::timeout(HEAD_LIMIT, accepted.protocol()).await;
    match spoken.map_err(|_| io::ErrorKind::TimedOut)?? {
        Protocol::Http1 => self::connection(accepted, router, call).await,
        Protocol::Http2 => grpc.connection(accepted).await,
    }
    Ok(())
}

/// Serves the one request of a connection; `call`: what it is, where that was prepared already.
async fn connection(stream: Accepted, router: Router, call: Option<CallThatCame>) {
    let call: PreparedCallSlot = Arc::new(Mutex::new(call));
    let root = stream.is_root();
    let slot: ReceiptSlot = ReceiptSlot::default();
    let handler_reached: Arc<AtomicBool> = Arc::default();
    let outgoing = HttpConnection::new(stream, Arc::clone(&handler_reached));
    let service = hyper::service::service_fn(|request: hyper::Request<hyper::body::Incoming>| {
        handler_reached.store(true, Ordering::Release);
        let (router, slot, call) = (router.clone(), Arc::clone(&slot), call.clone());
        async move {
            if !root {
                return Ok::<_, Infallible>(responses::not_root());
            }
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(call);
            let mut response = caught(router, request).await;
            if let Some(receipt) = response.extensions_mut().remove::<ReceiptSlot>() {
                pass(&receipt, &slot);
            }
            Ok(response)
        }
    });
    let served = http1::Builder::new()
        // One request for each connection: its receipt and its prepared call belong to the connection.
        .keep_alive(false)
        .auto_date_header(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .serve_connection(outgoing, service)
        // The executable confirms on the same connection that the runtime has the answer.
        .without_shutdown()
        .await;
    match (served, take(&slot)) {
        (Ok(parts), Some(receipt)) => receipt.give_back(arrived(parts).await),
        (Ok(parts), None) => drop(parts),
        // A receipt that was taken is dropped here, and so reports that the answer was lost.
        (Err(error), _) => debug!(%error, "a connection ended early"),
    }
}

/// Whether the executable confirms that the runtime has the answer. What was only written may never have been
/// read.
async fn arrived<S>(parts: http1::Parts<HttpConnection, S>) -> bool {
    // The confirmation may have come so early that hyper has read it.
    let early = parts.read_buf.starts_with(RECEIVED);
    let mut stream = parts.io.into_stream();
    // Other clients read until the end of the stream, close, and confirm nothing.
    if stream.shutdown().await.is_err() {
        return early;
    }
    let mut word = [0; RECEIVED.len()];
    let heard = tokio::time::timeout(LAST_ANSWERS, stream.read_exact(&mut word)).await;
    early || (matches!(heard, Ok(Ok(_))) && word == RECEIVED)
}

/// Takes the receipt out of a slot, if it holds one.
fn take(slot: &ReceiptSlot) -> Option<Receipt> {
    slot.lock().take()
}

/// Moves a receipt from one slot to another. The response that carries the first is consumed by hyper.
fn pass(from: &ReceiptSlot, to: &ReceiptSlot) {
    let receipt = take(from);
    *to.lock() = receipt;
}

/// Answers a panic in a handler like any other failure.
async fn caught(router: Router, request: Request) -> Response {
    match AssertUnwindSafe(router.oneshot(request)).catch_unwind().await {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(panic) => responses::fault(crate::call::panic_text(&*panic)),
    }
}
