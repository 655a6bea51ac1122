//! Telling a guest that something was used: a write to the eventfd that it sent.
//!
//! The guest holds the same eventfd. It may fill the counter and clear `O_NONBLOCK`, and the write would wait for ever, with all
//! neighbours. So each write is counted on its way in and out ([`Caller`]), and another thread that sees the same write twice sends a
//! signal, which ends the wait ([`Caller::interrupt_stuck_write`]). It may also have very many wait for the eventfd, whom each write goes
//! through. No signal ends that, so it is measured ([`CallTimes`], [`Written::cost`]).
//!
//! Invariant: what is written to is an eventfd, since it was checked ([`GuestEvent::new`]). A guest's eventfd is never read: a read can
//! wait as well, and epoll's edges tell all there is to know.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use super::RingFault;
use crate::interruption;
use crate::memory::GuestFile;

/// A write that takes longer is a long one. Usually it takes a microsecond.
const LONG: Duration = Duration::from_millis(2);
/// So many that had the processor for so long, twice each, one soon after the other, are the guest's doing.
const TOO_MANY: u32 = 3;
/// One is soon after another if no more than this is between them, or no more than [`SHARE`] times what the other took.
const SOON: Duration = Duration::from_secs(1);
/// By writes that count, a guest that keeps clear of that has three hundredths of the thread at most. Those of up to [`LONG`] never count,
/// however many they are.
const SHARE: u32 = 100;

/// An eventfd of a guest, for kicks or calls.
#[derive(Debug)]
pub(crate) struct GuestEvent(GuestFile);

/// A file descriptor that is no eventfd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a file descriptor that is no eventfd")]
pub(crate) struct NoEventFd;

impl GuestEvent {
    /// Takes `fd` if it is an eventfd.
    ///
    /// # Errors
    /// [`NoEventFd`].
    pub(crate) fn new(fd: GuestFile) -> Result<GuestEvent, NoEventFd> {
        if is_eventfd(fd.as_fd()) { Ok(GuestEvent(fd)) } else { Err(NoEventFd) }
    }

    /// An eventfd of a test's own. (Miri has descriptors of its own, of which /proc does not tell.)
    #[cfg(test)]
    pub(crate) fn of_own(event: &nix::sys::eventfd::EventFd) -> GuestEvent {
        GuestEvent(event.as_fd().try_clone_to_owned().unwrap().into())
    }
}

/// True if `fd` is an eventfd, by the name that the kernel gives it below /proc. Nothing is asked of the file itself: the lock of an
/// epoll, say, may be held by the guest for as long as it likes.
pub(crate) fn is_eventfd(fd: BorrowedFd<'_>) -> bool {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    nix::fcntl::readlink(link.as_str()).is_ok_and(|name| name == "anon_inode:[eventfd]")
}

impl AsFd for GuestEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// How long the calls of one port's guests take.
///
/// With 400 epolls that each watch 400 descriptors of its eventfd a guest has every write go through 160,000 that wait, for 20 ms. But a
/// write that is long by the clock may be nobody's fault: it wakes somebody, which is when the kernel may well give this thread's
/// processor away. So that alone makes a suspect. Of a suspect it is measured how long the write had the processor
/// (CLOCK_THREAD_CPUTIME_ID): to go through those who wait takes it, to wait for it does not. Asking for that time is a system call, which
/// the calls of other guests are spared.
///
/// Most kernels count an interrupt, and what it leaves to be done, as the time of whoever it interrupts (CONFIG_IRQ_TIME_ACCOUNTING is not
/// set). So after a write that had the processor for long there is another at once, which does the guest no harm: those who wait for the
/// eventfd take it again, an interrupt hardly comes again. (Who waits for one write alone, as a poll of io_uring does, is not found.)
#[derive(Debug, Default)]
pub(crate) struct CallTimes {
    /// The last one that was long by the clock.
    last: Option<LongWrite>,
    /// The last one that had the processor for long, and how many there were up to it, each soon after the one before.
    costly: Option<(LongWrite, u32)>,
}

/// When it ended, and how long it took.
#[derive(Debug, Clone, Copy)]
struct LongWrite {
    ended: Instant,
    took: Duration,
}

impl LongWrite {
    /// True if `now` is soon after it.
    fn is_recent(&self, now: Instant) -> bool {
        now.duration_since(self.ended) <= SOON.max(self.took.saturating_mul(SHARE))
    }
}

