//! The requests of the operator's commands to the daemon, over its socket, and what can be wrong with the answer.
//!
//! A command never waits longer than its limit, whatever state the daemon is in.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fairlead_cni::CniError;
use fairlead_cni::wire::{Command, WIRE};
use fairlead_host::unix_http::{self, HttpRequest};
use serde_json::{Value, json};

use crate::run_dir::{LOCK, STOPPING};

/// How long an answer to GET is waited for. The daemon answers from memory; its health may wait 2 s for each of two watchers.
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
    /// A daemon runs, and the name of its socket is gone.
    #[error("fairleadd (pid {pid}) runs, and its socket {socket} is gone, so nobody can reach it: restart it (systemctl restart fairleadd), unless it was started just now", socket = .socket.display())]
    SocketGone {
        /// Where the socket was.
        socket: PathBuf,
        /// The process id of the daemon.
        pid: u32,
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

/// Escapes a text for the query of a path.
pub(crate) fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    let one = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(one).collect()
}

/// The body of an answer that is no error.
fn answer(socket: &Path, request: HttpRequest<'_>, patience: Duration) -> Result<String, ClientError> {
    let answer = unix_http::exchange(socket, request, patience);
    let answer = answer.map_err(|source| unanswered(socket.into(), source, patience))?;
    // A readiness condition that is not met is an answer too: it has status 503 and is no error object.
    match (answer.status, CniError::from_json(&answer.body)) {
        (400.., Some(error)) => Err(ClientError::Refused(error)),
        _ => Ok(answer.body),
    }
}

/// Why there is no answer, by what the exchange has said.
fn unanswered(socket: PathBuf, source: io::Error, patience: Duration) -> ClientError {
    match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            let who = daemon_pid(&socket);
            ClientError::Silent { socket, who, patience }
        }
        io::ErrorKind::InvalidData => ClientError::Strange { socket },
        io::ErrorKind::NotFound => match living_holder(&socket) {
            Some(pid) => ClientError::SocketGone { socket, pid },
            None => ClientError::Unreachable { socket, source },
        },
        _ => ClientError::Unreachable { socket, source },
    }
}

fn as_json(socket: &Path, body: &str) -> Result<Value, ClientError> {
    serde_json::from_str(body).map_err(|_| ClientError::Strange { socket: socket.into() })
}

/// The process id of the daemon that serves this socket, for a message.
fn daemon_pid(socket: &Path) -> String {
    pid_in_lock(socket).map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

/// The process id that the last daemon of this run directory wrote.
fn pid_in_lock(socket: &Path) -> Option<u32> {
    fs::read_to_string(socket.with_file_name(LOCK)).ok()?.trim().parse().ok()
}

/// The process id of the daemon that lives and holds the run directory of this socket; `None` also for one that is stopping, which
/// has taken its socket away itself.
pub(crate) fn living_holder(socket: &Path) -> Option<u32> {
    let pid = pid_in_lock(socket)?;
    // The lock is tried only where such a process lives: for the moment of the attempt nobody else could take it.
    if socket.with_file_name(STOPPING).exists() || !Path::new("/proc").join(pid.to_string()).exists() {
        return None;
    }
    let lock = File::open(socket.with_file_name(LOCK)).ok()?;
    matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_dir::{RunDir, SOCKET};

    #[test]
    fn a_daemon_that_runs_without_its_socket_is_told_from_none() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join(SOCKET);
        let asked = || get(&socket, "/v1/status").unwrap_err();
        assert!(matches!(asked(), ClientError::Unreachable { .. }));
        let held = RunDir::take(dir.path()).unwrap();
        let told = asked().to_string();
        let pid = format!("(pid {}) runs", std::process::id());
        for part in [pid.as_str(), "fairlead.sock is gone", "systemctl restart"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        held.announce_stop().unwrap();
        assert!(matches!(asked(), ClientError::Unreachable { .. }), "one that stops has removed it itself");
        fs::remove_file(dir.path().join(STOPPING)).unwrap();
        assert!(matches!(asked(), ClientError::SocketGone { .. }));
        drop(held);
        assert!(matches!(asked(), ClientError::Unreachable { .. }), "the process lives, and is no daemon");
    }
}
