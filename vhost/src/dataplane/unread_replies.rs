//! Connections of one port that have ended, and whose guests have left replies unread.
//!
//! What lies in a unix socket unread is charged to the memory of the process that sent it, until the peer reads it or closes its end. That
//! the sender closes its own end frees nothing. So a guest that ends its connection, keeps its descriptor and connects anew, again and
//! again, could fill the memory limit of this process. The socket tells how much is unread, for as long as it is open.
//!
//! Invariants: such a socket is kept until all is read, and whoever takes a guest for the port asks [`UnreadReplies::count`] first. What
//! came over it and nobody has heard is taken out: a guest may have sent its own end, which nobody else would ever close.

use crate::memory::FileCloser;
use crate::protocol::Channel;

/// The ended connections.
#[derive(Debug)]
pub(super) struct UnreadReplies {
    channels: Vec<Channel>,
    /// Closes their sockets, and what the port's guests have sent.
    closer: FileCloser,
}

impl UnreadReplies {
    /// None, of a port whose files `closer` closes.
    pub(super) fn new(closer: FileCloser) -> UnreadReplies {
        UnreadReplies { channels: Vec::new(), closer }
    }

    /// How many connections they are of.
    pub(super) fn count(&self) -> usize {
        self.channels.len()
    }

    /// How many files of the port's guests are still to be closed: these sockets, and what its closer has.
    pub(super) fn to_close(&self) -> usize {
        self.count() + self.closer.open()
    }

    /// Ends a connection, and closes its socket unless its guest has left replies unread.
    pub(super) fn end(&mut self, channel: Channel) {
        channel.end();
        self.channels.push(channel);
        self.look();
    }

    /// Closes the sockets whose replies are read or gone.
    pub(super) fn look(&mut self) {
        self.channels.retain(Channel::has_unread_replies);
        for channel in &mut self.channels {
            // With one message a guest may have sent 253 files: no more are taken out before those are closed.
            if self.closer.is_at_work() {
                break;
            }
            channel.discard_received();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read};
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

    use super::*;
    use crate::memory::GuestFile;
    use crate::protocol::Reply;

    const LIMIT: Duration = Duration::from_secs(60);

    fn none() -> UnreadReplies {
        UnreadReplies::new(FileCloser::new(|| {}))
    }

    /// A connection whose guest has not read a reply.
    fn connection(unread: &UnreadReplies) -> (Channel, UnixStream) {
        let (ours, guest) = UnixStream::pair().unwrap();
        let channel = Channel::new(GuestFile::new(OwnedFd::from(ours), &unread.closer)).unwrap();
        channel.send(1, Reply::Number(0)).unwrap();
        (channel, guest)
    }

    fn wait_until_all_is_closed(unread: &mut UnreadReplies) {
        let started = Instant::now();
        while unread.to_close() > 0 {
            assert!(started.elapsed() < LIMIT, "{unread:?}");
            std::thread::yield_now();
            unread.look();
        }
    }

    #[test]
    fn a_connection_whose_replies_are_read_or_whose_guest_is_gone_is_closed_at_once() {
        let mut unread = none();
        let (channel, mut guest) = connection(&unread);
        guest.read_exact(&mut [0; 20]).unwrap();
        unread.end(channel);
        assert_eq!(unread.count(), 0);
        let (channel, guest) = connection(&unread);
        drop(guest);
        unread.end(channel);
        assert_eq!(unread.count(), 0);
        wait_until_all_is_closed(&mut unread);
    }

    #[test]
    fn a_guest_that_reads_no_reply_sees_the_end_and_its_socket_is_kept_until_it_reads_or_closes() {
        let mut unread = none();
        let guests = [(); 3].map(|()| {
            let (channel, guest) = connection(&unread);
            unread.end(channel);
            guest
        });
        unread.look();
        assert_eq!(unread.count(), 3);
        let [mut reads, closes, keeps] = guests;
        let mut all = Vec::new();
        reads.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 20, "one reply, and the end");
        drop(closes);
        unread.look();
        assert_eq!(unread.count(), 1);
        drop(keeps);
        wait_until_all_is_closed(&mut unread);
    }

    /// Nobody but the socket that is kept for it would have it open, for ever.
    #[test]
    fn a_guest_that_sends_its_own_socket_and_closes_it_is_not_waited_for() {
        let mut unread = none();
        let (channel, guest) = connection(&unread);
        let own = [guest.as_raw_fd()];
        for _ in 0..3 {
            let rights = [ControlMessage::ScmRights(&own)];
            let flags = MsgFlags::empty();
            sendmsg::<()>(guest.as_raw_fd(), &[IoSlice::new(b"x")], &rights, flags, None).unwrap();
        }
        drop(guest);
        unread.end(channel);
        wait_until_all_is_closed(&mut unread);
    }
}
