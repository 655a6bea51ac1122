//! The messages of the control socket, as JSON. Unknown fields are refused on both sides, so that nothing is silently left undone.

use serde::{Deserialize, Serialize};

use crate::port::{MacEntry, PortConfig, PortView};

/// The version of these messages. A program refuses requests of a newer one by its number.
pub const PROTOCOL: u32 = 1;

/// The longest message in bytes.
pub const MESSAGE_BYTES: usize = 64 * 1024;

/// What the daemon sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestMessage {
    /// [`PROTOCOL`] of the sender.
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
    /// Which program this is. Answered by [`Answer::Version`].
    Version,
    /// From now on events are sent, and no more requests are taken, on this connection. Answered by [`Answer::Done`].
    Events,
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
    /// Another port has the name.
    NameTaken,
    /// No port has the name.
    UnknownPort,
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
