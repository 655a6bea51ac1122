//! The process without the standard library's start: its entry, its first memory and its end.
//!
//! A runtime starts this program for every call. The standard library's start costs it some 15 µs and ten system calls, of which it
//! needs two; an allocator maps memory. So the C library's start calls [`main`] here, memory comes from a few pages of the program's own
//! until they are used up, and the end is `_exit`. This is the one file of the executable with `unsafe`: nothing in it looks at what
//! came from outside.

#![allow(unsafe_code, reason = "an entry that C calls, an allocator and two calls of libc have no safe form")]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlmalloc::GlobalDlmalloc;

// SAFETY: the three descriptors are open for as long as the process lives: `main` opens those that its caller had closed, and
// nothing closes them.
pub(crate) const STDIN: BorrowedFd<'static> = unsafe { BorrowedFd::borrow_raw(0) };
// SAFETY: as above.
pub(crate) const STDOUT: BorrowedFd<'static> = unsafe { BorrowedFd::borrow_raw(1) };
// SAFETY: as above.
#[cfg(not(test))]
const STDERR: BorrowedFd<'static> = unsafe { BorrowedFd::borrow_raw(2) };

/// As much as a usual call takes several times over, in bytes. Only the pages that are used are ever made.
const FIRST_MEMORY: usize = 128 << 10;

/// More than any alignment that a type of this program has, and that of the first memory.
const MOST_ALIGNED: usize = 64;

// Under Miri it is for its tests alone: Miri has each block of a global allocator be an object of its own, without the notes beside it.
#[cfg(not(miri))]
#[global_allocator]
static ALLOCATOR: Allocator =
    Allocator { used: AtomicUsize::new(0), first: Memory(UnsafeCell::new([0; FIRST_MEMORY])) };

/// Memory of the program's own, handed out from its beginning and never twice, except for the last block: that grows in place and is
/// taken back. What does not fit in comes from [`GlobalDlmalloc`].
///
/// What is used comes first, so that it is written where the first block is.
#[repr(C)]
struct Allocator {
    used: AtomicUsize,
    first: Memory,
}

#[repr(align(64))]
struct Memory(UnsafeCell<[u8; FIRST_MEMORY]>);

// SAFETY: no reference to the bytes is ever made; `Allocator` hands out pointers to parts of it that do not overlap.
unsafe impl Sync for Memory {}

impl Allocator {
    fn start(&self) -> *mut u8 {
        self.first.0.get().cast()
    }

    /// Where in the first memory a block begins; `None` for a block that is not in it.
    fn offset(&self, block: *mut u8) -> Option<usize> {
        block.addr().checked_sub(self.start().addr()).filter(|offset| *offset < FIRST_MEMORY)
    }

