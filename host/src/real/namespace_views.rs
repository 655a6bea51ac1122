//! The views of the daemon's own namespace and of a pod's.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;

use super::link_move::{End, move_link};
use super::namespace::{Entered, OwnNetns, cookie_of, open_netns};
use super::netlink::Message;
use super::netlink::decode::Body;
use super::netlink::encode::{self, Ends, Via};
use super::netlink::socket::{Failure, Socket};
use super::nsid_in;
use crate::seam::{Address, Link, Net, NetError, NetnsError, NetnsId, Nsid, Op, Route};
use crate::vf_settings::Vf;

thread_local! {
    /// This thread's socket in the daemon's namespace, with the identity of that namespace.
    static HOST_SOCKET: RefCell<Option<(NetnsId, Socket)>> = const { RefCell::new(None) };
}

/// Lends this thread's host socket, opening it at first use. One that failed is thrown away.
pub(super) fn with_host<T>(
    own: &OwnNetns,
    work: impl FnOnce(&mut Socket) -> Result<T, Failure>,
) -> Result<T, Failure> {
    HOST_SOCKET.with_borrow_mut(|slot| {
        // A thread may outlive one kernel and serve another that began in another namespace.
        if slot.as_ref().is_none_or(|(id, _)| *id != own.id) {
            *slot = Some((own.id.clone(), own.socket().map_err(Failure::Socket)?));
        }
        let Some((_, socket)) = slot.as_mut() else {
            return Err(Failure::Answer("no host socket".to_owned()));
        };
        let outcome = work(socket);
        // The rest of an answer may still lie in such a socket. A refusal is a whole answer, and leaves none.
        if matches!(outcome, Err(Failure::Socket(_) | Failure::Answer(_))) {
            *slot = None;
        }
        outcome
    })
}

/// The view of the daemon's own namespace.
#[derive(Debug)]
pub(super) struct HostView<'own> {
    own: &'own OwnNetns,
}

impl<'own> HostView<'own> {
    pub(super) fn new(own: &'own OwnNetns) -> HostView<'own> {
        HostView { own }
    }
}

/// The view of a pod's namespace; its socket is closed before the thread goes home (fields drop in order).
#[derive(Debug)]
pub(crate) struct PodView<'own> {
    socket: Socket,
    away: Entered<'own>,
    id: NetnsId,
    nsid: Option<Nsid>,
}

impl<'own> PodView<'own> {
    /// Opens and enters the namespace at `path`.
    pub(crate) fn open(own: &'own OwnNetns, path: &Path) -> Result<PodView<'own>, NetnsError> {
        let (fd, dev, ino) = open_netns(path)?;
        // Before the thread enters. Inode numbers are enough here: the daemon's own namespace is alive, so its is not reused.
        if (dev, ino) == (own.id.dev, own.id.ino) {
            return Err(NetnsError::Host { path: path.to_owned() });
        }
        let failed = |source: io::Error| NetnsError::Io { path: path.to_owned(), source };
        let away = Entered::enter(own, fd).map_err(failed)?;
        // After the thread has entered: a socket belongs to the namespace that its maker is in.
        let socket = Socket::open().map_err(failed)?;
        // Only a socket shows its namespace's cookie; the descriptor of the namespace does not.
        let cookie = cookie_of(socket.as_fd()).map_err(failed)?;
        Ok(PodView { socket, away, id: NetnsId { dev, ino, cookie }, nsid: None })
    }

    fn assign_nsid(&self) -> Result<Option<Nsid>, Failure> {
        let fd = self.away.fd();
        // By the host's socket: the number is valid in the namespace that asks for it, and only there.
        with_host(self.away.own(), |socket| {
            let mut found = None;
            let mut keep = |body| found = nsid_in(&body).or(found);
            match socket.exchange(encode::new_nsid(fd), &mut keep) {
                // EEXIST: it has one. A kernel that did not echo the new one is queried for it.
                Ok(()) | Err(Failure::Refused { errno: Errno::EEXIST, .. }) => {}
                Err(failure) => return Err(failure),
            }
            if found.is_none() {
                socket.exchange(encode::get_nsid(fd), &mut |body| found = nsid_in(&body))?;
            }
            Ok(found)
        })
    }
}

impl Net for HostView<'_> {
    fn id(&self) -> &NetnsId {
        &self.own.id
    }

    fn nsid(&mut self) -> Result<Option<Nsid>, NetError> {
        Ok(None)
    }

    fn batch(&mut self, ops: &[Op]) -> Result<(), NetError> {
        let home = self.own.fd.as_fd();
        let ends = Ends { view: home, host: home };
        in_order(ops, |op| with_host(self.own, |socket| socket.acknowledged(encode::of(op, ends).1)))
    }

