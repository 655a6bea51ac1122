//! What the control socket has done to ports: the seam between the server and the data plane.

use std::os::fd::OwnedFd;

use fairlead_host::Uplink;

use super::messages::Refusal;
use crate::capture::{CaptureKey, CaptureRequest};
use crate::dataplane::Socket;
use crate::port::{MacEntry, PortConfig, PortView, UplinkConfig, UplinkView};

/// Carries out what the control socket's clients ask for. The server's thread calls it for one request at a time.
pub trait PortCommands: Send + 'static {
    /// Adds a port, near a NUMA node if one is named; its configuration is checked already.
    ///
    /// # Errors
    /// When the name is taken, or the data plane can't.
    fn add_port(&self, config: PortConfig, socket: Socket, numa_node: Option<u32>) -> Result<(), Refusal>;

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

    /// Whether a port that listens can be given a new socket.
    ///
    /// # Errors
    /// When there is no such port, or it does not listen, or it still closes what its last guest sent.
    fn can_listen_anew(&self, name: &str) -> Result<(), Refusal>;

    /// Gives a port that listens a new socket to listen at. All else of the port stays.
    ///
    /// # Errors
    /// When there is no such port, or it does not listen.
    fn new_listener(&self, name: &str, socket: OwnedFd) -> Result<(), Refusal>;

    /// Serves an uplink, near a NUMA node if one is named; its configuration is checked already.
    ///
    /// # Errors
    /// When the network has one, or the data plane can't.
    fn add_uplink(&self, config: UplinkConfig, uplink: Uplink, numa_node: Option<u32>)
    -> Result<(), Refusal>;

    /// Serves a network's uplink no longer.
    ///
    /// # Errors
    /// When there is none.
    fn remove_uplink(&self, network: &str) -> Result<(), Refusal>;

    /// Every uplink as it is now.
    fn uplinks(&self) -> Vec<UplinkView>;

    /// Copies frames of a port into the memory of the request from now on.
    ///
    /// # Errors
    /// When there is no such port, when its frames are captured already, or when the memory can't be used.
    fn capture(&self, name: &str, request: CaptureRequest) -> Result<CaptureKey, Refusal>;

    /// Ends a capture. One that has ended with its port is no error.
    fn end_capture(&self, name: &str, key: CaptureKey);

    /// Every port as it is now.
    fn ports(&self) -> Vec<PortView>;

    /// Every address that is known.
    fn mac_table(&self) -> Vec<MacEntry>;
}
