//! Pages of a real memfd, missing and not, against limits.

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::super::{GuestMemory, MappedRegion, RegionError, RegionHint, RegionPlace};
use super::*;

const GUEST: u64 = 0x10_0000;
/// Pages of a test's file, and what their tables cost.
const PAGES: u64 = 256;
const FIXED: u64 = 8;

fn bound(port: u64, total: u64) -> Arc<MemoryBound> {
    let limits = MemoryLimits { port: port * PAGE, total: total * PAGE };
    Arc::new(MemoryBound::new(limits).unwrap())
}

fn file() -> File {
    let file = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(PAGES * PAGE).unwrap();
    file
}

/// The file as a guest's memory, at the cost of a port.
fn shared(file: &File, account: &Arc<PortAccount>) -> Result<GuestMemory, RegionError> {
    let place = RegionPlace { guest: GUEST, user: GUEST, bytes: PAGES * PAGE, offset: 0 };
    let region = MappedRegion::bounded(place, file.try_clone().unwrap().into(), Some(account))?;
    GuestMemory::new(vec![Arc::new(region)])
}

/// An audit may take several calls on a machine that is busy.
fn audit_all(memory: &GuestMemory) {
    while !memory.audit() {}
}

fn touch(memory: &GuestMemory, pages: Range<u64>) {
    for page in pages {
        memory.at_guest(GUEST + page * PAGE, 1, &RegionHint::default()).unwrap().write(b"x");
    }
}

/// Has the kernel send this thread the SIGBUS that an access to `page` would bring. It comes before this returns.
fn sigbus(memory: &GuestMemory, page: u64, code: libc::c_int) {
    let address = memory.at_guest(GUEST + page * PAGE, 1, &RegionHint::default()).unwrap().address();
    // A `siginfo_t`: the signal, no error, the code, and behind a gap the address.
    let mut info = [0_u8; 128];
    info[..4].copy_from_slice(&libc::SIGBUS.to_ne_bytes());
    info[8..12].copy_from_slice(&code.to_ne_bytes());
    info[16..24].copy_from_slice(&(address as u64).to_ne_bytes());
    let (process, thread) = (nix::unistd::getpid().as_raw(), nix::unistd::gettid().as_raw());
    // SAFETY: the kernel reads 128 bytes, and the signal goes to the calling thread, whose handler does what it may at any instruction.
    let sent =
        unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, libc::SIGBUS, info.as_ptr()) };
    assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
}

fn punch(file: &File, page: u64) {
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(file, mode, i64::try_from(page * PAGE).unwrap(), i64::try_from(PAGE).unwrap()).unwrap();
}

/// How many pages the file has.
fn pages_of(file: &File) -> u64 {
    u64::try_from(nix::sys::stat::fstat(file).unwrap().st_blocks).unwrap() / 8
}

#[test]
fn pages_that_are_there_cost_nothing_and_missing_ones_are_counted_once() {
    let (bound, file) = (bound(PAGES, PAGES), file());
    let account = bound.account();
    std::os::unix::fs::FileExt::write_all_at(&file, &[1; 3 * userfault::PAGE], 0).unwrap();
    let memory = shared(&file, &account).unwrap();
    assert_eq!(account.taken_bytes(), FIXED * PAGE);
    touch(&memory, 0..3);
    assert_eq!(account.taken_bytes(), FIXED * PAGE, "the guest had these");
    touch(&memory, 0..10);
    touch(&memory, 0..10);
    assert_eq!(account.taken_bytes(), (FIXED + 7) * PAGE);
    // A guest that takes a page away and has it used again, for ever.
    for _ in 0..1000 {
        punch(&file, 5);
        touch(&memory, 5..6);
    }
    assert_eq!(account.taken_bytes(), (FIXED + 7) * PAGE);
    // One that was the guest's own, and is charged to us from now on.
    punch(&file, 1);
    touch(&memory, 1..2);
    assert_eq!(account.taken_bytes(), (FIXED + 8) * PAGE);
    assert!(!memory.lost_pages());
}

