//! One request to the daemon and its answer: HTTP/1.1 as far as two programs of one project need it.
//!
//! When something goes wrong, the one question that matters is whether the daemon can have begun. It has not begun when it
//! says so, and not when it can't have read the whole request: then the call may be made again. In every other case this
//! module sends nothing twice.

use std::cmp::Ordering;

use fairlead_cni::wire::{self, MAX_BODY, NOT_BEGUN, OUTCOME_HEADER, Request};
use nix::errno::Errno;

use crate::connection::Connection;
use crate::deadline::Deadline;

/// The longest status line and headers that are read, in bytes.
const MAX_HEAD: usize = 16 << 10;

/// What became of a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The daemon answered it.
    Answer(Answer),
    /// The daemon is stopping and did not begin.
    Stopping,
    /// The connection ended before the daemon had read the request.
    NotRead,
    /// The connection ended; the daemon may have begun, or even ended.
    Lost,
    /// The deadline passed; the daemon may have begun.
    Late,
    /// What came back is no answer.
    Malformed(MalformedAnswer),
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The HTTP status code.
    pub(crate) status: u16,
    /// The bytes after the headers.
    pub(crate) body: Vec<u8>,
}

/// Why the bytes that came back are no answer.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum MalformedAnswer {
    /// The headers do not end.
    #[error("its headers are longer than {MAX_HEAD} bytes")]
    LongHead,
    /// The first line is not that of HTTP/1.
    #[error("its first line is no HTTP/1 status line")]
    StatusLine,
    /// A header has no colon, or is not UTF-8.
    #[error("a header line can't be read")]
    Header,
    /// There is no length. The daemon always sends it, so that half an answer is recognised.
    #[error("it has no usable Content-Length header")]
    NoLength,
    /// The body is larger than [`MAX_BODY`].
    #[error("its body is larger than the limit of {MAX_BODY} bytes")]
    LongBody,
    /// There are bytes after the body.
    #[error("it is longer than its Content-Length says")]
    Trailing,
}

/// A request on its way, and as much of its answer as has come.
#[derive(Debug)]
pub(crate) struct Exchange {
    message: Vec<u8>,
    sent: usize,
    received: Vec<u8>,
    head: Option<Head>,
}

impl Exchange {
    /// An exchange of which nothing is sent yet. The request says how long the caller waits.
    pub(crate) fn new(request: &mut Request, deadline: Deadline) -> Self {
        request.deadline_ms = u64::try_from(deadline.remaining().as_millis()).unwrap_or(u64::MAX);
        Exchange { message: message(request), sent: 0, received: Vec::new(), head: None }
    }

    /// Sends the request and reads the answer. After [`Outcome::Late`] it can go on with the same connection and a later deadline.
    pub(crate) fn advance(&mut self, connection: &Connection, deadline: Deadline) -> Outcome {
        while let Some(rest) = self.message.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match connection.send(rest, deadline) {
                Ok(0) => return Outcome::Late,
                Ok(n) => self.sent += n,
                // The daemon may have answered before it read everything (too large, stopping), so the answer is read.
                Err(_) => break,
            }
        }
        self.receive(connection, deadline)
    }

    fn receive(&mut self, connection: &Connection, deadline: Deadline) -> Outcome {
        let mut chunk = [0; 2048];
        loop {
            let nothing_yet = self.received.is_empty();
            let n = match connection.receive(&mut chunk, deadline) {
                None => return Outcome::Late,
                Some(Ok(0)) if nothing_yet && self.sent < self.message.len() => return Outcome::NotRead,
                // The kernel says ECONNRESET when the other side closed with bytes of ours unread: it did not have the
                // whole request. After a whole one it says end of file.
                Some(Err(Errno::ECONNRESET)) if nothing_yet => return Outcome::NotRead,
                Some(Ok(0) | Err(_)) => return Outcome::Lost,
                Some(Ok(n)) => n,
            };
            self.received.extend_from_slice(chunk.get(..n).unwrap_or_default());
            if self.head.is_none() {
                self.head = match Head::find(&self.received) {
                    Ok(found) => found,
                    Err(malformed) => return Outcome::Malformed(malformed),
                };
            }
            if let Some(head) = self.head.as_ref() {
                match self.received.len().cmp(&(head.end + head.length)) {
                    Ordering::Less => {}
                    Ordering::Equal => return head.conclude(std::mem::take(&mut self.received)),
                    Ordering::Greater => return Outcome::Malformed(MalformedAnswer::Trailing),
                }
            }
        }
    }
}

