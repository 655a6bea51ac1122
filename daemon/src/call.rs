//! One call on its way through the daemon: what the server hands to the engine and what comes back.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fairlead_cni::wire::Request;
use fairlead_cni::{CniError, CniVersion};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::pools::Verb;

/// Says whether the caller has hung up. Read by the engine before it commits an ADD.
#[derive(Debug, Clone)]
pub enum CallerGone {
    /// The server says so.
    Told(Arc<AtomicBool>),
    /// The connection is looked at: nobody watches it while the call is at work on the thread that serves it.
    Seen(Arc<OwnedFd>),
}

impl Default for CallerGone {
    fn default() -> CallerGone {
        CallerGone::Told(Arc::default())
    }
}

impl CallerGone {
    /// The caller has hung up.
    pub fn set(&self) {
        if let CallerGone::Told(gone) = self {
            gone.store(true, Ordering::Release);
        }
    }

    /// True once it has.
    pub fn get(&self) -> bool {
        match self {
            CallerGone::Told(gone) => gone.load(Ordering::Acquire),
            CallerGone::Seen(connection) => has_hung_up(connection.as_fd()),
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
    /// When its request had been read.
    pub arrived: Instant,
    /// When the caller stops waiting.
    pub deadline: Instant,
    /// Whether the caller is still there.
    pub gone: CallerGone,
}

impl Call {
    /// How long the caller will still wait.
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

/// What is answered: a body for success, or an error in the configuration's version.
#[derive(Debug)]
pub struct Reply {
    /// The configuration's version, in which an error is told; the newest when it could not be read.
    pub version: CniVersion,
    /// The result (empty for DEL, CHECK, GC, STATUS) or the error.
    pub outcome: Result<String, CniError>,
}

/// Which threads a call runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Kernel calls only: a fraction of a millisecond, or at worst one link's removal.
    Fast,
    /// Starts other programs, or waits for something: as long as the call's deadline.
    Slow,
}

/// The engine as the server sees it. All of it is synchronous: the server calls it on threads made for that.
pub trait Service: Send + Sync + 'static {
    /// Which lane a request belongs to; decided from the request alone, without side effects.
    fn lane(&self, request: &Request) -> Lane;

    /// Carries a call out. Never panics on input.
    fn serve(&self, call: &Call) -> Reply;

    /// Called after the `serve` of an ADD, off the answer's path: `delivered` tells whether the reply could be handed to a caller
    /// that was still there. An ADD whose answer was not delivered is answered again when it is repeated.
    fn answered(&self, call: &Call, delivered: bool);

    /// A table for the operator: `attachments`, `networks`, `pools`, `orphans`; `None` for another name.
    fn table(&self, name: &str) -> Option<serde_json::Value>;

    /// The operator's order about a pool or one of its VFs, by name or PCI address. Answers how they stand then.
    fn order_pools(&self, verb: Verb, of: &str) -> Result<serde_json::Value, CniError>;

    /// The operator's `gc`: what the periodic collection does, at once; with `orphans` also host-local allocations
    /// whose container is unknown here. Answers what was removed and what failed.
    fn collect(&self, orphans: bool) -> serde_json::Value;
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_caller_that_closes_its_connection_is_seen_to_be_gone() {
        let (here, caller) = UnixStream::pair().unwrap();
        let gone = CallerGone::Seen(Arc::new(here.into()));
        assert!(!gone.get());
        drop(caller);
        assert!(gone.get());
    }
}
