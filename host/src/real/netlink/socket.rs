//! One netlink socket: a request and its answer, or a dump, and never a wait without an end.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, NetlinkAddr, bind, send, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use rustix::buffer::spare_capacity;
use rustix::net::{RecvFlags, recv};

use super::decode::{Answer, Body, Unreadable, decode, decode_generic};
use super::message::Message;
use crate::seam::{Link, NetError, OpError};

/// The level of netlink's socket options (`SOL_NETLINK`).
const SOL_NETLINK: libc::c_int = 270;
/// The option that has refusals come with a text (`NETLINK_EXT_ACK`).
const NETLINK_EXT_ACK: libc::c_int = 11;
const NETLINK_GET_STRICT_CHK: libc::c_int = 12;
/// Group 1 of `NETLINK_KOBJECT_UEVENT`; udev's own is group 2.
const UEVENTS_OF_THE_KERNEL: u32 = 1;
/// `SKF_AD_OFF + SKF_AD_NLATTR`: instead of loading, a filter looks for an attribute.
const FIND_ATTRIBUTE: u32 = 0xffff_f000 + 12;
/// The kernel answers inside `send`; a socket that has no answer for so long is broken.
const ANSWER_SECONDS: i64 = 20;
/// The longest datagram that is read, in bytes. The kernel makes one of a dump as large as the largest link needs: alternative
/// names and VFs are 64 KiB each at most.
const DATAGRAM: usize = 1 << 20;
/// A longer list is not kept in memory: a pod can fill its namespace.
const MOST_LISTED: usize = 1 << 20;
/// How often a dump that was changed under way is begun again.
const DUMP_TRIES: usize = 32;

thread_local! {
    /// Room for the longest datagram without a look at its length first, which would be a second system call for each answer.
    /// Nothing writes to it before the kernel does: only as much of it is memory as the longest answer so far has needed.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(DATAGRAM));
}

/// Why a request failed.
#[derive(Debug)]
pub(in crate::real) enum Failure {
    /// The kernel said no.
    Refused { errno: Errno, extack: Option<String> },
    /// The socket failed.
    Socket(io::Error),
    /// The answer could not be read.
    Answer(String),
}

impl Failure {
    /// The same as an error of the seam: `what` was operation number `at`.
    pub(in crate::real) fn into_net(self, at: usize, what: impl FnOnce() -> String) -> NetError {
        match self {
            Failure::Refused { errno, extack } => NetError::Op(OpError { at, what: what(), errno, extack }),
            Failure::Socket(error) => NetError::Socket(error),
            Failure::Answer(text) => NetError::Answer(format!("{}: {text}", what())),
        }
    }
}

/// The kernel's no to one of several requests.
#[derive(Debug)]
pub(in crate::real) struct Refusal {
    pub(in crate::real) errno: Errno,
    pub(in crate::real) extack: Option<String>,
}

/// A socket of rtnetlink or generic netlink, bound to the namespace that its thread was in when it was opened.
#[derive(Debug)]
pub(in crate::real) struct Socket {
    fd: Arc<OwnedFd>,
    sequence: u32,
    decode: fn(&[u8]) -> Result<Vec<Answer>, Unreadable>,
}

impl Socket {
    /// Opens one of rtnetlink in the calling thread's namespace.
    pub(in crate::real) fn open() -> io::Result<Socket> {
        Socket::over(rtnetlink(0)?, decode)
    }

    /// Opens one of generic netlink in the calling thread's namespace.
    pub(in crate::real) fn open_generic() -> io::Result<Socket> {
        Socket::over(netlink(libc::NETLINK_GENERIC, 0)?, decode_generic)
    }

    /// Opens one of rtnetlink that reads every message as it is (`Body::Generic`: the message behind its netlink header).
    pub(in crate::real) fn open_raw() -> io::Result<Socket> {
        Socket::over(rtnetlink(0)?, decode_generic)
    }