    /// Takes what ends at `old` and has to end at `new`. False where another block was taken meanwhile.
    fn moved(&self, old: usize, new: usize) -> bool {
        new <= FIRST_MEMORY
            && self.used.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

// SAFETY: a block of the first memory is `[begin, end)` with `used` moved from at most `begin` to `end` by one atomic exchange, so no
// two of them overlap; `begin` is aligned because the memory is aligned to MOST_ALIGNED and `begin` to the layout's. `used` moves
// back only to the begin of the block that ends at it, which its owner gives back. All other blocks are GlobalDlmalloc's.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        loop {
            let used = self.used.load(Ordering::Relaxed);
            let begin = used.next_multiple_of(layout.align());
            // A layout's size is at most isize::MAX, and `begin` small: the sum does not overflow.
            let end = begin + layout.size();
            if layout.align() > MOST_ALIGNED || end > FIRST_MEMORY {
                // SAFETY: the caller keeps `alloc`'s contract.
                return unsafe { GlobalDlmalloc.alloc(layout) };
            }
            if self.moved(used, end) {
                // `wrapping_add` stays within the first memory, as `end` does.
                return self.start().wrapping_add(begin);
            }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match self.offset(block) {
            // What lies below the last block stays taken until the process ends.
            Some(begin) => drop(self.moved(begin + layout.size(), begin)),
            // SAFETY: it is not of the first memory, so GlobalDlmalloc made it, with this layout.
            None => unsafe { GlobalDlmalloc.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let Some(begin) = self.offset(block) else {
            // SAFETY: as in `dealloc`; the caller keeps `realloc`'s contract.
            return unsafe { GlobalDlmalloc.realloc(block, layout, new_size) };
        };
        let end = begin + layout.size();
        if begin.checked_add(new_size).is_some_and(|new_end| self.moved(end, new_end)) {
            return block;
        }
        // SAFETY: the caller promises that `new_size` with this alignment is a layout.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        // SAFETY: neither size is zero, as the caller promises.
        let new = unsafe { self.alloc(new_layout) };
        if !new.is_null() {
            // SAFETY: both are at least that long, and a new block overlaps with no other.
            unsafe { std::ptr::copy_nonoverlapping(block, new, layout.size().min(new_size)) };
        }
        new
    }
}

/// The entry: the C library calls it once, as the only thread.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn main(count: std::ffi::c_int, arguments: *const *const std::ffi::c_char) -> std::ffi::c_int {
    // A runtime that closes its end of a pipe is an error to return, not the end.
    // SAFETY: no handler is installed, and no other thread exists.
    unsafe { nix::libc::signal(nix::libc::SIGPIPE, nix::libc::SIG_IGN) };
    // Where a page is read before it is written, the kernel maps it twice.
    #[cfg(not(miri))]
    ALLOCATOR.used.store(0, Ordering::Relaxed);
    open_what_is_closed();
    let program = if count < 1 {
        c""
    } else {
        // SAFETY: execve(2) gives as many arguments as it counts, each a string that ends with NUL and lives as long as the process.
        let first = unsafe { *arguments };
        // SAFETY: as above.
        unsafe { std::ffi::CStr::from_ptr(first) }
    };
    let status = crate::run(program.to_bytes());
    // SAFETY: nothing is buffered by C, and no handler of its own has to run at the end.
    unsafe { nix::libc::_exit(status) }
}

/// The time since the machine started (`CLOCK_MONOTONIC`). By the system call itself: the C library first looks through the functions that
/// the kernel maps into the process, and that costs three page faults, more than all the times that a call asks.
pub(crate) fn since_boot() -> Duration {
    let mut time = nix::libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `timespec`, which `time` is.
    unsafe { nix::libc::syscall(nix::libc::SYS_clock_gettime, nix::libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Opens `/dev/null` in the place of each standard stream that the caller closed, lest a socket get its number.
#[cfg(not(test))]
fn open_what_is_closed() {
    use nix::fcntl::{AT_FDCWD, OFlag, openat};
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut streams = [STDIN, STDOUT, STDERR].map(|stream| PollFd::new(stream, PollFlags::empty()));
    let _ = poll(&mut streams, PollTimeout::ZERO);
    for stream in streams {
        if stream.revents().is_some_and(|found| found.contains(PollFlags::POLLNVAL)) {
            // It gets the lowest number that is free, which is this stream's, and keeps it. Without /dev/null there is nothing to do.
            let null = openat(AT_FDCWD, c"/dev/null", OFlag::O_RDWR, nix::sys::stat::Mode::empty());
            let _ = null.map(std::os::fd::IntoRawFd::into_raw_fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(size: usize) -> Layout {
        Layout::from_size_align(size, 8).unwrap()
    }

    fn fresh() -> Box<Allocator> {
        Box::new(Allocator { used: AtomicUsize::new(0), first: Memory(UnsafeCell::new([0; FIRST_MEMORY])) })
    }

    /// Fills a block.
    fn fill(block: *mut u8, size: usize, with: u8) {
        // SAFETY: the tests pass blocks of that size.
        unsafe { block.write_bytes(with, size) };
    }

    fn is_filled(block: *mut u8, size: usize, with: u8) -> bool {
        // SAFETY: as above, and it was filled before.
        unsafe { std::slice::from_raw_parts(block, size) }.iter().all(|byte| *byte == with)
    }

    #[test]
    fn the_last_block_grows_in_place_and_any_other_is_copied() {
        let memory = fresh();
        // SAFETY: no layout has a size of zero, and each block is used with its own.
        let first = unsafe { memory.alloc(bytes(100)) };
        fill(first, 100, 1);
        // SAFETY: as above.
        assert_eq!(unsafe { memory.realloc(first, bytes(100), 5000) }, first);
        // SAFETY: as above.
        let second = unsafe { memory.alloc(bytes(8)) };
        fill(second, 8, 2);
        // SAFETY: as above.
        let moved = unsafe { memory.realloc(first, bytes(5000), 6000) };
        assert!(moved != first && is_filled(moved, 100, 1) && is_filled(second, 8, 2));
    }

    #[test]
    fn what_does_not_fit_comes_from_elsewhere_and_keeps_its_bytes() {
        let memory = fresh();
        // SAFETY: no layout has a size of zero, and each block is used with its own.
        let block = unsafe { memory.alloc(bytes(1000)) };
        fill(block, 1000, 3);
        // SAFETY: as above.
        let large = unsafe { memory.realloc(block, bytes(1000), 2 * FIRST_MEMORY) };
        assert!(memory.offset(large).is_none() && is_filled(large, 1000, 3));
        // SAFETY: as above.
        let larger = unsafe { memory.realloc(large, bytes(2 * FIRST_MEMORY), 3 * FIRST_MEMORY) };
        assert!(is_filled(larger, 1000, 3));
        // SAFETY: as above.
        unsafe { memory.dealloc(larger, bytes(3 * FIRST_MEMORY)) };
    }

    #[test]
    fn blocks_are_aligned_and_the_last_one_is_taken_back() {
        let memory = fresh();
        for align in [1, 2, 8, 64, 4096] {
            let layout = Layout::from_size_align(3, align).unwrap();
            // SAFETY: the size is not zero, and the block is given back with its layout.
            let block = unsafe { memory.alloc(layout) };
            assert_eq!(block.addr() % align, 0);
            let used = memory.used.load(Ordering::Relaxed);
            // SAFETY: as above.
            unsafe { memory.dealloc(block, layout) };
            let in_it = align <= MOST_ALIGNED;
            assert_eq!(memory.used.load(Ordering::Relaxed), if in_it { used - 3 } else { used });
        }
    }

    #[test]
    fn threads_never_share_a_byte() {
        let memory = fresh();
        std::thread::scope(|scope| {
            for thread in 1..5 {
                let memory = &memory;
                scope.spawn(move || {
                    // SAFETY: the size is not zero.
                    let blocks: Vec<usize> =
                        (0..200).map(|_| unsafe { memory.alloc(bytes(72)) }.expose_provenance()).collect();
                    let all = || blocks.iter().map(|block| std::ptr::with_exposed_provenance_mut(*block));
                    all().for_each(|block| fill(block, 72, thread));
                    assert!(all().all(|block| is_filled(block, 72, thread)));
                });
            }
        });
    }
}
