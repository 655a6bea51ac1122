//! The fence between what is put where another looks, and the look at whether the other wants to be woken for it.
//!
//! The other says that it is to be woken, has a fence, and looks once more. With a fence on either side one of the two sees the other;
//! without one of them both may see the old value, and what was put there waits for the next wake-up. So it goes between two threads
//! (`dataplane/waker.rs`), and between a thread and a guest (virtio 1.2, 2.7.7.2 and 2.7.10).

use std::sync::atomic::Ordering;

use crate::sync::fence;

/// Whoever has it has had the fence. One does for all that are to be woken for what was written before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fenced(());

impl Fenced {
    /// To be called when everything is there that others may be woken for.
    #[inline]
    pub(crate) fn now() -> Fenced {
        fence(Ordering::SeqCst);
        Fenced(())
    }
}
