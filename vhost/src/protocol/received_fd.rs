//! The file descriptors that a guest sends, before anything is done with them.
//!
//! A guest can send a file of a file system that it serves itself (FUSE): most that is done with such a file waits for the guest. So what
//! is neither an eventfd nor memory is not used. Closing may take long whatever it is: a [`GuestFile`] sees to that.
//!
//! Invariant: what [`admit`] lets through can be asked, mapped and written to without waiting for another process to serve it.

use std::os::fd::AsFd;

use super::Refusal;
use crate::memory::{GuestFile, is_memory_file};
use crate::ring::is_eventfd;

/// Lets `fds` through if each is an eventfd or memory.
///
/// # Errors
/// [`Refusal::ForeignFile`].
pub(super) fn admit(fds: Vec<GuestFile>) -> Result<Vec<GuestFile>, Refusal> {
    let harmless = |fd: &GuestFile| is_eventfd(fd.as_fd()) || is_memory_file(fd.as_fd());
    if fds.iter().all(harmless) { Ok(fds) } else { Err(Refusal::ForeignFile) }
}
