//! What the operator asks: health, metrics, tables, and the order to collect.
//!
//! Looking things up may take a while (a probe of the kernel, a table of thousands), so it happens on threads made
//! for blocking, never on the server's.

use axum::Router;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::{get, post};
use fairlead_cni::{CniError, CniVersion, Code};
use serde::Deserialize;
use serde_json::json;

use super::{Door, answer};
use crate::health::Condition;
use crate::pools::Verb;

/// OpenMetrics' own content type.
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

pub(super) fn routes() -> Router<Door> {
    Router::new()
        .route("/healthz", get(healthz).fallback(answer::wrong_method))
        .route("/readyz", get(readyz).fallback(answer::wrong_method))
        .route("/metrics", get(metrics).fallback(answer::wrong_method))
        .route("/v1/status", get(status).fallback(answer::wrong_method))
        .route("/v1/gc", post(collect).fallback(answer::wrong_method))
        .route("/v1/pools/{verb}", post(pools).fallback(answer::wrong_method))
        .route("/v1/{table}", get(table).fallback(answer::wrong_method))
}

/// Runs a look-up on a thread for blocking; a panic in it is answered.
async fn aside(look: impl FnOnce() -> Response + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(look).await {
        Ok(response) => response,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => answer::fault(crate::admission::panic_text(&*panic)),
            Err(error) => answer::fault(&error.to_string()),
        },
    }
}

fn conditions(good: bool, all: &[Condition]) -> Response {
    let status = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    answer::json(status, json!({ "ok": good, "conditions": all }).to_string())
}

async fn healthz(State(door): State<Door>) -> Response {
    aside(move || {
        let all = door.health.conditions();
        conditions(all.iter().all(|c| c.met), &all)
    })
    .await
}

async fn readyz(State(door): State<Door>) -> Response {
    aside(move || {
        let all = door.readiness.conditions();
        conditions(all.iter().all(|c| c.met), &all)
    })
    .await
}

async fn metrics(State(door): State<Door>) -> Response {
    aside(move || {
        let mut response = answer::json(StatusCode::OK, door.exposition.text());
        response.headers_mut().insert(header::CONTENT_TYPE, OPEN_METRICS);
        response
    })
    .await
}

async fn status(State(door): State<Door>) -> Response {
    aside(move || {
        let (readiness, health) = (door.readiness.conditions(), door.health.conditions());
        let body = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "wire": fairlead_cni::wire::WIRE,
            "pid": std::process::id(),
            "ready": readiness.iter().all(|c| c.met),
            "readiness": readiness,
            "healthy": health.iter().all(|c| c.met),
            "health": health,
            "calls": door.admission.counts(),
            "daemon": (door.about)(),
        });
        answer::json(StatusCode::OK, body.to_string())
    })
    .await
}

/// Answers from the engine, once there is one.
async fn engine(
    door: Door,
    look: impl FnOnce(&dyn crate::call::Service) -> Response + Send + 'static,
) -> Response {
    match door.service.get().cloned() {
        Some(service) => aside(move || look(&*service)).await,
        None => answer::not_ready(CniVersion::LATEST, &door.readiness.missing()),
    }
}

async fn table(State(door): State<Door>, name: Result<Path<String>, PathRejection>) -> Response {
    let name = match name {
        Ok(Path(name)) => name,
        Err(why) => return answer::malformed(why),
    };
    engine(door, move |service| match service.table(&name) {
        Some(rows) => answer::json(StatusCode::OK, rows.to_string()),
        None => {
            let error = CniError::new(Code::BadEnvironment, format!("fairleadd has no table {name:?}"))
                .with("there are attachments, networks, pools, orphans and status");
            answer::json(StatusCode::NOT_FOUND, error.to_json(CniVersion::LATEST))
        }
    })
    .await
}

/// What a collection is to take.
#[derive(Debug, Default, Deserialize)]
struct Collection {
    /// Also host-local allocations whose container is unknown here.
    #[serde(default)]
    orphans: bool,
}

/// What an order is about.
#[derive(Debug, Deserialize)]
struct Meant {
    /// A pool's name, or a VF's PCI address.
    of: String,
}

async fn pools(
    State(door): State<Door>,
    verb: Result<Path<Verb>, PathRejection>,
    meant: Result<Query<Meant>, QueryRejection>,
) -> Response {
    let (verb, of) = match (verb, meant) {
        (Ok(Path(verb)), Ok(Query(meant))) => (verb, meant.of),
        (Err(why), _) => return answer::malformed(why),
        (_, Err(why)) => return answer::malformed(why),
    };
    engine(door, move |service| match service.order_pools(verb, &of) {
        Ok(rows) => answer::json(StatusCode::OK, rows.to_string()),
        Err(error) => answer::json(StatusCode::NOT_FOUND, error.to_json(CniVersion::LATEST)),
    })
    .await
}

async fn collect(State(door): State<Door>, what: Result<Query<Collection>, QueryRejection>) -> Response {
    let what = match what {
        Ok(Query(what)) => what,
        Err(why) => return answer::malformed(why),
    };
    engine(door, move |service| answer::json(StatusCode::OK, service.collect(what.orphans).to_string())).await
}
