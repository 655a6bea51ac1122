//! Kubelet's side of the node, over its unix sockets (gRPC): what it has given a pod ([`PodResources`]), which of a pod's
//! devices an ADD gets ([`next_device`], pure), and our own devices offered to it ([`DevicePlugins`]).
//!
//! Everything here is looked up below the host's root. Kubelet that does not answer is an error (code 11) that is worth
//! another try, never the answer that a pod has nothing.

mod device_plugin;
mod grants;
mod place;
mod pod_resources;
#[cfg(any(test, feature = "failpoints"))]
#[allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#[cfg_attr(not(test), allow(dead_code, reason = "the unit tests use all of it"))]
pub mod recorded;

pub use device_plugin::{
    Access, Device, DeviceList, DevicePluginError, DevicePlugins, Devices, Health, Refused, VfioGroup,
};
pub use grants::{NoDevice, next_device};
pub use place::KubeletDir;
pub use pod_resources::{
    ContainerResources, Grant, PodName, PodResources, PodResourcesError, ResourcesOfPod,
};

/// What `build.rs` makes of `proto/`.
#[allow(missing_docs, dead_code, unused_qualifications, unreachable_pub, clippy::all, clippy::pedantic)]
mod proto {
    pub(super) mod podresources {
        tonic::include_proto!("v1");
    }
    pub(super) mod deviceplugin {
        tonic::include_proto!("v1beta1");
    }
}