#[test]
fn a_guest_that_costs_more_than_its_limit_loses_its_memory_and_its_neighbour_does_not() {
    let bound = bound(FIXED + 10, 100);
    let (hostile, neighbour) = (bound.account(), bound.account());
    let (one, other) = (file(), file());
    let (memory, others) = (shared(&one, &hostile).unwrap(), shared(&other, &neighbour).unwrap());
    touch(&memory, 0..10);
    assert!(!memory.lost_pages());
    touch(&memory, 10..200);
    assert!(memory.lost_pages() && memory.cost_too_much());
    assert_eq!(hostile.taken_bytes(), (FIXED + 10) * PAGE);
    assert_eq!(nix::sys::stat::fstat(&one).unwrap().st_blocks, 10 * 8, "nothing more came into being");
    touch(&others, 0..10);
    assert!(!others.lost_pages());
    assert_eq!(bound.taken_bytes(), 2 * (FIXED + 10) * PAGE);
}

#[test]
fn what_all_ports_cost_has_a_limit_too() {
    let bound = bound(FIXED + 10, 2 * FIXED + 15);
    let accounts = [bound.account(), bound.account()];
    let files = [file(), file()];
    let memories = [shared(&files[0], &accounts[0]).unwrap(), shared(&files[1], &accounts[1]).unwrap()];
    touch(&memories[0], 0..10);
    touch(&memories[1], 0..5);
    assert!(!memories[1].lost_pages());
    touch(&memories[1], 5..6);
    assert!(memories[1].cost_too_much() && !memories[0].lost_pages());
    let third = shared(&file(), &bound.account());
    assert!(matches!(third, Err(RegionError::TooMuch { .. })), "{third:?}");
}

#[test]
fn pages_that_the_guest_gave_back_count_until_the_next_audit() {
    let (bound, file) = (bound(FIXED + 10, 100), file());
    let account = bound.account();
    let memory = shared(&file, &account).unwrap();
    // Ever new pages, far more than the limit, two at a time.
    for page in 0..PAGES - 1 {
        touch(&memory, page..page + 2);
        punch(&file, page);
        audit_all(&memory);
        assert_eq!(account.taken_bytes(), (FIXED + 1) * PAGE, "the second is there");
    }
    assert!(!memory.lost_pages());
    // What the guest has used first since is there, whoever is charged for it.
    punch(&file, PAGES - 1);
    std::os::unix::fs::FileExt::write_all_at(&file, b"x", (PAGES - 1) * PAGE).unwrap();
    audit_all(&memory);
    assert_eq!(account.taken_bytes(), (FIXED + 1) * PAGE);
    punch(&file, PAGES - 1);
    audit_all(&memory);
    assert_eq!((account.taken_bytes(), bound.taken_bytes()), (FIXED * PAGE, FIXED * PAGE));
    assert_eq!(pages_of(&file), 0, "to ask for a page makes none");
    // It is brought in and counted as ever.
    touch(&memory, 0..10);
    assert_eq!(account.taken_bytes(), (FIXED + 10) * PAGE);
    audit_all(&memory);
    touch(&memory, 10..11);
    assert!(memory.cost_too_much());
    audit_all(&memory);
    assert_eq!(account.taken_bytes(), (FIXED + 10) * PAGE, "nobody asks for pages of a region that is lost");
}

#[test]
fn an_audit_asks_for_some_pages_at_a_time_and_for_all_in_the_end() {
    const MANY: u64 = 4096;
    let (bound, file) = (bound(2 * MANY, 2 * MANY), file());
    file.set_len(MANY * PAGE).unwrap();
    let account = bound.account();
    let half = |n: u64| {
        let bytes = MANY / 2 * PAGE;
        let (guest, offset) = (GUEST + n * bytes, n * bytes);
        let place = RegionPlace { guest, user: guest, bytes, offset };
        Arc::new(MappedRegion::bounded(place, file.try_clone().unwrap().into(), Some(&account)).unwrap())
    };
    let memory = GuestMemory::new(vec![half(0), half(1)]).unwrap();
    let fixed = account.taken_bytes();
    touch(&memory, 0..MANY);
    (0..MANY).filter(|page| page % 4 != 0).for_each(|page| punch(&file, page));
    for calls in 1.. {
        let before = account.taken_bytes();
        let is_done = memory.audit();
        let given_back = (before - account.taken_bytes()) / PAGE;
        assert!(given_back <= 600, "{given_back} pages at once");
        if is_done {
            assert!(calls >= 7, "{calls} calls");
            break;
        }
    }
    assert_eq!(account.taken_bytes() - fixed, MANY / 4 * PAGE);
    (0..MANY).for_each(|page| punch(&file, page));
    audit_all(&memory);
    assert_eq!(account.taken_bytes(), fixed, "the next one begins at the start");
}