fn message(request: &Request) -> Vec<u8> {
    // Strings, numbers and a list of pairs always serialise.
    let body = serde_json::to_vec(request).unwrap_or_default();
    let mut message = wire::head(request.command, body.len()).into_bytes();
    message.extend_from_slice(&body);
    message
}

/// The status line, and what the headers that matter say.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    length: usize,
    not_begun: bool,
    /// The offset at which the body begins.
    end: usize,
}

impl Head {
    /// Reads the head; `None` as long as it is not whole.
    fn find(received: &[u8]) -> Result<Option<Head>, MalformedAnswer> {
        let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") else {
            return if received.len() > MAX_HEAD {
                Err(MalformedAnswer::LongHead)
            } else {
                Head::prefix(received)
            };
        };
        let text = received
            .get(..end)
            .and_then(|head| std::str::from_utf8(head).ok())
            .ok_or(MalformedAnswer::Header)?;
        let mut lines = text.split("\r\n");
        let status = status(lines.next().unwrap_or_default())?;
        let mut head = Head { status, length: 0, not_begun: false, end: end + 4 };
        let mut length = None;
        for line in lines {
            let (name, value) = line.split_once(':').ok_or(MalformedAnswer::Header)?;
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse::<usize>().ok();
            } else if name.eq_ignore_ascii_case(OUTCOME_HEADER) {
                head.not_begun = value.trim() == NOT_BEGUN;
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                return Err(MalformedAnswer::NoLength);
            }
        }
        head.length = length.ok_or(MalformedAnswer::NoLength)?;
        if head.length > MAX_BODY { Err(MalformedAnswer::LongBody) } else { Ok(Some(head)) }
    }

    /// Refuses what can never become HTTP, without waiting for the end of its headers.
    fn prefix(received: &[u8]) -> Result<Option<Head>, MalformedAnswer> {
        let expected = b"HTTP/1.";
        let n = received.len().min(expected.len());
        if received.get(..n) == expected.get(..n) { Ok(None) } else { Err(MalformedAnswer::StatusLine) }
    }

    fn conclude(&self, mut received: Vec<u8>) -> Outcome {
        if self.not_begun {
            return Outcome::Stopping;
        }
        Outcome::Answer(Answer { status: self.status, body: received.split_off(self.end) })
    }
}

fn status(line: &str) -> Result<u16, MalformedAnswer> {
    let rest = line.strip_prefix("HTTP/1.1 ").or_else(|| line.strip_prefix("HTTP/1.0 "));
    let code = rest.and_then(|rest| rest.get(..3)).ok_or(MalformedAnswer::StatusLine)?;
    code.parse().map_err(|_| MalformedAnswer::StatusLine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_whatever_the_case_and_order_of_its_headers() {
        let text = b"HTTP/1.1 503 Service Unavailable\r\nFairlead-Outcome: not-begun\r\ncontent-length:  2\r\n\r\n{}";
        let head = Head { status: 503, length: 2, not_begun: true, end: text.len() - 2 };
        assert_eq!(Head::find(text), Ok(Some(head)));
        for end in 0..text.len() - 3 {
            assert_eq!(Head::find(&text[..end]), Ok(None), "{end}");
        }
    }

    #[test]
    fn every_malformed_head_is_named() {
        for (text, malformed) in [
            ("SSH-2.0", MalformedAnswer::StatusLine),
            ("HTTP/1.1 abc\r\n\r\n", MalformedAnswer::StatusLine),
            ("HTTP/1.1 2\r\n\r\n", MalformedAnswer::StatusLine),
            ("HTTP/1.1 200 OK\r\nnonsense\r\n\r\n", MalformedAnswer::Header),
            ("HTTP/1.1 200 OK\r\n\r\n", MalformedAnswer::NoLength),
            ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", MalformedAnswer::NoLength),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", MalformedAnswer::NoLength),
            ("HTTP/1.1 200 OK\r\nContent-Length: 8388609\r\n\r\n", MalformedAnswer::LongBody),
        ] {
            assert_eq!(Head::find(text.as_bytes()), Err(malformed), "{text}");
        }
        assert_eq!(Head::find(&[b'H'; MAX_HEAD + 1]), Err(MalformedAnswer::LongHead));
    }
}
