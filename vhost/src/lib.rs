//! vhost-user: ports that DPDK pods and VMs connect to, and the data plane that forwards frames between them.
//!
//! - what a port is, and what is told of it: [`port`]
//! - which port a frame goes to: [`switch`] (pure)
//! - the guests' memory and rings, uplinks to kernel interfaces, and the threads that serve them: [`dataplane`]
//! - frames of a port, copied for an operator who looks on: [`capture`]
//! - how the daemon tells the data plane what to do: [`control`]
//! - what a process gives up that reads memory which pods write: [`confinement`]
//! - an error and its causes in one sentence: [`error_chain`]
//!
//! The program `fairlead-vswitch` is all of it in a process of its own: [`vswitch_process`].
//! The other switch, a running OVS-DPDK, is told of ports by [`ovs_dpdk`].
//! The crate knows nothing of CNI, of kubelet or of the daemon.

pub mod capture;
pub mod confinement;
pub mod control;
pub mod dataplane;
pub mod error_chain;
#[cfg(any(test, feature = "fake-switch"))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
pub mod fake_switch;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod interruption;
pub mod log_limit;
mod memory;
mod offload;
pub mod ovs_dpdk;
pub mod port;
mod protocol;
mod ring;
pub mod switch;
mod uplink;
pub mod vswitch_process;
mod wake_fence;

/// What threads meet by. `tests/wake_ups.rs` has loom's in its place.
mod sync {
    pub(crate) use std::sync::atomic::{AtomicBool, fence};
    pub(crate) use std::sync::mpsc;
}
