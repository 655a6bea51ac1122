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

/// An open connection to the daemon.
#[derive(Debug)]
pub(crate) struct Connection(OwnedFd);

impl Connection {
    /// Connects if that is possible without waiting.
    pub(crate) fn try_connect(path: &Path) -> Option<Connection> {
        // With a full queue this fails at once; `open` then waits for a place, within the deadline.
        let fd = stream(SockFlag::SOCK_NONBLOCK).ok()?;
        connect(fd.as_raw_fd(), &UnixAddr::new(path).ok()?).ok()?;
        Some(Connection(fd))
    }

    /// Connects. While the daemon's queue of connections is full, this waits in the kernel for a place in it.
    pub(crate) fn open(path: &Path, deadline: Deadline) -> Result<Connection, ConnectError> {
        let refused = |errno: Errno| ConnectError::Refused(errno.into());
        let address = UnixAddr::new(path).map_err(refused)?;
        let fd = stream(SockFlag::empty()).map_err(refused)?;
        loop {
            // The send timeout limits `connect` too. Zero would mean no limit.
            let micros = i64::try_from(deadline.remaining().as_micros()).unwrap_or(i64::MAX).max(1);
            setsockopt(&fd, sockopt::SendTimeout, &TimeVal::microseconds(micros)).map_err(refused)?;
            return match connect(fd.as_raw_fd(), &address) {
                Ok(()) => Ok(Connection(fd)),
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => Err(ConnectError::Busy),
                Err(errno @ (Errno::ENOENT | Errno::ECONNREFUSED)) => Err(ConnectError::Down(errno.into())),
                Err(errno) => Err(refused(errno)),
            };
        }
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
            if !deadline.wait(self.0.as_fd(), PollFlags::POLLIN) {
                return None;
            }
            match recv(self.0.as_raw_fd(), into, MsgFlags::MSG_DONTWAIT) {
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

fn stream(flags: SockFlag) -> Result<OwnedFd, Errno> {
    socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC | flags, None)
}