    fn over(fd: OwnedFd, decode: fn(&[u8]) -> Result<Vec<Answer>, Unreadable>) -> io::Result<Socket> {
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::seconds(ANSWER_SECONDS))?;
        let socket = Socket { fd: Arc::new(fd), sequence: 0, decode };
        // Both are comfort (texts of refusals, filtered dumps): older kernels do without, and so do we.
        let _ = set_option(socket.as_fd(), NETLINK_EXT_ACK, 1);
        let _ = set_option(socket.as_fd(), NETLINK_GET_STRICT_CHK, 1);
        Ok(socket)
    }

    /// The descriptor, for socket options.
    pub(in crate::real) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The descriptor, to be held longer than the socket.
    pub(in crate::real) fn shared_fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// Sends a request with NLM_F_ACK and reads its acknowledgement.
    pub(in crate::real) fn acknowledged(&mut self, message: Message) -> Result<(), Failure> {
        self.exchange(message, &mut |_| {})
    }

    /// Sends requests in one datagram, and answers which of them were refused, by their positions. The kernel carries them out in order
    /// and goes on behind a refusal, which comes unasked; so only the last one is acknowledged.
    pub(in crate::real) fn row(
        &mut self,
        messages: &mut [Message],
    ) -> Result<Vec<(usize, Refusal)>, Failure> {
        let Some(last) = messages.len().checked_sub(1) else { return Ok(Vec::new()) };
        let mut sequences = Vec::with_capacity(messages.len());
        let mut bytes = Vec::new();
        for (at, message) in messages.iter_mut().enumerate() {
            let sequence = self.next_sequence();
            sequences.push(sequence);
            bytes.extend_from_slice(message.in_a_row(sequence, at == last));
        }
        self.send_bytes(&bytes)?;
        let mut refused = Vec::new();
        loop {
            for answer in self.receive()? {
                // It belongs to an earlier request that was given up.
                let Some(at) = sequences.iter().position(|one| *one == answer.sequence) else { continue };
                if let Body::Refused { errno, extack } = answer.body {
                    refused.push((at, Refusal { errno, extack }));
                }
                if at == last {
                    return Ok(refused);
                }
            }
        }
    }

    /// Sends a request that is answered by one link.
    pub(in crate::real) fn link(&mut self, message: Message) -> Result<Link, Failure> {
        let mut found = None;
        self.exchange(message, &mut |body| {
            if let Body::Link(link, _) = body {
                found = Some(link);
            }
        })?;
        found
            .map(|link| *link)
            .ok_or_else(|| Failure::Answer("a link was asked for, and something else came".into()))
    }

    /// Sends one request and reads up to its end: an acknowledgement, a refusal or, for a request without
    /// NLM_F_ACK, the answer itself.
    pub(in crate::real) fn exchange(
        &mut self,
        message: Message,
        each: &mut dyn FnMut(Body),
    ) -> Result<(), Failure> {
        let wants_ack = message.wants_ack();
        let sequence = self.send(message)?;
        loop {
            for answer in self.receive()? {
                // It belongs to an earlier request that was given up.
                if answer.sequence != sequence {
                    continue;
                }
                match answer.body {
                    Body::Ack | Body::Done => return Ok(()),
                    Body::Refused { errno, extack } => return Err(Failure::Refused { errno, extack }),
                    body => {
                        each(body);
                        if !wants_ack {
                            return Ok(());
                        }
                    }
                }
            }
        }
    }

    /// Reads a whole dump; one that changed under way (NLM_F_DUMP_INTR) or overflowed is begun again. `each` gets only
    /// what came of a consistent one.
    pub(in crate::real) fn dump(
        &mut self,
        request: impl Fn() -> Message,
        each: &mut dyn FnMut(Body),
    ) -> Result<(), Failure> {
        match self.dump_at_most(MOST_LISTED, request, each)? {
            true => Ok(()),
            false => Err(Failure::Answer(format!("the list has more than {MOST_LISTED} entries"))),
        }
    }

    /// The same, but false, and nothing for `each`, when more than `most` come: no more than those are ever kept.
    pub(in crate::real) fn dump_at_most(
        &mut self,
        most: usize,
        request: impl Fn() -> Message,
        each: &mut dyn FnMut(Body),
    ) -> Result<bool, Failure> {
        for _ in 0..DUMP_TRIES {
            let mut bodies = Vec::new();
            if self.dump_once(request(), &mut bodies, most)? {
                if bodies.len() > most {
                    return Ok(false);
                }
                bodies.into_iter().for_each(each);
                return Ok(true);
            }
        }
        Err(changed_under_way())
    }

    /// The first of a dump that is wanted, also of one that changed under way: only one that shows nothing wanted is begun again.
    pub(in crate::real) fn find<T>(
        &mut self,
        request: impl Fn() -> Message,
        wanted: impl Fn(Body) -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        for _ in 0..DUMP_TRIES {
            let mut bodies = Vec::new();
            let consistent = self.dump_once(request(), &mut bodies, MOST_LISTED)?;
            let found = bodies.into_iter().find_map(&wanted);
            if found.is_some() || consistent {
                return Ok(found);
            }
        }
        Err(changed_under_way())
    }

    /// True when the dump is consistent. Keeps one more than `most` bodies, so that they are seen to be too many.
    fn dump_once(&mut self, request: Message, bodies: &mut Vec<Body>, most: usize) -> Result<bool, Failure> {
        let sequence = self.send(request)?;
        let mut consistent = true;
        loop {
            let answers = match self.receive() {
                // The receive buffer ran over. The rest of the dump still comes and has to be read, or it would be taken for the
                // answer of the next request.
                Err(Failure::Socket(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    consistent = false;
                    continue;
                }
                other => other?,
            };
            for answer in answers.into_iter().filter(|answer| answer.sequence == sequence) {
                consistent &= !answer.interrupted;
                match answer.body {
                    Body::Done | Body::Ack => return Ok(consistent),
                    Body::Refused { errno: Errno::EINTR | Errno::EAGAIN, .. } => return Ok(false),
                    Body::Refused { errno, extack } => return Err(Failure::Refused { errno, extack }),
                    body if bodies.len() <= most => bodies.push(body),
                    _ => {}
                }
            }
        }
    }

    fn send(&mut self, mut message: Message) -> Result<u32, Failure> {
        let sequence = self.next_sequence();
        self.send_bytes(message.with_sequence(sequence))?;
        Ok(sequence)
    }

    /// Never 0, which the kernel's own news carry.
    fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.sequence
    }

    fn send_bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        loop {
            match send(self.fd.as_raw_fd(), bytes, MsgFlags::empty()) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Failure::Socket(errno.into())),
            }
        }
    }

    fn receive(&mut self) -> Result<Vec<Answer>, Failure> {
        BUFFER.with_borrow_mut(|buffer| {
            let length = loop {
                buffer.clear();
                // MSG_TRUNC: the length is that of the whole datagram, so one that was cut is noticed.
                match recv(&self.fd, spare_capacity(buffer), RecvFlags::TRUNC) {
                    Ok((_, length)) => break length,
                    Err(rustix::io::Errno::INTR) => {}
                    // The kernel's word for a receive timeout that has passed.
                    Err(rustix::io::Errno::AGAIN) => return Err(Failure::Socket(no_answer())),
                    Err(errno) => return Err(Failure::Socket(errno.into())),
                }
            };
            if length > buffer.len() {
                return Err(Failure::Answer(format!(
                    "one message of {length} bytes, and at most {} are read",
                    buffer.len()
                )));
            }
            (self.decode)(buffer).map_err(|error| Failure::Answer(error.to_string()))
        })
    }
}

