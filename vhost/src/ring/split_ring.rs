//! One split virtqueue: taking what the guest made available, giving back what was used.
//!
//! Invariants: the three areas lie whole in mapped memory, aligned as virtio demands, for as long as the ring exists. `taken` never
//! passes the guest's index; what was used is published once for a burst, in the order in which it was taken (VIRTIO_F_IN_ORDER).

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::layout::{
    AVAIL_NO_INTERRUPT, DESCRIPTOR_BYTES, Descriptor, FLAGS_OFFSET, INDEX_OFFSET, INDIRECT, NEXT,
    USED_NO_NOTIFY, UsedElement, area_bytes, available_entry, used_entry,
};
use super::{CallTimes, Caller, GuestEvent, RingFault};
use crate::memory::{GuestMemory, GuestSlice, KeptSlice, RegionHint};
use crate::offload::Offloads;
use crate::wake_fence::Fenced;

/// Where a ring lies: virtual addresses of the frontend (SET_VRING_ADDR).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RingPlace {
    /// The number of entries: a power of two, 1 to 32,768.
    pub(crate) size: u16,
    /// The table of descriptors, 16-byte aligned.
    pub(crate) descriptors: u64,
    /// The available ring, 2-byte aligned.
    pub(crate) available: u64,
    /// The used ring, 4-byte aligned.
    pub(crate) used: u64,
}

/// What was agreed on and concerns a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RingFeatures {
    /// VIRTIO_F_EVENT_IDX: kicks and calls are asked for by index.
    pub(crate) event_idx: bool,
    /// VIRTIO_F_INDIRECT_DESC.
    pub(crate) indirect: bool,
    /// VIRTIO_NET_F_MRG_RXBUF: a frame may fill several buffers.
    pub(crate) mergeable: bool,
    /// The bytes of the header before each frame: 12, or 10 for a legacy guest without mergeable buffers.
    pub(crate) header: usize,
    /// What the guest may leave to be done to frames that it sends.
    pub(crate) sends: Offloads,
    /// What may be left to the guest in frames that it gets.
    pub(crate) gets: Offloads,
}

/// The most entries that are read ahead, and the most frames that are taken from one ring before the next ring's turn.
pub(super) const BURST: u16 = 32;

/// More bytes than this are fetched from memory while the frame before is copied.
pub(super) const LONG: usize = 256;
/// The most bytes that are.
pub(super) const MOST_FETCHED: usize = 2048;

/// An entry of the available ring: where its chain begins, and the descriptor there.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Entry {
    pub(super) head: u16,
    pub(super) descriptor: Descriptor,
}

/// A ring that is at work.
#[derive(Debug)]
pub(crate) struct SplitRing {
    descriptors: KeptSlice,
    available: KeptSlice,
    used: KeptSlice,
    size: u16,
    features: RingFeatures,
    /// Entries of the available ring that were taken, modulo 2¹⁶.
    taken: u16,
    /// The guest's index when it was last read, never behind `read_until`.
    seen: Cell<u16>,
    /// Entries that were read before their turn, each at its index modulo [`BURST`]: those from `taken` to `read_until`.
    read: [Entry; BURST as usize],
    /// The index behind the last of them, never more than [`BURST`] from `taken`, nor behind it.
    read_until: u16,
    /// Entries of the used ring that were written, modulo 2¹⁶.
    used_index: u16,
    /// How many of those the guest was told.
    published: u16,
    /// How many it had been told when its wish for calls was looked at last.
    called: u16,
    /// The guest was called since `call` is what it is.
    has_called: bool,
    call: Option<Arc<GuestEvent>>,
    hint: RegionHint,
}

impl SplitRing {
    /// A ring at `place`, which goes on where the used ring ends: DPDK's frontend sends SET_VRING_BASE 0 for a ring that was at work
    /// when it reconnects, and a frontend that starts afresh has zeroed its ring.
    ///
    /// Absent if an area is not whole in one region of `memory`, or not aligned.
    pub(crate) fn new(
        memory: &Arc<GuestMemory>,
        place: RingPlace,
        features: RingFeatures,
        call: Option<Arc<GuestEvent>>,
    ) -> Option<SplitRing> {
        let (descriptors, available, used) = area_bytes(usize::from(place.size));
        let area = |address, bytes, alignment| {
            let slice = KeptSlice::at_user(memory, address, bytes)?;
            (slice.get().address() % alignment == 0).then_some(slice)
        };
        let used = area(place.used, used, 4)?;
        let index = used.get().load_u16(INDEX_OFFSET, Ordering::Acquire)?;
        let ring = SplitRing {
            descriptors: area(place.descriptors, descriptors, DESCRIPTOR_BYTES)?,
            available: area(place.available, available, 2)?,
            used,
            size: place.size,
            features,
            taken: index,
            seen: Cell::new(index),
            read: [Entry::default(); BURST as usize],
            read_until: index,
            used_index: index,
            published: index,
            called: index,
            has_called: false,
            call,
            hint: RegionHint::default(),
        };
        ring.ask_for_kicks(false);
        place.size.is_power_of_two().then_some(ring)
    }

