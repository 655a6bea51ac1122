//! Those who are compared, and how each is started with two ports.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fairlead_host::Mac;
use fairlead_vhost::control::Client;
use fairlead_vhost::control::messages::SocketSide;
use fairlead_vhost::port::PortConfig;

use super::SwitchBench;
use super::generator::Connects;
use crate::bench::BenchError;
use crate::daemon::Daemon;

/// How long a switch may take until it has two ports.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// The network of the first two ports.
pub(crate) const NETWORK: &str = "net";
/// A rate that no frame ever waits for, so that only counting it costs.
const ENOUGH: u64 = 1 << 50;

/// A switch, as it is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    /// Ours, learning, its thread polling.
    Ours,
    /// The same, but it sleeps when nothing comes.
    Adaptive,
    /// Ours with two threads and a port on each.
    TwoThreads,
    /// Ours with the spoof check.
    SpoofCheck,
    /// Ours with a VLAN.
    Vlan,
    /// Ours with rates.
    Rates,
    /// Ours with all of these.
    All,
    /// OVS-DPDK as it is: learning.
    OvsNormal,
    /// OVS-DPDK with a flow for each port.
    OvsFlows,
    /// DPDK's vhost driver: a wire between two ports, no switch.
    DpdkVhost,
}

/// Ports of ours beside the first two.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FurtherPorts {
    /// How many there are.
    pub(crate) count: usize,
    /// Their network; the first two are in [`NETWORK`].
    pub(crate) network: &'static str,
}

/// A running switch with two ports.
#[derive(Debug)]
pub(crate) struct Running {
    /// Where the ports are reached.
    pub(crate) sockets: [PathBuf; 2],
    /// Where further ports are reached.
    pub(crate) further: Vec<PathBuf>,
    /// Who makes the sockets.
    pub(crate) connects: Connects,
    /// The processes, ended in this order.
    pub(crate) processes: Vec<Daemon>,
}

impl Contender {
    /// Everybody.
    pub(crate) const ALL: [Contender; 10] = [
        Contender::Ours,
        Contender::Adaptive,
        Contender::TwoThreads,
        Contender::SpoofCheck,
        Contender::Vlan,
        Contender::Rates,
        Contender::All,
        Contender::OvsNormal,
        Contender::OvsFlows,
        Contender::DpdkVhost,
    ];

