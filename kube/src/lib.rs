//! The cluster as one node sees it: its pods, the networks that they ask for, the definitions of those networks; and what is
//! written back, network-status and Events.
//!
//! It hands out plain values and takes plain values. It knows no engine, no link and no journal: whoever attaches a pod asks a
//! [`Cluster`], whose answers come from memory. Nothing here is asked of the API server while a pod waits.

#![forbid(unsafe_code)]

mod cluster;
#[cfg(any(test, feature = "fake-cluster"))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
pub mod fake_cluster;
pub mod legacy;
pub mod multus;
pub mod npwg;
mod pod;
mod watched;

pub use cluster::{Cluster, ClusterError, Definition, KnownDefinition, LegacyNetwork, ONE_BEFORE, Wait};
pub use pod::{Pod, PodRef, SharedDirVolume, says_of_networks};
pub use watched::{
    Access, ApiServer, Health, Requests, Right, Settings, StartError, TokenReviewer, Verdict, WatchHealth,
    Watched, examine_access, is_node_name,
};