impl CallTimes {
    /// True if the processor's time is to be taken of a write that starts now.
    pub(super) fn is_suspect(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| last.is_recent(now))
    }

    /// Notes a write that was long by the clock, and how long it had the processor, if that was measured.
    ///
    /// # Errors
    /// [`RingFault::CallsTakeLong`] if there were too many that had it for long. They are forgotten then.
    pub(super) fn note_long(
        &mut self,
        started: Instant,
        ended: Instant,
        on_processor: Option<Duration>,
    ) -> Result<(), RingFault> {
        self.last = Some(LongWrite { ended, took: ended.duration_since(started) });
        let Some(took) = on_processor.filter(|took| *took > LONG) else { return Ok(()) };
        let before = self.costly.take().filter(|(last, _)| last.is_recent(started));
        let count = before.map_or(0, |(_, count)| count) + 1;
        if count >= TOO_MANY {
            return Err(RingFault::CallsTakeLong);
        }
        self.costly = Some((LongWrite { ended, took }, count));
        Ok(())
    }
}

/// A write that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    /// The counter was full, so that nobody who waits was told.
    pub(super) was_full: bool,
    /// How long it had the processor, if that was measured.
    pub(super) on_processor: Option<Duration>,
}

impl Written {
    /// How long the guest had the processor by this. If that was long, `again` writes once more, and what both took counts if it was long
    /// as well.
    ///
    /// # Errors
    /// That of `again`.
    pub(super) fn cost(
        self,
        again: impl FnOnce() -> Result<Written, RingFault>,
    ) -> Result<Option<Duration>, RingFault> {
        let Some(first) = self.on_processor.filter(|took| *took > LONG) else {
            return Ok(self.on_processor);
        };
        let again = again()?;
        if again.was_full {
            // The guest had it filled but for one: it takes half a million years of calls otherwise.
            return Ok(Some(first));
        }
        Ok(again.on_processor.map(|second| if second > LONG { first + second } else { second }))
    }
}

/// How long the calling thread has had a processor.
fn time_on_processor() -> Option<Duration> {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).ok().map(Duration::from)
}

/// How long it has had one since `before`, if that was measured.
fn time_since(before: Option<Duration>) -> Option<Duration> {
    before.and_then(|before| Some(time_on_processor()?.saturating_sub(before)))
}

/// Writes to call eventfds on one thread, and lets another thread see whether one hangs.
#[derive(Debug, Default)]
pub(crate) struct Caller {
    /// Odd while a write is under way.
    writes: AtomicU32,
    thread: AtomicI32,
}

impl Caller {
    /// Names the calling thread as the one that calls.
    pub(crate) fn on_this_thread(&self) {
        interruption::handle_signal();
        self.thread.store(nix::unistd::gettid().as_raw(), Ordering::SeqCst);
    }

    /// Calls the guest, whose port's calls took `times` before.
    ///
    /// # Errors
    /// [`RingFault::CallBlocks`] if the write had to be interrupted, [`RingFault::CallsTakeLong`].
    pub(crate) fn call(&self, event: &GuestEvent, times: &mut CallTimes) -> Result<(), RingFault> {
        let started = Instant::now();
        let before = if times.is_suspect(started) { time_on_processor() } else { None };
        let was_full = self.write(event)?;
        if started.elapsed() <= LONG {
            return Ok(());
        }
        let written = Written { was_full, on_processor: time_since(before) };
        let on_processor = written.cost(|| {
            let before = time_on_processor();
            let was_full = self.write(event)?;
            Ok(Written { was_full, on_processor: time_since(before) })
        })?;
        times.note_long(started, Instant::now(), on_processor)
    }

    /// Writes; true if the counter is full: the guest has not yet seen the calls before.
    ///
    /// # Errors
    /// [`RingFault::CallBlocks`].
    fn write(&self, event: &GuestEvent) -> Result<bool, RingFault> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        let written = nix::unistd::write(&event.0, &1_u64.to_ne_bytes());
        self.writes.fetch_add(1, Ordering::SeqCst);
        if written == Err(Errno::EINTR) {
            return Err(RingFault::CallBlocks);
        }
        Ok(written == Err(Errno::EAGAIN))
    }

    /// Ends a write that was under way at the last look and still is. `last` is what the last look returned, 0 before the first.
    pub(crate) fn interrupt_stuck_write(&self, last: u32) -> u32 {
        let writes = self.writes.load(Ordering::SeqCst);
        let thread = self.thread.load(Ordering::SeqCst);
        if writes & 1 == 1 && writes == last && thread != 0 {
            // A thread that is inside a write exists.
            interruption::interrupt(Pid::from_raw(thread));
        }
        writes
    }
}
