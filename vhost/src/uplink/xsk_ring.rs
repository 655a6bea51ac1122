//! One ring that is shared with the kernel (`Documentation/networking/af_xdp.rst`): two indices, flags, entries.
//!
//! Invariant: the mapping has all [`RING_ENTRIES`] entries and lives as long as the ring. Either side writes its own index only.

use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};

use fairlead_host::uplink::RING_ENTRIES;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A ring with entries of type `T`, of which this side is the producer or the consumer.
#[derive(Debug)]
pub(super) struct XskRing<T> {
    start: *mut u8,
    bytes: usize,
    /// Where our index, the kernel's and the flags lie, in bytes from the start.
    own: usize,
    kernel: usize,
    flags: usize,
    entries: usize,
    /// Our index, which the kernel may not have been told yet.
    index: u32,
    entry: PhantomData<T>,
}

// SAFETY: the mapping is not bound to a thread, and nobody else in this process has it.
unsafe impl<T: Send> Send for XskRing<T> {}

/// Which side of a ring this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// It puts entries in.
    Producer,
    /// It takes entries out.
    Consumer,
}

impl<T: Copy> XskRing<T> {
    /// Maps a ring of `socket`, which has [`RING_ENTRIES`] entries, at `page_offset`, where `offsets` tells what lies where.
    pub(super) fn map(
        socket: impl AsFd,
        page_offset: u64,
        offsets: &libc::xdp_ring_offset,
        side: Side,
    ) -> Result<XskRing<T>, Errno> {
        let place = |offset: u64, size: usize| {
            let offset = usize::try_from(offset).ok()?;
            (offset.is_multiple_of(size) && offset < 4_096).then_some(offset)
        };
        let (producer, consumer) = (place(offsets.producer, 4), place(offsets.consumer, 4));
        let (own, kernel) = match side {
            Side::Producer => (producer, consumer),
            Side::Consumer => (consumer, producer),
        };
        let (Some(own), Some(kernel), Some(flags), Some(entries)) =
            (own, kernel, place(offsets.flags, 4), place(offsets.desc, align_of::<T>()))
        else {
            return Err(Errno::INVAL);
        };
        // The kernel refuses to map more than the ring has.
        let bytes = entries + RING_ENTRIES as usize * size_of::<T>();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags_of_map = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, flags_of_map, socket, page_offset) }?;
        let mut ring =
            XskRing { start: start.cast(), bytes, own, kernel, flags, entries, index: 0, entry: PhantomData };
        ring.index = ring.word(own).load(Ordering::Relaxed);
        Ok(ring)
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        let at = self.start.wrapping_add(offset).cast::<u32>();
        // SAFETY: `map` has checked that the offset is aligned and lies before the entries, inside the mapping, which lives as long as
        // `self`. The kernel reads and writes it as an atomic integer too.
        unsafe { AtomicU32::from_ptr(at) }
    }

    fn at(&self, ahead: u32) -> *mut T {
        let slot = self.index.wrapping_add(ahead) & (RING_ENTRIES - 1);
        self.start.wrapping_add(self.entries + slot as usize * size_of::<T>()).cast()
    }

    /// A consumer: how many entries are there to take.
    #[inline]
    pub(super) fn ready(&self) -> u32 {
        self.word(self.kernel).load(Ordering::Acquire).wrapping_sub(self.index).min(RING_ENTRIES)
    }

    /// A producer: how many entries there is room for.
    #[inline]
    pub(super) fn room(&self) -> u32 {
        RING_ENTRIES - self.unconsumed()
    }

    /// A producer: how many entries the kernel has not taken yet.
    #[inline]
    pub(super) fn unconsumed(&self) -> u32 {
        let taken = self.word(self.kernel).load(Ordering::Acquire);
        self.index.wrapping_sub(taken).min(RING_ENTRIES)
    }

    /// The entry that is `ahead` entries from the next. A consumer has asked [`XskRing::ready`] for it.
    #[inline]
    pub(super) fn entry(&self, ahead: u32) -> T {
        // SAFETY: the slot is below the ring's size, so inside the mapping, and aligned; every bit pattern is a value of the integers of
        // which both types of entries are made. The kernel does not write it before it is released.
        unsafe { self.at(ahead).read_volatile() }
    }

    /// Puts an entry in, for which there is room. The kernel sees it with the next [`XskRing::publish`].
    #[inline]
    pub(super) fn put(&mut self, entry: T) {
        // SAFETY: as in `entry`; the kernel does not read it before it is published.
        unsafe { self.at(0).write_volatile(entry) };
        self.index = self.index.wrapping_add(1);
    }

    /// Takes so many entries out. The kernel sees it with the next [`XskRing::publish`].
    #[inline]
    pub(super) fn advance(&mut self, entries: u32) {
        self.index = self.index.wrapping_add(entries);
    }

    /// Tells the kernel our index.
    #[inline]
    pub(super) fn publish(&self) {
        self.word(self.own).store(self.index, Ordering::Release);
    }

    /// The kernel sleeps, and wants a call.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.word(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

impl<T> Drop for XskRing<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` has made, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.start.cast(), self.bytes) };
    }
}
