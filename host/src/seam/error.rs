//! Why a request to the kernel failed, with the kernel's own words where it gives any.

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;

/// Why an operation on a namespace failed.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The kernel refused one operation; those before it in the batch were done, those after it were not.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The netlink socket itself failed.
    #[error("netlink socket: {0}")]
    Socket(#[source] io::Error),
    /// An answer of the kernel could not be read.
    #[error("the kernel's netlink answer cannot be read: {0}")]
    Answer(String),
    /// A PCI device or its driver did not do what it was to do.
    #[error("device {device}: {doing}: {source}")]
    Driver {
        /// Its PCI address.
        device: String,
        /// What was to be done, for a person.
        doing: String,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
    /// A sysctl could not be read or written.
    #[error("sysctl {key}: {source}")]
    Sysctl {
        /// Its name, as the caller wrote it.
        key: String,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
}

impl NetError {
    /// The errno behind it, where there is one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            NetError::Op(op) => Some(op.errno),
            NetError::Socket(e) | NetError::Sysctl { source: e, .. } | NetError::Driver { source: e, .. } => {
                e.raw_os_error().map(Errno::from_raw)
            }
            NetError::Answer(_) => None,
        }
    }

    /// Whether a device or its driver did not end within its time limit what it was to do.
    pub fn timed_out(&self) -> bool {
        matches!(self, NetError::Driver { source, .. } if source.kind() == io::ErrorKind::TimedOut)
    }
}

/// The kernel's refusal of one operation.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {}{}", errno.desc(), extack.as_deref().map(|e| format!(" ({e})")).unwrap_or_default())]
pub struct OpError {
    /// Position in the batch.
    pub at: usize,
    /// What was to be done, for a person (`create macvlan "net1"`).
    pub what: String,
    /// The kernel's answer.
    pub errno: Errno,
    /// The kernel's own words (`NLMSGERR_ATTR_MSG`).
    pub extack: Option<String>,
}

/// Why a namespace could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// There is nothing at the path. (Its words must not contain "not found": containerd takes that for success.)
    #[error("network namespace {path}: there is nothing at this path")]
    Missing {
        /// The path that was to be opened.
        path: PathBuf,
    },
    /// Something is there, but no network namespace.
    #[error("{path} is not a network namespace")]
    NotANetns {
        /// The path that was to be opened.
        path: PathBuf,
    },
    /// It is the daemon's own namespace.
    #[error("{path} is the network namespace of the host itself")]
    Host {
        /// The path that was to be opened.
        path: PathBuf,
    },
    /// It could not be opened or entered.
    #[error("network namespace {path}: {source}")]
    Io {
        /// The path that was to be opened.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
    /// It was entered, and the kernel refused to answer about it.
    #[error("network namespace {path}: {source}")]
    Net {
        /// The path that was to be opened.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        source: NetError,
    },
}
