//! One interface being announced: its packet socket, what is still to be sent on it, and what comes back.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};

use super::packet::{announcement, claim, probe};
use super::{AnnounceError, Announcement, Conflict};
use crate::real::{Entered, OwnNetns, cookie_of, open_netns};
use crate::seam::NetnsId;

/// When packets go out, counted from the first: a lost one is made up for once.
const ROUNDS: [Duration; 2] = [Duration::ZERO, Duration::from_millis(100)];
/// When the socket is closed, at the latest: it keeps the pod's namespace alive.
const END: Duration = Duration::from_millis(250);

/// ARP, or ICMPv6 neighbour advertisements; everything else stays in the kernel.
const FILTER: [libc::sock_filter; 9] = [
    load_half(12),
    jump_if(0x0806, 5, 0),
    jump_if(0x86dd, 0, 5),
    load_byte(20),
    jump_if(58, 0, 3),
    load_byte(54),
    jump_if(136, 0, 1),
    accept(128),
    accept(0),
];

const fn load_half(at: u32) -> libc::sock_filter {
    libc::sock_filter { code: 0x28, jt: 0, jf: 0, k: at }
}

const fn load_byte(at: u32) -> libc::sock_filter {
    libc::sock_filter { code: 0x30, jt: 0, jf: 0, k: at }
}

const fn jump_if(value: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: 0x15, jt, jf, k: value }
}

const fn accept(bytes: u32) -> libc::sock_filter {
    libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: bytes }
}

/// An announcement under way.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) what: Announcement,
    socket: OwnedFd,
    began: Instant,
    rounds: usize,
    reported: bool,
}

impl Probe {
    /// Opens the socket in the pod's namespace, if the path still leads to the one that is meant.
    pub(super) fn open(own: &OwnNetns, what: Announcement) -> Result<Probe, AnnounceError> {
        let (fd, dev, ino) = open_netns(&what.netns)?;
        let socket = {
            let _inside = Entered::enter(own, fd)?;
            packet_socket()?
        };
        let found = NetnsId { dev, ino, cookie: cookie_of(socket.as_fd())? };
        if !found.same(&what.netns_id) {
            return Err(AnnounceError::Replaced { netns: what.netns });
        }
        filter_and_bind(socket.as_fd(), what.ifindex)?;
        Ok(Probe { what, socket, began: Instant::now(), rounds: 0, reported: false })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// When something is to be done next; `None` when it is over.
    pub(super) fn next(&self) -> Option<Instant> {
        if !self.what.probe && self.rounds > 0 {
            return None;
        }
        let after = ROUNDS.get(self.rounds).copied().unwrap_or(END);
        Some(self.began + after)
    }

    /// Sends what is due by `now`; false when it is over.
    pub(super) fn advance(&mut self, now: Instant) -> io::Result<bool> {
        while self.next().is_some_and(|at| at <= now) {
            if self.rounds == ROUNDS.len() {
                return Ok(false);
            }
            self.rounds += 1;
            self.send_round()?;
        }
        Ok(self.next().is_some())
    }

    fn send_round(&self) -> io::Result<()> {
        for address in &self.what.addresses {
            if self.what.probe {
                self.transmit(&probe(self.what.mac, *address))?;
            }
            self.transmit(&announcement(self.what.mac, *address))?;
        }
        Ok(())
    }

    fn transmit(&self, frame: &[u8]) -> io::Result<()> {
        match send(self.socket.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT) {
            // A full transmit queue drops it; the second round makes up for it.
            Ok(_) | Err(Errno::EAGAIN | Errno::ENOBUFS) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reads what has come; a conflict is told once.
    pub(super) fn listen(&mut self) -> io::Result<Option<Conflict>> {
        let mut frame = [0; 128];
        loop {
            let length = match recv(self.socket.as_raw_fd(), &mut frame, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => length,
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let Some((address, other)) = claim(&frame[..length]) else { continue };
            if other != self.what.mac && self.what.addresses.contains(&address) && !self.reported {
                self.reported = true;
                let Announcement { label, ifindex, netns_id, .. } = self.what.clone();
                return Ok(Some(Conflict { label, ifindex, netns_id, address, other }));
            }
        }
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

fn filter_and_bind(socket: BorrowedFd<'_>, ifindex: u32) -> io::Result<()> {
    let mut filter = FILTER;
    let program = libc::sock_fprog {
        len: libc::c_ushort::try_from(FILTER.len()).unwrap_or(0),
        filter: filter.as_mut_ptr(),
    };
    let length = libc::socklen_t::try_from(size_of::<libc::sock_fprog>()).unwrap_or(0);
    let pointer = (&raw const program).cast();
    // SAFETY: `program` and the filter that it points at outlive the call; the kernel copies both.
    let outcome = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, pointer, length)
    };
    Errno::result(outcome)?;
    let address = libc::sockaddr_ll {
        sll_family: libc::sa_family_t::try_from(libc::AF_PACKET).unwrap_or(0),
        sll_protocol: u16::try_from(libc::ETH_P_ALL).unwrap_or(0).to_be(),
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
