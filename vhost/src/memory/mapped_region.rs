//! One region of a guest's memory, mapped from a file that the guest sent.
//!
//! Invariant: a mapped region is memory of tmpfs, memfd or hugetlbfs, whole huge pages where the file has them, and it is watched by
//! [`lost_pages`] from before the first access until after the last. Its file is closed after it was unmapped, so that unmapping frees
//! no page: who drops a region does not wait for that.
//!
//! It never maps a file of a file system that could make a page fault wait for somebody (FUSE, NFS, a disk).

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::statfs::{FsType, HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs};
use vm_memory::{FileOffset, MmapRegion};

use super::GuestFile;
use super::lost_pages::{self, Watch};
use super::memory_bound::{AuditBudget, PortAccount, RegionAccount};

/// The most bytes that one region may have: 1 TiB. The process has 128 TiB of addresses for all guests.
pub(crate) const MAX_REGION_BYTES: u64 = 1 << 40;

/// Where a region lies, in the three kinds of addresses that a frontend uses. Lengths and offsets are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegionPlace {
    /// The guest's physical address of the first byte: the addresses in descriptors.
    pub(crate) guest: u64,
    /// The frontend's virtual address of the first byte: the addresses of rings.
    pub(crate) user: u64,
    /// The length.
    pub(crate) bytes: u64,
    /// Where the region begins in its file.
    pub(crate) offset: u64,
}

impl RegionPlace {
    /// The same region, as REM_MEM_REG names it: the file's offset does not count.
    pub(crate) fn same_memory(&self, other: &RegionPlace) -> bool {
        (self.guest, self.user, self.bytes) == (other.guest, other.user, other.bytes)
    }

    /// True if the two have an address in common, of either kind.
    pub(crate) fn overlaps(&self, other: &RegionPlace) -> bool {
        let meet = |a: u64, b: u64| a < b.saturating_add(other.bytes) && b < a.saturating_add(self.bytes);
        meet(self.guest, other.guest) || meet(self.user, other.user)
    }

    fn check(&self) -> Result<(), RegionError> {
        if self.bytes == 0 || self.bytes > MAX_REGION_BYTES {
            return Err(RegionError::Length(self.bytes));
        }
        let ends = [self.guest, self.user, self.offset].map(|start| start.checked_add(self.bytes));
        if ends.contains(&None) { Err(RegionError::Wraps(*self)) } else { Ok(()) }
    }
}

/// Why a region was not mapped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegionError {
    /// It has no bytes, or too many.
    #[error("a memory region of {0} bytes (1 to {MAX_REGION_BYTES} are allowed)")]
    Length(u64),
    /// Its end is past the last address.
    #[error("the end of the memory region {0:?} is past the last address")]
    Wraps(RegionPlace),
    /// Its file could not be asked.
    #[error("the file of a memory region does not tell what it is")]
    Stat(#[source] nix::Error),
    /// Its file is on a disk, on FUSE or the like.
    #[error("a memory region in a file that is neither memfd nor tmpfs nor hugetlbfs (file system {0:#x})")]
    FileSystem(i64),
    /// The file is shorter than the region.
    #[error("a memory region up to byte {end} of a file of {length}")]
    PastEnd {
        /// Where the region ends, in whole pages.
        end: u64,
        /// How long the file is.
        length: u64,
    },
    /// The region begins inside a page of its file.
    #[error("a memory region at byte {offset} of a file with pages of {page}")]
    InsidePage {
        /// Where the region begins.
        offset: u64,
        /// The size of the file's pages.
        page: u64,
    },
    /// The kernel would not map it.
    #[error("a memory region of {bytes} bytes cannot be mapped")]
    Map {
        /// The length.
        bytes: u64,
        /// Why.
        #[source]
        source: vm_memory::mmap::MmapRegionError,
    },
    /// More regions than can be watched are mapped, of all guests together.
    #[error("more memory regions are mapped than can be watched")]
    TooManyWatched,
    /// Its page tables, with what the port's memory costs already, cost more than is allowed.
    #[error(
        "a memory region of {bytes} bytes costs the switch more than its limits allow ({port} bytes for a port, {total} for all; \
         this port has {taken}): take huge pages, share less memory, or raise the limits by 2.04 MiB for each GiB"
    )]
    TooMuch {
        /// The length.
        bytes: u64,
        /// What a port may cost.
        port: u64,
        /// What all ports may cost.
        total: u64,
        /// What this port costs.
        taken: u64,
    },
    /// The kernel does not tell of missing pages of such a file.
    #[error("missing pages of a memory region cannot be watched")]
    Unwatchable(#[source] nix::Error),
    /// The guest has another region at these addresses, or too many regions.
    #[error("the memory region {0:?} overlaps another, or is one too many")]
    Refused(RegionPlace),
}

