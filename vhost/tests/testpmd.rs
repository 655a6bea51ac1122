//! Real DPDK applications on the data plane's ports: `dpdk-testpmd` with virtio_user, in both modes, and restarts of either side.
//!
//! The applications use memory without huge pages (`--no-huge`), so the machine needs nothing prepared. Nothing here is judged by
//! speed: a condition is waited for, and the limit is generous.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests start the program")]
mod threads;

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairlead_host::Mac;
use fairlead_vhost::dataplane::{DataPlane, Event, Socket};
use fairlead_vhost::port::{PortConfig, PortView};

/// How long a condition may take on a machine that has much else to do.
const LIMIT: Duration = Duration::from_secs(60);

const MACS: [&str; 2] = ["02:00:00:00:0a:01", "02:00:00:00:0a:02"];

/// Who listens at the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listener {
    Us,
    Application,
}

/// A testpmd that sends back to the other one whatever it gets.
struct Testpmd {
    process: Child,
    input: ChildStdin,
    output: Arc<Mutex<String>>,
    errors: Arc<Mutex<String>>,
}

impl Testpmd {
    fn start(number: usize, socket: &Path, listener: Listener) -> Testpmd {
        Testpmd::with_queues(number, socket, listener, 1)
    }

    fn with_queues(number: usize, socket: &Path, listener: Listener, queues: u16) -> Testpmd {
        let installed = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .any(|directory| directory.join("dpdk-testpmd").exists());
        assert!(installed, "dpdk-testpmd is not installed (Debian's package dpdk-dev has it)");
        let server = u8::from(listener == Listener::Application);
        let device = format!(
            "net_virtio_user0,path={},queues={queues},cq=1,queue_size=256,server={server},mac={}",
            socket.display(),
            MACS[number]
        );
        let cpus = threads::allowed_cpus();
        // Written to a pipe, its answers would stay in its buffer.
        let mut command = Command::new("stdbuf");
        command.args([
            "-oL",
            "dpdk-testpmd",
            "--no-pci",
            "--no-huge",
            "-m",
            "128",
            "--no-telemetry",
            "--no-shconf",
        ]);
        // Where it puts its own files; two of one prefix would meet.
        let run = socket.with_extension("run");
        std::fs::create_dir_all(&run).expect("a directory for testpmd's own files");
        command.env("RUNTIME_DIRECTORY", run);
        command.args(["--lcores", &format!("0@({cpus}),1@({cpus})"), "--vdev", &device, "--", "-i"]);
        // Frames that come before it begins are not thrown away: the other may have begun already.
        command.args([
            "--forward-mode=mac",
            "--no-flush-rx",
            "--total-num-mbufs=4096",
            "--txd=256",
            "--rxd=256",
        ]);
        command.arg(format!("--eth-peer=0,{}", MACS[1 - number]));
        command.args([format!("--rxq={queues}"), format!("--txq={queues}")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("stdbuf is installed (coreutils)");
        let input = process.stdin.take().expect("a pipe");
        // Apart from each other: a warning may come in the middle of the prompt.
        let (output, errors) = (Arc::default(), Arc::default());
        keep(process.stdout.take().expect("a pipe"), &output);
        keep(process.stderr.take().expect("a pipe"), &errors);
        Testpmd { process, input, output, errors }
    }

    fn say(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("testpmd reads its commands");
    }

    fn wait_for_output(&self, what: &str) {
        let said = || self.output.lock().unwrap().contains(what);
        wait_until(&format!("testpmd says {what:?}"), said, || {
            format!("{}\n{}", self.output.lock().unwrap(), self.errors.lock().unwrap())
        });
    }

    /// Makes it forward, after it has sent some frames of its own.
    fn forward(&mut self, own_bursts: u32) {
        self.wait_for_output("testpmd>");
        let tx_first = if own_bursts > 0 { format!("start tx_first {own_bursts}") } else { "start".into() };
        self.say(&tx_first);
    }

    /// Its own count of received frames.
    fn received(&mut self) -> u64 {
        self.output.lock().unwrap().clear();
        self.say("show port stats all");
        self.wait_for_output("Tx-bps");
        let output = self.output.lock().unwrap();
        let number = output.split("RX-packets:").nth(1).and_then(|rest| rest.split_whitespace().next());
        number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no RX-packets in {output}"))
    }

    /// The frames that came by each of two queues; absent while one of them has neither received nor sent any.
    fn received_by_queue(&mut self) -> Option<[u64; 2]> {
        self.output.lock().unwrap().clear();
        self.say("show fwd stats all");
        self.wait_for_output("Accumulated forward statistics");
        let output = self.output.lock().unwrap();
        let of_queue = |queue: u16| {
            let (_, rest) = output.split_once(&format!("RX Port= 0/Queue= {queue} "))?;
            rest.split_once("RX-packets:")?.1.split_whitespace().next()?.parse().ok()
        };
        Some([of_queue(0)?, of_queue(1)?])
    }
}

/// Adds all that comes out of a pipe to `output`.
fn keep(mut pipe: impl Read + Send + 'static, output: &Arc<Mutex<String>>) {
    let output = Arc::clone(output);
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = pipe.read(&mut bytes) {
            output.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    });
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool, state: impl Fn() -> String) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < LIMIT, "{what}: not within {LIMIT:?}; {}", state());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A data plane with two ports of one network.
struct Node {
    plane: DataPlane,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Node {
    fn start() -> Node {
        let events = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&events);
        let plane = DataPlane::start(threads::options(), move |event| told.lock().unwrap().push(event));
        Node { plane: plane.expect("a data plane starts"), events }
    }

