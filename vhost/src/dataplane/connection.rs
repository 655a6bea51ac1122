//! One port on the connection thread: its socket, and the connection that it has or has not.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use super::command::{ConnectionKey, PortKey};
use super::counters::PortCounts;
use super::handle::PortError;
use super::poll_link::PollThreads;
use super::remote_rings::RemoteRings;
use super::unread_replies::UnreadReplies;
use crate::capture::CaptureKey;
use crate::memory::{FileCloser, GuestFile, PortAccount};
use crate::port::{PortConfig, PortCounters, PortView};
use crate::protocol::{Channel, Offer, Refusal, Session};

/// How long a port whose guest broke the rules accepts nobody: a guest cannot harm its neighbours by doing it again and again.
const HOLD_OFF: Duration = Duration::from_secs(1);

/// How long a port whose memory was audited rests before it is again.
const AUDIT_REST: Duration = Duration::from_millis(200);

/// The most messages of one connection before the next one's turn.
const MESSAGES: usize = 32;

/// How many files of a guest may wait to be closed while it is heard: else it could have ever more of them open, by sharing memory anew.
/// The sockets of ended connections whose replies are unread are among them, and no guest is taken while they are so many.
const CLOSING: usize = 8;

/// A connection and what was said on it.
#[derive(Debug)]
struct Connection {
    key: ConnectionKey,
    channel: Channel,
    session: Session,
    /// The channel is in epoll: what the guest says is heard.
    is_heard: bool,
    /// [`Event::Connected`](super::Event::Connected) was told.
    announced: bool,
}

impl Connection {
    /// Does not hear the guest for now.
    fn pause(&mut self, epoll: &Epoll) {
        self.is_heard = epoll.delete(self.channel.as_fd()).is_err();
    }

    fn hear_again(&mut self, epoll: &Epoll, token: u64) -> Result<(), nix::Error> {
        if !self.is_heard {
            epoll.add(self.channel.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, token))?;
            self.is_heard = true;
        }
        Ok(())
    }
}

/// A port and its guest.
#[derive(Debug)]
pub(super) struct GuestPort {
    pub(super) key: PortKey,
    pub(super) config: PortConfig,
    pub(super) counters: PortCounts,
    /// The poll thread that serves it.
    pub(super) thread: usize,
    listener: Option<GuestFile>,
    /// The listener is in epoll: a guest that connects is heard of.
    is_awaited: bool,
    connection: Option<Connection>,
    /// The one that is to be made when what came over the last one is closed.
    next: Option<(ConnectionKey, GuestFile)>,
    /// Closes what came from its guests, their sockets and the listener. Nobody is taken before it has closed all.
    closer: FileCloser,
    /// Connections that have ended, and whose guests have left replies unread.
    pub(super) unread: UnreadReplies,
    /// Since when what its last guests left keeps the port from another, and whether that was told.
    kept: Option<(Instant, bool)>,
    /// The capture of its frames.
    pub(super) capture: Option<CaptureKey>,
    /// What its guests' memory costs; absent: that is not bounded.
    account: Option<Arc<PortAccount>>,
    /// When the last audit of it was done.
    audited: Option<Instant>,
    /// Nobody is accepted before this.
    held_until: Option<Instant>,
}

/// What became of a connection's messages.
#[derive(Debug)]
pub(super) enum Heard {
    /// Nothing that others need to know.
    Nothing,
    /// The guest has shared its memory, for the first time on this connection.
    Connected,
    /// The connection is to be ended.
    End(Refusal),
}

/// The token of a port's listener in epoll. (0 and 1 are the inboxes.)
pub(super) fn listener_token(port: PortKey) -> u64 {
    port.0 * 2
}

/// The token of a port's connection.
pub(super) fn connection_token(port: PortKey) -> u64 {
    port.0 * 2 + 1
}

impl GuestPort {
    pub(super) fn new(
        key: PortKey,
        config: PortConfig,
        (counters, thread): (PortCounts, usize),
        (listener, closer): (Option<GuestFile>, FileCloser),
        account: Option<Arc<PortAccount>>,
    ) -> GuestPort {
        let (is_awaited, connection, next, kept) = (false, None, None, None);
        let (capture, audited, held_until) = (None, None, None);
        let unread = UnreadReplies::new(closer.clone());
        GuestPort {
            key,
            config,
            counters,
            thread,
            listener,
            is_awaited,
            connection,
            next,
            closer,
            unread,
            kept,
            capture,
            account,
            audited,
            held_until,
        }
    }

    /// True if the guest connects by itself.
    pub(super) fn listens(&self) -> bool {
        self.listener.is_some()
    }

