//! The requests of the operator's commands to the daemon, over its socket, and what can be wrong with the answer.
//!
//! A command never waits longer than its limit, whatever state the daemon is in.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fairlead_cni::CniError;
use fairlead_cni::wire::{Command, WIRE};
use fairlead_host::unix_http::{self, HttpRequest};
use serde_json::{Value, json};

use crate::run_dir::LOCK;

/// How long an answer to GET is waited for. The daemon answers from memory; its health may wait 1 s for each of two watchers.
const GET_LIMIT: Duration = Duration::from_secs(10);
/// How long an answer to POST is waited for. A collection may wait until links are gone.
const POST_LIMIT: Duration = Duration::from_secs(60);

/// Why the daemon gave no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody serves the socket.
    #[error("fairleadd can't be asked at {socket}: {source}; is it running (`systemctl status fairleadd`), and is this --run-dir its own?", socket = .socket.display())]
    Unreachable {
        /// The daemon's socket.
        socket: PathBuf,
        /// What connecting, writing or reading said.
        source: io::Error,
    },
    /// The socket is there, and no answer comes.
    #[error("fairleadd{who} does not answer at {socket} within {} s: it hangs or is stopped; let it go on if it is stopped (kill -CONT and its pid), else see its log and restart it (systemctl restart fairleadd)", .patience.as_secs(), socket = .socket.display())]
    Silent {
        /// The daemon's socket.
        socket: PathBuf,
        /// The process id that the daemon wrote beside its socket, as ` (pid 7)`; empty where that can't be read.
        who: String,
        /// How long the answer was waited for.
        patience: Duration,
    },
    /// What came is no answer of the daemon's.
    #[error("{socket} gave an answer that is not fairleadd's", socket = .socket.display())]
    Strange {
        /// The daemon's socket.
        socket: PathBuf,
    },
    /// The daemon answered with an error.
    #[error("{0}")]
    Refused(CniError),
}

/// Sends a GET, and returns the JSON of the answer.
pub(crate) fn get(socket: &Path, path: &str) -> Result<Value, ClientError> {
    as_json(socket, &answer(socket, HttpRequest { method: "GET", path, body: "" }, GET_LIMIT)?)
}

/// Sends a POST, and returns the JSON of the answer when the daemon has done it.
pub(crate) fn post(socket: &Path, path: &str) -> Result<Value, ClientError> {
    as_json(socket, &answer(socket, HttpRequest { method: "POST", path, body: "" }, POST_LIMIT)?)
}

/// Asks for the STATUS of a network by its configuration, as a runtime does.
pub(crate) fn status(socket: &Path, config: &str) -> Result<(), ClientError> {
    let body = json!({ "wire": WIRE, "command": Command::Status, "config": config }).to_string();
    let request = HttpRequest { method: "POST", path: Command::Status.path(), body: &body };
    answer(socket, request, GET_LIMIT).map(drop)
}

/// The body of an answer that is no error.
fn answer(socket: &Path, request: HttpRequest<'_>, patience: Duration) -> Result<String, ClientError> {
    let answer = unix_http::exchange(socket, request, patience).map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            ClientError::Silent { socket: socket.into(), who: daemon_pid(socket), patience }
        }
        io::ErrorKind::InvalidData => ClientError::Strange { socket: socket.into() },
        _ => ClientError::Unreachable { socket: socket.into(), source },
    })?;
    // A readiness condition that is not met is an answer too: it has status 503 and is no error object.
    match (answer.status, CniError::from_json(&answer.body)) {
        (400.., Some(error)) => Err(ClientError::Refused(error)),
        _ => Ok(answer.body),
    }
}

fn as_json(socket: &Path, body: &str) -> Result<Value, ClientError> {
    serde_json::from_str(body).map_err(|_| ClientError::Strange { socket: socket.into() })
}

/// The process id of the daemon that serves this socket, for a message.
fn daemon_pid(socket: &Path) -> String {
    let pid = std::fs::read_to_string(socket.with_file_name(LOCK)).ok();
    let pid = pid.and_then(|text| text.trim().parse::<u32>().ok());
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}
