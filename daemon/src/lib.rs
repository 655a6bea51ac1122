//! The node daemon: a server on a unix socket, an engine that carries calls out, and what they stand on.
//!
//! `server` (HTTP) → `engine` (add, del, check, gc, status) → `networks` (one file a type) → the crate
//! `fairlead-ipam`.

#![forbid(unsafe_code)]

pub mod admission;
pub mod call;
mod capabilities;
pub mod cli;
pub mod conflist;
pub mod daemon;
pub mod delegate;
mod device_offers;
pub mod doctor;
pub mod engine;
mod glance;
pub mod health;
pub mod install;
pub mod lifecycle;
mod logging;
mod memory_probe;
pub mod metrics;
pub mod netconf;
pub mod networks;
pub mod server;
pub mod settings;
pub mod spool;
mod sriov_cni;
pub mod store;

pub use fairlead_sriov::{hotplug, pools};
