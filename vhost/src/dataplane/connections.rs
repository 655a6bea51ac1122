//! The thread that speaks vhost-user with the guests, and does what the owner asks for.
//!
//! Invariants: no guest is waited for: sockets do not block, and of one guest some messages are answered before it is another's turn.
//! Every order is answered. Nothing that a guest sent is closed here: how long that takes is up to the guest.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use fairlead_host::Uplink;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::command::{Command, ConnectionKey, Fault, PortKey};
use super::connection::{GuestPort, Heard, connection_token, listener_token};
use super::counters::PortCounts;
use super::handle::{Event, PortError, Socket, UplinkError};
use super::mailbox::{Inbox, NoAnswer};
use super::poll_link::{LOOK, PollThreads};
use super::unread_replies::UnreadReplies;
use super::uplinks::Uplinks;
use crate::capture::{CaptureKey, Tap};
use crate::confinement::FILES_OF_A_PORT;
use crate::error_chain::sentence;
use crate::interruption;
use crate::log_limit::{Admitted, LogLimit};
use crate::memory::{FileCloser, GuestFile, MemoryBound, RegionError};
use crate::port::{MacEntry, PortConfig, PortView, UplinkConfig, UplinkView};
use crate::protocol::Refusal;
use crate::ring::RingFault;
use crate::switch::{PortRules, TableSlice};

const ORDERS: u64 = 0;
const FAULTS: u64 = 1;

/// About how many addresses a poll thread tells of at once. Frames wait meanwhile: 50 to 80 µs where 16,384 are learnt.
const SLICE_ADDRESSES: usize = 1_024;

/// What the owner asks for.
pub(super) enum Order {
    /// [`DataPlane::add_port`](super::DataPlane::add_port)
    Add {
        config: Box<PortConfig>,
        socket: Socket,
        numa_node: Option<u32>,
        done: Sender<Result<(), PortError>>,
    },
    /// [`DataPlane::remove_port`](super::DataPlane::remove_port)
    Remove { name: String, done: Sender<Result<(), PortError>> },
    /// [`DataPlane::reconnect`](super::DataPlane::reconnect)
    Reconnect { name: String, socket: OwnedFd, done: Sender<Result<(), PortError>> },
    /// [`DataPlane::can_listen_anew`](super::DataPlane::can_listen_anew)
    CanListenAnew { name: String, done: Sender<Result<(), PortError>> },
    /// [`DataPlane::new_listener`](super::DataPlane::new_listener)
    NewListener { name: String, socket: OwnedFd, done: Sender<Result<(), PortError>> },
    /// [`DataPlane::add_uplink`](super::DataPlane::add_uplink)
    AddUplink {
        config: UplinkConfig,
        uplink: Box<Uplink>,
        numa_node: Option<u32>,
        done: Sender<Result<(), UplinkError>>,
    },
    /// [`DataPlane::remove_uplink`](super::DataPlane::remove_uplink)
    RemoveUplink { network: String, done: Sender<Result<(), UplinkError>> },
    /// [`DataPlane::uplinks`](super::DataPlane::uplinks)
    Uplinks { done: Sender<Vec<UplinkView>> },
    /// [`DataPlane::capture`](super::DataPlane::capture)
    Capture { name: String, tap: Box<Tap>, done: Sender<Result<CaptureKey, PortError>> },
    /// [`DataPlane::end_capture`](super::DataPlane::end_capture)
    EndCapture { name: String, key: CaptureKey, done: Sender<()> },
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
    threads: PollThreads,
    events: Box<dyn Fn(Event) + Send + Sync>,
    ports: BTreeMap<String, GuestPort>,
    /// The closer of each port, also of one that was removed, until it has closed all.
    closers: Vec<FileCloser>,
    /// Replies that guests of removed ports have not read. Each has its port's closer until they have.
    unread_of_removed: Vec<UnreadReplies>,
    uplinks: Uplinks,
    /// What the guests' memory may cost; absent: that is not bounded.
    memory: Option<Arc<MemoryBound>>,
    /// The port whose memory was audited last, and when.
    audited: (PortKey, Instant),
    /// How many files all ports may have open.
    port_files: usize,
    /// What is said of ports: that they take no guest, or that theirs may be told too high an MTU.
    log_limit: LogLimit,
    /// The last number that was given to a port or a connection.
    last_key: u64,
}

