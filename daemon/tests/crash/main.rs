//! The daemon and its callers are killed on the real kernel, and what is left is counted: links, addresses, files,
//! rows of the store. Each test has a node and pods of its own in network namespaces. Needs root, `ip`, and the
//! executable `fairlead` beside the daemon (`cargo build -p fairlead`).

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test fails by panicking")]

mod damaged_journal;
mod executed_ipam;
mod executed_plugins;
mod full_run_dir;
mod held_ipam_lock;
mod held_up_start;
mod kill_at_every_step;
mod killed_callers;
mod kills_in_a_burst;
mod lent_devices;
mod log_lines_of_pods;
mod newer_version;
mod pods_that_race;
mod recreated_namespaces;
mod remote_cni;
mod removals_that_fail;
mod repeated_adds;
mod restart_and_reboot;
#[path = "../node_rig/mod.rs"]
#[allow(dead_code, reason = "two suites share it, and none uses all of it")]
mod rig;
mod silent_file_system;
mod status_while_hung;
mod vhost_user_ports;
