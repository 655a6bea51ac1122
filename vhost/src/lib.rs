//! vhost-user: ports that DPDK pods and VMs connect to, and the data plane that forwards frames between them.
//!
//! - what a port is, and what is told of it: [`port`]
//! - which port a frame goes to: [`switch`] (pure)
//! - the guests' memory and rings, and the threads that serve them: [`dataplane`]
//! - how the daemon tells the data plane what to do: [`control`]
//! - what a process gives up that reads memory which pods write: [`confinement`]
//!
//! The program `fairlead-vswitch` is the last three in a process of its own: [`vswitch_process`].
//! The crate knows nothing of CNI, of kubelet or of the daemon.

pub mod confinement;
pub mod control;
pub mod dataplane;
mod memory;
pub mod port;
mod protocol;
mod ring;
pub mod switch;
pub mod vswitch_process;
