//! How much the guests' memory may cost this process.
//!
//! A page of a guest's file that nobody has used yet is charged to the memory limit of whoever touches it first. A guest that shares a large
//! empty file could so have the switch killed, with all neighbours' traffic, by having frames read from it or written to it. The kernel is
//! asked (userfaultfd(2), `UFFD_FEATURE_SIGBUS`) to answer such a first touch, and no other, with SIGBUS. The handler of
//! [`lost_pages`](super::lost_pages) counts the page and makes it, or refuses. Pages that are there, the usual case, cost nothing.
//!
//! Invariants: no missing page of a bounded region comes into being but through [`RegionAccount::bring_in`]; what is counted is never less
//! than what is charged. A page that the guest takes away and that is touched again counts once, as it is charged once. What a connection
//! brought in stays counted after its end, on its port's account and in the total, since the guest may keep the file, until the kernel says
//! that the file is gone (inotify(7), `IN_DELETE_SELF`). In the total it stays after the port too, for somebody else may keep the file;
//! what cannot be watched ends with the port.
//!
//! It never touches a page of a guest, and never takes one away: what a guest has in memory is its own.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use nix::errno::Errno;
use parking_lot::Mutex;

use super::userfault;

/// The bytes of a page.
const PAGE: u64 = userfault::PAGE as u64;
/// The bytes of a region for each byte of its page tables: 8 bytes for 4,096.
const PAGE_TABLE_SHARE: u64 = 512;

/// How often in a row the kernel may say of a missing page that it is there. A page of which it says so more often is not to be had, as one
/// that cannot be read back from the swap: the access would be tried again for ever.
const MOST_IN_A_ROW: u64 = 8;

/// The most files that are watched. One that is gone brings two events, and the kernel keeps 16,384 until they are read
/// (`fs.inotify.max_queued_events`): none is lost, and with it what was to be given back.
const WATCHES: usize = 8_000;

/// How much the guests' memory may cost, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Of one port.
    pub port: u64,
    /// Of all ports together.
    pub total: u64,
}

/// Why the cost of the guests' memory cannot be bounded.
#[derive(Debug, thiserror::Error)]
pub enum MemoryBoundError {
    /// The kernel has no userfaultfd for this process: it is older than 5.11, or a filter of system calls forbids it.
    #[error("userfaultfd(2) is not to be had (Linux 5.11, and a seccomp profile that allows it)")]
    Userfault(#[source] nix::Error),
    /// The kernel gives no inotify.
    #[error("inotify(7) is not to be had")]
    Inotify(#[source] nix::Error),
}

/// The limits, and what is used of them.
#[derive(Debug)]
pub struct MemoryBound {
    limits: MemoryLimits,
    userfault: OwnedFd,
    /// Tells when files are gone of which pages are charged to us.
    deaths: OwnedFd,
    /// Pages of all ports.
    taken: AtomicU64,
    /// By the number of their watch: files that are not mapped any more and have pages that are charged to us, also of ports that are gone.
    left: Mutex<HashMap<i32, Vec<Left>>>,
}

/// Pages of a file that a port brought in.
#[derive(Debug)]
struct Left {
    /// Dead: the port is gone.
    account: Weak<PortAccount>,
    pages: u64,
}

impl MemoryBound {
    /// To be called before the process gives up its system calls.
    ///
    /// # Errors
    /// [`MemoryBoundError`].
    pub fn new(limits: MemoryLimits) -> Result<MemoryBound, MemoryBoundError> {
        let userfault = userfault::open().map_err(MemoryBoundError::Userfault)?;
        // SAFETY: a system call without pointers.
        let deaths = unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) };
        let deaths = Errno::result(deaths).map_err(MemoryBoundError::Inotify)?;
        // SAFETY: the kernel has just made it for us.
        let deaths = unsafe { OwnedFd::from_raw_fd(deaths) };
        Ok(MemoryBound { limits, userfault, deaths, taken: AtomicU64::new(0), left: Mutex::default() })
    }

    /// What the guests' memory costs now, in bytes, at most.
    pub fn taken_bytes(&self) -> u64 {
        self.taken.load(Ordering::Relaxed) * PAGE
    }