/// A region that is mapped, readable and writable, until it is dropped.
#[derive(Debug)]
pub(crate) struct MappedRegion {
    place: RegionPlace,
    // Before `mapping`: fields are dropped in this order, and a mapping that is gone must not be mapped anew by the signal handler.
    watch: Option<Watch>,
    /// In a box, so that it stays where the watch finds it.
    account: Option<Box<RegionAccount>>,
    mapping: MmapRegion,
    /// Behind all that have a share in it: its own drop decides where it is closed. Absent: there is no file.
    _file: Option<GuestFile>,
    /// Where `mapping` lies if nothing is mapped.
    #[cfg(test)]
    _pages: Vec<Page>,
}

/// A page of a test's own memory.
#[cfg(test)]
#[repr(C, align(4096))]
#[derive(Debug, Clone)]
struct Page([u8; 4096]);

impl MappedRegion {
    /// Maps `place` of `file`. What its missing pages cost is not bounded: the file is one of our own, or everything is.
    ///
    /// # Errors
    /// See [`RegionError`]; nothing stays mapped then.
    pub(crate) fn new(place: RegionPlace, file: File) -> Result<MappedRegion, RegionError> {
        MappedRegion::bounded(place, GuestFile::from(file), None)
    }

    /// Maps `place` of `file`, at the cost of `account`.
    ///
    /// # Errors
    /// See [`RegionError`]; nothing stays mapped then.
    pub(crate) fn bounded(
        place: RegionPlace,
        file: GuestFile,
        account: Option<&Arc<PortAccount>>,
    ) -> Result<MappedRegion, RegionError> {
        place.check()?;
        let mapped_bytes = whole_pages(&place, file.as_fd())?;
        let size = usize::try_from(mapped_bytes).map_err(|_| RegionError::Length(place.bytes))?;
        // One descriptor of a region for all who need its file: `OPEN_FILES` counts one.
        let shared = file.share();
        let mut account = open_account(&shared, (place.offset, mapped_bytes), account)?;
        let mapping = MmapRegion::from_file(FileOffset::from_arc(shared, place.offset), size)
            .map_err(|source| RegionError::Map { bytes: mapped_bytes, source })?;
        if let Some(account) = &mut account {
            account.watch(mapping.as_ptr(), size).map_err(RegionError::Unwatchable)?;
        }
        let watch = lost_pages::watch(mapping.as_ptr(), size, account.as_deref());
        let watch = Some(watch.ok_or(RegionError::TooManyWatched)?);
        Ok(MappedRegion {
            place,
            watch,
            account,
            mapping,
            _file: Some(file),
            #[cfg(test)]
            _pages: Vec::new(),
        })
    }

    /// A region of zeroes that is no file's: Miri, which runs the tests of the rings, maps none.
    #[cfg(test)]
    pub(crate) fn of_own_pages(place: RegionPlace) -> MappedRegion {
        let bytes = usize::try_from(place.bytes).unwrap();
        let mut pages = vec![Page([0; size_of::<Page>()]); bytes.div_ceil(size_of::<Page>())];
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = pages.as_mut_ptr().cast();
        // SAFETY: the pages have so many bytes, and are kept as long as the region.
        let mapping = unsafe { MmapRegion::build_raw(start, bytes, access, kind) }.unwrap();
        MappedRegion { place, watch: None, account: None, mapping, _file: None, _pages: pages }
    }

