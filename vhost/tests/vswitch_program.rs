//! The program itself: what it gives up, what it does then, and that another one takes its place.

// Every one of these is a test's; what is unwrapped is what it claims.
#![allow(clippy::unwrap_used)]

#[allow(dead_code, clippy::expect_used, clippy::panic, reason = "other tests use the rest")]
mod guest;

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use fairlead_host::Mac;
use fairlead_host::topology::CpuList;
use fairlead_vhost::confinement::OPEN_FILES;
use fairlead_vhost::control::messages::SocketSide;
use fairlead_vhost::control::{Client, ClientError};
use fairlead_vhost::dataplane::{PollPlace, poll_places};
use fairlead_vhost::port::{DropReason, PortConfig};
use guest::{BASE, BYTES, Guest, PLAIN, TX, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlead-vswitch");
const LIMIT: Duration = Duration::from_secs(60);

/// A running program, killed when the test ends.
struct Vswitch {
    child: Child,
}

impl Vswitch {
    /// Starts it and waits until it is ready.
    fn start(place: &Place, arguments: &[&str]) -> Vswitch {
        Vswitch::spawn(place.command(arguments))
    }

    /// The same by a command.
    fn spawn(mut command: Command) -> Vswitch {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("ready for ports") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "it ended before it was ready");
        }
        // The rest of its log must go somewhere.
        std::thread::spawn(move || log.read_to_end(&mut Vec::new()));
        Vswitch { child }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// The fields of `/proc/PID/status`.
    fn status(&self) -> HashMap<String, String> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
    }
}

impl Drop for Vswitch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory with the sockets of a test.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("control.sock")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("run").arg("--socket").arg(self.socket()).args(arguments);
        command
    }

    fn client(&self) -> Client {
        Client::new(self.socket(), LIMIT)
    }

    fn add_port(&self, client: &mut Client, name: &str) -> Result<(), ClientError> {
        let listener = UnixListener::bind(self.dir.path().join(name)).unwrap();
        client.add_port(config(name), SocketSide::Listening, listener.as_fd(), None)
    }
}

#[test]
fn a_log_that_cannot_be_written_costs_the_log_alone() {
    let place = Place::new();
    let mut command = place.command(&[]);
    command.stderr(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let _vswitch = Vswitch { child: command.spawn().unwrap() };
    let mut client = place.client();
    wait_until("it answers", || client.version().is_ok(), String::new);
    // Each is a line of the log, of the control thread and of the poll thread.
    place.add_port(&mut client, "a").unwrap();
    let guest = Guest::connect(0, &place.dir.path().join("a"));
    wait_until("connected", || client.ports().unwrap()[0].has_connection, String::new);
    drop(guest);
    wait_until("gone", || !client.ports().unwrap()[0].has_connection, String::new);
    place.add_port(&mut client, "b").unwrap();
    assert_eq!(client.ports().unwrap().len(), 2);
}

fn config(name: &str) -> PortConfig {
    PortConfig {
        name: name.into(),
        network: "red".into(),
        mac: Mac([2, 0, 0, 0, 0, 1]),
        vlan: None,
        trunk: Vec::new(),
        spoof_check: true,
        isolated: false,
        queues: 1,
        mtu: 1_500,
        from_guest_bits: None,
        to_guest_bits: None,
    }
}

/// A command that has these capabilities alone, by which a container of the DaemonSet starts the program.
fn with_capabilities(place: &Place, only: &[String]) -> Command {
    let set: String = only.iter().map(|name| format!(",+{}", name.to_lowercase())).collect();
    let program = place.command(&["--user", "64321:64322"]);
    let mut command = Command::new("setpriv");
    command
        .arg(format!("--bounding-set=-all{set}"))
        .arg("--")
        .arg(program.get_program())
        .args(program.get_args());
    command
}

/// The capabilities that the DaemonSet of the switch has.
fn of_the_manifest() -> Vec<String> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/components/vhost-user/vswitch.yaml");
    let manifest: Value = serde_saphyr::from_str(&fs::read_to_string(manifest).unwrap()).unwrap();
    let context = &manifest["spec"]["template"]["spec"]["containers"][0]["securityContext"];
    assert_eq!(context["capabilities"]["drop"][0], "ALL");
    serde_json::from_value(context["capabilities"]["add"].clone()).unwrap()
}

