//! One queue of an uplink: frames that came, and frames that go.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use fairlead_host::UplinkQueue;
use fairlead_host::uplink::{CHUNK_BYTES, CHUNKS, MEMORY_BYTES, RING_ENTRIES};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::xsk_ring::{Side, XskRing};
use crate::memory::{GuestMemory, MappedRegion, RegionError, RegionHint, RegionPlace};
use crate::offload::NetHeader;
use crate::ring::{Frame, FrameSink, HeadSpace};
use crate::switch::TagChange;

/// The most frames that are taken before another's turn.
const BURST: u32 = 64;

/// How often the kernel is called for one burst: without a driver's help it sends some frames with each call.
const CALLS: usize = 128;

/// After how many calls in a row that changed nothing the wire takes no more for now. Not after the first, since Linux before the middle
/// of 2025 may tell only at a later call what it has taken.
const IDLE_CALLS: usize = 2;

/// Why a queue cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// A ring can't be mapped.
    #[error("a ring of the AF_XDP socket can't be mapped; it is bound already, or has other sizes")]
    Ring(#[source] Errno),
    /// The memory can't be mapped.
    #[error("the memory of the AF_XDP socket can't be mapped")]
    Memory(#[source] std::io::Error),
}

impl From<RegionError> for QueueError {
    fn from(error: RegionError) -> QueueError {
        QueueError::Memory(std::io::Error::other(error))
    }
}

/// A queue that is served.
#[derive(Debug)]
pub(crate) struct Queue {
    socket: Arc<OwnedFd>,
    memory: Arc<GuestMemory>,
    hint: RegionHint,
    came: XskRing<libc::xdp_desc>,
    fill: XskRing<u64>,
    go: XskRing<libc::xdp_desc>,
    gone: XskRing<u64>,
    /// Chunks for frames that go, by their addresses.
    free: Vec<u64>,
    /// The kernel would not send: the interface is down, say. Frames are dropped then, rather than sent when it is up again.
    is_refused: bool,
    /// In this round it was asked whether it sends again.
    was_asked: bool,
    /// In this round the kernel has taken nothing more. What is put until the next one waits for that.
    is_full: bool,
}

impl Queue {
    /// Maps rings and memory of a socket that is not bound yet, and gives the kernel chunks for frames that come.
    pub(super) fn map(queue: UplinkQueue) -> Result<Queue, QueueError> {
        let UplinkQueue { socket, memory } = queue;
        let offsets = offsets(&socket).map_err(QueueError::Ring)?;
        let ring = QueueError::Ring;
        let came = XskRing::map(&socket, of_rx(libc::XDP_PGOFF_RX_RING), &offsets.rx, Side::Consumer)
            .map_err(ring)?;
        let go = XskRing::map(&socket, of_rx(libc::XDP_PGOFF_TX_RING), &offsets.tx, Side::Producer)
            .map_err(ring)?;
        let fill = libc::XDP_UMEM_PGOFF_FILL_RING;
        let mut fill: XskRing<u64> =
            XskRing::map(&socket, fill, &offsets.fr, Side::Producer).map_err(ring)?;
        let gone = libc::XDP_UMEM_PGOFF_COMPLETION_RING;
        let gone = XskRing::map(&socket, gone, &offsets.cr, Side::Consumer).map_err(ring)?;
        let place = RegionPlace { guest: 0, user: 0, bytes: MEMORY_BYTES, offset: 0 };
        let region = MappedRegion::new(place, File::from(memory))?;
        map_all_pages(&region);
        let memory = Arc::new(GuestMemory::new(vec![Arc::new(region)])?);
        let address = |chunk: u32| u64::from(chunk) * u64::from(CHUNK_BYTES);
        (0..RING_ENTRIES).for_each(|chunk| fill.put(address(chunk)));
        fill.publish();
        let free = (RING_ENTRIES..CHUNKS).map(address).collect();
        let (socket, hint) = (Arc::new(socket), RegionHint::default());
        let (is_refused, was_asked, is_full) = (false, false, false);
        Ok(Queue { socket, memory, hint, came, fill, go, gone, free, is_refused, was_asked, is_full })
    }

    pub(crate) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// The memory in which the frames lie.
    pub(crate) fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// True if a frame has come, or one is still to be sent.
    pub(crate) fn has_work(&self) -> bool {
        self.came.ready() > 0 || self.is_unsent()
    }

    fn is_unsent(&self) -> bool {
        !self.is_refused && self.go.unconsumed() > 0
    }

    /// How many frames have come, of which [`Queue::frame`] shows each; some at most.
    #[inline]
    pub(crate) fn look(&self) -> u32 {
        self.came.ready().min(BURST)
    }

    /// Frame `n` of those that have come; absent if its descriptor names no memory of the queue. `memory` is the queue's; the frame's head
    /// is copied to `space`.
    #[inline]
    pub(crate) fn frame<'b, 'm>(
        &self,
        n: u32,
        memory: &'m GuestMemory,
        space: &'b mut HeadSpace,
    ) -> Option<Frame<'b, 'm>> {
        let descriptor = self.came.entry(n);
        let bytes = usize::try_from(descriptor.len).ok()?;
        let slice = memory.whole_at_guest(descriptor.addr, bytes, &self.hint)?;
        Frame::of_slice(slice, NetHeader::PLAIN, space)
    }

    /// Gives the first `count` frames back to the kernel.
    #[inline]
    pub(crate) fn give_back(&mut self, count: u32) {
        for n in 0..count {
            let address = self.came.entry(n).addr & !u64::from(CHUNK_BYTES - 1);
            if self.fill.room() > 0 {
                self.fill.put(address);
            }
        }
        self.came.advance(count);
        self.came.publish();
        self.fill.publish();
        if self.fill.needs_wakeup() {
            // Nothing is received by it; the driver looks for chunks again. What it answers does not matter.
            let _ = recv(self.socket.as_fd(), &mut [0_u8; 0][..], RecvFlags::DONTWAIT);
        }
    }

    /// Copies `frame` into a free chunk; false if there is none, or the kernel does not send. It goes with the next [`Queue::send`].
    #[inline]
    pub(crate) fn put(&mut self, frame: &Frame<'_, '_>, change: TagChange) -> bool {
        if self.is_refused && !self.sends_again() {
            return false;
        }
        let bytes = frame.changed_length(change);
        if self.free.is_empty() {
            self.collect();
        }
        let Some(address) = self.free.pop() else { return false };
        let space = self.memory.at_guest(address, CHUNK_BYTES as usize, &self.hint);
        match (space, u32::try_from(bytes)) {
            (Some(space), Ok(len)) if bytes <= space.len() && self.go.room() > 0 => {
                FrameSink::copy(frame, change, space);
                self.go.put(libc::xdp_desc { addr: address, len, options: 0 });
                true
            }
            _ => {
                self.free.push(address);
                false
            }
        }
    }

    /// Has the kernel send what was put, and what it has not sent before.
    pub(crate) fn send(&mut self) {
        self.go.publish();
        self.is_refused = false;
        self.go_on();
    }

    /// Goes on with what the kernel has not sent yet, and takes back the chunks of what it has. A round of the poll thread has one such
    /// call.
    pub(crate) fn send_rest(&mut self) {
        self.was_asked = false;
        self.is_full = false;
        self.go_on();
    }

    /// Whether the kernel sends what it has refused to. A round asks it once: to ask for each frame would cost a call for each. What it
    /// was given before it refused goes first, however old: that can't be taken back, since a driver without copies reads it at any time.
    #[cold]
    fn sends_again(&mut self) -> bool {
        if !std::mem::replace(&mut self.was_asked, true) {
            self.is_refused = false;
            self.go_on();
        }
        !self.is_refused
    }

    fn go_on(&mut self) {
        if !self.is_full {
            let unsent = || (self.is_unsent() && self.go.needs_wakeup()).then(|| self.unsent());
            let ended = send_while_it_helps(unsent, || send(self.socket.as_fd(), &[], SendFlags::DONTWAIT));
            self.is_full = ended == Ended::Full;
            self.is_refused |= ended == Ended::Refused;
        }
        self.collect();
    }

    fn unsent(&self) -> Unsent {
        Unsent { unconsumed: self.go.unconsumed(), gone: self.gone.ready() }
    }

    fn collect(&mut self) {
        let count = self.gone.ready();
        self.free.extend((0..count).map(|n| self.gone.entry(n)));
        self.gone.advance(count);
        self.gone.publish();
    }
}

/// What shows whether the kernel has sent something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unsent {
    /// Frames that it has not taken.
    unconsumed: u32,
    /// Frames that it is done with.
    gone: u32,
}

