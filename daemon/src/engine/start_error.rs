//! Why the engine could not start.

use std::io;

use fairlead_host::NetError;

use crate::store::StoreError;

/// Why the engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A directory or file.
    #[error("{what}: {source}")]
    Io {
        /// What was opened.
        what: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The daemon's own namespace.
    #[error("the host's network namespace: {0}; the daemon needs CAP_NET_ADMIN and CAP_SYS_ADMIN")]
    Host(#[from] NetError),
}

/// Names what was opened when it failed.
pub(super) fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError::Io { what: what.into(), source }
}
