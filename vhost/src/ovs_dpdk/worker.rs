//! The driver's thread: keeps the connection, and has all requests that wait carried out by one transaction.
//!
//! It waits for the database's answer to a transaction, which takes a fraction of a millisecond, and never for `ovs-vswitchd`: while
//! that carries out one batch, the next is collected and committed. Where a batch is refused, each of its requests is tried alone.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use serde_json::Value;

use super::connection::{Connection, told_rows};
use super::database_address::DatabaseAddress;
use super::database_mirror::{Mirror, OURS};
use super::driver_state::{Plan, Stage, State};
use super::error::{ConnectError, OvsError};
use super::jsonrpc::session::{CallError, Heard};
use super::ovsdb_value::Cell;
use super::port_rows::describe_owner;
use super::request::{Done, Removal, Request, Task};
use super::tls_client::TlsFiles;
use super::transaction::{Purpose, Rejected, Transaction, ask_owner};

/// How often a request is planned again after the database refused it for a reason that passes.
const MOST_TRIES: u32 = 5;

/// What the driver's handle, its thread and the reader of its connection share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    pub(crate) changed: Condvar,
}

/// The thread's own things.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) address: DatabaseAddress,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) node: String,
    pub(crate) answer_limit: Duration,
    pub(crate) apply_limit: Duration,
    pub(crate) connection: Option<Connection>,
}

/// One request of a transaction.
#[derive(Debug)]
struct Step {
    request: Request,
    stage: Stage,
    row: Option<String>,
}

/// Why a transaction has no configuration number.
enum NotCommitted {
    Rejected(Rejected),
    Unknown(String),
}

enum Next {
    Stop,
    Disconnect,
    Connect,
    Commit(Vec<Request>),
    Ask,
}

impl Worker {
    /// Works until the driver is stopped.
    pub(crate) fn run(mut self) {
        loop {
            match self.next() {
                Next::Stop => return,
                // A connection is closed without the lock: its reader may be waiting for it.
                Next::Disconnect => drop(self.connection.take()),
                Next::Connect => self.connect(),
                // A transaction of nothing but a new configuration number.
                Next::Ask => self.commit_steps(Vec::new()),
                Next::Commit(batch) => {
                    self.commit(batch);
                    self.shared.state.lock().batch_done();
                }
            }
        }
    }

    /// Waits for something to do.
    fn next(&self) -> Next {
        let mut state = self.shared.state.lock();
        loop {
            if state.stopping {
                return Next::Stop;
            }
            let now = Instant::now();
            state.settle(now);
            state.expire(now);
            if !state.connected() {
                if self.connection.is_some() {
                    return Next::Disconnect;
                }
                if state.connect_at() <= now {
                    return Next::Connect;
                }
            } else {
                state.repair(now, self.apply_limit);
                let batch = state.take_batch();
                if !batch.is_empty() {
                    return Next::Commit(batch);
                }
                if state.service.take_question() {
                    return Next::Ask;
                }
            }
            match state.next_event() {
                Some(until) => drop(self.shared.changed.wait_until(&mut state, until)),
                None => self.shared.changed.wait(&mut state),
            }
        }
    }

    fn connect(&mut self) {
        let epoch = {
            let mut state = self.shared.state.lock();
            state.early.clear();
            state.epoch
        };
        let shared = Arc::clone(&self.shared);
        let listener = move |heard| shared.heard(epoch, heard);
        let opened =
            Connection::open(&self.address, self.tls.as_ref(), &self.node, self.answer_limit, listener);
        let mut state = self.shared.state.lock();
        if state.epoch != epoch {
            // It ended before it was at work. The reader has counted that; the reason is better known here.
            match opened {
                Err(error) => state.down_because = Arc::new(error),
                Ok(ended) => {
                    drop(state);
                    drop(ended);
                }
            }
            return;
        }
        let mirror = opened.and_then(|(connection, rows)| {
            self.connection = Some(connection);
            first_rows(&rows, &std::mem::take(&mut state.early))
        });
        match mirror {
            Ok(mirror) => state.up(mirror),
            Err(error) => {
                tracing::debug!(%error, "no connection to OVS's database");
                state.down(error);
            }
        }
        self.shared.changed.notify_all();
    }

