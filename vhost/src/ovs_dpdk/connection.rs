//! A connection to the database of OVS: the socket, the schema, and the monitor of what the driver needs.
//!
//! `monitor_cond` where the server has it (OVS 2.6 and newer), so that only ports of this node are told; else `monitor`.
//! It makes no second attempt: that is the worker's.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::database_mirror::{monitor_requests, needed_columns};
use super::error::{ConnectError, OvsError};
use super::jsonrpc::session::{CallError, Heard, Session};
use super::port_spec::LONGEST_SOCKET_PATH;
use super::transaction::DATABASE;

/// What the server calls this monitor in each notification.
const MONITOR: &str = "fairlead";

/// Where the database of OVS is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseAddress(PathBuf);

impl DatabaseAddress {
    /// Reads an address as OVS's own programs take it: `unix:/run/openvswitch/db.sock`.
    ///
    /// # Errors
    /// [`OvsError::Address`] for all others: `ssl:` and `tcp:` are not supported.
    pub fn parse(text: &str) -> Result<DatabaseAddress, OvsError> {
        let path = text.strip_prefix("unix:").map(PathBuf::from);
        let fits = |path: &PathBuf| path.is_absolute() && path.as_os_str().len() <= LONGEST_SOCKET_PATH;
        path.filter(fits).map(DatabaseAddress).ok_or_else(|| OvsError::Address(text.to_owned()))
    }

    /// The socket's path.
    pub fn socket(&self) -> &Path {
        &self.0
    }
}

/// A connection whose monitor is at work.
#[derive(Debug)]
pub(crate) struct Connection {
    session: Session,
    limit: Duration,
}

impl Connection {
    /// Connects, and answers the rows as they are at first. News go to `listener`, and may come before this returns.
    /// Each call waits no longer than `limit`.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub(crate) fn open(
        address: &DatabaseAddress,
        node: &str,
        limit: Duration,
        listener: impl FnMut(Heard) + Send + 'static,
    ) -> Result<(Connection, Value), ConnectError> {
        let socket = address.socket();
        let failed = |source| ConnectError::Socket { socket: socket.to_owned(), source };
        let stream = UnixStream::connect(socket).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ConnectError::NoSocket(socket.to_owned()),
            io::ErrorKind::ConnectionRefused => ConnectError::NobodyListens(socket.to_owned()),
            io::ErrorKind::PermissionDenied => ConnectError::Permission(socket.to_owned()),
            _ => failed(error),
        })?;
        let connection = Connection { session: Session::start(stream, listener).map_err(failed)?, limit };
        let schema = connection.schema(socket)?;
        let rows = connection.monitor(node, &schema)?;
        Ok((connection, rows))
    }

    fn schema(&self, socket: &Path) -> Result<Value, ConnectError> {
        let schema = match self.session.call("get_schema", &json!([DATABASE]), self.limit) {
            Err(CallError::Refused { .. }) => return Err(ConnectError::NoDatabase(socket.to_owned())),
            other => other?,
        };
        match needed_columns().find(|(table, column)| !has(&schema, table, column)) {
            Some((table, column)) => Err(ConnectError::SchemaTooOld { table, column }),
            None => Ok(schema),
        }
    }

    fn monitor(&self, node: &str, schema: &Value) -> Result<Value, CallError> {
        let params = |conditions| {
            json!([DATABASE, MONITOR, monitor_requests(node, conditions, |t, c| has(schema, t, c))])
        };
        match self.session.call("monitor_cond", &params(true), self.limit) {
            Err(CallError::Refused { .. }) => self.session.call("monitor", &params(false), self.limit),
            other => other,
        }
    }

    /// Has a transaction carried out; answers the results of its operations.
    ///
    /// # Errors
    /// After [`CallError::Late`] and [`CallError::Ended`] nobody knows whether it was.
    pub(crate) fn transact(&self, params: &Value) -> Result<Value, CallError> {
        self.session.call("transact", params, self.limit)
    }
}

fn has(schema: &Value, table: &str, column: &str) -> bool {
    !schema["tables"][table]["columns"][column].is_null()
}

/// The rows that a notification tells, if it is one of this monitor.
pub(crate) fn told_rows<'a>(method: &str, params: &'a Value) -> Option<&'a Value> {
    let of_monitor = matches!(method, "update" | "update2") && params[0] == MONITOR;
    of_monitor.then(|| &params[1])
}