    fn link_by_name(&mut self, name: &str) -> Result<Option<Link>, NetError> {
        by_name(name, |message| with_host(self.own, |socket| socket.link(message)))
    }

    fn link_by_index(&mut self, index: u32) -> Result<Option<Link>, NetError> {
        by_index(index, |message| with_host(self.own, |socket| socket.link(message)))
    }

    fn links(&mut self) -> Result<Vec<Link>, NetError> {
        with_host(self.own, links).map_err(|failure| failure.into_net(0, || "list links".to_owned()))
    }

    fn vfs(&mut self, pf: u32) -> Result<Vec<Vf>, NetError> {
        with_host(self.own, |socket| vfs(socket, pf)).map_err(|failure| failure.into_net(0, || read_vfs(pf)))
    }

    fn addresses(&mut self, index: u32) -> Result<Vec<Address>, NetError> {
        with_host(self.own, |socket| addresses(socket, index))
            .map_err(|failure| failure.into_net(0, || reading(index)))
    }

    fn routes(&mut self) -> Result<Vec<Route>, NetError> {
        with_host(self.own, routes).map_err(|failure| failure.into_net(0, || "list routes".to_owned()))
    }

    fn sysctl(&mut self, key: &str) -> Result<String, NetError> {
        self.own.at_home(|| read_sysctl(key))
    }

    fn set_sysctl(&mut self, key: &str, value: &str) -> Result<(), NetError> {
        self.own.at_home(|| write_sysctl(key, value))
    }
}

impl Net for PodView<'_> {
    fn id(&self) -> &NetnsId {
        &self.id
    }

    fn nsid(&mut self) -> Result<Option<Nsid>, NetError> {
        if self.nsid.is_none() {
            let assigned = self.assign_nsid();
            self.nsid =
                assigned.map_err(|failure| failure.into_net(0, || "number the namespace".to_owned()))?;
        }
        Ok(self.nsid)
    }

    fn batch(&mut self, ops: &[Op]) -> Result<(), NetError> {
        let PodView { socket, away, .. } = self;
        let ends = Ends { view: away.fd(), host: away.home() };
        in_order(ops, |op| match op {
            Op::MoveToHost { index, name } => with_host(away.own(), |host| {
                move_link(
                    &mut End { socket, netns: ends.view },
                    &mut End { socket: host, netns: ends.host },
                    *index,
                    name,
                    false,
                )
            }),
            Op::TakeFromHost { index, name, up } => with_host(away.own(), |host| {
                move_link(
                    &mut End { socket: host, netns: ends.host },
                    &mut End { socket, netns: ends.view },
                    *index,
                    name,
                    *up,
                )
            }),
            op => match encode::of(op, ends) {
                (Via::View, message) => socket.acknowledged(message),
                (Via::Host, message) => with_host(away.own(), |host| host.acknowledged(message)),
            },
        })
    }

    fn link_by_name(&mut self, name: &str) -> Result<Option<Link>, NetError> {
        by_name(name, |message| self.socket.link(message))
    }

    fn link_by_index(&mut self, index: u32) -> Result<Option<Link>, NetError> {
        by_index(index, |message| self.socket.link(message))
    }

    fn links(&mut self) -> Result<Vec<Link>, NetError> {
        links(&mut self.socket).map_err(|failure| failure.into_net(0, || "list links".to_owned()))
    }

    fn vfs(&mut self, pf: u32) -> Result<Vec<Vf>, NetError> {
        vfs(&mut self.socket, pf).map_err(|failure| failure.into_net(0, || read_vfs(pf)))
    }

    fn addresses(&mut self, index: u32) -> Result<Vec<Address>, NetError> {
        addresses(&mut self.socket, index).map_err(|failure| failure.into_net(0, || reading(index)))
    }

    fn routes(&mut self) -> Result<Vec<Route>, NetError> {
        routes(&mut self.socket).map_err(|failure| failure.into_net(0, || "list routes".to_owned()))
    }

    fn sysctl(&mut self, key: &str) -> Result<String, NetError> {
        read_sysctl(key)
    }

    fn set_sysctl(&mut self, key: &str, value: &str) -> Result<(), NetError> {
        write_sysctl(key, value)
    }
}

/// Whether a link of the namespace that the calling thread is in has a carrier; false when the link is gone.
pub(crate) fn carrier_here(index: u32) -> Result<bool, NetError> {
    let mut socket = Socket::open().map_err(NetError::Socket)?;
    let link = by_index(index, |message| socket.link(message))?;
    Ok(link.is_some_and(|link| link.carrier))
}

