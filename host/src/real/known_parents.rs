//! Parents that were looked up lately. The next link on the same one needs no `RTM_GETLINK`, which waits for the kernel's lock for links
//! and tells a kilobyte.
//!
//! Only the way is remembered, from a name to an index, and that it leads on, which it does as long as it lives. That the way still leads
//! there, and all else that is answered, the kernel is asked each time, by ioctls without that lock. One thing is not seen so: that the
//! other end of a wire has left the host's namespace since.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::Mac;
use crate::seam::ParentLink;

mod ioctls {
    nix::ioctl_readwrite_bad!(name_of_index, libc::SIOCGIFNAME, libc::ifreq);
    nix::ioctl_readwrite_bad!(mtu_of_name, libc::SIOCGIFMTU, libc::ifreq);
    nix::ioctl_readwrite_bad!(mac_of_name, libc::SIOCGIFHWADDR, libc::ifreq);
}

/// So many are remembered by each thread: a node has few parents.
const MOST: usize = 16;

thread_local! {
    /// Those that this thread has looked up.
    static KNOWN: RefCell<Vec<ParentLink>> = const { RefCell::new(Vec::new()) };
}

/// Remembers a parent that was looked up by this name. An alternative name is not: nothing tells cheaply that it has moved to another link.
pub(super) fn remember(name: &str, parent: &ParentLink) {
    if parent.name != name {
        return;
    }
    KNOWN.with_borrow_mut(|known| {
        known.retain(|other| other.name != name);
        known.truncate(MOST - 1);
        known.insert(0, parent.clone());
    });
}

/// A parent that is remembered, as it is now in the namespace of a `socket`; `None` when it has to be looked up.
pub(super) fn still_there(socket: BorrowedFd<'_>, name: &str) -> Option<ParentLink> {
    KNOWN.with_borrow(|known| {
        known.iter().find(|parent| parent.name == name).and_then(|parent| now(socket, parent))
    })
}

/// What the kernel says now of a parent.
fn now(socket: BorrowedFd<'_>, parent: &ParentLink) -> Option<ParentLink> {
    let fd = socket.as_raw_fd();
    // First the name of the index: by a name that no link has, the kernel would look for a module.
    let mut request = named(socket, parent)?;
    // SAFETY: `request` is an `ifreq` with a name, which outlives the call.
    unsafe { ioctls::mtu_of_name(fd, &raw mut request) }.ok()?;
    // SAFETY: any bytes are an int; the kernel has just written this one.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    // SAFETY: as with the first.
    unsafe { ioctls::mac_of_name(fd, &raw mut request) }.ok()?;
    // SAFETY: any bytes are a `sockaddr`; the kernel has just written this one.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    // Again: what was read by the name in between is another link's if that was renamed.
    named(socket, parent)?;
    let [a, b, c, d, e, f, ..] = address.sa_data.map(byte_of);
    Some(ParentLink {
        // How long its addresses are does not change: without one of 6 bytes it gets none.
        mac: parent.mac.map(|_| Mac([a, b, c, d, e, f])),
        mtu: mtu.cast_unsigned(),
        ..parent.clone()
    })
}

/// A byte of C's, which has a sign on some processors only.
fn byte_of(c: libc::c_char) -> u8 {
    let [byte] = c.to_ne_bytes();
    byte
}

/// A request by the name of a parent, if its index still has that name.
fn named(socket: BorrowedFd<'_>, parent: &ParentLink) -> Option<libc::ifreq> {
    // SAFETY: zeros are an `ifreq`: a text and a union of plain data.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_ifindex = parent.index.cast_signed();
    // SAFETY: the kernel reads the index, and writes the name with its final NUL.
    unsafe { ioctls::name_of_index(socket.as_raw_fd(), &raw mut request) }.ok()?;
    let name = request.ifr_name.map(byte_of);
    (name.split(|byte| *byte == 0).next() == Some(parent.name.as_bytes())).then_some(request)
}
