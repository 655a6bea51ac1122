//! The way to the wire: the frames of a kernel interface by AF_XDP sockets that somebody with privileges has opened.
//!
//! - one queue of an interface, its frames as the switch forwards them: [`Queue`]
//! - the rings that are shared with the kernel: [`xsk_ring`]
//!
//! The rings are our own, and no crate's: `xsk-rs` binds to the C library libxdp, and it and the crate `xdp` open the sockets that they
//! serve, while these come from the daemon by descriptor to a process that may open none. What is left is two indices and their order.
//!
//! Invariants: a chunk of memory is either the kernel's or ours, never both: the first half of them is for frames that come, the other
//! for frames that go. Whatever a descriptor says, nothing outside the queue's memory is touched.

mod queue;
mod xsk_ring;

pub use queue::QueueError;
pub(crate) use queue::{Queue, state};

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::ring::Frame;
use crate::switch::TagChange;

/// The queues of an uplink, as the poll thread serves them.
#[derive(Debug)]
pub(crate) struct Queues(pub(crate) Vec<Queue>);

impl Queues {
    /// Maps the rings and the memory of all queues, whose sockets are not bound yet.
    ///
    /// # Errors
    /// [`QueueError`]; nothing stays mapped then.
    pub(crate) fn map(queues: Vec<fairlead_host::UplinkQueue>) -> Result<Queues, QueueError> {
        queues.into_iter().map(Queue::map).collect::<Result<Vec<_>, _>>().map(Queues)
    }

    /// The sockets.
    pub(crate) fn sockets(&self) -> Vec<Arc<OwnedFd>> {
        self.0.iter().map(|queue| Arc::clone(queue.socket())).collect()
    }

    /// Puts a frame that came from queue pair `pair` of a port into a queue, and answers its number; a flow stays in one queue, so its
    /// order is kept. Absent: there is no room, or the kernel does not send.
    #[inline]
    pub(crate) fn put(&mut self, pair: usize, frame: &Frame<'_, '_>, change: TagChange) -> Option<usize> {
        let at = pair.checked_rem(self.0.len())?;
        self.0.get_mut(at)?.put(frame, change).then_some(at)
    }

    /// True if something has come, or is still to be sent.
    pub(crate) fn has_work(&self) -> bool {
        self.0.iter().any(Queue::has_work)
    }
}
