//! The one time limit of a call. Everything that can wait, waits no longer than this; nothing sleeps elsewhere.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};

/// When the caller stops waiting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    /// So long after `began`.
    pub(crate) fn after(began: Instant, limit: Duration) -> Deadline {
        Deadline(began + limit)
    }

    /// This deadline, or `limit` from now, whichever is sooner.
    pub(crate) fn at_most(self, limit: Duration) -> Deadline {
        Deadline(self.0.min(Instant::now() + limit))
    }

    /// What is left of it; zero once it has passed.
    pub(crate) fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// True once it has passed.
    pub(crate) fn passed(self) -> bool {
        self.remaining().is_zero()
    }

    /// Waits until `events` is ready on `fd`; false when the deadline came first.
    pub(crate) fn wait(self, fd: BorrowedFd<'_>, events: PollFlags) -> bool {
        let mut fds = [PollFd::new(fd, events)];
        loop {
            match ppoll(&mut fds, Some(self.remaining().into()), None) {
                Err(Errno::EINTR) => {}
                // An error here would be an invalid descriptor: the read or write that follows names it.
                Ok(0) => return false,
                Ok(_) | Err(_) => return true,
            }
        }
    }
}

/// A pause that grows, for what the kernel has no event for.
#[derive(Debug)]
pub(crate) struct Pause(Duration);

impl Pause {
    const LONGEST: Duration = Duration::from_millis(50);

    /// The first one is a millisecond.
    pub(crate) fn new() -> Pause {
        Pause(Duration::from_millis(1))
    }

    /// Sleeps; false when the deadline came first.
    pub(crate) fn sleep(&mut self, deadline: Deadline) -> bool {
        std::thread::sleep(self.0.min(deadline.remaining()));
        self.0 = (self.0 * 2).min(Pause::LONGEST);
        !deadline.passed()
    }
}
