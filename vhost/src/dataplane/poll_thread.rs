//! The thread that forwards frames: rounds over all rings, and commands between them.
//!
//! Invariant: nothing here waits but the sleep of an idle thread. Rings are handed back, so that their memory is unmapped elsewhere. The
//! exception is a connection for whose end the connection thread has waited in vain: its rings are dropped here, and may be the last that
//! keep memory mapped.

use std::sync::Arc;
use std::time::Instant;

use super::command::{Command, ConnectionKey, Fault, PortKey, RingKey, slot};
use super::counters::Counters;
use super::forwarding::Forwarding;
use super::handle::Polling;
use super::mailbox::{Inbox, Mailbox};
use super::polled_port::{PolledPort, PolledRing};
use super::sleep::Sleep;
use super::thread_links::ThreadLinks;
use super::waker::Waker;
use crate::ring::{Caller, SplitRing};
use crate::switch::{Coarse, LearntAddress, Limits, PortIndex, PortRules, TableSlice, TooManyPorts};
use crate::uplink::Queues;

/// What the thread owns.
pub(super) struct PollThread {
    forwarding: Forwarding,
    sleep: Sleep,
    inbox: Inbox<Command>,
    faults: Mailbox<Fault>,
    started: Instant,
}

/// What a poll thread has in common with other threads.
pub(super) struct PollThreadParts {
    pub(super) inbox: Inbox<Command>,
    pub(super) faults: Mailbox<Fault>,
    pub(super) caller: Arc<Caller>,
    pub(super) links: ThreadLinks,
    pub(super) waker: Arc<Waker>,
    pub(super) limits: Limits,
}

impl PollThread {
    /// To be called on the thread itself, so that its tables are in the memory next to it.
    ///
    /// # Errors
    /// No epoll is to be had.
    pub(super) fn new(polling: Polling, parts: PollThreadParts) -> Result<PollThread, nix::Error> {
        let PollThreadParts { inbox, faults, caller, links, waker, limits } = parts;
        let sleep = Sleep::new(polling, inbox.bell(), waker)?;
        let forwarding = match links.is_empty() {
            true => Forwarding::new(limits, caller),
            false => Forwarding::linked(limits, caller, links),
        };
        Ok(PollThread { forwarding, sleep, inbox, faults, started: Instant::now() })
    }

    /// Forwards frames until it is told to stop, or nobody is left who could.
    pub(super) fn run(mut self) {
        while self.obey() {
            let now = Instant::now();
            let frames = self.forwarding.round(self.coarse(now));
            self.forwarding.fail_lost_pages();
            for fault in self.forwarding.faults.drain(..) {
                // Without a connection thread there is nothing left to end.
                let _ = self.faults.send(fault);
            }
            self.sleep.after_round(frames, now, &mut self.forwarding);
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
            Command::AddUplink { port, rules, queues, counters, done } => {
                let _ = done.send(self.add_uplink(port, &rules, queues, counters));
            }
            Command::AddElsewhere { port, rules, thread, counters, done } => {
                let _ = done.send(self.add_elsewhere(port, &rules, thread, counters));
            }
            Command::RemoveUplink { port, done } => {
                let removed = self.remove_uplink(port);
                let _ = done.send(removed);
            }
            Command::RemovePort { port, done } => {
                self.remove_port(port);
                let _ = done.send(());
            }
            Command::StartRing { ring, connection, work, kick, enabled, done } => {
                let polled =
                    PolledRing { ring: Some(work), kick: Some(kick), enabled, ..PolledRing::default() };
                self.start_ring(ring, connection, polled);
                let _ = done.send(());
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
            Command::SetCall { ring, call, done } => {
                if let Some(work) = self.ring(ring).and_then(|polled| polled.ring.as_mut()) {
                    work.set_call(call);
                }
                let _ = done.send(());
            }
            Command::SetTap { port, tap, done } => {
                let before = match self.port(port) {
                    Some(polled) => std::mem::replace(&mut polled.tap, tap),
                    None => tap,
                };
                let _ = done.send(before);
            }
            Command::CountAddresses { done } => {
                let _ = done.send(self.forwarding.switch.known_addresses());
            }
            Command::MacTable { slice, done } => {
                let _ = done.send(self.mac_table(slice));
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
        let index = self.forwarding.switch.add_port(rules)?;
        self.insert(index, PolledPort::new(key, queues, counters));
        Ok(())
    }

    fn add_elsewhere(
        &mut self,
        key: PortKey,
        rules: &PortRules,
        thread: usize,
        counters: Arc<Counters>,
    ) -> Result<(), TooManyPorts> {
        let index = self.forwarding.switch.add_port_elsewhere(rules)?;
        self.insert(index, PolledPort::elsewhere(key, thread, counters));
        Ok(())
    }

    fn insert(&mut self, index: PortIndex, port: PolledPort) {
        let index = slot(index);
        let ports = &mut self.forwarding.ports;
        if ports.len() <= index {
            ports.resize_with(index + 1, || None);
        }
        ports[index] = Some(port);
    }

    fn add_uplink(
        &mut self,
        key: PortKey,
        rules: &PortRules,
        queues: Box<Queues>,
        counters: Arc<Counters>,
    ) -> Result<(), TooManyPorts> {
        let sockets = queues.sockets();
        let index = self.forwarding.switch.add_port(rules)?;
        self.insert(index, PolledPort::uplink(key, queues, counters));
        sockets.iter().for_each(|socket| self.sleep.watch(socket));
        Ok(())
    }

    fn remove_uplink(&mut self, key: PortKey) -> Option<Box<Queues>> {
        let queues = self.port(key)?.uplink.take();
        let sockets = queues.as_ref().map(|queues| queues.sockets()).unwrap_or_default();
        sockets.iter().for_each(|socket| self.sleep.forget(socket));
        self.remove_port(key);
        queues
    }

    fn remove_port(&mut self, key: PortKey) {
        let has_key = |port: &Option<PolledPort>| port.as_ref().is_some_and(|port| port.key == key);
        let Some(at) = self.forwarding.ports.iter().position(has_key) else { return };
        self.forwarding.ports[at] = None;
        if let Ok(index) = u16::try_from(at) {
            self.forwarding.switch.remove_port(PortIndex(index));
        }
    }

    fn start_ring(&mut self, ring: RingKey, connection: ConnectionKey, started: PolledRing) {
        self.end_earlier_connection(ring.port, connection);
        started.kick.iter().for_each(|kick| self.sleep.watch(kick));
        if let Some(polled) = self.ring(ring) {
            *polled = started;
        }
    }

    /// Forgets the rings of a connection before: usually each was stopped. One whose end was waited for in vain would be
    /// served still. They are dropped here, and their memory may be unmapped with them.
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

    fn mac_table(&self, slice: TableSlice) -> Vec<(PortKey, LearntAddress)> {
        let now = self.coarse(Instant::now());
        let named = |address: LearntAddress| {
            let port = self.forwarding.ports.get(slot(address.port))?.as_ref()?;
            port.elsewhere.is_none().then_some((port.key, address))
        };
        self.forwarding.switch.mac_table(slice, now).filter_map(named).collect()
    }
}
