//! A guest's memory as this process sees it.
//!
//! - one mapped region and what is checked of its file: [`MappedRegion`]
//! - all regions of a guest, and how an address of the guest becomes memory of ours: [`GuestMemory`], [`RegionHint`]
//! - a piece of it, and the only reads and writes of guest memory there are: [`GuestSlice`], [`KeptSlice`]
//! - what happens if a guest takes the pages away from under a mapping: [`lost_pages`]
//!
//! Invariants: a [`GuestSlice`] lies whole inside one region that stays mapped for the slice's lifetime. Guest memory is never a
//! Rust reference (`&[u8]`): the guest writes to it at any time. What is decided upon is copied out once and the copy is used.
//!
//! The module never waits for a guest: only memory of tmpfs, memfd and hugetlbfs is mapped, whose pages no other process serves.

mod guest_memory;
mod guest_slice;
pub(crate) mod lost_pages;
mod mapped_region;

pub(crate) use guest_memory::{GuestMemory, MAX_REGIONS, RegionHint};
pub(crate) use guest_slice::{GuestSlice, KeptSlice};
pub(crate) use mapped_region::{MappedRegion, RegionError, RegionPlace, is_memory_file};
