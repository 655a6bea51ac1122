//! Two DPDK applications, once more, with two poll threads.

#[path = "testpmd.rs"]
mod testpmd;
