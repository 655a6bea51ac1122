//! Ports of a running OVS-DPDK, made and kept over OVSDB's JSON-RPC (RFC 7047).
//!
//! - what a port is to be: [`PortSpec`]; what it is: [`PortView`]
//! - add, remove, reconcile: [`OvsDpdk`], whose one thread (`worker`) takes all that waits into one transaction
//! - rows and transactions as text: `port_rows`, `transaction` (pure)
//! - what the database has, by its monitor: `database_mirror` (pure)
//! - the connection and its protocol: `connection`, `jsonrpc`
//!
//! A port is ours if its `external_ids` have the key `fairlead` with this node's name. No other port is ever changed or removed:
//! that is a condition inside each transaction, and not a question asked before it. Bridges are never made, and no process of OVS
//! is started or stopped. Only Unix sockets are spoken to; TLS would stand in front of the session, which takes any stream.

mod connection;
mod database_mirror;
mod driver;
mod driver_state;
mod error;
#[cfg(test)]
mod fake_server;
mod jsonrpc;
mod ovsdb_value;
mod port_rows;
mod port_spec;
mod request;
mod transaction;
mod worker;

pub use connection::DatabaseAddress;
pub use driver::{Limits, Options, OvsDpdk, OvsStatus, PortView, Reconciled};
pub use driver_state::Counters;
pub use error::{ConnectError, OvsError};
pub use port_spec::{
    LONGEST_PORT_NAME, LONGEST_SOCKET_PATH, Policing, PortName, PortOwner, PortSpec, SpecError, VhostSocket,
    Vlans,
};
pub use request::{AddedPort, Removal};
