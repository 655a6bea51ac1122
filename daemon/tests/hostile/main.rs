//! Pods that do to their namespaces whatever CAP_NET_ADMIN allows, and tenants that write definitions, on the real kernel: nothing of
//! the host is touched, nothing is lost.
//! Each test has a node and pods of its own in network namespaces. Needs root and `ip`.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test fails by panicking")]

mod full_namespaces;
mod lent_devices;
mod lent_devices_matrix;
mod made_links;
mod programs_for_good;
#[path = "../node_rig/mod.rs"]
#[allow(dead_code, unused_imports, reason = "two suites share it, and none uses all of it")]
mod rig;
mod tenants_definitions;