    fn commit(&mut self, batch: Vec<Request>) {
        let mut steps = Vec::new();
        let mut state = self.shared.state.lock();
        for request in batch {
            match state.plan(&request) {
                Plan::Finish(outcome) => request.finish(outcome),
                Plan::Transact(stage, row) => steps.push(Step { request, stage, row }),
                Plan::Await(configuration) => state.committed(request, Stage::Delete, configuration),
            }
        }
        drop(state);
        if !steps.is_empty() {
            self.commit_steps(steps);
        }
    }

    fn commit_steps(&mut self, steps: Vec<Step>) {
        let epoch = self.shared.state.lock().epoch;
        match self.transact(&steps) {
            Ok(configuration) => {
                let mut state = self.shared.state.lock();
                let same_connection = state.epoch == epoch;
                for Step { mut request, stage, .. } in steps {
                    if stage == Stage::Claim {
                        // Once: where there is no such port, there is none.
                        (request.owner_on_record, request.is_claimed) = (None, false);
                        state.requeue(request, false);
                        continue;
                    }
                    // Another database may be there by now, which counts its configurations anew.
                    match same_connection {
                        true => state.committed(request, stage, configuration),
                        false => state.requeue(request, true),
                    }
                }
            }
            Err(NotCommitted::Unknown(why)) => {
                let mut state = self.shared.state.lock();
                for Step { request, stage, .. } in steps.into_iter().rev() {
                    state.requeue(request, !matches!(stage, Stage::Confirm | Stage::Claim));
                }
                if state.connected() {
                    state.down(ConnectError::Call(why));
                }
            }
            Err(NotCommitted::Rejected(_)) if steps.len() > 1 => {
                for step in steps {
                    self.commit_steps(vec![step]);
                }
            }
            Err(NotCommitted::Rejected(rejected)) => {
                for step in steps {
                    self.refused(step, &rejected);
                }
            }
        }
    }

    fn transact(&self, steps: &[Step]) -> Result<i64, NotCommitted> {
        let mut transaction = Transaction::new(&self.node);
        for step in steps {
            match (&step.request.task, step.stage, &step.row) {
                (Task::Add(spec), Stage::Insert, _) => {
                    if spec.makes_bridge && self.lacks_bridge(&spec.bridge) {
                        transaction.add_bridge(&spec.bridge);
                    }
                    transaction.add(spec);
                }
                (task, Stage::Claim, _) => {
                    if let Some(owner) = &step.request.owner_on_record {
                        transaction.claim(task.name(), owner);
                    }
                }
                (task, Stage::Delete | Stage::DeleteThenAdd, Some(row)) => {
                    transaction.remove(row, task.name().as_str());
                }
                _ => {} // a new configuration number is all that is needed
            }
        }
        let (params, sent) = transaction.finish();
        self.shared.state.lock().counters.transactions += 1;
        let outcome = match self.call(&params) {
            Ok(reply) => sent.configuration(&reply),
            Err(CallError::Refused { error, .. }) => {
                Err(Rejected { purpose: None, error: "refused".to_owned(), details: error.to_string() })
            }
            Err(unknown) => return Err(NotCommitted::Unknown(unknown.to_string())),
        };
        outcome.map_err(|rejected| {
            self.shared.state.lock().counters.rejected += 1;
            NotCommitted::Rejected(rejected)
        })
    }

    fn lacks_bridge(&self, name: &str) -> bool {
        self.shared.state.lock().mirror.bridge(name).is_none()
    }

    fn call(&self, params: &Value) -> Result<Value, CallError> {
        match &self.connection {
            Some(connection) => connection.transact(params),
            None => Err(CallError::Ended { why: "there is none".to_owned() }),
        }
    }

