//! The rings of one connection, seen from the connection thread: commands to the poll thread that serves them.

use std::sync::Arc;

use super::command::{Command, ConnectionKey, PortKey, RingKey};
use super::poll_link::PollThreads;
use crate::protocol::{Refusal, Rings};
use crate::ring::{GuestEvent, SplitRing};

/// Speaks to a poll thread for one connection.
pub(super) struct RemoteRings<'a> {
    pub(super) threads: &'a PollThreads,
    pub(super) thread: usize,
    pub(super) port: PortKey,
    pub(super) connection: ConnectionKey,
}

impl RemoteRings<'_> {
    fn key(&self, index: usize) -> RingKey {
        RingKey { port: self.port, index }
    }
}

impl Rings for RemoteRings<'_> {
    fn start(
        &mut self,
        index: usize,
        ring: SplitRing,
        kick: Arc<GuestEvent>,
        enabled: bool,
    ) -> Result<(), Refusal> {
        let (key, connection, work) = (self.key(index), self.connection, Box::new(ring));
        // What is acknowledged, or shown as active, is so: the answer is waited for, here and below.
        let done = self.threads.ask(self.thread, |done| Command::StartRing {
            ring: key,
            connection,
            work,
            kick,
            enabled,
            done,
        });
        done.map_err(|_| Refusal::NoAnswer)
    }

    fn stop(&mut self, index: usize) -> Result<u16, Refusal> {
        let ring = self.key(index);
        let stopped = self.threads.ask(self.thread, |done| Command::StopRing { ring, done });
        let stopped = stopped.map_err(|_| Refusal::NoAnswer)?;
        // The ring is dropped here, on the connection thread, and may be the last that keeps memory mapped.
        Ok(stopped.map_or(0, |ring| ring.position()))
    }

    fn enable(&mut self, index: usize, enabled: bool) -> Result<(), Refusal> {
        let ring = self.key(index);
        let done = self.threads.ask(self.thread, |done| Command::EnableRing { ring, enabled, done });
        done.map_err(|_| Refusal::NoAnswer)
    }

    fn set_call(&mut self, index: usize, call: Option<Arc<GuestEvent>>) -> Result<(), Refusal> {
        let ring = self.key(index);
        // A guest that was answered may look at the new eventfd only, or close the old one.
        let done = self.threads.ask(self.thread, |done| Command::SetCall { ring, call, done });
        done.map_err(|_| Refusal::NoAnswer)
    }
}
