//! CNI as data: configurations, results and errors of every version of the specification, and the request by
//! which the executable passes a call to the daemon.
//!
//! Nothing in here does I/O or waits; both programs link it, so it stays small.

#![forbid(unsafe_code)]

pub mod addr;
pub mod args;
pub mod config;
pub mod containerd_phrases;
pub mod error;
pub mod lax;
pub mod names;
pub mod result;
pub mod spool;
pub mod trace;
pub mod version;
pub mod wire;

pub use containerd_phrases::avoid_containerd_phrases;
pub use error::{CniError, Code};
pub use result::CniResult;
pub use version::CniVersion;
