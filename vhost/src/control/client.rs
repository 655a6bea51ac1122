//! The daemon's side of the control socket: one request at a time, each with a limit of time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fairlead_host::Uplink;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::client_error::ClientError;
use super::client_events::EventStream;
use super::listening_socket::SocketAddress;
use super::messages::{
    Answer, AnswerMessage, MESSAGE_BYTES, ProgramVersion, Request, RequestMessage, SocketSide,
};
use super::seqpacket::{Received, receive, send};
use crate::capture::{CaptureOptions, CaptureReader};
use crate::port::{MacEntry, PortConfig, PortView, UplinkConfig, UplinkView};

/// Between two attempts to connect to a socket whose queue is full.
const PAUSE: Duration = Duration::from_millis(1);

/// A connection to the control socket of `fairlead-vswitch`, made when it is needed and again when it is lost.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    limit: Duration,
    connection: Option<OwnedFd>,
}

impl Client {
    /// A client of the socket at `path`. No request takes longer than `limit`. Nothing is connected yet.
    pub fn new(path: impl Into<PathBuf>, limit: Duration) -> Client {
        Client { path: path.into(), limit, connection: None }
    }

    /// Adds a port; a guest can connect to `socket` when this returns. A thread of the NUMA node is to serve it. A switch from before
    /// there were nodes refuses a port of one by its version.
    ///
    /// # Errors
    /// See [`ClientError`]; a name that is taken is refused.
    pub fn add_port(
        &mut self,
        config: PortConfig,
        side: SocketSide,
        socket: BorrowedFd<'_>,
        numa_node: Option<u32>,
    ) -> Result<(), ClientError> {
        self.done(Request::AddPort { config, socket: side, numa_node }, &[socket])
    }

    /// Removes a port; nothing of its guest's memory is mapped when this returns.
    ///
    /// # Errors
    /// See [`ClientError`]; a port that is not there is refused.
    pub fn remove_port(&mut self, name: &str) -> Result<(), ClientError> {
        self.done(Request::RemovePort { name: name.to_owned() }, &[])
    }

