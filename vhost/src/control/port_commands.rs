//! What the control socket has done to ports: the seam between the server and the data plane.

use std::os::fd::OwnedFd;

use super::messages::Refusal;
use crate::dataplane::Socket;
use crate::port::{MacEntry, PortConfig, PortView};

/// Carries out what the control socket's clients ask for. The server's thread calls it for one request at a time.
pub trait PortCommands: Send + 'static {
    /// Adds a port; its configuration is checked already.
    ///
    /// # Errors
    /// When the name is taken, or the data plane can't.
    fn add_port(&self, config: PortConfig, socket: Socket) -> Result<(), Refusal>;

    /// Removes a port.
    ///
    /// # Errors
    /// When there is no such port.
    fn remove_port(&self, name: &str) -> Result<(), Refusal>;

    /// Gives a port that connects to its guest a new connection.
    ///
    /// # Errors
    /// When there is no such port, or it is connected, or it listens.
    fn reconnect(&self, name: &str, socket: OwnedFd) -> Result<(), Refusal>;

    /// Every port as it is now.
    fn ports(&self) -> Vec<PortView>;

    /// Every address that is known.
    fn mac_table(&self) -> Vec<MacEntry>;
}
