//! The daemon and its callers are killed on the real kernel, and what is left is counted: links, addresses, files,
//! rows of the store. Each test has a node and pods of its own in network namespaces. Needs root, `ip`, and the
//! executable `fairlead` beside the daemon (`cargo build -p fairlead`).

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test fails by panicking")]

mod burst;
mod callers;
mod damaged;
mod full;
mod held;
mod namespaces;
mod plugins;
mod restart;
mod rig;
mod status;
mod steps;
