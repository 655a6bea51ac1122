//! One ring that is shared with the kernel (`Documentation/networking/af_xdp.rst`): two indices, flags, entries.
//!
//! Invariant: the mapping has all [`RING_ENTRIES`] entries and lives as long as the ring. Either side writes its own index only.

use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fairlead_host::uplink::RING_ENTRIES;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A ring with entries of type `T`, of which this side is the producer or the consumer.
#[derive(Debug)]
pub(super) struct XskRing<T> {
    /// Where the mapping begins.
    start: *mut u8,
    _mapping: Arc<Mapping>,
    /// Where our index, the kernel's and the flags lie, in bytes from the start.
    own: usize,
    kernel: usize,
    flags: usize,
    entries: usize,
    /// Our index, which the kernel may not have been told yet.
    index: u32,
    entry: PhantomData<T>,
}

// SAFETY: the mapping is not bound to a thread, and its other side belongs to the kernel, or to another thread in a test.
unsafe impl<T: Send> Send for XskRing<T> {}

/// Memory that is mapped until this is dropped.
#[derive(Debug)]
struct Mapping {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: a mapping is not bound to a thread.
unsafe impl Send for Mapping {}
// SAFETY: nothing reads or writes the memory by a shared reference to this; what its rings do is said at each of them.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: whoever made this has just mapped it, and no ring lies in it any more.
        let _ = unsafe { munmap(self.start.cast(), self.bytes) };
    }
}

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
        XskRing::in_mapping(offsets, side, |bytes| {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::POPULATE;
            // SAFETY: a new mapping, at an address that the kernel chooses. The kernel refuses to map more than the ring has.
            let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, flags, socket, page_offset) }?;
            Ok(Arc::new(Mapping { start: start.cast(), bytes }))
        })
    }

    /// A ring in what `map` maps, of as many bytes as it is told.
    fn in_mapping(
        offsets: &libc::xdp_ring_offset,
        side: Side,
        map: impl FnOnce(usize) -> Result<Arc<Mapping>, Errno>,
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
        let mapping = map(entries + RING_ENTRIES as usize * size_of::<T>())?;
        let (start, index, entry) = (mapping.start, 0, PhantomData);
        let mut ring = XskRing { start, _mapping: mapping, own, kernel, flags, entries, index, entry };
        ring.index = ring.word(own).load(Ordering::Relaxed);
        Ok(ring)
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        let at = self.start.wrapping_add(offset).cast::<u32>();
        // SAFETY: `in_mapping` has checked that the offset is aligned and lies before the entries, inside the mapping, which lives as long as
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

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::mm::mmap_anonymous;

    use super::*;

    const OFFSETS: libc::xdp_ring_offset =
        libc::xdp_ring_offset { producer: 0, consumer: 64, desc: 192, flags: 128 };

    /// Both sides of one ring, whose indices are about to wrap.
    fn both_sides() -> [XskRing<libc::xdp_desc>; 2] {
        let bytes = 192 + RING_ENTRIES as usize * size_of::<libc::xdp_desc>();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE) };
        let mapping = Arc::new(Mapping { start: start.unwrap().cast(), bytes });
        for index in [0, 64] {
            let at = mapping.start.wrapping_add(index).cast::<u32>();
            // SAFETY: an aligned place in the mapping, which nobody else has yet.
            unsafe { at.write(u32::MAX - 50) };
        }
        [Side::Producer, Side::Consumer].map(|side| {
            let map = |wanted| {
                assert_eq!(wanted, bytes);
                Ok(Arc::clone(&mapping))
            };
            XskRing::in_mapping(&OFFSETS, side, map).unwrap()
        })
    }

    fn descriptor(number: u32) -> libc::xdp_desc {
        libc::xdp_desc { addr: u64::from(number) << 32, len: number, options: !number }
    }

    #[test]
    fn what_one_side_puts_in_the_other_takes_out_in_order_and_whole() {
        const COUNT: u32 = if cfg!(miri) { 300 } else { 300_000 };
        let [mut producer, mut consumer] = both_sides();
        let producing = thread::spawn(move || {
            for number in 0..COUNT {
                while producer.room() == 0 {
                    thread::yield_now();
                }
                producer.put(descriptor(number));
                producer.publish();
            }
        });
        let mut number = 0;
        while number < COUNT {
            let ready = consumer.ready();
            for ahead in 0..ready {
                let (came, sent) = (consumer.entry(ahead), descriptor(number));
                assert_eq!((came.addr, came.len, came.options), (sent.addr, sent.len, sent.options));
                number += 1;
            }
            consumer.advance(ready);
            consumer.publish();
            if ready == 0 {
                thread::yield_now();
            }
        }
        producing.join().unwrap();
        assert_eq!(consumer.ready(), 0);
    }

    #[test]
    fn a_full_ring_has_no_room_until_the_other_side_has_taken_something() {
        let [mut producer, mut consumer] = both_sides();
        for number in 0..RING_ENTRIES {
            assert_eq!(producer.room(), RING_ENTRIES - number);
            producer.put(descriptor(number));
        }
        assert_eq!((producer.room(), consumer.ready()), (0, 0), "nothing is published yet");
        producer.publish();
        assert_eq!((producer.unconsumed(), consumer.ready()), (RING_ENTRIES, RING_ENTRIES));
        consumer.advance(3);
        consumer.publish();
        assert_eq!(producer.room(), 3);
    }

    #[test]
    fn places_outside_the_first_page_or_off_their_alignment_are_refused() {
        let wrong = [
            libc::xdp_ring_offset { producer: 4_096, ..OFFSETS },
            libc::xdp_ring_offset { consumer: 2, ..OFFSETS },
            libc::xdp_ring_offset { flags: u64::MAX - 3, ..OFFSETS },
            libc::xdp_ring_offset { desc: 4, ..OFFSETS },
        ];
        for offsets in wrong {
            let map = |_| panic!("nothing is mapped");
            let ring = XskRing::<libc::xdp_desc>::in_mapping(&offsets, Side::Consumer, map);
            assert_eq!(ring.err(), Some(Errno::INVAL), "{offsets:?}");
        }
    }
}
