//! A port of a switch in user space: a process of the pod, DPDK's as a rule, reaches it by a socket in a directory of the pod's. No
//! netdev of the pod is made; addresses are told, and set by nobody.
//!
//! The socket is in a volume of the pod that kubelet has made before the sandbox (`emptyDir`), or in a directory that the
//! administrator names. Nothing in there is followed or trusted (`fairlead_host::socket_file`). The record has all that the port is
//! made of: a switch that was started again gets its ports from the records (`replay.rs`).

mod attach;
mod config;
mod detach;
mod inspect;
mod replay;
mod services;
mod socket_dir;
mod switch_link;

pub(crate) use attach::{NewPort, apply, device_info, plan};
pub(crate) use config::{TYPES, VhostUser};
pub(crate) use detach::undo;
pub(crate) use inspect::check;
pub(crate) use services::VhostUserServices;
