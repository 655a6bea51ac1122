//! The program in a real memory cgroup, and guests that share large files in which nothing is: it is not killed, and its other ports' frames
//! go on.
//!
//! The files' pages are charged to whoever touches them first: the test process, outside of the cgroup, or the program, inside.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests use the rest")]
mod guest;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fairlead_vhost::control::messages::{PortEvent, SocketSide};
use fairlead_vhost::control::{Client, EventStream};
use guest::{BASE, Guest, PLAIN, TX, config, frame, leave_replies_unread, wait_until};
use nix::fcntl::{FallocateFlags, fallocate};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};

const LIMIT: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
/// What the program may use: it takes some MiB itself.
const CGROUP: u64 = 96 * MIB;
/// The bytes of a hostile guest's file: far more than the program may use.
const EMPTY: u64 = 512 * MIB;
/// Where that is in the guest's addresses.
const EMPTY_AT: u64 = BASE + (1 << 32);
const PAGE: u64 = 4096;

/// A memory cgroup of the test's own, of version 1 or 2, whichever has the memory controller here.
struct Cgroup {
    path: PathBuf,
    is_v2: bool,
}

impl Cgroup {
    fn new(name: &str) -> Cgroup {
        let root = Path::new("/sys/fs/cgroup");
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let is_v2 = controllers.split_whitespace().any(|controller| controller == "memory");
        let parent = if is_v2 { root.to_path_buf() } else { root.join("memory") };
        let path = parent.join(format!("fairlead-test-{}-{name}", std::process::id()));
        fs::create_dir(&path).expect("root can make a memory cgroup below /sys/fs/cgroup");
        let cgroup = Cgroup { path, is_v2 };
        if is_v2 {
            fs::write(parent.join("cgroup.subtree_control"), "+memory").unwrap();
            cgroup.set("memory.max", CGROUP);
            // Without it there is nowhere to put pages, as on a node.
            let _ = fs::write(cgroup.path.join("memory.swap.max"), "0");
        } else {
            cgroup.set("memory.limit_in_bytes", CGROUP);
        }
        cgroup
    }

    fn set(&self, file: &str, value: u64) {
        fs::write(self.path.join(file), value.to_string()).unwrap();
    }

