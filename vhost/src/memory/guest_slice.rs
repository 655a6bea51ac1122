//! A piece of guest memory, and the only reads and writes of guest memory that there are.
//!
//! Invariant: a slice's bytes are mapped for its lifetime. Every access is bounded by the slice's length.
//!
//! It never hands out a reference: the guest writes to this memory at any time, so each read may give another value. Whoever decides
//! upon a value reads it once. The copies are memcpy's, which is what vm-memory does too: a byte that the guest changes during a copy
//! arrives old or new.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use super::GuestMemory;

/// A value at any address.
#[repr(C, packed(1))]
struct Unaligned<T: Copy>(T);

/// Some bytes of guest memory, at least one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GuestSlice<'m> {
    start: *mut u8,
    bytes: usize,
    memory: PhantomData<&'m GuestMemory>,
}

impl<'m> GuestSlice<'m> {
    /// The `bytes` bytes from `start`.
    ///
    /// # Safety
    /// They lie in one mapping, readable and writable, that exists for `'m`.
    #[inline]
    pub(super) unsafe fn new(start: *mut u8, bytes: usize) -> GuestSlice<'m> {
        GuestSlice { start, bytes, memory: PhantomData }
    }

    /// How many bytes it has.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// The address of the first byte in this process, for checks of alignment and for tests.
    pub(crate) fn address(&self) -> usize {
        self.start as usize
    }

    /// The slice without its first `bytes` bytes; absent if nothing is left.
    #[inline]
    pub(crate) fn skip(self, bytes: usize) -> Option<GuestSlice<'m>> {
        if bytes >= self.bytes {
            return None;
        }
        // SAFETY: a part of this slice.
        Some(unsafe { GuestSlice::new(self.start.wrapping_add(bytes), self.bytes - bytes) })
    }

    /// Copies as many bytes as both have out to `to`, and answers how many those are.
    #[inline]
    pub(crate) fn read(&self, to: &mut [u8]) -> usize {
        let bytes = self.bytes.min(to.len());
        // SAFETY: both sides have `bytes` bytes; `to` is memory of ours alone, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(self.start, to.as_mut_ptr(), bytes) };
        bytes
    }

    /// Copies as many bytes as both have in from `from`, and answers how many those are.
    #[inline]
    pub(crate) fn write(&self, from: &[u8]) -> usize {
        let bytes = self.bytes.min(from.len());
        // SAFETY: both sides have `bytes` bytes; `from` is memory of ours alone, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.start, bytes) };
        bytes
    }

    /// Copies as many bytes as both have in from another piece of guest memory, and answers how many those are.
    #[inline]
    pub(crate) fn copy_from(&self, from: &GuestSlice<'_>) -> usize {
        let bytes = self.bytes.min(from.bytes);
        // SAFETY: both sides have `bytes` mapped bytes. memmove, since nobody promises that they do not overlap.
        unsafe { std::ptr::copy(from.start, self.start, bytes) };
        bytes
    }

    /// Asks the processor to fetch the slice's first cache line.
    #[inline]
    pub(crate) fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch has no effect on memory and cannot fault.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(self.start.cast())
        };
    }

    /// The 16-bit integer at byte `offset`, with the given ordering. `None` outside the slice or off its alignment.
    #[inline]
    pub(crate) fn load_u16(&self, offset: usize, ordering: Ordering) -> Option<u16> {
        self.u16_at(offset).map(|cell| cell.load(ordering))
    }

    /// Stores a 16-bit integer at byte `offset`; does nothing outside the slice or off its alignment.
    #[inline]
    pub(crate) fn store_u16(&self, offset: usize, value: u16, ordering: Ordering) {
        if let Some(cell) = self.u16_at(offset) {
            cell.store(value, ordering);
        }
    }

    #[inline]
    fn u16_at(&self, offset: usize) -> Option<&AtomicU16> {
        let at = self.start.wrapping_add(offset).cast::<u16>();
        if offset.checked_add(2)? > self.bytes || !at.is_aligned() {
            return None;
        }
        // SAFETY: two aligned bytes inside the slice, mapped for its lifetime. The guest reads and writes them as atomic integers too.
        Some(unsafe { AtomicU16::from_ptr(at) })
    }

    /// The value of type `T` at byte `offset`, read once; `None` outside the slice.
    #[inline]
    pub(crate) fn load<T: vm_memory::ByteValued>(&self, offset: usize) -> Option<T> {
        if offset.checked_add(size_of::<T>())? > self.bytes {
            return None;
        }
        let at = self.start.wrapping_add(offset).cast::<Unaligned<T>>();
        // SAFETY: the bytes lie inside the slice, `Unaligned` asks for no alignment, and `ByteValued` types are valid whatever their
        // bytes are. Volatile: the compiler must not read a second time what the guest may have changed.
        Some(unsafe { at.read_volatile() }.0)
    }

    /// Stores `value` at byte `offset`; does nothing outside the slice.
    #[inline]
    pub(crate) fn store<T: vm_memory::ByteValued>(&self, offset: usize, value: T) {
        if offset.checked_add(size_of::<T>()).is_some_and(|end| end <= self.bytes) {
            let at = self.start.wrapping_add(offset).cast::<Unaligned<T>>();
            // SAFETY: the bytes lie inside the slice, and `Unaligned` asks for no alignment.
            unsafe { at.write_volatile(Unaligned(value)) };
        }
    }
}

/// A piece of guest memory that keeps its mapping by itself.
#[derive(Debug)]
pub(crate) struct KeptSlice {
    start: *mut u8,
    bytes: usize,
    memory: Arc<GuestMemory>,
}

// SAFETY: the address is not bound to a thread, and `memory` is `Send` and `Sync`.
unsafe impl Send for KeptSlice {}

impl KeptSlice {
    /// The `bytes` bytes at a virtual address of the frontend; absent if they do not lie in one region.
    pub(crate) fn at_user(memory: &Arc<GuestMemory>, address: u64, bytes: usize) -> Option<KeptSlice> {
        let slice = memory.at_user(address, bytes)?;
        Some(KeptSlice { start: slice.start, bytes: slice.bytes, memory: Arc::clone(memory) })
    }

    /// The slice, for as long as this is borrowed.
    #[inline]
    pub(crate) fn get(&self) -> GuestSlice<'_> {
        // SAFETY: made of a slice of `self.memory`, which keeps the mapping.
        unsafe { GuestSlice::new(self.start, self.bytes) }
    }

    /// The memory that it is a piece of.
    pub(crate) fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }
}