    /// Its name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Contender::Ours => "ours",
            Contender::Adaptive => "ours-adaptive",
            Contender::TwoThreads => "ours-two-threads",
            Contender::SpoofCheck => "ours-spoofchk",
            Contender::Vlan => "ours-vlan",
            Contender::Rates => "ours-rates",
            Contender::All => "ours-all",
            Contender::OvsNormal => "ovs-normal",
            Contender::OvsFlows => "ovs-flows",
            Contender::DpdkVhost => "dpdk-vhost",
        }
    }

    /// What it is.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Contender::Ours => "learning switch, polling",
            Contender::Adaptive => "the same, asleep when nothing comes",
            Contender::TwoThreads => "the same with two threads, a port on each",
            Contender::SpoofCheck => "with the spoof check",
            Contender::Vlan => "with a VLAN",
            Contender::Rates => "with rates, both ways",
            Contender::All => "with spoof check, VLAN and rates",
            Contender::OvsNormal => "OVS-DPDK, learning (action NORMAL)",
            Contender::OvsFlows => "OVS-DPDK, a flow from port to port",
            Contender::DpdkVhost => "testpmd with two net_vhost ports: no switch",
        }
    }

    /// Whether it is one of ours.
    pub(crate) fn is_ours(self) -> bool {
        !matches!(self, Contender::OvsNormal | Contender::OvsFlows | Contender::DpdkVhost)
    }

    /// Its executable.
    pub(crate) fn program(self, bench: &SwitchBench) -> PathBuf {
        match self {
            Contender::OvsNormal | Contender::OvsFlows => {
                bench.ovs.join("lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk")
            }
            Contender::DpdkVhost => PathBuf::from("/usr/bin/dpdk-testpmd"),
            _ => bench.ours.clone(),
        }
    }

    /// Starts it with two ports, on the first processor; one with two threads on the second, too.
    pub(crate) fn start(self, bench: &SwitchBench) -> Result<Running, BenchError> {
        self.start_with(bench, FurtherPorts { count: 0, network: NETWORK })
    }

    /// The same; ours has further ports.
    pub(crate) fn start_with(
        self,
        bench: &SwitchBench,
        further: FurtherPorts,
    ) -> Result<Running, BenchError> {
        let dir = bench.dir.join("switch");
        let removed = if dir.exists() { fs::remove_dir_all(&dir) } else { Ok(()) };
        let made = removed.and_then(|()| fs::create_dir_all(&dir));
        made.map_err(BenchError::process("making a switch's directory"))?;
        let sockets = [dir.join("a"), dir.join("b")];
        match self {
            Contender::OvsNormal | Contender::OvsFlows => self.start_ovs(bench, &dir, sockets),
            Contender::DpdkVhost => start_dpdk_vhost(bench, &dir, sockets),
            _ => self.start_ours(bench, &dir, sockets, further),
        }
    }

    fn start_ours(
        self,
        bench: &SwitchBench,
        dir: &Path,
        sockets: [PathBuf; 2],
        further: FurtherPorts,
    ) -> Result<Running, BenchError> {
        let (control, log) = (dir.join("control"), dir.join("log"));
        let polling = if self == Contender::Adaptive { "adaptive" } else { "always" };
        let cpus = if self == Contender::TwoThreads { "--cpus 0 --cpus 1" } else { "--cpus 0" };
        let line = format!(
            "{} run --socket {} {cpus} --polling {polling} --user 65534:65534",
            bench.ours.display(),
            control.display()
        );
        let process = Daemon::companion(&line, &log)?;
        until("the switch's control socket", || Ok(control.exists()))?;
        let mut client = Client::new(&control, READY_WITHIN);
        let more: Vec<PathBuf> = (0..further.count).map(|at| dir.join(format!("more-{at}"))).collect();
        for (at, socket) in sockets.iter().chain(&more).enumerate() {
            let network = if at < sockets.len() { NETWORK } else { further.network };
            let listening =
                UnixListener::bind(socket).map_err(BenchError::process("making a port's socket"))?;
            let port = self.port(at, network);
            let added = client.add_port(port, SocketSide::Listening, listening.as_fd(), None);
            added.map_err(io::Error::other).map_err(BenchError::process("adding a port"))?;
        }
        let connects = Connects::ToTheSwitch;
        Ok(Running { sockets, further: more, connects, processes: vec![process] })
    }

    /// Port `at` of ours.
    pub(super) fn port(self, at: usize, network: &str) -> PortConfig {
        let has = |feature| self == feature || self == Contender::All;
        let rate = has(Contender::Rates).then_some(ENOUGH);
        PortConfig {
            name: format!("port-{at}"),
            network: network.to_owned(),
            mac: mac(at),
            vlan: has(Contender::Vlan).then_some(100),
            trunk: Vec::new(),
            spoof_check: has(Contender::SpoofCheck),
            isolated: false,
            queues: 1,
            mtu: 1500,
            from_guest_bits: rate,
            to_guest_bits: rate,
        }
    }

    fn start_ovs(
        self,
        bench: &SwitchBench,
        dir: &Path,
        sockets: [PathBuf; 2],
    ) -> Result<Running, BenchError> {
        let ovs = Ovs { programs: &bench.ovs, dir };
        let schema = bench.ovs.join("share/openvswitch/vswitch.ovsschema").display().to_string();
        ovs.run("bin/ovsdb-tool", &["create", &ovs.file("conf.db"), &schema])?;
        let database = ovs.serve(
            "sbin/ovsdb-server",
            &format!("{} --remote=punix:{}", ovs.file("conf.db"), ovs.file("db.sock")),
            "db",
        )?;
        until("the database of OVS", || Ok(dir.join("db.sock").exists()))?;
        let extra = format!("--no-pci --no-telemetry {}", bench.memory.options("ovs", 640));
        ovs.vsctl(&["--no-wait", "init"])?;
        ovs.vsctl(&[
            "--no-wait",
            "set",
            "Open_vSwitch",
            ".",
            "other_config:dpdk-init=true",
            "other_config:dpdk-lcore-mask=0x1",
            "other_config:pmd-cpu-mask=0x1",
            "other_config:per-port-memory=true",
            &format!("other_config:dpdk-extra={extra}"),
        ])?;
        let switch = ovs.serve(
            "lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk",
            &format!("unix:{}", ovs.file("db.sock")),
            "vs",
        )?;
        ovs.vsctl(&["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"])?;
        for (name, socket) in ["a", "b"].into_iter().zip(&sockets) {
            let path = format!("options:vhost-server-path={}", socket.display());
            ovs.vsctl(&[
                "add-port",
                "br0",
                name,
                "--",
                "set",
                "Interface",
                name,
                "type=dpdkvhostuserclient",
                &path,
            ])?;
        }
        if self == Contender::OvsFlows {
            ovs.run("bin/ovs-ofctl", &["del-flows", "br0"])?;
            ovs.run("bin/ovs-ofctl", &["add-flow", "br0", "in_port=a,actions=output:b"])?;
            ovs.run("bin/ovs-ofctl", &["add-flow", "br0", "in_port=b,actions=output:a"])?;
        }
        let (connects, processes) = (Connects::FromTheSwitch, vec![switch, database]);
        Ok(Running { sockets, further: Vec::new(), connects, processes })
    }
}