    /// How many processes the kernel has killed for want of memory.
    fn kills(&self) -> u64 {
        let file = if self.is_v2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.path.join(file)).unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")).expect("a count of kills");
        count.trim().parse().unwrap()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// The program in a cgroup, and its control socket.
struct Switch {
    child: Child,
    client: Client,
    events: EventStream,
    directory: tempfile::TempDir,
    cgroup: Cgroup,
}

impl Switch {
    fn start(name: &str, limits: [&str; 2]) -> Switch {
        let (cgroup, directory) = (Cgroup::new(name), tempfile::tempdir().unwrap());
        let socket = directory.path().join("control.sock");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo $$ >\"$1/cgroup.procs\" && shift && exec \"$@\"", "sh"]).arg(&cgroup.path);
        command.arg(env!("CARGO_BIN_EXE_fairlead-vswitch")).arg("run").arg("--socket").arg(&socket);
        command.args(guest::threads::arguments());
        command.args(["--user", "65534:65534", "--port-memory", limits[0], "--guest-memory", limits[1]]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("ready for ports") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "it ended before it was ready");
            assert!(!line.contains("is not bounded"), "{line}");
        }
        std::thread::spawn(move || log.read_to_end(&mut Vec::new()));
        let mut client = Client::new(&socket, LIMIT);
        for number in 0..5 {
            let listener = UnixListener::bind(directory.path().join(number.to_string())).unwrap();
            client.add_port(config(number), SocketSide::Listening, listener.as_fd(), None).unwrap();
        }
        let events = Client::new(&socket, LIMIT).events().unwrap();
        Switch { child, client, events, directory, cgroup }
    }

    /// A guest whose rings are at work, with some memory that it has used.
    fn guest(&mut self, number: usize) -> Guest {
        let mut guest = Guest::connect(number, &self.directory.path().join(number.to_string()));
        guest.set_up();
        guest
    }

    /// Its rings are at work, and `file` is shared beside its own memory.
    fn hostile(&mut self, number: usize, file: &File) -> Guest {
        let mut guest = self.guest(number);
        let region = [0, EMPTY_AT, EMPTY, EMPTY_AT, 0].map(u64::to_ne_bytes).concat();
        guest.message(37, PLAIN, &region, &[file.as_fd()]);
        guest.message(1, PLAIN, &[], &[]);
        // No answer: with what is charged already the region's own cost may be too much.
        let _ = guest.reply(1);
        guest
    }

    /// What the switch says of a guest that it disconnects.
    fn misbehaved(&mut self, number: usize) -> String {
        loop {
            let event = self.events.next(LIMIT).unwrap().expect("an event comes");
            if let PortEvent::Misbehaved { port, what } = event
                && port == number.to_string()
            {
                return what;
            }
        }
    }

    /// Another connection to its control socket.
    fn client(&self) -> Client {
        Client::new(self.directory.path().join("control.sock"), LIMIT)
    }

    fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn empty_file() -> File {
    let file = File::from(memfd_create(c"empty", MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(EMPTY).unwrap();
    file
}

/// The switch has hung up.
fn is_disconnected(guest: &Guest) -> bool {
    // SAFETY: the guest keeps its socket open for as long as it is borrowed.
    let socket = unsafe { BorrowedFd::borrow_raw(guest.socket_fd()) };
    has_hung_up(socket)
}

/// The same of a connection that may not be a guest's.
fn has_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::ZERO).unwrap();
    polled[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
}

/// Sends frames that lie in pages which nobody has used, from the page `first` on, until the switch hangs up or there are no more pages.
fn use_pages(guest: &mut Guest, first: u64) {
    for page in first..EMPTY / PAGE {
        let can_go_on = || guest.has_room() || is_disconnected(guest);
        wait_until("the switch takes frames, or hangs up", can_go_on, || page.to_string());
        if is_disconnected(guest) {
            return;
        }
        guest.send_from(EMPTY_AT + page * PAGE, 72);
    }
}

/// What a hypervisor does with pages that its guest gives back.
fn punch(file: &File, first: u64, pages: u64) {
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let [start, bytes] = [first, pages].map(|pages| i64::try_from(pages * PAGE).unwrap());
    fallocate(file, mode, start, bytes).unwrap();
}

fn exchange(one: &mut Guest, other: &mut Guest, number: u8) {
    let sent = frame(3, 4, number);
    one.send(&sent);
    wait_until("the frame arrives", || other.received().contains(&sent), String::new);
}

#[test]
fn guests_with_large_empty_files_lose_their_connections_and_the_switch_lives() {
    let mut switch = Switch::start("bounded", ["16", "40"]);
    let (mut one, mut other) = (switch.guest(3), switch.guest(4));
    exchange(&mut one, &mut other, 1);
    let kept = empty_file();
    for round in 0..3_u64 {
        // The same file, further on: what it had the switch use before is still charged.
        let mut hostile = switch.hostile(0, &kept);
        use_pages(&mut hostile, round * 8 * MIB / PAGE);
        let what = switch.misbehaved(0);
        // Once much is charged it may be refused before a page of it is used.
        let by_its_size = round > 0 && what.contains("costs the switch more than its limits allow");
        let by_its_pages = what.contains("pages that nobody has used yet") && what.contains("prealloc=on");
        assert!(by_its_size || by_its_pages, "{what}");
        exchange(&mut one, &mut other, 2);
    }
    let counters = switch.client.ports().unwrap().swap_remove(0).counters;
    assert!(counters.memory_refusals == 3 && counters.memory_bytes <= 16 * MIB, "{counters:?}");
    // Two more at once come to the limit of all ports.
    let files = [empty_file(), empty_file()];
    let mut more = [switch.hostile(1, &files[0]), switch.hostile(2, &files[1])];
    std::thread::scope(|scope| {
        more.iter_mut().for_each(|guest| drop(scope.spawn(|| use_pages(guest, 0))));
    });
    exchange(&mut one, &mut other, 3);
    let cost: u64 = switch.client.ports().unwrap().iter().map(|port| port.counters.memory_bytes).sum();
    assert!(cost <= 40 * MIB, "{cost}");
    assert!(switch.is_alive());
    assert_eq!(switch.cgroup.kills(), 0);
    // When the files are gone, so is their cost.
    drop((more, files, kept));
    let switch = std::cell::RefCell::new(switch);
    let cost = || switch.borrow_mut().client.ports().unwrap()[0].counters.memory_bytes;
    wait_until("what is gone is not counted any more", || cost() < MIB, || cost().to_string());
    let mut switch = switch.into_inner();
    let mut again = switch.hostile(0, &empty_file());
    use_pages(&mut again, (EMPTY - 4 * MIB) / PAGE);
    assert!(!is_disconnected(&again), "4 MiB are within the limit");
    exchange(&mut one, &mut other, 4);
}

/// A virtual machine with a balloon or free page reporting: a page that it gives back comes again as one that nobody has used.
#[test]
fn a_guest_that_gives_memory_back_keeps_its_connection() {
    /// 1,280 pages in all, of which the limit is 1,024.
    const BATCHES: u64 = 5;
    const BATCH: u64 = 256;
    let mut switch = Switch::start("gives-back", ["4", "40"]);
    let (mut one, mut other) = (switch.guest(3), switch.guest(4));
    let file = empty_file();
    let allocated = i64::try_from(BATCHES * BATCH * PAGE).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, allocated).unwrap();
    let mut guest = switch.hostile(0, &file);
    let mut sent = 0_u16;
    for batch in 0..BATCHES {
        let first = batch * BATCH;
        punch(&file, first, BATCH);
        for page in first..first + BATCH {
            let can_go_on = || guest.has_room() || is_disconnected(&guest);
            wait_until("the switch takes frames, or hangs up", can_go_on, || page.to_string());
            assert!(!is_disconnected(&guest), "cut off at page {page}");
            guest.send_from(EMPTY_AT + page * PAGE, 72);
            sent += 1;
        }
        let all_taken = || guest.used_index(TX) == sent || is_disconnected(&guest);
        wait_until("the switch has taken all frames, or hangs up", all_taken, || format!("of {sent}"));
        assert!(!is_disconnected(&guest), "cut off in batch {batch}");
        punch(&file, first, BATCH);
        let cost = || switch.client().ports().unwrap()[0].counters.memory_bytes;
        wait_until("what is gone is not counted any more", || cost() < 2 * MIB, || cost().to_string());
    }
    let counters = switch.client.ports().unwrap().swap_remove(0).counters;
    assert_eq!(counters.memory_refusals, 0, "{counters:?}");
    exchange(&mut one, &mut other, 1);
    assert_eq!(switch.cgroup.kills(), 0);
}

