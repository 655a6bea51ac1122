//! What a thread that sleeps in epoll is woken by: an eventfd that several threads write to.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// The descriptor is readable from a ring until it is hushed.
#[derive(Debug)]
pub(super) struct Bell(EventFd);

impl Bell {
    /// # Errors
    /// No eventfd is to be had.
    pub(super) fn new() -> Result<Bell, nix::Error> {
        EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).map(Bell)
    }

    /// Wakes whoever waits for it, or will.
    pub(super) fn ring(&self) {
        // A full counter wakes as well.
        let _ = self.0.write(1);
    }

    /// Takes back all rings there were.
    pub(super) fn hush(&self) {
        // There may have been none.
        let _ = self.0.read();
    }

    /// The same; true if there was one.
    #[cfg(test)]
    pub(super) fn was_rung(&self) -> bool {
        self.0.read().is_ok()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