    /// The account of a new port.
    pub(crate) fn account(self: &Arc<Self>) -> Arc<PortAccount> {
        Arc::new(PortAccount { bound: Arc::clone(self), taken: AtomicU64::new(0), left: AtomicU64::new(0) })
    }

    /// Takes what was charged for files that are gone off all accounts. Never waits.
    pub(crate) fn forget_dead_files(&self) {
        // An event without a name has 16 bytes: the watch's number, what happened, and two numbers of no use here.
        let mut events = [0; 16 * 64];
        while let Ok(count) = nix::unistd::read(&self.deaths, &mut events) {
            for event in events.get(..count).unwrap_or_default().chunks_exact(16) {
                if let Some(watch) = event.first_chunk() {
                    self.forget(i32::from_ne_bytes(*watch));
                }
            }
            if count < events.len() {
                return;
            }
        }
    }

    fn forget(&self, watch: i32) {
        for Left { account, pages } in self.left.lock().remove(&watch).unwrap_or_default() {
            match account.upgrade() {
                Some(account) => {
                    account.left.fetch_sub(pages, Ordering::SeqCst);
                    account.give_back(pages);
                }
                None => drop(self.taken.fetch_sub(pages, Ordering::SeqCst)),
            }
        }
    }

    /// Remembers pages of `file` until it is gone. If it cannot be watched they stay with the port.
    fn remember(&self, file: &File, account: &Arc<PortAccount>, pages: u64) {
        let Ok(path) = std::ffi::CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())) else { return };
        let mut left = self.left.lock();
        if left.len() >= WATCHES {
            return;
        }
        // SAFETY: the path is a string that ends with a zero byte.
        let watch =
            unsafe { libc::inotify_add_watch(self.deaths.as_raw_fd(), path.as_ptr(), libc::IN_DELETE_SELF) };
        if watch >= 0 {
            // One file has one watch, however often it is asked for.
            account.left.fetch_add(pages, Ordering::SeqCst);
            left.entry(watch).or_default().push(Left { account: Arc::downgrade(account), pages });
        }
    }
}

/// What one port's guests cost, one connection after the other.
#[derive(Debug)]
pub(crate) struct PortAccount {
    bound: Arc<MemoryBound>,
    /// Pages.
    taken: AtomicU64,
    /// How many of them are of files that are watched: what the port leaves behind when it goes.
    left: AtomicU64,
}

impl PortAccount {
    /// What the port costs now, in bytes, at most.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.taken.load(Ordering::Relaxed) * PAGE
    }

    /// How much all and each may cost.
    pub(crate) fn limits(&self) -> MemoryLimits {
        self.bound.limits
    }

    /// Before anything is mapped: what is gone does not count.
    pub(crate) fn forget_dead_files(&self) {
        self.bound.forget_dead_files();
    }

    /// Takes `pages` more, if that is within both limits. Safe in a signal handler.
    fn take(&self, pages: u64) -> bool {
        let fits = |taken: &AtomicU64, bytes: u64| {
            let fits = taken.fetch_add(pages, Ordering::SeqCst).saturating_add(pages) <= bytes / PAGE;
            if !fits {
                taken.fetch_sub(pages, Ordering::SeqCst);
            }
            fits
        };
        if !fits(&self.taken, self.bound.limits.port) {
            return false;
        }
        if !fits(&self.bound.taken, self.bound.limits.total) {
            self.taken.fetch_sub(pages, Ordering::SeqCst);
            return false;
        }
        true
    }

    fn give_back(&self, pages: u64) {
        self.taken.fetch_sub(pages, Ordering::SeqCst);
        self.bound.taken.fetch_sub(pages, Ordering::SeqCst);
    }
}

impl Drop for PortAccount {
    fn drop(&mut self) {
        let forgotten = *self.taken.get_mut() - *self.left.get_mut();
        self.bound.taken.fetch_sub(forgotten, Ordering::SeqCst);
    }
}

/// What became of a missing page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BroughtIn {
    /// It is there now.
    Done,
    /// It would cost more than the port, or all, may.
    TooMuch,
    /// The file has no such page, or it cannot be had.
    NoPage,
}

