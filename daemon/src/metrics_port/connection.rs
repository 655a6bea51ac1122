//! One connection: TLS where it is wanted, one request, one answer. There is one path.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use fairlead_kube::Verdict;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use super::authorization::Authorization;
use super::certificate::{CertificateError, FileCertificate};
use super::{Exposed, Limits, PATH};

/// The size in bytes above which the head of a request is refused; a token has some two thousand.
const HEAD_SIZE: usize = 16 << 10;

/// What is shown at the beginning of a connection.
pub(super) enum Tls {
    Off,
    Own(Arc<ServerConfig>),
    Files(Arc<Mutex<FileCertificate>>),
}

impl Tls {
    async fn config(&self) -> Result<Option<Arc<ServerConfig>>, CertificateError> {
        match self {
            Tls::Off => Ok(None),
            Tls::Own(config) => Ok(Some(Arc::clone(config))),
            Tls::Files(files) => files.lock().current(Instant::now()).map(Some),
        }
    }
}

/// Everything that a connection needs.
pub(super) struct Door {
    pub(super) tls: Tls,
    pub(super) authorization: Option<Authorization>,
    pub(super) exposed: Exposed,
    pub(super) limits: Limits,
}

impl Door {
    /// Serves one connection, and ends with it.
    pub(super) async fn serve(self: Arc<Self>, stream: TcpStream) {
        match self.tls.config().await {
            Ok(None) => self.http(stream).await,
            Ok(Some(config)) => {
                match timeout(self.limits.head, TlsAcceptor::from(config).accept(stream)).await {
                    Ok(Ok(stream)) => self.http(stream).await,
                    Ok(Err(error)) => debug!(%error, "a connection to the metrics' port speaks no TLS"),
                    Err(_) => debug!("a connection to the metrics' port was silent"),
                }
            }
            Err(reason) => warn!(%reason, "the metrics' port has no certificate to show; nobody is answered"),
        }
    }

    async fn http(self: &Arc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service = hyper::service::service_fn(|request| {
            let door = Arc::clone(self);
            async move { Ok::<_, Infallible>(door.answer(&request).await) }
        });
        let served = http1::Builder::new()
            .keep_alive(false)
            .max_buf_size(HEAD_SIZE)
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.head)
            .serve_connection(TokioIo::new(stream), service)
            .await;
        if let Err(error) = served {
            debug!(%error, "a connection to the metrics' port ended early");
        }
    }

    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if request.uri().path() != PATH {
            return told(StatusCode::NOT_FOUND, "there is /metrics here, and nothing else\n");
        }
        if request.method() != Method::GET {
            let mut answer = told(StatusCode::METHOD_NOT_ALLOWED, "metrics are read with GET\n");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
            return answer;
        }
        if let Some(authorization) = &self.authorization
            && let Some(refusal) = refusal(authorization, request).await
        {
            return refusal;
        }
        match self.exposed.text().await {
            Ok(text) => {
                let mut answer = Response::new(Full::new(text));
                answer.headers_mut().insert(CONTENT_TYPE, crate::metrics::OPEN_METRICS);
                answer
            }
            Err(reason) => {
                warn!(reason, "the metrics could not be told");
                told(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "the metrics could not be told; the daemon's log says why\n",
                )
            }
        }
    }
}

/// The answer to whoever may not read; `None` to whoever may.
async fn refusal(
    authorization: &Authorization,
    request: &Request<Incoming>,
) -> Option<Response<Full<Bytes>>> {
    let shown = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some(token) = shown.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim) else {
        return Some(unknown("a token of the cluster is wanted: `Authorization: Bearer …`\n"));
    };
    match authorization.verdict(token).await {
        Ok(Verdict::Allowed) => None,
        Ok(Verdict::Unknown) => Some(unknown("the cluster does not know this token, or it has expired\n")),
        Ok(Verdict::Forbidden { user }) => {
            debug!(user, "an account that may not read the metrics asked for them");
            Some(told(
                StatusCode::FORBIDDEN,
                "this account may not GET /metrics (nonResourceURLs of a ClusterRole)\n",
            ))
        }
        Err(reason) => {
            warn!(reason, "nobody can say who asks for the metrics; the answer is 503");
            Some(told(
                StatusCode::SERVICE_UNAVAILABLE,
                "the API server cannot be asked about this token now\n",
            ))
        }
    }
}

fn unknown(text: &'static str) -> Response<Full<Bytes>> {
    let mut answer = told(StatusCode::UNAUTHORIZED, text);
    answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    answer
}

fn told(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *answer.status_mut() = status;
    answer
}

/// How long a connection may last in all.
pub(super) const WHOLE: Duration = Duration::from_secs(30);
