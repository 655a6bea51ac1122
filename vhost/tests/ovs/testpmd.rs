//! DPDK's testpmd as a pod: a virtio_user port that sends each frame back to where it came from.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // of tests alone

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};

use tempfile::TempDir;

use crate::real_ovs::{Process, program, until};
use crate::threads::allowed_cpus;

pub(crate) struct Testpmd {
    commands: ChildStdin,
    output: PathBuf,
    _dir: TempDir,
    _process: Process,
}

impl Drop for Testpmd {
    /// Where a test fails, what it said last is of use.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let text = self.text();
            let lines: Vec<&str> = text.lines().collect();
            println!("testpmd said at last:\n{}", lines[lines.len().saturating_sub(30)..].join("\n"));
        }
    }
}

impl Testpmd {
    /// Starts a pod of this number (1 to 9) that creates the socket and listens. Its frames go to the pod `peer`.
    pub(crate) fn start(number: u8, peer: u8, socket: &Path) -> Testpmd {
        let dir = tempfile::Builder::new().prefix("pod").tempdir().unwrap();
        let output = dir.path().join("output");
        let prefix = dir.path().file_name().unwrap().to_str().unwrap();
        let vdev = format!(
            "--vdev=net_virtio_user0,path={},queues=1,queue_size=256,server=1,mac=02:00:00:00:00:0{number}",
            socket.display()
        );
        let cpus = allowed_cpus();
        // What it says would stay in its buffer until it ends.
        let mut child = program("stdbuf")
            .args(["-oL", "dpdk-testpmd"])
            .args(["--no-pci", "--no-huge", "-m", "128", "--no-telemetry"])
            .args(["--lcores", &format!("0@({cpus}),1@({cpus})")])
            .args([&format!("--file-prefix={prefix}"), &vdev, "--", "-i", "--forward-mode=macswap"])
            .args(["--total-num-mbufs=4096", "--txd=256", "--rxd=256"])
            .arg(format!("--eth-peer=0,02:00:00:00:00:0{peer}"))
            .stdin(Stdio::piped())
            .stdout(File::create(&output).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let commands = child.stdin.take().unwrap();
        Testpmd { commands, output, _dir: dir, _process: Process(child) }
    }

    /// Waits until it has a prompt: the switch is connected then.
    pub(crate) fn wait_until_ready(&self) {
        until("testpmd is ready", || self.text().contains("testpmd>"));
    }

    /// Has it send 32 frames to its peer, and send each frame back that comes from then on.
    pub(crate) fn send(&mut self) {
        self.tell("stop\nstart tx_first 1");
    }

    /// Has it send each frame back, and none of its own.
    pub(crate) fn reflect(&mut self) {
        self.tell("stop\nstart");
    }

    pub(crate) fn stop(&mut self) {
        self.tell("stop");
    }

    /// The frames that it has received so far.
    pub(crate) fn received(&mut self) -> u64 {
        let before = self.statistics().len();
        self.tell("show port stats 0");
        until("testpmd tells its statistics", || self.statistics().len() > before);
        *self.statistics().last().unwrap()
    }

    fn statistics(&self) -> Vec<u64> {
        let text = self.text();
        let whole = text.split("NIC statistics for port 0").skip(1).filter(|part| part.contains("Tx-pps"));
        whole.map(|part| number_after(part, "RX-packets:").unwrap_or(0)).collect()
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.output).unwrap()).into_owned()
    }
}

fn number_after(text: &str, word: &str) -> Option<u64> {
    text.split_once(word)?.1.split_whitespace().next()?.parse().ok()
}
