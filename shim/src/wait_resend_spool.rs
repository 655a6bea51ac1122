//! What each command does when the daemon answers, is away, is stopping, or goes away.
//!
//! ADD and CHECK wait for a daemon, and are never sent again once a daemon may have begun. DEL and GC may be sent
//! twice, because both do nothing where nothing is left to do, and a GC says when it was made; without a daemon they are
//! spooled. STATUS answers at once, and waits only for a daemon whose process is seen at work.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairlead_cni::CniError;
use fairlead_cni::wire::{Command, RECEIVED, Request, STOPPING_FILE, Spooled, announced_stop_holds};

use crate::bare_process::since_boot;
use crate::call_error::CallError;
use crate::connection::{ConnectError, Connection, Socket};
use crate::daemon_process::DaemonProcess;
use crate::deadline::{Deadline, Pause};
use crate::environment::Invocation;
use crate::http_exchange::{Answer, Exchange, Outcome};
use crate::netns_identity::Netns;
use crate::spool_writer::Spool;
use crate::status_wait::StatusWait;
use crate::stdin_config;
use crate::wait_for_socket;

/// A daemon may think by so much that the caller waits longer than it does.
const NOTICED: Duration = Duration::from_millis(10);

/// A call that is ready to be made.
#[derive(Debug)]
pub(crate) struct Call {
    /// What the environment says, and the configuration.
    pub(crate) invocation: Invocation,
    /// The pod's namespace, held open until the process ends.
    pub(crate) netns: Option<Netns>,
    /// When the program was started, as [`since_boot`] has it.
    pub(crate) began: Duration,
    /// The time at which the caller stops waiting.
    pub(crate) deadline: Deadline,
    /// The socket for the first connection.
    pub(crate) socket: Option<Socket>,
    /// The connection on which the answer came. The daemon waits on it to learn whether the answer has arrived.
    pub(crate) answered_on: Option<Connection>,
}

impl Call {
    /// Makes the call and returns the result's bytes.
    pub(crate) fn run(&mut self) -> Result<Vec<u8>, CallError> {
        match self.request().command {
            Command::Add | Command::Check => self.call_when_there_is_a_daemon(),
            Command::Del => self.call_or_spool(),
            Command::Gc => {
                // Its list is older than this program, whichever daemon gets it, and when.
                self.note_start();
                self.call_or_spool()
            }
            Command::Status => {
                // The daemon waits for plugins only as long as this program waits for the daemon.
                self.note_start();
                self.status()
            }
        }
    }

    fn call_when_there_is_a_daemon(&mut self) -> Result<Vec<u8>, CallError> {
        let mut pause = Pause::new();
        loop {
            let (connection, mut exchange) = self.wait_and_connect()?;
            let error = match exchange.advance(&connection, self.deadline) {
                Outcome::Stopping => CallError::Stopping,
                Outcome::NotRead => CallError::NotRead,
                other => {
                    self.answered_on = Some(connection);
                    return self.conclude(other);
                }
            };
            if !pause.sleep(self.deadline) {
                return Err(error);
            }
        }
    }

    /// Tells the daemon that the runtime has the result of an ADD.
    pub(crate) fn acknowledge(&self) {
        if let Some(connection) = self.answered_on.as_ref().filter(|_| self.request().command == Command::Add)
        {
            // If this is lost, the daemon answers the identical ADD once more, which does no harm.
            let _ = connection.send(RECEIVED, self.deadline);
        }
    }

    /// Connects, and waits for a daemon where none runs. It does not wait for the sake of a configuration that no daemon
    /// would accept.
    fn wait_and_connect(&mut self) -> Result<(Connection, Exchange), CallError> {
        match self.connect() {
            Ok(ready) => return Ok(ready),
            Err(ConnectError::Down(_)) => {}
            Err(other) => return Err(CallError::NoConnection(other)),
        }
        stdin_config::check(&self.request().config, self.request().command).map_err(CallError::Config)?;
        let connection = wait_for_socket::connect(&self.invocation.socket, self.deadline);
        let connection = connection.map_err(CallError::NoConnection)?;
        // The caller will not wait as long any more.
        Ok((connection, self.exchange()))
    }

    /// Connects; the exchange is made before, since connecting wakes the daemon, which then finds the request there.
    fn connect(&mut self) -> Result<(Connection, Exchange), ConnectError> {
        let exchange = self.exchange();
        let socket = self.socket.take().map_or_else(Socket::new, Ok)?;
        let connection = socket.connect(&self.invocation.socket, self.deadline)?;
        // It may have waited for a place in the daemon's queue, and the request says how long the caller still waits.
        let said = Duration::from_millis(self.request().deadline_ms);
        let is_stale = said.saturating_sub(self.deadline.remaining()) > NOTICED;
        Ok((connection, if is_stale { self.exchange() } else { exchange }))
    }

