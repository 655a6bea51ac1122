//! Bytes that are no HTTP: hyper refuses them before a handler sees them, with a status and an empty body. This
//! adds the body that every answer has, a CNI error object.
//!
//! Once a handler was reached, everything passes unchanged.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use fairlead_cni::{CniError, CniVersion, Code};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;

use super::protocol_detection::Accepted;

/// A connection on which hyper's own refusals get a body.
#[derive(Debug)]
pub(super) struct HttpConnection {
    stream: TokioIo<Accepted>,
    handler_reached: Arc<AtomicBool>,
    refusal: Vec<u8>,
    written: usize,
}

impl HttpConnection {
    /// Wraps a connection. `handler_reached` is set once a handler has the request.
    pub(super) fn new(stream: Accepted, handler_reached: Arc<AtomicBool>) -> HttpConnection {
        HttpConnection { stream: TokioIo::new(stream), handler_reached, refusal: Vec::new(), written: 0 }
    }

    /// The bare connection, once hyper is done with it.
    pub(super) fn into_stream(self) -> Accepted {
        self.stream.into_inner()
    }

    fn write_refusal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.refusal.get(self.written..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => self.written += n,
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The same refusal with a CNI error as its body; `head` is what hyper wrote.
fn refusal(head: &[u8]) -> Vec<u8> {
    let head = String::from_utf8_lossy(head);
    let status = head.split("\r\n").next().unwrap_or_default();
    let reason = status.split_once(' ').map_or(status, |(_, reason)| reason);
    let error = CniError::new(Code::Decode, format!("the request can't be read: {reason}"))
        .with("fairleadd speaks HTTP/1.1 and gRPC on this socket; the executable `fairlead` and `fairleadd` do so themselves");
    let body = error.to_json(CniVersion::LATEST);
    let length = body.len();
    format!("{status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
        .into_bytes()
}

impl Read for HttpConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl Write for HttpConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.handler_reached.load(Ordering::Acquire) {
            return Pin::new(&mut self.stream).poll_write(cx, buf);
        }
        // Only the first piece is needed, for its status line. Whatever follows of hyper's refusal is replaced.
        if self.refusal.is_empty() {
            self.refusal = refusal(buf);
        }
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_refusal(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_refusal(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.handler_reached.load(Ordering::Acquire) {
            return Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        }
        let first = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| &**buf);
        self.poll_write(cx, first)
    }
}
