//! A guest's memory as this process sees it.
//!
//! - a file that a guest sent, and who closes it: [`GuestFile`], [`FileCloser`]
//! - one mapped region and what is checked of its file: [`MappedRegion`]
//! - all regions of a guest, and how an address of the guest becomes memory of ours: [`GuestMemory`], [`RegionHint`]
//! - a piece of it, and the only reads and writes of guest memory there are: [`GuestSlice`], [`KeptSlice`]
//! - what happens if a guest takes the pages away from under a mapping: [`lost_pages`]
//! - how much pages that nobody has used yet may cost: [`MemoryBound`], [`PortAccount`], by [`userfault`]
//!
//! Invariants: a [`GuestSlice`] lies whole inside one region that stays mapped for the slice's lifetime. Guest memory is never a
//! Rust reference (`&[u8]`): the guest writes to it at any time. What is decided upon is copied out once and the copy is used.
//!
//! The module never waits for a guest: only memory of tmpfs, memfd and hugetlbfs is mapped, whose pages no other process serves.

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzed_reads;
mod guest_file;
mod guest_memory;
mod guest_slice;
pub(crate) mod lost_pages;
mod mapped_region;
mod memory_bound;
pub(crate) mod userfault;

pub(crate) use guest_file::{FileCloser, GuestFile};
pub(crate) use guest_memory::{GuestMemory, MAX_REGIONS, RegionHint};
pub(crate) use guest_slice::{CACHE_LINE, GuestSlice, KeptSlice};
pub(crate) use mapped_region::{MappedRegion, RegionError, RegionPlace, is_memory_file};
pub(crate) use memory_bound::PortAccount;
pub use memory_bound::{MemoryBound, MemoryBoundError, MemoryLimits};
