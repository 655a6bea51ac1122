//! The replay of a spool on the disk, by a service that fails and hangs as it is told.

use std::sync::atomic::{AtomicUsize, Ordering};

use fairlead_cni::spool::serialise;
use fairlead_cni::wire::{Spooled, WIRE};
use fairlead_cni::{CniError, CniVersion, Code};
use nix::errno::Errno;
use parking_lot::Mutex;

use super::*;
use crate::admission::{Limits, Outcome, SubmittedCall};
use crate::call::Reply;
use crate::call::fake_service::FakeService;
use crate::metrics::{Calls, Exposition};

const LONG: Duration = Duration::from_secs(20);

/// Fails the first `failures` calls of container or network `bad`; `slow` and what begins so is on the slow lane.
#[derive(Default)]
struct Fake {
    failures: AtomicUsize,
    /// What a DEL of a container `…hangs` waits for.
    hangs: Mutex<()>,
    log: Mutex<Vec<String>>,
}

impl FakeService for Fake {
    fn answer(&self, request: &Request) -> Reply {
        let container = request.container_id.clone();
        let is_bad = container == "bad" || request.config.contains(r#""name":"bad""#);
        let fails = is_bad
            && self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok();
        if container.ends_with("hangs") && request.command == Command::Del {
            drop(self.hangs.lock());
        }
        self.log.lock().push(format!("{} {container}{}", request.command.name(), request.args));
        let outcome = if fails { Err(CniError::new(Code::Io, "busy")) } else { Ok(String::new()) };
        Reply { version: CniVersion::LATEST, outcome }
    }

    fn note_prepared(&self, request: &Request) {
        let is_meant = request.command == Command::Del && request.container_id == "faulty";
        let fails = |n: usize| is_meant.then(|| n.checked_sub(1)).flatten();
        let is_faulty = self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fails).is_ok();
        assert!(!is_faulty, "a fault of ours");
    }

    fn lane_of(&self, request: &Request) -> Lane {
        if request.container_id.starts_with("slow") { Lane::Slow } else { Lane::Fast }
    }
}

fn del(container: &str) -> Request {
    Request {
        wire: WIRE,
        command: Command::Del,
        container_id: container.into(),
        netns: String::new(),
        netns_inode: None,
        own_netns: None,
        own_netns_cookie: None,
        ifname: "eth0".into(),
        args: String::new(),
        path: String::new(),
        env: Vec::new(),
        config: "{}".into(),
        deadline_ms: 0,
        issued_ns: None,
        spooled: Some(Spooled { boot_id: "an earlier one".into(), at: 1, cookie: None }),
    }
}

fn put(state: &Path, sequence: u64, bytes: &[u8]) -> PathBuf {
    let directory = state.join(DIRECTORY);
    fs::create_dir_all(&directory).unwrap();
    let path = directory.join(EntryName { sequence, pid: 1 }.whole());
    fs::write(&path, bytes).unwrap();
    path
}

fn admission() -> Admission {
    Admission::new(
        Limits { fast: 1, slow: 2, queued: 10 },
        Calls::new(&Exposition::default(), &["macvlan"]),
        Arc::default(),
    )
}

/// Begins to carry out what is spooled in `state`.
fn begin(state: &Path, fake: &Arc<Fake>, admission: &Admission) -> (Replay, Node) {
    let node = Node::default();
    let entries = lock(state, node.clone()).unwrap().entries().unwrap();
    let replay = Replay::begin(entries, fake.clone(), admission.clone(), node.clone()).unwrap();
    (replay, node)
}

/// The ADD of a container is handed in.
fn add(admission: &Admission, container: &str) -> SubmittedCall {
    let request = Request { command: Command::Add, spooled: None, deadline_ms: 20_000, ..del(container) };
    admission.submit(admission.prepare(request), Instant::now())
}

fn left(state: &Path) -> usize {
    fs::read_dir(state.join(DIRECTORY))
        .unwrap()
        .filter(|f| f.as_ref().unwrap().path().extension().is_some())
        .count()
}

