//! What the Network Plumbing Working Group's specification 1.3 ("Kubernetes Network Custom Resource Definition De-facto
//! Standard") says of pods and definitions: what a pod asks for ([`selections`]),
//! what of that a plugin is told ([`runtime_config`]), and what the pod is told in the end ([`network_status`]).
//!
//! Both sides of it are hostile: a pod's annotations and a tenant's definition. Everything is bounded, nothing panics, and what
//! is wrong is refused with the place, the reason and the remedy. The specification has an invalid annotation ignored; here,
//! as with Multus, the pod fails, because no pod starts without a network that it asked for.

mod entry;
mod interface_names;
pub mod network_status;
pub mod runtime_config;
mod selection;
mod taken_path;

pub use interface_names::InterfaceNames;
pub use selection::{
    Bandwidth, DEFAULT_NETWORK, Entry, Ignored, LEGACY_NETWORKS, MAX_ANNOTATION, MAX_NETWORKS, NETWORKS,
    NetworkSelection, ObjectKind, PortMapping, RequestError, Requested, selections,
};
pub use taken_path::TakenPath;

#[cfg(test)]
mod tests;
