//! Asks the daemon over its socket: one request, one answer, without an async runtime.
//!
//! It never waits longer than the time limit of the request, whatever state the daemon is in.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fairlead_cni::CniError;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use serde_json::Value;

use crate::run_dir::LOCK;

/// The time limit of a question. Answers come from memory, except two probes that health gives 1 s each.
const PATIENCE: Duration = Duration::from_secs(10);
/// A collection may wait for links to go, so it may take longer.
const COLLECTION: Duration = Duration::from_secs(60);

/// Why the daemon gave no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody serves the socket.
    #[error("fairleadd can't be asked at {socket}: {source}; is it running (`systemctl status fairleadd`), and is this --run-dir its own?", socket = .socket.display())]
    Unreachable {
        /// The path of the daemon's socket.
        socket: PathBuf,
        /// Why the socket can't be connected to or read from.
        source: io::Error,
    },
    /// The socket is there, but no answer comes.
    #[error("fairleadd{who} does not answer at {socket} within {} s: it hangs or is stopped; let it go on if it is stopped (kill -CONT and its pid), else see its log and restart it (systemctl restart fairleadd)", .patience.as_secs(), socket = .socket.display())]
    Silent {
        /// The path of the daemon's socket.
        socket: PathBuf,
        /// The process id that the daemon wrote down, introduced for a message; empty where that can't be read.
        who: String,
        /// The time that was waited.
        patience: Duration,
    },
    /// The answer is not one of fairleadd's.
    #[error("{socket} gave an answer that is not fairleadd's", socket = .socket.display())]
    Strange {
        /// The path of the daemon's socket.
        socket: PathBuf,
    },
    /// The daemon answered with an error.
    #[error("fairleadd: {0}")]
    Refused(CniError),
}

/// Sends a GET and reads the JSON of the answer.
pub(crate) fn get(socket: &Path, path: &str) -> Result<Value, ClientError> {
    request(socket, "GET", path, PATIENCE)
}

/// Sends a POST, which may be the order to collect, and waits until it is carried out.
pub(crate) fn post(socket: &Path, path: &str) -> Result<Value, ClientError> {
    request(socket, "POST", path, COLLECTION)
}

fn request(socket: &Path, method: &str, path: &str, patience: Duration) -> Result<Value, ClientError> {
    let answer = exchange(socket, method, path, patience).map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            ClientError::Silent { socket: socket.into(), who: holder(socket), patience }
        }
        _ => ClientError::Unreachable { socket: socket.into(), source },
    })?;
    let strange = || ClientError::Strange { socket: socket.into() };
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(strange)?;
    let status = head.split(' ').nth(1).and_then(|s| s.parse::<u16>().ok()).ok_or_else(strange)?;
    // A health condition that is not met comes with status 503 and is an answer all the same.
    match (status, CniError::from_json(body)) {
        (400.., Some(error)) => Err(ClientError::Refused(error)),
        _ => serde_json::from_str(body).map_err(|_| strange()),
    }
}

/// The process id of the daemon that holds this run directory, introduced for an error.
fn holder(socket: &Path) -> String {
    let pid = std::fs::read_to_string(socket.with_file_name(LOCK)).ok();
    let pid = pid.and_then(|text| text.trim().parse::<u32>().ok());
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

fn exchange(socket: &Path, method: &str, path: &str, patience: Duration) -> io::Result<String> {
    let end = Instant::now() + patience;
    let mut stream = connected(socket, patience)?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: fairlead\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    let mut part = [0; 16 << 10];
    loop {
        // A time of zero would mean no limit.
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_micros(1));
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part) {
            Ok(0) => return String::from_utf8(answer).map_err(io::Error::other),
            Ok(count) => answer.extend_from_slice(part.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Connects. A daemon whose backlog stays full for so long counts as silent, too.
fn connected(socket_path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let fd: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let limit = TimeVal::seconds(i64::try_from(patience.as_secs()).unwrap_or(i64::MAX));
    setsockopt(&fd, sockopt::SendTimeout, &limit)?;
    connect(fd.as_raw_fd(), &UnixAddr::new(socket_path)?)?;
    Ok(UnixStream::from(fd))
}
