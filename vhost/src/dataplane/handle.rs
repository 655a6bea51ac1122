//! What the data plane's owner asks of it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::command::Command;
use super::connections::{Connections, Order};
use super::mailbox::{Mailbox, NoAnswer, mailbox};
use super::poll_thread::PollThread;
use super::port_check::{check_config, check_socket};
use crate::port::{MacEntry, PortConfig, PortView};
use crate::ring::Caller;

/// How the poll thread waits for frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Polling {
    /// It polls while there is traffic, and sleeps some hundred microseconds after the last frame.
    #[default]
    Adaptive,
    /// It never sleeps: a processor of its own, and the shortest latency.
    Always,
}

/// How the data plane runs.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The processors that the poll thread may use; empty: all.
    pub cpus: Vec<usize>,
    /// How it waits.
    pub polling: Polling,
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
    /// The poll thread may not use these processors.
    #[error("the poll thread cannot run on the CPUs {cpus:?}")]
    Cpus {
        /// The processors that were asked for.
        cpus: Vec<usize>,
        /// Why.
        #[source]
        source: nix::Error,
    },
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
    /// As many ports as a switch numbers.
    #[error("there are {0} ports, and no more can be")]
    TooMany(usize),
    /// The socket is no stream socket, or it listens where it should be connected, or the other way round.
    #[error("the socket of a port is not of the kind that was asked for")]
    Socket(#[source] nix::Error),
    /// The port listens: its guest connects by itself.
    #[error("the port {0:?} listens, so no connection can be given to it")]
    Listens(String),
    /// The data plane does not answer.
    #[error("the data plane does not answer")]
    NoAnswer,
}

impl From<NoAnswer> for PortError {
    fn from(_: NoAnswer) -> PortError {
        PortError::NoAnswer
    }
}

/// The data plane: two threads that live until this is dropped.
///
/// It installs handlers of SIGBUS (guests that take away pages of their memory) and SIGURG (to end a write that a guest blocks) for
/// the whole process.
pub struct DataPlane {
    orders: Mailbox<Order>,
    commands: Mailbox<Command>,
    connection_thread: Option<JoinHandle<()>>,
    poll_thread: Option<JoinHandle<()>>,
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
        let (commands, command_inbox) = mailbox().map_err(StartError::Kernel)?;
        let (faults, fault_inbox) = mailbox().map_err(StartError::Kernel)?;
        let caller = Arc::new(Caller::default());
        let poll = PollThread::new(options.polling, command_inbox, faults, Arc::clone(&caller));
        let poll = poll.map_err(StartError::Kernel)?;
        let connections = Connections::new(
            order_inbox,
            fault_inbox,
            commands.clone(),
            Arc::clone(&caller),
            Box::new(events),
        );
        let connections = connections.map_err(StartError::Kernel)?;
        let poll_thread = spawn_poll(poll, options.cpus, caller)?;
        let poll_thread = Some(poll_thread);
        let mut plane = DataPlane { orders, commands, connection_thread: None, poll_thread };
        let thread = std::thread::Builder::new().name("vswitch-conn".into());
        let thread = thread.spawn(move || connections.run()).map_err(StartError::Thread)?;
        plane.connection_thread = Some(thread);
        Ok(plane)
    }

    /// Adds a port. When it returns, the guest can connect, or is being talked to.
    ///
    /// # Errors
    /// [`PortError`]; the socket is closed then.
    pub fn add_port(&self, config: PortConfig, socket: Socket) -> Result<(), PortError> {
        check_config(&config)?;
        check_socket(&socket)?;
        self.orders.ask(|done| Order::Add { config: Box::new(config), socket, done })?
    }

    /// Removes a port. When it returns, none of its rings is touched any more and its memory is unmapped.
    ///
    /// # Errors
    /// [`PortError::NoSuchPort`], [`PortError::NoAnswer`].
    pub fn remove_port(&self, name: &str) -> Result<(), PortError> {
        self.orders.ask(|done| Order::Remove { name: name.to_owned(), done })?
    }

    /// Gives a port the next connection to its application. One that is still there is ended.
    ///
    /// # Errors
    /// [`PortError`]; the socket is closed then.
    pub fn reconnect(&self, name: &str, socket: OwnedFd) -> Result<(), PortError> {
        let socket = Socket::Connecting(socket);
        check_socket(&socket)?;
        let Socket::Connecting(socket) = socket else { return Ok(()) };
        self.orders.ask(|done| Order::Reconnect { name: name.to_owned(), socket, done })?
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
        // The connection thread first: it ends the connections, for which it needs the poll thread. One that is gone already has
        // nothing to be told.
        let _ = self.orders.send(Order::Stop);
        // A thread that panicked has said so on standard error.
        let _ = self.connection_thread.take().map(JoinHandle::join);
        let _ = self.commands.send(Command::Stop);
        let _ = self.poll_thread.take().map(JoinHandle::join);
    }
}

fn spawn_poll(poll: PollThread, cpus: Vec<usize>, caller: Arc<Caller>) -> Result<JoinHandle<()>, StartError> {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let asked = cpus.clone();
    let run = move || {
        caller.on_this_thread();
        let pinned = pin(&cpus);
        let go_on = pinned.is_ok();
        let _ = ready.send(pinned);
        if go_on {
            poll.run();
        }
    };
    let thread = std::thread::Builder::new().name("vswitch-poll".into()).spawn(run);
    let thread = thread.map_err(StartError::Thread)?;
    match is_ready.recv() {
        Ok(Err(source)) => Err(StartError::Cpus { cpus: asked, source }),
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