fn names(client: &mut Client) -> Vec<String> {
    client.ports().unwrap().into_iter().map(|port| port.config.name).collect()
}

/// What the program says when it can't start.
fn failure(place: &Place, arguments: &[&str]) -> String {
    failure_of(place.command(arguments))
}

fn failure_of(mut command: Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    assert!(!status.success());
    String::from_utf8(stderr).unwrap()
}

#[test]
fn the_program_gives_up_all_privileges_and_serves_ports_without_them() {
    let place = Place::new();
    let vswitch = Vswitch::start(&place, &["--user", "64321:64322"]);
    let mut client = place.client();
    place.add_port(&mut client, "one").unwrap();
    place.add_port(&mut client, "two").unwrap();
    assert_eq!(names(&mut client), ["one", "two"]);
    assert_eq!(client.version().unwrap().pid, vswitch.child.id());
    for thread in fs::read_dir(format!("/proc/{}/task", vswitch.child.id())).unwrap() {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "Seccomp_filters:\t2"] {
            assert!(status.contains(line), "{line} in {status}");
        }
    }
    let status = vswitch.status();
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status[set], "0000000000000000", "{set}");
    }
    assert_eq!(status["Uid"], "64321\t64321\t64321\t64321");
    assert_eq!(status["Gid"], "64322\t64322\t64322\t64322");
    assert_eq!(status["Groups"], "");
    let limits = fs::read_to_string(format!("/proc/{}/limits", vswitch.child.id())).unwrap();
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().take(2).map(|number| number.parse().unwrap()).collect::<Vec<u64>>()
    };
    assert_eq!(limit("Max core file size"), [0, 0]);
    let open_files = limit("Max open files");
    let is_all_it_may = open_files[0] == open_files[1].min(OPEN_FILES);
    assert!(is_all_it_may || open_files[0] > OPEN_FILES, "{open_files:?}");
}

#[test]
fn it_uses_each_capability_of_its_manifest_and_says_which_one_it_lacks() {
    let all = of_the_manifest();
    assert_eq!(all, ["SETUID", "SETGID", "SETPCAP"], "each is looked at below");
    let without = |one: &str| {
        let place = Place::new();
        let command =
            with_capabilities(&place, &all.iter().filter(|name| *name != one).cloned().collect::<Vec<_>>());
        (place, command)
    };
    let sets = |vswitch: &Vswitch| ["CapPrm", "CapEff", "CapBnd"].map(|set| vswitch.status()[set].clone());
    let place = Place::new();
    let able = Vswitch::spawn(with_capabilities(&place, &all));
    place.add_port(&mut place.client(), "one").unwrap();
    assert_eq!(sets(&able), ["0000000000000000"; 3]);
    for one in ["SETUID", "SETGID"] {
        let (_place, command) = without(one);
        let text = failure_of(command);
        let told =
            "the process can't become user 64321:64322; start it as root with CAP_SETUID and CAP_SETGID";
        assert!(text.contains(told), "without {one}: {text}");
    }
    // It serves, and the bounding set stays as it was started with (docs/vswitch.md): SETGID is 6, SETUID 7.
    let (place, command) = without("SETPCAP");
    let less = Vswitch::spawn(command);
    place.add_port(&mut place.client(), "one").unwrap();
    assert_eq!(sets(&less), ["0000000000000000", "0000000000000000", "00000000000000c0"]);
    assert_eq!(less.status()["NoNewPrivs"], "1");
}

#[test]
fn a_killed_program_is_followed_by_another_on_the_same_socket_which_is_told_its_ports_again() {
    let place = Place::new();
    let first = Vswitch::start(&place, &[]);
    let mut client = place.client();
    place.add_port(&mut client, "one").unwrap();
    let before = client.version().unwrap().pid;
    drop(first);
    assert!(matches!(client.version(), Err(ClientError::Closed { .. })));
    assert!(matches!(client.version(), Err(ClientError::Connect { .. })));
    let begun = Instant::now();
    let _second = Vswitch::start(&place, &[]);
    assert_ne!(client.version().unwrap().pid, before);
    assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
    assert_eq!(names(&mut client), Vec::<String>::new());
    place.add_port(&mut client, "two").unwrap();
    assert_eq!(names(&mut client), ["two"]);
}

