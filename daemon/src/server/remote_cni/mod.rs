//! The remote CNI: gRPC for a runtime that has networks of whole pods set up and torn down, instead of executing a plugin for each.
//!
//! A pod's networks go the way of the executable's ADD of a `clusterNetwork` (`engine::cluster_network`), through the same queue, and
//! are on record in the same form. This only translates. Health and reflection are services beside it.

pub(super) mod grpc_status;
mod grpc_timeout;
mod health;
mod pod_call;
mod results;

use std::time::Instant;

use axum::Router;
use fairlead_cni::wire::{self, Command};
use fairlead_cni::{CniError, Code};
use fairlead_proto::DESCRIPTORS;
use fairlead_proto::v1;
use fairlead_proto::v1::remote_cni_server::{RemoteCni, RemoteCniServer};
use tonic::metadata::MetadataMap;
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server::{Builder, Error};

use super::look_ups::LookUps;
use super::{ServerState, responses};
use crate::admission::Outcome;

pub(super) use tonic_reflection::server::Error as BadDescriptors;

/// The largest request, in bytes: as much as a network's configuration may have, and gRPC's frame around it.
pub(super) const MAX_BODY: usize = wire::MAX_CONFIG + FRAME;
/// What gRPC writes before a message, in bytes.
const FRAME: usize = 5;
/// The largest question about the services, in bytes.
const MAX_QUESTION: usize = 4 << 10;

/// The beginning of the paths of reflection, in each of its versions.
pub(super) const REFLECTION: &str = "/grpc.reflection.";

/// The services as one router, whose paths are theirs.
///
/// # Errors
/// When the descriptors of the services can't be read.
pub(super) fn services(server: &ServerState) -> Result<Router, Error> {
    let reflection = || {
        Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
    };
    let remote_cni = RemoteCniServer::new(Pods { server: server.clone(), look_ups: LookUps::new(LOOK_UPS) });
    let routes = Routes::new(remote_cni.max_decoding_message_size(wire::MAX_CONFIG))
        .add_service(
            HealthServer::new(health::OfReadiness::new(server)).max_decoding_message_size(MAX_QUESTION),
        )
        .add_service(reflection().build_v1()?.max_decoding_message_size(MAX_QUESTION))
        // What grpcurl asked before version 1.8.8.
        .add_service(reflection().build_v1alpha()?.max_decoding_message_size(MAX_QUESTION));
    Ok(routes.prepare().into_axum_router())
}

/// So many look-ups of the conf dir and the records are made at once: a burst of pods must not make a thread for each.
const LOOK_UPS: usize = 4;

/// The networks of this node's pods.
struct Pods {
    server: ServerState,
    look_ups: LookUps,
}

#[tonic::async_trait]
impl RemoteCni for Pods {
    async fn set_up_pod(
        &self,
        request: Request<v1::SetUpPodRequest>,
    ) -> Result<Response<v1::SetUpPodResponse>, Status> {
        let arrived = Instant::now();
        self.must_be_open()?;
        let (metadata, _, asked) = request.into_parts();
        let node = self.server.default_network.clone();
        let request = self
            .look_up(move || {
                let first = node.find()?;
                pod_call::add(&asked, &first, node.plugin_path())
            })
            .await?;
        let request = with_metadata(request, &metadata);
        let first = pod_call::first_key(&request.container_id);
        self.carry_out(request, arrived).await?;
        let service = self.server.service.get().cloned().ok_or_else(|| self.starting())?;
        let attached = self.look_up(move || Ok(service.pod_networks(&first))).await?;
        // Nothing else removes it so soon.
        if attached.is_empty() {
            let error = CniError::new(Code::TryAgain, "the pod was torn down while it was set up");
            return Err(grpc_status::with_code(tonic::Code::Aborted, &error));
        }
        let networks = attached.into_iter().map(results::of_network).collect();
        Ok(Response::new(v1::SetUpPodResponse { networks }))
    }