    fn call_or_spool(&mut self) -> Result<Vec<u8>, CallError> {
        match self.connect() {
            Ok((connection, mut exchange)) => match exchange.advance(&connection, self.deadline) {
                Outcome::Stopping | Outcome::NotRead | Outcome::Lost => {}
                other => return self.conclude(other),
            },
            Err(ConnectError::Down(_)) => {}
            Err(other) => return Err(CallError::NoConnection(other)),
        }
        stdin_config::check(&self.request().config, self.request().command).map_err(CallError::Config)?;
        let mut pause = Pause::new();
        loop {
            if let Some(result) = self.call_or_spool_locked()? {
                return Ok(result);
            }
            if !pause.sleep(self.deadline) {
                return Err(CallError::Lost);
            }
        }
    }

    /// Tries once more, now under the spool's lock, and spools the call where no daemon runs. `None` when a running daemon
    /// lost the call, which must then be made again.
    #[cold]
    fn call_or_spool_locked(&mut self) -> Result<Option<Vec<u8>>, CallError> {
        let spool = Spool::lock(&self.invocation.state_dir, self.deadline).map_err(CallError::Spool)?;
        match self.connect() {
            Ok((connection, mut exchange)) => match exchange.advance(&connection, self.deadline) {
                // This daemon begins nothing any more, and the next one waits for our lock before it replays the spool.
                Outcome::Stopping => {}
                Outcome::NotRead | Outcome::Lost => return Ok(None),
                other => return self.conclude(other).map(Some),
            },
            Err(ConnectError::Down(_)) => {}
            Err(other) => return Err(CallError::NoConnection(other)),
        }
        // The caller's time is over when it is replayed; the daemon then sets its own limit.
        self.invocation.request.deadline_ms = 0;
        self.note_start();
        self.invocation.request.spooled = Some(self.spool_details());
        spool.write(self.request(), self.deadline).map_err(CallError::Spool)?;
        Ok(Some(Vec::new()))
    }

    fn status(&mut self) -> Result<Vec<u8>, CallError> {
        match self.status_of_a_working_daemon() {
            Err(error) if error.ends_with_a_restart() && stop_was_announced(&self.invocation.socket) => {
                Ok(Vec::new())
            }
            other => other,
        }
    }

    /// Waits for the answer as long as the daemon's process is at work.
    fn status_of_a_working_daemon(&mut self) -> Result<Vec<u8>, CallError> {
        let mut wait = StatusWait::new(self.deadline);
        let connection = self.reach_a_working_daemon(&mut wait)?;
        let mut exchange = self.exchange();
        loop {
            match exchange.advance(&connection, wait.until) {
                Outcome::Late => {
                    wait.keep_waiting(DaemonProcess::of_connection(&connection), CallError::Late)?
                }
                other => return self.conclude(other),
            }
        }
    }

    fn reach_a_working_daemon(&self, wait: &mut StatusWait) -> Result<Connection, CallError> {
        let socket = &self.invocation.socket;
        loop {
            let busy = match Connection::open(socket, wait.until) {
                Err(busy @ ConnectError::Busy) => CallError::NoConnection(busy),
                other => return other.map_err(CallError::NoConnection),
            };
            match DaemonProcess::of_lock_file(socket) {
                Some(peer) => wait.keep_waiting(peer, busy)?,
                None => return Err(busy),
            }
        }
    }

    /// The exchange for the next connection.
    fn exchange(&mut self) -> Exchange {
        Exchange::new(&mut self.invocation.request, self.deadline)
    }

    fn conclude(&self, outcome: Outcome) -> Result<Vec<u8>, CallError> {
        match outcome {
            Outcome::Answer(answer) => self.result_of(answer),
            Outcome::Stopping => Err(CallError::Stopping),
            Outcome::NotRead => Err(CallError::NotRead),
            Outcome::Lost => Err(CallError::Lost),
            Outcome::Late => Err(CallError::Late),
            Outcome::Malformed(garbled) => Err(CallError::Malformed(garbled)),
        }
    }

    /// The result or the error object in an answer, as its status says. An ADD always has one of them; what other commands succeed with
    /// is nothing of the runtime's.
    fn result_of(&self, answer: Answer) -> Result<Vec<u8>, CallError> {
        let text = str::from_utf8(&answer.body).unwrap_or_default();
        let object = text.trim_start().starts_with('{');
        match answer.status {
            200 if self.request().command != Command::Add && (object || answer.body.is_empty()) => {
                Ok(Vec::new())
            }
            200 if object => Ok(answer.body),
            200 => Err(CallError::NoBody(200)),
            _ if CniError::from_json(text).is_some() => Err(CallError::Answered(answer.body)),
            status => Err(CallError::NoBody(status)),
        }
    }

    fn note_start(&mut self) {
        self.invocation.request.issued_ns = u64::try_from(self.began.as_nanos()).ok();
    }

    fn spool_details(&self) -> Spooled {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Spooled {
            boot_id: boot_id.trim_end().to_owned(),
            at: now.saturating_sub(since_boot().saturating_sub(self.began)).as_secs(),
            cookie: self.netns.as_ref().and_then(Netns::cookie),
        }
    }

    fn request(&self) -> &Request {
        &self.invocation.request
    }
}

fn stop_was_announced(socket: &Path) -> bool {
    let announced = fs::metadata(socket.with_file_name(STOPPING_FILE)).and_then(|marker| marker.modified());
    announced.is_ok_and(|at| announced_stop_holds(at, SystemTime::now()))
}