fn changed_under_way() -> Failure {
    Failure::Answer(format!("the list changed while it was read, {DUMP_TRIES} times in a row"))
}

fn no_answer() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {ANSWER_SECONDS} s"))
}

/// A socket without an address: the kernel binds it at its first request.
fn rtnetlink(flags: libc::c_int) -> io::Result<OwnedFd> {
    netlink(libc::NETLINK_ROUTE, flags)
}

fn netlink(protocol: libc::c_int, flags: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | flags;
    // SAFETY: socket(2) takes no pointers.
    let raw = Errno::result(unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) })?;
    // SAFETY: the kernel has just made this descriptor and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// A non-blocking socket that receives the news of these groups of the calling thread's namespace.
pub(crate) fn netlink_news(groups: &[libc::c_int]) -> io::Result<OwnedFd> {
    let fd = rtnetlink(libc::SOCK_NONBLOCK)?;
    // Port 0: the kernel chooses one, since this process has other sockets.
    bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    for group in groups {
        set_option(fd.as_fd(), libc::NETLINK_ADD_MEMBERSHIP, *group)?;
    }
    Ok(fd)
}

/// A non-blocking socket that receives the kernel's news of devices, those of interfaces from the calling thread's namespace.
pub(crate) fn uevents() -> io::Result<OwnedFd> {
    let fd = netlink(libc::NETLINK_KOBJECT_UEVENT, libc::SOCK_NONBLOCK)?;
    bind(fd.as_raw_fd(), &NetlinkAddr::new(0, UEVENTS_OF_THE_KERNEL))?;
    Ok(fd)
}

