//! From a chain of descriptors to the guest memory that it names (virtio 1.2, sections 2.7.5 and 2.7.5.3).
//!
//! Invariant: no more than [`MAX_CHAIN`] descriptors are read for one frame, so that a loop ends; and every piece lies in mapped
//! memory.

use super::layout::{DESCRIPTOR_BYTES, Descriptor, INDIRECT, NEXT, WRITE};
use super::ring_fault::MAX_CHAIN;
use super::{RingFault, SplitRing};
use crate::memory::{GuestMemory, GuestSlice};

/// The most pieces of one frame's chains: each is a search among the regions.
const MAX_PIECES: usize = 4 * MAX_CHAIN;

/// Who uses the buffers of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// The device reads them: a frame that the guest sent.
    Read,
    /// The device writes them: room for a frame.
    Write,
}

/// The pieces of one or several chains, in order.
#[derive(Debug, Default)]
pub(super) struct Pieces<'m> {
    pub(super) slices: Vec<GuestSlice<'m>>,
    /// The bytes of all of them.
    pub(super) bytes: usize,
    descriptors: usize,
}

impl<'m> Pieces<'m> {
    pub(super) fn clear(&mut self) {
        self.slices.clear();
        (self.bytes, self.descriptors) = (0, 0);
    }

    /// How many descriptors there are.
    pub(super) fn descriptors(&self) -> usize {
        self.descriptors
    }

    /// Adds the chain that begins at `head` of `ring`'s table.
    pub(super) fn add_chain(
        &mut self,
        ring: &SplitRing,
        memory: &'m GuestMemory,
        head: u16,
        direction: Direction,
    ) -> Result<(), RingFault> {
        let mut descriptor = ring.descriptor(head)?;
        loop {
            if descriptor.flags & INDIRECT != 0 {
                return self.add_indirect(ring, memory, descriptor, direction);
            }
            self.add_buffer(ring, memory, descriptor, direction)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(());
            }
            descriptor = ring.descriptor(descriptor.next)?;
        }
    }

    /// Adds the chain in the table that `descriptor` names: it begins at the table's first entry.
    fn add_indirect(
        &mut self,
        ring: &SplitRing,
        memory: &'m GuestMemory,
        descriptor: Descriptor,
        direction: Direction,
    ) -> Result<(), RingFault> {
        let Descriptor { address, length, flags, .. } = descriptor;
        if !ring.features().indirect || flags & NEXT != 0 {
            return Err(RingFault::MisplacedIndirect);
        }
        let bytes = length as usize;
        if bytes == 0 || !bytes.is_multiple_of(DESCRIPTOR_BYTES) {
            return Err(RingFault::IndirectLength(length));
        }
        let table = memory.whole_at_guest(address, bytes, ring.hint());
        let table = table.ok_or(RingFault::Outside { address, length })?;
        let mut index = 0;
        loop {
            let entry: Descriptor = table
                .load(usize::from(index) * DESCRIPTOR_BYTES)
                .ok_or(RingFault::NoSuchDescriptor { index, size: bytes / DESCRIPTOR_BYTES })?;
            if entry.flags & INDIRECT != 0 {
                return Err(RingFault::MisplacedIndirect);
            }
            self.add_buffer(ring, memory, entry, direction)?;
            if entry.flags & NEXT == 0 {
                return Ok(());
            }
            index = entry.next;
        }
    }

    /// Adds one buffer, in as many pieces as there are regions under it.
    fn add_buffer(
        &mut self,
        ring: &SplitRing,
        memory: &'m GuestMemory,
        descriptor: Descriptor,
        direction: Direction,
    ) -> Result<(), RingFault> {
        let Descriptor { mut address, length, .. } = descriptor;
        self.descriptors += 1;
        if self.descriptors > MAX_CHAIN {
            return Err(RingFault::LongChain);
        }
        if (descriptor.flags & WRITE != 0) != (direction == Direction::Write) {
            return Err(RingFault::Direction);
        }
        let mut left = length as usize;
        while left > 0 {
            let outside = RingFault::Outside { address, length };
            let slice = memory.at_guest(address, left, ring.hint()).ok_or(outside)?;
            left -= slice.len();
            self.bytes += slice.len();
            // A region does not wrap: the sum is at most its end.
            address = address.wrapping_add(slice.len() as u64);
            if self.slices.len() >= MAX_PIECES {
                return Err(RingFault::LongChain);
            }
            self.slices.push(slice);
        }
        Ok(())
    }
}

/// The memory of a chain that is a single buffer in a single region, the usual case; absent for all others, broken ones included.
#[inline(always)]
pub(super) fn single_buffer<'m>(
    ring: &SplitRing,
    memory: &'m GuestMemory,
    descriptor: Descriptor,
    direction: Direction,
) -> Option<GuestSlice<'m>> {
    let expected = if direction == Direction::Write { WRITE } else { 0 };
    if descriptor.flags & (NEXT | INDIRECT | WRITE) != expected {
        return None;
    }
    memory.whole_at_guest(descriptor.address, descriptor.length as usize, ring.hint())
}