    /// True if a time has to be waited for, or its closer, or a guest that may still read or close.
    pub(super) fn is_held(&self) -> bool {
        self.held_until.is_some() || self.unread.to_close() > 0
    }

    /// True if no guest is taken for what the last ones have left.
    fn waits_for_last_guests(&self) -> bool {
        self.closer.is_at_work() || self.unread.count() >= CLOSING
    }

    /// True if there is a connection, whatever was said on it, or one that is about to be made.
    pub(super) fn has_connection(&self) -> bool {
        self.connection.is_some() || self.next.is_some()
    }

    /// True once, if what the last guests have left is there for so long that it has to be told: nobody is taken meanwhile.
    pub(super) fn is_kept_from_guests(&mut self, now: Instant) -> bool {
        if self.connection.is_some() || !self.waits_for_last_guests() {
            self.kept = None;
            return false;
        }
        let (since, was_told) = self.kept.get_or_insert((now, false));
        now.duration_since(*since) >= HOLD_OFF && !std::mem::replace(was_told, true)
    }

    /// The connection that there is.
    pub(super) fn connection_key(&self) -> Option<ConnectionKey> {
        self.connection.as_ref().map(|connection| connection.key)
    }

    /// Goes on where it had to wait for what its guests have left. Then waits for a guest, if this port listens, has none and is not held
    /// off.
    pub(super) fn listen(&mut self, epoll: &Epoll, now: Instant) -> Result<(), nix::Error> {
        self.unread.look();
        if self.waits_for_last_guests() {
            return Ok(());
        }
        if let Some(connection) = &mut self.connection {
            return connection.hear_again(epoll, connection_token(self.key));
        }
        if let Some((key, socket)) = self.next.take() {
            return self.connect(epoll, key, socket);
        }
        if self.is_awaited || self.held_until.is_some_and(|until| now < until) {
            return Ok(());
        }
        self.held_until = None;
        let Some(listener) = &self.listener else { return Ok(()) };
        epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, listener_token(self.key)))?;
        self.is_awaited = true;
        Ok(())
    }

    /// Waits for no guest any more. Closing the listener is not enough: it stays in epoll for as long as somebody else has it open.
    pub(super) fn stop_listening(&mut self, epoll: &Epoll) {
        if let Some(listener) = self.listener.take().filter(|_| self.is_awaited) {
            let _ = epoll.delete(&listener);
        }
        self.is_awaited = false;
    }

    /// Whether it can have another listener. A pod that has it get one again and again may have its closer at work for ever: then there
    /// would be ever more of them open.
    pub(super) fn can_listen_anew(&self) -> Result<(), PortError> {
        match self.listens() {
            false => Err(PortError::Connects(self.config.name.clone())),
            true if self.unread.to_close() > CLOSING => Err(PortError::Closes(self.config.name.clone())),
            true => Ok(()),
        }
    }

    /// Waits for guests at another listener from now on. What else there is of the port stays.
    pub(super) fn replace_listener(&mut self, epoll: &Epoll, listener: OwnedFd) -> Result<(), PortError> {
        let listener = GuestFile::new(listener, &self.closer);
        if !self.listens() {
            return Err(PortError::Connects(self.config.name.clone()));
        }
        self.stop_listening(epoll);
        self.listener = Some(listener);
        self.listen(epoll, Instant::now()).map_err(PortError::Socket)
    }

    /// Takes the guest that waits at the listener, if one does.
    pub(super) fn accept(&mut self, epoll: &Epoll, key: ConnectionKey) -> Result<(), nix::Error> {
        use nix::sys::socket::{SockFlag, accept4};
        let Some(listener) = self.listener.as_ref().filter(|_| self.connection.is_none()) else {
            return Ok(());
        };
        if self.waits_for_last_guests() {
            // A poll thread that was late has dropped rings of the last guest. The port listens again when their files are closed.
            epoll.delete(listener)?;
            self.is_awaited = false;
            return Ok(());
        }
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = match accept4(listener.as_fd().as_raw_fd(), flags) {
            Ok(fd) => fd,
            Err(nix::Error::EAGAIN | nix::Error::ECONNABORTED | nix::Error::EINTR) => return Ok(()),
            Err(error) => {
                // Else the guest that waits would be heard again at once, for as long as there is no descriptor.
                let _ = epoll.delete(listener);
                self.is_awaited = false;
                self.held_until = Some(Instant::now() + HOLD_OFF);
                return Err(error);
            }
        };
        // SAFETY: accept4 has just made it for us.
        let socket = GuestFile::new(unsafe { OwnedFd::from_raw_fd(fd) }, &self.closer);
        // One guest at a time: the next waits in the backlog.
        epoll.delete(listener)?;
        self.is_awaited = false;
        self.connect(epoll, key, socket)
    }

    /// Speaks with the guest behind `socket`, as soon as the last ones have left nothing that has to be waited for.
    pub(super) fn connect_next(
        &mut self,
        epoll: &Epoll,
        key: ConnectionKey,
        socket: OwnedFd,
    ) -> Result<(), nix::Error> {
        let socket = GuestFile::new(socket, &self.closer);
        if self.waits_for_last_guests() {
            self.next = Some((key, socket));
            return Ok(());
        }
        self.connect(epoll, key, socket)
    }

    /// Speaks with the guest behind `socket`.
    pub(super) fn connect(
        &mut self,
        epoll: &Epoll,
        key: ConnectionKey,
        socket: GuestFile,
    ) -> Result<(), nix::Error> {
        let channel = Channel::new(socket)?;
        epoll.add(channel.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, connection_token(self.key)))?;
        let offer = Offer { queues: self.config.queues, mtu: self.config.mtu };
        let session = Session::new(offer, self.account.clone());
        self.connection = Some(Connection { key, channel, session, is_heard: true, announced: false });
        Ok(())
    }

    /// Answers the messages that have come.
    pub(super) fn hear(&mut self, epoll: &Epoll, threads: &PollThreads) -> Heard {
        let (port, thread) = (self.key, self.thread);
        let Some(connection) = &mut self.connection else { return Heard::Nothing };
        let mut rings = RemoteRings { threads, thread, port, connection: connection.key };
        for _ in 0..MESSAGES {
            if self.unread.to_close() > CLOSING {
                connection.pause(epoll);
                break;
            }
            let message = match connection.channel.receive() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(refusal) => return Heard::End(refusal),
            };
            let number = message.header.message;
            let reply = connection.session.handle(message.header, &message.payload, message.fds, &mut rings);
            let sent = match reply {
                Ok(Some(reply)) => connection.channel.send(number, reply),
                Ok(None) => Ok(()),
                Err(refusal) => Err(refusal),
            };
            if let Err(refusal) = sent {
                return Heard::End(refusal);
            }
        }
        if !connection.announced && connection.session.has_memory() {
            connection.announced = true;
            return Heard::Connected;
        }
        Heard::Nothing
    }

    /// An MTU above the port's that the guest may have been told since the last call, without an acknowledgement that would refuse it.
    pub(super) fn take_long_mtu(&mut self) -> Option<u64> {
        self.connection.as_mut()?.session.take_long_mtu()
    }

    /// Ends the connection, if there is one or is to be one: stops its rings, unmaps its memory, and has closed what came from the guest;
    /// its socket only when it has read all replies. After a breach of the rules the port is held off.
    pub(super) fn disconnect(&mut self, epoll: &Epoll, threads: &PollThreads, breach: Option<Instant>) {
        let (port, thread) = (self.key, self.thread);
        self.next = None;
        let Some(mut connection) = self.connection.take() else { return };
        let mut rings = RemoteRings { threads, thread, port, connection: connection.key };
        if let Err(refusal) = connection.session.stop_all(&mut rings) {
            tracing::error!(port = self.config.name, error = %refusal, "the rings of a port may still run");
        }
        let _ = epoll.delete(connection.channel.as_fd());
        self.unread.end(connection.channel);
        self.held_until = breach.map(|now| now + HOLD_OFF);
    }

    /// True if what its guest's memory costs is worth an audit now.
    pub(super) fn is_to_be_audited(&self, now: Instant) -> bool {
        let rests = self.audited.is_some_and(|at| now.saturating_duration_since(at) < AUDIT_REST);
        let is_worth_it = || self.account.as_ref().is_some_and(|account| account.is_worth_an_audit());
        !rests && self.connection.is_some() && is_worth_it()
    }

    /// Goes on with that audit: one of the pages that the guest gave back since the switch brought them in.
    pub(super) fn audit_memory(&mut self, now: Instant) {
        if self.connection.as_ref().is_some_and(|connection| connection.session.audit_memory()) {
            self.audited = Some(now);
        }
    }

    /// The port as it is now.
    pub(super) fn view(&self, threads: &PollThreads) -> PortView {
        let session = self.connection.as_ref().map(|connection| &connection.session);
        PortView {
            config: self.config.clone(),
            has_connection: self.has_connection(),
            connected: session.is_some_and(Session::has_memory),
            features: session.map_or(0, Session::features),
            active_queues: session.map_or(0, Session::active_queues),
            counters: PortCounters {
                memory_bytes: self.account.as_ref().map_or(0, |account| account.taken_bytes()),
                ..self.counters.read()
            },
            thread: threads.view(self.thread),
        }
    }
}
