//! What can go wrong between Fairlead and OVS. Each variant names the thing, the reason and what to do.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::jsonrpc::session::CallError;
use super::port_spec::{PortName, SpecError};
use super::tls_client::TlsError;

/// Why there is no connection to the database of OVS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// There is no socket.
    #[error(
        "there is no socket {}: is ovsdb-server running, and is its run directory mounted into Fairlead's container?",
        .0.display()
    )]
    NoSocket(PathBuf),
    /// Nobody listens on the socket.
    #[error("nobody listens on {}: ovsdb-server is not running", .0.display())]
    NobodyListens(PathBuf),
    /// Fairlead may not connect.
    #[error("permission to connect to {} is denied: run as root, or in the group that owns the socket", .0.display())]
    Permission(PathBuf),
    /// The connection fails in another way.
    #[error("{database} cannot be connected to: {source}")]
    Socket {
        /// The database's address.
        database: String,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// TLS has no connection.
    #[error("{database}: {source}; see vhostUser.ovs in the daemon's configuration")]
    Tls {
        /// The database's address.
        database: String,
        /// Why not.
        #[source]
        source: TlsError,
    },
    /// TLS needs files that are not named.
    #[error("{0}: TLS needs ca, certificate and privateKey beside the address")]
    NoTlsFiles(String),
    /// TLS has ended the connection before it was at work: the server does not take our certificate, as a rule.
    #[error("{database} has ended the connection: {reason}; does its CA know our certificate?")]
    Ended {
        /// The database's address.
        database: String,
        /// What TLS says.
        reason: String,
    },
    /// The server behind the socket has no database of OVS.
    #[error("the server at {0} has no database Open_vSwitch: is it that of OVS and not of OVN?")]
    NoDatabase(String),
    /// The database is older than what the driver needs (OVS 2.6).
    #[error(
        "the database of OVS has no column {column} in the table {table}: OVS is too old, 2.6 or newer is needed"
    )]
    SchemaTooOld {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
    },
    /// The server does not answer as it should.
    #[error("{0}")]
    Call(String),
}

impl From<CallError> for ConnectError {
    fn from(error: CallError) -> ConnectError {
        ConnectError::Call(error.to_string())
    }
}

/// Why OVS is not as it was asked to be.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum OvsError {
    /// The spec is not one that OVS can take.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The address of the database is none that is spoken to.
    #[error(
        "{0:?} is no address of a database: unix:/PATH is, of at most 107 bytes, ssl:HOST:PORT, and tcp:IP:PORT of the loopback interface"
    )]
    Address(String),
    /// There is no connection to the database. What was asked for may have been done if the connection ended under it.
    #[error("OVS's database cannot be reached: {0}")]
    Unreachable(#[source] Arc<ConnectError>),
    /// The bridge is not there.
    #[error(
        "the bridge {bridge} does not exist: ovs-vsctl add-br {bridge} -- set bridge {bridge} datapath_type=netdev"
    )]
    BridgeMissing {
        /// The bridge.
        bridge: String,
    },
    /// The bridge is one of the kernel's datapath.
    #[error(
        "the bridge {bridge} has the datapath type {datapath_type:?}: a vhost-user port needs netdev (ovs-vsctl set bridge {bridge} datapath_type=netdev)"
    )]
    BridgeNotNetdev {
        /// The bridge.
        bridge: String,
        /// Its datapath type; empty: the kernel's.
        datapath_type: String,
    },
    /// OVS runs without DPDK.
    #[error(
        "OVS has not initialised DPDK: ovs-vsctl set Open_vSwitch . other_config:dpdk-init=true, restart ovs-vswitchd, and read its log"
    )]
    DpdkNotInitialized,
    /// Somebody else's port or interface has the name.
    #[error(
        "a port or interface {port} exists in OVS that is not this node's: it {owner}; it was left as it is"
    )]
    NameTaken {
        /// The port.
        port: PortName,
        /// What its `external_ids` say.
        owner: String,
    },
    /// OVS took the rows and cannot make the port. The rows were removed.
    #[error("OVS cannot make the port {port}: {reason}")]
    Refused {
        /// The port.
        port: PortName,
        /// OVS's reason (the interface's `error`).
        reason: String,
    },
    /// The database took the rows, and `ovs-vswitchd` did not carry them out in time. The rows are removed.
    #[error("ovs-vswitchd has not come to the port {port} within {} ms: is it running?", .limit.as_millis())]
    NotApplied {
        /// The port.
        port: PortName,
        /// How long was waited.
        limit: Duration,
    },
    /// `ovs-vswitchd` does nothing.
    #[error(
        "ovs-vswitchd does not run, or hangs: it has done nothing for {} ms that OVS's database asks for; systemctl restart ovs-vswitchd, and read its log",
        .limit.as_millis()
    )]
    NotServing {
        /// How long is waited for it.
        limit: Duration,
    },
    /// Somebody removed the port while it was being made.
    #[error("the port {port} was removed by somebody else while it was being made")]
    Vanished {
        /// The port.
        port: PortName,
    },
    /// The database does not commit.
    #[error("port {port}: the database refuses the transaction: {reason}")]
    Rejected {
        /// The port.
        port: PortName,
        /// The server's words.
        reason: String,
    },
    /// The driver is being stopped.
    #[error("the driver of OVS has been stopped")]
    Stopped,
    /// There is no thread for the driver.
    #[error("no thread for the driver of OVS: {0}")]
    Thread(#[source] Arc<std::io::Error>),
}