#[test]
fn a_second_program_leaves_the_socket_to_the_first() {
    let place = Place::new();
    let _first = Vswitch::start(&place, &[]);
    let text = failure(&place, &[]);
    assert!(
        text.contains("another fairlead-vswitch serves this socket; stop it, or take another path"),
        "{text}"
    );
    place.client().version().unwrap();
}

#[test]
fn sigterm_and_sigint_end_it_cleanly() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let place = Place::new();
        let mut vswitch = Vswitch::start(&place, &[]);
        let mut client = place.client();
        place.add_port(&mut client, "one").unwrap();
        vswitch.signal(signal);
        let status = vswitch.child.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{signal}: {status}");
        assert!(client.version().is_err());
    }
}

/// The processors of each poll thread of a process, by the thread's name.
fn poll_threads(process: u32) -> Vec<(String, String)> {
    let of_thread = |path: PathBuf| {
        let name = fs::read_to_string(path.join("comm")).unwrap().trim().to_owned();
        let status = fs::read_to_string(path.join("status")).unwrap();
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        name.starts_with("vswitch-poll").then(|| (name, cpus.trim().to_owned()))
    };
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let mut threads: Vec<_> = tasks.filter_map(|task| of_thread(task.unwrap().path())).collect();
    threads.sort();
    threads
}

/// The processor time that each poll thread of a process has used, in ticks.
fn poll_thread_ticks(process: u32) -> Vec<u64> {
    let of_thread = |path: PathBuf| {
        let stat = fs::read_to_string(path.join("stat")).unwrap();
        let (name, rest) = stat.split_once(") ").unwrap();
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let ticks = [11, 12].map(|field| fields[field].parse::<u64>().unwrap());
        name.contains("vswitch-poll").then_some(ticks[0] + ticks[1])
    };
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    tasks.filter_map(|task| of_thread(task.unwrap().path())).collect()
}

#[test]
fn no_poll_thread_of_an_idle_program_uses_a_processor() {
    let (place, allowed) = (Place::new(), guest::threads::allowed_cpus().to_string());
    let vswitch = Vswitch::start(&place, &["--cpus", &allowed, "--cpus", &allowed]);
    let mut client = place.client();
    let guests = ["0", "1"].map(|name| {
        place.add_port(&mut client, name).unwrap();
        let mut guest = Guest::connect(name.parse().unwrap(), &place.dir.path().join(name));
        guest.set_up();
        guest
    });
    let at_work = || client.ports().unwrap().iter().all(|port| port.active_queues == 1);
    wait_until("their rings are at work", at_work, String::new);
    wait_until("it sleeps", || guests.iter().all(|guest| guest.asks_for_kicks(TX)), String::new);
    std::thread::sleep(Duration::from_millis(50));
    let (before, started) = (poll_thread_ticks(vswitch.child.id()), Instant::now());
    std::thread::sleep(Duration::from_millis(500));
    let after = poll_thread_ticks(vswitch.child.id());
    let used: Vec<u64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
    assert_eq!((before.len(), after.len()), (2, 2));
    assert!(used.iter().all(|ticks| *ticks <= 2), "{used:?} ticks of 10 ms in {:?}", started.elapsed());
}

#[test]
fn each_list_of_processors_has_a_thread_that_is_bound_to_it() {
    let place = Place::new();
    let allowed = guest::threads::allowed_cpus();
    let (first, last) = (allowed.iter().next().unwrap(), allowed.iter().last().unwrap());
    let lists = [format!("--cpus={first}"), format!("--cpus={last}")];
    let vswitch = Vswitch::start(&place, &[lists[0].as_str(), &lists[1], "--user", "64321:64321"]);
    let bound = [("vswitch-poll", first), ("vswitch-poll-1", last)];
    let bound = bound.map(|(name, cpu)| (name.to_owned(), cpu.to_string()));
    assert_eq!(poll_threads(vswitch.child.id()), bound);
    let mut client = place.client();
    for (name, thread) in [("one", 0), ("two", 1), ("three", 0)] {
        place.add_port(&mut client, name).unwrap();
        let ports = client.ports().unwrap();
        let port = ports.iter().find(|port| port.config.name == name).unwrap();
        assert_eq!(port.thread.number, thread, "{name}");
    }
}

