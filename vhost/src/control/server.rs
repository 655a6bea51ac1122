//! The thread that serves the control socket. It waits in poll(2) for all clients at once and for none in particular.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use tracing::{error, warn};

use super::answer_pages::message;
use super::connection::{Connection, Life};
use super::event_queues::EventQueues;
use super::messages::{Answer, Refusal, RefusalCode};
use super::port_commands::PortCommands;
use super::seqpacket::send;

/// How many clients there may be at once: the daemon, its reader of events, and operators.
const CONNECTIONS: usize = 16;

/// The server can't start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Its thread can't be made.
    #[error("the thread of the control socket can't be started; allow the process more threads")]
    Thread(#[source] io::Error),
}

/// The control socket at work. Dropping it closes the socket and all connections.
pub struct Server {
    events: Arc<EventQueues>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves a listening SOCK_SEQPACKET socket in a thread of its own. Only processes of one of `users` are heard.
    ///
    /// # Errors
    /// When there can be no thread more.
    pub fn start(
        listener: OwnedFd,
        commands: impl PortCommands,
        events: Arc<EventQueues>,
        users: Vec<u32>,
    ) -> Result<Server, ServerError> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut service = Service {
            listener,
            commands: Box::new(commands),
            events: Arc::clone(&events),
            users,
            stop: Arc::clone(&stop),
            connections: Vec::new(),
            next_number: 0,
        };
        let thread = Builder::new().name("control-socket".to_owned());
        let thread = thread.spawn(move || service.run()).map_err(ServerError::Thread)?;
        Ok(Server { events, stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.events.wake();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

struct Service {
    listener: OwnedFd,
    commands: Box<dyn PortCommands>,
    events: Arc<EventQueues>,
    users: Vec<u32>,
    stop: Arc<AtomicBool>,
    connections: Vec<Connection>,
    next_number: u64,
}

impl Service {
    fn run(&mut self) {
        while !self.stop.load(Ordering::Acquire) {
            match self.wait() {
                Ok(ready) => self.serve(&ready),
                Err(Errno::INTR) => {}
                Err(error) => return error!(%error, "the control socket is no longer served"),
            }
        }
    }

    /// Waits for something to do; answers what is ready of the listener, the wake and each connection, in this order.
    fn wait(&self) -> Result<Vec<PollFlags>, Errno> {
        let wake = self.events.wake_descriptor();
        let mut fds =
            vec![PollFd::new(&self.listener, PollFlags::IN), PollFd::from_borrowed_fd(wake, PollFlags::IN)];
        for connection in &self.connections {
            fds.push(PollFd::from_borrowed_fd(connection.descriptor(), connection.interest()));
        }
        poll(&mut fds, None)?;
        Ok(fds.iter().map(PollFd::revents).collect())
    }

    fn serve(&mut self, ready: &[PollFlags]) {
        let Some(([listener, wake], clients)) = ready.split_first_chunk::<2>() else { return };
        if !wake.is_empty() {
            self.events.clear_wake();
        }
        let Service { connections, commands, events, .. } = self;
        let mut clients = clients.iter();
        connections.retain_mut(|connection| {
            let ready = clients.next().copied().unwrap_or(PollFlags::empty());
            let life = if ready.is_empty() && wake.is_empty() {
                Life::GoesOn
            } else {
                connection.serve(ready, commands.as_ref(), events)
            };
            if life == Life::Over {
                connection.end(commands.as_ref(), events);
            }
            life == Life::GoesOn
        });
        if !listener.is_empty() {
            self.accept();
        }
    }

    fn accept(&mut self) {
        let socket = match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => socket,
            // The client is gone again.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => return,
            Err(error) => {
                warn!(%error, "a connection to the control socket can't be taken; raise the limit of open files");
                // The client stays in the queue, and poll(2) would answer at once: give descriptors time to come back.
                return std::thread::sleep(std::time::Duration::from_millis(100));
            }
        };
        match self.refusal_of(&socket) {
            None => {
                self.connections.push(Connection::new(self.next_number, socket));
                self.next_number += 1;
            }
            Some(refusal) => {
                warn!(code = ?refusal.code, reason = refusal.reason, "a connection is refused");
                // A client that does not read it sees the end of the connection.
                let _ = send(socket.as_fd(), &message(Answer::Refused(refusal)), &[]);
            }
        }
    }

    fn refusal_of(&self, socket: &OwnedFd) -> Option<Refusal> {
        // Not by rustix, which takes process 0 for an error: that is what a daemon in another container has here.
        let user = match getsockopt(socket, PeerCredentials) {
            Ok(peer) => peer.uid(),
            Err(error) => {
                let reason = format!("the kernel does not tell who connects: {error}");
                return Some(Refusal::new(RefusalCode::NotAllowed, reason));
            }
        };
        if !self.users.contains(&user) {
            let reason = format!("user {user} may not control fairlead-vswitch; connect as root");
            return Some(Refusal::new(RefusalCode::NotAllowed, reason));
        }
        (self.connections.len() >= CONNECTIONS).then(|| {
            let reason = format!("there are {CONNECTIONS} connections already; close one that nobody uses");
            Refusal::new(RefusalCode::TooManyConnections, reason)
        })
    }
}
