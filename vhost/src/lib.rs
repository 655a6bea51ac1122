//! vhost-user: ports that DPDK pods and VMs connect to, and the data plane that forwards frames between them.
//!
//! - what a port is, and what is told of it: [`port`]
//! - which port a frame goes to: [`switch`] (pure)
//! - the guests' memory and rings, and the threads that serve them: [`dataplane`]
//! - how the daemon tells the data plane what to do: [`control`]
//! - the other switch, a running OVS-DPDK, and the ports in it: [`ovs_dpdk`]
//!
//! The program `fairlead-vswitch` is the last two in a process of its own, without any privilege: it reads memory that pods write.
//! The crate knows nothing of CNI, of kubelet or of the daemon.

pub mod control;
pub mod dataplane;
pub mod ovs_dpdk;
pub mod port;
pub mod switch;
