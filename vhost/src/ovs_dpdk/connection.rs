//! A connection to the database of OVS: the socket, the schema, and the monitor of what the driver needs.
//!
//! `monitor_cond` where the server has it (OVS 2.6 and newer), so that only ports of this node are told; else `monitor`.
//! It makes no second attempt: that is the worker's.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};

use super::database_address::DatabaseAddress;
use super::database_mirror::{monitor_requests, needed_columns};
use super::error::ConnectError;
use super::jsonrpc::session::{CallError, Heard, Session};
use super::tls_client::{self, TlsFiles};
use super::transaction::DATABASE;

/// What the server calls this monitor in each notification.
const MONITOR: &str = "fairlead";

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
        tls: Option<&TlsFiles>,
        node: &str,
        limit: Duration,
        listener: impl FnMut(Heard) + Send + 'static,
    ) -> Result<(Connection, Value), ConnectError> {
        let failed = |source| ConnectError::Socket { database: address.to_string(), source };
        let Stream { stream, ended } = connect(address, tls, limit)?;
        let connection = Connection { session: Session::start(stream, listener).map_err(failed)?, limit };
        let opened = connection.schema(address).and_then(|schema| Ok(connection.monitor(node, &schema)?));
        match opened {
            Ok(rows) => Ok((connection, rows)),
            // What TLS says of the end is the reason; the session only sees that there is one.
            Err(error) => Err(match ended.get() {
                Some(reason) => ConnectError::Ended { database: address.to_string(), reason: reason.clone() },
                None => error,
            }),
        }
    }

    fn schema(&self, address: &DatabaseAddress) -> Result<Value, ConnectError> {
        let schema = match self.session.call("get_schema", &json!([DATABASE]), self.limit) {
            Err(CallError::Refused { .. }) => return Err(ConnectError::NoDatabase(address.to_string())),
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

/// A connected stream, as a session takes it.
struct Stream {
    stream: UnixStream,
    /// Why TLS has ended it, where it has.
    ended: Arc<OnceLock<String>>,
}

fn connect(
    address: &DatabaseAddress,
    tls: Option<&TlsFiles>,
    limit: Duration,
) -> Result<Stream, ConnectError> {
    let without_tls = |stream| Stream { stream, ended: Arc::default() };
    match address {
        DatabaseAddress::Unix(socket) => connect_unix(socket).map(without_tls),
        DatabaseAddress::Tcp(end) => {
            let connected = tls_client::connect_tcp(end, limit).and_then(|tcp| {
                // The session's reader waits for as long as the connection lives.
                tcp.set_read_timeout(None)?;
                // A stream is a stream: a session uses nothing of it that only a Unix socket has.
                Ok(UnixStream::from(OwnedFd::from(tcp)))
            });
            let failed = |source| ConnectError::Socket { database: address.to_string(), source };
            connected.map(without_tls).map_err(failed)
        }
        DatabaseAddress::Ssl(end) => {
            let failed = |source| ConnectError::Tls { database: address.to_string(), source };
            let files = tls.ok_or_else(|| ConnectError::NoTlsFiles(address.to_string()))?;
            let connected = tls_client::connect(end, files, limit).map_err(failed)?;
            Ok(Stream { stream: connected.stream, ended: connected.ended })
        }
    }
}

fn connect_unix(socket: &Path) -> Result<UnixStream, ConnectError> {
    UnixStream::connect(socket).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => ConnectError::NoSocket(socket.to_owned()),
        io::ErrorKind::ConnectionRefused => ConnectError::NobodyListens(socket.to_owned()),
        io::ErrorKind::PermissionDenied => ConnectError::Permission(socket.to_owned()),
        _ => ConnectError::Socket { database: format!("unix:{}", socket.display()), source },
    })
}

fn has(schema: &Value, table: &str, column: &str) -> bool {
    !schema["tables"][table]["columns"][column].is_null()
}

/// The rows that a notification tells, if it is one of this monitor.
pub(crate) fn told_rows<'a>(method: &str, params: &'a Value) -> Option<&'a Value> {
    let of_monitor = matches!(method, "update" | "update2") && params[0] == MONITOR;
    of_monitor.then(|| &params[1])
}
