//! Regions in huge pages, as DPDK shares them: a memfd with MFD_HUGETLB, of 2 MiB pages that the kernel has or is asked for.

use std::fs;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::super::{GuestMemory, RegionHint};
use super::*;

const HUGE: u64 = 2 << 20;
/// The pages of the test's file.
const PAGES: u64 = 2;
const GUEST: u64 = 0x4000_0000;
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// Pages that were added to the kernel's pool for the test; they are taken out again.
struct Reserved(u64);

impl Reserved {
    /// As many as the test needs, where fewer are free.
    fn new() -> Reserved {
        let free = pool("free_hugepages").saturating_sub(pool("resv_hugepages"));
        let wanted = PAGES.saturating_sub(free);
        let before = pool("nr_hugepages");
        fs::write(format!("{POOL}/nr_hugepages"), (before + wanted).to_string()).unwrap();
        let reserved = Reserved(pool("nr_hugepages").saturating_sub(before));
        assert!(
            reserved.0 >= wanted,
            "the kernel gives {} of the {wanted} huge pages of 2 MiB that the test needs: its memory is full or in pieces",
            reserved.0
        );
        reserved
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let now = pool("nr_hugepages").saturating_sub(self.0);
        fs::write(format!("{POOL}/nr_hugepages"), now.to_string()).unwrap();
    }
}

fn pool(file: &str) -> u64 {
    let text = fs::read_to_string(format!("{POOL}/{file}"));
    text.expect("the kernel has no huge pages of 2 MiB").trim().parse().unwrap()
}

fn place(offset: u64, bytes: u64) -> RegionPlace {
    RegionPlace { guest: GUEST, user: GUEST, bytes, offset }
}

/// Whether anything of the file is mapped in this process.
fn is_mapped(name: &str) -> bool {
    fs::read_to_string("/proc/self/maps").unwrap().contains(name)
}

#[test]
fn a_region_in_huge_pages_is_mapped_by_whole_ones_read_written_and_unmapped() {
    let _reserved = Reserved::new();
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB;
    let file = File::from(memfd_create(c"huge-pages-of-a-guest", flags).unwrap());
    file.set_len(PAGES * HUGE).unwrap();
    assert!(is_memory_file(file.as_fd()));
    // A part of the second page: all of that is mapped, since a part cannot be unmapped.
    let bytes = HUGE / 2;
    let region = MappedRegion::new(place(HUGE, bytes), file.try_clone().unwrap()).unwrap();
    let memory = GuestMemory::new(vec![Arc::new(region)]).unwrap();
    let last = GUEST + bytes - 5;
    memory.at_guest(last, 5, &RegionHint::default()).unwrap().write(b"hello");
    assert!(
        memory.at_guest(GUEST + bytes, 1, &RegionHint::default()).is_none(),
        "the rest of the page is not the guest's"
    );
    let other = place(0, 2 * HUGE);
    let whole =
        GuestMemory::new(vec![Arc::new(MappedRegion::new(other, file.try_clone().unwrap()).unwrap())]);
    let mut read = [0; 5];
    let there = GUEST + HUGE + bytes - 5;
    whole.unwrap().at_guest(there, 5, &RegionHint::default()).unwrap().read(&mut read);
    assert_eq!(&read, b"hello", "the second page of the file has it");
    assert!(is_mapped("huge-pages-of-a-guest"));
    drop(memory);
    assert!(!is_mapped("huge-pages-of-a-guest"), "a part of a huge page was not unmapped");

    let refused = |place| MappedRegion::new(place, file.try_clone().unwrap()).unwrap_err();
    let inside = refused(place(4096, 4096));
    assert!(matches!(inside, RegionError::InsidePage { offset: 4096, page: HUGE }), "{inside}");
    let past = refused(place(HUGE, HUGE + 1));
    assert!(
        matches!(past, RegionError::PastEnd { end, length } if (end, length) == (3 * HUGE, 2 * HUGE)),
        "{past}"
    );
}
