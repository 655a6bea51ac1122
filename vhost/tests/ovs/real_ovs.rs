//! An OVS-DPDK of a test's own: a database server and a switch in a directory and a network namespace of their own, without
//! huge pages.

#![allow(clippy::unwrap_used)] // of tests alone

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fairlead_vhost::ovs_dpdk::{DatabaseAddress, Limits, Options, OvsDpdk, TlsFiles};
use tempfile::TempDir;

use crate::threads::allowed_cpus;

/// How long a busy machine may take for one step.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Those of a driver that waits as long as a busy machine may take.
fn patient() -> Limits {
    Limits { connect: LONG, answer: LONG, apply: LONG, release: LONG, serves: LONG, ..Limits::default() }
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !so() {
        assert!(Instant::now() < end, "{what}: not within {LONG:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A program that ends with the thread that started it, however that ends.
pub(crate) fn program(name: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(name).stdin(Stdio::null());
    command
}

/// A child that is killed when it is dropped.
pub(crate) struct Process(pub(crate) Child);

impl Process {}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

pub(crate) struct RealOvs {
    pub(crate) dir: TempDir,
    programs: PathBuf,
    database: Option<Process>,
    /// How the database is reached besides its socket.
    remotes: Vec<String>,
    switch: Option<Process>,
}

impl RealOvs {
    /// Starts both, with a bridge `br0` of the datapath type `netdev`.
    pub(crate) fn start() -> RealOvs {
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/ovs/usr");
        assert!(programs.join("bin/ovs-vsctl").exists(), "Open vSwitch is missing: run tests/setup.sh ovs");
        let dir = tempfile::Builder::new().prefix("ovs").tempdir().unwrap();
        let mut ovs = RealOvs { dir, programs, database: None, remotes: Vec::new(), switch: None };
        ovs.create_database();
        ovs.start_database();
        ovs.set_up_dpdk();
        ovs.start_switch();
        ovs.add_bridge();
        ovs
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = self::program(program);
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, self.dir.path());
        }
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn create_database(&self) {
        drop(std::fs::remove_file(self.path("conf.db")));
        let schema = self.programs.join("share/openvswitch/vswitch.ovsschema");
        let created = self
            .command(&self.programs.join("bin/ovsdb-tool"))
            .arg("create")
            .arg(self.path("conf.db"))
            .arg(schema)
            .status();
        assert!(created.unwrap().success());
    }

    pub(crate) fn start_database(&mut self) {
        drop(std::fs::remove_file(self.path("db.sock")));
        let server = self
            .command(&self.programs.join("sbin/ovsdb-server"))
            .arg(self.path("conf.db"))
            .arg(format!("--remote=punix:{}", self.path("db.sock").display()))
            .arg(format!("--unixctl={}", self.path("db.ctl").display()))
            .arg(format!("--log-file={}", self.path("db.log").display()))
            .args(&self.remotes)
            .spawn();
        self.database = Some(Process(server.unwrap()));
        until("the database server listens", || self.path("db.sock").exists());
    }

    pub(crate) fn set_up_dpdk(&self) {
        self.vsctl(&["--no-wait", "init"]);
        // The first of the processors that it may use, and another one for its poll thread if there is.
        let allowed: Vec<u32> = allowed_cpus().iter().take(2).collect();
        let mask = |cpu: Option<&u32>| format!("{:#x}", 1_u128 << cpu.unwrap());
        // OVS's own --in-memory does not go with --no-huge.
        let name = self.dir.path().file_name().unwrap().to_str().unwrap();
        let extra = format!("--no-pci --no-huge --legacy-mem -m 512 --no-telemetry --file-prefix={name}");
        self.vsctl(&[
            "--no-wait",
            "set",
            "Open_vSwitch",
            ".",
            "other_config:dpdk-init=true",
            &format!("other_config:dpdk-lcore-mask={}", mask(allowed.first())),
            &format!("other_config:pmd-cpu-mask={}", mask(allowed.last())),
            // Its poll thread leaves the core to others when it has nothing to do.
            "other_config:pmd-maxsleep=200",
            // Pages of 4 KiB hold one buffer each: a pool for all ports would take a gigabyte.
            "other_config:per-port-memory=true",
            &format!("other_config:dpdk-extra={extra}"),
        ]);
    }

    /// Starts the switch; it is at work when the next waiting `ovs-vsctl` returns.
    pub(crate) fn start_switch(&mut self) {
        // A bridge of the datapath type netdev makes a tap device: in a namespace of its own it is nobody's.
        let switch = self
            .command(Path::new("unshare"))
            .arg("--net")
            .arg(self.programs.join("lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"))
            .arg(format!("unix:{}", self.path("db.sock").display()))
            .arg(format!("--unixctl={}", self.path("vs.ctl").display()))
            .arg(format!("--log-file={}", self.path("vs.log").display()))
            .spawn();
        self.switch = Some(Process(switch.unwrap()));
    }

    pub(crate) fn kill_switch(&mut self) {
        self.switch = None;
    }

    pub(crate) fn kill_database(&mut self) {
        self.database = None;
    }

    /// Everything that OVS knew is lost, as after `rm conf.db`.
    pub(crate) fn recreate_database(&mut self) {
        self.kill_database();
        self.create_database();
        self.start_database();
    }

    pub(crate) fn add_bridge(&self) {
        self.vsctl(&["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"]);
    }

    /// What `ovs-vsctl` prints; it must succeed.
    #[track_caller]
    pub(crate) fn vsctl(&self, args: &[&str]) -> String {
        let mut command = self.command(&self.programs.join("bin/ovs-vsctl"));
        command.arg(format!("--db=unix:{}", self.path("db.sock").display())).arg("--timeout=60").args(args);
        let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ovs-vsctl {args:?}: {errors}\nvs.log:\n{}", self.log());
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Frames that came from, and that went to, the other end of a port, as the switch counts them now.
    pub(crate) fn frames(&self, port: &str) -> (u64, u64) {
        let mut command = self.command(&self.programs.join("bin/ovs-ofctl"));
        let output = command.args(["dump-ports", "br0", port]).stdout(Stdio::piped()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let count = |direction: &str| {
            let (_, rest) = text.split_once(direction)?;
            rest.split_once("pkts=")?.1.split(',').next()?.trim().parse().ok()
        };
        (count("rx ").unwrap_or(0), count("tx ").unwrap_or(0))
    }

    pub(crate) fn log(&self) -> String {
        let log = std::fs::read_to_string(self.path("vs.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Has the database reached by TCP and by TLS, too, with a certificate that `ovs-pki` has made; answers both ports. The files of ours,
    /// signed by the same CA, are `us-cert.pem`, `us-privkey.pem` and `pki/switchca/cacert.pem`; `stranger-…` are another CA's.
    pub(crate) fn serve_by_tls(&mut self) -> (u16, u16) {
        let pki = |args: &[&str]| {
            let mut command = self.command(&self.programs.join("bin/ovs-pki"));
            command.args([
                "--dir",
                self.path("pki").to_str().unwrap(),
                "--log",
                self.path("pki.log").to_str().unwrap(),
            ]);
            assert!(
                command.args(args).current_dir(self.dir.path()).status().unwrap().success(),
                "ovs-pki {args:?}"
            );
        };
        pki(&["init"]);
        for (name, ca) in [("db", "switch"), ("us", "switch"), ("stranger", "controller")] {
            pki(&["req+sign", name, ca]);
        }
        let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (tcp, tls) = (free(), free());
        let [tcp, tls] = [tcp, tls].map(|listener| listener.local_addr().unwrap().port());
        let file = |name: &str| self.path(name).display().to_string();
        self.remotes = vec![
            format!("--remote=ptcp:{tcp}:127.0.0.1"),
            format!("--remote=pssl:{tls}:127.0.0.1"),
            format!("--private-key={}", file("db-privkey.pem")),
            format!("--certificate={}", file("db-cert.pem")),
            format!("--ca-cert={}", file("pki/switchca/cacert.pem")),
        ];
        self.kill_database();
        self.start_database();
        (tcp, tls)
    }

    /// A driver that reaches it at this address.
    pub(crate) fn driver_at(&self, address: &str, tls: Option<TlsFiles>) -> OvsDpdk {
        let address = DatabaseAddress::parse(address).unwrap();
        let limits = patient();
        OvsDpdk::start(Options { address, tls, node: "here".to_owned(), run_dir: None, limits }).unwrap()
    }

    /// A driver of it, for the node `here`.
    pub(crate) fn driver(&self) -> OvsDpdk {
        self.driver_of("here")
    }

    pub(crate) fn driver_of(&self, node: &str) -> OvsDpdk {
        self.start_driver(node, patient())
    }

    /// One that gives up soon where there is no database.
    pub(crate) fn hasty_driver(&self) -> OvsDpdk {
        self.start_driver("here", Limits { connect: Duration::from_millis(100), ..Limits::default() })
    }

    fn start_driver(&self, node: &str, limits: Limits) -> OvsDpdk {
        let address = DatabaseAddress::parse(&format!("unix:{}", self.path("db.sock").display())).unwrap();
        OvsDpdk::start(Options { address, tls: None, node: node.to_owned(), run_dir: None, limits }).unwrap()
    }
}