/// Lets the kernel drop every message but those of one type before it wakes the reader.
pub(crate) fn only_of_type(socket: &OwnedFd, kind: u16) -> io::Result<()> {
    let op = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
    // `nlmsg_type` is in the machine's byte order, a filter loads in the network's.
    let wanted = u32::from(kind.swap_bytes());
    // Load the type; if it is the wanted one skip the next; drop; keep.
    let mut filter = [op(0x28, 0, 4), op(0x15, 1, wanted), op(0x06, 0, 0), op(0x06, 0, u32::MAX)];
    attach_filter(socket.as_fd(), &mut filter)
}

/// Lets the kernel drop the news of links that belong to no device on a bus.
pub(crate) fn only_with_a_device(socket: &OwnedFd) -> io::Result<()> {
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // A: where the attributes begin, behind the two headers; X: the attribute that is looked for; then A: where it is, or 0.
    let mut filter = [
        op(0x00, 0, 0, 32),
        op(0x01, 0, 0, u32::from(libc::IFLA_PARENT_DEV_NAME)),
        op(0x20, 0, 0, FIND_ATTRIBUTE),
        op(0x15, 0, 1, 0),
        op(0x06, 0, 0, 0),
        op(0x06, 0, 0, u32::MAX),
    ];
    attach_filter(socket.as_fd(), &mut filter)
}

/// Lets the kernel drop the news of devices that are on no bus.
pub(crate) fn no_virtual_devices(socket: &OwnedFd) -> io::Result<()> {
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // `<action>@/devices/virtual/…`: where `virt` is depends on the action, which has 3 to 7 letters.
    let at = |letters: u32| letters + 10;
    let mut filter = Vec::new();
    for (left, letters) in [(4, 3), (3, 4), (2, 6), (1, 7)] {
        // A hit jumps over the pairs that are left and over "keep", to "drop".
        filter.extend([op(0x20, 0, 0, at(letters)), op(0x15, 2 * left - 1, 0, u32::from_be_bytes(*b"virt"))]);
    }
    filter.extend([op(0x06, 0, 0, u32::MAX), op(0x06, 0, 0, 0)]);
    attach_filter(socket.as_fd(), &mut filter)
}

