//! Kubelet's side of the node, over its unix sockets (gRPC): what it has allocated to a pod ([`PodResources`]), which of a
//! pod's devices an ADD gets ([`next_device`], pure), and our own devices offered to it ([`DevicePlugins`]).
//!
//! This crate knows no pool and no SR-IOV: whoever has devices implements [`Devices`]. Every path is looked up below the
//! host's root. A kubelet that does not answer is an error that is worth another try, never the answer that a pod has nothing.

#![forbid(unsafe_code)]

mod device_plugin;
#[cfg(any(test, feature = "fake-kubelet"))]
#[allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
pub mod fake_kubelet;
mod kubelet_dir;
mod next_device;
mod pod_resources;

pub use device_plugin::{
    AllocationPolicy, AllocationRefused, Device, DeviceAccess, DevicePluginError, DevicePlugins, Devices,
    Health, RdmaAccess, VfioGroup, VhostUserSocket, WatchedDevices, device_info_path, watched,
};
pub use kubelet_dir::KubeletDir;
pub use next_device::{NoDevice, next_device};
pub use pod_resources::{
    ContainerResources, PodName, PodResources, PodResourcesError, ResourceDevices, ResourcesOfPod,
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
