//! The five calls of the runtime.

use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::Response;
use axum::routing::{MethodRouter, post};
use fairlead_cni::wire::{self, Command, MAX_BODY, WIRE};
use http_body_util::BodyExt;
use serde::Deserialize;
use tokio::sync::SemaphorePermit;

use super::acceptor::Inline;
use super::{BODIES_KIB, Door, answer};
use crate::admission::Outcome;
use crate::glance;

/// A body must have come by then.
const BODY_LIMIT: Duration = Duration::from_secs(5);

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
    let told = head.headers.get(header::CONTENT_LENGTH);
    let told = told.and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<usize>().ok());
    if told.is_some_and(|bytes| bytes > MAX_BODY) {
        return Err(Box::new(answer::too_large()));
    }
    let collected = tokio::time::timeout(BODY_LIMIT, collect(door, body)).await;
    // The room is held until the answer: what waits in the queue counts.
    let (body, _room) = collected.map_err(|_| Box::new(answer::body_too_slow(BODY_LIMIT)))??;
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
        Some(inline) => match inline.carry_out(request, arrived) {
            Ok(outcome) => return outcome,
            Err(request) => *request,
        },
        None => request,
    };
    door.admission.submit(request, arrived).outcome().await
}

/// Reads a body, with room in memory for as much of it as has come: one that never ends takes no more than that.
async fn collect(
    door: &Door,
    mut body: Body,
) -> Result<(Vec<u8>, Option<SemaphorePermit<'_>>), Box<Response>> {
    let mut bytes = Vec::new();
    let mut room: Option<SemaphorePermit<'_>> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Box::new(answer::unreadable(error)))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > MAX_BODY {
            return Err(Box::new(answer::too_large()));
        }
        let needed = (bytes.len() + data.len()) / 1024 + 1;
        let more = needed.saturating_sub(room.as_ref().map_or(0, SemaphorePermit::num_permits));
        let more = door.bodies.acquire_many(u32::try_from(more).unwrap_or(BODIES_KIB)).await.ok();
        match (&mut room, more) {
            (Some(room), Some(more)) => room.merge(more),
            (room, more) => *room = room.take().or(more),
        }
        bytes.extend_from_slice(&data);
    }
    Ok((bytes, room))
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
