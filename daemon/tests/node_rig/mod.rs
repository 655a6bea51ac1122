//! A node of its own for one test: a network namespace with a master `eth0`, directories, a daemon that can be killed
//! at a step. Everything is removed when the test ends, however it ends.

mod call;
mod leftovers;
mod pod;
mod seeded_random;

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fairlead_host::scratch_netns::ScratchNetns;
use fairlead_host::unix_http::HttpAnswer;
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) use call::{Call, Reply, Way, stored};
pub(crate) use leftovers::Leftovers;
pub(crate) use pod::Pod;
pub(crate) use seeded_random::SeededRandom;

/// The time limit of everything that is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// A node with its directories and its master interface, and the daemons that are started on it.
pub(crate) struct Rig {
    node: ScratchNetns,
    dir: TempDir,
}

impl Rig {
    /// Makes a node with `eth0`, which is up, on a wire to nobody.
    pub(crate) fn new() -> Rig {
        let dir = TempDir::new().unwrap();
        for name in ["run", "state", "data", "net.d", "bin", "pods"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        // DELs are finished soon after their answer, so that little is waited for.
        fs::write(dir.path().join("config.yaml"), "reapAfter: 30ms\n").unwrap();
        let rig = Rig { node: ScratchNetns::new(dir.path(), "node").unwrap(), dir };
        rig.ip("link add eth0 type veth peer name wire0");
        rig.ip("link set wire0 up");
        rig.ip("link set eth0 up");
        rig
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("run/fairlead.sock")
    }

    /// Runs `ip` in the node's namespace.
    pub(crate) fn ip(&self, words: &str) {
        pod::ip(&self.node, words);
    }

    /// Takes an interface of this machine into the node; the kernel moves it back when the test ends.
    pub(crate) fn take(&self, nic: &str) {
        let netns = self.node.path();
        let out = Command::new("ip").args(["link", "set", nic, "netns"]).arg(netns).output().unwrap();
        assert!(out.status.success(), "{nic}: {}", String::from_utf8_lossy(&out.stderr));
    }

    /// Starts a program in the node's namespace.
    pub(crate) fn spawn(&self, command: &mut Command) -> Child {
        self.node.inside(|| command.spawn().unwrap()).unwrap()
    }

    /// Starts a daemon and does not wait until it is ready.
    pub(crate) fn launch(&self, failpoint: Option<&str>) -> Daemon {
        self.launch_with(failpoint.map(|step| ("FAIRLEAD_FAILPOINT", step.to_owned())))
    }

    fn launch_with(&self, variables: impl IntoIterator<Item = (&'static str, String)>) -> Daemon {
        let log = File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = Command::new(daemon());
        command.arg("run");
        for (flag, name) in [("--run-dir", "run"), ("--state-dir", "state"), ("--config", "config.yaml")] {
            command.arg(flag).arg(self.path(name));
        }
        command.env("CNI_CONF_DIR", self.path("net.d")).env("CNI_PLUGIN_DIR", self.path("bin"));
        command.env_remove("FAIRLEAD_FAILPOINT").env_remove("FAIRLEAD_FAILPOINT_PAUSE");
        command.envs(variables);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Daemon(self.spawn(&mut command))
    }

    /// Starts a daemon and waits until it is ready.
    pub(crate) fn start(&self) -> Daemon {
        self.ready(self.launch(None))
    }

    /// Starts a daemon that will die at a step, `<step>[:n]`.
    pub(crate) fn start_dying_at(&self, step: &str) -> Daemon {
        self.ready(self.launch(Some(step)))
    }

    /// Starts a daemon that makes the file `paused` at a step and goes on when that is removed.
    pub(crate) fn start_pausing_at(&self, step: &str) -> Daemon {
        let pause = format!("{step}:{}", self.path("paused").display());
        self.ready(self.launch_with(Some(("FAIRLEAD_FAILPOINT_PAUSE", pause))))
    }

    /// Starts a daemon that reports to the socket at `reports` as to systemd's, whose watchdog has this limit.
    pub(crate) fn start_with_watchdog(&self, limit: Duration, reports: &Path) -> Daemon {
        let limit = limit.as_micros().to_string();
        let socket = reports.display().to_string();
        self.ready(self.launch_with([("WATCHDOG_USEC", limit), ("NOTIFY_SOCKET", socket)]))
    }

    fn ready(&self, mut daemon: Daemon) -> Daemon {
        until("the daemon is ready", || {
            let ended = daemon.0.try_wait().unwrap();
            assert_eq!(ended, None, "the daemon ended by itself");
            self.is_ready()
        });
        daemon
    }

    /// What a daemon answers to a GET, where one runs.
    pub(crate) fn try_get(&self, path: &str) -> Option<HttpAnswer> {
        call::get(&self.socket(), path)
    }

    /// What a running daemon answers to a GET.
    pub(crate) fn get(&self, path: &str) -> HttpAnswer {
        self.try_get(path).unwrap()
    }

    /// Whether a daemon serves and is ready.
    pub(crate) fn is_ready(&self) -> bool {
        self.try_get("/readyz").is_some_and(|answer| answer.status == 200)
    }

    /// What `fairleadd attachments -o json` prints.
    pub(crate) fn attachments(&self) -> Vec<Value> {
        let out = self.operator(&["attachments", "--output", "json"]).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        let rows: Value = serde_json::from_slice(&out.stdout).unwrap();
        rows.as_array().unwrap().clone()
    }

    /// A command of the operator's that asks this node's daemon.
    pub(crate) fn operator(&self, words: &[&str]) -> Command {
        let mut command = Command::new(daemon());
        command.args(words).arg("--run-dir").arg(self.path("run"));
        command
    }

    /// What `/metrics` answers.
    pub(crate) fn metrics(&self) -> String {
        self.get("/metrics").body
    }

    /// The end of what the daemons have logged.
    pub(crate) fn log(&self) -> String {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// macvlan on `eth0` with an address of each family from host-local; each name has subnets of its own.
    pub(crate) fn macvlan(&self, name: &str) -> Value {
        let n = 70 + name.len();
        json!({
            "cniVersion": "1.0.0", "name": name, "type": "macvlan", "master": "eth0", "mode": "bridge",
            "ipam": {
                "type": "host-local", "dataDir": self.path("data"),
                "ranges": [[{ "subnet": format!("10.{n}.0.0/22") }], [{ "subnet": format!("fd00:{n}::/64") }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            },
        })
    }

    /// macvlan on `eth0` without addresses.
    pub(crate) fn layer2(&self) -> Value {
        json!({ "cniVersion": "1.0.0", "name": "wire", "type": "macvlan", "master": "eth0", "ipam": {} })
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("-- the daemons' log\n{}", self.log());
        }
    }
}

/// A daemon; killed when dropped.
pub(crate) struct Daemon(Child);

impl Daemon {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Kills the daemon with SIGKILL and waits for its end.
    pub(crate) fn kill(mut self) {
        assert!(self.0.try_wait().unwrap().is_none(), "the daemon ended by itself");
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits for it to die at its failpoint.
    pub(crate) fn dies(mut self) {
        until("the daemon dies at its failpoint", || self.0.try_wait().unwrap().is_some());
        assert_eq!(self.0.wait().unwrap().signal(), Some(9));
    }

    /// Its exit status, once it has ended.
    pub(crate) fn ended(&mut self) -> Option<Option<i32>> {
        self.0.try_wait().unwrap().map(|status| status.code())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The middle one of these times: other work of the machine slows some of them.
pub(crate) fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<Duration> = times.collect();
    times.sort();
    times[times.len() / 2]
}

/// Waits until something holds.
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < limit, "it never came that {what}");
        sleep(Duration::from_millis(5));
    }
}

/// The path of the built daemon; `FAIRLEAD_DAEMON` where the suite was copied elsewhere, as into the lab.
fn daemon() -> PathBuf {
    std::env::var_os("FAIRLEAD_DAEMON").map_or_else(|| env!("CARGO_BIN_EXE_fairleadd").into(), PathBuf::from)
}

/// The path of the built CNI executable.
pub(crate) fn executable() -> PathBuf {
    let beside = daemon().with_file_name("fairlead");
    let path = std::env::var_os("FAIRLEAD_SHIM").map_or(beside, PathBuf::from);
    assert!(path.exists(), "{} is missing; make it with: cargo build -p fairlead", path.display());
    path
}
