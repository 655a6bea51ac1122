//! Telling a guest that something was used: a write to the eventfd that it sent.
//!
//! The guest holds the same eventfd. It may fill the counter and clear `O_NONBLOCK`, and the write would wait for ever, with all
//! neighbours. So each write is counted on its way in and out ([`Caller`]), and another thread that sees the same write twice sends a
//! signal, which ends the wait ([`Caller::interrupt_stuck_write`]).
//!
//! Invariant: what is written to is an eventfd, since it was checked ([`GuestEvent::new`]). A guest's eventfd is never read: a read can
//! wait as well, and epoll's edges tell all there is to know.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use nix::errno::Errno;

use super::RingFault;

/// An eventfd of a guest, for kicks or calls.
#[derive(Debug)]
pub(crate) struct GuestEvent(OwnedFd);

/// A file descriptor that is no eventfd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a file descriptor that is no eventfd")]
pub(crate) struct NoEventFd;

impl GuestEvent {
    /// Takes `fd` if it is an eventfd.
    ///
    /// # Errors
    /// [`NoEventFd`].
    pub(crate) fn new(fd: OwnedFd) -> Result<GuestEvent, NoEventFd> {
        if is_eventfd(fd.as_fd()) { Ok(GuestEvent(fd)) } else { Err(NoEventFd) }
    }

    /// An eventfd of a test's own. (Miri has descriptors of its own, of which /proc does not tell.)
    #[cfg(test)]
    pub(crate) fn of_own(event: &nix::sys::eventfd::EventFd) -> GuestEvent {
        GuestEvent(event.as_fd().try_clone_to_owned().unwrap())
    }
}

/// True if `fd` is an eventfd, by the name that the kernel gives it below /proc. Nothing is asked of the file itself: the lock of an
/// epoll, say, may be held by the guest for as long as it likes.
pub(crate) fn is_eventfd(fd: BorrowedFd<'_>) -> bool {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    nix::fcntl::readlink(link.as_str()).is_ok_and(|name| name == "anon_inode:[eventfd]")
}

impl AsFd for GuestEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Writes to call eventfds on one thread, and lets another thread see whether one hangs.
#[derive(Debug, Default)]
pub(crate) struct Caller {
    /// Odd while a write is under way.
    writes: AtomicU32,
    thread: AtomicI32,
}

impl Caller {
    /// Names the calling thread as the one that calls.
    pub(crate) fn on_this_thread(&self) {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: all zeroes is a valid `sigaction`: no flags (so no SA_RESTART), an empty mask.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = ignore as *const () as usize;
            // SAFETY: the pointer is valid, and a handler that does nothing is safe at any instruction.
            unsafe { libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut()) };
        });
        self.thread.store(nix::unistd::gettid().as_raw(), Ordering::SeqCst);
    }

    /// Calls the guest.
    ///
    /// # Errors
    /// [`RingFault::CallBlocks`] if the write had to be interrupted.
    pub(crate) fn call(&self, event: &GuestEvent) -> Result<(), RingFault> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        let written = nix::unistd::write(&event.0, &1_u64.to_ne_bytes());
        self.writes.fetch_add(1, Ordering::SeqCst);
        // EAGAIN is a full counter: the guest has not yet seen the calls before.
        if written == Err(Errno::EINTR) { Err(RingFault::CallBlocks) } else { Ok(()) }
    }

    /// Ends a write that was under way at the last look and still is. `last` is what the last look returned, 0 before the first.
    pub(crate) fn interrupt_stuck_write(&self, last: u32) -> u32 {
        let writes = self.writes.load(Ordering::SeqCst);
        let thread = self.thread.load(Ordering::SeqCst);
        if writes & 1 == 1 && writes == last && thread != 0 {
            let process = nix::unistd::getpid().as_raw();
            // SAFETY: a system call without pointers. A thread that is inside a write exists, and it handles SIGURG.
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGURG) };
        }
        writes
    }
}

extern "C" fn ignore(_: libc::c_int) {}
