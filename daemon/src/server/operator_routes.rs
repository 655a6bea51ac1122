//! The routes of the operator: health, metrics, tables, and the order to collect.
//!
//! A look-up may take a while (a probe of the kernel, a table of thousands), so it runs on threads made for
//! blocking, never on the server's. What the engine is asked may hang in a file system for good, so it has turns.

use axum::Router;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::Response;
use axum::routing::{get, post};
use fairlead_cni::{CniError, CniVersion, Code};
use fairlead_sriov::pools::Verb;
use serde::Deserialize;
use serde_json::json;
use tokio::task::{JoinError, spawn_blocking};

use super::{ServerState, responses};
use crate::call::{NamedAttachment, OrphansListed, Service};
use crate::health::Condition;
use crate::metrics::OPEN_METRICS;

/// So many questions and orders are with the engine at once.
pub(super) const QUESTIONS: usize = 8;

pub(super) fn routes() -> Router<ServerState> {
    Router::new()
        .route("/healthz", get(healthz).fallback(responses::wrong_method))
        .route("/livez", get(livez).fallback(responses::wrong_method))
        .route("/readyz", get(readyz).fallback(responses::wrong_method))
        .route("/metrics", get(metrics).fallback(responses::wrong_method))
        .route("/v1/status", get(status).fallback(responses::wrong_method))
        .route("/v1/describe", get(describe).fallback(responses::wrong_method))
        .route("/v1/gc", post(collect).fallback(responses::wrong_method))
        .route("/v1/forget", get(left_behind).post(forget).fallback(responses::wrong_method))
        .route("/v1/pools/{verb}", post(pools).fallback(responses::wrong_method))
        .route("/v1/{table}", get(table).fallback(responses::wrong_method))
}

/// Runs a look-up on a thread for blocking.
async fn on_blocking_thread(look: impl FnOnce() -> Response + Send + 'static) -> Response {
    answer_of(spawn_blocking(look).await)
}

/// The answer of a look-up, or one to a panic in it.
fn answer_of(look: Result<Response, JoinError>) -> Response {
    match look {
        Ok(response) => response,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => responses::fault(crate::call::panic_text(&*panic)),
            // It was cancelled: the runtime is being shut down.
            Err(error) => responses::fault(&error.to_string()),
        },
    }
}

fn conditions(good: bool, all: &[Condition]) -> Response {
    let status = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    responses::json(status, json!({ "ok": good, "conditions": all }).to_string())
}

async fn healthz(State(server): State<ServerState>) -> Response {
    on_blocking_thread(move || {
        let all = server.health.conditions();
        conditions(all.iter().all(|c| c.met), &all)
    })
    .await
}

async fn livez(State(server): State<ServerState>) -> Response {
    on_blocking_thread(move || {
        let all = server.health.conditions_of_life();
        conditions(all.iter().all(|c| c.met), &all)
    })
    .await
}

async fn readyz(State(server): State<ServerState>) -> Response {
    on_blocking_thread(move || {
        let all = server.readiness.conditions();
        conditions(all.iter().all(|c| c.met), &all)
    })
    .await
}

async fn metrics(State(server): State<ServerState>) -> Response {
    on_blocking_thread(move || {
        let mut response = responses::json(StatusCode::OK, server.exposition.text());
        response.headers_mut().insert(header::CONTENT_TYPE, OPEN_METRICS);
        response
    })
    .await
}

async fn status(State(server): State<ServerState>) -> Response {
    on_blocking_thread(move || {
        let (readiness, health) = (server.readiness.conditions(), server.health.conditions());
        let table = |name: &str| server.service.get().and_then(|service| service.table(name));
        let body = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "revision": env!("FAIRLEAD_REVISION"),
            "wire": fairlead_cni::wire::WIRE,
            "pid": std::process::id(),
            "ready": readiness.iter().all(|c| c.met),
            "readiness": readiness,
            "healthy": health.iter().all(|c| c.met),
            "alive": server.health.is_alive(&health),
            "health": health,
            "calls": server.admission.counts(),
            "removals": table("removals"),
            "lateNetworkStatus": table("late-network-status"),
            "newer": table("newer"),
            "daemon": (server.about)(),
        });
        responses::json(StatusCode::OK, body.to_string())
    })
    .await
}

