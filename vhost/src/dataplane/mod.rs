//! The data plane: the guests' rings, and the two threads that serve them.
//!
//! - what its owner asks for: [`DataPlane`]
//! - the thread that speaks vhost-user with the guests, `vswitch-conn`: [`connections`]
//! - the thread that forwards frames, `vswitch-poll`: [`poll_thread`], [`forwarding`], [`polled_port`], [`sleep`]
//! - what one thread tells the other: [`command`], [`mailbox`]
//!
//! Invariants: rings and the switch belong to the poll thread alone; sockets and what was said on them to the connection thread alone.
//! Memory is mapped and unmapped on the connection thread, never on the poll thread. Every wait of one thread for the other has a
//! limit. Whatever a guest does, it loses its own connection at most.
//!
//! The data plane never opens a path: sockets are given to it.

mod command;
mod connection;
mod connections;
mod counters;
mod forwarding;
mod handle;
mod mailbox;
mod poll_thread;
mod polled_port;
mod port_check;
mod remote_rings;
mod sleep;

pub use handle::{DataPlane, Event, Options, Polling, PortError, Socket, StartError};
