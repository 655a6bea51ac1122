//! Network namespaces: identifying, entering and leaving one.
//!
//! A thread that is in another namespace remembers it here, and ends the process when it cannot come back: in a
//! stranger's namespace it would serve the next call there.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::{Mode, fstat};
use nix::sys::statfs::{FsType, fstatfs};

use super::netlink::socket::Socket;
use crate::seam::{NetnsError, NetnsId};

/// The file system type of namespaces (`NSFS_MAGIC`).
const NSFS_MAGIC: FsType = FsType(0x6e73_6673);
/// `NS_GET_NSTYPE`, `_IO(0xb7, 3)`.
const NS_GET_NSTYPE: libc::Ioctl = 0xb703;
/// `SO_NETNS_COOKIE` (kernel ≥ 5.14).
const SO_NETNS_COOKIE: libc::c_int = 71;

thread_local! {
    /// The namespace that this thread is in and the one it belongs to, while they are not the same.
    static AWAY: Cell<Option<Away>> = const { Cell::new(None) };
}

/// Descriptors of an [`Entered`] guard that is alive.
#[derive(Debug, Clone, Copy)]
struct Away {
    pod: RawFd,
    home: RawFd,
}

/// The descriptor of the namespace that this thread belongs to, when it is in a pod's just now. It is valid as long
/// as the view is that brought the thread there.
pub(crate) fn home_of_this_thread() -> Option<RawFd> {
    AWAY.get().map(|away| away.home)
}

/// The daemon's own namespace: what is compared with, gone back to, and moved to.
#[derive(Debug)]
pub(crate) struct OwnNetns {
    pub(super) fd: OwnedFd,
    pub(super) id: NetnsId,
    /// The directory `sys` of a procfs that may be written to; it shows whoever reads it the namespace that he is in.
    pub(crate) sysctls: PathBuf,
}

impl OwnNetns {
    /// The namespace that the calling thread is in.
    pub(crate) fn of_this_thread() -> io::Result<OwnNetns> {
        // Not /proc/self: that shows the namespace of the process's first thread.
        let fd = open("/proc/thread-self/ns/net", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
        let stat = fstat(&fd)?;
        let cookie = cookie_of(Socket::open()?.as_fd())?;
        let id = NetnsId { dev: stat.st_dev, ino: stat.st_ino, cookie };
        Ok(OwnNetns { fd, id, sysctls: "/proc/sys".into() })
    }

    /// Opens a socket in this namespace. A thread that is elsewhere, but not by way of [`Entered`], is refused.
    pub(super) fn socket(&self) -> io::Result<Socket> {
        self.opened(Socket::open)
    }

    /// The same for a socket of generic netlink.
    pub(super) fn generic_socket(&self) -> io::Result<Socket> {
        self.opened(Socket::open_generic)
    }

    /// The same for one that reads messages of rtnetlink as they are.
    pub(super) fn raw_socket(&self) -> io::Result<Socket> {
        self.opened(Socket::open_raw)
    }

    fn opened(&self, open: fn() -> io::Result<Socket>) -> io::Result<Socket> {
        self.at_home(|| {
            let socket = open()?;
            // A kernel before 5.14 has no cookies, and nothing to compare.
            match (cookie_of(socket.as_fd())?, self.id.cookie) {
                (Some(here), Some(own)) if here != own => Err(io::Error::other(
                    "this thread is not in the network namespace that the daemon started in",
                )),
                _ => Ok(socket),
            }
        })
    }

    /// Does `work` in this namespace, also when the thread is in a pod's just now. Work in it may do so again.
    pub(super) fn at_home<T>(&self, work: impl FnOnce() -> T) -> T {
        let Some(away) = AWAY.take() else { return work() };
        // Taken before, so that work which calls this again finds itself at home already.
        leave_or_abort(self.fd.as_fd());
        let outcome = work();
        // SAFETY: `AWAY` held the descriptor of an `Entered` guard of this thread, which is alive while it does.
        let pod = unsafe { BorrowedFd::borrow_raw(away.pod) };
        leave_or_abort(pod);
        AWAY.set(Some(away));
        outcome
    }
}

/// The calling thread is in a pod's namespace until this is dropped.
#[derive(Debug)]
pub(crate) struct Entered<'own> {
    own: &'own OwnNetns,
    pod: Arc<OwnedFd>,
}

