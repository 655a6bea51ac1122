//! One HTTP/1.1 request over a unix socket and its whole answer, by a plain thread that never waits longer than it was told.
//!
//! For the operator's commands and for tests. The CNI executable has a client of its own: it must be small, and it must know
//! after a failure whether the daemon can have begun.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

/// A request without headers of its own.
#[derive(Debug, Clone, Copy)]
pub struct HttpRequest<'a> {
    /// `GET`, `POST`, …
    pub method: &'a str,
    /// The path and the query.
    pub path: &'a str,
    /// The body as JSON; empty for none.
    pub body: &'a str,
}

/// A whole answer.
#[derive(Debug)]
pub struct HttpAnswer {
    /// The status of its first line.
    pub status: u16,
    /// Everything after its headers.
    pub body: String,
    connection: UnixStream,
}

impl HttpAnswer {
    /// Sends bytes after the answer, as the CNI executable does when the runtime has what it answered.
    ///
    /// # Errors
    /// When the server does not listen any more.
    pub fn acknowledge(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.connection.write_all(bytes)
    }
}

/// Sends a request and reads the answer until the server ends it, all within `patience`.
///
/// # Errors
/// `WouldBlock` or `TimedOut` when the server was too late, `InvalidData` when what came is no HTTP answer; else what
/// connecting, writing or reading says.
pub fn exchange(socket: &Path, request: HttpRequest<'_>, patience: Duration) -> io::Result<HttpAnswer> {
    let end = Instant::now() + patience;
    let mut connection = connected(socket, patience)?;
    let HttpRequest { method, path, body } = request;
    let (length, content_type) = match body {
        "" => (0, ""),
        body => (body.len(), "Content-Type: application/json\r\n"),
    };
    let sent = format!(
        "{method} {path} HTTP/1.1\r\nHost: fairlead\r\n{content_type}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    // In one write: a server that answers what it has got of it and closes would make a second one fail.
    connection.write_all(sent.as_bytes())?;
    let text = read_to_end(&mut connection, end)?;
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "what came is no HTTP answer");
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(malformed)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(malformed)?;
    Ok(HttpAnswer { status, body: body.to_owned(), connection })
}

fn read_to_end(connection: &mut UnixStream, end: Instant) -> io::Result<String> {
    let mut answer = Vec::new();
    let mut part = [0; 16 << 10];
    loop {
        // The limit is for the whole answer, not for each part of it. Zero would mean no limit.
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_micros(1));
        connection.set_read_timeout(Some(left))?;
        match connection.read(&mut part) {
            Ok(0) => return String::from_utf8(answer).map_err(io::Error::other),
            Ok(count) => answer.extend_from_slice(part.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Connects. The send timeout also limits how long `connect` waits while the server's queue of connections is full; the
/// standard library's `connect` would wait for ever.
fn connected(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let fd: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // A timeout of 0 would mean none.
    let limit = TimeVal::seconds(i64::try_from(patience.as_secs()).unwrap_or(i64::MAX).max(1));
    setsockopt(&fd, sockopt::SendTimeout, &limit)?;
    connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(UnixStream::from(fd))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);
    const GET: HttpRequest<'_> = HttpRequest { method: "GET", path: "/readyz", body: "" };

    /// What comes of a request that is answered with this text.
    fn answered(text: &'static str) -> io::Result<HttpAnswer> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let (mut request, mut byte) = (String::new(), [0]);
            while !request.ends_with("\r\n\r\n") {
                stream.read_exact(&mut byte).unwrap();
                request.push(char::from(byte[0]));
            }
            stream.write_all(text.as_bytes()).unwrap();
            request
        });
        let answer = exchange(&path, GET, LONG);
        assert!(server.join().unwrap().starts_with("GET /readyz HTTP/1.1\r\n"));
        answer
    }

    #[test]
    fn an_answer_is_its_status_and_its_body() {
        let answer = answered("HTTP/1.1 503 Service Unavailable\r\nX: y\r\n\r\n{\r\n\r\n}").unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (503, "{\r\n\r\n}"));
    }

    #[test]
    fn what_is_no_http_answer_is_invalid_data() {
        for text in ["", "SSH-2.0\r\n\r\n", "HTTP/1.1 ok\r\n\r\n", "HTTP/1.1 200 OK\r\n"] {
            assert_eq!(answered(text).unwrap_err().kind(), io::ErrorKind::InvalidData, "{text:?}");
        }
    }

    #[test]
    fn a_server_that_says_nothing_is_given_up_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let absent = exchange(&path, GET, LONG).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
        let _listener = UnixListener::bind(&path).unwrap();
        let begun = Instant::now();
        let late = exchange(&path, GET, Duration::from_millis(50)).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::WouldBlock);
        assert!(begun.elapsed() < LONG);
    }
}
