//! The network namespaces as the executable sees them, so that the daemon can prove that it opens the same ones.
//!
//! The namespace is held open until the process ends, so that its inode means the same namespace for as long as the call
//! lasts. It is opened with `O_PATH`, which has no effect on whatever the path leads to, be it a pipe or a device.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use fairlead_cni::wire::Inode;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::libc;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::GetStruct;
use nix::sys::stat::{FileStat, Mode, fstat, stat};
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};

use crate::connection::Socket;

nix::getsockopt_impl!(NetnsCookie, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, u64, GetStruct<u64>);

/// The socket option that reads the cookie of a socket's namespace (Linux 5.14).
#[derive(Debug, Clone, Copy)]
struct NetnsCookie;

/// The file behind `CNI_NETNS`, open.
#[derive(Debug)]
pub(crate) struct Netns(OwnedFd);

impl Netns {
    /// Opens the file. `None` when it can't be opened; whether that is an error depends on the command, and the daemon decides.
    pub(crate) fn open(path: &str) -> Option<Netns> {
        // musl's open(2) makes two system calls of O_CLOEXEC, openat(2) one.
        openat(AT_FDCWD, path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).ok().map(Netns)
    }

    /// The device and the inode by which the daemon recognises the file.
    pub(crate) fn inode(&self) -> Option<Inode> {
        fstat(&self.0).ok().map(inode)
    }

    /// The namespace's cookie, which no other namespace gets before the next boot. This moves the process into the namespace,
    /// so nothing that depends on the old one may follow. `None` on older kernels and where the file is no network namespace.
    pub(crate) fn cookie(&self) -> Option<u64> {
        // Asked before the file is really opened, which could block on a pipe or act on a device.
        if fstatfs(&self.0).ok()?.filesystem_type() != NSFS_MAGIC {
            return None;
        }
        // setns(2) refuses a descriptor of O_PATH.
        let file = File::open(format!("/proc/self/fd/{}", self.0.as_raw_fd())).ok()?;
        setns(file, CloneFlags::CLONE_NEWNET).ok()?;
        own_cookie(&Socket::new().ok()?)
    }
}

/// The cookie of the namespace that the process is in, in which it has made this socket. A look at `/proc` takes ten times as long.
pub(crate) fn own_cookie(socket: &Socket) -> Option<u64> {
    getsockopt(socket, NetnsCookie).ok()
}

/// The inode of the executable's own network namespace, for kernels without cookies.
pub(crate) fn own_inode() -> Option<Inode> {
    stat("/proc/self/ns/net").ok().map(inode)
}

fn inode(stat: FileStat) -> Inode {
    Inode { dev: stat.st_dev, ino: stat.st_ino }
}
