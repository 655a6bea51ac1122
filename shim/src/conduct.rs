//! What each command does when the daemon answers, is away, is stopping, or goes away.
//!
//! ADD and CHECK wait for a daemon and are never sent twice once a daemon may have begun. DEL and GC may be sent
//! twice, because both do nothing where nothing is left to do; with no daemon they are spooled. STATUS says at
//! once what is, and waits only for a daemon that is seen at work.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairlead_cni::CniError;
use fairlead_cni::wire::{Command, RECEIVED, Request, STOPPING_FILE, Spooled};

use crate::config::{self, BadConfig};
use crate::connection::{Connection, Unreached};
use crate::deadline::{Deadline, Pause};
use crate::exchange::{Answer, Exchange, Garbled, Talk};
use crate::invocation::Invocation;
use crate::namespace::Namespace;
use crate::peer::{Patience, Peer, Standstill};
use crate::spool::{Spool, Unspooled};
use crate::watch;

/// For how long the announcement holds.
const STOPPING_HOLDS: Duration = Duration::from_secs(10);

/// Why the daemon did not serve a call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unserved {
    /// An error object of the daemon's own, to be passed on as it is.
    #[error("the daemon answered with an error")]
    Told(Vec<u8>),
    /// No connection.
    #[error("{0}")]
    Unreached(Unreached),
    /// The daemon said until the end that it is stopping.
    #[error("the daemon is stopping and did not begin this call")]
    Stopping,
    /// The daemon closed connections unread until the end.
    #[error("the daemon closed the connection before it had read the call")]
    Unread,
    /// Lost on the way.
    #[error("the connection to the daemon was lost before the whole answer had arrived")]
    Lost,
    /// No answer in time.
    #[error("the daemon did not answer within the time limit")]
    Late,
    /// No answer, and nothing that it could come from.
    #[error("{0}")]
    Standstill(Standstill),
    /// An answer that is none.
    #[error("the daemon's answer can't be understood: {0}")]
    Garbled(Garbled),
    /// HTTP where CNI belongs.
    #[error("the daemon's answer can't be understood: HTTP status {0} without a CNI result or error object")]
    NoBody(u16),
    /// No daemon is there, and none could accept this configuration.
    #[error("{0}")]
    Config(BadConfig),
    /// No daemon is there, and the spool can't take the call.
    #[error("no daemon is running, and {0}")]
    Spool(Unspooled),
}

impl Unserved {
    /// Whether the daemon's next start may end it.
    fn passes(&self) -> bool {
        match self {
            Unserved::Stopping
            | Unserved::Unread
            | Unserved::Lost
            | Unserved::Late
            | Unserved::Standstill(_)
            | Unserved::Unreached(Unreached::Down(_) | Unreached::Busy) => true,
            Unserved::Told(_)
            | Unserved::Unreached(Unreached::Refused(_))
            | Unserved::Garbled(_)
            | Unserved::NoBody(_)
            | Unserved::Config(_)
            | Unserved::Spool(_) => false,
        }
    }
}

/// A call that is ready to be made.
#[derive(Debug)]
pub(crate) struct Call {
    /// What the environment says, and the configuration.
    pub(crate) invocation: Invocation,
    /// The pod's namespace, held until the end.
    pub(crate) namespace: Option<Namespace>,
    /// When the caller stops waiting.
    pub(crate) deadline: Deadline,
    /// The connection on which the answer came, of a daemon that waits to hear whether it arrived.
    pub(crate) answered_on: Option<Connection>,
}

impl Call {
    /// Makes it; `early` is a connection that was made before the request was known. Gives the result's bytes.
    pub(crate) fn carry_out(&mut self, early: Option<Connection>) -> Result<Vec<u8>, Unserved> {
        match self.request().command {
            Command::Add | Command::Check => self.wait_and_ask(early),
            Command::Del | Command::Gc => self.ask_or_spool(early),
            Command::Status => self.ask_now(early),
        }
    }

    fn wait_and_ask(&mut self, mut early: Option<Connection>) -> Result<Vec<u8>, Unserved> {
        let mut pause = Pause::new();
        loop {
            let connection = early.take().map_or_else(|| self.reach(), Ok)?;
            let unserved = match self.exchange(&connection) {
                Exchange::Stopping => Unserved::Stopping,
                Exchange::Unread => Unserved::Unread,
                other => {
                    self.answered_on = Some(connection);
                    return self.conclude(other);
                }
            };
            if !pause.sleep(self.deadline) {
                return Err(unserved);
            }
        }
    }

    /// The runtime has the result.
    pub(crate) fn was_delivered(&self) {
        if let Some(connection) = self.answered_on.as_ref().filter(|_| self.request().command == Command::Add)
        {
            // A daemon that is gone meanwhile answers the same ADD once more, which does no harm.
            let _ = connection.send(RECEIVED, self.deadline);
        }
    }

    /// Connects, waiting for a daemon if need be; but not for a configuration that none will accept.
    fn reach(&self) -> Result<Connection, Unserved> {
        match Connection::open(&self.invocation.socket, self.deadline) {
            Ok(connection) => return Ok(connection),
            Err(Unreached::Down(_)) => {}
            Err(other) => return Err(Unserved::Unreached(other)),
        }
        config::check(&self.request().config, self.request().command).map_err(Unserved::Config)?;
        watch::connect(&self.invocation.socket, self.deadline).map_err(Unserved::Unreached)
    }

