//! The routes of the operator: health, metrics, tables, and the order to collect.
//!
//! A look-up may take a while (a probe of the kernel, a table of thousands), so it runs on threads made for
//! blocking, never on the server's.

use axum::Router;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::{get, post};
use fairlead_cni::{CniError, CniVersion, Code};
use fairlead_sriov::pools::Verb;
use serde::Deserialize;
use serde_json::json;

use super::{ServerState, responses};
use crate::health::Condition;

/// The content type of OpenMetrics.
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

pub(super) fn routes() -> Router<ServerState> {
    Router::new()
        .route("/healthz", get(healthz).fallback(responses::wrong_method))
        .route("/readyz", get(readyz).fallback(responses::wrong_method))
        .route("/metrics", get(metrics).fallback(responses::wrong_method))
        .route("/v1/status", get(status).fallback(responses::wrong_method))
        .route("/v1/gc", post(collect).fallback(responses::wrong_method))
        .route("/v1/pools/{verb}", post(pools).fallback(responses::wrong_method))
        .route("/v1/{table}", get(table).fallback(responses::wrong_method))
}

/// Runs a look-up on a thread for blocking, and answers a panic in it.
async fn on_blocking_thread(look: impl FnOnce() -> Response + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(look).await {
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
        let body = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "wire": fairlead_cni::wire::WIRE,
            "pid": std::process::id(),
            "ready": readiness.iter().all(|c| c.met),
            "readiness": readiness,
            "healthy": health.iter().all(|c| c.met),
            "health": health,
            "calls": server.admission.counts(),
            "daemon": (server.about)(),
        });
        responses::json(StatusCode::OK, body.to_string())
    })
    .await
}

/// Lets the engine answer, on a thread for blocking; an error until the engine is started.
async fn engine(
    server: ServerState,
    look: impl FnOnce(&dyn crate::call::Service) -> Response + Send + 'static,
) -> Response {
    match server.service.get().cloned() {
        Some(service) => on_blocking_thread(move || look(&*service)).await,
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
                .with("there are attachments, networks, pools, orphans and status");
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
}

/// The query of an order about a pool.
#[derive(Debug, Deserialize)]
struct OrderTarget {
    /// The name of a pool, or the PCI address of a VF.
    of: String,
}

async fn pools(
    State(server): State<ServerState>,
    verb: Result<Path<Verb>, PathRejection>,
    target: Result<Query<OrderTarget>, QueryRejection>,
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
    engine(server, move |service| responses::json(StatusCode::OK, service.collect(what.orphans).to_string()))
        .await
}
