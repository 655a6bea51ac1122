//! The node daemon: a server on a unix socket, an engine that carries calls out, and what they stand on.
//!
//! `server` (HTTP) → `engine` (add, del, check, gc, status) → `networks` (one file a type) → `ipam`.

#![forbid(unsafe_code)]

pub mod call;
pub mod admission;
pub mod health;
pub mod metrics;
pub mod server;
mod glance;
pub mod settings;
pub mod spool;
pub mod watch;
pub mod ipam;
pub mod delegate;
pub mod conflist;
mod rooted;
pub mod netconf;
pub mod lifecycle;
pub mod engine;
pub mod networks;
pub mod store;
pub mod daemon;
mod logging;
pub mod install;
pub mod cli;
pub mod doctor;
