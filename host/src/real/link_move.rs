//! Moves a link between two namespaces under a new name, wholly or not at all.
//!
//! The kernel does it in two steps: it moves the link under its old name if that is free at the destination, and
//! renames it there; refused at the second step, it leaves the link moved. So the name is looked for first, and a
//! link that lost the race for it is taken back (down: a move closes a link).

use std::os::fd::BorrowedFd;

use nix::errno::Errno;

use super::netlink::encode;
use super::netlink::socket::{Failure, Socket};

/// One side of a move: a socket in a namespace, and the namespace itself.
pub(super) struct End<'a> {
    pub(super) socket: &'a mut Socket,
    pub(super) netns: BorrowedFd<'a>,
}

/// Moves link `index` of `from` to `to` as `name`, and sets it up there if it is to be.
pub(super) fn move_link(
    from: &mut End<'_>,
    to: &mut End<'_>,
    index: u32,
    name: &str,
    up: bool,
) -> Result<(), Failure> {
    // What the link is now: only by that it is recognised if the kernel strands it.
    let before = from.socket.link(encode::get_link(index))?;
    match to.socket.link(encode::get_link_by_name(name)) {
        Ok(_) => return Err(Failure::Refused { errno: Errno::EEXIST, extack: None }),
        Err(Failure::Refused { errno: Errno::ENODEV, .. }) => {}
        Err(failure) => return Err(failure),
    }
    let moved = from.socket.acknowledged(encode::move_link(index, name, to.netns, up));
    // The name was taken between the look and the move: the kernel may have moved the link all the same.
    if matches!(moved, Err(Failure::Refused { errno: Errno::EEXIST, .. })) {
        let stranded = to.socket.link(encode::get_link_by_name(&before.name));
        // A link of the old name may have been there before: only one that the source has lost is ours.
        if let Ok(link) = stranded
            && link.mac == before.mac
            && link.kind == before.kind
            && from.socket.link(encode::get_link(index)).is_err()
        {
            // By its index there: the kernel gives another one where the old is taken.
            to.socket.acknowledged(encode::move_link(link.index, &before.name, from.netns, false))?;
        }
    }
    moved
}
