//! All regions of one guest, and how an address of the guest becomes memory of ours.
//!
//! Invariant: regions do not overlap, and none is unmapped while the table that names it exists. A changed table is a new table that
//! shares the regions that stay (SET_MEM_TABLE, ADD_MEM_REG, REM_MEM_REG).
//!
//! It never answers with memory outside the regions, whatever address and length it is asked for.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use super::mapped_region::MAX_REGION_BYTES;
use super::memory_bound::AuditBudget;
use super::{GuestSlice, MappedRegion, RegionError, RegionPlace};

/// The most regions of one guest: what GET_MAX_MEM_SLOTS answers.
pub(crate) const MAX_REGIONS: usize = 32;

/// About how many pages one call of [`GuestMemory::audit`] asks for.
const AUDITED_AT_ONCE: u32 = 512;
/// For how long it asks at most: pages that were swapped out are read back.
const AUDIT_LASTS: Duration = Duration::from_millis(1);

/// The region of the last look-up: most frames lie in one region.
#[derive(Debug, Default)]
pub(crate) struct RegionHint(Cell<usize>);

/// The memory of one guest.
#[derive(Debug, Default)]
pub(crate) struct GuestMemory {
    regions: Vec<Arc<MappedRegion>>,
    /// The same regions' places and our addresses, close together for the look-up of each frame.
    places: Vec<Place>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    guest: u64,
    bytes: u64,
    base: *mut u8,
}

impl Place {
    /// `bytes` bytes from `offset` on, both inside the region; absent for none.
    #[inline(always)]
    fn slice(&self, offset: u64, bytes: usize) -> Option<GuestSlice<'_>> {
        if bytes == 0 {
            return None;
        }
        // `offset` < `self.bytes`, which was a usize when it was mapped.
        let start = self.base.wrapping_add(usize::try_from(offset).ok()?);
        // SAFETY: `offset` + `bytes` ≤ the length of the region, whose mapping the table keeps for the slice's lifetime.
        Some(unsafe { GuestSlice::new(start, bytes) })
    }
}

// SAFETY: `base` is the address of a mapping that `regions` keeps; it is not bound to a thread. What is done with it goes through
// `GuestSlice`, whose reads and writes tolerate writers on any thread and in any process.
unsafe impl Send for GuestMemory {}
// SAFETY: as above; the table itself does not change after it was made.
unsafe impl Sync for GuestMemory {}

impl GuestMemory {
    /// A table of `regions`.
    ///
    /// # Errors
    /// [`RegionError::Refused`] if two overlap, if they are more than [`MAX_REGIONS`], or have more than a TiB together.
    pub(crate) fn new(regions: Vec<Arc<MappedRegion>>) -> Result<GuestMemory, RegionError> {
        let mut total = 0;
        for (n, region) in regions.iter().enumerate() {
            let place = region.place();
            total += place.bytes;
            let overlaps = regions[..n].iter().any(|other| other.place().overlaps(&place));
            if overlaps || n >= MAX_REGIONS || total > MAX_REGION_BYTES {
                return Err(RegionError::Refused(place));
            }
        }
        let place = |region: &Arc<MappedRegion>| {
            let RegionPlace { guest, bytes, .. } = region.place();
            Place { guest, bytes, base: region.base() }
        };
        let places = regions.iter().map(place).collect();
        Ok(GuestMemory { regions, places })
    }

    /// The table with one region more.
    ///
    /// # Errors
    /// As [`GuestMemory::new`].
    pub(crate) fn with(&self, region: MappedRegion) -> Result<GuestMemory, RegionError> {
        let mut regions = self.regions.clone();
        regions.push(Arc::new(region));
        GuestMemory::new(regions)
    }

    /// The table without the region at `place`; absent if there is none.
    pub(crate) fn without(&self, place: &RegionPlace) -> Option<GuestMemory> {
        let at = self.regions.iter().position(|region| region.place().same_memory(place))?;
        let mut regions = self.regions.clone();
        regions.remove(at);
        GuestMemory::new(regions).ok()
    }

    /// True if there is no region.
    pub(crate) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// True if the guest took pages away that were then used here.
    pub(crate) fn lost_pages(&self) -> bool {
        self.regions.iter().any(|region| region.lost_pages())
    }

    /// True if missing pages that were used here cost more than they may.
    pub(crate) fn cost_too_much(&self) -> bool {
        self.regions.iter().any(|region| region.cost_too_much())
    }

    /// Gives back what was counted for some pages that are gone, the next at each call; true if all were looked at since it last was.
    pub(crate) fn audit(&self) -> bool {
        let mut budget = AuditBudget::new(AUDITED_AT_ONCE, AUDIT_LASTS);
        let is_done = self.regions.iter().all(|region| region.audit(&mut budget));
        if is_done {
            self.regions.iter().for_each(|region| region.audit_anew());
        }
        is_done
    }

    /// The memory at a guest physical address: at least one byte and at most `bytes`, as many as lie in one region. Absent if the
    /// address is in no region, or `bytes` is 0.
    #[inline(always)]
    pub(crate) fn at_guest(&self, address: u64, bytes: usize, hint: &RegionHint) -> Option<GuestSlice<'_>> {
        let (place, offset) = self.place(address, hint)?;
        let bytes = bytes.min(usize::try_from(place.bytes - offset).unwrap_or(usize::MAX));
        place.slice(offset, bytes)
    }

    /// The same of all `bytes`; absent if they do not lie in one region.
    #[inline(always)]
    pub(crate) fn whole_at_guest(
        &self,
        address: u64,
        bytes: usize,
        hint: &RegionHint,
    ) -> Option<GuestSlice<'_>> {
        let (place, offset) = self.place(address, hint)?;
        if bytes as u64 <= place.bytes - offset { place.slice(offset, bytes) } else { None }
    }

    /// The region that an address is in, and how far in it.
    #[inline(always)]
    fn place(&self, address: u64, hint: &RegionHint) -> Option<(&Place, u64)> {
        let place = match self.places.get(hint.0.get()) {
            Some(place) if address.wrapping_sub(place.guest) < place.bytes => place,
            _ => self.search(address, hint)?,
        };
        Some((place, address - place.guest))
    }

    #[cold]
    fn search(&self, address: u64, hint: &RegionHint) -> Option<&Place> {
        let at = self.places.iter().position(|place| address.wrapping_sub(place.guest) < place.bytes)?;
        hint.0.set(at);
        self.places.get(at)
    }

    /// The memory at a virtual address of the frontend, all `bytes` of it in one region; absent otherwise.
    pub(crate) fn at_user(&self, address: u64, bytes: usize) -> Option<GuestSlice<'_>> {
        let holds =
            |region: &&Arc<MappedRegion>| address.wrapping_sub(region.place().user) < region.place().bytes;
        let region = self.regions.iter().find(holds)?;
        let offset = address - region.place().user;
        let left = region.place().bytes - offset;
        if bytes == 0 || u64::try_from(bytes).ok()? > left {
            return None;
        }
        let start = region.base().wrapping_add(usize::try_from(offset).ok()?);
        // SAFETY: `offset` + `bytes` ≤ the length of the region, whose mapping `self.regions` keeps for the slice's lifetime.
        Some(unsafe { GuestSlice::new(start, bytes) })
    }
}
