//! The thread that speaks vhost-user with the guests, and does what the owner asks for.
//!
//! Invariants: no guest is waited for: sockets do not block, and of one guest some messages are answered before it is another's turn.
//! Every order is answered.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::command::{Command, ConnectionKey, Fault, PortKey};
use super::connection::{GuestPort, Heard, connection_token, listener_token};
use super::handle::{Event, PortError, Socket};
use super::mailbox::{Inbox, Mailbox};
use crate::port::{MacEntry, PortConfig, PortView};
use crate::protocol::Refusal;
use crate::ring::Caller;
use crate::switch::PortRules;

const ORDERS: u64 = 0;
const FAULTS: u64 = 1;

/// How often, in milliseconds, a write of the poll thread that hangs is looked for, while there is a guest who could cause one.
const LOOK_MS: u16 = 100;

/// What the owner asks for.
pub(super) enum Order {
    /// [`DataPlane::add_port`](super::DataPlane::add_port)
    Add { config: Box<PortConfig>, socket: Socket, done: Sender<Result<(), PortError>> },
    /// [`DataPlane::remove_port`](super::DataPlane::remove_port)
    Remove { name: String, done: Sender<Result<(), PortError>> },
    /// [`DataPlane::reconnect`](super::DataPlane::reconnect)
    Reconnect { name: String, socket: OwnedFd, done: Sender<Result<(), PortError>> },
    /// [`DataPlane::ports`](super::DataPlane::ports)
    Ports { done: Sender<Vec<PortView>> },
    /// [`DataPlane::mac_table`](super::DataPlane::mac_table)
    MacTable { done: Sender<Vec<MacEntry>> },
    /// The end of the thread, and of all connections.
    Stop,
}

/// What the thread owns.
pub(super) struct Connections {
    epoll: Epoll,
    orders: Inbox<Order>,
    faults: Inbox<Fault>,
    poll: Mailbox<Command>,
    caller: Arc<Caller>,
    events: Box<dyn Fn(Event) + Send + Sync>,
    ports: BTreeMap<String, GuestPort>,
    /// The last number that was given to a port or a connection.
    last_key: u64,
    writes_seen: u32,
}

