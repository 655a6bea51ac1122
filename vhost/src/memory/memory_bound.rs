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
//! that the file is gone (inotify(7), `IN_DELETE_SELF`), or the port maps it again. In the total it stays after the port too, for somebody
//! else may keep the file; what cannot be watched ends with the port.
//!
//! A guest that gives memory back all the time (a balloon, free page reporting) has the switch bring in ever new pages. So accounts of
//! which much is taken are audited ([`RegionAccount::audit`]): what was counted for pages that are gone is given back. A page that the
//! guest has made anew since is there, and stays counted. What is not mapped is not audited: to ask for a page takes the file, and a file
//! that is kept is never gone.
//!
//! It never touches a page of a guest, and never takes one away: what a guest has in memory is its own.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

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

/// What one call of an audit may take of the connection thread, which all ports share. To ask for a page takes 1 to 2 µs, and for one that
/// was swapped out as long as it takes to read it.
pub(super) struct AuditBudget {
    pages: u32,
    until: Instant,
}

impl AuditBudget {
    /// Some more than so many pages (those of the last 64 are asked for to the end), for as long at most.
    pub(super) fn new(pages: u32, lasting: Duration) -> AuditBudget {
        AuditBudget { pages, until: Instant::now() + lasting }
    }

    fn spend(&mut self, pages: u32) {
        let is_late = pages > 0 && Instant::now() >= self.until;
        self.pages = if is_late { 0 } else { self.pages.saturating_sub(pages) };
    }
}

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
    /// Their places in the file, in pages: 8 bytes for a page that is counted.
    pages: Vec<u64>,
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
            let pages = pages.len() as u64;
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
    fn remember(&self, file: &File, account: &Arc<PortAccount>, pages: Vec<u64>) {
        let mut left = self.left.lock();
        if left.len() >= WATCHES {
            return;
        }
        if let Some(watch) = self.watch(file) {
            account.left.fetch_add(pages.len() as u64, Ordering::SeqCst);
            left.entry(watch).or_default().push(Left { account: Arc::downgrade(account), pages });
        }
    }

    /// Which of these pages of `file` the account has left behind: they are not remembered any more, and stay counted.
    fn recall(&self, file: &File, account: &Arc<PortAccount>, mapped: &Range<u64>) -> Vec<u64> {
        if account.left.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let mut left = self.left.lock();
        let Some(watch) = self.watch(file) else { return Vec::new() };
        let mut of_file = left.remove(&watch).unwrap_or_default();
        let mut recalled: Vec<u64> = Vec::new();
        for left in of_file.iter_mut().filter(|left| left.account.as_ptr() == Arc::as_ptr(account)) {
            let pages = std::mem::take(&mut left.pages).into_iter();
            let (again, other): (Vec<u64>, Vec<u64>) = pages.partition(|page| mapped.contains(page));
            left.pages = other;
            recalled.extend(again);
        }
        of_file.retain(|left| !left.pages.is_empty());
        if of_file.is_empty() {
            // SAFETY: a system call without pointers.
            unsafe { libc::inotify_rm_watch(self.deaths.as_raw_fd(), watch) };
        } else {
            left.insert(watch, of_file);
        }
        account.left.fetch_sub(recalled.len() as u64, Ordering::SeqCst);
        recalled
    }

    /// The watch of a file: the same one, however often it is asked for.
    fn watch(&self, file: &File) -> Option<i32> {
        let path = std::ffi::CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        // SAFETY: the path is a string that ends with a zero byte.
        let watch =
            unsafe { libc::inotify_add_watch(self.deaths.as_raw_fd(), path.as_ptr(), libc::IN_DELETE_SELF) };
        (watch >= 0).then_some(watch)
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

    /// True if a quarter of a limit is taken: early, since a page that is gone now may be the guest's own at the next look.
    pub(crate) fn is_worth_an_audit(&self) -> bool {
        let is_much = |taken: &AtomicU64, bytes: u64| taken.load(Ordering::Relaxed) >= bytes / PAGE / 4;
        is_much(&self.taken, self.bound.limits.port) || is_much(&self.bound.taken, self.bound.limits.total)
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

    /// Takes one page more, whatever the limits are.
    fn take_anyway(&self) {
        self.taken.fetch_add(1, Ordering::SeqCst);
        self.bound.taken.fetch_add(1, Ordering::SeqCst);
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
    /// Where the region begins in its file, in pages.
    first_page: u64,
    /// A bit for each page that was brought in. For each that is set one page is counted, and who clears it has that to give back.
    brought_in: Box<[AtomicU64]>,
    /// How much of `brought_in` this round of the audit is through.
    audited: AtomicUsize,
    /// The page of which the kernel said last that it is there, times 256, and how often in a row it did.
    said_there: AtomicU64,
    file: Arc<File>,
}

impl RegionAccount {
    /// The account of a region of `bytes` bytes, before it is mapped from `file` from `offset` on; absent if it costs more than there is.
    /// What the port had brought in of it before is on this account from now on.
    pub(super) fn new(
        account: &Arc<PortAccount>,
        (offset, bytes): (u64, u64),
        file: Arc<File>,
    ) -> Option<RegionAccount> {
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
        let (said_there, audited, first_page) = (AtomicU64::new(0), AtomicUsize::new(0), offset / PAGE);
        let region = RegionAccount {
            account,
            userfault,
            start: 0,
            fixed,
            first_page,
            brought_in,
            audited,
            said_there,
            file,
        };
        let mapped = first_page..first_page + bits;
        for page in region.account.bound.recall(&region.file, &region.account, &mapped) {
            let page = usize::try_from(page - first_page).unwrap_or(usize::MAX);
            if let Some((word, bit)) = region.mark_of(page) {
                region.mark(word, bit);
            }
        }
        Some(region)
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
        let Some((word, bit)) = self.mark_of(page) else { return BroughtIn::NoPage };
        // One that was brought in before and was taken away since is charged once all the same: `mark` gives this one back, unless the
        // audit clears the bit meanwhile.
        if word.load(Ordering::SeqCst) & bit != 0 {
            self.account.take_anyway();
        } else if !self.account.take(1) {
            return BroughtIn::TooMuch;
        }
        let made = userfault::zero_page(self.userfault, self.start + page * userfault::PAGE);
        if made.is_err() {
            self.account.give_back(1);
        }
        match made {
            Ok(()) => {
                self.mark(word, bit);
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

    /// Gives back what was counted for pages that are gone. Goes on where the last call ended, until the budget is spent or to the end of
    /// the region; true there. To look for the next page takes some ms in the largest region.
    pub(super) fn audit(&self, budget: &mut AuditBudget) -> bool {
        let mut at = self.audited.load(Ordering::Relaxed);
        while budget.pages > 0
            && let Some(word) = self.brought_in.get(at)
        {
            let marked = word.load(Ordering::SeqCst);
            set_bits(marked).for_each(|number| self.audit_page(word, at, number));
            budget.spend(marked.count_ones());
            at += 1;
        }
        self.audited.store(at, Ordering::Relaxed);
        at == self.brought_in.len()
    }

    /// Has the next audit begin at the start.
    pub(super) fn audit_anew(&self) {
        self.audited.store(0, Ordering::Relaxed);
    }

    /// Only the connection thread audits. A poll thread may bring the page in at any point of this, and takes no lock for it: the bit is
    /// cleared before the kernel is asked; `bring_in` counts one, makes the page, and then sets the bit. If the page is made after
    /// it was said to be missing, the poll thread finds the bit clear, and its own one stays. If it is made before, it is there: whoever
    /// sets the bit second gives one back.
    fn audit_page(&self, word: &AtomicU64, at: usize, number: u32) {
        let bit = 1_u64 << number;
        if word.fetch_and(!bit, Ordering::SeqCst) & bit == 0 {
            return;
        }
        let page = at * 64 + number as usize;
        if userfault::is_missing(self.userfault, self.start + page * userfault::PAGE) {
            self.account.give_back(1);
        } else {
            self.mark(word, bit);
        }
    }

    /// Where the bit of a page of the region is.
    fn mark_of(&self, page: usize) -> Option<(&AtomicU64, u64)> {
        Some((self.brought_in.get(page / 64)?, 1_u64 << (page % 64)))
    }

    /// Sets the bit of a page for which one was counted, which is given back if the bit is set: a page counts once.
    fn mark(&self, word: &AtomicU64, bit: u64) {
        if word.fetch_or(bit, Ordering::SeqCst) & bit != 0 {
            self.account.give_back(1);
        }
    }

    /// The places in the file of all pages that were brought in.
    fn marked_pages(&self) -> Vec<u64> {
        let of_word = |(at, word): (u64, &AtomicU64)| {
            let first = self.first_page + at * 64;
            set_bits(word.load(Ordering::SeqCst)).map(move |number| first + u64::from(number))
        };
        (0..).zip(self.brought_in.iter()).flat_map(of_word).collect()
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
        let pages = self.marked_pages();
        if !pages.is_empty() {
            self.account.bound.remember(&self.file, &self.account, pages);
        }
    }
}

/// The numbers of the bits of `word` that are set.
fn set_bits(word: u64) -> impl Iterator<Item = u32> {
    let rest = std::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)));
    rest.take_while(|word| *word != 0).map(u64::trailing_zeros)
}

#[cfg(test)]
#[path = "memory_bound_tests.rs"]
mod tests;
