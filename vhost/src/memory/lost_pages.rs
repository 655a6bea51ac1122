//! What happens if a guest takes the pages of its memory away while they are mapped here.
//!
//! A guest may shorten its memfd, punch holes into it or use up the huge pages: the next access of ours is answered with SIGBUS, which
//! ends a process. Seals (`F_SEAL_SHRINK`) would forbid it, but DPDK makes memfds and hugetlbfs files that have none. So a handler of
//! SIGBUS puts fresh private memory in place of the whole region, marks the region as lost, and the access goes on; the data plane
//! sees the mark after each round and ends the connection. The whole region is replaced since a huge page cannot be replaced in part.
//! Memory that is broken (`BUS_MCEERR_AR`) is lost in the same way: the page is there, and can never be had.
//!
//! Invariants: the handler only calls mmap(2) and reads and writes atomic integers, so it may run at any instruction. It touches no
//! address outside a watched region: such a SIGBUS goes on to the handler that was there before. A page that is only missing, in a region
//! whose cost is bounded, is made as long as the bound allows, and is no loss.
//!
//! It never reports a loss by itself: whoever holds the [`Watch`] asks.

use std::cell::UnsafeCell;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use super::memory_bound::{BroughtIn, RegionAccount};

/// How many regions can be watched in a process: 1,024 ports with 32 regions each, twice.
const SLOTS: usize = 65_536;

struct Slot {
    taken: AtomicBool,
    lost: AtomicBool,
    /// It was lost because it cost too much.
    too_much: AtomicBool,
    /// Of a region whose cost is bounded; null otherwise.
    account: AtomicPtr<RegionAccount>,
    /// 0: nothing is watched.
    start: AtomicUsize,
    bytes: AtomicUsize,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        taken: AtomicBool::new(false),
        lost: AtomicBool::new(false),
        too_much: AtomicBool::new(false),
        account: AtomicPtr::new(std::ptr::null_mut()),
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
    }
}; SLOTS];

/// How often a region was lost in this process.
static LOSSES: AtomicUsize = AtomicUsize::new(0);

/// How often a region was lost in this process, of any guest: as long as it does not change, no [`Watch`] needs to be asked.
pub(crate) fn losses() -> usize {
    LOSSES.load(Ordering::Relaxed)
}

/// The handler of SIGBUS that was there before ours.
struct Previous(UnsafeCell<Option<libc::sigaction>>);

// SAFETY: it is written once, inside `INSTALL`, before the handler that reads it can run.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous = Previous(UnsafeCell::new(None));
static INSTALL: Once = Once::new();

/// A region that is watched until this is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    slot: usize,
}

impl Watch {
    /// True if a page of the region was missing at an access.
    pub(crate) fn lost(&self) -> bool {
        TABLE[self.slot].lost.load(Ordering::Relaxed)
    }

    /// True if the region was lost because its missing pages cost too much.
    pub(crate) fn cost_too_much(&self) -> bool {
        TABLE[self.slot].too_much.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let slot = &TABLE[self.slot];
        slot.start.store(0, Ordering::SeqCst);
        slot.taken.store(false, Ordering::SeqCst);
    }
}

/// Watches `bytes` bytes from `start`; absent if too many regions are watched. The first call installs the handler. Missing pages are
/// brought in by `account`, which the caller keeps where it is until the watch is dropped.
pub(super) fn watch(start: *mut u8, bytes: usize, account: Option<&RegionAccount>) -> Option<Watch> {
    INSTALL.call_once(install);
    let slot = TABLE.iter().position(|slot| !slot.taken.swap(true, Ordering::SeqCst))?;
    TABLE[slot].lost.store(false, Ordering::SeqCst);
    TABLE[slot].too_much.store(false, Ordering::SeqCst);
    let account = account.map_or(std::ptr::null_mut(), |account| std::ptr::from_ref(account).cast_mut());
    TABLE[slot].account.store(account, Ordering::SeqCst);
    TABLE[slot].bytes.store(bytes, Ordering::SeqCst);
    TABLE[slot].start.store(start as usize, Ordering::SeqCst);
    Some(Watch { slot })
}

