//! What the executable sees of network namespaces, so that the daemon can prove that it opens the same.
//!
//! The namespace is held (by `O_PATH`, which has no effect on whatever lies there) until the process ends, so that
//! its inode means the same namespace for as long as the call lasts.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use fairlead_cni::wire::Inode;
use nix::fcntl::{OFlag, open};
use nix::libc;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::sockopt::GetStruct;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, getsockopt, socket};
use nix::sys::stat::{FileStat, Mode, fstat, stat};
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};

nix::getsockopt_impl!(NetnsCookie, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, u64, GetStruct<u64>);

/// Reads the cookie of a socket's namespace (Linux 5.14).
#[derive(Debug, Clone, Copy)]
struct NetnsCookie;

/// The file behind `CNI_NETNS`.
#[derive(Debug)]
pub(crate) struct Namespace(OwnedFd);

impl Namespace {
    /// Opens it; `None` when there is nothing to open, which the daemon judges by the command.
    pub(crate) fn open(path: &str) -> Option<Namespace> {
        open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).ok().map(Namespace)
    }

    /// Its device and inode.
    pub(crate) fn inode(&self) -> Option<Inode> {
        fstat(&self.0).ok().map(inode)
    }

    /// Its cookie, which no other namespace gets before the next boot. Moves this process into the namespace, so it
    /// is for the last moment only. `None` on older kernels and where the file is no network namespace.
    pub(crate) fn cookie(&self) -> Option<u64> {
        if fstatfs(&self.0).ok()?.filesystem_type() != NSFS_MAGIC {
            return None;
        }
        let file = File::open(format!("/proc/self/fd/{}", self.0.as_raw_fd())).ok()?;
        setns(file, CloneFlags::CLONE_NEWNET).ok()?;
        let inside = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).ok()?;
        getsockopt(&inside, NetnsCookie).ok()
    }
}

/// The executable's own network namespace.
pub(crate) fn own() -> Option<Inode> {
    stat("/proc/self/ns/net").ok().map(inode)
}

fn inode(stat: FileStat) -> Inode {
    Inode { dev: stat.st_dev, ino: stat.st_ino }
}
