//! The file descriptors that a guest sends, before anything is done with them.
//!
//! A guest can send a file of a file system that it serves itself (FUSE): most that is done with such a file waits for the guest,
//! closing it included. So what is neither an eventfd nor memory is not used, and is closed on a thread of its own, which may wait as
//! long as the guest likes.
//!
//! Invariant: what [`admit`] lets through can be closed, asked and mapped without waiting for anybody.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Refusal;
use crate::memory::is_memory_file;
use crate::ring::is_eventfd;

/// The most threads that close files at once. Files beyond that stay open: as many as guests that serve them have opened.
const CLOSERS: usize = 64;

static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// Lets `fds` through if each is an eventfd or memory.
///
/// # Errors
/// [`Refusal::ForeignFile`]; all of them are closed, elsewhere.
pub(super) fn admit(fds: Vec<OwnedFd>) -> Result<Vec<OwnedFd>, Refusal> {
    let harmless = |fd: &OwnedFd| is_eventfd(fd.as_fd()) || is_memory_file(fd.as_fd());
    if fds.iter().all(harmless) {
        return Ok(fds);
    }
    close_elsewhere(fds);
    Err(Refusal::ForeignFile)
}

/// Closes `fds` on a thread that may wait for whoever has to do with them.
pub(super) fn close_elsewhere(fds: Vec<OwnedFd>) {
    if CLOSING.fetch_add(1, Ordering::SeqCst) >= CLOSERS {
        CLOSING.fetch_sub(1, Ordering::SeqCst);
        std::mem::forget(fds);
        return;
    }
    // If there is no thread, nothing may be closed here either.
    let fds = std::mem::ManuallyDrop::new(fds);
    let close = move || {
        drop(std::mem::ManuallyDrop::into_inner(fds));
        CLOSING.fetch_sub(1, Ordering::SeqCst);
    };
    if std::thread::Builder::new().name("vswitch-close".into()).spawn(close).is_err() {
        CLOSING.fetch_sub(1, Ordering::SeqCst);
    }
}