/// Why the kernel is called no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// Nothing is left, or the rest has its turn in the next round.
    Enough,
    /// It takes no more now: the socket's buffer or the ring of the NIC is full.
    Full,
    /// It does not send.
    Refused,
}

/// Has `call` call the kernel while that sends something. `unsent` is what is left; absent where there is nothing to call it for. The
/// kernel answers EAGAIN both when it has sent some and when it could send nothing, so the answer alone does not tell.
fn send_while_it_helps(
    mut unsent: impl FnMut() -> Option<Unsent>,
    mut call: impl FnMut() -> Result<usize, Errno>,
) -> Ended {
    let (mut before, mut idle) = (None, 0);
    for _ in 0..CALLS {
        let now = unsent();
        if now.is_none() {
            return Ended::Enough;
        }
        idle = if now == before { idle + 1 } else { 0 };
        if idle >= IDLE_CALLS {
            return Ended::Full;
        }
        before = now;
        match call() {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(Errno::BUSY | Errno::NOBUFS | Errno::INTR) => return Ended::Enough,
            Err(_) => return Ended::Refused,
        }
    }
    Ended::Enough
}

/// Maps all pages of a queue's memory, which are there since it was made the socket's: none is missing when the first frames come.
fn map_all_pages(region: &MappedRegion) {
    let bytes = usize::try_from(region.place().bytes).unwrap_or(0);
    // SAFETY: the mapping is the region's own, whole and alive; nothing in it is changed. Linux before 5.14 does not know the advice: each
    // page is mapped when it is touched then.
    let _ = unsafe { madvise(region.base().cast(), bytes, Advice::LinuxPopulateWrite) };
}