    /// Where it lies.
    pub(crate) fn place(&self) -> RegionPlace {
        self.place
    }

    /// The address of its first byte in this process. `place().bytes` bytes from there are mapped.
    pub(crate) fn base(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// True if the guest took pages away that were then read or written here: the region has other memory since.
    pub(crate) fn lost_pages(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::lost)
    }

    /// True if it was lost because its missing pages cost too much.
    pub(crate) fn cost_too_much(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::cost_too_much)
    }

    /// Goes on with the audit of what it costs; true if that is done.
    pub(super) fn audit(&self, budget: &mut AuditBudget) -> bool {
        self.account.as_ref().is_none_or(|account| account.audit(budget))
    }

    /// Has the next audit begin at the start.
    pub(super) fn audit_anew(&self) {
        if let Some(account) = &self.account {
            account.audit_anew();
        }
    }
}

/// The account of a region whose cost is bounded. Huge pages are reserved by whoever made the file, and not charged to the memory limit of
/// whoever touches them.
fn open_account(
    file: &Arc<File>,
    (offset, bytes): (u64, u64),
    account: Option<&Arc<PortAccount>>,
) -> Result<Option<Box<RegionAccount>>, RegionError> {
    let system = fstatfs(file.as_fd()).map_err(RegionError::Stat)?.filesystem_type();
    let Some(account) = account.filter(|_| system != HUGETLBFS_MAGIC) else { return Ok(None) };
    account.forget_dead_files();
    let limits = account.limits();
    let opened = RegionAccount::new(account, (offset, bytes), Arc::clone(file));
    opened.map(|opened| Some(Box::new(opened))).ok_or_else(|| RegionError::TooMuch {
        bytes,
        port: limits.port,
        total: limits.total,
        taken: account.taken_bytes(),
    })
}

/// True if a file is memory: its pages and its attributes are the kernel's own.
pub(crate) fn is_memory_file(file: BorrowedFd<'_>) -> bool {
    // First: only files of tmpfs and hugetlbfs have seals, and whether one has is answered by no file system. `fstatfs` may wait for a
    // server that the guest has chosen.
    if fcntl(file, FcntlArg::F_GET_SEALS).is_err() {
        return false;
    }
    let system = fstatfs(file).map(|answer| answer.filesystem_type());
    system.is_ok_and(|system| system == TMPFS_MAGIC || system == HUGETLBFS_MAGIC)
}

/// The bytes to map: the region's, up to a whole page of its file. (munmap of a part of a huge page fails.)
fn whole_pages(place: &RegionPlace, file: BorrowedFd<'_>) -> Result<u64, RegionError> {
    let system = fstatfs(file).map_err(RegionError::Stat)?.filesystem_type();
    if system != TMPFS_MAGIC && system != HUGETLBFS_MAGIC {
        let FsType(number) = system;
        return Err(RegionError::FileSystem(number));
    }
    let stat = nix::sys::stat::fstat(file).map_err(RegionError::Stat)?;
    let page = if system == HUGETLBFS_MAGIC { u64::try_from(stat.st_blksize).unwrap_or(4096) } else { 4096 };
    if !place.offset.is_multiple_of(page) {
        return Err(RegionError::InsidePage { offset: place.offset, page });
    }
    let bytes = place.bytes.next_multiple_of(page);
    let end = place.offset.saturating_add(bytes);
    let length = u64::try_from(stat.st_size).unwrap_or(0);
    if end > length.next_multiple_of(page) { Err(RegionError::PastEnd { end, length }) } else { Ok(bytes) }
}

#[cfg(test)]
#[path = "mapped_region_tests.rs"]
mod tests;
