//! The calls of kubelet to a plugin: the list of devices, which of them to prefer, and what a pod needs to reach them.

use std::pin::Pin;
use std::sync::{Arc, Weak};

use futures_util::{Stream, StreamExt};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::super::proto::deviceplugin as wire;
use super::allocate_answer::{self, DeviceAccess};
use super::device_info_files::DeviceInfoFiles;
use super::{Device, Devices, Health, preferred_allocation};
use wire::device_plugin_server::DevicePlugin;

/// One resource that is offered to kubelet. Its registration alone keeps it. Kubelet's connection outlives that, and kubelet goes by
/// the last list until the stream of lists ends.
pub(super) struct Offer {
    pub(super) devices: Arc<dyn Devices>,
    files: Arc<DeviceInfoFiles>,
    /// How many streams follow the list: one while kubelet runs, none when it has lost us.
    pub(super) followers: watch::Sender<usize>,
}

/// A stream that follows the list, counted as long as this exists.
struct Follower(Weak<Offer>);

impl Drop for Follower {
    fn drop(&mut self) {
        if let Some(offer) = self.0.upgrade() {
            offer.followers.send_modify(|count| *count -= 1);
        }
    }
}

/// What allocates a resource's devices. It does not keep the offer, which an allocation that hangs on a device would keep with it.
struct Allocator {
    devices: Arc<dyn Devices>,
    files: Arc<DeviceInfoFiles>,
}

impl Offer {
    pub(super) fn new(devices: Arc<dyn Devices>, files: DeviceInfoFiles) -> Offer {
        Offer { devices, files: Arc::new(files), followers: watch::Sender::new(0) }
    }

    fn count_follower(self: &Arc<Offer>) -> Follower {
        self.followers.send_modify(|count| *count += 1);
        Follower(Arc::downgrade(self))
    }

    fn allocator(&self) -> Allocator {
        Allocator { devices: Arc::clone(&self.devices), files: Arc::clone(&self.files) }
    }
}

impl Allocator {
    /// Allocates what several containers ask for, all or nothing: where one device is refused, the others are taken back.
    fn allocate_all(
        &self,
        asked: &[wire::ContainerAllocateRequest],
    ) -> Result<Vec<wire::ContainerAllocateResponse>, Status> {
        let mut allocated_ids = Vec::new();
        let each = asked.iter().map(|container| self.allocate(&container.devices_ids, &mut allocated_ids));
        let answers: Result<Vec<_>, Status> = each.collect();
        let ids = allocated_ids.iter();
        match &answers {
            Ok(_) => ids.for_each(|id| self.devices.allocation_answered(id)),
            // Kubelet takes the error for all of the containers: a VF that stayed allocated would wait for a pod that never had it.
            Err(_) => ids.for_each(|id| self.devices.cancel_allocation(id)),
        }
        answers
    }

    /// Allocates one container's devices. Those that were allocated are added to `allocated_ids`, also when another one is
    /// refused.
    fn allocate(
        &self,
        ids: &[String],
        allocated_ids: &mut Vec<String>,
    ) -> Result<wire::ContainerAllocateResponse, Status> {
        let (resource, known) = (self.devices.resource(), self.devices.list());
        let mut allocated: Vec<(String, DeviceAccess)> = Vec::new();
        for id in ids {
            // Kubelet may still go by a list that was replaced meanwhile.
            if !known.iter().any(|device| device.id == *id) {
                let message = format!("resource {resource:?} has no device {id:?} any more");
                return Err(Status::not_found(message));
            }
            let access = self.devices.allocate(id).map_err(|refused| {
                tracing::error!(resource, error = %refused, "kubelet wants a device for a pod and is refused");
                Status::failed_precondition(refused.to_string())
            })?;
            allocated_ids.push(id.clone());
            allocated.push((id.clone(), access));
        }
        // Written when all are allocated: no file is left of a device that was refused.
        for (id, access) in &allocated {
            self.files.write(resource, id, access).map_err(|error| {
                tracing::error!(resource, id, %error, "a device's information file can't be written");
                Status::internal(format!("the information file of device {id} can't be written: {error}"))
            })?;
        }
        tracing::info!(resource, ids = ids.join(","), "kubelet has given devices to a pod");
        Ok(allocate_answer::answer(resource, &allocated))
    }
}

