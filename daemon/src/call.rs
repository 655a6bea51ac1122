//! One call on its way through the daemon: what the server hands to the engine, and what comes back.

#[cfg(test)]
pub(crate) mod fake_service;

use std::any::Any;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fairlead_cni::config::NetConf;
use fairlead_cni::wire::{Command, Request};
use fairlead_cni::{CniError, CniResult, CniVersion, Code};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Deserialize;

use fairlead_sriov::pools::Verb;

use crate::store::Key;

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

/// When a call came, when it has to end, and whether anybody still waits for it.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The time at which its request had been read.
    pub arrived: Instant,
    /// The time at which the caller stops waiting.
    pub deadline: Instant,
    /// Whether the caller has hung up.
    pub gone: CallerGone,
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
    /// Parses a request, once: its lane, its reply and its delivery go by what was read here. No side effects, and
    /// no panic on input: what can't be parsed is an error in the reply.
    fn prepare(self: Arc<Self>, request: Request) -> Arc<dyn PreparedCall>;

    /// A table for the operator: `attachments`, `networks`, `definitions`, `pools`, `orphans`, `removals`, `newer`; `None` for
    /// another name.
    fn table(&self, name: &str) -> Option<serde_json::Value>;

    /// Everything about a pod (`namespace/name` or name) or a container: what is attached, and which calls failed.
    fn describe(&self, named: &str) -> serde_json::Value;

    /// What a container has of each network that was set up with this attachment, which is first; nothing where it is not on record.
    fn pod_networks(&self, first: &Key) -> Vec<PodNetwork>;

    /// Carries out the operator's order about a pool or one of its VFs, named by PCI address. Returns how they
    /// stand then.
    fn order_pools(&self, verb: Verb, of: &str) -> Result<serde_json::Value, CniError>;

    /// Carries out the operator's `gc`: the periodic collection, at once; with `orphans` also host-local
    /// allocations whose container is unknown here and that the operator has seen listed. Returns what was removed
    /// and what failed; an error while a record is not read that may know whose they are.
    fn collect(&self, orphans: Option<OrphansListed>) -> Result<serde_json::Value, CniError>;

    /// Does for pods that live through it what a change of the node from Multus or to Multus needs. `dir`: where Multus keeps what it
    /// attached, on the host. An error tells of each pod for which it could not be done.
    fn change_over(&self, change: ChangeOver, dir: &str) -> Result<(), CniError>;

    /// What may be left of an attachment that the operator wants to give up. With `carry_out` its record is removed.
    fn forget(&self, named: &NamedAttachment, carry_out: bool) -> Result<serde_json::Value, CniError>;
}

/// What a pod has of one network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodNetwork {
    /// The name of the network.
    pub network: String,
    /// The namespace of the definition; `None`: it is the administrator's.
    pub namespace: Option<Arc<str>>,
    /// The name of the interface in the pod.
    pub ifname: String,
    /// Whether this is the pod's default network.
    pub is_default: bool,
    /// What its ADD has answered.
    pub result: CniResult,
}

/// Which way a node changes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeOver {
    /// New pods are ours from now on.
    FromMultus,
    /// New pods are Multus' from now on.
    ToMultus,
    /// New pods have been Multus' for a while: none of ours is on its way any more.
    StaysWithMultus,
}

/// The operator has seen the addresses whose container is unknown, and wants them freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrphansListed {
    /// When they were listed, in seconds since the epoch: what has come since was not seen.
    pub at: u64,
}

/// An attachment as the operator names it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NamedAttachment {
    /// The id of the container.
    pub container: String,
    /// The name of its interface.
    pub ifname: String,
    /// The network's name; needed where the interface is on record of several.
    pub network: Option<String>,
}

/// A request that was parsed.
pub trait PreparedCall: Send + Sync {
    /// The request as the executable sent it.
    fn request(&self) -> &Request;

    /// The configuration as it was read for the call; `None` where it could not be.
    fn conf(&self) -> Option<&NetConf>;

    /// Which lane the call belongs to now; without side effects.
    fn lane(&self) -> Lane;

    /// Carries the call out. Never panics on input.
    fn serve(&self, waiting: Waiting) -> Reply;

    /// Counts where the call's time went; called after `serve`, when the answer has left.
    fn count_phases(&self);

    /// Called at once when the caller of an ADD has confirmed its answer. Nothing is put on record here, since it
    /// runs on the server's threads: [`PreparedCall::answered`] follows. From now on the same ADD is refused.
    fn delivered(&self);

    /// Called after the `serve` of an ADD, when the answer has left. `delivered`: the caller was still there and
    /// got the answer. An ADD whose answer was not delivered is answered again when it is repeated.
    fn answered(&self, delivered: bool);
}

impl fmt::Debug for dyn PreparedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PreparedCall").field(self.request()).finish()
    }
}

/// Does what `work` does for a request with this command; a panic becomes an error like any other failure.
///
/// # Errors
/// What `work` fails with, and code 999 for a panic.
pub(crate) fn catching_panics<T>(
    command: Command,
    work: impl FnOnce() -> Result<T, CniError>,
) -> Result<T, CniError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic_text(&*panic);
        let msg = format!("{} failed by a fault in fairleadd: {text}", command.name());
        Err(CniError::new(Code::Internal, msg).with("the daemon goes on; please report this with its log"))
    })
}

/// The text that a panic carries.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a text")
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
