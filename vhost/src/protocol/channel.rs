//! Messages and file descriptors over the socket, without ever waiting.
//!
//! Invariant: at most one header's or one payload's bytes are asked for at a time, so a message's file descriptors never count for
//! the next one. A frontend that sends half a message holds up nobody.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, sendmsg, setsockopt, sockopt};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, Shutdown, recvmsg, shutdown,
};

use super::message::{HEADER_BYTES, Header, MAX_PAYLOAD};
use super::received_fd::admit;
use super::{Refusal, Reply};
use crate::memory::{GuestFile, MAX_REGIONS};

/// The most file descriptors that come with a message (`SCM_MAX_FD`). With room for all of them none is left for the kernel to close,
/// which might wait for the guest.
const MAX_FDS: usize = 253;

mod ioctls {
    // SIOCOUTQ, whose number is that of TIOCOUTQ.
    nix::ioctl_read_bad!(unread_by_the_peer, libc::TIOCOUTQ, libc::c_int);
}

/// A message as it came.
#[derive(Debug)]
pub(crate) struct RawMessage {
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
    pub(crate) fds: Vec<GuestFile>,
}

/// The backend's end of a connection.
#[derive(Debug)]
pub(crate) struct Channel {
    /// What the guest sent over it and nobody has read is closed with it.
    socket: GuestFile,
    /// What has come of the next message: its header, and then its payload.
    bytes: Vec<u8>,
    fds: Vec<GuestFile>,
}

impl Channel {
    /// Speaks over `socket`, a connected stream socket. What comes over it is closed where it is. A few replies have room in it, of which a
    /// frontend waits for each.
    ///
    /// # Errors
    /// The socket cannot be made non-blocking, or its send buffer small.
    pub(crate) fn new(socket: GuestFile) -> Result<Channel, nix::Error> {
        use nix::fcntl::{FcntlArg, OFlag, fcntl};
        let flags = OFlag::from_bits_retain(fcntl(&socket, FcntlArg::F_GETFL)?);
        fcntl(&socket, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        // What the guest does not read is this process' memory. The kernel makes the least of it that it knows: some 5 KiB.
        setsockopt(&socket, sockopt::SndBuf, &0)?;
        Ok(Channel { socket, bytes: Vec::new(), fds: Vec::new() })
    }

    /// The next message, if it has come whole.
    ///
    /// # Errors
    /// [`Refusal::Closed`] at the end of the stream; [`Refusal`] for a header that cannot be.
    pub(crate) fn receive(&mut self) -> Result<Option<RawMessage>, Refusal> {
        loop {
            let header = match self.bytes.first_chunk::<HEADER_BYTES>() {
                Some(bytes) => Some(Header::parse(bytes)?),
                None => None,
            };
            let wanted = HEADER_BYTES + header.map_or(0, |header| header.payload);
            if let Some(header) = header.filter(|_| self.bytes.len() == wanted) {
                let payload = self.bytes.split_off(HEADER_BYTES);
                self.bytes.clear();
                return Ok(Some(RawMessage { header, payload, fds: std::mem::take(&mut self.fds) }));
            }
            if !self.receive_bytes(wanted - self.bytes.len())? {
                return Ok(None);
            }
        }
    }

    /// Receives up to `wanted` bytes; false if there are none now.
    fn receive_bytes(&mut self, wanted: usize) -> Result<bool, Refusal> {
        let mut space = [0_u8; MAX_PAYLOAD];
        let mut control = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut control);
        let part = space.get_mut(..wanted).unwrap_or_default();
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(&self.socket, &mut [IoSliceMut::new(part)], &mut control, flags) {
            Ok(received) => received,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(false),
            Err(errno) => return Err(Refusal::Socket(Errno::from_raw(errno.raw_os_error()))),
        };
        let truncated = received.flags.contains(ReturnFlags::CTRUNC);
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights.map(|fd| self.socket.received(fd)));
            }
        }
        self.fds.extend(admit(fds)?);
        if truncated || self.fds.len() > MAX_REGIONS {
            return Err(Refusal::Descriptors { message: 0, count: self.fds.len() });
        }
        let count = received.bytes;
        self.bytes.extend_from_slice(space.get(..count).unwrap_or_default());
        if count == 0 { Err(Refusal::Closed) } else { Ok(true) }
    }

    /// Ends the connection. The guest sees it at once, whenever the socket is closed.
    pub(crate) fn end(&self) {
        // A peer that is gone already needs no end.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// True if replies lie in the guest's socket, which is open: their memory is this process', also when this socket is closed.
    pub(crate) fn has_unread_replies(&self) -> bool {
        let mut bytes = 0;
        // SAFETY: the socket is open for as long as it is borrowed, and `bytes` is the int that the request writes.
        let answer = unsafe { ioctls::unread_by_the_peer(self.socket.as_fd().as_raw_fd(), &raw mut bytes) };
        answer.is_ok() && bytes > 0
    }

    /// Drops what has come and nobody will hear, up to the next file descriptors among it.
    pub(crate) fn discard_received(&mut self) {
        // At the end of the stream, or with files that are not admitted, there is as little to be done.
        let _ = self.receive_bytes(MAX_PAYLOAD);
        self.bytes.clear();
        self.fds.clear();
    }

    /// Sends a reply.
    ///
    /// # Errors
    /// [`Refusal::RepliesUnread`] if the socket is full, [`Refusal::Socket`] otherwise.
    pub(crate) fn send(&self, message: u32, reply: Reply) -> Result<(), Refusal> {
        let bytes = reply.bytes(message);
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        match sendmsg::<()>(self.socket.as_fd().as_raw_fd(), &[IoSlice::new(&bytes)], &[], flags, None) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            Ok(_) | Err(Errno::EAGAIN) => Err(Refusal::RepliesUnread),
            Err(errno) => Err(Refusal::Socket(errno)),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// The number of GET_FEATURES.
    const MESSAGE: u32 = 1;

    fn connection() -> (Channel, UnixStream) {
        let (ours, guest) = UnixStream::pair().unwrap();
        (Channel::new(OwnedFd::from(ours).into()).unwrap(), guest)
    }

    #[test]
    fn a_few_replies_have_room_and_no_more() {
        let (channel, _guest) = connection();
        let sent = (0..1_000).take_while(|_| channel.send(MESSAGE, Reply::Number(0)).is_ok()).count();
        assert!((4..=16).contains(&sent), "{sent}");
        let refused = channel.send(MESSAGE, Reply::Number(0));
        assert!(matches!(refused, Err(Refusal::RepliesUnread)), "{refused:?}");
    }

    #[test]
    fn replies_are_unread_until_the_guest_reads_them_or_closes_its_socket() {
        let (channel, mut guest) = connection();
        assert!(!channel.has_unread_replies());
        channel.send(MESSAGE, Reply::Number(0)).unwrap();
        channel.send(MESSAGE, Reply::Number(0)).unwrap();
        channel.end();
        guest.read_exact(&mut [0; 20]).unwrap();
        assert!(channel.has_unread_replies(), "one is left");
        guest.read_exact(&mut [0; 20]).unwrap();
        assert!(!channel.has_unread_replies());

        let (channel, guest) = connection();
        channel.send(MESSAGE, Reply::Number(0)).unwrap();
        assert!(channel.has_unread_replies());
        drop(guest);
        assert!(!channel.has_unread_replies());
    }
}
