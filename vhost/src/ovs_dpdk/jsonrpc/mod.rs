//! JSON-RPC 1.0 over a stream, as OVSDB speaks it (RFC 7047, section 4): both ends may ask, and nothing tells a message's length.
//!
//! - where a message ends: [`framing`] (pure)
//! - what a message is: [`message`] (pure)
//! - calls with a time limit, `echo`, and what the server tells unasked: [`session`]
//!
//! It knows nothing of databases, of bridges or of ports.

pub(crate) mod framing;
pub(crate) mod message;
pub(crate) mod session;
