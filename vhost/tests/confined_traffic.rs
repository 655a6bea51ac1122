//! Frames between two DPDK applications through the program as it runs on a node: another user, no capability, its system calls
//! filtered, told of its ports over the control socket, and killed in the middle.
//!
//! The applications use memory without huge pages, so the machine needs nothing prepared.

// Every one of these is a test's; what is unwrapped is what it claims.
#![allow(clippy::unwrap_used, clippy::panic)]

#[allow(dead_code, reason = "other tests start a data plane")]
mod threads;

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use fairlead_host::Mac;
use fairlead_vhost::control::Client;
use fairlead_vhost::control::messages::{PortEvent, SocketSide};
use fairlead_vhost::port::{PortConfig, PortView};

const LIMIT: Duration = Duration::from_secs(60);
const MACS: [&str; 2] = ["02:00:00:00:0b:01", "02:00:00:00:0b:02"];

/// A process that is killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_vswitch(socket: &Path) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairlead-vswitch"));
    command.arg("run").arg("--socket").arg(socket).args(["--user", "64321:64321"]).args(threads::arguments());
    let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(process.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("ready for ports") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "it ended before it was ready");
    }
    // The rest of its log must go somewhere.
    std::thread::spawn(move || log.read_to_end(&mut Vec::new()));
    Running(process)
}

/// A testpmd with this mode of forwarding. It ends with its input.
fn start_testpmd(number: usize, socket: &Path, listens: bool, mode: &str) -> (Running, ChildStdin) {
    let (path, server, mac) = (socket.display(), u8::from(listens), MACS[number]);
    let device = format!("net_virtio_user0,path={path},queues=1,server={server},mac={mac}");
    let (mut command, cpus) = (Command::new("dpdk-testpmd"), threads::allowed_cpus());
    command.args(["--no-pci", "--no-huge", "-m", "128", "--no-telemetry", "--no-shconf"]);
    command.args(["--lcores", &format!("0@({cpus}),1@({cpus})"), "--vdev", &device]);
    command.args(["--", &format!("--forward-mode={mode}")]);
    command.args(["--total-num-mbufs=4096", &format!("--eth-peer=0,{}", MACS[1 - number])]);
    command.env("RUNTIME_DIRECTORY", socket.with_extension("run"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = command.spawn().unwrap();
    let (input, mut output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
    std::thread::spawn(move || output.read_to_end(&mut Vec::new()));
    (Running(process), input)
}

/// The sockets of a node, and the daemon's client.
struct Node {
    dir: tempfile::TempDir,
    client: Client,
}

impl Node {
    fn new() -> Node {
        let dir = tempfile::tempdir().unwrap();
        let client = Client::new(dir.path().join("control.sock"), LIMIT);
        Node { dir, client }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn port_path(&self, number: usize) -> PathBuf {
        self.path(&format!("{number}.sock"))
    }

    /// Ports of applications that listen, as the daemon adds them after each start of the switch.
    fn connect_ports(&mut self) {
        for number in 0..2 {
            let until = Instant::now() + LIMIT;
            let socket = loop {
                match UnixStream::connect(self.port_path(number)) {
                    Ok(socket) => break socket,
                    Err(error) => assert!(Instant::now() < until, "application {number}: {error}"),
                }
                std::thread::sleep(Duration::from_millis(20));
            };
            self.client.add_port(config(number), SocketSide::Connected, socket.as_fd(), None).unwrap();
        }
    }

    /// Waits until the second port has got so many frames since it was added.
    fn wait_frames(&mut self, frames: u64) -> Vec<PortView> {
        let until = Instant::now() + LIMIT;
        loop {
            let ports = self.client.ports().unwrap();
            if ports[1].counters.to_guest_frames >= frames {
                return ports;
            }
            assert!(Instant::now() < until, "no {frames} frames in {LIMIT:?}: {ports:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn config(number: usize) -> PortConfig {
    PortConfig {
        name: format!("pod{number}"),
        network: "red".into(),
        mac: MACS[number].parse::<Mac>().unwrap(),
        vlan: Some(7),
        trunk: Vec::new(),
        spoof_check: true,
        isolated: false,
        queues: 1,
        mtu: 1_500,
        from_guest_bits: None,
        to_guest_bits: None,
    }
}

#[test]
fn a_process_without_privileges_forwards_between_two_dpdk_applications() {
    let mut node = Node::new();
    let _vswitch = start_vswitch(&node.path("control.sock"));
    let mut events = Client::new(node.path("control.sock"), LIMIT).events().unwrap();
    for number in 0..2 {
        let listener = UnixListener::bind(node.port_path(number)).unwrap();
        node.client.add_port(config(number), SocketSide::Listening, listener.as_fd(), None).unwrap();
    }
    let _sender = start_testpmd(0, &node.port_path(0), false, "txonly");
    let _receiver = start_testpmd(1, &node.port_path(1), false, "rxonly");
    let ports = node.wait_frames(1_000);
    assert!(ports.iter().all(|port| port.connected && port.active_queues == 1), "{ports:?}");
    for _ in 0..2 {
        let event = events.next(LIMIT).unwrap();
        assert!(matches!(event, Some(PortEvent::Connected { .. })), "{event:?}");
    }
    let table = node.client.mac_table().unwrap();
    assert!(table.iter().any(|entry| entry.port == "pod1" && entry.vlan == Some(7)), "{table:?}");
    assert_eq!(node.client.keep_only(&["pod1".into()]).unwrap(), ["pod0"]);
    assert_eq!(node.client.ports().unwrap().len(), 1);
}

#[test]
fn applications_that_listen_exchange_frames_again_after_the_process_was_killed() {
    let mut node = Node::new();
    let _sender = start_testpmd(0, &node.port_path(0), true, "txonly");
    let _receiver = start_testpmd(1, &node.port_path(1), true, "rxonly");
    for _ in 0..3 {
        let vswitch = start_vswitch(&node.path("control.sock"));
        node.connect_ports();
        node.wait_frames(1_000);
        drop(vswitch);
        // The connection is found to be lost.
        assert!(node.client.version().is_err());
    }
}