/// What one region costs: its page tables, and the pages that were brought in.
#[derive(Debug)]
pub(super) struct RegionAccount {
    account: Arc<PortAccount>,
    userfault: RawFd,
    start: usize,
    /// Pages of page tables, and of `brought_in`.
    fixed: u64,
    /// A bit for each page that was brought in.
    brought_in: Box<[AtomicU64]>,
    /// The page of which the kernel said last that it is there, times 256, and how often in a row it did.
    said_there: AtomicU64,
    file: Arc<File>,
}

impl RegionAccount {
    /// The account of a region of `bytes` bytes, before it is mapped from `file`; absent if it costs more than there is.
    pub(super) fn new(account: &Arc<PortAccount>, bytes: u64, file: Arc<File>) -> Option<RegionAccount> {
        let bits = bytes.div_ceil(PAGE);
        // Three levels of tables, each of which has a begun page at both ends.
        let fixed = bytes.div_ceil(PAGE_TABLE_SHARE).div_ceil(PAGE) + bits.div_ceil(8).div_ceil(PAGE) + 6;
        if !account.take(fixed) {
            return None;
        }
        let words = usize::try_from(bits.div_ceil(64)).unwrap_or(0);
        let brought_in = std::iter::repeat_with(AtomicU64::default).take(words).collect();
        let userfault = account.bound.userfault.as_raw_fd();
        let account = Arc::clone(account);
        let said_there = AtomicU64::new(0);
        Some(RegionAccount { account, userfault, start: 0, fixed, brought_in, said_there, file })
    }

    /// From now on a missing page of the region, which is mapped at `start`, is a SIGBUS.
    ///
    /// # Errors
    /// The kernel does not watch such a mapping.
    pub(super) fn watch(&mut self, start: *mut u8, bytes: usize) -> Result<(), nix::Error> {
        self.start = start as usize;
        userfault::register(self.userfault, self.start, bytes)
    }

    /// Counts the missing page at `address`, and makes it. Called in the handler of SIGBUS: atomic integers and one ioctl(2).
    pub(super) fn bring_in(&self, address: usize) -> BroughtIn {
        let page = address.wrapping_sub(self.start) / userfault::PAGE;
        let Some(word) = self.brought_in.get(page / 64) else { return BroughtIn::NoPage };
        let bit = 1 << (page % 64);
        // One that was brought in before and was taken away since is charged once all the same.
        let is_new = word.fetch_or(bit, Ordering::SeqCst) & bit == 0;
        if is_new && !self.account.take(1) {
            word.fetch_and(!bit, Ordering::SeqCst);
            return BroughtIn::TooMuch;
        }
        let made = userfault::zero_page(self.userfault, self.start + page * userfault::PAGE);
        if is_new && made != Ok(()) {
            word.fetch_and(!bit, Ordering::SeqCst);
            self.account.give_back(1);
        }
        match made {
            Ok(()) => {
                self.said_there.store(0, Ordering::SeqCst);
                BroughtIn::Done
            }
            // Mappings are being changed, and the access is tried again.
            Err(Errno::EAGAIN) => BroughtIn::Done,
            // Somebody else was first.
            Err(Errno::EEXIST) if self.may_be_there(page) => BroughtIn::Done,
            Err(_) => BroughtIn::NoPage,
        }
    }

    /// Counts that the kernel says of a page that it is there; false if it has said so too often. Called in the handler of SIGBUS. Threads
    /// that count at once may lose a count, and it takes some accesses more.
    fn may_be_there(&self, page: usize) -> bool {
        let (page, said) = (page as u64, self.said_there.load(Ordering::SeqCst));
        let times = if said / 256 == page { said % 256 + 1 } else { 1 };
        self.said_there.store(page * 256 + times.min(255), Ordering::SeqCst);
        times <= MOST_IN_A_ROW
    }
}

impl Drop for RegionAccount {
    fn drop(&mut self) {
        self.account.give_back(self.fixed);
        let pages =
            self.brought_in.iter().map(|word| u64::from(word.load(Ordering::SeqCst).count_ones())).sum();
        if pages > 0 {
            self.account.bound.remember(&self.file, &self.account, pages);
        }
    }
}

#[cfg(test)]
#[path = "memory_bound_tests.rs"]
mod tests;
