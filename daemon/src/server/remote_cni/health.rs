//! `grpc.health.v1`: whether the daemon is ready, looked up when somebody asks. tonic-health's own service wants to be told of every
//! change, and readiness is probed.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::health::Readiness;
use crate::server::ServerState;

/// The service that this is about, beside the whole server (the empty name).
const REMOTE_CNI: &str = "fairlead.v1.RemoteCni";

/// How often it is looked for whoever watches.
const LOOK: Duration = Duration::from_secs(1);

/// Health that follows readiness.
pub(super) struct OfReadiness(Arc<Readiness>);

type Answers = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

impl OfReadiness {
    pub(super) fn new(server: &ServerState) -> OfReadiness {
        OfReadiness(Arc::clone(&server.readiness))
    }
}

fn is_known(service: &str) -> bool {
    matches!(service, "" | REMOTE_CNI)
}

/// Looks on a thread that may wait.
async fn look(readiness: Arc<Readiness>) -> ServingStatus {
    match tokio::task::spawn_blocking(move || readiness.ready()).await {
        Ok(true) => ServingStatus::Serving,
        Ok(false) | Err(_) => ServingStatus::NotServing,
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl Health for OfReadiness {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !is_known(&request.get_ref().service) {
            return Err(Status::not_found("fairleadd has no service of this name"));
        }
        Ok(Response::new(response(look(Arc::clone(&self.0)).await)))
    }

    type WatchStream = Answers;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Answers>, Status> {
        if !is_known(&request.get_ref().service) {
            // The protocol wants the stream to stay open: such a service may come.
            let unknown = stream::once(async { Ok(response(ServingStatus::ServiceUnknown)) });
            return Ok(Response::new(Box::pin(futures_util::StreamExt::chain(unknown, stream::pending()))));
        }
        let readiness = Arc::clone(&self.0);
        let changes = stream::unfold(None, move |told: Option<ServingStatus>| {
            let readiness = Arc::clone(&readiness);
            async move {
                loop {
                    let now = look(Arc::clone(&readiness)).await;
                    if told != Some(now) {
                        return Some((Ok(response(now)), Some(now)));
                    }
                    tokio::time::sleep(LOOK).await;
                }
            }
        });
        Ok(Response::new(Box::pin(changes)))
    }
}