#[test]
fn without_a_list_each_numa_node_has_a_thread() {
    let place = Place::new();
    let vswitch = Vswitch::start(&place, &[]);
    let places = poll_places(Path::new("/sys"), &[]).unwrap();
    let cpus = |place: &PollPlace| {
        let cpus = place.cpus.iter().map(|cpu| u32::try_from(*cpu).unwrap());
        cpus.collect::<CpuList>().to_string()
    };
    let bound: Vec<String> = poll_threads(vswitch.child.id()).into_iter().map(|(_, cpus)| cpus).collect();
    assert_eq!(bound, places.iter().map(cpus).collect::<Vec<_>>());
}

#[test]
fn what_can_not_be_is_said_with_the_remedy() {
    let place = Place::new();
    let text = failure(&place, &["--cpus", "9999"]);
    assert!(text.contains("the data plane can't start"), "{text}");
    let text = failure(&place, &["--user", "nobody:nogroup"]);
    assert!(text.contains("give two numbers below 4294967295, such as 65534:65534"), "{text}");
    let version = Command::new(PROGRAM).arg("--version").output().unwrap();
    assert_eq!(
        String::from_utf8(version.stdout).unwrap(),
        format!("fairlead-vswitch {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn a_port_floods_as_many_frames_as_the_program_is_told() {
    let place = Place::new();
    let text = failure(&place, &["--storm-frames", "0"]);
    assert!(text.contains("0 is not in 1.."), "{text}");
    let _vswitch = Vswitch::start(&place, &["--storm-frames", "1"]);
    let mut client = place.client();
    place.add_port(&mut client, "a").unwrap();
    let mut guest = Guest::connect(0, &place.dir.path().join("a"));
    guest.set_up();
    let mut sent = [&[0xff; 6][..], &config("a").mac.0, &[8, 0]].concat();
    sent.resize(60, 0);
    for _ in 0..300 {
        wait_until("there is room", || guest.has_room(), String::new);
        guest.send(&sent);
    }
    let mut counters = || client.ports().unwrap().remove(0).counters;
    wait_until("all are counted", || counters().from_guest_frames == 300, String::new);
    // 256 pass at once, and one more in each second that this takes.
    let dropped = counters().from_guest_drops.get(&DropReason::Storm).copied();
    assert!((1..=44).contains(&dropped.unwrap_or(0)), "{dropped:?}");
}

/// Everything that a guest can have the process keep open: 16 rings, 32 regions, and a message that never comes whole.
#[test]
fn no_guest_makes_the_process_keep_more_files_open_than_a_port_is_counted_with() {
    let place = Place::new();
    let vswitch = Vswitch::start(&place, &[]);
    let open = || fs::read_dir(format!("/proc/{}/fd", vswitch.child.id())).unwrap().count();
    let mut client = place.client();
    client.version().unwrap();
    let before = open();
    let listener = UnixListener::bind(place.dir.path().join("a")).unwrap();
    let config = PortConfig { queues: 8, ..config("a") };
    client.add_port(config, SocketSide::Listening, listener.as_fd(), None).unwrap();
    let mut guest = Guest::connect(0, &place.dir.path().join("a"));
    guest.agree();
    for region in 0..32_u64 {
        let at = BASE + region * BYTES;
        let payload = [0, at, BYTES, at, 0].map(u64::to_ne_bytes).concat();
        guest.message(37, PLAIN, &payload, &[guest.file.as_fd()]);
    }
    for ring in 0..16 {
        guest.event(12, ring, guest.kicks[0].as_fd());
        guest.event(13, ring, guest.calls[0].as_fd());
    }
    guest.settle();
    let of_the_port = || u64::try_from(open().saturating_sub(before)).unwrap();
    assert_eq!(of_the_port(), 66, "all but the message that is not yet whole");
    let header = [5, PLAIN, 40].map(u32::to_ne_bytes).concat();
    guest.raw(&header, &[guest.file.as_fd(); 32]);
    wait_until("all of it is there", || of_the_port() == 98, || of_the_port().to_string());
    const { assert!(OPEN_FILES >= 1_024 * 98) };
    // One more than is waited for is one too many: the listening socket is left.
    guest.raw(&[0], &[guest.file.as_fd()]);
    wait_until("the guest is gone", || of_the_port() == 1, || of_the_port().to_string());
}
