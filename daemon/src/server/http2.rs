//! A connection of HTTP/2: gRPC, many calls on one connection.
//!
//! Everything that a caller could keep is bounded: connections, streams, headers, bodies, and the time of each. Before a service of
//! gRPC sees a request its whole body is here, within the limits that hold for HTTP/1.1 too.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use fairlead_cni::{CniError, Code as CniCode};
use futures_util::FutureExt;
use http_body_util::BodyExt;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tonic::Code;
use tower::ServiceExt;
use tracing::{debug, warn};

use super::protocol_detection::Accepted;
use super::remote_cni::{self, REFLECTION, grpc_status};
use super::request_body::{self, BodyError};
use super::{HEAD_LIMIT, LAST_ANSWERS, ServerState, responses};

/// How many callers of gRPC are connected at once. Each needs one connection, whatever it asks.
const CONNECTIONS: usize = 64;
/// How many calls a connection has open at once; a caller holds others back itself.
const STREAMS: u32 = 128;
/// The largest head of a request, in bytes.
const MAX_HEAD: u32 = 16 << 10;
/// The bytes of bodies that a connection takes before they are read; of one stream a quarter.
const WINDOW: u32 = 256 << 10;
/// A caller whose machine or process has stopped is noticed within twice this.
const STILL_THERE: Duration = Duration::from_secs(20);

/// The times after which a connection without a call is closed. Its caller may connect again.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdleLimits {
    /// Without any call yet.
    pub(super) first_call: Duration,
    /// Since the last call.
    pub(super) next_call: Duration,
    /// The time that a stream of questions about the services may be open.
    pub(super) questions: Duration,
}

impl Default for IdleLimits {
    fn default() -> IdleLimits {
        IdleLimits {
            first_call: HEAD_LIMIT,
            next_call: Duration::from_secs(300),
            questions: Duration::from_secs(60),
        }
    }
}

/// What serves the connections of gRPC.
#[derive(Clone)]
pub(super) struct GrpcServer {
    server: ServerState,
    services: Router,
    connections: Arc<Semaphore>,
    pub(super) limits: IdleLimits,
    /// Closed when the daemon stops.
    stop: watch::Receiver<()>,
}

impl GrpcServer {
    /// The services in front of `server`.
    ///
    /// # Errors
    /// When the descriptors of the services, which are part of the program, can't be read.
    pub(super) fn new(
        server: ServerState,
        stop: watch::Receiver<()>,
    ) -> Result<GrpcServer, remote_cni::BadDescriptors> {
        let services = remote_cni::services(&server)?;
        let connections = Arc::new(Semaphore::new(CONNECTIONS));
        Ok(GrpcServer { server, services, connections, limits: IdleLimits::default(), stop })
    }

    /// Serves a connection until its caller closes it, has nothing to ask for long, or the daemon stops.
    pub(super) async fn connection(self, stream: Accepted) {
        let Ok(_place) = Arc::clone(&self.connections).try_acquire_owned() else {
            warn!(CONNECTIONS, "too many callers of gRPC are connected; a further one is cut off");
            return;
        };
        let (root, activity) = (stream.is_root(), Activity::new(self.limits));
        let (mut stop, this, calls) = (self.stop.clone(), Arc::new(self), activity.clone());
        let service = hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let (this, call) = (Arc::clone(&this), calls.begin());
            async move {
                let response = match root {
                    true => this.answer(request.map(Body::new)).await,
                    false => refused(Code::PermissionDenied, &responses::only_root()),
                };
                // A stream of answers is a call until its end.
                Ok::<_, Infallible>(response.map(|body| {
                    body.map_frame(move |frame| {
                        let _until_the_end = &call;
                        frame
                    })
                }))
            }
        });
        let mut connection = pin!(builder().serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    debug!(%error, "a connection of gRPC ended early");
                }
                return;
            }
            () = activity.idle() => {}
            _ = stop.changed() => {}
        }
        // Its caller is told that the connection ends; one that does not react is cut off.
        connection.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(LAST_ANSWERS, connection).await;
    }

    async fn answer(&self, request: Request) -> Response {
        // This one asks and is answered in turns.
        if request.uri().path().starts_with(REFLECTION) {
            let request = request.map(|body| with_limit(body, self.limits.questions));
            return self.caught(request).await;
        }
        let (head, body) = request.into_parts();
        let (body, _room) = match request_body::read(&self.server.bodies, body, remote_cni::MAX_BODY).await {
            Ok(read) => read,
            Err(why) => return body_refused(&why),
        };
        self.caught(Request::from_parts(head, Body::from(body))).await
    }

    /// Answers a panic in a service like any other failure.
    async fn caught(&self, request: Request) -> Response {
        match AssertUnwindSafe(self.services.clone().oneshot(request)).catch_unwind().await {
            Ok(Ok(response)) => response,
            Ok(Err(never)) => match never {},
            Err(panic) => refused(Code::Internal, &responses::fault_of(crate::call::panic_text(&*panic))),
        }
    }
}

