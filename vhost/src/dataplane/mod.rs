//! The data plane: the guests' rings, and the threads that serve them.
//!
//! - what its owner asks for: [`DataPlane`]; where its poll threads run: [`PollPlace`]
//! - the thread that speaks vhost-user with the guests, `vswitch-conn`: [`connections`], [`unread_replies`]
//! - the threads that forward frames, `vswitch-poll`: [`poll_thread`], [`forwarding`], [`delivery`], [`offloaded_frames`], [`polled_port`], [`sleep`]
//! - frames from one of those to another: [`thread_links`], [`thread_link`]
//! - the way to the wire, as the connection thread keeps it: [`uplinks`]
//! - what the connection thread and the others tell each other: [`command`], [`mailbox`], [`poll_link`]; how they wake each other: [`waker`], [`bell`]
//!
//! Invariants: a port's rings and a thread's switch belong to one poll thread alone; sockets and what was said on them to the connection
//! thread alone. Memory is mapped on the connection thread, and unmapped there; on a poll thread only with rings that it did not hand
//! back in time. Neither closes what a guest sent: each port has a [`FileCloser`](crate::memory::FileCloser) for that. Every wait of one
//! thread for another has a limit, and poll threads never wait for each other. Whatever a guest does, it loses its own connection at most.
//!
//! The data plane never opens a path: sockets are given to it.

mod bell;
mod command;
mod connection;
mod connections;
mod counters;
mod delivery;
mod forwarding;
#[cfg(feature = "fuzzing")]
#[allow(clippy::unwrap_used, clippy::expect_used, reason = "a harness of the fuzzer fails by panicking")]
mod fuzzed_guest;
mod handle;
mod mailbox;
mod offloaded_frames;
mod poll_link;
mod poll_places;
mod poll_thread;
mod polled_port;
mod port_check;
mod remote_rings;
mod sleep;
mod thread_link;
mod thread_links;
mod unread_replies;
mod uplinks;
mod waker;

pub use crate::memory::{MemoryBound, MemoryBoundError, MemoryLimits};
pub use crate::uplink::QueueError;
#[cfg(feature = "fuzzing")]
pub use fuzzed_guest::{fuzzed_messages, fuzzed_rings};
pub use handle::{DataPlane, Event, Options, Polling, PortError, Socket, StartError, UplinkError};
pub use poll_places::{PlacesError, PollPlace, poll_places};