impl Connections {
    /// # Errors
    /// No epoll is to be had.
    pub(super) fn new(
        orders: Inbox<Order>,
        faults: Inbox<Fault>,
        threads: PollThreads,
        (memory, port_files): (Option<Arc<MemoryBound>>, usize),
        events: Box<dyn Fn(Event) + Send + Sync>,
    ) -> Result<Connections, nix::Error> {
        interruption::handle_signal();
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(orders.bell(), EpollEvent::new(EpollFlags::EPOLLIN, ORDERS))?;
        epoll.add(faults.bell(), EpollEvent::new(EpollFlags::EPOLLIN, FAULTS))?;
        Ok(Connections {
            epoll,
            orders,
            faults,
            threads,
            events,
            ports: BTreeMap::new(),
            closers: Vec::new(),
            unread_of_removed: Vec::new(),
            uplinks: Uplinks::default(),
            memory,
            audited: (PortKey(0), Instant::now()),
            port_files,
            log_limit: LogLimit::default(),
            last_key: 0,
        })
    }

    /// Serves until it is told to stop, or nobody is left who could.
    pub(super) fn run(mut self) {
        loop {
            let mut events = [EpollEvent::empty(); 32];
            let count = self.epoll.wait(&mut events, self.wait_limit()).unwrap_or(0);
            self.threads.look();
            self.look_after_closers();
            if let Some(memory) = &self.memory {
                memory.forget_dead_files();
            }
            self.audit_memory();
            for event in events.iter().take(count) {
                match event.data() {
                    ORDERS => self.orders.bell().hush(),
                    FAULTS => self.faults.bell().hush(),
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
            port.disconnect(&self.epoll, &self.threads, None);
        }
    }

    fn wait_limit(&self) -> EpollTimeout {
        let looks = EpollTimeout::try_from(LOOK).unwrap_or(EpollTimeout::ZERO);
        let something = self.ports.values().any(|port| port.is_held() || port.has_connection());
        let of_removed_ports = self.closers.len() > self.ports.len();
        if something || of_removed_ports { looks } else { EpollTimeout::NONE }
    }

    /// Sees to it that all closers get on, and forgets those of removed ports that are done.
    fn look_after_closers(&mut self) {
        self.unread_of_removed.retain_mut(|unread| {
            unread.look();
            unread.count() > 0
        });
        let now = Instant::now();
        self.closers.retain_mut(|closer| {
            closer.look(now);
            !closer.is_finished()
        });
    }

    /// Goes on with the audit of one port's memory, the next whose turn it is: once in a [`LOOK`], however often guests wake the thread.
    fn audit_memory(&mut self) {
        let (now, (last, at)) = (Instant::now(), self.audited);
        if now.saturating_duration_since(at) < LOOK {
            return;
        }
        let due = self.ports.values_mut().filter(|port| port.is_to_be_audited(now));
        let next = due.min_by_key(|port| port.key.0.wrapping_sub(last.0 + 1));
        if let Some(port) = next {
            port.audit_memory(now);
            self.audited = (port.key, now);
        }
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
            let heard = port.hear(&self.epoll, &self.threads);
            if let Some(mtu) = port.take_long_mtu()
                && let Some(Admitted { left_out }) = self.log_limit.admit(&port.config.name, Instant::now())
            {
                tracing::warn!(
                    port = port.config.name,
                    mtu,
                    most = port.config.mtu,
                    left_out,
                    "the guest may be told an MTU above its port's, and longer frames are dropped: lower QEMU's host_mtu"
                );
            }
            match heard {
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
            if let Some(known) = self.ports.values_mut().find(same) {
                if fault == RingFault::TooMuchMemory {
                    known.counters.add_memory_refusal();
                }
                self.end_for(port.0, true, fault.to_string());
            }
        }
    }

    fn end(&mut self, port: u64, refusal: &Refusal) {
        let breach = !matches!(refusal, Refusal::Closed | Refusal::Socket(_) | Refusal::NoAnswer);
        let too_much = matches!(
            refusal,
            Refusal::Region(RegionError::TooMuch { .. }) | Refusal::Ring(RingFault::TooMuchMemory)
        );
        if let Some(known) = self.ports.values().find(|known| known.key.0 == port).filter(|_| too_much) {
            known.counters.add_memory_refusal();
        }
        self.end_for(port, breach, sentence(refusal));
    }

    fn end_for(&mut self, key: u64, breach: bool, why: String) {
        let Some(port) = self.ports.values_mut().find(|port| port.key.0 == key) else { return };
        port.disconnect(&self.epoll, &self.threads, breach.then(Instant::now));
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
            if port.is_kept_from_guests(now)
                && let Some(Admitted { left_out }) = self.log_limit.admit(&port.config.name, now)
            {
                tracing::warn!(
                    port = port.config.name,
                    left_out,
                    "a port takes no guest until what its last ones left is gone, which takes long: a socket with SO_LINGER, a file that \
                     the pod serves, much memory, or replies that nobody has read, in sockets that the pod still has open"
                );
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
            Order::Add { config, socket, numa_node, done } => {
                drop(done.send(self.add(*config, socket, numa_node)));
            }
            Order::Remove { name, done } => drop(done.send(self.remove(&name))),
            Order::Reconnect { name, socket, done } => drop(done.send(self.reconnect(&name, socket))),
            Order::CanListenAnew { name, done } => {
                let port = self.ports.get(&name).ok_or(PortError::NoSuchPort(name));
                drop(done.send(port.and_then(GuestPort::can_listen_anew)));
            }
            Order::NewListener { name, socket, done } => drop(done.send(self.new_listener(&name, socket))),
            Order::AddUplink { config, uplink, numa_node, done } => {
                let (port, thread) = (PortKey(self.next_key()), self.thread_for(numa_node));
                drop(done.send(self.uplinks.add(&self.threads, port, thread, config, *uplink)));
            }
            Order::RemoveUplink { network, done } => {
                drop(done.send(self.uplinks.remove(&self.threads, &network)));
            }
            Order::Uplinks { done } => drop(done.send(self.uplinks.views(&self.threads))),
            Order::Capture { name, tap, done } => drop(done.send(self.capture(&name, tap))),
            Order::EndCapture { name, key, done } => {
                if self.ports.get(&name).is_some_and(|port| port.capture == Some(key)) {
                    self.end_capture(&name);
                }
                let _ = done.send(());
            }
            Order::Ports { done } => {
                let views = self.ports.values().map(|port| port.view(&self.threads));
                drop(done.send(views.collect()));
            }
            Order::MacTable { done } => drop(done.send(self.mac_table())),
            Order::Stop => {}
        }
    }

    /// The poll thread for a port or an uplink of this NUMA node.
    fn thread_for(&self, numa_node: Option<u32>) -> usize {
        let ports = |thread| self.ports.values().filter(move |port| port.thread == thread).count();
        self.threads.choose(numa_node, |thread| ports(thread) + self.uplinks.count_of(thread))
    }

    fn add(&mut self, config: PortConfig, socket: Socket, numa_node: Option<u32>) -> Result<(), PortError> {
        let has_room = self.has_room_for_files();
        let bell = Arc::clone(self.orders.bell());
        // What waits for its end is looked at again after each wake-up.
        let closer = FileCloser::new(move || bell.ring());
        self.closers.push(closer.clone());
        let (listener, connected) = match socket {
            Socket::Listening(listener) => (Some(GuestFile::new(listener, &closer)), None),
            Socket::Connecting(connected) => (None, Some(GuestFile::new(connected, &closer))),
        };
        if self.ports.contains_key(&config.name) {
            return Err(PortError::NameTaken(config.name));
        }
        if !has_room {
            return Err(PortError::TooManyFiles);
        }
        let (port, connection) = (PortKey(self.next_key()), ConnectionKey(self.next_key()));
        let (name, rules, queues) = (config.name.clone(), PortRules::from(&config), config.queues);
        let account = self.memory.as_ref().map(MemoryBound::account);
        let (thread, counts) = (self.thread_for(numa_node), PortCounts::of_threads(self.threads.count()));
        let added = self.threads.ask_each(|at, done| {
            let (rules, counters) = (rules.clone(), counts.of_thread(at));
            match at == thread {
                true => Command::AddPort { port, rules, queues, counters, done },
                false => Command::AddElsewhere { port, rules, thread, counters, done },
            }
        });
        let added =
            added.map_err(PortError::from).and_then(|all| Ok(all.into_iter().collect::<Result<(), _>>()?));
        if added.is_err() {
            // It may have come to some threads, or come to them later: then nobody knows of the port.
            self.threads.tell_each(|done| Command::RemovePort { port, done });
        }
        added?;
        let mut guest = GuestPort::new(port, config, (counts, thread), (listener, closer), account);
        let joined = match connected {
            Some(socket) => guest.connect(&self.epoll, connection, socket),
            None => guest.listen(&self.epoll, Instant::now()),
        };
        if let Err(error) = joined {
            self.remove_everywhere(port)?;
            return Err(PortError::Socket(error));
        }
        self.ports.insert(name, guest);
        Ok(())
    }

    /// Whether one more port may have as many files open as a port is counted with. One that was removed counts like any other until its
    /// closer has closed all; and where a closer has more to close than a port is counted with, so much counts.
    fn has_room_for_files(&mut self) -> bool {
        self.look_after_closers();
        let open: usize = self.closers.iter().map(|closer| closer.open().max(FILES_OF_A_PORT)).sum();
        open + FILES_OF_A_PORT <= self.port_files
    }

    fn remove(&mut self, name: &str) -> Result<(), PortError> {
        self.end_capture(name);
        let missing = || PortError::NoSuchPort(name.to_owned());
        let mut guest = self.ports.remove(name).ok_or_else(missing)?;
        let port = guest.key;
        guest.disconnect(&self.epoll, &self.threads, None);
        guest.stop_listening(&self.epoll);
        self.unread_of_removed.push(guest.unread);
        Ok(self.remove_everywhere(port)?)
    }

    /// Has all poll threads forget a port, whose rings have been stopped before.
    fn remove_everywhere(&self, port: PortKey) -> Result<(), NoAnswer> {
        self.threads.ask_each(|_, done| Command::RemovePort { port, done }).map(drop)
    }

    fn reconnect(&mut self, name: &str, socket: OwnedFd) -> Result<(), PortError> {
        let connection = ConnectionKey(self.next_key());
        let port = self.ports.get_mut(name).ok_or_else(|| PortError::NoSuchPort(name.to_owned()))?;
        if port.listens() {
            return Err(PortError::Listens(name.to_owned()));
        }
        port.disconnect(&self.epoll, &self.threads, None);
        port.connect_next(&self.epoll, connection, socket).map_err(PortError::Socket)
    }

    fn new_listener(&mut self, name: &str, socket: OwnedFd) -> Result<(), PortError> {
        let port = self.ports.get_mut(name).ok_or_else(|| PortError::NoSuchPort(name.to_owned()))?;
        port.replace_listener(&self.epoll, socket)
    }

    fn capture(&mut self, name: &str, tap: Box<Tap>) -> Result<CaptureKey, PortError> {
        let key = CaptureKey(self.next_key());
        let port = self.ports.get_mut(name).ok_or_else(|| PortError::NoSuchPort(name.to_owned()))?;
        if port.capture.is_some() {
            return Err(PortError::Captured(name.to_owned()));
        }
        let (port_key, tap) = (port.key, Some(tap));
        self.threads.ask(port.thread, |done| Command::SetTap { port: port_key, tap, done })?;
        port.capture = Some(key);
        Ok(key)
    }

    /// Ends the capture of a port, if there is one. Its memory is unmapped here.
    fn end_capture(&mut self, name: &str) {
        let Some(port) = self.ports.get_mut(name).filter(|port| port.capture.is_some()) else { return };
        port.capture = None;
        let (port, thread) = (port.key, port.thread);
        drop(self.threads.ask(thread, |done| Command::SetTap { port, tap: None, done }));
    }

    /// In slices, between which the poll threads forward frames. An address that moves meanwhile may be told twice or not at all.
    fn mac_table(&self) -> Vec<MacEntry> {
        let counts = self.threads.ask_each(|_, done| Command::CountAddresses { done }).unwrap_or_default();
        let of = counts.into_iter().max().map_or(0, |most| most / SLICE_ADDRESSES + 1);
        let slices = (0..of).map(|at| TableSlice { at, of });
        let known = slices.map(|slice| self.threads.ask_each(|_, done| Command::MacTable { slice, done }));
        let known = known.collect::<Result<Vec<_>, _>>().unwrap_or_default();
        let names: BTreeMap<PortKey, &String> =
            self.ports.iter().map(|(name, port)| (port.key, name)).chain(self.uplinks.names()).collect();
        let entry = |(key, address): (PortKey, crate::switch::LearntAddress)| {
            let port = (*names.get(&key)?).clone();
            let crate::switch::LearntAddress { network, vlan, mac, age_s, .. } = address;
            Some(MacEntry { network: network.to_string(), vlan, mac, port, age_s })
        };
        known.into_iter().flatten().flatten().filter_map(entry).collect()
    }
}
