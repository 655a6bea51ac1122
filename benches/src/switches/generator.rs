//! DPDK's testpmd as two pods: it sends each frame that one port gets out of the other.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::memory::Memory;
use crate::bench::BenchError;
use crate::daemon::Daemon;

/// How long testpmd may take to start, or to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// The addresses of its two ports, as [`super::contender`] numbers them.
const ADDRESSES: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];

/// Which side makes the sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connects {
    /// testpmd connects to the switch.
    ToTheSwitch,
    /// testpmd listens, and the switch connects.
    FromTheSwitch,
}

/// What is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traffic {
    /// The length of a frame without its checksum, in bytes.
    pub(crate) frame: u16,
    /// Frames of one burst.
    pub(crate) burst: u16,
    /// Bursts that each port sends first; they stay under way.
    pub(crate) bursts: u16,
}

/// A running testpmd.
#[derive(Debug)]
pub(crate) struct Generator {
    process: Daemon,
    commands: File,
    output: PathBuf,
}

impl Generator {
    /// Starts it with ports at these sockets, on the second processor. It sends nothing yet.
    pub(crate) fn start(
        dir: &Path,
        sockets: &[PathBuf; 2],
        connects: Connects,
        memory: &Memory,
    ) -> Result<Generator, BenchError> {
        let (fifo, output) = (dir.join("commands"), dir.join("testpmd.log"));
        let doing = BenchError::process("starting testpmd");
        let commands = (|| -> io::Result<File> {
            if fifo.exists() {
                fs::remove_file(&fifo)?;
            }
            mkfifo(&fifo, Mode::S_IRWXU)?;
            // Open for both, so that neither end waits for the other.
            OpenOptions::new().read(true).write(true).open(&fifo)
        })()
        .map_err(doing)?;
        let server = u8::from(connects == Connects::FromTheSwitch);
        let ports: String = (0..2)
            .map(|at| {
                let (path, mac) = (sockets[at].display(), ADDRESSES[at]);
                format!("--vdev=net_virtio_user{at},path={path},queues=1,queue_size=256,server={server},mac={mac} ")
            })
            .collect();
        let line = format!(
            "stdbuf -oL dpdk-testpmd --no-pci --no-telemetry --lcores 0@0,1@1 {} {ports} -- -i --forward-mode=mac \
             --total-num-mbufs=16384 --txd=256 --rxd=256 --eth-peer=0,{} --eth-peer=1,{} <{}",
            memory.options("generator", 512),
            ADDRESSES[1],
            ADDRESSES[0],
            fifo.display(),
        );
        let process = Daemon::companion(&line, &output)?;
        let generator = Generator { process, commands, output };
        generator.until("a prompt", |text| text.contains("testpmd>").then_some(()))?;
        Ok(generator)
    }

    /// Frames that both ports got in a second, over this time.
    pub(crate) fn rate(&mut self, traffic: Traffic, time: Duration) -> Result<f64, BenchError> {
        let Traffic { frame, burst, bursts } = traffic;
        self.tell(&format!("set txpkts {frame}\nset burst {burst}\nset nbcore 1\nstart tx_first {bursts}"))?;
        // The first frames also teach the switch who is where.
        thread::sleep(Duration::from_millis(700));
        let (first, since) = (self.received()?, Instant::now());
        thread::sleep(time);
        let (last, took) = (self.received()?, since.elapsed());
        self.tell("stop")?;
        Ok((last - first) / took.as_secs_f64())
    }

    /// Frames that both ports have received.
    fn received(&mut self) -> Result<f64, BenchError> {
        let before = reports(&self.text()).len();
        self.tell("show port stats all")?;
        let last = self.until("its statistics", |text| {
            let all = reports(text);
            (all.len() >= before + 2).then(|| all[all.len() - 2..].iter().sum::<f64>())
        })?;
        Ok(last)
    }

    fn tell(&mut self, lines: &str) -> Result<(), BenchError> {
        writeln!(self.commands, "{lines}").map_err(BenchError::process("telling testpmd what to do"))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    fn until<T>(&self, what: &str, seen: impl Fn(&str) -> Option<T>) -> Result<T, BenchError> {
        let started = Instant::now();
        loop {
            if let Some(seen) = seen(&self.text()) {
                return Ok(seen);
            }
            if started.elapsed() > ANSWERS_WITHIN {
                let doing = format!(
                    "waiting for testpmd to show {what}; it said at last:\n{}",
                    self.process.last_words()
                );
                return Err(BenchError::process(doing)(io::ErrorKind::TimedOut.into()));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// What each whole report of a port says that it has received.
fn reports(text: &str) -> Vec<f64> {
    let whole = text.split("NIC statistics for port").skip(1).filter(|part| part.contains("Tx-pps"));
    whole
        .filter_map(|part| part.split_once("RX-packets:")?.1.split_whitespace().next()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_is_not_whole_yet_does_not_count() {
        let one = "NIC statistics for port 0 #\n RX-packets: 12 RX-missed: 0\n Tx-pps: 3\n";
        assert_eq!(reports(one), [12.0]);
        assert_eq!(reports(&format!("{one}NIC statistics for port 1 #\n RX-packets: 13")), [12.0]);
        assert!(reports("").is_empty());
    }
}
