//! What all families of generic netlink have in common: the number of a family, the header, and the attributes behind it.

use nix::errno::Errno;

use super::attributes::{attributes, u16_at};
use super::decode::Body;
use super::message::Message;
use super::socket::{Failure, Socket};

/// Length of `struct genlmsghdr`.
pub(super) const GENERIC_HEADER: usize = 4;
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
pub(super) const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// The number that the kernel has given to a family; `None` where it has no such family.
pub(super) fn family(socket: &mut Socket, name: &str) -> Result<Option<u16>, Failure> {
    let mut message = request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 0);
    message.text(CTRL_ATTR_FAMILY_NAME, name);
    let mut family = None;
    match socket.exchange(message, &mut |body| family = number_in(&body, CTRL_ATTR_FAMILY_ID)) {
        Ok(()) => Ok(family),
        // Nobody has registered the family.
        Err(Failure::Refused { errno: Errno::ENOENT, .. }) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// A request of the family `kind`, without attributes yet.
pub(super) fn request(kind: u16, command: u8, flags: i32) -> Message {
    // After the command come the family's version and two reserved bytes.
    Message::new(kind, flags, &[command, 1, 0, 0])
}

/// A 16-bit number of a message.
pub(super) fn number_in(body: &Body, wanted: u16) -> Option<u16> {
    let Body::Generic(payload) = body else { return None };
    let mut all = attributes(payload.get(GENERIC_HEADER..)?);
    all.find(|(kind, _)| *kind == wanted).and_then(|(_, value)| u16_at(value, 0))
}