/// Offsets of files are signed in C.
fn of_rx(offset: libc::off_t) -> u64 {
    u64::try_from(offset).unwrap_or(0)
}

/// What lies where in the socket's rings.
fn offsets(socket: &OwnedFd) -> Result<libc::xdp_mmap_offsets, Errno> {
    // SAFETY: all zeroes is a value of a structure of integers.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    read_option(socket, libc::XDP_MMAP_OFFSETS, &mut offsets)?;
    Ok(offsets)
}

/// Reads an option of an AF_XDP socket, all of it.
fn read_option<T: Copy>(socket: &OwnedFd, option: libc::c_int, value: &mut T) -> Result<(), Errno> {
    let whole = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    let mut length = whole;
    let to = (&raw mut *value).cast();
    // SAFETY: the value is writable memory of the length that is told, and of a type that has no invalid values.
    let answer = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, to, &raw mut length) };
    match answer {
        0 if length == whole => Ok(()),
        0 => Err(Errno::INVAL),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

/// What the kernel tells of a queue's socket.
#[derive(Debug)]
pub(crate) struct SocketState {
    /// It is bound to a queue of an interface that is there.
    pub(crate) is_bound: bool,
    /// The driver hands frames over without copying them.
    pub(crate) zero_copy: bool,
    /// Frames that came when the kernel had no room for them.
    pub(crate) lost: u64,
}

/// Asks the kernel for the state of a socket. What it does not tell is 0; a socket is bound unless it says otherwise.
pub(crate) fn state(socket: &OwnedFd) -> SocketState {
    let mut options = libc::xdp_options { flags: 0 };
    let has_options = read_option(socket, libc::XDP_OPTIONS, &mut options).is_ok();
    // SAFETY: all zeroes is a value of a structure of integers.
    let mut counted: libc::xdp_statistics = unsafe { std::mem::zeroed() };
    let _ = read_option(socket, libc::XDP_STATISTICS, &mut counted);
    SocketState {
        is_bound: is_bound(socket),
        zero_copy: has_options && options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0,
        lost: counted.rx_dropped.wrapping_add(counted.rx_ring_full),
    }
}

/// Whether a socket is bound. No option tells it; the kernel's first answer to one that is not, or whose interface is gone, is ENXIO
/// (`xsk_recvmsg`), and a driver without copies answers the same where it has no such socket. Linux before 5.11 always answers EOPNOTSUPP.
fn is_bound(socket: &OwnedFd) -> bool {
    // Nothing is received by it.
    !matches!(recv(socket.as_fd(), &mut [0_u8; 0][..], RecvFlags::DONTWAIT), Err(Errno::NXIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that has so many frames to send, sends `each` of them with a call, and tells of it `late` calls later.
    fn calls_of(frames: u32, each: u32, late: usize) -> (usize, Ended) {
        let taken = std::cell::RefCell::new(vec![0]);
        let told = || taken.borrow().iter().rev().nth(late).copied().unwrap_or(0);
        let unsent = || (told() < frames).then(|| Unsent { unconsumed: frames - told(), gone: 0 });
        let call = || {
            let before = taken.borrow().last().copied().unwrap_or(0);
            taken.borrow_mut().push(frames.min(before + each));
            Err(Errno::AGAIN)
        };
        let ended = send_while_it_helps(unsent, call);
        (taken.into_inner().len() - 1, ended)
    }

    #[test]
    fn a_wire_that_takes_nothing_more_is_found_out_with_two_calls() {
        assert_eq!(calls_of(2_048, 0, 0), (2, Ended::Full));
    }

    #[test]
    fn the_kernel_is_called_until_all_is_sent_also_when_it_tells_late_of_what_it_took() {
        assert_eq!(calls_of(2_048, 32, 0), (64, Ended::Enough));
        assert_eq!(calls_of(2_048, 32, 1), (65, Ended::Enough));
        assert_eq!(calls_of(2_048, 1, 0), (CALLS, Ended::Enough), "the rest has its turn in the next round");
    }

    #[test]
    fn frames_that_the_kernel_is_done_with_show_that_it_sends() {
        let gone = std::cell::Cell::new(0);
        let unsent = || (gone.get() < 96).then(|| Unsent { unconsumed: 96, gone: gone.get() });
        let call = || {
            gone.set(gone.get() + 32);
            Err(Errno::AGAIN)
        };
        assert_eq!(send_while_it_helps(unsent, call), Ended::Enough);
        assert_eq!(gone.get(), 96);
    }

    #[test]
    fn a_kernel_that_is_busy_is_asked_in_the_next_round_and_one_whose_interface_is_down_refuses() {
        for (errno, ended) in
            [(Errno::BUSY, Ended::Enough), (Errno::NOBUFS, Ended::Enough), (Errno::NETDOWN, Ended::Refused)]
        {
            let mut calls = 0;
            let unsent = || Some(Unsent { unconsumed: 1, gone: 0 });
            let call = || {
                calls += 1;
                Err(errno)
            };
            assert_eq!((send_while_it_helps(unsent, call), calls), (ended, 1), "{errno}");
        }
    }
}
