//! A connection whose first bytes have been read: they tell HTTP/1.1 from HTTP/2.
//!
//! What was read is read again by whoever serves the connection, so the look costs no system call.

use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

use crate::admission::ArrivedCall;

/// The first bytes of every HTTP/2 connection (RFC 9113, section 3.4). No request of HTTP/1.1 begins so.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How much is read at first, in bytes: a whole request of the executable, as a rule.
const FIRST_READ: usize = 8 << 10;

/// What a caller speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// The executable and the operator's commands; and whatever is no HTTP at all, which is refused there.
    Http1,
    /// gRPC.
    Http2,
}

/// A connection that was accepted, and what has been read of it.
#[derive(Debug)]
pub(super) struct Accepted {
    stream: UnixStream,
    read: Vec<u8>,
    /// How many bytes of `read` have been read again.
    taken: usize,
}

/// An [`Accepted`] on its way to the runtime of another thread.
#[derive(Debug)]
pub(super) struct HandedOver {
    stream: StdStream,
    read: Vec<u8>,
    call: Option<CallThatCame>,
}

impl HandedOver {
    /// A connection of which nothing was read.
    ///
    /// # Errors
    /// When the socket can't be made non-blocking.
    pub(super) fn fresh(stream: StdStream) -> io::Result<HandedOver> {
        HandedOver::begun(stream, Vec::new(), None)
    }

    /// A connection of which this was read, and the call that it is, where that was prepared already.
    ///
    /// # Errors
    /// When the socket can't be made non-blocking.
    pub(super) fn begun(
        stream: StdStream,
        read: Vec<u8>,
        call: Option<CallThatCame>,
    ) -> io::Result<HandedOver> {
        // tokio takes the socket as it is: a blocking one would block its whole runtime.
        stream.set_nonblocking(true)?;
        Ok(HandedOver { stream, read, call })
    }

    /// Takes the connection into the runtime of this thread.
    ///
    /// # Errors
    /// When the kernel cannot watch it.
    pub(super) fn here(self) -> io::Result<(Accepted, Option<CallThatCame>)> {
        let accepted = Accepted { stream: UnixStream::from_std(self.stream)?, read: self.read, taken: 0 };
        Ok((accepted, self.call))
    }
}

/// A call that was prepared, and when it came.
pub(super) type CallThatCame = (ArrivedCall, Instant);

impl Accepted {
    /// Reads until it is clear what the caller speaks. A caller that says nothing is waited for: the limit is the caller's.
    ///
    /// # Errors
    /// When the connection breaks.
    pub(super) async fn protocol(&mut self) -> io::Result<Protocol> {
        // Of a socket that it has not waited for, tokio doesn't know that it takes bytes. hyper tries its own refusals once only.
        self.stream.writable().await?;
        loop {
            let seen = self.read.len().min(PREFACE.len());
            let (begun, preface) = (self.read.get(..seen), PREFACE.get(..seen));
            if begun != preface {
                return Ok(Protocol::Http1);
            }
            if seen == PREFACE.len() {
                return Ok(Protocol::Http2);
            }
            self.read.reserve_exact(FIRST_READ - self.read.len());
            if self.stream.read_buf(&mut self.read).await? == 0 {
                // It has hung up, which is hyper's to notice.
                return Ok(Protocol::Http1);
            }
        }
    }

    /// Whether the peer is root; one whose uid cannot be told is not.
    pub(super) fn is_root(&self) -> bool {
        self.stream.peer_cred().is_ok_and(|peer| peer.uid() == 0)
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        match this.read.get(this.taken..).filter(|rest| !rest.is_empty()) {
            Some(rest) => {
                let piece = rest.get(..into.remaining()).unwrap_or(rest);
                into.put_slice(piece);
                this.taken += piece.len();
                if this.taken == this.read.len() {
                    (this.read, this.taken) = (Vec::new(), 0);
                }
                Poll::Ready(Ok(()))
            }
            None => Pin::new(&mut this.stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn of(bytes: &[u8]) -> (Protocol, Vec<u8>) {
        let runtime = crate::server::runtime().unwrap();
        let (here, mut caller) = StdStream::pair().unwrap();
        caller.write_all(bytes).unwrap();
        drop(caller);
        runtime.block_on(async {
            let (mut accepted, _) = HandedOver::fresh(here).unwrap().here().unwrap();
            let protocol = accepted.protocol().await.unwrap();
            let mut all = Vec::new();
            accepted.read_to_end(&mut all).await.unwrap();
            (protocol, all)
        })
    }

    #[test]
    fn what_a_caller_speaks_is_told_by_its_first_bytes_and_they_are_read_again() {
        let long = [b"POST / HTTP/1.1\r\n".as_slice(), &[b'x'; 3 * FIRST_READ]].concat();
        let upgraded = [PREFACE, b"\0\0\0\x04"].concat();
        let table: [(&[u8], Protocol); 7] = [
            (b"", Protocol::Http1),
            (b"GET / HTTP/1.1\r\n\r\n", Protocol::Http1),
            (&long, Protocol::Http1),
            (b"PRI * HTTP/2.0\r\n\r\n", Protocol::Http1),
            (b"PRI * HTTP/3.0\r\n\r\nSM\r\n\r\n", Protocol::Http1),
            (PREFACE, Protocol::Http2),
            (&upgraded, Protocol::Http2),
        ];
        for (bytes, protocol) in table {
            assert_eq!(of(bytes), (protocol, bytes.to_vec()));
        }
    }
}
