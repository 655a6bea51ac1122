//! Where things lie in a split virtqueue (virtio 1.2, sections 2.7.5 to 2.7.8). All integers are little-endian; so are the machines
//! that this runs on.

use vm_memory::ByteValued;

#[cfg(not(target_endian = "little"))]
compile_error!("rings are little-endian, and this code does not convert");

/// One descriptor (2.7.5).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// The guest's physical address of the buffer.
    pub(super) address: u64,
    /// The buffer's length in bytes.
    pub(super) length: u32,
    /// [`NEXT`], [`WRITE`], [`INDIRECT`].
    pub(super) flags: u16,
    /// The descriptor that goes on, if [`NEXT`] is set.
    pub(super) next: u16,
}

// SAFETY: integers only, and no padding: 8 + 4 + 2 + 2 bytes.
unsafe impl ByteValued for Descriptor {}

/// One entry of the used ring (2.7.8).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct UsedElement {
    /// The first descriptor of the chain that was used.
    pub(super) id: u32,
    /// How many bytes were written into it.
    pub(super) length: u32,
}

// SAFETY: integers only, and no padding.
unsafe impl ByteValued for UsedElement {}

impl UsedElement {
    /// Both as one number, which is written at once.
    #[inline(always)]
    pub(super) fn as_number(self) -> u64 {
        u64::from(self.length) << 32 | u64::from(self.id)
    }
}

/// The bytes of a descriptor.
pub(super) const DESCRIPTOR_BYTES: usize = size_of::<Descriptor>();

/// The chain goes on at `next`.
pub(super) const NEXT: u16 = 1;
/// The device writes the buffer; else it reads it.
pub(crate) const WRITE: u16 = 2;
/// The buffer is a table of descriptors.
pub(super) const INDIRECT: u16 = 4;

/// The index behind the newest entry, in both rings.
pub(super) const INDEX_OFFSET: usize = 2;
/// The flags, in both rings.
pub(super) const FLAGS_OFFSET: usize = 0;
/// In the available ring's flags: the driver wants no calls (2.7.7).
pub(super) const AVAIL_NO_INTERRUPT: u16 = 1;
/// In the used ring's flags: the device wants no kicks (2.7.10).
pub(super) const USED_NO_NOTIFY: u16 = 1;

/// The byte of entry `slot` of the available ring.
pub(super) const fn available_entry(slot: usize) -> usize {
    4 + 2 * slot
}

/// The byte of entry `slot` of the used ring.
pub(super) const fn used_entry(slot: usize) -> usize {
    4 + 8 * slot
}

/// The bytes of the three areas of a ring with `size` entries, event indices included: descriptors, available, used.
pub(super) const fn area_bytes(size: usize) -> (usize, usize, usize) {
    (DESCRIPTOR_BYTES * size, available_entry(size) + 2, used_entry(size) + 2)
}