impl<'own> Entered<'own> {
    /// Enters the namespace behind `pod`.
    pub(crate) fn enter(own: &'own OwnNetns, pod: OwnedFd) -> io::Result<Entered<'own>> {
        // One place is remembered: the inner guard's end would take the thread out of the outer pod.
        if AWAY.get().is_some() {
            return Err(io::Error::other("this thread is in another pod's network namespace already"));
        }
        setns(&pod, CloneFlags::CLONE_NEWNET)?;
        AWAY.set(Some(Away { pod: pod.as_raw_fd(), home: own.fd.as_raw_fd() }));
        Ok(Entered { own, pod: Arc::new(pod) })
    }

    /// The namespace that the thread is in.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.pod.as_fd()
    }

    /// The descriptor of that namespace, to be held longer than the thread is in it.
    pub(super) fn shared_fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.pod)
    }

    /// The namespace that the thread goes back to.
    pub(super) fn home(&self) -> BorrowedFd<'own> {
        self.own.fd.as_fd()
    }

    /// The daemon's own namespace.
    pub(super) fn own(&self) -> &'own OwnNetns {
        self.own
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        AWAY.set(None);
        leave_or_abort(self.own.fd.as_fd());
    }
}

/// Enters `home`, or ends the process.
fn leave_or_abort(home: BorrowedFd<'_>) {
    if let Err(error) = setns(home, CloneFlags::CLONE_NEWNET) {
        tracing::error!(%error, "a thread cannot return to its network namespace: the process ends");
        std::process::abort();
    }
}

/// Opens what is at `path` and makes sure that it is a network namespace; answers its inode's device and number too.
pub(crate) fn open_netns(path: &Path) -> Result<(OwnedFd, u64, u64), NetnsError> {
    let io_error = |errno: Errno| NetnsError::Io { path: path.to_owned(), source: errno.into() };
    let not_one = || NetnsError::NotANetns { path: path.to_owned() };
    // Without O_NONBLOCK a named pipe would wait for its writer.
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let fd = match open(path, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Err(NetnsError::Missing { path: path.to_owned() }),
        // ENXIO: the socket of a process, or a device node without a device.
        Err(Errno::ENXIO) => return Err(not_one()),
        Err(errno) => return Err(io_error(errno)),
    };
    if kind_of_namespace(fd.as_fd()).map_err(io_error)? != Some(libc::CLONE_NEWNET) {
        return Err(not_one());
    }
    let stat = fstat(&fd).map_err(io_error)?;
    Ok((fd, stat.st_dev, stat.st_ino))
}

/// Of which kind the namespace is that an open file stands for (`CLONE_NEWNET`, …); `None` for every other file.
pub(crate) fn kind_of_namespace(file: BorrowedFd<'_>) -> nix::Result<Option<libc::c_int>> {
    // Before the ioctl: to the driver of another kind of file its number may mean something else.
    if fstatfs(file)?.filesystem_type() != NSFS_MAGIC {
        return Ok(None);
    }
    // SAFETY: NS_GET_NSTYPE takes no argument and reads nothing of ours.
    let kind = unsafe { libc::ioctl(file.as_raw_fd(), NS_GET_NSTYPE) };
    Ok(Errno::result(kind).ok())
}

/// The cookie of the namespace that a socket is in; `None` on kernels that have none.
pub(crate) fn cookie_of(socket: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    let mut cookie = 0_u64;
    let mut length = libc::socklen_t::try_from(size_of::<u64>()).unwrap_or(8);
    let value = (&raw mut cookie).cast();
    // SAFETY: `value` points at 8 writable bytes and `length` says so.
    let outcome = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, value, &raw mut length)
    };
    match Errno::result(outcome) {
        Ok(_) => Ok(Some(cookie)),
        Err(Errno::ENOPROTOOPT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::scratch_netns::ScratchNetns;

    #[test]
    fn what_is_done_at_home_stays_there_to_its_end_though_some_of_it_is_sent_home_itself() {
        let directory = tempfile::TempDir::new().unwrap();
        let _pod = ScratchNetns::new(directory.path(), "pod").unwrap();
        let here = || fs::read_link("/proc/thread-self/ns/net").unwrap();
        let (own, home) = (OwnNetns::of_this_thread().unwrap(), here());
        let entered = Entered::enter(&own, open_netns(&directory.path().join("pod")).unwrap().0).unwrap();
        let away = here();
        assert_ne!(away, home);
        let after_a_socket = || own.socket().map(|_| here()).unwrap();
        assert_eq!(own.at_home(after_a_socket), home, "a thread that it begins holds no pod's namespace");
        assert_eq!(here(), away);
        drop(entered);
        assert_eq!(here(), home);
    }
}
