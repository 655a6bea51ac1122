//! The node daemon: a server on a unix socket, an engine that carries calls out, and what they stand on.

#![forbid(unsafe_code)]

pub mod admission;
pub mod boot_time;
pub mod call;
mod capabilities;
pub mod cli;
pub mod cluster_watch;
pub mod conf_dir;
pub mod conflist_runner;
pub mod daemon;
pub mod default_network;
pub mod delegate;
mod device_offers;
pub mod doctor;
pub mod engine;
mod few_names;
pub mod finding;
pub mod health;
mod logging;
mod memory_health;
pub mod metrics;
pub mod metrics_port;
mod netconf_summary;
mod network_checks;
mod node_installation;
pub mod node_paths;
pub mod operator_client;
mod own_executable;
pub mod plugin_installation;
pub mod policy;
pub mod policy_check;
pub mod port_pools;
pub mod run_dir;
pub mod server;
pub mod settings;
pub mod spool;
pub mod store;
mod systemd_reports;
pub mod validate;
