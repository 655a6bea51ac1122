//! Why a client's request has no good answer.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::messages::{PROTOCOL, Refusal};

/// A request failed. After each but [`ClientError::Refused`] the connection is closed, and the next request makes a new one.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody serves the socket, or it can't be reached.
    #[error("{}: can't connect: {source}; see that fairlead-vswitch runs with `--socket {}`", .path.display(), .path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// There was no answer in time. The request may have been carried out.
    #[error("{}: no answer to `{request}` within {limit:?}; ask again, and look at fairlead-vswitch's log", .path.display())]
    TimedOut {
        /// The socket.
        path: PathBuf,
        /// What was asked for.
        request: &'static str,
        /// How long it was waited for.
        limit: Duration,
    },
    /// The connection ended before the answer. The request may have been carried out.
    #[error("{}: fairlead-vswitch closed the connection before it answered `{request}`; it may have been restarted", .path.display())]
    Closed {
        /// The socket.
        path: PathBuf,
        /// What was asked for.
        request: &'static str,
    },
    /// The answer can't be read.
    #[error("{}: the answer to `{request}` is none of version {PROTOCOL}; run a fairlead-vswitch of this release", .path.display())]
    Malformed {
        /// The socket.
        path: PathBuf,
        /// What was asked for.
        request: &'static str,
        /// What is wrong; absent for an answer to something else, or one that is too long.
        #[source]
        source: Option<serde_json::Error>,
    },
    /// The request is longer than a message may be.
    #[error(
        "the request `{request}` has {bytes} bytes; a message has at most 65536: shorten names and lists"
    )]
    TooLong {
        /// What was asked for.
        request: &'static str,
        /// How long it is.
        bytes: usize,
    },
    /// There is no memory for a capture.
    #[error("there is no memory for a capture: {0}; free some, or raise this process' memory limit")]
    CaptureMemory(#[source] io::Error),
    /// fairlead-vswitch answered that it does not do it.
    #[error("fairlead-vswitch refuses `{request}`: {refusal}")]
    Refused {
        /// What was asked for.
        request: &'static str,
        /// Why.
        #[source]
        refusal: Refusal,
    },
}

impl ClientError {
    /// Whether nobody serves the socket: it was never made, or the process that made it has ended, and all of its ports with it. Any other
    /// failure to connect, as for want of a descriptor or of memory, says nothing of that process.
    pub fn is_unserved(&self) -> bool {
        let kind = match self {
            ClientError::Connect { source, .. } => source.kind(),
            _ => return false,
        };
        matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
    }
}
