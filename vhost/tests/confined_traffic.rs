//! Frames between two DPDK applications through the program as it runs on a node: another user, no capability, its system calls
//! filtered, told of its ports over the control socket, and killed in the middle.
//!
//! The applications use memory without huge pages, so the machine needs nothing prepared.

// Every one of these is a test's; what is unwrapped is what it claims.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
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
    command.arg("run").arg("--socket").arg(socket).args(["--user", "64321:64321"]);
    let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(process.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("ready for ports") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "it ended before it was ready");
    }
    std::thread::spawn(move || {
        log.lines().map_while(Result::ok).for_each(|line| eprintln!("vswitch: {line}"))
    });
    Running(process)
}

/// A testpmd that sends some frames, and sends back to the other one whatever it gets. It ends with its input.
fn start_testpmd(number: usize, socket: &Path) -> (Running, ChildStdin) {
    let device = format!("net_virtio_user0,path={},queues=1,server=0,mac={}", socket.display(), MACS[number]);
    let mut command = Command::new("dpdk-testpmd");
    command.args(["--no-pci", "--no-huge", "-m", "128", "--no-telemetry", "--no-shconf"]);
    command.args([
        "--lcores",
        "0@(0,1),1@(0,1)",
        "--vdev",
        &device,
        "--",
        "--forward-mode=mac",
        "--tx-first",
    ]);
    command.args(["--total-num-mbufs=4096", &format!("--eth-peer=0,{}", MACS[1 - number])]);
    command.env("RUNTIME_DIRECTORY", socket.with_extension("run"));
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (input, mut output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
    std::thread::spawn(move || output.read_to_end(&mut Vec::new()));
    (Running(process), input)
}

/// The sockets of a node, and the daemon's client.
struct Node {
    dir: tempfile::TempDir,
    client: Client,
    listeners: [UnixListener; 2],
}

impl Node {
    fn new() -> Node {
        let dir = tempfile::tempdir().unwrap();
        let listeners = [0, 1].map(|n| UnixListener::bind(dir.path().join(format!("{n}.sock"))).unwrap());
        let client = Client::new(dir.path().join("control.sock"), LIMIT);
        Node { dir, client, listeners }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What the daemon does after each start of the switch.
    fn replay(&mut self) {
        for (number, listener) in self.listeners.iter().enumerate() {
            self.client.add_port(config(number), SocketSide::Listening, listener.as_fd()).unwrap();
        }
    }

    /// Waits until both ports have got so many frames since they were added.
    fn wait_frames(&mut self, frames: u64) -> Vec<PortView> {
        let until = Instant::now() + LIMIT;
        loop {
            let ports = self.client.ports().unwrap();
            if ports.iter().all(|port| port.counters.to_guest_frames >= frames) {
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
    }
}

#[test]
fn a_process_without_privileges_forwards_between_two_dpdk_applications() {
    let mut node = Node::new();
    let _vswitch = start_vswitch(&node.path("control.sock"));
    let mut events = Client::new(node.path("control.sock"), LIMIT).events().unwrap();
    node.replay();
    let _applications = [0, 1].map(|n| start_testpmd(n, &node.path(&format!("{n}.sock"))));
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