#[test]
fn x02_entries_are_carried_out_in_order_and_removed_and_what_cant_be_read_is_set_aside() {
    let state = tempfile::tempdir().unwrap();
    for (n, container) in [(20, "c"), (3, "a"), (11, "b")] {
        put(state.path(), n, &serialise(&del(container)).unwrap());
    }
    put(state.path(), 4, b"torn");
    let partial = state.path().join(DIRECTORY).join(EntryName { sequence: 5, pid: 2 }.partial());
    fs::write(&partial, "half").unwrap();
    let node = Node::default();
    let entries = lock(state.path(), node.clone()).unwrap().entries().unwrap();
    assert_eq!(node.spool_entries.get(), 3);
    let fake = Arc::new(Fake::default());
    let service: Arc<dyn Service> = fake.clone();
    let replay = Replay::begin(entries, service, admission(), node.clone()).unwrap();
    assert_eq!(replay.first_pass_left(LONG), Some(0));
    assert_eq!(*fake.log.lock(), ["DEL a", "DEL b", "DEL c"]);
    let aside = unreadable(&state.path().join(DIRECTORY)).unwrap();
    assert_eq!((aside.len(), left(state.path()), partial.exists()), (1, 0, false));
    assert_eq!(fs::read(&aside[0]).unwrap(), b"torn");
    assert_eq!((node.spool_entries.get(), node.spool_unreadable.get()), (0, 1));
}

#[test]
fn a_newer_versions_request_stays_where_it_is_word_for_word_and_is_told() {
    let state = tempfile::tempdir().unwrap();
    let written = String::from_utf8(serialise(&del("c")).unwrap()).unwrap();
    let later = written.replace("\"fairleadSpool\":1", "\"fairleadSpool\":2");
    let path = put(state.path(), 7, later.as_bytes());
    let node = Node::default();
    let locked = lock(state.path(), node.clone()).unwrap();
    for _ in 0..2 {
        assert!(locked.entries().unwrap().is_empty());
        assert_eq!(fs::read_to_string(&path).unwrap(), later);
    }
    assert_eq!((node.spool_entries.get(), node.spool_unreadable.get()), (0, 0));
    assert_eq!(of_newer_version(&state.path().join(DIRECTORY)).unwrap(), [path]);
}