    fn ask_or_spool(&mut self, early: Option<Connection>) -> Result<Vec<u8>, Unserved> {
        match early.map_or_else(|| Connection::open(&self.invocation.socket, self.deadline), Ok) {
            Ok(connection) => match self.exchange(&connection) {
                Exchange::Stopping | Exchange::Unread | Exchange::Lost => {}
                other => return self.conclude(other),
            },
            Err(Unreached::Down(_)) => {}
            Err(other) => return Err(Unserved::Unreached(other)),
        }
        config::check(&self.request().config, self.request().command).map_err(Unserved::Config)?;
        let mut pause = Pause::new();
        loop {
            if let Some(result) = self.ask_or_spool_locked()? {
                return Ok(result);
            }
            if !pause.sleep(self.deadline) {
                return Err(Unserved::Lost);
            }
        }
    }

    /// One round under the spool's lock; `None` when a running daemon lost the call and it must be made again.
    fn ask_or_spool_locked(&mut self) -> Result<Option<Vec<u8>>, Unserved> {
        let spool = Spool::lock(&self.invocation.state_dir, self.deadline).map_err(Unserved::Spool)?;
        match Connection::open(&self.invocation.socket, self.deadline) {
            Ok(connection) => match self.exchange(&connection) {
                // It will not begin anything any more, and its successor waits for our lock before it drains.
                Exchange::Stopping => {}
                Exchange::Unread | Exchange::Lost => return Ok(None),
                other => return self.conclude(other).map(Some),
            },
            Err(Unreached::Down(_)) => {}
            Err(other) => return Err(Unserved::Unreached(other)),
        }
        self.invocation.request.deadline_ms = 0;
        self.invocation.request.spooled = Some(self.spooled());
        spool.write(self.request(), self.deadline).map_err(Unserved::Spool)?;
        Ok(Some(Vec::new()))
    }

    fn ask_now(&mut self, early: Option<Connection>) -> Result<Vec<u8>, Unserved> {
        match self.ask_a_living_daemon(early) {
            // ADD waits and is served, so a node whose daemon restarts is no less ready.
            Err(unserved) if unserved.passes() && stop_was_announced(&self.invocation.socket) => {
                Ok(Vec::new())
            }
            other => other,
        }
    }

    /// Waits for the answer as long as the daemon is at work on it.
    fn ask_a_living_daemon(&mut self, early: Option<Connection>) -> Result<Vec<u8>, Unserved> {
        let mut patience = Patience::new(self.deadline);
        let connection = early.map_or_else(|| self.reach_a_living_daemon(&mut patience), Ok)?;
        let mut talk = Talk::new(&connection, &mut self.invocation.request, self.deadline);
        loop {
            match talk.go_on(patience.until) {
                Exchange::Late => patience.goes_on(Peer::of(&connection), Unserved::Late)?,
                other => return self.conclude(other),
            }
        }
    }

    fn reach_a_living_daemon(&self, patience: &mut Patience) -> Result<Connection, Unserved> {
        let socket = &self.invocation.socket;
        loop {
            let busy = match Connection::open(socket, patience.until) {
                Err(busy @ Unreached::Busy) => Unserved::Unreached(busy),
                other => return other.map_err(Unserved::Unreached),
            };
            match Peer::beside(socket) {
                Some(peer) => patience.goes_on(peer, busy)?,
                None => return Err(busy),
            }
        }
    }

    fn exchange(&mut self, connection: &Connection) -> Exchange {
        Talk::new(connection, &mut self.invocation.request, self.deadline).go_on(self.deadline)
    }

    fn conclude(&self, exchange: Exchange) -> Result<Vec<u8>, Unserved> {
        match exchange {
            Exchange::Answer(answer) => self.judge(answer),
            Exchange::Stopping => Err(Unserved::Stopping),
            Exchange::Unread => Err(Unserved::Unread),
            Exchange::Lost => Err(Unserved::Lost),
            Exchange::Late => Err(Unserved::Late),
            Exchange::Garbled(garbled) => Err(Unserved::Garbled(garbled)),
        }
    }

    /// A result or an error object, as the status says; an ADD always has one.
    fn judge(&self, answer: Answer) -> Result<Vec<u8>, Unserved> {
        let text = str::from_utf8(&answer.body).unwrap_or_default();
        let object = text.trim_start().starts_with('{');
        match answer.status {
            200 if object || (answer.body.is_empty() && self.request().command != Command::Add) => {
                Ok(answer.body)
            }
            200 => Err(Unserved::NoBody(200)),
            _ if CniError::from_json(text).is_some() => Err(Unserved::Told(answer.body)),
            status => Err(Unserved::NoBody(status)),
        }
    }

    fn spooled(&self) -> Spooled {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Spooled {
            boot_id: boot_id.trim_end().to_owned(),
            at: now.as_secs(),
            cookie: self.namespace.as_ref().and_then(Namespace::cookie),
        }
    }

    fn request(&self) -> &Request {
        &self.invocation.request
    }
}

fn stop_was_announced(socket: &Path) -> bool {
    let announced = fs::metadata(socket.with_file_name(STOPPING_FILE)).and_then(|marker| marker.modified());
    let age = announced.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
    age.is_some_and(|age| age < STOPPING_HOLDS)
}