fn builder() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(MAX_HEAD)
        .initial_connection_window_size(WINDOW)
        .initial_stream_window_size(WINDOW / 4)
        .max_send_buf_size(WINDOW as usize)
        .keep_alive_interval(STILL_THERE)
        .keep_alive_timeout(STILL_THERE);
    builder
}

/// A response with an error and nothing else.
fn refused(code: Code, error: &CniError) -> Response {
    grpc_status::with_code(code, error).into_http()
}

fn body_refused(why: &BodyError) -> Response {
    match why {
        BodyError::TooLarge => {
            let most = remote_cni::MAX_BODY;
            let error = CniError::new(CniCode::Decode, format!("the request is larger than {most} bytes"));
            refused(Code::ResourceExhausted, &error.with("Kubernetes gives a pod 256 KiB of annotations"))
        }
        BodyError::TooSlow => refused(Code::DeadlineExceeded, &responses::body_too_slow()),
        BodyError::Broken(why) => refused(Code::InvalidArgument, &responses::undecodable(why)),
    }
}

/// A body that ends with an error when it has not come to its end in time.
fn with_limit(body: Body, limit: Duration) -> Body {
    let until = Instant::now() + limit;
    let frames = futures_util::stream::unfold(Some(body), move |body| async move {
        let mut body = body?;
        match tokio::time::timeout_at(until.into(), body.frame()).await {
            Ok(frame) => frame.map(|frame| (frame, Some(body))),
            Err(_) => {
                Some((Err(axum::Error::new(tonic::Status::deadline_exceeded("asked for too long"))), None))
            }
        }
    });
    Body::new(http_body_util::StreamBody::new(frames))
}

/// The calls of a connection, and when it had the last one.
#[derive(Debug, Clone)]
struct Activity(Arc<Calls>);

#[derive(Debug)]
struct Calls {
    limits: IdleLimits,
    state: Mutex<CallsState>,
}

#[derive(Debug)]
struct CallsState {
    open: usize,
    /// When the connection is idle for too long, unless a call comes or is open.
    due: Instant,
}

/// A call that has not ended.
#[derive(Debug)]
struct OpenCall(Activity);

impl Activity {
    fn new(limits: IdleLimits) -> Activity {
        let state = Mutex::new(CallsState { open: 0, due: Instant::now() + limits.first_call });
        Activity(Arc::new(Calls { limits, state }))
    }

    fn begin(&self) -> OpenCall {
        self.0.state.lock().open += 1;
        OpenCall(self.clone())
    }

    /// Waits until the connection had no call for too long.
    async fn idle(&self) {
        loop {
            let now = Instant::now();
            let next = {
                let state = self.0.state.lock();
                match state.open {
                    0 if state.due <= now => return,
                    0 => state.due,
                    _ => now + self.0.limits.next_call,
                }
            };
            tokio::time::sleep_until(next.into()).await;
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let Activity(calls) = &self.0;
        let mut state = calls.state.lock();
        state.open -= 1;
        state.due = Instant::now() + calls.limits.next_call;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::StreamBody;

    use super::*;

    #[test]
    fn x12_a_body_that_never_ends_ends_with_its_time() {
        let endless =
            StreamBody::new(stream::pending::<Result<hyper::body::Frame<hyper::body::Bytes>, Infallible>>());
        let read = super::super::runtime()
            .unwrap()
            .block_on(async { with_limit(Body::new(endless), Duration::from_millis(20)).collect().await });
        let told = read.unwrap_err().to_string();
        assert!(told.contains("asked for too long"), "{told}");
    }
}
