//! The views of the daemon's own namespace and of a pod's.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};
use std::thread::LocalKey;

use nix::errno::Errno;

use super::known_parents;
use super::link_programs;
use super::namespace::{Entered, OwnNetns, cookie_of, open_netns};
use super::netlink::encode::{self, Ends, Via};
use super::netlink::socket::{Failure, Refusal, Socket};
use super::netlink::{Message, ethtool};
use super::netns_contents::{addresses, by_index, by_name, find, links, routes, vfs};
use super::nsid_in;
use crate::after_answer::when_answered;
use crate::seam::{
    Address, AttachedProgram, Link, Net, NetError, NetdevSettings, NetnsError, NetnsId, Nsid, Op, OpError,
    ParentLink, Route, bytes_of, one_by_one,
};
use crate::vf_settings::Vf;

/// So many operations go in one datagram: a few kilobytes, while a socket takes some 200 KiB of requests and as much of refusals.
const LONGEST_ROW: usize = 64;

/// A thread's socket in the daemon's namespace, with the identity of that namespace.
type Kept = RefCell<Option<(NetnsId, Socket)>>;

thread_local! {
    static HOST_SOCKET: Kept = const { RefCell::new(None) };
    /// One of generic netlink.
    static GENERIC_SOCKET: Kept = const { RefCell::new(None) };
    /// One that reads messages as they are.
    static RAW_SOCKET: Kept = const { RefCell::new(None) };
}

/// Lends this thread's host socket.
pub(super) fn with_host<T>(
    own: &OwnNetns,
    work: impl FnOnce(&mut Socket) -> Result<T, Failure>,
) -> Result<T, Failure> {
    with_kept(&HOST_SOCKET, own, OwnNetns::socket, work)
}

