//! One connection's life: calls with a time limit, `echo` answered, what is told unasked handed on.
//!
//! One thread reads. It never waits for whoever called, and whoever called never reads. Replies are matched by id; one that
//! came too late is dropped. A call that gets no reply says so: whether the server carried it out is then unknown.
//!
//! TLS is not spoken here: a session takes any connected [`UnixStream`], and a TLS client is behind one end of a socket pair
//! (`tls_client`).

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;

use super::framing::{Framer, LARGEST_MESSAGE};
use super::message::{self, Message};

/// A server that takes no byte for this long is given up.
const WRITE_LIMIT: Duration = Duration::from_secs(5);

/// Why a call has no result.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum CallError {
    /// The server answered with an error: nothing was done.
    #[error("the database server refuses {method}: {error}")]
    Refused {
        /// The method that was called.
        method: String,
        /// What the server said.
        error: Value,
    },
    /// No reply came in time. It may have been done.
    #[error("the database server has not answered {method} within {} ms", .limit.as_millis())]
    Late {
        /// The method that was called.
        method: String,
        /// How long was waited.
        limit: Duration,
    },
    /// The connection ended before the reply. It may have been done.
    #[error("the connection to the database server has ended: {why}")]
    Ended {
        /// What ended it.
        why: String,
    },
}

/// What the server tells unasked, in the order in which it came.
#[derive(Debug)]
pub(crate) enum Heard {
    /// A notification.
    Notification {
        /// What it is about.
        method: String,
        /// What is told.
        params: Value,
    },
    /// The connection has ended; nothing comes after it.
    Ended {
        /// What ended it.
        why: String,
    },
}

#[derive(Debug, Default)]
struct Waiting {
    last_id: u64,
    replies: HashMap<u64, SyncSender<Result<Value, Value>>>,
    ended: Option<String>,
}

#[derive(Debug)]
struct Shared {
    writer: Mutex<UnixStream>,
    waiting: Mutex<Waiting>,
}

/// A connection to a JSON-RPC server. Dropped, it is closed, and its thread has ended.
#[derive(Debug)]
pub(crate) struct Session {
    shared: Arc<Shared>,
    stream: UnixStream,
    reader: Option<JoinHandle<()>>,
}

impl Session {
    /// Begins to read from a connected stream. `listener` is called by the reading thread.
    ///
    /// # Errors
    /// Where the stream cannot be duplicated or there is no thread to be had.
    pub(crate) fn start(
        stream: UnixStream,
        listener: impl FnMut(Heard) + Send + 'static,
    ) -> std::io::Result<Session> {
        stream.set_write_timeout(Some(WRITE_LIMIT))?;
        let shared = Arc::new(Shared { writer: Mutex::new(stream.try_clone()?), waiting: Mutex::default() });
        let (read_from, of_reader) = (stream.try_clone()?, Arc::clone(&shared));
        let reader = thread::Builder::new()
            .name("ovsdb-reader".to_owned())
            .spawn(move || of_reader.read(read_from, listener))?;
        Ok(Session { shared, stream, reader: Some(reader) })
    }

    /// Asks, and waits for the reply no longer than `limit`.
    ///
    /// # Errors
    /// See [`CallError`].
    pub(crate) fn call(&self, method: &str, params: &Value, limit: Duration) -> Result<Value, CallError> {
        let (sender, replied) = sync_channel(1);
        let id = self.shared.expect_reply(sender)?;
        if let Err(error) = self.shared.write(&message::request(id, method, params)) {
            self.shared.waiting.lock().replies.remove(&id);
            return Err(CallError::Ended { why: error.to_string() });
        }
        match replied.recv_timeout(limit) {
            Ok(outcome) => outcome.map_err(|error| CallError::Refused { method: method.to_owned(), error }),
            Err(RecvTimeoutError::Disconnected) => Err(self.shared.ended()),
            Err(RecvTimeoutError::Timeout) => {
                self.shared.waiting.lock().replies.remove(&id);
                Err(CallError::Late { method: method.to_owned(), limit })
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.stream.shutdown(Shutdown::Both)); // where the server was faster, there is nothing to shut
        if let Some(reader) = self.reader.take() {
            drop(reader.join()); // a panic of it was told by the panic itself
        }
    }
}

impl Shared {
    fn expect_reply(&self, sender: SyncSender<Result<Value, Value>>) -> Result<u64, CallError> {
        let mut waiting = self.waiting.lock();
        if let Some(why) = &waiting.ended {
            return Err(CallError::Ended { why: why.clone() });
        }
        waiting.last_id += 1;
        let id = waiting.last_id;
        waiting.replies.insert(id, sender);
        Ok(id)
    }

    fn ended(&self) -> CallError {
        let why = self.waiting.lock().ended.clone().unwrap_or_else(|| "its reader has stopped".to_owned());
        CallError::Ended { why }
    }

    fn write(&self, text: &str) -> std::io::Result<()> {
        self.writer.lock().write_all(text.as_bytes())
    }

    /// The reading thread.
    fn read(&self, mut stream: UnixStream, mut listener: impl FnMut(Heard)) {
        let why = self.read_until_end(&mut stream, &mut listener);
        drop(stream.shutdown(Shutdown::Both)); // a server that sends nonsense is not to be spoken to any more
        {
            let mut waiting = self.waiting.lock();
            waiting.ended = Some(why.clone());
            waiting.replies.clear();
        }
        listener(Heard::Ended { why });
    }

    fn read_until_end(&self, stream: &mut UnixStream, listener: &mut impl FnMut(Heard)) -> String {
        let mut framer = Framer::new(LARGEST_MESSAGE);
        let mut buffer = vec![0; 64 << 10];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return "it was closed".to_owned(),
                Ok(length) => framer.push(&buffer[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return error.to_string(),
            }
            loop {
                match framer.next_message() {
                    Ok(Some(object)) => match Message::read(object) {
                        Ok(message) => self.handle(message, listener),
                        Err(error) => return error.to_string(),
                    },
                    Ok(None) => break,
                    Err(error) => return error.to_string(),
                }
            }
        }
    }

    fn handle(&self, message: Message, listener: &mut impl FnMut(Heard)) {
        match message {
            Message::Notification { method, params } => listener(Heard::Notification { method, params }),
            Message::Request { id, method, params } => {
                let answer = match method.as_str() {
                    "echo" => message::reply(&id, &params),
                    _ => message::refusal(&id, "unknown method"),
                };
                // Where it cannot be written, the next read tells the end.
                drop(self.write(&answer));
            }
            Message::Reply { id, outcome } => {
                let sender = id.as_u64().and_then(|id| self.waiting.lock().replies.remove(&id));
                if let Some(sender) = sender {
                    drop(sender.try_send(outcome)); // nobody waits any more where the limit has passed
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