    fn add(&self, number: usize, socket: Socket) {
        self.plane.add_port(config(number, 1), socket, None).expect("the port is added");
    }

    fn state(&self) -> String {
        format!("ports {:?}, events {:?}", self.plane.ports(), self.events.lock().unwrap())
    }

    fn port(&self, number: usize) -> PortView {
        self.plane.ports().into_iter().find(|port| port.config.name == name(number)).expect("the port")
    }

    fn wait_connected(&self) {
        let all_at_work = |port: &PortView| port.connected && port.active_queues == port.config.queues;
        let ready = || self.plane.ports().iter().all(all_at_work);
        wait_until("both ports are at work", ready, || self.state());
    }

    /// Waits until both guests have got more frames than they have now.
    fn wait_traffic(&self) {
        let before = [0, 1].map(|number| self.port(number).counters.to_guest_frames);
        let more = || [0, 1].iter().all(|n| self.port(*n).counters.to_guest_frames > before[*n] + 100);
        wait_until("frames go both ways", more, || self.state());
    }
}

fn name(number: usize) -> String {
    format!("pod{number}")
}

fn config(number: usize, queues: u16) -> PortConfig {
    PortConfig {
        name: name(number),
        network: "blue".into(),
        mac: MACS[number].parse::<Mac>().expect("a MAC"),
        vlan: None,
        trunk: Vec::new(),
        spoof_check: true,
        isolated: false,
        queues,
        mtu: 1500,
        from_guest_bits: None,
        to_guest_bits: None,
    }
}

fn listen(path: &Path) -> Socket {
    Socket::Listening(OwnedFd::from(UnixListener::bind(path).expect("the socket is made")))
}

/// Connects as soon as the application listens.
fn connect(path: &Path) -> OwnedFd {
    let mut socket = None;
    let connected = || {
        socket = UnixStream::connect(path).ok();
        socket.is_some()
    };
    wait_until("the application listens", connected, || path.display().to_string());
    OwnedFd::from(socket.expect("connected"))
}

fn paths(directory: &Path) -> [PathBuf; 2] {
    [0, 1].map(|number| directory.join(format!("{number}.sock")))
}

#[test]
fn two_applications_that_connect_exchange_frames_and_again_after_one_was_killed() {
    let directory = tempfile::tempdir().unwrap();
    let paths = paths(directory.path());
    let node = Node::start();
    (0..2).for_each(|number| node.add(number, listen(&paths[number])));
    let mut one = Testpmd::start(0, &paths[0], Listener::Us);
    let mut other = Testpmd::start(1, &paths[1], Listener::Us);
    node.wait_connected();
    other.forward(0);
    one.forward(1);
    node.wait_traffic();
    wait_until("both have got frames", || one.received() > 100 && other.received() > 100, || node.state());

    drop(other);
    wait_until("the end is noticed", || !node.port(1).connected, || node.state());
    let mut other = Testpmd::start(1, &paths[1], Listener::Us);
    node.wait_connected();
    other.forward(4);
    node.wait_traffic();
    wait_until("the new one has got frames", || other.received() > 100, || node.state());

    drop((one, other));
    node.plane.remove_port(&name(0)).unwrap();
    node.plane.remove_port(&name(1)).unwrap();
    assert!(node.plane.ports().is_empty());
}

#[test]
fn two_applications_that_listen_exchange_frames_and_again_after_our_restart() {
    let directory = tempfile::tempdir().unwrap();
    let paths = paths(directory.path());
    let mut one = Testpmd::start(0, &paths[0], Listener::Application);
    let mut other = Testpmd::start(1, &paths[1], Listener::Application);
    let node = Node::start();
    (0..2).for_each(|number| node.add(number, Socket::Connecting(connect(&paths[number]))));
    node.wait_connected();
    other.forward(0);
    one.forward(1);
    node.wait_traffic();

    drop(node);
    let node = Node::start();
    (0..2).for_each(|number| node.add(number, Socket::Connecting(connect(&paths[number]))));
    node.wait_connected();
    // Frames that were in the rings go on; some more in case that none were.
    one.say("stop");
    one.forward(4);
    node.wait_traffic();
    wait_until("both have got frames", || one.received() > 100 && other.received() > 100, || node.state());
}

#[test]
fn two_applications_with_two_pairs_of_queues_exchange_frames_through_all_of_them() {
    let directory = tempfile::tempdir().unwrap();
    let paths = paths(directory.path());
    let node = Node::start();
    for (number, path) in paths.iter().enumerate() {
        node.plane.add_port(config(number, 2), listen(path), None).expect("the port is added");
    }
    let mut both = [0, 1].map(|number| Testpmd::with_queues(number, &paths[number], Listener::Us, 2));
    both.iter_mut().for_each(|application| application.forward(1));
    node.wait_connected();
    node.wait_traffic();
    for application in &mut both {
        let through_both =
            || application.received_by_queue().is_some_and(|frames| frames.iter().all(|n| *n > 0));
        wait_until("frames come by both queues", through_both, || node.state());
    }
}
