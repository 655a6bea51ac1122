//! The one time limit of a call. Everything that can wait does so in here, or in the kernel with what is left as the limit of a socket
//! (`connection.rs`), and no longer than the limit.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};

use crate::bare_process::since_boot;

/// The time at which the caller stops waiting, as [`since_boot`] has it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Duration);

impl Deadline {
    /// The deadline of a call that began at `began` and has `limit`.
    pub(crate) fn after(began: Duration, limit: Duration) -> Deadline {
        Deadline(began.saturating_add(limit))
    }

    /// This deadline, or `limit` from now, whichever is sooner.
    pub(crate) fn at_most(self, limit: Duration) -> Deadline {
        Deadline(self.0.min(since_boot().saturating_add(limit)))
    }

    /// The time that is left; zero once the deadline has passed.
    pub(crate) fn remaining(self) -> Duration {
        self.0.saturating_sub(since_boot())
    }

    /// Whether the deadline has passed.
    pub(crate) fn passed(self) -> bool {
        self.remaining().is_zero()
    }

    /// Waits until `events` are ready on `fd`. Returns false when the deadline came first.
    pub(crate) fn wait(self, fd: BorrowedFd<'_>, events: PollFlags) -> bool {
        self.wait_for(fd, events).is_some()
    }

    /// The same, and returns what the kernel says of `fd`; `None` when the deadline came first.
    pub(crate) fn wait_for(self, fd: BorrowedFd<'_>, events: PollFlags) -> Option<PollFlags> {
        let mut fds = [PollFd::new(fd, events)];
        loop {
            match ppoll(&mut fds, Some(self.remaining().into()), None) {
                Err(Errno::EINTR) => {}
                // An error here would be an invalid descriptor: the read or write that follows names it.
                Ok(0) => return None,
                Ok(_) | Err(_) => return Some(fds[0].revents().unwrap_or(PollFlags::empty())),
            }
        }
    }
}

/// A pause that doubles, for what the kernel has no event for. This program does not
/// link the back-off of `fairlead-host`, for its size.
#[derive(Debug)]
pub(crate) struct Pause(Duration);

impl Pause {
    const LONGEST: Duration = Duration::from_millis(50);

    /// A pause that begins with one millisecond.
    pub(crate) fn new() -> Pause {
        Pause(Duration::from_millis(1))
    }

    /// Sleeps. Returns false when the deadline came first.
    pub(crate) fn sleep(&mut self, deadline: Deadline) -> bool {
        std::thread::sleep(self.0.min(deadline.remaining()));
        self.0 = (self.0 * 2).min(Pause::LONGEST);
        !deadline.passed()
    }
}