/// Lends a socket of this thread, opening it at first use. One that failed is thrown away.
fn with_kept<T>(
    kept: &'static LocalKey<Kept>,
    own: &OwnNetns,
    open: fn(&OwnNetns) -> io::Result<Socket>,
    work: impl FnOnce(&mut Socket) -> Result<T, Failure>,
) -> Result<T, Failure> {
    kept.with_borrow_mut(|slot| {
        // A thread may outlive one kernel and serve another that began in another namespace.
        if slot.as_ref().is_none_or(|(id, _)| *id != own.id) {
            *slot = Some((own.id.clone(), open(own).map_err(Failure::Socket)?));
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

    /// Does `work` at home, by a socket that reads messages as they are: bpf(2) goes by the thread's namespace.
    fn raw<T>(&self, work: impl FnOnce(&mut Socket) -> Result<T, Failure>) -> Result<T, Failure> {
        with_kept(&RAW_SOCKET, self.own, OwnNetns::raw_socket, |socket| self.own.at_home(|| work(socket)))
    }

    /// Does `work` with ethtool's settings of a link, by a socket of generic netlink.
    fn ethtool<T>(
        &self,
        index: u32,
        work: impl FnOnce(&mut Socket) -> Result<T, Failure>,
    ) -> Result<T, NetError> {
        with_kept(&GENERIC_SOCKET, self.own, OwnNetns::generic_socket, work)
            .map_err(|failure| failure.into_net(0, || about_settings(index)))
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

    fn nsid_of_host(&mut self) -> Result<Option<Nsid>, NetError> {
        Ok(None)
    }

    fn batch(&mut self, ops: &[Op]) -> Result<(), NetError> {
        let home = self.own.fd.as_fd();
        let ends = Ends { view: home, host: home };
        in_order(ops, |op| with_host(self.own, |socket| socket.acknowledged(encode::of(op, ends).1)))
    }

    fn batch_past_refusals(&mut self, ops: &[Op]) -> Result<Vec<OpError>, NetError> {
        one_by_one(self, ops)
    }

    fn link_by_name(&mut self, name: &str) -> Result<Option<Link>, NetError> {
        by_name(name, |message| with_host(self.own, |socket| socket.link(message)))
    }

    fn parent_by_name(&mut self, name: &str) -> Result<Option<ParentLink>, NetError> {
        // Where there is no socket, the look-up says so.
        let known = with_host(self.own, |socket| Ok(known_parents::still_there(socket.as_fd(), name)));
        if let Ok(Some(parent)) = known {
            return Ok(Some(parent));
        }
        let found = self.link_by_name(name)?.map(ParentLink::from);
        found.iter().for_each(|parent| known_parents::remember(name, parent));
        Ok(found)
    }

    fn link_by_index(&mut self, index: u32) -> Result<Option<Link>, NetError> {
        by_index(index, |message| with_host(self.own, |socket| socket.link(message)))
    }

    fn links(&mut self) -> Result<Vec<Link>, NetError> {
        with_host(self.own, links).map_err(|failure| failure.into_net(0, || "list links".to_owned()))
    }

    fn find_link(&mut self, is: &dyn Fn(&Link) -> bool) -> Result<Option<Link>, NetError> {
        with_host(self.own, |socket| find(socket, is))
            .map_err(|failure| failure.into_net(0, || "list links".to_owned()))
    }

    fn vfs(&mut self, pf: u32) -> Result<Vec<Vf>, NetError> {
        with_host(self.own, |socket| vfs(socket, pf)).map_err(|failure| failure.into_net(0, || read_vfs(pf)))
    }

    fn addresses_at_most(&mut self, index: u32, most: usize) -> Result<Option<Vec<Address>>, NetError> {
        with_host(self.own, |socket| addresses(socket, index, most))
            .map_err(|failure| failure.into_net(0, || reading(index)))
    }

    fn routes(&mut self) -> Result<Vec<Route>, NetError> {
        with_host(self.own, routes).map_err(|failure| failure.into_net(0, || "list routes".to_owned()))
    }

    fn attached_programs(&mut self, index: u32) -> Result<Vec<AttachedProgram>, NetError> {
        self.raw(|socket| link_programs::attached(socket, index))
            .map_err(|failure| failure.into_net(0, || about_programs(index)))
    }

    fn detach_programs(&mut self, index: u32) -> Result<Vec<String>, NetError> {
        self.raw(|socket| link_programs::detach(socket, index))
            .map_err(|failure| failure.into_net(0, || about_programs(index)))
    }

    fn netdev_settings(&mut self, index: u32) -> Result<NetdevSettings, NetError> {
        self.ethtool(index, |socket| ethtool::settings(socket, index))
    }

    fn restore_netdev_settings(
        &mut self,
        index: u32,
        before: &NetdevSettings,
    ) -> Result<Vec<String>, NetError> {
        self.ethtool(index, |socket| ethtool::restore(socket, index, before))
    }

    fn features_on(&mut self, index: u32, among: &[&str]) -> Result<Vec<String>, NetError> {
        self.ethtool(index, |socket| ethtool::features_on(socket, index, among))
    }

    fn switch_features(
        &mut self,
        index: u32,
        features: &[String],
        on: bool,
    ) -> Result<Vec<String>, NetError> {
        self.ethtool(index, |socket| ethtool::switch_features(socket, index, features, on))
    }

    fn sysctl(&mut self, key: &str) -> Result<String, NetError> {
        self.own.at_home(|| read_sysctl(&self.own.sysctls, key))
    }

    fn set_sysctl(&mut self, key: &str, value: &str) -> Result<(), NetError> {
        self.own.at_home(|| write_sysctl(&self.own.sysctls, key, value))
    }
}

impl Net for PodView<'_> {
    fn id(&self) -> &NetnsId {
        &self.id
    }

    fn close_when_answered(&mut self) {
        let descriptors = (self.socket.shared_fd(), self.away.shared_fd());
        when_answered(move || drop(descriptors));
    }

    fn nsid(&mut self) -> Result<Option<Nsid>, NetError> {
        if self.nsid.is_none() {
            let assigned = self.assign_nsid();
            self.nsid =
                assigned.map_err(|failure| failure.into_net(0, || "number the namespace".to_owned()))?;
        }
        Ok(self.nsid)
    }

    fn nsid_of_host(&mut self) -> Result<Option<Nsid>, NetError> {
        let PodView { socket, away, .. } = self;
        let mut found = None;
        socket.exchange(encode::get_nsid(away.home()), &mut |body| found = nsid_in(&body)).map_err(
            |failure| failure.into_net(0, || "ask for the number of the host's namespace".to_owned()),
        )?;
        Ok(found)
    }

    fn batch(&mut self, ops: &[Op]) -> Result<(), NetError> {
        let PodView { socket, away, .. } = self;
        let ends = Ends { view: away.fd(), host: away.home() };
        in_order(ops, |op| match op {
            Op::MoveToHost { index, name, .. } => with_host(away.own(), |host| {
                can_have_the_name(socket, *index, host, name)?;
                socket.acknowledged(encode::of(op, ends).1)
            }),
            Op::TakeFromHost { index, name, .. } => with_host(away.own(), |host| {
                can_have_the_name(host, *index, socket, name)?;
                host.acknowledged(encode::of(op, ends).1)
            }),
            op => match encode::of(op, ends) {
                (Via::View, message) => socket.acknowledged(message),
                (Via::Host, message) => with_host(away.own(), |host| host.acknowledged(message)),
            },
        })
    }

    fn batch_past_refusals(&mut self, ops: &[Op]) -> Result<Vec<OpError>, NetError> {
        if !ops.iter().all(stays_in_the_namespace) {
            return one_by_one(self, ops);
        }
        let PodView { socket, away, .. } = self;
        let ends = Ends { view: away.fd(), host: away.home() };
        let mut refused = Vec::new();
        for (row, ops) in ops.chunks(LONGEST_ROW).enumerate() {
            let mut messages: Vec<Message> = ops.iter().map(|op| encode::of(op, ends).1).collect();
            let first = row * LONGEST_ROW;
            let answers = socket.row(&mut messages);
            let answers = answers.map_err(|failure| failure.into_net(first, || describe_row(ops)))?;
            refused.extend(answers.into_iter().filter_map(|(at, Refusal { errno, extack })| {
                Some(OpError { at: first + at, what: encode::describe(ops.get(at)?), errno, extack })
            }));
        }
        Ok(refused)
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

    fn find_link(&mut self, is: &dyn Fn(&Link) -> bool) -> Result<Option<Link>, NetError> {
        find(&mut self.socket, is).map_err(|failure| failure.into_net(0, || "list links".to_owned()))
    }

    fn vfs(&mut self, pf: u32) -> Result<Vec<Vf>, NetError> {
        vfs(&mut self.socket, pf).map_err(|failure| failure.into_net(0, || read_vfs(pf)))
    }

    fn addresses_at_most(&mut self, index: u32, most: usize) -> Result<Option<Vec<Address>>, NetError> {
        addresses(&mut self.socket, index, most).map_err(|failure| failure.into_net(0, || reading(index)))
    }

    fn routes(&mut self) -> Result<Vec<Route>, NetError> {
        routes(&mut self.socket).map_err(|failure| failure.into_net(0, || "list routes".to_owned()))
    }

    fn attached_programs(&mut self, index: u32) -> Result<Vec<AttachedProgram>, NetError> {
        Socket::open_raw()
            .map_err(Failure::Socket)
            .and_then(|mut socket| link_programs::attached(&mut socket, index))
            .map_err(|failure| failure.into_net(0, || about_programs(index)))
    }

    fn detach_programs(&mut self, index: u32) -> Result<Vec<String>, NetError> {
        Socket::open_raw()
            .map_err(Failure::Socket)
            .and_then(|mut socket| link_programs::detach(&mut socket, index))
            .map_err(|failure| failure.into_net(0, || about_programs(index)))
    }

    fn netdev_settings(&mut self, index: u32) -> Result<NetdevSettings, NetError> {
        by_ethtool(index, |socket| ethtool::settings(socket, index))
    }

    fn restore_netdev_settings(
        &mut self,
        index: u32,
        before: &NetdevSettings,
    ) -> Result<Vec<String>, NetError> {
        by_ethtool(index, |socket| ethtool::restore(socket, index, before))
    }

    fn features_on(&mut self, index: u32, among: &[&str]) -> Result<Vec<String>, NetError> {
        by_ethtool(index, |socket| ethtool::features_on(socket, index, among))
    }

    fn switch_features(
        &mut self,
        index: u32,
        features: &[String],
        on: bool,
    ) -> Result<Vec<String>, NetError> {
        by_ethtool(index, |socket| ethtool::switch_features(socket, index, features, on))
    }

    fn sysctl(&mut self, key: &str) -> Result<String, NetError> {
        read_sysctl(&self.away.own().sysctls, key)
    }

    fn set_sysctl(&mut self, key: &str, value: &str) -> Result<(), NetError> {
        write_sysctl(&self.away.own().sysctls, key, value)
    }
}

/// Whether an operation goes by the socket of the view's own namespace, and needs no look at anything first.
fn stays_in_the_namespace(op: &Op) -> bool {
    match op {
        Op::SetLink(_)
        | Op::SetArpNotify(_)
        | Op::AddAddress(_)
        | Op::DeleteAddress(_)
        | Op::AddRoute(_)
        | Op::DeleteRoute(_) => true,
        Op::CreateLink(_)
        | Op::DeleteLink(_)
        | Op::MoveToHost { .. }
        | Op::TakeFromHost { .. }
        | Op::AddAltName { .. }
        | Op::DeleteAltName { .. }
        | Op::SetVfs { .. } => false,
    }
}

/// Several operations in words.
fn describe_row(ops: &[Op]) -> String {
    ops.iter().map(encode::describe).collect::<Vec<_>>().join(", ")
}

/// Refuses a name that a link cannot have where it is to be moved: taken there, or an alternative name of its own. The kernel would move
/// the link under its old name, and refuse the new one then.
fn can_have_the_name(from: &mut Socket, index: u32, to: &mut Socket, name: &str) -> Result<(), Failure> {
    let taken = || Failure::Refused { errno: Errno::EEXIST, extack: None };
    let link = from.link(encode::get_link(index))?;
    if link.alt_names.iter().any(|own| own.text() == name) {
        return Err(taken());
    }
    match to.link(encode::get_link_by_name(&bytes_of(name))) {
        Ok(_) => Err(taken()),
        Err(Failure::Refused { errno: Errno::ENODEV, .. }) => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// Whether a link of the namespace that the calling thread is in has a carrier; false when the link is gone.
pub(crate) fn carrier_here(index: u32) -> Result<bool, NetError> {
    let mut socket = Socket::open().map_err(NetError::Socket)?;
    let link = by_index(index, |message| socket.link(message))?;
    Ok(link.is_some_and(|link| link.carrier))
}

/// One `send` for each operation: the kernel goes on behind a message that it refuses, so what comes after the refused one would
/// be done all the same.
fn in_order(ops: &[Op], mut carry_out: impl FnMut(&Op) -> Result<(), Failure>) -> Result<(), NetError> {
    for (at, op) in ops.iter().enumerate() {
        carry_out(op).map_err(|failure| failure.into_net(at, || encode::describe(op)))?;
    }
    Ok(())
}

/// Reads a sysctl of the namespace that the calling thread is in: `sysctls` shows that of whoever opens the file.
fn read_sysctl(sysctls: &Path, key: &str) -> Result<String, NetError> {
    let value = sysctl_path(sysctls, key).and_then(fs::read_to_string);
    value
        .map(|text| text.trim_end().to_owned())
        .map_err(|source| NetError::Sysctl { key: key.to_owned(), source })
}

/// Writes one.
pub(crate) fn write_sysctl(sysctls: &Path, key: &str, value: &str) -> Result<(), NetError> {
    let outcome = sysctl_path(sysctls, key)
        .and_then(|path| fs::OpenOptions::new().write(true).open(path))
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()));
    outcome.map_err(|source| NetError::Sysctl { key: key.to_owned(), source })
}

/// Slashes separate, so that an interface named `eth0.100` stays one component; nothing outside `net/` belongs to a
/// network namespace and is refused.
fn sysctl_path(sysctls: &Path, key: &str) -> io::Result<PathBuf> {
    let relative = Path::new(key);
    let plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
    if !plain || !relative.starts_with("net") {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no key of the form net/…"));
    }
    Ok(sysctls.join(relative))
}

fn about_programs(index: u32) -> String {
    format!("read the programs of link {index}, or take them off")
}

/// Does `work` with ethtool's settings of a link in the namespace that the thread is in.
fn by_ethtool<T>(index: u32, work: impl FnOnce(&mut Socket) -> Result<T, Failure>) -> Result<T, NetError> {
    Socket::open_generic()
        .map_err(Failure::Socket)
        .and_then(|mut socket| work(&mut socket))
        .map_err(|failure| failure.into_net(0, || about_settings(index)))
}

fn about_settings(index: u32) -> String {
    format!("read what ethtool has set of link {index}, or set it")
}

fn read_vfs(index: u32) -> String {
    format!("read the VFs of link {index}")
}

fn reading(index: u32) -> String {
    format!("list the addresses of link {index}")
}
