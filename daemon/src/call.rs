//! One call on its way through the daemon: what the server hands to the engine, and what comes back.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fairlead_cni::wire::Request;
use fairlead_cni::{CniError, CniVersion};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use fairlead_sriov::pools::Verb;

/// Whether the caller has hung up. The engine asks before it commits an ADD.
#[derive(Debug, Clone)]
pub enum CallerGone {
    /// The server sets this flag when the connection closes.
    Flag(Arc<AtomicBool>),
    /// The connection itself is polled: nobody else watches it while the thread that serves it carries the call
    /// out.
    Connection(Arc<OwnedFd>),
}

impl Default for CallerGone {
    fn default() -> CallerGone {
        CallerGone::Flag(Arc::default())
    }
}

impl CallerGone {
    /// Notes that the caller has hung up.
    pub fn set(&self) {
        if let CallerGone::Flag(gone) = self {
            gone.store(true, Ordering::Release);
        }
    }

    /// Whether the caller has hung up.
    pub fn get(&self) -> bool {
        match self {
            CallerGone::Flag(gone) => gone.load(Ordering::Acquire),
            CallerGone::Connection(connection) => has_hung_up(connection.as_fd()),
        }
    }
}

fn has_hung_up(connection: BorrowedFd<'_>) -> bool {
    let mut look = [PollFd::new(connection, PollFlags::empty())];
    let seen = poll(&mut look, PollTimeout::ZERO).is_ok_and(|n| n > 0);
    seen && look[0].any() == Some(true)
}

/// A call that was admitted.
#[derive(Debug)]
pub struct Call {
    /// What the executable sent.
    pub request: Request,
    /// The time at which its request had been read.
    pub arrived: Instant,
    /// The time at which the caller stops waiting.
    pub deadline: Instant,
    /// Whether the caller has hung up.
    pub gone: CallerGone,
}

impl Call {
    /// The time that the caller will still wait.
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

/// The answer of the engine: a body for success, or an error in the configuration's version.
#[derive(Debug)]
pub struct Reply {
    /// The configuration's version, in which errors are written; the newest where it could not be read.
    pub version: CniVersion,
    /// The result (empty for DEL, CHECK, GC, STATUS) or the error.
    pub outcome: Result<String, CniError>,
}

/// The group of threads that a call runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// For calls that only talk to the kernel: a fraction of a millisecond, or at worst the removal of one link.
    Fast,
    /// For calls that start other programs or wait for something: up to the call's deadline.
    Slow,
}

/// The engine as the server sees it. All of it blocks, so the server calls it on threads made for that.
pub trait Service: Send + Sync + 'static {
    /// Which lane a request belongs to; decided from the request alone, without side effects.
    fn lane(&self, request: &Request) -> Lane;

    /// Carries a call out. Never panics on input.
    fn serve(&self, call: &Call) -> Reply;

    /// Called after the `serve` of an ADD, when the answer has left. `delivered`: the caller was still there and
    /// got the answer. An ADD whose answer was not delivered is answered again when it is repeated.
    fn answered(&self, call: &Call, delivered: bool);

    /// A table for the operator: `attachments`, `networks`, `pools`, `orphans`; `None` for another name.
    fn table(&self, name: &str) -> Option<serde_json::Value>;

    /// Carries out the operator's order about a pool or one of its VFs, named by PCI address. Returns how they
    /// stand then.
    fn order_pools(&self, verb: Verb, of: &str) -> Result<serde_json::Value, CniError>;

    /// Carries out the operator's `gc`: the periodic collection, at once; with `orphans` also host-local
    /// allocations whose container is unknown here. Returns what was removed and what failed.
    fn collect(&self, orphans: bool) -> serde_json::Value;
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_caller_that_closes_its_connection_is_seen_to_be_gone() {
        let (here, caller) = UnixStream::pair().unwrap();
        let gone = CallerGone::Connection(Arc::new(here.into()));
        assert!(!gone.get());
        drop(caller);
        assert!(gone.get());
    }
}