    /// Answers a request whose own transaction the database has refused.
    fn refused(&self, step: Step, rejected: &Rejected) {
        let Step { mut request, stage, .. } = step;
        request.tries += 1;
        let port = request.task.name().clone();
        let again = request.tries <= MOST_TRIES;
        let error = match (&request.task, rejected.purpose) {
            (Task::Remove(_), Some(Purpose::Ours)) => {
                return request.finish(Ok(Done::Removed(Removal::Absent)));
            }
            (Task::Add(_), Some(Purpose::Ours)) if again => {
                return self.shared.state.lock().requeue(request, false);
            }
            // Somebody else was faster, and the monitor tells of it.
            (Task::Add(spec), Some(Purpose::Bridge | Purpose::NoBridge)) if spec.makes_bridge && again => {
                return self.shared.state.lock().requeue(request, false);
            }
            (Task::Add(spec), Some(Purpose::Bridge)) => {
                OvsError::BridgeMissing { bridge: spec.bridge.clone() }
            }
            (Task::Add(_), Some(Purpose::NameFree)) if request.owner_on_record.is_some() => {
                request.is_claimed = true;
                return self.shared.state.lock().requeue(request, false);
            }
            (Task::Add(_), Some(Purpose::NameFree)) if stage == Stage::Insert => {
                match self.owner(port.as_str()) {
                    // Ours, and the monitor has not told yet; or gone again.
                    Ok(None) if again => return self.shared.state.lock().requeue(request, false),
                    Ok(owner) => OvsError::NameTaken {
                        port,
                        owner: owner.unwrap_or_else(|| "is this node's".to_owned()),
                    },
                    Err(_) => return self.shared.state.lock().requeue(request, false),
                }
            }
            _ => OvsError::Rejected { port, reason: format!("{}: {}", rejected.error, rejected.details) },
        };
        request.finish(Err(error));
    }

    /// Who has a name, as far as OVS knows; `None`: this node, or nobody.
    fn owner(&self, name: &str) -> Result<Option<String>, CallError> {
        let reply = self.call(&ask_owner(name))?;
        let mut found = [0, 1].into_iter().filter_map(|table| reply[table]["rows"][0].get("external_ids"));
        let foreign = found
            .find(|ids| !matches!(Cell::read(ids), Ok(cell) if cell.entry(OURS) == Some(self.node.as_str())));
        Ok(foreign.map(|ids| describe_owner(Some(ids))))
    }
}

impl Drop for Worker {
    /// However the thread ends, nobody is left waiting.
    fn drop(&mut self) {
        self.shared.state.lock().stop();
    }
}

fn first_rows(rows: &Value, early: &[Value]) -> Result<Mirror, ConnectError> {
    let mut mirror = Mirror::default();
    for rows in std::iter::once(rows).chain(early) {
        mirror.update(rows).map_err(|error| ConnectError::Call(error.to_string()))?;
    }
    Ok(mirror)
}

impl Shared {
    /// Takes what the server tells on the connection of that epoch.
    fn heard(&self, epoch: u64, heard: Heard) {
        let mut state = self.state.lock();
        if state.epoch != epoch {
            return;
        }
        match heard {
            Heard::Ended { why } => {
                state.down(ConnectError::Call(format!("the connection has ended: {why}")))
            }
            Heard::Notification { method, params } => {
                let Some(rows) = told_rows(&method, &params) else { return };
                if !state.connected() {
                    state.early.push(rows.clone());
                } else if let Err(error) = state.told(rows) {
                    state.down(ConnectError::Call(error.to_string()));
                }
            }
        }
        self.changed.notify_all();
    }
}

/// Where OVS keeps its sockets, if nobody says: beside the socket of its database.
pub(crate) fn default_run_dir(address: &DatabaseAddress) -> PathBuf {
    let usual = DatabaseAddress::default();
    let socket = address.socket().or(usual.socket());
    socket.and_then(Path::parent).map(PathBuf::from).unwrap_or_default()
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
