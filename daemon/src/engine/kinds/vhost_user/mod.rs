//! A port of a switch in user space: a process of the pod, DPDK's as a rule, reaches it by a socket in a directory of the pod's. No
//! netdev of the pod is made; addresses are told, and set by nobody.
//!
//! The switch is our own (`switch_link.rs`), or a running OVS-DPDK (`ovs_link.rs`, `ovs_ports.rs`).
//!
//! The socket is in the directory of a port that kubelet has allocated (`crate::port_pools`), in a volume of the pod that kubelet has
//! made before the sandbox (`emptyDir`), in a directory that the administrator names, or where userspace-cni has it (`shared_dir.rs`).
//! Nothing in there is followed or trusted (`fairlead_host::socket_file`). The record has all that the port is
//! made of: a switch that was started again gets its ports from the records (`replay.rs`).

mod attach;
mod config;
mod configuration_data;
mod conflicts;
mod detach;
mod inspect;
mod ovs_link;
mod ovs_ports;
mod replay;
mod reserve;
mod services;
mod shared_dir;
mod socket_dir;
mod switch_link;
mod uplink;

pub(crate) use attach::{NewPort, apply, device_info, plan, write_device_info};
pub(crate) use config::{TYPES, VhostUser};
pub(crate) use configuration_data::{annotations, write_file};
pub(crate) use detach::undo;
pub(crate) use inspect::check;
pub(crate) use ovs_link::OvsAccess;
pub(crate) use reserve::reserve;
pub(crate) use services::{KnownPort, SocketPlaces, VhostUserServices};
pub(crate) use shared_dir::find as find_shared_dir;
