//! A netlink socket of the kernel's news, read without blocking a thread. It never loses news silently.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, NetlinkAddr, recvmsg, setsockopt, sockopt};
use tokio::io::unix::AsyncFd;

/// Room for the news of some hundred links at once.
const RECEIVE_BUFFER: usize = 2 << 20;
const DATAGRAM: usize = 64 << 10;
/// Between two attempts to read from a socket that fails for a reason of its own.
const PAUSE: Duration = Duration::from_secs(1);

/// What a socket received.
#[derive(Clone, Copy)]
pub(super) enum Heard<'a> {
    /// A datagram of the kernel's.
    Datagram(&'a [u8]),
    /// News were lost: nobody read them in time, or they could not be read.
    Loss,
}

/// A socket that listens to news.
#[derive(Debug)]
pub(super) struct Listener {
    socket: AsyncFd<OwnedFd>,
    buffer: Vec<u8>,
}

impl Listener {
    /// Begins to read a socket. Needs a tokio runtime with I/O.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Listener> {
        // Forcing it takes CAP_NET_ADMIN; without it the system's limit holds.
        if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER)?;
        }
        // SAFETY: `OwnedFd` always answers the same open descriptor, and closes it only when it is dropped.
        let socket = unsafe { AsyncFd::register(socket) }?;
        Ok(Listener { socket, buffer: vec![0; DATAGRAM] })
    }

    /// The next news. Nothing is lost when this is dropped before it is ready.
    pub(super) async fn next(&mut self) -> Heard<'_> {
        loop {
            match self.receive().await {
                Ok(None) => {}
                // One that is longer than the buffer is lost.
                Ok(Some(length)) => return self.buffer.get(..length).map_or(Heard::Loss, Heard::Datagram),
                Err(error) => {
                    if error.raw_os_error().map(Errno::from_raw) != Some(Errno::ENOBUFS) {
                        tracing::warn!(%error, "news of the kernel cannot be read");
                        tokio::time::sleep(PAUSE).await;
                    }
                    return Heard::Loss;
                }
            }
        }
    }

    /// The length of a datagram; `None` where there was none, or one of somebody else's.
    async fn receive(&mut self) -> io::Result<Option<usize>> {
        let mut ready = self.socket.readable().await?;
        let mut space = [IoSliceMut::new(&mut self.buffer)];
        let read = ready.try_io(|socket| {
            let read = recvmsg::<NetlinkAddr>(socket.as_raw_fd(), &mut space, None, MsgFlags::MSG_TRUNC)?;
            Ok((read.bytes, read.address.is_some_and(|from| from.pid() == 0)))
        });
        match read {
            Err(_not_ready) => Ok(None),
            Ok(Ok((length, from_the_kernel))) => Ok(from_the_kernel.then_some(length)),
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Ok(Err(error)) => Err(error),
        }
    }
}