/// Lets the engine answer in its turn, on a thread for blocking; an error until the engine is started.
async fn engine(
    server: ServerState,
    look: impl FnOnce(&dyn Service) -> Response + Send + 'static,
) -> Response {
    match server.service.get().cloned() {
        Some(service) => answer_of(server.questions.look_up(move || look(&*service)).await),
        None => responses::not_ready(CniVersion::LATEST, &server.readiness.missing()),
    }
}

async fn table(State(server): State<ServerState>, name: Result<Path<String>, PathRejection>) -> Response {
    let name = match name {
        Ok(Path(name)) => name,
        Err(why) => return responses::malformed(why),
    };
    engine(server, move |service| match service.table(&name) {
        Some(rows) => responses::json(StatusCode::OK, rows.to_string()),
        None => {
            let error = CniError::new(Code::BadEnvironment, format!("fairleadd has no table {name:?}"))
                .with("there are attachments, networks, definitions, pools, vswitch-ports, vswitch-addresses, orphans, removals, late-network-status, newer and status");
            responses::json(StatusCode::NOT_FOUND, error.to_json(CniVersion::LATEST))
        }
    })
    .await
}

/// The query of `/v1/gc`.
#[derive(Debug, Default, Deserialize)]
struct Collection {
    /// Also host-local allocations whose container is unknown here.
    #[serde(default)]
    orphans: bool,
    /// When the operator has seen them listed, in seconds since the epoch.
    listed: Option<u64>,
}

impl Collection {
    fn orphans(&self) -> Result<Option<OrphansListed>, CniError> {
        match (self.orphans, self.listed) {
            (false, _) => Ok(None),
            (true, Some(at)) => Ok(Some(OrphansListed { at })),
            (true, None) => Err(CniError::new(
                Code::BadEnvironment,
                "orphaned addresses are freed only after they were listed",
            )
            .with("use the fairleadd of the daemon's own release: it lists them and asks")),
        }
    }
}

/// The query of what is about one thing.
#[derive(Debug, Deserialize)]
struct Target {
    /// The name of a pool, or the PCI address of a VF; a pod or a container to be described.
    of: String,
}

async fn describe(
    State(server): State<ServerState>,
    target: Result<Query<Target>, QueryRejection>,
) -> Response {
    let of = match target {
        Ok(Query(target)) => target.of,
        Err(why) => return responses::malformed(why),
    };
    engine(server, move |service| responses::json(StatusCode::OK, service.describe(&of).to_string())).await
}

async fn pools(
    State(server): State<ServerState>,
    verb: Result<Path<Verb>, PathRejection>,
    target: Result<Query<Target>, QueryRejection>,
) -> Response {
    let (verb, of) = match (verb, target) {
        (Ok(Path(verb)), Ok(Query(target))) => (verb, target.of),
        (Err(why), _) => return responses::malformed(why),
        (_, Err(why)) => return responses::malformed(why),
    };
    engine(server, move |service| match service.order_pools(verb, &of) {
        Ok(rows) => responses::json(StatusCode::OK, rows.to_string()),
        Err(error) => responses::json(StatusCode::NOT_FOUND, error.to_json(CniVersion::LATEST)),
    })
    .await
}

async fn collect(
    State(server): State<ServerState>,
    what: Result<Query<Collection>, QueryRejection>,
) -> Response {
    let what = match what {
        Ok(Query(what)) => what,
        Err(why) => return responses::malformed(why),
    };
    let ordered = move |service: &dyn Service| service.collect(what.orphans()?);
    engine(server, move |service| ordered_answer(ordered(service))).await
}

type Named = Result<Query<NamedAttachment>, QueryRejection>;

async fn left_behind(State(server): State<ServerState>, named: Named) -> Response {
    forgotten(server, named, false).await
}

async fn forget(State(server): State<ServerState>, named: Named) -> Response {
    forgotten(server, named, true).await
}

async fn forgotten(server: ServerState, named: Named, carry_out: bool) -> Response {
    let named = match named {
        Ok(Query(named)) => named,
        Err(why) => return responses::malformed(why),
    };
    engine(server, move |service| ordered_answer(service.forget(&named, carry_out))).await
}

/// The answer to an order that may be refused.
fn ordered_answer(done: Result<serde_json::Value, CniError>) -> Response {
    match done {
        Ok(rows) => responses::json(StatusCode::OK, rows.to_string()),
        Err(error) => responses::json(StatusCode::CONFLICT, error.to_json(CniVersion::LATEST)),
    }
}
