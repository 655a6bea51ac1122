//! The routes of the runtime's calls: ADD, DEL, CHECK, GC, STATUS.

use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::Response;
use axum::routing::{MethodRouter, post};
use fairlead_cni::CniVersion;
use fairlead_cni::wire::{self, Command, MAX_BODY, WIRE};
use http_body_util::BodyExt;
use serde::Deserialize;
use tokio::sync::SemaphorePermit;

use super::acceptor::Inline;
use super::{BODIES_KIB, ServerState, responses};
use crate::admission::Outcome;
use crate::netconf_summary::ConfigSummary;

/// The time within which a request's body must have come.
const BODY_LIMIT: Duration = Duration::from_secs(5);

pub(super) fn routes() -> Router<ServerState> {
    [Command::Add, Command::Del, Command::Check, Command::Gc, Command::Status]
        .into_iter()
        .fold(Router::new(), |router, command| router.route(command.path(), route(command)))
}

fn route(command: Command) -> MethodRouter<ServerState> {
    post(move |State(server): State<ServerState>, request: Request| async move {
        call(&server, command, request).await.unwrap_or_else(|rejection| *rejection)
    })
    .fallback(responses::wrong_method)
}

async fn call(server: &ServerState, command: Command, request: Request) -> Result<Response, Box<Response>> {
    let (mut head, body) = request.into_parts();
    let inline = head.extensions.remove::<Inline>();
    // Refused before anything of it is read.
    let length = head.headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<usize>().ok());
    if length.is_some_and(|bytes| bytes > MAX_BODY) {
        return Err(Box::new(responses::too_large()));
    }
    let collected = tokio::time::timeout(BODY_LIMIT, collect(server, body)).await;
    // The room is kept until the answer, because a request that waits in the queue takes memory, too.
    let (body, _room) = collected.map_err(|_| Box::new(responses::body_too_slow(BODY_LIMIT)))??;
    let arrived = Instant::now();
    let request = decode(&body)?;
    // The decoded request has copies of its own.
    drop(body);
    if request.command != command {
        return Err(Box::new(responses::wrong_path(request.command.name(), command.path())));
    }
    Ok(carried_out(server, request, arrived, inline).await)
}

async fn carried_out(
    server: &ServerState,
    request: wire::Request,
    arrived: Instant,
    inline: Option<Inline>,
) -> Response {
    let status = request.command == Command::Status;
    let open = server.admission.is_open();
    // containerd asks for STATUS without a time limit, so it is answered at once. Other calls are held.
    if status && !open {
        return responses::not_ready(ConfigSummary::of(&request.config).version, &server.readiness.missing());
    }
    let mut call = server.admission.prepare(request);
    if let Some(inline) = inline {
        call = match inline.carry_out(call, arrived) {
            // A reply has its version itself: the one given here is not used.
            Ok(outcome) => return responses::outcome(outcome, CniVersion::LATEST, None),
            Err(call) => call,
        };
    }
    // The queue takes the request, so the server keeps the configuration for errors of its own: they are written
    // in its version.
    let config = call.request().config.clone();
    let version = || ConfigSummary::of(&config).version;
    match server.admission.submit(call, arrived).outcome().await {
        outcome @ Outcome::Reply(..) => responses::outcome(outcome, CniVersion::LATEST, None),
        Outcome::TooLate if status => responses::status_too_late(version()),
        other => {
            let missing = (!open).then(|| server.readiness.missing());
            responses::outcome(other, version(), missing.as_deref())
        }
    }
}

/// Reads a body, and takes room in memory only for what has come: a body that never ends takes no more than that.
async fn collect(
    server: &ServerState,
    mut body: Body,
) -> Result<(Vec<u8>, Option<SemaphorePermit<'_>>), Box<Response>> {
    let mut bytes = Vec::new();
    let mut room: Option<SemaphorePermit<'_>> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Box::new(responses::unreadable(error)))?;
        // Trailers carry nothing of the request.
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > MAX_BODY {
            return Err(Box::new(responses::too_large()));
        }
        let needed = (bytes.len() + data.len()) / 1024 + 1;
        let more = needed.saturating_sub(room.as_ref().map_or(0, SemaphorePermit::num_permits));
        // Waits while other requests hold the room, for BODY_LIMIT at most. The semaphore is never closed.
        let more = server.bodies.acquire_many(u32::try_from(more).unwrap_or(BODIES_KIB)).await.ok();
        match (&mut room, more) {
            (Some(room), Some(more)) => room.merge(more),
            (room, more) => *room = room.take().or(more),
        }
        bytes.extend_from_slice(&data);
    }
    Ok((bytes, room))
}

/// The one field that is read of a request whose version is not ours.
#[derive(Deserialize)]
struct WireOnly {
    wire: u32,
}

fn decode(body: &[u8]) -> Result<wire::Request, Box<Response>> {
    let wrong = |wire: u32| wire == 0 || wire > WIRE;
    match serde_json::from_slice::<wire::Request>(body) {
        Ok(request) if wrong(request.wire) => Err(Box::new(responses::wrong_wire(request.wire))),
        Ok(request) => Ok(request),
        // A later version may look different altogether, so its number is reported rather than why it can't be
        // parsed.
        Err(why) => Err(Box::new(match serde_json::from_slice::<WireOnly>(body) {
            Ok(WireOnly { wire }) if wrong(wire) => responses::wrong_wire(wire),
            _ => responses::unreadable(why),
        })),
    }
}