    /// Gives a port whose guest listens a new connection.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn reconnect(&mut self, name: &str, socket: BorrowedFd<'_>) -> Result<(), ClientError> {
        self.done(Request::Reconnect { name: name.to_owned() }, &[socket])
    }

    /// Whether a port that listens can be given a new socket, which is to be made then. A switch from before this could be done refuses it
    /// by its version.
    ///
    /// # Errors
    /// See [`ClientError`]; a port that is not there, or that still closes what its last guest sent, is refused.
    pub fn can_listen_anew(&mut self, name: &str) -> Result<(), ClientError> {
        self.done(Request::CanListenAnew { name: name.to_owned() }, &[])
    }

    /// Gives a port that listens a new socket to listen at, and leaves all else of it as it is.
    ///
    /// # Errors
    /// See [`ClientError`]; a port that is not there is refused.
    pub fn new_listener(&mut self, name: &str, socket: BorrowedFd<'_>) -> Result<(), ClientError> {
        self.done(Request::NewListener { name: name.to_owned() }, &[socket])
    }

    /// Removes all ports but these, and answers the names of those that were removed.
    ///
    /// # Errors
    /// See [`ClientError`]. Where a port can't be removed, those before it are removed all the same.
    pub fn keep_only(&mut self, names: &[String]) -> Result<Vec<String>, ClientError> {
        // Names of 64 characters, each of them escaped, are 400 bytes.
        let mut chunks = names.chunks(MESSAGE_BYTES / 512).peekable();
        let mut names = chunks.next().unwrap_or_default();
        while let Some(next) = chunks.peek().copied() {
            self.done(Request::KeepOnly { names: names.to_vec(), more: true }, &[])?;
            names = next;
            chunks.next();
        }
        let request = Request::KeepOnly { names: names.to_vec(), more: false };
        self.list(request, |answer| match answer {
            Answer::Removed { names, more } => Some((names, more)),
            _ => None,
        })
    }

    /// Has the switch serve an uplink, whose sockets are not bound yet; they can be when this returns. A thread of the NUMA node is to
    /// serve it.
    ///
    /// # Errors
    /// See [`ClientError`]; a network that has another is refused.
    pub fn add_uplink(
        &mut self,
        config: UplinkConfig,
        uplink: &Uplink,
        numa_node: Option<u32>,
    ) -> Result<(), ClientError> {
        self.done(Request::AddUplink { config, numa_node }, &uplink.descriptors())
    }

    /// Removes a network's uplink; the interface is the kernel's own when this returns.
    ///
    /// # Errors
    /// See [`ClientError`]; a network without one is refused.
    pub fn remove_uplink(&mut self, network: &str) -> Result<(), ClientError> {
        self.done(Request::RemoveUplink { network: network.to_owned() }, &[])
    }

    /// Every uplink as it is now.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn uplinks(&mut self) -> Result<Vec<UplinkView>, ClientError> {
        self.list(Request::Uplinks, |answer| match answer {
            Answer::Uplinks { uplinks, more } => Some((uplinks, more)),
            _ => None,
        })
    }

    /// Every port as it is now.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn ports(&mut self) -> Result<Vec<PortView>, ClientError> {
        self.list(Request::Ports, |answer| match answer {
            Answer::Ports { ports, more } => Some((ports, more)),
            _ => None,
        })
    }

    /// Every address that is known.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn mac_table(&mut self) -> Result<Vec<MacEntry>, ClientError> {
        self.list(Request::MacTable, |answer| match answer {
            Answer::MacTable { entries, more } => Some((entries, more)),
            _ => None,
        })
    }

    /// Which program serves the socket. Another process id than last time: it has lost its ports.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn version(&mut self) -> Result<ProgramVersion, ClientError> {
        self.exchange(Request::Version, &[], |answer| match answer {
            Answer::Version(version) => Some((version, false)),
            _ => None,
        })
    }

    /// What happens to ports from now on, over this connection.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn events(mut self) -> Result<EventStream, ClientError> {
        self.done(Request::Events, &[])?;
        match self.connection.take() {
            Some(connection) => Ok(EventStream::new(self.path, connection)),
            None => Err(ClientError::Closed { path: self.path, request: "events" }),
        }
    }

    /// Frames of a port from now on, over this connection.
    ///
    /// # Errors
    /// See [`ClientError`]; a port that is not there, or that is captured already, is refused.
    pub fn capture(mut self, name: &str, options: CaptureOptions) -> Result<CaptureReader, ClientError> {
        let memory = CaptureReader::memory().map_err(ClientError::CaptureMemory)?;
        self.done(Request::Capture { name: name.to_owned(), options }, &[memory.as_fd()])?;
        match self.connection.take() {
            Some(connection) => {
                CaptureReader::new(memory.as_fd(), connection).map_err(ClientError::CaptureMemory)
            }
            None => Err(ClientError::Closed { path: self.path, request: "capture" }),
        }
    }

    fn done(&mut self, request: Request, descriptors: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        self.exchange(request, descriptors, |answer| matches!(answer, Answer::Done).then_some(((), false)))
    }

    /// Asks for a list, and puts its pages together.
    fn list<T>(
        &mut self,
        request: Request,
        page: impl Fn(Answer) -> Option<(Vec<T>, bool)>,
    ) -> Result<Vec<T>, ClientError> {
        let mut all = Vec::new();
        self.exchange(request, &[], |answer| {
            let (items, more) = page(answer)?;
            all.extend(items);
            Some(((), more))
        })?;
        Ok(all)
    }

    /// One request and its answers. `expected` takes an answer, and says whether another follows; `None`: it is of a wrong kind.
    fn exchange<T>(
        &mut self,
        request: Request,
        descriptors: &[BorrowedFd<'_>],
        mut expected: impl FnMut(Answer) -> Option<(T, bool)>,
    ) -> Result<T, ClientError> {
        let mut call = Call {
            path: &self.path,
            request: name_of(&request),
            limit: self.limit,
            until: Instant::now() + self.limit,
        };
        let request = RequestMessage { version: request.version(), request };
        let bytes = serde_json::to_vec(&request).map_err(|error| call.malformed(Some(error)))?;
        if bytes.len() > MESSAGE_BYTES {
            return Err(ClientError::TooLong { request: call.request, bytes: bytes.len() });
        }
        // Taken out, so that a connection on which something went wrong is not used again.
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => call.connect()?,
        };
        call.send(&connection, &bytes, descriptors)?;
        loop {
            let answer = match call.receive(&connection)? {
                Answer::Refused(refusal) => {
                    self.connection = Some(connection);
                    return Err(ClientError::Refused { request: call.request, refusal });
                }
                answer => answer,
            };
            let (value, more) = expected(answer).ok_or_else(|| call.malformed(None))?;
            if !more {
                self.connection = Some(connection);
                return Ok(value);
            }
        }
    }
}