    /// What was agreed on.
    #[inline]
    pub(crate) fn features(&self) -> RingFeatures {
        self.features
    }

    /// The guest's memory.
    #[inline]
    pub(crate) fn memory(&self) -> &Arc<GuestMemory> {
        self.descriptors.memory()
    }

    /// The region of the last look-up.
    #[inline]
    pub(super) fn hint(&self) -> &RegionHint {
        &self.hint
    }

    /// The index at which the next entry would be taken: what GET_VRING_BASE answers.
    #[inline]
    pub(crate) fn position(&self) -> u16 {
        self.taken
    }

    /// From now on the guest is called by `call`, or not at all.
    pub(crate) fn set_call(&mut self, call: Option<Arc<GuestEvent>>) {
        (self.call, self.has_called) = (call, false);
    }

    /// How many entries are there to take, at least `wanted` if the guest has made so many available.
    ///
    /// # Errors
    /// [`RingFault::IndexJump`] if the guest's index is more than a ring ahead.
    #[inline(always)]
    pub(super) fn ready(&self, wanted: u16) -> Result<u16, RingFault> {
        let known = self.seen.get().wrapping_sub(self.taken);
        if known >= wanted {
            return Ok(known);
        }
        let index = self.available.get().load_u16(INDEX_OFFSET, Ordering::Acquire).unwrap_or(self.taken);
        let ahead = index.wrapping_sub(self.taken);
        if ahead > self.size {
            return Err(RingFault::IndexJump { index, ahead, taken: self.taken, size: self.size });
        }
        if ahead < known {
            // What was made available once stays so: it may have been read already. No driver goes back.
            return Ok(known);
        }
        self.seen.set(index);
        Ok(ahead)
    }