/// One `send` for each operation. All of them in one `send` would save about a microsecond each, but the kernel
/// goes on after a message that it refuses, so what comes after the refused one would be done all the same.
fn in_order(ops: &[Op], mut carry_out: impl FnMut(&Op) -> Result<(), Failure>) -> Result<(), NetError> {
    for (at, op) in ops.iter().enumerate() {
        carry_out(op).map_err(|failure| failure.into_net(at, || encode::describe(op)))?;
    }
    Ok(())
}

fn by_name(
    name: &str,
    send: impl FnOnce(Message) -> Result<Link, Failure>,
) -> Result<Option<Link>, NetError> {
    // What cannot be a name (ALTIFNAMSIZ is 128) is no link's name; the kernel would answer EINVAL instead of ENODEV.
    if name.is_empty() || name.len() >= 128 || name.contains('\0') {
        return Ok(None);
    }
    present(send(encode::get_link_by_name(name)), || format!("look for link {name:?}"))
}

fn by_index(
    index: u32,
    send: impl FnOnce(Message) -> Result<Link, Failure>,
) -> Result<Option<Link>, NetError> {
    // The kernel answers EINVAL to both: to it an index is a positive int.
    if index == 0 || i32::try_from(index).is_err() {
        return Ok(None);
    }
    present(send(encode::get_link(index)), || format!("look for link {index}"))
}

fn present(answer: Result<Link, Failure>, what: impl FnOnce() -> String) -> Result<Option<Link>, NetError> {
    match answer {
        Ok(link) => Ok(Some(link)),
        Err(Failure::Refused { errno: Errno::ENODEV, .. }) => Ok(None),
        Err(failure) => Err(failure.into_net(0, what)),
    }
}

fn read_vfs(index: u32) -> String {
    format!("read the VFs of link {index}")
}

fn reading(index: u32) -> String {
    format!("list the addresses of link {index}")
}

fn links(socket: &mut Socket) -> Result<Vec<Link>, Failure> {
    let mut found = Vec::new();
    socket.dump(encode::dump_links, &mut |body| {
        if let Body::Link(link, _) = body {
            found.push(*link);
        }
    })?;
    Ok(found)
}

/// The VFs of one link; none when the link is gone.
fn vfs(socket: &mut Socket, pf: u32) -> Result<Vec<Vf>, Failure> {
    let mut found = Vec::new();
    let outcome = socket.exchange(encode::get_vfs(pf), &mut |body| {
        if let Body::Link(_, vfs) = body {
            found = vfs;
        }
    });
    match outcome {
        Ok(()) => Ok(found),
        Err(Failure::Refused { errno: Errno::ENODEV, .. }) => Ok(Vec::new()),
        Err(failure) => Err(failure),
    }
}

/// The addresses of one link; none when the link is gone.
fn addresses(socket: &mut Socket, index: u32) -> Result<Vec<Address>, Failure> {
    let mut found = Vec::new();
    let outcome = socket.dump(|| encode::dump_addresses(index), &mut |body| match body {
        // A kernel without strict checking (before 4.20) sends those of all links.
        Body::Address(address) if address.index == index => found.push(address),
        _ => {}
    });
    match outcome {
        Ok(()) => Ok(found),
        Err(Failure::Refused { errno: Errno::ENODEV, .. }) => Ok(Vec::new()),
        Err(failure) => Err(failure),
    }
}

fn routes(socket: &mut Socket) -> Result<Vec<Route>, Failure> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut keep = |body| {
            if let Body::Routes(routes) = body {
                found.extend(routes);
            }
        };
        match socket.dump(|| encode::dump_routes(family), &mut keep) {
            // No IPv6 in this kernel.
            Ok(()) | Err(Failure::Refused { errno: Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT, .. }) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(found)
}

/// Reads a sysctl of the namespace that the calling thread is in: `/proc/sys` shows that of whoever opens the file.
fn read_sysctl(key: &str) -> Result<String, NetError> {
    let value = sysctl_path(key).and_then(fs::read_to_string);
    value
        .map(|text| text.trim_end().to_owned())
        .map_err(|source| NetError::Sysctl { key: key.to_owned(), source })
}

fn write_sysctl(key: &str, value: &str) -> Result<(), NetError> {
    let outcome = sysctl_path(key)
        .and_then(|path| fs::OpenOptions::new().write(true).open(path))
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()));
    outcome.map_err(|source| NetError::Sysctl { key: key.to_owned(), source })
}

/// Slashes separate, so that an interface named `eth0.100` stays one component; nothing outside `net/` belongs to a
/// network namespace and is refused.
fn sysctl_path(key: &str) -> io::Result<PathBuf> {
    let relative = Path::new(key);
    let plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
    if !plain || !relative.starts_with("net") {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no key of the form net/…"));
    }
    Ok(Path::new("/proc/sys").join(relative))
}