/// One exchange and its limit.
struct Call<'a> {
    path: &'a Path,
    request: &'static str,
    limit: Duration,
    until: Instant,
}

impl Call<'_> {
    fn connect(&mut self) -> Result<OwnedFd, ClientError> {
        let failed = |source: std::io::Error| ClientError::Connect { path: self.path.to_owned(), source };
        let address = SocketAddress::of(self.path).map_err(failed)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|error| failed(error.into()))?;
        loop {
            match connect(&socket, address.as_unix()) {
                Ok(()) => return Ok(socket),
                Err(Errno::AGAIN) if Instant::now() < self.until => std::thread::sleep(PAUSE),
                Err(Errno::AGAIN) => return Err(self.timed_out()),
                Err(error) => return Err(failed(error.into())),
            }
        }
    }

    fn send(
        &self,
        connection: &OwnedFd,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        loop {
            match send(connection, bytes, descriptors) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) => self.wait(connection, PollFlags::OUT)?,
                // The other side may have said why before it closed: the answer is read.
                Err(Errno::PIPE | Errno::CONNRESET) => return Ok(()),
                Err(_) => return Err(self.closed()),
            }
        }
    }

    fn receive(&self, connection: &OwnedFd) -> Result<Answer, ClientError> {
        loop {
            match receive(connection) {
                Received::Nothing => self.wait(connection, PollFlags::IN)?,
                Received::Closed => return Err(self.closed()),
                Received::TooMuch => return Err(self.malformed(None)),
                Received::Message(bytes, _) => {
                    let message: AnswerMessage =
                        serde_json::from_slice(&bytes).map_err(|error| self.malformed(Some(error)))?;
                    return Ok(message.answer);
                }
            }
        }
    }

    fn wait(&self, connection: &OwnedFd, what: PollFlags) -> Result<(), ClientError> {
        if wait_until(connection, what, self.until) { Ok(()) } else { Err(self.timed_out()) }
    }

    fn timed_out(&self) -> ClientError {
        ClientError::TimedOut { path: self.path.to_owned(), request: self.request, limit: self.limit }
    }

    fn closed(&self) -> ClientError {
        ClientError::Closed { path: self.path.to_owned(), request: self.request }
    }

    fn malformed(&self, source: Option<serde_json::Error>) -> ClientError {
        ClientError::Malformed { path: self.path.to_owned(), request: self.request, source }
    }
}

/// Waits until the socket is ready. `false`: it was not in time.
pub(super) fn wait_until(socket: &OwnedFd, what: PollFlags, until: Instant) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // A limit of centuries is no limit.
        let left = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::from_borrowed_fd(socket.as_fd(), what)], left.as_ref()) {
            Ok(0) => return false,
            Err(Errno::INTR) => {}
            // An error of the socket is found by the call that follows.
            Ok(_) | Err(_) => return true,
        }
    }
}

/// What a request is called on the wire.
fn name_of(request: &Request) -> &'static str {
    match request {
        Request::AddPort { .. } => "add-port",
        Request::RemovePort { .. } => "remove-port",
        Request::Reconnect { .. } => "reconnect",
        Request::CanListenAnew { .. } => "can-listen-anew",
        Request::NewListener { .. } => "new-listener",
        Request::KeepOnly { .. } => "keep-only",
        Request::AddUplink { .. } => "add-uplink",
        Request::RemoveUplink { .. } => "remove-uplink",
        Request::Uplinks => "uplinks",
        Request::Ports => "ports",
        Request::MacTable => "mac-table",
        Request::Version => "version",
        Request::Capture { .. } => "capture",
        Request::Events => "events",
    }
}
