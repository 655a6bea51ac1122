//! Responses: how an outcome becomes an HTTP response, and the server's own refusals.
//!
//! The body decides, not the status: a CNI error object is an error whatever its status says.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::Response;
use fairlead_cni::wire::{MAX_BODY, NOT_BEGUN, OUTCOME_HEADER, WIRE};
use fairlead_cni::{CniError, CniVersion, Code};
use parking_lot::Mutex;

use super::request_body::{BODY_LIMIT, BodyError};
use crate::admission::{Outcome, Receipt};
use crate::call::Reply;

/// A place for a receipt on its way from the handler to the end of the connection.
pub(super) type ReceiptSlot = Arc<Mutex<Option<Receipt>>>;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A response with a body of JSON.
pub(super) fn json(status: StatusCode, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

/// A response with an error, in the configuration's version.
pub(super) fn failed(version: CniVersion, error: &CniError) -> Response {
    json(status_of(error.code), error.to_json(version))
}

fn status_of(code: Code) -> StatusCode {
    match code {
        Code::IncompatibleVersion
        | Code::UnsupportedField
        | Code::UnknownContainer
        | Code::BadEnvironment
        | Code::Decode
        | Code::InvalidConfig
        | Code::InvalidNetns => StatusCode::BAD_REQUEST,
        Code::AlreadyThere | Code::Changed => StatusCode::CONFLICT,
        Code::TryAgain | Code::NotAvailable | Code::LimitedConnectivity => StatusCode::SERVICE_UNAVAILABLE,
        Code::Io | Code::Internal | Code::PluginFailed | Code::Other(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// A response with what the engine answered.
pub(super) fn reply(reply: Reply) -> Response {
    let (status, body) = status_and_body(reply);
    json(status, body)
}

fn status_and_body(reply: Reply) -> (StatusCode, String) {
    match reply.outcome {
        // DEL, CHECK, GC and STATUS have no result. A body is one all the same: this is the smallest.
        Ok(none) if none.is_empty() => (StatusCode::OK, format!(r#"{{"cniVersion":"{}"}}"#, reply.version)),
        Ok(body) => (StatusCode::OK, body),
        Err(error) => (status_of(error.code), error.to_json(reply.version)),
    }
}

/// The bytes of a whole answer, for a connection that ends with it.
pub(super) fn whole_answer(reply: Reply) -> String {
    let (status, body) = status_and_body(reply);
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// The answer of a daemon that is stopping; the same request may be sent again.
pub(super) fn not_begun(version: CniVersion) -> Response {
    let mut response = failed(version, &stopping());
    response
        .headers_mut()
        .insert(HeaderName::from_static(OUTCOME_HEADER), HeaderValue::from_static(NOT_BEGUN));
    response
}

/// The response for an outcome. `missing` names what keeps the daemon from being ready, for a call that was too
/// late.
pub(super) fn outcome(outcome: Outcome, version: CniVersion, missing: Option<&str>) -> Response {
    match outcome {
        Outcome::Reply(said, receipt) => {
            let mut response = reply(said);
            // The receipt comes back when the response has been written out.
            response.extensions_mut().insert(Arc::new(Mutex::new(Some(receipt))) as ReceiptSlot);
            response
        }
        Outcome::NotBegun => not_begun(version),
        Outcome::TooLate => failed(version, &too_late(missing)),
        Outcome::Full => failed(version, &too_many()),
    }
}

/// The error for a call that was not begun before its deadline.
pub(super) fn too_late(missing: Option<&str>) -> CniError {
    match missing {
        Some(missing) => CniError::new(Code::TryAgain, "fairleadd was not ready before this call's deadline")
            .with(format!("still to be done: {missing}; `fairleadd status` shows how far it is")),
        None => CniError::new(Code::TryAgain, "this call's turn did not come before its deadline")
            .with("the node is busy; `fairleadd status` shows how many calls wait"),
    }
}

/// The error for a call that found the queue full.
pub(super) fn too_many() -> CniError {
    CniError::new(Code::TryAgain, "too many calls are waiting on this node")
        .with("raise maxCalls in fairleadd's configuration if its memory allows it")
}

/// The error of a daemon that is stopping.
pub(super) fn stopping() -> CniError {
    CniError::new(Code::TryAgain, "fairleadd is stopping and did not begin this call")
        .with("send it again; the daemon that follows will serve it")
}

fn rejected(status: StatusCode, error: &CniError) -> Response {
    // The version of the configuration was not read.
    json(status, error.to_json(CniVersion::LATEST))
}

/// Answers 403: the peer is not root.
pub(super) fn not_root() -> Response {
    rejected(StatusCode::FORBIDDEN, &only_root())
}

/// The error for a peer that is not root.
pub(super) fn only_root() -> CniError {
    CniError::new(Code::BadEnvironment, "fairleadd serves only uid 0")
        .with("run the container runtime, or this command, as root")
}

/// Answers 404: the path is none of the server's.
pub(super) async fn no_such_path(uri: Uri) -> Response {
    let error = CniError::new(Code::BadEnvironment, format!("fairleadd has no path {}", uri.path()))
        .with("is the executable of the same release as the daemon? `fairleadd doctor` compares them");
    rejected(StatusCode::NOT_FOUND, &error)
}

/// Answers 405: the path is known, and not for this method.
pub(super) async fn wrong_method(method: Method, uri: Uri) -> Response {
    let error = CniError::new(Code::BadEnvironment, format!("{} is not asked for by {method}", uri.path()))
        .with("calls are posted, tables are got");
    rejected(StatusCode::METHOD_NOT_ALLOWED, &error)
}

/// Answers 413: the body is longer than a request may be.
pub(super) fn too_large() -> Response {
    let error = CniError::new(Code::InvalidConfig, format!("the request is larger than {MAX_BODY} bytes"))
        .with("a configuration may have 1 MiB");
    rejected(StatusCode::PAYLOAD_TOO_LARGE, &error)
}

/// Answers 400: the body broke off, or is no request.
pub(super) fn unreadable(why: impl std::fmt::Display) -> Response {
    rejected(StatusCode::BAD_REQUEST, &undecodable(why))
}

/// The error for a request that broke off, or is none.
pub(super) fn undecodable(why: impl std::fmt::Display) -> CniError {
    CniError::new(Code::Decode, "the request could not be decoded").with(why.to_string())
}

/// Answers 413, 408 or 400: the body is too large, did not come in time, or broke off.
pub(super) fn body_refused(why: &BodyError) -> Response {
    match why {
        BodyError::TooLarge => too_large(),
        BodyError::TooSlow => rejected(StatusCode::REQUEST_TIMEOUT, &body_too_slow()),
        BodyError::Broken(why) => unreadable(why),
    }
}

/// The error for a body that did not come in time.
pub(super) fn body_too_slow() -> CniError {
    CniError::new(Code::Io, format!("the request's body did not come within {BODY_LIMIT:?}"))
        .with("is the executable stopped, or something else connected to the socket?")
}

/// Answers 400: the path or the query can't be read.
pub(super) fn malformed(why: impl std::fmt::Display) -> Response {
    let error = CniError::new(Code::BadEnvironment, format!("the request's address can't be read: {why}"))
        .with("`fairleadd --help` lists what can be asked");
    rejected(StatusCode::BAD_REQUEST, &error)
}

/// Answers 400: the executable speaks another version of the wire format.
pub(super) fn wrong_wire(theirs: u32) -> Response {
    let error = CniError::new(
        Code::IncompatibleVersion,
        format!(
            "the executable speaks version {theirs} of the wire format, fairleadd {} speaks {WIRE}",
            env!("CARGO_PKG_VERSION")
        ),
    )
    .with("install the executable and the daemon of one release (`fairleadd install`)");
    rejected(StatusCode::BAD_REQUEST, &error)
}

/// Answers 400: the body names another command than the path.
pub(super) fn wrong_path(command: &str, path: &str) -> Response {
    let error = CniError::new(Code::BadEnvironment, format!("{command} was posted to {path}"));
    rejected(StatusCode::BAD_REQUEST, &error)
}

/// Answers 500 after a handler panicked; the daemon goes on.
pub(super) fn fault(text: &str) -> Response {
    rejected(StatusCode::INTERNAL_SERVER_ERROR, &fault_of(text))
}

/// The error for a handler that panicked, which is logged.
pub(super) fn fault_of(text: &str) -> CniError {
    tracing::error!(text, "a handler panicked");
    CniError::new(Code::Internal, format!("a fault in fairleadd: {text}"))
        .with("the daemon goes on; please report this with its log")
}

/// The answer to STATUS or an operator's question before the engine has been started.
pub(super) fn not_ready(version: CniVersion, missing: &str) -> Response {
    failed(version, &starting(missing))
}

/// The error of a daemon that is not ready yet.
pub(super) fn starting(missing: &str) -> CniError {
    CniError::new(Code::NotAvailable, "fairleadd is starting and not ready yet")
        .with(format!("still to be done: {missing}"))
}

/// The error for a STATUS that was not answered in time.
pub(super) fn status_too_late() -> CniError {
    CniError::new(Code::NotAvailable, "fairleadd did not find out its status within a second")
        .with("something it depends on hangs; `fairleadd doctor` and /healthz name it")
}
