//! A memfd whose last bytes are not shared, mapped with a guard page on each side: what is touched next to the shared part is noticed.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::memory::{MappedRegion, RegionPlace};

/// The bytes of a file that are shared.
pub(super) const SHARED: u64 = FILE - CANARY as u64;
/// The bytes of a file.
pub(super) const FILE: u64 = 0x1_0000;
/// The bytes behind the shared part, on the same page.
const CANARY: usize = 0x200;
const MARK: u8 = 0xc3;
const PAGE: usize = 0x1000;

/// One file of a guest's memory.
pub(super) struct SharedFile {
    file: File,
    /// Its end was cut off, so there is no canary any more.
    cut: bool,
}

impl SharedFile {
    pub(super) fn new() -> SharedFile {
        let file = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(FILE).unwrap();
        file.write_all_at(&[MARK; CANARY], SHARED).unwrap();
        SharedFile { file, cut: false }
    }

    /// A descriptor of it, as the guest sends it.
    pub(super) fn descriptor(&self) -> OwnedFd {
        self.file.try_clone().unwrap().into()
    }

    /// The shared part, mapped as the switch maps it, at these addresses of the guest and of its frontend.
    pub(super) fn map(&self, guest: u64, user: u64) -> Guarded {
        let place = RegionPlace { guest, user, bytes: SHARED, offset: 0 };
        Guarded::new(Arc::new(MappedRegion::new(place, self.file.try_clone().unwrap()).unwrap()))
    }

    /// Writes as the guest does.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) {
        let offset = offset.min(SHARED);
        let room = usize::try_from(SHARED - offset).unwrap_or(0).min(bytes.len());
        self.file.write_all_at(&bytes[..room], offset).unwrap();
    }

    /// Takes pages away: a hole, or everything behind a page.
    pub(super) fn take_away(&mut self, page: usize, cut: bool) {
        let offset = (page * PAGE) as i64 % FILE.cast_signed();
        if cut {
            self.cut = true;
            self.file.set_len(offset.cast_unsigned()).unwrap();
        } else if offset.cast_unsigned() + (PAGE as u64) < FILE {
            let mode = nix::fcntl::FallocateFlags::FALLOC_FL_PUNCH_HOLE
                | nix::fcntl::FallocateFlags::FALLOC_FL_KEEP_SIZE;
            nix::fcntl::fallocate(&self.file, mode, offset, PAGE as i64).unwrap();
        }
    }

    /// What is behind the shared part is as it was.
    pub(super) fn check(&self) {
        let mut canary = [0; CANARY];
        if !self.cut {
            self.file.read_exact_at(&mut canary, SHARED).unwrap();
            assert!(canary.iter().all(|byte| *byte == MARK), "bytes behind the shared memory were written");
        }
    }
}

/// A mapped region between two pages that nobody may touch.
pub(super) struct Guarded {
    pub(super) region: Arc<MappedRegion>,
    guards: Vec<*mut libc::c_void>,
}

impl Guarded {
    fn new(region: Arc<MappedRegion>) -> Guarded {
        let start = region.base() as usize;
        let end = start + usize::try_from(region.place().bytes.next_multiple_of(PAGE as u64)).unwrap();
        let guards = [start - PAGE, end].into_iter().filter_map(guard).collect();
        Guarded { region, guards }
    }
}

/// A page without rights at `address`, unless something is there.
fn guard(address: usize) -> Option<*mut libc::c_void> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let place = address as *mut libc::c_void;
    // SAFETY: with MAP_FIXED_NOREPLACE nothing that is mapped is touched.
    let mapped = unsafe { libc::mmap(place, PAGE, libc::PROT_NONE, flags, -1, 0) };
    (mapped == place).then_some(place)
}

impl Drop for Guarded {
    fn drop(&mut self) {
        for guard in &self.guards {
            // SAFETY: `guard` made this page, and nobody else knows of it.
            unsafe { libc::munmap(*guard, PAGE) };
        }
    }
}
