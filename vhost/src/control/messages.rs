//! The messages of the control socket, as JSON. Unknown fields are refused on both sides, so that nothing is silently left undone.

use serde::{Deserialize, Serialize};

use crate::capture::CaptureOptions;
use crate::port::{MacEntry, PortConfig, PortView, UplinkConfig, UplinkView};

/// The version of these messages: 2 has uplinks and captures, 3 has NUMA nodes, 4 has new listeners. A program refuses requests of a newer
/// one by its number, so each is sent with the version that first had it ([`Request::version`]).
pub const PROTOCOL: u32 = 4;

/// The longest message in bytes.
pub const MESSAGE_BYTES: usize = 64 * 1024;

/// What the daemon sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestMessage {
    /// The version that first had this request.
    pub version: u32,
    /// What it asks for.
    pub request: Request,
}

/// What can be asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// One port more. Its socket comes with the message. Answered by [`Answer::Done`] when a guest can connect.
    AddPort {
        /// What the port is to be.
        config: PortConfig,
        /// Which kind of socket comes.
        socket: SocketSide,
        /// The NUMA node of the guest, whose thread is to serve the port; absent: any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        numa_node: Option<u32>,
    },
    /// One port fewer. Answered by [`Answer::Done`] when nothing of the guest's memory is mapped any more.
    RemovePort {
        /// The port's name.
        name: String,
    },
    /// A new connection of a port whose guest listens. It comes with the message. Answered by [`Answer::Done`].
    Reconnect {
        /// The port's name.
        name: String,
    },
    /// Whether a port whose guest connects can have a new listening socket: not while it closes much that its last guest sent. It is asked
    /// before the socket is made, for a guest may have sent something to be closed over one that is refused. Answered by [`Answer::Done`].
    CanListenAnew {
        /// The port's name.
        name: String,
    },
    /// A new listening socket of a port whose guest connects, in place of the one that it has: nobody finds that any more. It comes with
    /// the message. The port stays, with a guest that is connected and with all that its guests did. Answered by [`Answer::Done`].
    NewListener {
        /// The port's name.
        name: String,
    },
    /// All ports but these are removed. Answered by [`Answer::Removed`].
    KeepOnly {
        /// Names of ports that stay, also of such as are not there.
        names: Vec<String>,
        /// More names come in the next message, and nothing is done yet; it is answered by [`Answer::Done`].
        more: bool,
    },
    /// Every port as it is now. Answered by [`Answer::Ports`].
    Ports,
    /// Every address that is known. Answered by [`Answer::MacTable`].
    MacTable,
    /// The way to the wire for one network. With the message come the attachment, and each queue's socket and memory. Answered by
    /// [`Answer::Done`] when the rings are mapped, so that the sockets can be bound.
    AddUplink {
        /// What the uplink is to be.
        config: UplinkConfig,
        /// The NUMA node of the interface, whose thread is to serve it; absent: any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        numa_node: Option<u32>,
    },
    /// An uplink fewer. Answered by [`Answer::Done`] when the interface is the kernel's own.
    RemoveUplink {
        /// The uplink's network.
        network: String,
    },
    /// Every uplink as it is now. Answered by [`Answer::Uplinks`].
    Uplinks,
    /// Which program this is. Answered by [`Answer::Version`].
    Version,
    /// From now on frames of a port are copied into a ring, whose memory comes with the message, until the connection ends. No more
    /// requests are taken on it. Answered by [`Answer::Done`].
    Capture {
        /// The port's name.
        name: String,
        /// What is copied.
        options: CaptureOptions,
    },
    /// From now on events are sent, and no more requests are taken, on this connection. Answered by [`Answer::Done`].
    Events,
}

impl Request {
    /// The version that first had this request.
    pub fn version(&self) -> u32 {
        match self {
            Request::CanListenAnew { .. } | Request::NewListener { .. } => 4,
            Request::AddPort { numa_node: Some(_), .. } | Request::AddUplink { numa_node: Some(_), .. } => 3,
            Request::AddUplink { .. }
            | Request::RemoveUplink { .. }
            | Request::Uplinks
            | Request::Capture { .. } => 2,
            _ => 1,
        }
    }
}

/// Who connects to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SocketSide {
    /// The socket listens, and the guest connects to it.
    Listening,
    /// The guest listens, and the socket is connected to it.
    Connected,
}

/// What the switch sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerMessage {
    /// [`PROTOCOL`] of the sender.
    pub version: u32,
    /// The answer, or an event.
    pub answer: Answer,
}

/// What is answered. A long list comes in several messages: each but the last says that there is more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    /// It is done.
    Done,
    /// These ports were removed.
    Removed {
        /// Their names.
        names: Vec<String>,
        /// Another message follows.
        more: bool,
    },
    /// The ports, by name.
    Ports {
        /// Some of them.
        ports: Vec<PortView>,
        /// Another message follows.
        more: bool,
    },
    /// The uplinks, by network.
    Uplinks {
        /// Some of them.
        uplinks: Vec<UplinkView>,
        /// Another message follows.
        more: bool,
    },
    /// The addresses.
    MacTable {
        /// Some of them.
        entries: Vec<MacEntry>,
        /// Another message follows.
        more: bool,
    },
    /// The program.
    Version(ProgramVersion),
    /// Something happened; only on a connection that asked for events.
    Event(PortEvent),
    /// It was not done.
    Refused(Refusal),
}

/// Which program answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramVersion {
    /// The program's version.
    pub program: String,
    /// [`PROTOCOL`] of the program: what it understands.
    pub protocol: u32,
    /// The process. Another number means that it has started anew, without ports.
    pub pid: u32,
}

/// Something that happened to a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum PortEvent {
    /// A guest has connected and shared its memory.
    Connected {
        /// The port's name.
        port: String,
    },
    /// The guest is gone.
    Disconnected {
        /// The port's name.
        port: String,
        /// Why.
        why: String,
    },
    /// The guest did what the protocol forbids.
    Misbehaved {
        /// The port's name.
        port: String,
        /// What it did.
        what: String,
    },
    /// So many earlier events were dropped, because the reader was too slow: ask for [`Request::Ports`].
    Lost {
        /// How many.
        count: u64,
    },
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason}")]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// For programs.
    pub code: RefusalCode,
    /// For people: the thing, the reason and the remedy.
    pub reason: String,
}

/// The kinds of refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalCode {
    /// The request is of a newer version than the program.
    NewerVersion,
    /// The message is no request, or too long.
    Malformed,
    /// The port's configuration can't be.
    BadConfig,
    /// The descriptor is not the socket that was announced, or there is none, or there are several.
    BadSocket,
    /// Another port has the name, or the network has another uplink.
    NameTaken,
    /// No port has the name, or the network has no uplink.
    UnknownPort,
    /// Somebody else captures the port's frames.
    Captured,
    /// The sender may not.
    NotAllowed,
    /// There are too many connections.
    TooManyConnections,
    /// The data plane could not do it.
    Failed,
}

impl Refusal {
    /// A refusal.
    pub fn new(code: RefusalCode, reason: impl Into<String>) -> Refusal {
        Refusal { code, reason: reason.into() }
    }
}