    async fn tear_down_pod(
        &self,
        request: Request<v1::TearDownPodRequest>,
    ) -> Result<Response<v1::TearDownPodResponse>, Status> {
        let arrived = Instant::now();
        self.must_be_open()?;
        let (metadata, _, asked) = request.into_parts();
        let request = pod_call::del(&asked, self.server.default_network.plugin_path());
        let request = request.map_err(|error| grpc_status::of_error(&error))?;
        self.carry_out(with_metadata(request, &metadata), arrived).await?;
        Ok(Response::new(v1::TearDownPodResponse {}))
    }

    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        let arrived = Instant::now();
        self.must_be_open()?;
        let (metadata, ..) = request.into_parts();
        let node = self.server.default_network.clone();
        let (answer, request) = self
            .look_up(move || {
                node.networks().rescan();
                let first = node.find().map_err(|error| CniError { code: Code::NotAvailable, ..error })?;
                let networks = node.networks();
                let answer = v1::StatusResponse {
                    default_network: first.name.clone(),
                    networks: networks.in_file_order().iter().map(|list| list.name.clone()).collect(),
                    refused: networks.refused().iter().map(ToString::to_string).collect(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                };
                Ok((answer, pod_call::status(&first, node.plugin_path())))
            })
            .await?;
        self.carry_out(with_metadata(request, &metadata), arrived).await?;
        Ok(Response::new(answer))
    }
}

impl Pods {
    /// R6: a caller of gRPC waits and repeats by itself.
    fn must_be_open(&self) -> Result<(), Status> {
        if self.server.admission.is_open() { Ok(()) } else { Err(self.starting()) }
    }

    fn starting(&self) -> Status {
        grpc_status::of_error(&responses::starting(&self.server.readiness.missing()))
    }

    /// Looks something up on a thread that may wait.
    async fn look_up<T: Send + 'static>(
        &self,
        look: impl FnOnce() -> Result<T, CniError> + Send + 'static,
    ) -> Result<T, Status> {
        match self.look_ups.look_up(look).await {
            Ok(found) => found.map_err(|error| grpc_status::of_error(&error)),
            Err(error) => Err(grpc_status::of_error(&responses::fault_of(&error.to_string()))),
        }
    }

    /// Has the call carried out in its turn.
    async fn carry_out(&self, request: wire::Request, arrived: Instant) -> Result<(), Status> {
        let command = request.command;
        let call = self.server.admission.prepare(request);
        // The receipt is dropped with the answer, which so counts as lost: the same request is answered the same again.
        match self.server.admission.submit(call, arrived).outcome().await {
            Outcome::Reply(reply, _) => {
                reply.outcome.map(drop).map_err(|error| grpc_status::of_error(&error))
            }
            Outcome::NotBegun => Err(grpc_status::of_error(&responses::stopping())),
            Outcome::TooLate if command == Command::Status => {
                Err(grpc_status::of_error(&responses::status_too_late()))
            }
            Outcome::TooLate => {
                Err(grpc_status::with_code(tonic::Code::DeadlineExceeded, &responses::too_late(None)))
            }
            Outcome::Full => {
                Err(grpc_status::with_code(tonic::Code::ResourceExhausted, &responses::too_many()))
            }
        }
    }
}

/// Adds what the caller says beside its message: how long it waits, and of which trace the call is.
fn with_metadata(mut request: wire::Request, metadata: &MetadataMap) -> wire::Request {
    let text = |name: &str| metadata.get(name).and_then(|value| value.to_str().ok());
    if let Some(limit) = text("grpc-timeout").and_then(grpc_timeout::parse) {
        // 0 would mean that it is not known.
        request.deadline_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1);
    }
    if let Some(trace) = text("traceparent") {
        request.env.push((fairlead_cni::trace::VARIABLE.to_owned(), trace.to_owned()));
    }
    request
}

#[cfg(test)]
mod tests {
    use fairlead_cni::trace::TraceParent;

    use super::*;

    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn x15_what_stands_beside_the_message_is_the_calls_deadline_and_its_trace() {
        let asked = v1::TearDownPodRequest {
            pod: Some(v1::PodRef { namespace: "n".to_owned(), name: "p".to_owned(), uid: "u".to_owned() }),
            container_id: "c1".to_owned(),
            netns: String::new(),
        };
        let request = pod_call::del(&asked, "/opt/cni/bin").unwrap();
        let plain = with_metadata(request.clone(), &MetadataMap::new());
        assert_eq!((plain.deadline_ms, TraceParent::of(&plain.env)), (0, None));
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", "1500m".parse().unwrap());
        metadata.insert("traceparent", TRACE.parse().unwrap());
        let told = with_metadata(request.clone(), &metadata);
        assert_eq!((told.deadline_ms, TraceParent::of(&told.env)), (1500, TraceParent::parse(TRACE)));
        metadata.insert("grpc-timeout", "1n".parse().unwrap());
        assert_eq!(with_metadata(request, &metadata).deadline_ms, 1, "0 would be no limit");
    }
}
