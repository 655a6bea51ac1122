//! Ports of a running OVS-DPDK, made and kept over OVSDB's JSON-RPC (RFC 7047).
//!
//! - what a port is to be: [`PortSpec`]; what it is: [`PortView`]
//! - add, remove, reconcile: [`OvsDpdk`], whose one thread (`worker`) takes all that waits into one transaction
//! - rows and transactions as text: `port_rows`, `transaction` (pure)
//! - what the database has, by its monitor: `database_mirror` (pure)
//! - the connection and its protocol: `database_address`, `connection`, `tls_client`, `jsonrpc`
//!
//! A port is ours if its `external_ids` have the key `fairlead` with this node's name. One that is on record may have another name of this
//! node's: name, container and interface tell it, and it gets the present name. No other port is ever changed or removed: that is a
//! condition inside each transaction, and not a question asked before it. A bridge is made only with a port that says so, and
//! never removed. No process of OVS is started or stopped.

mod connection;
mod database_address;
mod database_mirror;
mod driver;
mod driver_state;
mod error;
#[cfg(any(test, feature = "fake-switch"))]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
pub mod fake_server;
#[cfg(feature = "fuzzing")]
#[allow(clippy::unwrap_used, reason = "a harness of the fuzzer fails by panicking")]
mod fuzzed;
mod jsonrpc;
mod ovsdb_value;
mod port_rows;
mod port_spec;
mod request;
mod tls_client;
mod transaction;
mod worker;

pub use database_address::{DatabaseAddress, Endpoint};
pub use driver::{Limits, Options, OvsDpdk, OvsStatus, PortView, Reconciled};
pub use driver_state::Counters;
pub use error::{ConnectError, OvsError};
#[cfg(feature = "fuzzing")]
pub use fuzzed::fuzzed_replies;
pub use port_spec::{
    LONGEST_PORT_NAME, LONGEST_SOCKET_PATH, Policing, PortName, PortOwner, PortSpec, SpecError, VhostSocket,
    Vlans,
};
pub use request::{AddedPort, Removal};
pub use tls_client::{TlsError, TlsFiles};
