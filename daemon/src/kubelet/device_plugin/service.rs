//! What kubelet asks a plugin: its list of devices, which of them it had better take, and what a pod needs to reach them.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, stream};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::super::proto::deviceplugin as wire;
use super::allocation::{self, Access};
use super::device_info::DeviceInfoFiles;
use super::{Device, DeviceList, Devices, Health, preference};
use wire::device_plugin_server::DevicePlugin;

/// One resource as it is offered.
pub(super) struct Offer {
    pub(super) devices: Arc<dyn Devices>,
    files: DeviceInfoFiles,
    /// How many follow the list: one, while kubelet is there.
    pub(super) followers: watch::Sender<usize>,
}

/// Counts as long as it is held.
struct Follower(Arc<Offer>);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.followers.send_modify(|count| *count -= 1);
    }
}

impl Offer {
    pub(super) fn new(devices: Arc<dyn Devices>, files: DeviceInfoFiles) -> Offer {
        Offer { devices, files, followers: watch::Sender::new(0) }
    }

    fn followed(self: &Arc<Offer>) -> Follower {
        self.followers.send_modify(|count| *count += 1);
        Follower(Arc::clone(self))
    }

    fn known(&self) -> Arc<[Device]> {
        self.devices.list().borrow().clone().unwrap_or_default()
    }

    /// What each container is told. Nothing is given away of which anything is refused.
    fn give_all(
        &self,
        asked: &[wire::ContainerAllocateRequest],
    ) -> Result<Vec<wire::ContainerAllocateResponse>, Status> {
        let mut marked = Vec::new();
        let each = asked.iter().map(|container| self.give(&container.devices_ids, &mut marked));
        let given = each.collect();
        if Result::is_err(&given) {
            marked.iter().for_each(|id| self.devices.not_given(id));
        }
        given
    }

    /// What one container is told; the devices that are its from now on are added to `marked`, also when it is refused another.
    fn give(
        &self,
        ids: &[String],
        marked: &mut Vec<String>,
    ) -> Result<wire::ContainerAllocateResponse, Status> {
        let (resource, known) = (self.devices.resource(), self.known());
        let mut given: Vec<(String, Access)> = Vec::new();
        for id in ids {
            if !known.iter().any(|device| device.id == *id) {
                let told = format!("resource {resource:?} has no device {id:?} any more");
                return Err(Status::not_found(told));
            }
            let access = self.devices.access(id).map_err(|refused| {
                tracing::error!(resource, error = %refused, "kubelet wants a device for a pod and is refused");
                Status::failed_precondition(refused.to_string())
            })?;
            marked.push(id.clone());
            given.push((id.clone(), access));
        }
        for (id, access) in &given {
            self.files.write(resource, id, access).map_err(|error| {
                tracing::error!(resource, id, %error, "a device's information file can't be written");
                Status::internal(format!("the information file of device {id} can't be written: {error}"))
            })?;
        }
        tracing::info!(resource, ids = ids.join(","), "kubelet has given devices to a pod");
        Ok(allocation::answer(resource, &given))
    }
}

/// Serves kubelet.
#[derive(Clone)]
pub(super) struct Endpoint(pub(super) Arc<Offer>);

/// The complete list.
fn told(list: &[Device]) -> wire::ListAndWatchResponse {
    let device = |device: &Device| wire::Device {
        id: device.id.clone(),
        health: match device.health {
            Health::Healthy => "Healthy".to_owned(),
            Health::Unhealthy => "Unhealthy".to_owned(),
        },
        topology: device
            .node
            .map(|node| wire::TopologyInfo { nodes: vec![wire::NumaNode { id: i64::from(node) }] }),
    };
    wire::ListAndWatchResponse { devices: list.iter().map(device).collect() }
}

/// The next list: the present one at first, then every other. Ends with the resource.
async fn next(list: &mut watch::Receiver<DeviceList>, first: bool) -> Option<wire::ListAndWatchResponse> {
    if !first {
        list.changed().await.ok()?;
    }
    let now = list.wait_for(Option::is_some).await.ok()?;
    now.as_deref().map(told)
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
        let following = (self.0.devices.list(), self.0.followed(), true);
        let lists = stream::unfold(following, |(mut list, follower, first)| async move {
            let told = next(&mut list, first).await?;
            tracing::debug!(devices = told.devices.len(), "kubelet is told of the devices");
            Some((Ok(told), (list, follower, false)))
        });
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<wire::PreferredAllocationRequest>,
    ) -> Result<Response<wire::PreferredAllocationResponse>, Status> {
        let (known, spread) = (self.0.known(), self.0.devices.spread());
        let choose = |asked: wire::ContainerPreferredAllocationRequest| {
            let size = usize::try_from(asked.allocation_size).unwrap_or(0);
            let (available, must) = (&asked.available_device_i_ds, &asked.must_include_device_i_ds);
            let device_i_ds = preference::preferred(&known, available, must, size, spread);
            wire::ContainerPreferredAllocationResponse { device_i_ds }
        };
        let container_responses = request.into_inner().container_requests.into_iter().map(choose).collect();
        Ok(Response::new(wire::PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<wire::AllocateRequest>,
    ) -> Result<Response<wire::AllocateResponse>, Status> {
        let (offer, asked) = (Arc::clone(&self.0), request.into_inner().container_requests);
        // It looks at the host and writes files: not on the thread that serves everybody.
        let giving = tokio::task::spawn_blocking(move || offer.give_all(&asked));
        let given = giving.await.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(wire::AllocateResponse { container_responses: given? }))
    }

    async fn pre_start_container(
        &self,
        _: Request<wire::PreStartContainerRequest>,
    ) -> Result<Response<wire::PreStartContainerResponse>, Status> {
        Ok(Response::new(wire::PreStartContainerResponse {}))
    }
}

/// A device is ready before it is announced: nothing is left to be done before a container starts.
pub(super) const OPTIONS: wire::DevicePluginOptions =
    wire::DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true };
