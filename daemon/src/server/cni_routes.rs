//! The routes of the runtime's calls: ADD, DEL, CHECK, GC, STATUS.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::Response;
use axum::routing::{MethodRouter, post};
use fairlead_cni::CniVersion;
use fairlead_cni::wire::{self, Command, MAX_BODY, WIRE};
use parking_lot::Mutex;
use serde::Deserialize;

use super::protocol_detection::CallThatCame;
use super::{ServerState, request_body, responses};
use crate::admission::{ArrivedCall, Outcome};
use crate::call::Reply;
use crate::netconf_summary::ConfigSummary;

pub(super) fn routes() -> Router<ServerState> {
    Command::ALL
        .into_iter()
        .fold(Router::new(), |router, command| router.route(command.path(), route(command)))
}

fn route(command: Command) -> MethodRouter<ServerState> {
    post(move |State(server): State<ServerState>, request: Request| async move {
        call(&server, command, request).await.unwrap_or_else(|rejection| *rejection)
    })
    .fallback(responses::wrong_method)
}

/// The call of a connection, where an acceptor has prepared it and could not carry it out.
pub(super) type PreparedCallSlot = Arc<Mutex<Option<CallThatCame>>>;

async fn call(server: &ServerState, command: Command, request: Request) -> Result<Response, Box<Response>> {
    let (mut head, body) = request.into_parts();
    if let Some((call, arrived)) =
        head.extensions.remove::<PreparedCallSlot>().and_then(|slot| slot.lock().take())
    {
        return Ok(carried_out(server, call, arrived).await);
    }
    // Refused before anything of it is read.
    let length = head.headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<usize>().ok());
    if length.is_some_and(|bytes| bytes > MAX_BODY) {
        return Err(Box::new(responses::too_large()));
    }
    let read = request_body::read(&server.bodies, body, MAX_BODY).await;
    let (body, _room) = read.map_err(|why| Box::new(responses::body_refused(&why)))?;
    let arrived = Instant::now();
    let request = decode(&body)?;
    // The decoded request has copies of its own.
    drop(body);
    if request.command != command {
        return Err(Box::new(responses::wrong_path(request.command.name(), command.path())));
    }
    Ok(carried_out(server, server.admission.prepare(request), arrived).await)
}

async fn carried_out(server: &ServerState, call: ArrivedCall, arrived: Instant) -> Response {
    let request = call.request();
    let status = request.command == Command::Status;
    let mut open = server.admission.is_open();
    // containerd asks for STATUS without a time limit, so it is answered at once. Other calls are held.
    if status && !open {
        let version = ConfigSummary::of(&request.config).version;
        // What the executable answers itself while there is no socket holds until this daemon serves.
        if (server.stop_was_announced)() {
            return responses::reply(Reply { version, outcome: Ok(String::new()) });
        }
        // The announcement is taken back after the opening, so both may have come between the two looks.
        open = server.admission.is_open();
        if !open {
            return responses::not_ready(version, &server.readiness.missing());
        }
    }
    // The queue takes the request, so the server keeps the configuration for errors of its own: they are written
    // in its version.
    let config = call.request().config.clone();
    let version = || ConfigSummary::of(&config).version;
    match server.admission.submit(call, arrived).outcome().await {
        // A reply has its version itself: the one given here is not used.
        outcome @ Outcome::Reply(..) => responses::outcome(outcome, CniVersion::LATEST, None),
        Outcome::TooLate if status => responses::failed(version(), &responses::status_too_late()),
        other => {
            let missing = (!open).then(|| server.readiness.missing());
            responses::outcome(other, version(), missing.as_deref())
        }
    }
}

/// The one field that is read of a request whose version is not ours.
#[derive(Deserialize)]
struct WireOnly {
    wire: u32,
}

/// Decodes the body of a request for `command`; `None` for what [`decode`] or the route refuses.
pub(super) fn decoded(command: Command, body: &[u8]) -> Option<wire::Request> {
    decode(body).ok().filter(|request| request.command == command)
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