    /// True if there is an entry to take. A broken index counts as one: taking finds it out.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.ready(1) != Ok(0)
    }

    /// Reads up to `wanted` entries (at most [`BURST`]) from the next on, each once, and answers how many are there to take. `fetch` is told
    /// the memory of those that are a single buffer. An entry that is broken is left for the one who takes it, with all behind it.
    ///
    /// # Errors
    /// As [`SplitRing::ready`].
    #[inline]
    pub(super) fn read_ahead(
        &mut self,
        wanted: u16,
        fetch: impl Fn(GuestSlice<'_>),
    ) -> Result<u16, RingFault> {
        let wanted = wanted.min(BURST);
        let count = self.ready(wanted)?.min(wanted);
        self.read_known(count, fetch);
        Ok(count)
    }

    /// The same of those that are known to be there: nothing is asked of the guest.
    #[inline]
    pub(super) fn read_ahead_of_known(&mut self, fetch: impl Fn(GuestSlice<'_>)) {
        let known = self.seen.get().wrapping_sub(self.taken);
        self.read_known(known.min(BURST), fetch);
    }

    #[inline]
    fn read_known(&mut self, count: u16, fetch: impl Fn(GuestSlice<'_>)) {
        for ahead in self.read_until.wrapping_sub(self.taken)..count {
            let Ok(entry) = self.read_entry(self.taken.wrapping_add(ahead)) else { break };
            let Descriptor { address, length, flags, .. } = entry.descriptor;
            if flags & (NEXT | INDIRECT) == 0
                && let Some(buffer) = self.memory().at_guest(address, length as usize, &self.hint)
            {
                fetch(buffer);
            }
            self.read[usize::from(self.read_until % BURST)] = entry;
            self.read_until = self.read_until.wrapping_add(1);
        }
    }

    /// True if the next entry was read already.
    #[inline]
    pub(super) fn has_read_ahead(&self) -> bool {
        self.read_until != self.taken
    }

    /// The entry at `index` of the available ring, as it was read ahead, or else read now. The caller has asked [`SplitRing::ready`].
    #[inline(always)]
    pub(super) fn entry(&self, index: u16) -> Result<Entry, RingFault> {
        match self.entry_in_advance(index) {
            Some(entry) => Ok(entry),
            None => self.read_entry(index),
        }
    }

    /// The entry at `index`, if it was read ahead.
    #[inline(always)]
    pub(super) fn entry_in_advance(&self, index: u16) -> Option<Entry> {
        let ahead = index.wrapping_sub(self.taken);
        let was_read = ahead < self.read_until.wrapping_sub(self.taken);
        was_read.then(|| self.read[usize::from(index % BURST)])
    }

    #[inline]
    fn read_entry(&self, index: u16) -> Result<Entry, RingFault> {
        let head = self.head(index.wrapping_sub(self.taken))?;
        Ok(Entry { head, descriptor: self.descriptor(head)? })
    }

    /// The first descriptor of the chain that is `ahead` entries from the next. The caller has asked [`SplitRing::ready`].
    #[inline]
    pub(super) fn head(&self, ahead: u16) -> Result<u16, RingFault> {
        let slot = usize::from(self.taken.wrapping_add(ahead) & (self.size - 1));
        let head =
            self.available.get().load_u16(available_entry(slot), Ordering::Relaxed).unwrap_or(u16::MAX);
        if head < self.size { Ok(head) } else { Err(self.no_such(head)) }
    }

    /// Descriptor `index` of the ring's table, read once.
    #[inline]
    pub(super) fn descriptor(&self, index: u16) -> Result<Descriptor, RingFault> {
        let offset = usize::from(index) * DESCRIPTOR_BYTES;
        self.descriptors.get().load(offset).ok_or_else(|| self.no_such(index))
    }

    #[cold]
    fn no_such(&self, index: u16) -> RingFault {
        RingFault::NoSuchDescriptor { index, size: usize::from(self.size) }
    }

    /// Takes the next entry, whose chain begins at `head`, and gives it back with `length` bytes written. The guest is not told yet.
    #[inline(always)]
    pub(super) fn use_next(&mut self, head: u16, length: u32) {
        let slot = usize::from(self.used_index & (self.size - 1));
        self.used.get().store(used_entry(slot), UsedElement { id: u32::from(head), length }.as_number());
        self.used_index = self.used_index.wrapping_add(1);
        if self.read_until == self.taken {
            self.read_until = self.read_until.wrapping_add(1);
        }
        self.taken = self.taken.wrapping_add(1);
    }

    /// Tells the guest what was used since the last time. After that [`SplitRing::call`] is owed.
    #[inline]
    pub(crate) fn announce(&mut self) {
        if self.used_index != self.published {
            self.used.get().store_u16(INDEX_OFFSET, self.used_index, Ordering::Release);
            self.published = self.used_index;
        }
    }

    /// Calls the guest if it asked for that and was told of something since the last time. `times` are its port's.
    ///
    /// The guest writes its wish and then looks at the used index; we write the index and then look at the wish (2.7.7.2), with a fence
    /// between the two.
    ///
    /// # Errors
    /// [`RingFault::CallBlocks`], [`RingFault::CallsTakeLong`].
    #[inline]
    pub(crate) fn call(
        &mut self,
        caller: &Caller,
        times: &mut CallTimes,
        _: Fenced,
    ) -> Result<(), RingFault> {
        let before = std::mem::replace(&mut self.called, self.published);
        let Some(call) = self.call.as_ref().filter(|_| before != self.published) else { return Ok(()) };
        // The first time without a look at its wish: a call before may have gone to nobody, or to an eventfd that the guest has put aside, and
        // with the event index it would not ask again.
        let is_first = !std::mem::replace(&mut self.has_called, true);
        if is_first || self.wants_call(before) { caller.call(call, times) } else { Ok(()) }
    }

    /// Both, of one ring.
    ///
    /// # Errors
    /// As [`SplitRing::call`].
    #[cfg(test)]
    pub(crate) fn publish(&mut self, caller: &Caller) -> Result<(), RingFault> {
        self.announce();
        self.call(caller, &mut CallTimes::default(), Fenced::now())
    }

    fn wants_call(&self, before: u16) -> bool {
        let available = self.available.get();
        if self.features.event_idx {
            let offset = available_entry(usize::from(self.size));
            let event = available.load_u16(offset, Ordering::Relaxed).unwrap_or(0);
            // 2.7.10: true if the index passed `event` since `before`.
            self.published.wrapping_sub(event).wrapping_sub(1) < self.published.wrapping_sub(before)
        } else {
            available.load_u16(FLAGS_OFFSET, Ordering::Relaxed).unwrap_or(0) & AVAIL_NO_INTERRUPT == 0
        }
    }

    /// Asks the guest to kick when it makes something available, or not to. After asking, and a fence, the caller looks once more.
    pub(crate) fn ask_for_kicks(&self, wanted: bool) {
        let used = self.used.get();
        if !self.features.event_idx {
            let flags = if wanted { 0 } else { USED_NO_NOTIFY };
            used.store_u16(FLAGS_OFFSET, flags, Ordering::Relaxed);
        } else if wanted {
            used.store_u16(FLAGS_OFFSET, 0, Ordering::Relaxed);
            used.store_u16(used_entry(usize::from(self.size)), self.taken, Ordering::Relaxed);
        }
        // Event index, no kicks wanted: the old index stays, which the guest passes again after 65,536 entries at the earliest.
    }
}
