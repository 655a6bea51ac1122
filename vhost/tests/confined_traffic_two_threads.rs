//! The program between two DPDK applications, once more, with two poll threads.

#[path = "confined_traffic.rs"]
mod confined_traffic;