/// The gRPC service of one resource, which kubelet calls: also when the resource is offered no more, by the connection that it has.
#[derive(Clone)]
pub(super) struct Endpoint {
    offer: Weak<Offer>,
    resource: Arc<str>,
}

impl Endpoint {
    pub(super) fn of(offer: &Arc<Offer>) -> Endpoint {
        Endpoint { offer: Arc::downgrade(offer), resource: offer.devices.resource().into() }
    }

    fn offer(&self) -> Result<Arc<Offer>, Status> {
        self.offer.upgrade().ok_or_else(|| {
            let message = format!(
                "resource {:?} is not offered any more: it was taken out of fairleadd's configuration, or fairleadd stops",
                self.resource
            );
            Status::unavailable(message)
        })
    }
}

/// The message with the complete list.
fn list_message(list: &[Device]) -> wire::ListAndWatchResponse {
    let device = |device: &Device| wire::Device {
        id: device.id.clone(),
        health: match device.health {
            Health::Healthy => "Healthy".to_owned(),
            Health::Unhealthy => "Unhealthy".to_owned(),
        },
        topology: device
            .numa_node
            .map(|node| wire::TopologyInfo { nodes: vec![wire::NumaNode { id: i64::from(node) }] }),
    };
    wire::ListAndWatchResponse { devices: list.iter().map(device).collect() }
}

#[tonic::async_trait]
impl DevicePlugin for Endpoint {
    async fn get_device_plugin_options(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<wire::DevicePluginOptions>, Status> {
        Ok(Response::new(OPTIONS))
    }

    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<wire::ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let offer = self.offer()?;
        let mut counts = offer.followers.subscribe();
        // The sender of the count goes with the offer. Kubelet takes the end of the stream for the loss of every device in it.
        let withdrawn = async move { while counts.changed().await.is_ok() {} };
        // The stream owns the follower: when kubelet drops the stream, the count falls.
        let follower = offer.count_follower();
        let lists = offer.devices.watch().take_until(withdrawn).map(move |list| {
            let _counted = &follower;
            tracing::debug!(devices = list.len(), "kubelet is told of the devices");
            Ok(list_message(&list))
        });
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<wire::PreferredAllocationRequest>,
    ) -> Result<Response<wire::PreferredAllocationResponse>, Status> {
        let offer = self.offer()?;
        let (known, policy) = (offer.devices.list(), offer.devices.allocation_policy());
        let choose = |asked: wire::ContainerPreferredAllocationRequest| {
            let size = usize::try_from(asked.allocation_size).unwrap_or(0);
            let (available, must) = (&asked.available_device_i_ds, &asked.must_include_device_i_ds);
            let is_ready = |id: &str| offer.devices.is_ready(id);
            let device_i_ds =
                preferred_allocation::preferred(&known, available, must, size, policy, is_ready);
            wire::ContainerPreferredAllocationResponse { device_i_ds }
        };
        let container_responses = request.into_inner().container_requests.into_iter().map(choose).collect();
        Ok(Response::new(wire::PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<wire::AllocateRequest>,
    ) -> Result<Response<wire::AllocateResponse>, Status> {
        let (allocator, asked) = (self.offer()?.allocator(), request.into_inner().container_requests);
        // It reads the host's files and writes some: that must not block the thread that serves everybody.
        let allocating = tokio::task::spawn_blocking(move || allocator.allocate_all(&asked));
        let answers = allocating.await.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(wire::AllocateResponse { container_responses: answers? }))
    }

    async fn pre_start_container(
        &self,
        _: Request<wire::PreStartContainerRequest>,
    ) -> Result<Response<wire::PreStartContainerResponse>, Status> {
        // Kubelet does not call it: `OPTIONS` does not ask for that.
        Ok(Response::new(wire::PreStartContainerResponse {}))
    }
}

/// What this plugin wants to be called for. A device is ready before it is announced, so `PreStartContainer` is not needed.
pub(super) const OPTIONS: wire::DevicePluginOptions =
    wire::DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true };
