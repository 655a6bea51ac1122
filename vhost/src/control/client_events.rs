//! Events as they come, on a connection of their own.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::client::wait_until;
use super::client_error::ClientError;
use super::messages::{Answer, AnswerMessage, PortEvent};
use super::seqpacket::{Received, receive};

/// A connection on which `fairlead-vswitch` tells what happens to its ports.
#[derive(Debug)]
pub struct EventStream {
    path: PathBuf,
    connection: OwnedFd,
}

impl EventStream {
    pub(super) fn new(path: PathBuf, connection: OwnedFd) -> EventStream {
        EventStream { path, connection }
    }

    /// The next event; `None` if there is none within `limit`.
    ///
    /// # Errors
    /// [`ClientError::Closed`] when `fairlead-vswitch` is gone, [`ClientError::Malformed`] when it sends something else. Then the stream is
    /// of no use any more: connect anew and ask for the ports.
    pub fn next(&mut self, limit: Duration) -> Result<Option<PortEvent>, ClientError> {
        let until = Instant::now() + limit;
        loop {
            match receive(&self.connection) {
                Received::Nothing => {
                    if !wait_until(&self.connection, PollFlags::IN, until) {
                        return Ok(None);
                    }
                }
                Received::Closed => {
                    return Err(ClientError::Closed { path: self.path.clone(), request: "events" });
                }
                Received::TooMuch => return Err(self.malformed(None)),
                Received::Message(bytes, _) => return self.event(&bytes).map(Some),
            }
        }
    }

    fn event(&self, bytes: &[u8]) -> Result<PortEvent, ClientError> {
        let message: AnswerMessage =
            serde_json::from_slice(bytes).map_err(|error| self.malformed(Some(error)))?;
        match message.answer {
            Answer::Event(event) => Ok(event),
            _ => Err(self.malformed(None)),
        }
    }

    fn malformed(&self, source: Option<serde_json::Error>) -> ClientError {
        ClientError::Malformed { path: self.path.clone(), request: "events", source }
    }
}
