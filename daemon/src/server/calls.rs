//! The five calls of the runtime.

use std::time::Instant;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::response::Response;
use axum::routing::{MethodRouter, post};
use fairlead_cni::wire::{self, Command, MAX_BODY, WIRE};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Deserialize;

use super::acceptor::Inline;
use super::{BODIES_KIB, Door, answer};
use crate::admission::Outcome;
use crate::glance;

pub(super) fn routes() -> Router<Door> {
    [Command::Add, Command::Del, Command::Check, Command::Gc, Command::Status]
        .into_iter()
        .fold(Router::new(), |router, command| router.route(command.path(), route(command)))
}

fn route(command: Command) -> MethodRouter<Door> {
    post(move |State(door): State<Door>, request: Request| async move {
        call(&door, command, request).await.unwrap_or_else(|rejection| *rejection)
    })
    .fallback(answer::wrong_method)
}

async fn call(door: &Door, command: Command, request: Request) -> Result<Response, Box<Response>> {
    let (mut head, body) = request.into_parts();
    let inline = head.extensions.remove::<Inline>();
    let room = room_for(&head.headers).ok_or_else(|| Box::new(answer::too_large()))?;
    // Held until the answer: what waits in the queue counts.
    let _room = door.bodies.acquire_many(room).await;
    let body = collect(body).await?;
    let arrived = Instant::now();
    let request = decode(&body)?;
    drop(body);
    if request.command != command {
        return Err(Box::new(answer::wrong_path(request.command.name(), command.path())));
    }
    Ok(carried_out(door, request, arrived, inline).await)
}

async fn carried_out(
    door: &Door,
    request: wire::Request,
    arrived: Instant,
    inline: Option<Inline>,
) -> Response {
    let status = request.command == Command::Status;
    let open = door.admission.is_open();
    if status && !open {
        return answer::not_ready(glance::of(&request.config).version, &door.readiness.missing());
    }
    // An answer of the server's own is told in the configuration's version; by then the request is the engine's.
    let config = request.config.clone();
    let version = || glance::of(&config).version;
    match outcome(door, request, arrived, inline).await {
        outcome @ Outcome::Reply(..) => answer::outcome(outcome, fairlead_cni::CniVersion::LATEST, None),
        Outcome::TooLate if status => answer::status_too_late(version()),
        other => {
            let missing = (!open).then(|| door.readiness.missing());
            answer::outcome(other, version(), missing.as_deref())
        }
    }
}

/// Carries a call out on this thread if that may be, else where its turn has come.
async fn outcome(door: &Door, request: wire::Request, arrived: Instant, inline: Option<Inline>) -> Outcome {
    let request = match inline {
        Some(inline) => match inline.carry_out(&door.admission, request, arrived) {
            Ok(outcome) => return outcome,
            Err(request) => *request,
        },
        None => request,
    };
    door.admission.submit(request, arrived).outcome().await
}

/// KiB that a body will need; `None`: more than is taken.
fn room_for(headers: &HeaderMap) -> Option<u32> {
    let told = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
    let bytes: usize = told.unwrap_or(MAX_BODY);
    if bytes > MAX_BODY {
        return None;
    }
    u32::try_from(bytes / 1024 + 1).ok().map(|kib| kib.min(BODIES_KIB))
}

async fn collect(body: Body) -> Result<Bytes, Box<Response>> {
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(whole) => Ok(whole.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Box::new(answer::too_large())),
        Err(error) => Err(Box::new(answer::unreadable(error))),
    }
}

/// All that is read of a request whose version is not ours.
#[derive(Deserialize)]
struct WireOnly {
    wire: u32,
}

fn decode(body: &[u8]) -> Result<wire::Request, Box<Response>> {
    let wrong = |wire: u32| wire == 0 || wire > WIRE;
    match serde_json::from_slice::<wire::Request>(body) {
        Ok(request) if wrong(request.wire) => Err(Box::new(answer::wrong_wire(request.wire))),
        Ok(request) => Ok(request),
        // A later version may look different altogether; its number is told in preference to the reason.
        Err(why) => Err(Box::new(match serde_json::from_slice::<WireOnly>(body) {
            Ok(WireOnly { wire }) if wrong(wire) => answer::wrong_wire(wire),
            _ => answer::unreadable(why),
        })),
    }
}