#[test]
fn a_page_that_comes_into_being_during_an_audit_is_counted_once() {
    let (bound, file) = (bound(PAGES, PAGES), file());
    let account = bound.account();
    let memory = shared(&file, &account).unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    for _ in 0..20 {
        is_over.store(false, Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    audit_all(&memory);
                }
            });
            let guests = [0, 1].map(|_| {
                scope.spawn(|| {
                    for round in 0..2_000 {
                        punch(&file, round % 4);
                        touch(&memory, 0..4);
                    }
                })
            });
            let ended = guests.map(std::thread::ScopedJoinHandle::join);
            is_over.store(true, Ordering::SeqCst);
            ended.into_iter().for_each(|ended| ended.unwrap());
        });
        // Each page that is there was brought in by us.
        assert!(account.taken_bytes() >= (FIXED + pages_of(&file)) * PAGE, "less is counted than is charged");
        audit_all(&memory);
        assert_eq!(account.taken_bytes(), (FIXED + pages_of(&file)) * PAGE);
        assert_eq!(bound.taken_bytes(), account.taken_bytes());
    }
    assert!(!memory.lost_pages());
}

#[test]
fn what_a_connection_left_is_audited_with_the_next_one_that_has_the_file() {
    let (bound, files) = (bound(2 * FIXED + 10, 100), [file(), file()]);
    let (account, other) = (bound.account(), bound.account());
    let neighbours = shared(&files[0], &other).unwrap();
    touch(&neighbours, 20..25);
    drop(neighbours);
    touch(&shared(&files[0], &account).unwrap(), 0..10);
    // Another file, and a part of this one.
    let memory = shared(&files[1], &account).unwrap();
    (0..10).for_each(|page| punch(&files[0], page));
    audit_all(&memory);
    assert_eq!(account.taken_bytes(), (FIXED + 10) * PAGE, "it is not mapped");
    let place = RegionPlace { guest: 0, user: 0, bytes: 4 * PAGE, offset: 2 * PAGE };
    let part = MappedRegion::bounded(place, files[0].try_clone().unwrap().into(), Some(&account)).unwrap();
    let both = memory.with(part).unwrap();
    assert_eq!(account.taken_bytes(), (2 * FIXED + 10) * PAGE);
    audit_all(&both);
    assert_eq!(account.taken_bytes(), (2 * FIXED + 6) * PAGE);
    drop((memory, both));
    assert_eq!(account.taken_bytes(), 6 * PAGE, "the rest is still remembered");
    let memory = shared(&files[0], &account).unwrap();
    audit_all(&memory);
    assert_eq!(account.taken_bytes(), FIXED * PAGE);
    assert_eq!(bound.taken_bytes(), (FIXED + 5) * PAGE, "and what the neighbour left");
    drop((memory, files));
    bound.forget_dead_files();
    assert_eq!((account.taken_bytes(), other.taken_bytes(), bound.taken_bytes()), (0, 0, 0));
    assert!(bound.left.lock().is_empty());
}

#[test]
fn a_new_connection_does_not_forget_what_is_charged_until_the_file_is_gone() {
    let bound = bound(FIXED + 10, 100);
    let account = bound.account();
    let kept = file();
    for round in 0..5 {
        touch(&shared(&kept, &account).unwrap(), 2 * round..2 * round + 2);
        assert_eq!(account.taken_bytes(), (2 * round + 2) * PAGE);
    }
    let memory = shared(&kept, &account).unwrap();
    touch(&memory, 0..10);
    assert!(!memory.lost_pages(), "those are there");
    touch(&memory, 10..11);
    assert!(memory.cost_too_much());
    drop(memory);
    let memory = shared(&file(), &account).unwrap();
    touch(&memory, 0..1);
    assert!(memory.cost_too_much(), "another file, and the first one still there");
    drop((memory, kept));
    bound.forget_dead_files();
    assert_eq!((account.taken_bytes(), bound.taken_bytes()), (0, 0));
    let memory = shared(&file(), &account).unwrap();
    touch(&memory, 0..10);
    assert!(!memory.lost_pages());
    drop((memory, account));
    bound.forget_dead_files();
    assert_eq!(bound.taken_bytes(), 0, "the port is gone, and the file");
}

