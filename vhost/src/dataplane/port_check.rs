//! Whether a port can be what it is to be.

use std::os::fd::OwnedFd;

use nix::sys::socket::sockopt::{AcceptConn, SockType as Type};
use nix::sys::socket::{SockType, getsockopt};

use super::handle::PortError;
use crate::port::PortConfig;

/// Checks the values of a port's configuration.
///
/// # Errors
/// [`PortError::Config`] names the first that cannot be.
pub(super) fn check_config(config: &PortConfig) -> Result<(), PortError> {
    let vlans = config.vlan.iter().chain(&config.trunk);
    let wrong = if config.name.is_empty() || config.name.len() > 64 {
        "a name has 1 to 64 bytes"
    } else if !(1..=8).contains(&config.queues) {
        "a port has 1 to 8 pairs of queues"
    } else if !(68..=9216).contains(&config.mtu) {
        "an MTU is 68 to 9,216 bytes"
    } else if vlans.into_iter().any(|vlan| !(1..=4094).contains(vlan)) {
        "a VLAN is 1 to 4094"
    } else {
        return Ok(());
    };
    Err(PortError::Config { name: config.name.clone(), wrong })
}

/// Checks that a socket is a stream socket, and listens if `listening`, and else does not.
///
/// # Errors
/// [`PortError::Socket`].
pub(super) fn check_socket(socket: &OwnedFd, listening: bool) -> Result<(), PortError> {
    let kind = getsockopt(socket, Type).map_err(PortError::Socket)?;
    let listens = getsockopt(socket, AcceptConn).map_err(PortError::Socket)?;
    if kind == SockType::Stream && listens == listening {
        Ok(())
    } else {
        Err(PortError::Socket(nix::errno::Errno::ENOTSOCK))
    }
}