#[test]
fn what_is_no_regular_file_keeps_nobody_waiting_and_is_set_aside() {
    let state = tempfile::tempdir().unwrap();
    let whole = put(state.path(), 9, &serialise(&del("a")).unwrap());
    let place = |sequence| whole.with_file_name(EntryName { sequence, pid: 1 }.whole());
    nix::unistd::mkfifo(&place(1), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(place(2)).unwrap();
    std::os::unix::fs::symlink(&whole, place(3)).unwrap();
    std::os::unix::fs::symlink("/dev/zero", place(4)).unwrap();
    fs::create_dir(place(5)).unwrap();
    let node = Node::default();
    let entries = lock(state.path(), node.clone()).unwrap().entries().unwrap();
    assert_eq!((entries.len(), node.spool_unreadable.get()), (1, 5));
}

#[test]
fn x02_an_entry_that_cant_be_read_for_a_reason_that_can_pass_is_kept_and_the_daemon_does_not_start() {
    let state = tempfile::tempdir().unwrap();
    let written = serialise(&del("a")).unwrap();
    let path = put(state.path(), 1, &written);
    let mut locked = lock(state.path(), Node::default()).unwrap();
    let shortages: [ReadFile; 2] = [|_| Err(Errno::EMFILE.into()), |_| Err(Errno::EACCES.into())];
    for read in shortages {
        locked.read = read;
        let told = locked.entries().unwrap_err().to_string();
        assert!(told.starts_with(&format!("{} cannot be read", path.display())), "{told}");
        assert_eq!(fs::read(&path).unwrap(), written);
    }
    assert!(unreadable(&state.path().join(DIRECTORY)).unwrap().is_empty());
    locked.read = read_bounded;
    assert_eq!(locked.entries().unwrap().len(), 1);
}

#[test]
fn x02_what_fails_is_kept_holds_back_its_add_and_succeeds_later_while_programs_never_delay_the_start() {
    let state = tempfile::tempdir().unwrap();
    for (n, container) in [(1, "slow"), (2, "bad"), (3, "good")] {
        put(state.path(), n, &serialise(&del(container)).unwrap());
    }
    let fake = Arc::new(Fake { failures: AtomicUsize::new(2), ..Fake::default() });
    let admission = admission();
    let (replay, node) = begin(state.path(), &fake, &admission);
    assert_eq!(replay.first_pass_left(LONG), Some(2));
    assert_eq!(*fake.log.lock(), ["DEL bad", "DEL good"]);
    assert_eq!(left(state.path()), 2);
    admission.open(fake.clone()).unwrap();
    let held = add(&admission, "bad");
    assert!(matches!(held.wait(), Outcome::Reply(..)));
    let log = fake.log.lock().clone();
    assert_eq!(log.iter().filter(|line| *line == "DEL bad").count(), 3, "{log:?}");
    assert_eq!(log.last().unwrap(), "ADD bad");
    assert_eq!((left(state.path()), node.spool_entries.get()), (0, 0));
}

#[test]
fn an_entry_that_meets_a_fault_of_the_daemon_ends_it_at_no_start_and_is_tried_again() {
    let state = tempfile::tempdir().unwrap();
    for (n, container) in [(1, "faulty"), (2, "good")] {
        put(state.path(), n, &serialise(&del(container)).unwrap());
    }
    // Once in the first pass, once after it.
    let fake = Arc::new(Fake { failures: AtomicUsize::new(2), ..Fake::default() });
    let admission = admission();
    let (replay, _) = begin(state.path(), &fake, &admission);
    assert_eq!(replay.first_pass_left(LONG), Some(1));
    admission.open(fake.clone()).unwrap();
    let held = add(&admission, "faulty");
    assert!(matches!(held.wait(), Outcome::Reply(..)));
    assert_eq!(*fake.log.lock(), ["DEL good", "DEL faulty", "ADD faulty"]);
    assert_eq!(left(state.path()), 0);
}

#[test]
fn a_spooled_del_that_hangs_keeps_nobody_waiting_but_the_adds_of_its_attachment() {
    let state = tempfile::tempdir().unwrap();
    put(state.path(), 1, &serialise(&del("hangs")).unwrap());
    let fake = Arc::new(Fake::default());
    let hung = fake.hangs.lock();
    let admission = admission();
    let (replay, node) = begin(state.path(), &fake, &admission);
    assert_eq!(replay.first_pass_left(Duration::from_millis(50)), None);
    admission.open(fake.clone()).unwrap();
    let held = add(&admission, "hangs");
    assert!(matches!(add(&admission, "other").wait(), Outcome::Reply(..)), "it is served meanwhile");
    assert_eq!(*fake.log.lock(), ["ADD other"]);
    drop(hung);
    assert!(matches!(held.wait(), Outcome::Reply(..)));
    assert_eq!(replay.first_pass_left(LONG), Some(0));
    assert_eq!(*fake.log.lock(), ["ADD other", "DEL hangs", "ADD hangs"]);
    assert_eq!((left(state.path()), node.spool_entries.get()), (0, 0));
}

#[test]
fn a_spooled_del_whose_program_hangs_holds_back_the_result_of_no_other() {
    let state = tempfile::tempdir().unwrap();
    for (n, container) in [(1, "slow-hangs"), (2, "slow"), (3, "slow-too")] {
        put(state.path(), n, &serialise(&del(container)).unwrap());
    }
    let fake = Arc::new(Fake::default());
    let hung = fake.hangs.lock();
    let admission = admission();
    let (replay, node) = begin(state.path(), &fake, &admission);
    assert_eq!(replay.first_pass_left(LONG), Some(3));
    admission.open(fake.clone()).unwrap();
    let until = Instant::now() + LONG;
    while left(state.path()) > 1 {
        assert!(Instant::now() < until, "the others' results wait for that of the hung one");
        std::thread::sleep(Duration::from_millis(5));
    }
    let held = add(&admission, "slow");
    assert!(matches!(held.wait(), Outcome::Reply(..)), "its ADD may come");
    assert_eq!(node.spool_entries.get(), 1);
    drop(hung);
    while left(state.path()) > 0 {
        assert!(Instant::now() < until, "the hung one is done when it ends");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn of_many_spooled_requests_a_bounded_number_is_handed_in_at_once_and_each_attachments_in_order() {
    let state = tempfile::tempdir().unwrap();
    for n in 0..40 {
        put(state.path(), n, &serialise(&del(&format!("slow{n}-hangs"))).unwrap());
    }
    let again = Request { args: " again".into(), ..del("slow0-hangs") };
    put(state.path(), 40, &serialise(&again).unwrap());
    let fake = Arc::new(Fake::default());
    let hung = fake.hangs.lock();
    let limits = Limits { fast: 1, slow: 2, queued: 100 };
    let admission = Admission::new(limits, Calls::new(&Exposition::default(), &["macvlan"]), Arc::default());
    let (replay, _) = begin(state.path(), &fake, &admission);
    assert_eq!(replay.first_pass_left(LONG), Some(41));
    admission.open(fake.clone()).unwrap();
    let counted = || {
        let counts = admission.counts();
        counts["queued"].as_u64().unwrap() + counts["running"].as_u64().unwrap()
    };
    let until = Instant::now() + LONG;
    while counted() < retry::AT_ONCE as u64 {
        assert!(Instant::now() < until, "it never came to that: {}", counted());
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(counted(), retry::AT_ONCE as u64);
    drop(hung);
    while left(state.path()) > 0 {
        assert!(Instant::now() < until, "all are carried out in the end");
        std::thread::sleep(Duration::from_millis(5));
    }
    let log = fake.log.lock();
    let at = |what: &str| log.iter().position(|line| line == what).unwrap();
    assert!(at("DEL slow0-hangs") < at("DEL slow0-hangs again"), "{log:?}");
}

#[test]
fn a_spooled_gc_that_always_fails_holds_back_no_other_networks_and_is_given_up() {
    let state = tempfile::tempdir().unwrap();
    let gc = |network: &str| {
        let config = format!(r#"{{"cniVersion":"1.1.0","name":"{network}"}}"#);
        Request { command: Command::Gc, ifname: String::new(), config, ..del("") }
    };
    let [bad, behind, good] = [(1, "bad"), (2, "bad"), (3, "good")]
        .map(|(n, network)| put(state.path(), n, &serialise(&gc(network)).unwrap()));
    let fake = Arc::new(Fake { failures: AtomicUsize::new(usize::MAX), ..Fake::default() });
    let admission = admission();
    let (replay, node) = begin(state.path(), &fake, &admission);
    assert_eq!(replay.first_pass_left(LONG), Some(2));
    assert!(bad.exists() && behind.exists() && !good.exists());
    admission.open(fake.clone()).unwrap();
    let until = Instant::now() + LONG;
    while node.spool_entries.get() > 0 {
        assert!(Instant::now() < until, "they are given up");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Each of the two that fail as often as it may, the first of them in the first pass, too, and the good one.
    assert_eq!(fake.log.lock().len(), 2 * retry::GC_ATTEMPTS as usize + 2);
    assert_eq!(left(state.path()), 0);
}

#[test]
fn an_executable_that_is_writing_is_waited_for() {
    let state = tempfile::tempdir().unwrap();
    drop(lock(state.path(), Node::default()).unwrap());
    let writer = File::open(state.path().join(DIRECTORY).join(LOCK_FILE)).unwrap();
    writer.lock_shared().unwrap();
    let path = state.path().to_path_buf();
    let daemon = std::thread::spawn(move || lock(&path, Node::default()).unwrap().entries().unwrap().len());
    std::thread::sleep(Duration::from_millis(50));
    put(state.path(), 1, &serialise(&del("late")).unwrap());
    drop(writer);
    assert_eq!(daemon.join().unwrap(), 1);
}