#[test]
fn what_a_port_that_is_gone_brought_in_counts_among_all_until_the_file_is_gone() {
    let bound = bound(FIXED + 10, FIXED + 15);
    let kept = [file(), file()];
    for (n, file) in (0..).zip(&kept) {
        // As of a pod that removes its socket, or of the next pod of a tenant that has the file in another one.
        let account = bound.account();
        let memory = shared(file, &account).unwrap();
        touch(&memory, 0..10 - 5 * n);
        assert!(!memory.lost_pages());
        drop((memory, account));
    }
    assert_eq!(bound.taken_bytes(), 15 * PAGE);
    let account = bound.account();
    let memory = shared(&file(), &account).unwrap();
    touch(&memory, 0..1);
    assert!(memory.cost_too_much(), "all there is has been used for files that are there");
    drop((memory, account, kept));
    bound.forget_dead_files();
    assert_eq!(bound.taken_bytes(), 0);
}

#[test]
fn what_cannot_be_watched_is_given_back_with_its_port() {
    let bound = bound(FIXED + 10, 100);
    let account = bound.account();
    let kept = file();
    // Nothing more can be watched.
    bound.left.lock().extend((0..i32::try_from(WATCHES).unwrap()).map(|n| (-1 - n, Vec::new())));
    touch(&shared(&kept, &account).unwrap(), 0..10);
    assert_eq!((account.taken_bytes(), bound.taken_bytes()), (10 * PAGE, 10 * PAGE));
    drop(account);
    assert_eq!(bound.taken_bytes(), 0);
}

#[test]
fn page_tables_count_before_anything_is_mapped() {
    let bound = bound(1024, 1024);
    let file = file();
    let bytes = 4 << 30;
    file.set_len(bytes).unwrap();
    let place = RegionPlace { guest: GUEST, user: GUEST, bytes, offset: 0 };
    let refused = MappedRegion::bounded(place, file.into(), Some(&bound.account())).unwrap_err().to_string();
    assert!(
        refused.starts_with("a memory region of 4294967296 bytes costs the switch more than"),
        "{refused}"
    );
    assert!(refused.ends_with("or raise the limits by 2.04 MiB for each GiB"), "{refused}");
    assert_eq!(bound.taken_bytes(), 0);
}

#[test]
fn a_page_behind_the_end_of_the_file_is_lost_and_not_counted() {
    let (bound, file) = (bound(100, 100), file());
    let account = bound.account();
    let memory = shared(&file, &account).unwrap();
    file.set_len(PAGE).unwrap();
    touch(&memory, 7..8);
    assert!(memory.lost_pages() && !memory.cost_too_much());
    assert_eq!(account.taken_bytes(), FIXED * PAGE);
}

#[test]
fn a_page_in_broken_memory_is_lost_and_not_asked_for_again_and_again() {
    let (bound, file) = (bound(PAGES, PAGES), file());
    let account = bound.account();
    let memory = shared(&file, &account).unwrap();
    touch(&memory, 0..3);
    sigbus(&memory, 1, libc::BUS_MCEERR_AO);
    assert!(!memory.lost_pages(), "nobody has asked for the page");
    sigbus(&memory, 1, libc::BUS_MCEERR_AR);
    assert!(memory.lost_pages() && !memory.cost_too_much());
    touch(&memory, 0..4);
    assert_eq!(account.taken_bytes(), (FIXED + 3) * PAGE, "it is other memory now");
}

#[test]
fn a_page_that_is_there_and_cannot_be_had_is_lost_after_some_accesses() {
    let (bound, file) = (bound(PAGES, PAGES), file());
    let account = bound.account();
    let memory = shared(&file, &account).unwrap();
    touch(&memory, 0..3);
    // Each time the kernel is asked for the page, and says that it is there.
    (0..8).for_each(|_| sigbus(&memory, 1, libc::BUS_ADRERR));
    (0..8).for_each(|_| sigbus(&memory, 2, libc::BUS_ADRERR));
    // A page that is brought in is between these.
    touch(&memory, 3..4);
    (0..8).for_each(|_| sigbus(&memory, 2, libc::BUS_ADRERR));
    assert!(!memory.lost_pages());
    sigbus(&memory, 2, libc::BUS_ADRERR);
    assert!(memory.lost_pages() && !memory.cost_too_much());
    assert_eq!(account.taken_bytes(), (FIXED + 4) * PAGE);
}
