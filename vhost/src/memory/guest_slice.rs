//! A piece of guest memory, and the only reads and writes of guest memory that there are.
//!
//! Invariant: a slice's bytes are mapped for its lifetime. Every access is bounded by the slice's length.
//!
//! It never hands out a reference: the guest writes to this memory at any time, so each read may give another value. Whoever decides
//! upon a value reads it once. The copies are memcpy's, which is what vm-memory does too: a byte that the guest changes during a copy
//! arrives old or new.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use super::GuestMemory;

/// The bytes of a cache line, of all processors that matter here.
pub(crate) const CACHE_LINE: usize = 64;

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

    /// Bytes of this process' own, which nobody else has meanwhile; absent if there are none.
    pub(crate) fn of_bytes(bytes: &'m mut [u8]) -> Option<GuestSlice<'m>> {
        // SAFETY: they are borrowed for `'m`, and from nobody else.
        (!bytes.is_empty()).then(|| unsafe { GuestSlice::new(bytes.as_mut_ptr(), bytes.len()) })
    }

    /// The same of bytes of which some may not be written yet.
    #[inline]
    pub(crate) fn of_own(bytes: &'m mut [MaybeUninit<u8>]) -> Option<GuestSlice<'m>> {
        // SAFETY: as above.
        (!bytes.is_empty()).then(|| unsafe { GuestSlice::new(bytes.as_mut_ptr().cast(), bytes.len()) })
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

    /// The slice's first `bytes` bytes, as many as it has; absent if those are none.
    #[inline]
    pub(crate) fn until(self, bytes: usize) -> Option<GuestSlice<'m>> {
        if bytes == 0 {
            return None;
        }
        // SAFETY: a part of this slice.
        Some(unsafe { GuestSlice::new(self.start, self.bytes.min(bytes)) })
    }

    /// Copies as many bytes as both have out to `to`, and answers how many those are.
    #[inline]
    pub(crate) fn read(&self, to: &mut [u8]) -> usize {
        #[cfg(feature = "fuzzing")]
        super::fuzzed_reads::before_read();
        let bytes = self.bytes.min(to.len());
        // SAFETY: both sides have `bytes` bytes; `to` is memory of ours alone, so they do not overlap.
        unsafe { short_copy(self.start, to.as_mut_ptr(), bytes) };
        bytes
    }

    /// The same into memory that holds nothing yet; answers what was copied.
    #[inline(always)]
    pub(crate) fn read_to<'t>(&self, to: &'t mut [MaybeUninit<u8>]) -> &'t [u8] {
        let bytes = self.bytes.min(to.len());
        // SAFETY: both sides have `bytes` bytes; `to` is memory of ours alone, so they do not overlap.
        unsafe { short_copy(self.start, to.as_mut_ptr().cast(), bytes) };
        // SAFETY: these bytes were just written, and are borrowed as long as the answer is.
        unsafe { std::slice::from_raw_parts(to.as_ptr().cast(), bytes) }
    }

    /// Copies as many bytes as both have in from `from`, and answers how many those are.
    #[inline]
    pub(crate) fn write(&self, from: &[u8]) -> usize {
        let bytes = self.bytes.min(from.len());
        // SAFETY: both sides have `bytes` bytes; `from` is memory of ours alone, so they do not overlap.
        unsafe { short_copy(from.as_ptr(), self.start, bytes) };
        bytes
    }

    /// Copies as many bytes as both have in from another piece of guest memory, and answers how many those are.
    #[inline]
    pub(crate) fn copy_from(&self, from: &GuestSlice<'_>) -> usize {
        #[cfg(feature = "fuzzing")]
        super::fuzzed_reads::before_read();
        let bytes = self.bytes.min(from.bytes);
        // SAFETY: both sides have `bytes` mapped bytes. memmove, since nobody promises that they do not overlap.
        unsafe { std::ptr::copy(from.start, self.start, bytes) };
        bytes
    }

    /// Asks the processor to fetch the cache line of byte `offset`, to read it.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch has no effect on memory and cannot fault, whatever the address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.start.wrapping_add(offset).cast());
        };
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    /// Asks the processor to fetch the cache line of byte `offset` for this processor alone, to write to it.
    #[inline]
    pub(crate) fn prefetch_to_write(&self, offset: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a prefetch has no effect on memory and cannot fault, whatever the address; a processor without this one takes it for a
        // `nop`. The intrinsic would become a prefetch for reading, since x86-64 does not promise more.
        unsafe {
            let at = self.start.wrapping_add(offset);
            std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
        };
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = offset;
    }

    /// The 16-bit integer at byte `offset`, with the given ordering. `None` outside the slice or off its alignment.
    #[inline]
    pub(crate) fn load_u16(&self, offset: usize, ordering: Ordering) -> Option<u16> {
        #[cfg(feature = "fuzzing")]
        super::fuzzed_reads::before_read();
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

    /// The 64-bit integer at byte `offset`, with the given ordering. `None` outside the slice or off its alignment.
    pub(crate) fn load_u64(&self, offset: usize, ordering: Ordering) -> Option<u64> {
        self.u64_at(offset).map(|cell| cell.load(ordering))
    }

    /// Stores a 64-bit integer at byte `offset`; does nothing outside the slice or off its alignment.
    pub(crate) fn store_u64(&self, offset: usize, value: u64, ordering: Ordering) {
        if let Some(cell) = self.u64_at(offset) {
            cell.store(value, ordering);
        }
    }

    fn u64_at(&self, offset: usize) -> Option<&AtomicU64> {
        let at = self.start.wrapping_add(offset).cast::<u64>();
        if offset.checked_add(8)? > self.bytes || !at.is_aligned() {
            return None;
        }
        // SAFETY: eight aligned bytes inside the slice, mapped for its lifetime, which the other side too reads and writes as an atomic
        // integer.
        Some(unsafe { AtomicU64::from_ptr(at) })
    }

    /// The value of type `T` at byte `offset`, read once; `None` outside the slice.
    #[inline]
    pub(crate) fn load<T: vm_memory::ByteValued>(&self, offset: usize) -> Option<T> {
        #[cfg(feature = "fuzzing")]
        super::fuzzed_reads::before_read();
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

/// The most bytes that are moved here and not by memcpy.
const SHORT: usize = 128;

/// Copies `bytes` bytes. Up to [`SHORT`], each byte is written once, in units that begin at multiples of their size from the start.
///
/// memcpy's last unit overlaps the one before. Who reads the copy back in the same units (a frame's head: from the sender, then to the
/// receiver) then reads of two stores at once, which no processor forwards: it waits until all stores before have reached the cache, and
/// those go to lines that another processor holds.
///
/// # Safety
/// `from` and `to` have `bytes` bytes, and they do not overlap.
#[inline(always)]
unsafe fn short_copy(from: *const u8, to: *mut u8, bytes: usize) {
    if bytes > SHORT {
        // SAFETY: as promised.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        return;
    }
    let mut at = 0;
    while bytes - at >= 16 {
        // SAFETY: 16 more bytes are there.
        unsafe { copy_unit::<16>(from.wrapping_add(at), to.wrapping_add(at)) };
        at += 16;
    }
    if bytes & 8 != 0 {
        // SAFETY: 8 more bytes are there, since fewer than 16 are left.
        unsafe { copy_unit::<8>(from.wrapping_add(at), to.wrapping_add(at)) };
        at += 8;
    }
    if bytes & 4 != 0 {
        // SAFETY: as above, of the rest.
        unsafe { copy_unit::<4>(from.wrapping_add(at), to.wrapping_add(at)) };
        at += 4;
    }
    if bytes & 2 != 0 {
        // SAFETY: as above, of the rest.
        unsafe { copy_unit::<2>(from.wrapping_add(at), to.wrapping_add(at)) };
        at += 2;
    }
    if bytes & 1 != 0 {
        // SAFETY: the last byte.
        unsafe { copy_unit::<1>(from.wrapping_add(at), to.wrapping_add(at)) };
    }
}

/// Copies `N` bytes by one load and one store.
///
/// # Safety
/// `from` and `to` have `N` bytes.
#[inline(always)]
unsafe fn copy_unit<const N: usize>(from: *const u8, to: *mut u8) {
    // SAFETY: as promised; arrays of bytes ask for no alignment, and any bytes are one.
    let unit = unsafe { from.cast::<[u8; N]>().read() };
    // SAFETY: as above.
    unsafe { to.cast::<[u8; N]>().write(unit) };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_every_length_have_all_bytes_and_no_other() {
        let bytes: Vec<u8> = (0..400_u32).map(|n| (n * 7 + n / 256).to_le_bytes()[0]).collect();
        let mut memory = vec![0_u8; 440];
        for length in 0..=300 {
            for start in [0, 1, 7, 16, 33] {
                memory.fill(0xee);
                // SAFETY: the vector's bytes after `start` are there for as long as the slice.
                let slice = unsafe { GuestSlice::new(memory.as_mut_ptr().wrapping_add(start), 400) };
                assert_eq!(slice.write(&bytes[..length]), length);
                let mut back = vec![0xdd; length + 1];
                assert_eq!(slice.read(&mut back[..length]), length);
                assert!(back[..length] == bytes[..length] && back[length] == 0xdd, "{length} bytes read");
                let around = memory[..start].iter().chain(&memory[start + length..]);
                assert!(around.clone().all(|byte| *byte == 0xee), "{length} bytes written at {start}");
            }
        }
    }
}