impl Connections {
    /// # Errors
    /// No epoll is to be had.
    pub(super) fn new(
        orders: Inbox<Order>,
        faults: Inbox<Fault>,
        poll: Mailbox<Command>,
        caller: Arc<Caller>,
        events: Box<dyn Fn(Event) + Send + Sync>,
    ) -> Result<Connections, nix::Error> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&orders, EpollEvent::new(EpollFlags::EPOLLIN, ORDERS))?;
        epoll.add(&faults, EpollEvent::new(EpollFlags::EPOLLIN, FAULTS))?;
        let (ports, last_key, writes_seen) = (BTreeMap::new(), 0, 0);
        Ok(Connections { epoll, orders, faults, poll, caller, events, ports, last_key, writes_seen })
    }

    /// Serves until it is told to stop, or nobody is left who could.
    pub(super) fn run(mut self) {
        loop {
            let mut events = [EpollEvent::empty(); 32];
            let count = self.epoll.wait(&mut events, self.wait_limit()).unwrap_or(0);
            self.writes_seen = self.caller.interrupt_stuck_write(self.writes_seen);
            for event in events.iter().take(count) {
                match event.data() {
                    ORDERS => self.orders.hush(),
                    FAULTS => self.faults.hush(),
                    token => self.hear(token),
                }
            }
            self.end_faulty();
            if !self.obey() {
                break;
            }
            self.listen_again();
        }
        for port in self.ports.values_mut() {
            port.disconnect(&self.epoll, &self.poll, None);
        }
    }

    fn wait_limit(&self) -> EpollTimeout {
        let something = self.ports.values().any(|port| port.is_held() || port.has_connection());
        if something { EpollTimeout::from(LOOK_MS) } else { EpollTimeout::NONE }
    }

    fn next_key(&mut self) -> u64 {
        self.last_key += 1;
        self.last_key
    }

    fn hear(&mut self, token: u64) {
        let key = ConnectionKey(self.next_key());
        let Some(port) = self.ports.values_mut().find(|port| port.key.0 == token / 2) else { return };
        if token == listener_token(port.key) {
            if let Err(error) = port.accept(&self.epoll, key) {
                tracing::warn!(port = port.config.name, %error, "a guest was not accepted");
            }
        } else if token == connection_token(port.key) {
            match port.hear(&self.poll) {
                Heard::Nothing => {}
                Heard::Connected => (self.events)(Event::Connected { port: port.config.name.clone() }),
                Heard::End(refusal) => self.end(token / 2, &refusal),
            }
        }
    }

    /// Ends the connections whose rings are broken.
    fn end_faulty(&mut self) {
        while let Ok(Some(Fault { port, connection, fault })) = self.faults.next() {
            let same =
                |known: &&mut GuestPort| known.key == port && known.connection_key() == Some(connection);
            if self.ports.values_mut().find(same).is_some() {
                self.end_for(port.0, true, fault.to_string());
            }
        }
    }

    fn end(&mut self, port: u64, refusal: &Refusal) {
        let breach = !matches!(refusal, Refusal::Closed | Refusal::Socket(_) | Refusal::NoAnswer);
        self.end_for(port, breach, sentence(refusal));
    }

    fn end_for(&mut self, key: u64, breach: bool, why: String) {
        let Some(port) = self.ports.values_mut().find(|port| port.key.0 == key) else { return };
        port.disconnect(&self.epoll, &self.poll, breach.then(Instant::now));
        let port = port.config.name.clone();
        if breach {
            (self.events)(Event::Misbehaved { port: port.clone(), what: why.clone() });
        }
        (self.events)(Event::Disconnected { port, why });
    }

    /// Waits for guests where there are none.
    fn listen_again(&mut self) {
        let now = Instant::now();
        for port in self.ports.values_mut() {
            if let Err(error) = port.listen(&self.epoll, now) {
                tracing::warn!(port = port.config.name, %error, "a port does not listen");
            }
        }
    }

    /// Does what was asked for; false for the end.
    fn obey(&mut self) -> bool {
        loop {
            match self.orders.next() {
                Ok(None) => return true,
                Ok(Some(Order::Stop)) | Err(_) => return false,
                Ok(Some(order)) => self.execute(order),
            }
        }
    }

    fn execute(&mut self, order: Order) {
        // Who asked may have given up waiting for the answer.
        match order {
            Order::Add { config, socket, done } => drop(done.send(self.add(*config, socket))),
            Order::Remove { name, done } => drop(done.send(self.remove(&name))),
            Order::Reconnect { name, socket, done } => drop(done.send(self.reconnect(&name, socket))),
            Order::Ports { done } => {
                drop(done.send(self.ports.values().map(GuestPort::view).collect()));
            }
            Order::MacTable { done } => drop(done.send(self.mac_table())),
            Order::Stop => {}
        }
    }

    fn add(&mut self, config: PortConfig, socket: Socket) -> Result<(), PortError> {
        if self.ports.contains_key(&config.name) {
            return Err(PortError::NameTaken(config.name));
        }
        let (listener, connected) = match socket {
            Socket::Listening(listener) => (Some(listener), None),
            Socket::Connecting(connected) => (None, Some(connected)),
        };
        let (port, connection) = (PortKey(self.next_key()), ConnectionKey(self.next_key()));
        let (name, rules, queues) = (config.name.clone(), PortRules::from(&config), config.queues);
        let mut guest = GuestPort::new(port, config, listener);
        let counters = Arc::clone(&guest.counters);
        let added = self.poll.ask(|done| Command::AddPort { port, rules, queues, counters, done });
        if added.is_err() {
            // It may come to it later: then nobody knows of the port.
            let (done, _) = std::sync::mpsc::channel();
            let _ = self.poll.send(Command::RemovePort { port, done });
        }
        added??;
        let joined = match connected {
            Some(socket) => guest.connect(&self.epoll, connection, socket),
            None => guest.listen(&self.epoll, Instant::now()),
        };
        if let Err(error) = joined {
            self.poll.ask(|done| Command::RemovePort { port, done })?;
            return Err(PortError::Socket(error));
        }
        self.ports.insert(name, guest);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> Result<(), PortError> {
        let missing = || PortError::NoSuchPort(name.to_owned());
        let mut guest = self.ports.remove(name).ok_or_else(missing)?;
        let port = guest.key;
        guest.disconnect(&self.epoll, &self.poll, None);
        Ok(self.poll.ask(|done| Command::RemovePort { port, done })?)
    }

    fn reconnect(&mut self, name: &str, socket: OwnedFd) -> Result<(), PortError> {
        let connection = ConnectionKey(self.next_key());
        let port = self.ports.get_mut(name).ok_or_else(|| PortError::NoSuchPort(name.to_owned()))?;
        if port.listens() {
            return Err(PortError::Listens(name.to_owned()));
        }
        port.disconnect(&self.epoll, &self.poll, None);
        port.connect(&self.epoll, connection, socket).map_err(PortError::Socket)
    }

    fn mac_table(&self) -> Vec<MacEntry> {
        let known = self.poll.ask(|done| Command::MacTable { done }).unwrap_or_default();
        let names: BTreeMap<PortKey, &String> =
            self.ports.iter().map(|(name, port)| (port.key, name)).collect();
        let entry = |(key, address): (PortKey, crate::switch::LearntAddress)| {
            let port = (*names.get(&key)?).clone();
            let crate::switch::LearntAddress { network, vlan, mac, age_s, .. } = address;
            Some(MacEntry { network: network.to_string(), vlan, mac, port, age_s })
        };
        known.into_iter().filter_map(entry).collect()
    }
}

/// An error and its causes.
fn sentence(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
