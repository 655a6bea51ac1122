//! What the data plane's owner asks of it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use fairlead_host::Uplink;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::command::{Command, Fault};
use super::connections::{Connections, Order};
use super::mailbox::{Mailbox, NoAnswer, mailbox};
use super::poll_link::{PollLink, PollThreads};
use super::poll_places::PollPlace;
use super::poll_thread::{PollThread, PollThreadParts};
use super::port_check::{check_config, check_socket};
use super::thread_links::{MOST_THREADS, ThreadLinks};
use super::waker::Waker;
use crate::capture::{CaptureKey, CaptureRequest, Tap};
use crate::confinement::FILES_OF_ALL_PORTS;
use crate::memory::MemoryBound;
use crate::port::{MacEntry, PortConfig, PortView, UplinkConfig, UplinkView};
use crate::ring::Caller;
use crate::switch::{Limits, TooManyPorts};
use crate::uplink::QueueError;

/// How the poll threads wait for frames, each by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Polling {
    /// A thread polls while there is traffic, and sleeps some hundred microseconds after the last frame.
    #[default]
    Adaptive,
    /// None ever sleeps: a processor for each, and the shortest latency.
    Always,
}

/// How the data plane runs.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Where the poll threads run, one at each place; empty: one thread, on any processor.
    pub places: Vec<PollPlace>,
    /// How they wait.
    pub polling: Polling,
    /// What the guests' memory may cost; absent: that is not bounded.
    pub memory: Option<Arc<MemoryBound>>,
    /// What the switch of each thread holds, and what a port may flood.
    pub limits: Limits,
    /// How many files the ports may have open; absent: as many as [`OPEN_FILES`](crate::confinement::OPEN_FILES) has for ports.
    pub port_files: Option<usize>,
}

/// How a guest comes to a port.
#[derive(Debug)]
pub enum Socket {
    /// A listening unix stream socket: the application connects (virtio_user `server=0`), again after each disconnect.
    Listening(OwnedFd),
    /// A socket that is connected to the application (virtio_user `server=1`). After a disconnect, [`DataPlane::reconnect`] brings
    /// the next one.
    Connecting(OwnedFd),
}

/// What happened to a port's guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It is connected and has shared its memory.
    Connected {
        /// The port's name.
        port: String,
    },
    /// It is connected no longer.
    Disconnected {
        /// The port's name.
        port: String,
        /// Why, in a sentence.
        why: String,
    },
    /// It broke the rules of the protocol or of its rings. [`Event::Disconnected`] follows.
    Misbehaved {
        /// The port's name.
        port: String,
        /// How, in a sentence.
        what: String,
    },
}

/// Why the data plane did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The kernel gives no eventfd or epoll.
    #[error("the data plane gets no eventfd or epoll")]
    Kernel(#[source] nix::Error),
    /// A thread cannot be made.
    #[error("the data plane's thread cannot be started")]
    Thread(#[source] std::io::Error),
    /// A poll thread may not use these processors.
    #[error("a poll thread cannot run on the CPUs {cpus:?}")]
    Cpus {
        /// The processors that were asked for.
        cpus: Vec<usize>,
        /// Why.
        #[source]
        source: nix::Error,
    },
    /// There would be too many poll threads.
    #[error("{0} poll threads are asked for, and there can be {MOST_THREADS}")]
    TooManyThreads(usize),
}

/// Why a port was not added, removed or connected again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// The name is taken.
    #[error("there is a port {0:?} already")]
    NameTaken(String),
    /// There is no such port.
    #[error("there is no port {0:?}")]
    NoSuchPort(String),
    /// A value of the configuration cannot be.
    #[error("the port {name:?} cannot be: {wrong}")]
    Config {
        /// The port's name.
        name: String,
        /// What is wrong.
        wrong: &'static str,
    },
    /// The switch has no place for it.
    #[error(transparent)]
    TooMany(#[from] TooManyPorts),
    /// The socket is no stream socket, or it listens where it should be connected, or the other way round.
    #[error("the socket of a port is not of the kind that was asked for")]
    Socket(#[source] nix::Error),
    /// The port listens: its guest connects by itself.
    #[error("the port {0:?} listens, so no connection can be given to it")]
    Listens(String),
    /// The port connects to its guest, which listens.
    #[error("the port {0:?} connects to its guest, so no socket to listen at can be given to it")]
    Connects(String),
    /// The port still closes what came from its last guest.
    #[error("the port {0:?} still closes what its last guest sent; ask again when that is done")]
    Closes(String),
    /// What guests sent of ports that are removed is still being closed, and takes the place of a port.
    #[error(
        "files of ports that are removed are still being closed, and no more may be open; ask again when that is done"
    )]
    TooManyFiles,
    /// There is a capture of the port already.
    #[error("frames of the port {0:?} are captured already; end that capture first")]
    Captured(String),
    /// The memory of a capture can't be used.
    #[error("the frames of the port cannot be captured: {0}")]
    Capture(String),
    /// The data plane does not answer.
    #[error("the data plane does not answer")]
    NoAnswer,
}

