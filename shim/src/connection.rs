//! A connection to the daemon's unix socket. Every wait has a deadline.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::os::fd::AsRawFd;

use crate::deadline::Deadline;
use crate::errno_text::ErrnoText;

/// Why there is no connection.
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub(crate) enum ConnectError {
    /// Nobody listens: there is no socket, or one that a dead daemon left.
    #[error("no daemon listens there: {0}")]
    Down(ErrnoText),
    /// The daemon's queue of connections was full until the deadline: it lives and is busy.
    #[error("the daemon is too busy to take one more connection")]
    Busy,
    /// The socket is not for us, or is no socket.
    #[error("the socket can't be used: {0}")]
    Refused(ErrnoText),
}

/// A socket that is not connected yet.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

impl Socket {
    pub(crate) fn new() -> Result<Socket, ConnectError> {
        let made = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
        made.map(Socket).map_err(refused)
    }

    /// Connects. While the daemon's queue of connections is full, this waits in the kernel for a place in it.
    pub(crate) fn connect(self, path: &Path, deadline: Deadline) -> Result<Connection, ConnectError> {
        let Socket(fd) = self;
        let address = UnixAddr::new(path).map_err(refused)?;
        loop {
            // The send timeout limits `connect` too.
            setsockopt(&fd, sockopt::SendTimeout, &limit(deadline)).map_err(refused)?;
            return match connect(fd.as_raw_fd(), &address) {
                Ok(()) => Ok(Connection(fd)),
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => Err(ConnectError::Busy),
                Err(errno @ (Errno::ENOENT | Errno::ECONNREFUSED)) => Err(ConnectError::Down(errno.into())),
                Err(errno) => Err(refused(errno)),
            };
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What is left of the time, as a limit of a socket: none would be no limit.
fn limit(deadline: Deadline) -> TimeVal {
    TimeVal::microseconds(i64::try_from(deadline.remaining().as_micros()).unwrap_or(i64::MAX).max(1))
}

fn refused(errno: Errno) -> ConnectError {
    ConnectError::Refused(errno.into())
}

/// An open connection to the daemon.
#[derive(Debug)]
pub(crate) struct Connection(OwnedFd);

impl Connection {
    /// Connects a new socket.
    pub(crate) fn open(path: &Path, deadline: Deadline) -> Result<Connection, ConnectError> {
        Socket::new()?.connect(path, deadline)
    }

    /// Sends as many bytes as the socket takes. `Ok(0)` when the deadline came first.
    pub(crate) fn send(&self, bytes: &[u8], deadline: Deadline) -> Result<usize, Errno> {
        loop {
            // DONTWAIT: every wait is in `Deadline`, which limits it.
            match send(self.0.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT) {
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) if !deadline.wait(self.0.as_fd(), PollFlags::POLLOUT) => return Ok(0),
                Err(Errno::EAGAIN) => {}
                other => return other,
            }
        }
    }

    /// Receives what has come, after waiting for the first byte. `None` when the deadline came first.
    pub(crate) fn receive(&self, into: &mut [u8], deadline: Deadline) -> Option<Result<usize, Errno>> {
        loop {
            // A limit of the socket's own instead of `Deadline`'s wait: one call that sleeps, where a usual call spends its time.
            if let Err(errno) = setsockopt(&self.0, sockopt::ReceiveTimeout, &limit(deadline)) {
                return Some(Err(errno));
            }
            match recv(self.0.as_raw_fd(), into, MsgFlags::empty()) {
                Err(Errno::EAGAIN) if deadline.passed() => return None,
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                other => return Some(other),
            }
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