/// Has the kernel run a classic packet filter over what comes in.
pub(crate) fn attach_filter(socket: BorrowedFd<'_>, filter: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: libc::c_ushort::try_from(filter.len()).unwrap_or(0),
        filter: filter.as_mut_ptr(),
    };
    let length = libc::socklen_t::try_from(size_of::<libc::sock_fprog>()).unwrap_or(0);
    let pointer = (&raw const program).cast();
    // SAFETY: `program` and the filter that it points at outlive the call; the kernel copies both.
    let outcome = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, pointer, length)
    };
    Errno::result(outcome)?;
    Ok(())
}

/// Sets an option of a netlink socket.
fn set_option(fd: BorrowedFd<'_>, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(4);
    // SAFETY: `value` outlives the call and `length` is its size.
    let outcome =
        unsafe { libc::setsockopt(fd.as_raw_fd(), SOL_NETLINK, name, (&raw const value).cast(), length) };
    Errno::result(outcome)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    /// A socket that has received this message, from a peer that says what the test wants.
    fn that_received(mut message: Message) -> Socket {
        let (ours, peer) = UnixDatagram::pair().unwrap();
        setsockopt(&peer, sockopt::SndBuf, &(4 * DATAGRAM)).unwrap();
        peer.send(message.with_sequence(1)).unwrap();
        Socket { fd: Arc::new(ours.into()), sequence: 1, decode }
    }

    fn link() -> Message {
        Message::new(libc::RTM_NEWLINK, 0, &[0; 16])
    }

    #[test]
    fn an_answer_with_256_vfs_is_read_whole() {
        let mut message = link();
        message.nest(libc::IFLA_VFINFO_LIST, |list| {
            for vf in 0_u32..256 {
                list.nest(1, |info| {
                    info.attribute(1, &[&vf.to_ne_bytes()[..], &[2; 32]].concat());
                    // What the kernel tells besides: broadcast address, GUIDs, link state, rates and more.
                    info.attribute(13, &[0xff; 150]);
                });
            }
        });
        assert!(message.with_sequence(1).len() > 48_000);
        let answers = that_received(message).receive().unwrap();
        let Some(Body::Link(_, vfs)) = answers.first().map(|answer| &answer.body) else { panic!("a link") };
        assert!(vfs.iter().map(|vf| vf.index).eq(0..256), "{vfs:?}");
    }

    #[test]
    fn an_answer_above_the_limit_is_refused_by_its_size_and_by_what_was_asked() {
        let mut message = link();
        (0..20).for_each(|_| message.attribute(200, &[0; 60_000]));
        let length = message.with_sequence(1).len();
        let failure = that_received(message).receive().unwrap_err();
        let told = failure.into_net(0, || "list links".to_owned()).to_string();
        assert!(told.contains("list links") && told.contains(&length.to_string()), "{told}");
        assert!(told.contains("1048576"), "{told}");
    }

    #[test]
    fn a_link_is_found_in_a_list_that_changes_whenever_it_is_read() {
        let (ours, peer) = UnixDatagram::pair().unwrap();
        let mut socket = Socket { fd: Arc::new(ours.into()), sequence: 0, decode };
        let answer = |sequence| {
            peer.recv(&mut [0; 64]).unwrap();
            let flags = libc::NLM_F_MULTI | libc::NLM_F_DUMP_INTR;
            for mut message in [
                Message::new(libc::RTM_NEWLINK, flags, &[0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
                Message::new(3, flags, &[0; 4]),
            ] {
                peer.send(message.with_sequence(sequence)).unwrap();
            }
        };
        let request = || Message::new(libc::RTM_GETLINK, libc::NLM_F_DUMP, &[0; 16]);
        let index = |body| match body {
            Body::Link(link, _) => Some(link.index),
            _ => None,
        };
        let listed = std::thread::scope(|scope| {
            scope.spawn(|| (1..).take(1 + DUMP_TRIES).for_each(answer));
            assert_eq!(socket.find(request, index).unwrap(), Some(7));
            socket.dump(request, &mut |_| {})
        });
        assert!(matches!(listed, Err(Failure::Answer(_))), "a whole list is not to be had: {listed:?}");
    }
}