/// Why an uplink was not added or removed.
#[derive(Debug, thiserror::Error)]
pub enum UplinkError {
    /// The network has another.
    #[error("the network {network:?} has the uplink {interface:?} already")]
    Taken {
        /// The network.
        network: String,
        /// The interface that it has.
        interface: String,
    },
    /// There is none.
    #[error("the network {0:?} has no uplink")]
    NoSuchUplink(String),
    /// A queue can't be served.
    #[error("a queue of the interface can't be served")]
    Queue(#[from] QueueError),
    /// The switch has no place for it.
    #[error(transparent)]
    TooMany(#[from] TooManyPorts),
    /// The data plane does not answer.
    #[error("the data plane does not answer")]
    NoAnswer,
}

impl From<NoAnswer> for UplinkError {
    fn from(_: NoAnswer) -> UplinkError {
        UplinkError::NoAnswer
    }
}

impl From<NoAnswer> for PortError {
    fn from(_: NoAnswer) -> PortError {
        PortError::NoAnswer
    }
}

/// The data plane: its threads live until this is dropped.
///
/// It installs handlers of SIGBUS (guests that take away pages of their memory) and SIGURG (to end a write, or a close, that a guest
/// blocks) for the whole process.
pub struct DataPlane {
    orders: Mailbox<Order>,
    connection_thread: Option<JoinHandle<()>>,
    poll_threads: Vec<(Mailbox<Command>, JoinHandle<()>)>,
}

impl DataPlane {
    /// Starts the threads. `events` is called on the connection thread and must not wait, nor call the data plane.
    ///
    /// # Errors
    /// [`StartError`]; no thread is left behind.
    pub fn start(
        options: Options,
        events: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<DataPlane, StartError> {
        let (orders, order_inbox) = mailbox().map_err(StartError::Kernel)?;
        let (faults, fault_inbox) = mailbox().map_err(StartError::Kernel)?;
        let mut plane = DataPlane { orders, connection_thread: None, poll_threads: Vec::new() };
        let threads = plane.start_poll_threads(options.places, options.polling, options.limits, &faults)?;
        let bounds = (options.memory, options.port_files.unwrap_or(FILES_OF_ALL_PORTS));
        let connections = Connections::new(order_inbox, fault_inbox, threads, bounds, Box::new(events));
        let connections = connections.map_err(StartError::Kernel)?;
        let thread = std::thread::Builder::new().name("vswitch-conn".into());
        let thread = thread.spawn(move || connections.run()).map_err(StartError::Thread)?;
        plane.connection_thread = Some(thread);
        Ok(plane)
    }

    /// Starts a poll thread at each place.
    fn start_poll_threads(
        &mut self,
        mut places: Vec<PollPlace>,
        polling: Polling,
        limits: Limits,
        faults: &Mailbox<Fault>,
    ) -> Result<PollThreads, StartError> {
        if places.is_empty() {
            places.push(PollPlace::default());
        }
        if places.len() > MOST_THREADS {
            return Err(StartError::TooManyThreads(places.len()));
        }
        let boxes: Result<Vec<_>, _> = places.iter().map(|_| mailbox()).collect();
        let boxes = boxes.map_err(StartError::Kernel)?;
        let wakers: Vec<_> =
            boxes.iter().map(|(_, inbox)| Arc::new(Waker::new(Arc::clone(inbox.bell())))).collect();
        let links = ThreadLinks::mesh(&wakers);
        let mut threads = Vec::new();
        for (((commands, inbox), place), (links, waker)) in
            boxes.into_iter().zip(places).zip(links.into_iter().zip(wakers))
        {
            let (caller, faults) = (Arc::new(Caller::default()), faults.clone());
            threads.push(PollLink::new(commands.clone(), Arc::clone(&caller), place.numa_node));
            let parts = PollThreadParts { inbox, faults, caller, links, waker, limits };
            let name = match self.poll_threads.len() {
                0 => "vswitch-poll".to_owned(),
                number => format!("vswitch-poll-{number}"),
            };
            let thread = spawn_poll(name, polling, parts, place.cpus)?;
            self.poll_threads.push((commands, thread));
        }
        Ok(PollThreads::new(threads))
    }

    /// Adds a port. When it returns, the guest can connect, or is being talked to. A thread of its NUMA node serves it, if there is one.
    ///
    /// # Errors
    /// [`PortError`]; the socket is closed then.
    pub fn add_port(
        &self,
        config: PortConfig,
        socket: Socket,
        numa_node: Option<u32>,
    ) -> Result<(), PortError> {
        check_config(&config)?;
        match &socket {
            Socket::Listening(socket) => check_socket(socket, true)?,
            Socket::Connecting(socket) => check_socket(socket, false)?,
        }
        self.orders.ask(|done| Order::Add { config: Box::new(config), socket, numa_node, done })?
    }

    /// Removes a port. When it returns, none of its rings is touched any more and its memory is unmapped. What its guest sent is closed
    /// without being waited for.
    ///
    /// # Errors
    /// [`PortError::NoSuchPort`], [`PortError::NoAnswer`].
    pub fn remove_port(&self, name: &str) -> Result<(), PortError> {
        self.orders.ask(|done| Order::Remove { name: name.to_owned(), done })?
    }

    /// Gives a port the next connection to its application. One that is still there is ended. Nothing is heard on the new one before what
    /// came over the old one is closed.
    ///
    /// # Errors
    /// [`PortError`]; the socket is closed then.
    pub fn reconnect(&self, name: &str, socket: OwnedFd) -> Result<(), PortError> {
        check_socket(&socket, false)?;
        self.orders.ask(|done| Order::Reconnect { name: name.to_owned(), socket, done })?
    }

    /// Whether a port that listens can be given a new socket to listen at: to be asked before each, since the old one is one more file that
    /// is to be closed.
    ///
    /// # Errors
    /// [`PortError::Closes`] while there are many already; [`PortError::Connects`], [`PortError::NoSuchPort`], [`PortError::NoAnswer`].
    pub fn can_listen_anew(&self, name: &str) -> Result<(), PortError> {
        self.orders.ask(|done| Order::CanListenAnew { name: name.to_owned(), done })?
    }

    /// Gives a port that listens a new socket to listen at, as its application has no name any more for the one that it has. All else of
    /// the port stays: a guest that is connected, how long it is held off, what its guests' memory costs, and what is to be closed.
    ///
    /// # Errors
    /// [`PortError`]; the socket is closed then.
    pub fn new_listener(&self, name: &str, socket: OwnedFd) -> Result<(), PortError> {
        check_socket(&socket, true)?;
        self.orders.ask(|done| Order::NewListener { name: name.to_owned(), socket, done })?
    }

    /// Gives a network the way to the wire. Its sockets are not bound yet; when this returns, they can be. A thread of the interface's
    /// NUMA node serves it, if there is one.
    ///
    /// # Errors
    /// [`UplinkError`]; the descriptors are closed then.
    pub fn add_uplink(
        &self,
        config: UplinkConfig,
        uplink: Uplink,
        numa_node: Option<u32>,
    ) -> Result<(), UplinkError> {
        self.orders.ask(|done| Order::AddUplink { config, uplink: Box::new(uplink), numa_node, done })?
    }

    /// Takes a network's way to the wire away. When it returns, the interface is the kernel's own.
    ///
    /// # Errors
    /// [`UplinkError::NoSuchUplink`], [`UplinkError::NoAnswer`].
    pub fn remove_uplink(&self, network: &str) -> Result<(), UplinkError> {
        self.orders.ask(|done| Order::RemoveUplink { network: network.to_owned(), done })?
    }

    /// All uplinks as they are now, by network; none if the data plane does not answer.
    pub fn uplinks(&self) -> Vec<UplinkView> {
        self.orders.ask(|done| Order::Uplinks { done }).unwrap_or_default()
    }

    /// Copies frames of a port into the memory of the request from now on, until [`DataPlane::end_capture`] or the end of the port.
    ///
    /// # Errors
    /// [`PortError`]; a port has one capture at a time.
    pub fn capture(&self, name: &str, request: CaptureRequest) -> Result<CaptureKey, PortError> {
        let tap = Tap::new(request).map_err(|error| PortError::Capture(error.to_string()))?;
        self.orders.ask(|done| Order::Capture { name: name.to_owned(), tap: Box::new(tap), done })?
    }

    /// Ends a capture; does nothing if it has ended.
    pub fn end_capture(&self, name: &str, key: CaptureKey) {
        // A data plane that does not answer is about to end.
        let _ = self.orders.ask(|done| Order::EndCapture { name: name.to_owned(), key, done });
    }

    /// All ports as they are now, by name; none if the data plane does not answer.
    pub fn ports(&self) -> Vec<PortView> {
        self.orders.ask(|done| Order::Ports { done }).unwrap_or_default()
    }

    /// The addresses that were learnt; none if the data plane does not answer.
    pub fn mac_table(&self) -> Vec<MacEntry> {
        self.orders.ask(|done| Order::MacTable { done }).unwrap_or_default()
    }
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        // The connection thread first: it ends the connections, for which it needs the poll threads. One that is gone already has
        // nothing to be told.
        let _ = self.orders.send(Order::Stop);
        // A thread that panicked has said so on standard error.
        let _ = self.connection_thread.take().map(JoinHandle::join);
        for (commands, _) in &self.poll_threads {
            let _ = commands.send(Command::Stop);
        }
        for (_, thread) in self.poll_threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn spawn_poll(
    name: String,
    polling: Polling,
    parts: PollThreadParts,
    cpus: Vec<usize>,
) -> Result<JoinHandle<()>, StartError> {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let run = move || {
        parts.caller.on_this_thread();
        // First bound and then made, so that what it is made of is in the memory next to its processors.
        let bound = pin(&cpus).map_err(|source| StartError::Cpus { cpus, source });
        match bound.and_then(|()| PollThread::new(polling, parts).map_err(StartError::Kernel)) {
            Ok(poll) => {
                let _ = ready.send(Ok(()));
                poll.run();
            }
            Err(error) => drop(ready.send(Err(error))),
        }
    };
    let thread = std::thread::Builder::new().name(name).spawn(run).map_err(StartError::Thread)?;
    match is_ready.recv() {
        Ok(Err(error)) => Err(error),
        _ => Ok(thread),
    }
}

/// Binds the calling thread to `cpus`, if there are any.
fn pin(cpus: &[usize]) -> Result<(), nix::Error> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    cpus.iter().try_for_each(|cpu| set.set(*cpu))?;
    sched_setaffinity(Pid::from_raw(0), &set)
}