fn install() {
    // SAFETY: all zeroes is a valid `sigaction`: no flags, an empty mask, SIG_DFL.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_sigbus as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: all zeroes is a valid `sigaction`, as above.
    let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid, and nothing is installed: a query.
    unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut previous) };
    // SAFETY: nobody reads it before the handler below is installed, and `INSTALL` runs once.
    unsafe { *PREVIOUS.0.get() = Some(previous) };
    // SAFETY: the pointer is valid; `on_sigbus` has the signature of an SA_SIGINFO handler and does only what a handler may.
    unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO a valid `siginfo_t`.
    let info_ref = unsafe { &*info };
    // SAFETY: SIGBUS carries the address of the access.
    let address = unsafe { info_ref.si_addr() } as usize;
    if !answer(info_ref.si_code, address) {
        pass_on(signal, info, context);
    }
}

/// Does what is to be done about a SIGBUS with this `si_code`; false if it is not ours.
fn answer(code: libc::c_int, address: usize) -> bool {
    match code {
        // Somebody has sent it. There is no access, and no address.
        ..=0 => false,
        // Memory is broken that nobody waits for yet: whoever needs it is told so then. (With `vm.memory_failure_early_kill`.)
        libc::BUS_MCEERR_AO => watched(address).is_some(),
        code => mend(address, code == libc::BUS_ADRERR),
    }
}

/// The watched region that `address` lies in: its slot, its start and its bytes.
fn watched(address: usize) -> Option<(&'static Slot, usize, usize)> {
    TABLE.iter().find_map(|slot| {
        let start = slot.start.load(Ordering::SeqCst);
        let bytes = slot.bytes.load(Ordering::SeqCst);
        // Another thread may give the slot to another region in between.
        let is_whole = start != 0 && slot.start.load(Ordering::SeqCst) == start;
        (is_whole && address >= start && address - start < bytes).then_some((slot, start, bytes))
    })
}

/// Brings the page at `address` in, if it `may_be_missing`, or puts private memory in place of the watched region that it lies in; false
/// if it lies in none.
fn mend(address: usize, may_be_missing: bool) -> bool {
    let Some((slot, start, bytes)) = watched(address) else { return false };
    let account = slot.account.load(Ordering::SeqCst);
    // SAFETY: null, or the account of the region that `address` is in. The region is being accessed, so it, and its account, exist.
    let account = unsafe { account.as_ref() };
    let can_be_had = may_be_missing && !slot.lost.load(Ordering::SeqCst);
    if let Some(account) = account.filter(|_| can_be_had) {
        match account.bring_in(address) {
            BroughtIn::Done => return true,
            BroughtIn::TooMuch => slot.too_much.store(true, Ordering::SeqCst),
            BroughtIn::NoPage => {}
        }
    }
    slot.lost.store(true, Ordering::SeqCst);
    LOSSES.fetch_add(1, Ordering::SeqCst);
    let place = start as *mut libc::c_void;
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the range is a whole mapping of a `MappedRegion`, which is watched only while it exists; nothing else lives there. Its
    // contents are the guest's and may change at any time anyway.
    let mapped = unsafe { libc::mmap(place, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    // A page that is touched until the connection ends is to cost 4 KiB, and not a huge page.
    // SAFETY: the range is the mapping that was just made, or nothing was made and the kernel refuses.
    unsafe { libc::madvise(place, bytes, libc::MADV_NOHUGEPAGE) };
    mapped != libc::MAP_FAILED
}

/// What would have happened without us: std's handler (which knows stack overflows) or the end of the process.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    // SAFETY: `install` wrote it before this handler could run.
    let previous = unsafe { *PREVIOUS.0.get() };
    let informed = previous.filter(|previous| previous.sa_flags & libc::SA_SIGINFO != 0);
    let handler = informed.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction);
    if handler != libc::SIG_DFL && handler != libc::SIG_IGN {
        // SAFETY: an action with SA_SIGINFO and neither of the two special values holds a function with this signature.
        let call = unsafe { std::mem::transmute::<usize, Handler>(handler) };
        call(signal, info, context);
    } else {
        // SAFETY: the default action; the access is repeated after the return and ends the process with a core of the right place.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}
