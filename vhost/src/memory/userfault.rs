//! userfaultfd(2), as far as it is used: a missing page of a registered range is a SIGBUS, and is made by us; and whether one is missing.
//!
//! Only faults of user mode are watched (`UFFD_USER_MODE_ONLY`), for which no privilege is needed: no system call of this process has a guest's
//! memory as its argument.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;

/// `UFFD_USER_MODE_ONLY`.
const USER_MODE_ONLY: libc::c_int = 1;
const API: u64 = 0xaa;
/// `UFFD_FEATURE_MISSING_SHMEM` and `UFFD_FEATURE_SIGBUS`.
const FEATURES: u64 = 1 << 5 | 1 << 7;
/// `UFFDIO_REGISTER_MODE_MISSING`.
const MISSING: u64 = 1;

/// The numbers of the requests. 32 bits; C libraries differ in the type of ioctl's argument.
const UFFDIO_API: u32 = 0xc018_aa3f;
/// Watches a range.
pub(crate) const UFFDIO_REGISTER: u32 = 0xc020_aa00;
/// Makes a page of zeroes.
pub(crate) const UFFDIO_ZEROPAGE: u32 = 0xc020_aa04;
/// Maps a page that the file has.
pub(crate) const UFFDIO_CONTINUE: u32 = 0xc020_aa07;

/// The bytes of a page.
pub(super) const PAGE: usize = 4096;

/// A new one, which answers faults with SIGBUS.
///
/// # Errors
/// The kernel is older than 5.11, or the process may not.
pub(super) fn open() -> Result<OwnedFd, nix::Error> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
    // SAFETY: a system call without pointers.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) })?;
    let fd = i32::try_from(fd).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just made it for us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    request(fd.as_raw_fd(), UFFDIO_API, &mut [API, FEATURES, 0])?;
    Ok(fd)
}

/// Watches a mapping.
///
/// # Errors
/// What the kernel says: it watches shared memory and anonymous memory.
pub(super) fn register(fd: RawFd, start: usize, bytes: usize) -> Result<(), nix::Error> {
    request(fd, UFFDIO_REGISTER, &mut [start as u64, bytes as u64, MISSING, 0])
}

/// Makes the missing page at `start`. Safe in a signal handler.
///
/// # Errors
/// `EEXIST` if it is there; `EAGAIN` if mappings are being changed; `EFAULT` and others if the file has no such page.
pub(super) fn zero_page(fd: RawFd, start: usize) -> Result<(), nix::Error> {
    request(fd, UFFDIO_ZEROPAGE, &mut [start as u64, PAGE as u64, 0, 0])
}

/// True if the file has no page for `start`. One that was swapped out is there, and is read back.
///
/// mincore(2) does not tell: it takes what was swapped out for missing, and pages of a file that this user may not write for there.
/// lseek(2) (`SEEK_HOLE`) waits for a guest that is allocating, and so does a fault (`MADV_POPULATE_READ`) for one that punches a hole.
/// Where the kernel does not know the request, before 5.14, no page is missing. (It is meant for ranges that are registered for minor
/// faults, where each first access to a page that is there would be a SIGBUS. The kernel takes it for any registered range.)
pub(super) fn is_missing(fd: RawFd, start: usize) -> bool {
    request(fd, UFFDIO_CONTINUE, &mut [start as u64, PAGE as u64, 0, 0]) == Err(Errno::EFAULT)
}

fn request<const N: usize>(fd: RawFd, number: u32, argument: &mut [u64; N]) -> Result<(), nix::Error> {
    // SAFETY: each request's argument is a struct of 64-bit integers, as many as its number says: 24 bytes, or 32.
    let answer = unsafe { libc::ioctl(fd, number.into(), argument.as_mut_ptr()) };
    Errno::result(answer).map(drop)
}
