//! The thread that forwards frames: rounds over all rings, and commands between them.
//!
//! Invariant: nothing here waits but the sleep of an idle thread. Memory is never unmapped here: rings are handed back.

use std::sync::Arc;
use std::time::Instant;

use super::command::{Command, ConnectionKey, Fault, PortKey, RingKey, slot};
use super::counters::Counters;
use super::forwarding::Forwarding;
use super::handle::Polling;
use super::mailbox::{Inbox, Mailbox};
use super::polled_port::{PolledPort, PolledRing};
use super::sleep::Sleep;
use crate::memory::lost_pages;
use crate::ring::{Caller, GuestEvent, SplitRing};
use crate::switch::{Coarse, LearntAddress, Limits, PortRules, TooManyPorts};

/// What the thread owns.
pub(super) struct PollThread {
    forwarding: Forwarding,
    sleep: Sleep,
    inbox: Inbox<Command>,
    faults: Mailbox<Fault>,
    started: Instant,
    losses: usize,
}

impl PollThread {
    /// # Errors
    /// No epoll is to be had.
    pub(super) fn new(
        polling: Polling,
        inbox: Inbox<Command>,
        faults: Mailbox<Fault>,
        caller: Arc<Caller>,
    ) -> Result<PollThread, nix::Error> {
        let sleep = Sleep::new(polling, &inbox)?;
        let forwarding = Forwarding::new(Limits::default(), caller);
        let losses = lost_pages::losses();
        Ok(PollThread { forwarding, sleep, inbox, faults, started: Instant::now(), losses })
    }

    /// Forwards frames until it is told to stop, or nobody is left who could.
    pub(super) fn run(mut self) {
        while self.obey() {
            let now = Instant::now();
            let frames = self.forwarding.round(self.coarse(now));
            let losses = lost_pages::losses();
            if losses != self.losses {
                self.losses = losses;
                self.forwarding.fail_lost_pages();
            }
            for fault in self.forwarding.faults.drain(..) {
                // Without a connection thread there is nothing left to end.
                let _ = self.faults.send(fault);
            }
            if self.sleep.after_round(frames, now, &mut self.forwarding) {
                self.inbox.hush();
            }
        }
    }

    fn coarse(&self, now: Instant) -> Coarse {
        let passed = now.duration_since(self.started).as_millis();
        Coarse(u64::try_from(passed).unwrap_or(u64::MAX))
    }

    /// Does what was asked for; false for the end.
    fn obey(&mut self) -> bool {
        loop {
            let Ok(next) = self.inbox.next() else { return false };
            let Some(command) = next else { return true };
            if !self.execute(command) {
                return false;
            }
        }
    }

    fn execute(&mut self, command: Command) -> bool {
        match command {
            Command::AddPort { port, rules, queues, counters, done } => {
                let _ = done.send(self.add_port(port, &rules, queues, counters));
            }
            Command::RemovePort { port, done } => {
                self.remove_port(port);
                let _ = done.send(());
            }
            Command::StartRing { ring, connection, work, kick } => {
                self.start_ring(ring, connection, work, kick);
            }
            Command::StopRing { ring, done } => {
                let stopped = self.stop_ring(ring);
                let _ = done.send(stopped);
            }
            Command::EnableRing { ring, enabled, done } => {
                if let Some(polled) = self.ring(ring) {
                    polled.enabled = enabled;
                }
                let _ = done.send(());
            }
            Command::SetCall { ring, call } => {
                if let Some(work) = self.ring(ring).and_then(|polled| polled.ring.as_mut()) {
                    work.set_call(call);
                }
            }
            Command::MacTable { done } => {
                let _ = done.send(self.mac_table());
            }
            Command::Stop => return false,
        }
        true
    }

    fn add_port(
        &mut self,
        key: PortKey,
        rules: &PortRules,
        queues: u16,
        counters: Arc<Counters>,
    ) -> Result<(), TooManyPorts> {
        let index = slot(self.forwarding.switch.add_port(rules)?);
        let ports = &mut self.forwarding.ports;
        if ports.len() <= index {
            ports.resize_with(index + 1, || None);
        }
        ports[index] = Some(PolledPort::new(key, queues, counters));
        Ok(())
    }

    fn remove_port(&mut self, key: PortKey) {
        let has_key = |port: &Option<PolledPort>| port.as_ref().is_some_and(|port| port.key == key);
        let Some(at) = self.forwarding.ports.iter().position(has_key) else { return };
        self.forwarding.ports[at] = None;
        if let Ok(index) = u16::try_from(at) {
            self.forwarding.switch.remove_port(crate::switch::PortIndex(index));
        }
    }

    fn start_ring(
        &mut self,
        ring: RingKey,
        connection: ConnectionKey,
        work: Box<SplitRing>,
        kick: Arc<GuestEvent>,
    ) {
        self.end_earlier_connection(ring.port, connection);
        self.sleep.watch(&kick);
        if let Some(polled) = self.ring(ring) {
            *polled = PolledRing { ring: Some(work), kick: Some(kick), enabled: false, unpublished: false };
        }
    }

    /// Forgets the rings of a connection before: usually each was stopped. One whose end was not waited for would be served still.
    fn end_earlier_connection(&mut self, port: PortKey, connection: ConnectionKey) {
        let Some(polled) = self.port(port).filter(|polled| polled.connection != connection) else { return };
        (polled.connection, polled.failed) = (connection, false);
        let left: Vec<PolledRing> = polled.rings.iter_mut().map(std::mem::take).collect();
        left.iter().filter_map(|ring| ring.kick.as_ref()).for_each(|kick| self.sleep.forget(kick));
    }

    fn stop_ring(&mut self, ring: RingKey) -> Option<Box<SplitRing>> {
        let PolledRing { ring, kick, .. } = std::mem::take(self.ring(ring)?);
        if let Some(kick) = kick {
            self.sleep.forget(&kick);
        }
        ring
    }

    fn port(&mut self, key: PortKey) -> Option<&mut PolledPort> {
        self.forwarding.ports.iter_mut().flatten().find(|port| port.key == key)
    }

    fn ring(&mut self, ring: RingKey) -> Option<&mut PolledRing> {
        self.port(ring.port)?.rings.get_mut(ring.index)
    }

    fn mac_table(&self) -> Vec<(PortKey, LearntAddress)> {
        let now = self.coarse(Instant::now());
        let named = |address: LearntAddress| {
            let port = self.forwarding.ports.get(slot(address.port))?.as_ref()?;
            Some((port.key, address))
        };
        self.forwarding.switch.mac_table(now).into_iter().filter_map(named).collect()
    }
}