/// A pod that removes its socket, of which the daemon makes another, by a switch that can give the port a new listener or adds it anew; and
/// pods of one tenant that come and go while another one keeps their files.
#[test]
fn a_port_that_gets_a_new_socket_or_is_made_anew_does_not_start_afresh() {
    let mut switch = Switch::start("anew", ["16", "40"]);
    let (mut one, mut other) = (switch.guest(3), switch.guest(4));
    let (path, mut files) = (switch.directory.path().join("0"), Vec::new());
    for round in 0..10_u8 {
        let file = empty_file();
        let mut hostile = switch.hostile(0, &file);
        use_pages(&mut hostile, 0);
        drop(hostile);
        files.push(file);
        assert!(switch.is_alive(), "round {round}, kills {}", switch.cgroup.kills());
        fs::remove_file(&path).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        if round % 2 == 0 {
            wait_until("a new one is taken", || switch.client().can_listen_anew("0").is_ok(), String::new);
            switch.client.new_listener("0", listener.as_fd()).unwrap();
            let counters = switch.client.ports().unwrap().swap_remove(0).counters;
            assert!(counters.memory_refusals > 0, "{counters:?}");
            assert!(round > 0 || counters.memory_bytes > 12 * MIB, "{counters:?}");
        } else {
            switch.client.remove_port("0").unwrap();
            switch.client.add_port(config(0), SocketSide::Listening, listener.as_fd(), None).unwrap();
        }
        let blocks: i64 = files.iter().map(|file| nix::sys::stat::fstat(file).unwrap().st_blocks).sum();
        assert!(blocks * 512 <= 40 << 20, "round {round}: {blocks} blocks are charged");
        exchange(&mut one, &mut other, round);
    }
    assert_eq!(switch.cgroup.kills(), 0);
    // When they are gone there is room again.
    drop(files);
    let mut again = switch.hostile(0, &empty_file());
    use_pages(&mut again, (EMPTY - 4 * MIB) / PAGE);
    assert!(!is_disconnected(&again), "4 MiB are within the limit");
}

/// What it leaves unread is in the switch's memory for as long as it keeps its sockets.
#[test]
fn a_guest_that_leaves_its_replies_unread_and_connects_again_is_taken_until_eight_are_kept() {
    let mut switch = Switch::start("unread", ["16", "40"]);
    let (mut one, mut other) = (switch.guest(3), switch.guest(4));
    let path = switch.directory.path().join("0");
    let connect = || {
        let socket = UnixStream::connect(&path).unwrap();
        leave_replies_unread(&socket);
        socket
    };
    let ends = |socket: &UnixStream| {
        wait_until("the switch ends it", || has_hung_up(socket.as_fd()), String::new);
    };
    // Those that close their sockets are not counted.
    (0..20).map(|_| connect()).for_each(|socket| ends(&socket));
    let mut kept: Vec<UnixStream> = (0..8).map(|_| connect()).inspect(ends).collect();
    let ninth = connect();
    std::thread::sleep(Duration::from_millis(500));
    assert!(!has_hung_up(ninth.as_fd()), "nobody is taken while eight are kept");
    exchange(&mut one, &mut other, 1);
    drop(kept.pop());
    ends(&ninth);
    drop((kept, ninth));
    drop(switch.guest(0));
    exchange(&mut one, &mut other, 2);
    assert!(switch.is_alive());
}

#[test]
fn without_limits_one_such_guest_has_the_switch_killed() {
    let mut switch = Switch::start("unbounded", ["4096", "4096"]);
    let file = empty_file();
    let mut hostile = switch.hostile(0, &file);
    use_pages(&mut hostile, 0);
    wait_until("the kernel kills it", || !switch.is_alive(), String::new);
    assert_eq!(switch.cgroup.kills(), 1);
}