/// The address of port `at`.
pub(crate) fn mac(at: usize) -> Mac {
    Mac([2, 0, 0, 0, 0, u8::try_from(at + 1).unwrap_or(u8::MAX)])
}

fn start_dpdk_vhost(bench: &SwitchBench, dir: &Path, sockets: [PathBuf; 2]) -> Result<Running, BenchError> {
    let ports: String =
        (0..2).map(|at| format!("--vdev=net_vhost{at},iface={},queues=1 ", sockets[at].display())).collect();
    let line = format!(
        "dpdk-testpmd --no-pci --no-telemetry --lcores 0@1,1@0 {} {ports} -- --forward-mode=io --auto-start \
         --total-num-mbufs=16384 --txd=256 --rxd=256 --stats-period 3600",
        bench.memory.options("vhost", 512)
    );
    let process = Daemon::companion(&line, &dir.join("log"))?;
    until("the sockets of DPDK's vhost driver", || Ok(sockets.iter().all(|socket| socket.exists())))?;
    let (connects, processes) = (Connects::ToTheSwitch, vec![process]);
    Ok(Running { sockets, further: Vec::new(), connects, processes })
}

/// Open vSwitch with all of its files in one directory.
struct Ovs<'a> {
    programs: &'a Path,
    dir: &'a Path,
}

impl Ovs<'_> {
    const VARIABLES: [&'static str; 4] = ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"];

    fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn serve(&self, program: &str, arguments: &str, name: &str) -> Result<Daemon, BenchError> {
        let dir = self.dir.display();
        let variables = Self::VARIABLES.map(|variable| format!("{variable}={dir}")).join(" ");
        let program = self.programs.join(program);
        let line = format!("env {variables} {} {arguments} --unixctl={dir}/{name}.ctl", program.display());
        Ok(Daemon::companion(&line, &self.dir.join(format!("{name}.log")))?)
    }

    fn vsctl(&self, arguments: &[&str]) -> Result<(), BenchError> {
        let database = format!("--db=unix:{}", self.file("db.sock"));
        self.run("bin/ovs-vsctl", &[&[database.as_str(), "--timeout=60"], arguments].concat())
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<(), BenchError> {
        let doing = || BenchError::process(format!("{program} {}", arguments.join(" ")));
        let mut command = Command::new(self.programs.join(program));
        command.args(arguments).envs(Self::VARIABLES.map(|variable| (variable, self.dir)));
        let output = command.stdin(Stdio::null()).output().map_err(doing())?;
        if output.status.success() {
            return Ok(());
        }
        Err(doing()(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())))
    }
}

/// Waits until something is so.
pub(crate) fn until(what: &str, so: impl Fn() -> io::Result<bool>) -> Result<(), BenchError> {
    let started = Instant::now();
    while !so().map_err(BenchError::process(format!("looking for {what}")))? {
        if started.elapsed() > READY_WITHIN {
            return Err(BenchError::process(format!("waiting for {what}"))(io::ErrorKind::TimedOut.into()));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
