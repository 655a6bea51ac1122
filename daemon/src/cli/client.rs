//! Asks the daemon over its socket: one request, one answer, no runtime.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fairlead_cni::CniError;
use serde_json::Value;

/// The daemon answers a question at once; a collection may wait for links to go.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody serves the socket.
    #[error("fairleadd can't be asked at {socket}: {source}; is it running (`systemctl status fairleadd`), and is this --run-dir its own?", socket = .socket.display())]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The answer is none of the daemon's.
    #[error("{socket} gave an answer that is not fairleadd's", socket = .socket.display())]
    Strange {
        /// The socket.
        socket: PathBuf,
    },
    /// The daemon refused.
    #[error("fairleadd: {0}")]
    Refused(CniError),
}

/// Asks, and reads the answer's JSON.
pub(crate) fn ask(socket: &Path, method: &str, path: &str) -> Result<Value, ClientError> {
    let unreachable = |source| ClientError::Unreachable { socket: socket.into(), source };
    let answer = exchange(socket, method, path).map_err(unreachable)?;
    let strange = || ClientError::Strange { socket: socket.into() };
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(strange)?;
    let status = head.split(' ').nth(1).and_then(|s| s.parse::<u16>().ok()).ok_or_else(strange)?;
    // A condition that is not met is an answer too, with 503.
    match (status, CniError::from_json(body)) {
        (400.., Some(error)) => Err(ClientError::Refused(error)),
        _ => serde_json::from_str(body).map_err(|_| strange()),
    }
}

fn exchange(socket: &Path, method: &str, path: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: fairlead\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
