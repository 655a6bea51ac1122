//! One interface being announced: its packet socket, what is still to be sent on it, and what comes back.

use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};

use super::packet::{announcement, claim, probe};
use super::{AnnounceError, Announcement, Conflict, packet_filter};
use crate::Mac;
use crate::real::{
    Entered, OwnNetns, PodView, attach_filter, carrier_here, cookie_of, open_netns, write_sysctl,
};
use crate::seam::{Net as _, NetnsError, NetnsId};

/// How long somebody else's answer is waited for. No longer, since the socket keeps the pod's namespace alive.
const LISTEN: Duration = Duration::from_millis(250);

/// An announcement under way.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) what: Announcement,
    socket: OwnedFd,
    /// The interface's MAC address when the socket was bound. The next plugin of the list may have set another than the ADD's answer names.
    mac: Mac,
    until: Instant,
    reported: bool,
    /// MAC addresses of the pod's other interfaces, as far as they were heard.
    siblings: Vec<Mac>,
}

impl Probe {
    /// Opens the socket in the pod's namespace, if the path still leads to the one that is meant.
    pub(super) fn open(own: &OwnNetns, what: Announcement) -> Result<Probe, AnnounceError> {
        let (fd, dev, ino) = open_netns(&what.netns)?;
        let socket = {
            let _inside = Entered::enter(own, fd)?;
            if what.awaits_carrier && !carrier_here(what.ifindex)? {
                return Err(AnnounceError::NoCarrier);
            }
            if let Some(name) = &what.ndisc_notify {
                let key = format!("net/ipv6/conf/{name}/ndisc_notify");
                if let Err(error) = write_sysctl(&own.sysctls, &key, "1") {
                    tracing::debug!(%error, interface = what.label, "the kernel does not announce its IPv6 addresses");
                }
            }
            // A socket stays in the namespace in which it was opened; the thread leaves at once.
            packet_socket()?
        };
        let found = NetnsId { dev, ino, cookie: cookie_of(socket.as_fd())? };
        if !found.same(&what.netns_id) {
            return Err(AnnounceError::Replaced { netns: what.netns });
        }
        // Last: unbound it hears nothing, so no packet is read that the filter has not seen.
        filter_and_bind(socket.as_fd(), what.ifindex, &what.addresses)?;
        let mac = mac_of_bound(socket.as_fd())?;
        Ok(Probe { what, socket, mac, until: Instant::now() + LISTEN, reported: false, siblings: Vec::new() })
    }

    /// The socket alone, to be closed by somebody who can wait.
    pub(super) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// When it has listened long enough.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Sends the probes and announcements, each once: every broadcast costs each pod on the same parent a packet.
    pub(super) fn speak(&self) -> io::Result<()> {
        for address in &self.what.addresses {
            if self.what.probe {
                self.transmit(&probe(self.mac, *address))?;
            }
            self.transmit(&announcement(self.mac, *address))?;
        }
        Ok(())
    }

    fn transmit(&self, frame: &[u8]) -> io::Result<()> {
        match send(self.socket.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT) {
            // A full transmit queue drops it; the neighbours then learn of it by themselves.
            Ok(_) | Err(Errno::EAGAIN | Errno::ENOBUFS) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reads what has come; a conflict is reported once. Another interface of the same pod is none: by default a kernel
    /// answers on each of its interfaces for every IPv4 address that its namespace has (`arp_ignore` 0).
    pub(super) fn listen(&mut self, own: &OwnNetns) -> io::Result<Option<Conflict>> {
        let mut frame = [0; 128];
        loop {
            let length = match recv(self.socket.as_raw_fd(), &mut frame, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => length,
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let Some((address, other)) = claim(&frame[..length]) else { continue };
            let foreign = other != self.mac && !self.siblings.contains(&other);
            if !foreign || self.reported || !self.what.addresses.contains(&address) {
                continue;
            }
            if self.is_sibling(own, other) {
                self.siblings.push(other);
            } else {
                self.reported = true;
                let Announcement { label, ifindex, netns_id, .. } = self.what.clone();
                return Ok(Some(Conflict { label, ifindex, netns_id, address, other }));
            }
        }
    }

    /// Whether `other` is nobody else: an interface of the pod itself, or the pod has ended and nobody is left to have
    /// a conflict. Where it can't be found out the conflict is believed.
    fn is_sibling(&self, own: &OwnNetns, other: Mac) -> bool {
        match self.macs_of_the_pod(own) {
            Ok(macs) => macs.contains(&other),
            Err(error) if error.has_ended() => true,
            Err(error) => {
                tracing::debug!(%error, interface = self.what.label, "a conflict's MAC address could not be looked for in the pod");
                false
            }
        }
    }

    fn macs_of_the_pod(&self, own: &OwnNetns) -> Result<Vec<Mac>, AnnounceError> {
        let path = &self.what.netns;
        let mut pod = PodView::open(own, path)?;
        if !pod.id().same(&self.what.netns_id) {
            return Err(AnnounceError::Replaced { netns: path.clone() });
        }
        let links = pod.links().map_err(|source| NetnsError::Net { path: path.clone(), source })?;
        Ok(links.into_iter().filter_map(|link| link.mac).collect())
    }
}

/// Deaf until it is bound: a packet socket without protocol receives nothing.
fn packet_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket(2) takes no pointers.
    let raw = Errno::result(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: the kernel has just made this descriptor and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn filter_and_bind(socket: BorrowedFd<'_>, ifindex: u32, addresses: &[IpAddr]) -> io::Result<()> {
    attach_filter(socket, &mut packet_filter::claims_of(addresses))?;
    let protocol = if addresses.iter().all(IpAddr::is_ipv4) { libc::ETH_P_ARP } else { libc::ETH_P_ALL };
    let address = libc::sockaddr_ll {
        sll_family: libc::sa_family_t::try_from(libc::AF_PACKET).unwrap_or(0),
        sll_protocol: u16::try_from(protocol).unwrap_or(0).to_be(),
        sll_ifindex: i32::try_from(ifindex).unwrap_or(0),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).unwrap_or(0);
    // SAFETY: `address` is a whole sockaddr_ll and `length` is its size.
    Errno::result(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
    Ok(())
}

/// The MAC address of the interface that a packet socket is bound to, as the kernel has it now.
fn mac_of_bound(socket: BorrowedFd<'_>) -> io::Result<Mac> {
    let mut address = MaybeUninit::<libc::sockaddr_ll>::zeroed();
    let mut length = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).unwrap_or(0);
    let to = address.as_mut_ptr().cast();
    // SAFETY: `address` has room for the `length` bytes that the kernel writes at most.
    Errno::result(unsafe { libc::getsockname(socket.as_raw_fd(), to, &raw mut length) })?;
    // SAFETY: it was zeroed, and any bytes are a sockaddr_ll.
    let address = unsafe { address.assume_init() };
    match (address.sll_halen, address.sll_addr) {
        (6, [a, b, c, d, e, f, _, _]) => Ok(Mac([a, b, c, d, e, f])),
        // The interface is gone since it was bound.
        _ => Err(Errno::ENODEV.into()),
    }
}
