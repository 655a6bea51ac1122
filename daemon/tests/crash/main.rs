//! The daemon and its callers are killed on the real kernel, and what is left is counted: links, addresses, files,
//! rows of the store. Each test has a node and pods of its own in network namespaces. Needs root, `ip`, and the
//! executable `fairlead` beside the daemon (`cargo build -p fairlead`).

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test fails by panicking")]

mod damaged_journal;
mod executed_plugins;
mod full_run_dir;
mod held_ipam_lock;
mod kill_at_every_step;
mod killed_callers;
mod kills_in_a_burst;
mod recreated_namespaces;
mod restart_and_reboot;
mod rig;
mod status_while_hung;
