//! A hostile guest between two that keep to the rules, driven by the bytes of the fuzzer, on one thread.
//!
//! - from bytes to choices: [`Choices`]
//! - memory with canaries around what is shared: [`SharedFile`]
//! - a guest that keeps to the rules, and notices whatever is written where nothing may be: [`Neighbour`]
//! - the ports, and what must hold after each round: [`Node`]
//! - what a guest does to its rings: [`actions`], and to its connection: [`messages`]
//!
//! What must hold, whatever the bytes are: nothing outside the memory that the guest shared is read or written (guard pages and canaries
//! around it); a round reads guest memory a bounded number of times; nothing panics; the neighbours' connections go on, and so do their frames.

mod actions;
mod choices;
mod messages;
mod neighbour;
mod node;
mod shared_file;

use choices::Choices;
use neighbour::Neighbour;
use node::{LocalRings, Node};
use shared_file::SharedFile;

pub use actions::fuzzed_rings;
pub use messages::fuzzed_messages;
