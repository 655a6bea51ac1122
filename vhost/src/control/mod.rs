//! How the daemon tells the data plane what to do: a unix socket, one message each way, descriptors beside it.
//!
//! - the messages: [`messages`]
//! - the switch's side: [`Server`], which has its commands carried out by [`PortCommands`], and tells what happens by [`EventQueues`]
//! - the daemon's side: [`Client`], [`EventStream`]
//! - the socket itself: [`listening_socket`]
//!
//! Invariants: only the listed users are heard; a message is at most 64 KiB; whatever descriptor comes is closed unless it is the one
//! that was asked for; nobody who does not read keeps others waiting.
//!
//! A message changes ports and nothing else: there is none that reads or writes a file, or runs anything.

mod answer_pages;
mod client;
mod client_error;
mod client_events;
mod connection;
mod data_plane_commands;
mod event_queues;
#[cfg(feature = "fuzzing")]
#[allow(clippy::unwrap_used, clippy::expect_used, reason = "a harness of the fuzzer fails by panicking")]
mod fuzzed;
pub mod listening_socket;
pub mod messages;
mod port_commands;
mod port_config_check;
mod port_socket;
mod requests;
mod seqpacket;
mod server;
mod uplink_check;

#[cfg(test)]
mod control_tests;

pub use client::Client;
pub use client_error::ClientError;
pub use client_events::EventStream;
pub use event_queues::EventQueues;
#[cfg(feature = "fuzzing")]
pub use fuzzed::fuzzed_requests;
pub use port_commands::PortCommands;
pub use server::{Server, ServerError};
