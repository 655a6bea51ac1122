//! The daemon as a process: one for each run directory, its start and stop, its files that are watched. Each runs in a
//! network namespace of its own, so nothing touches the machine's.

// Every one of these is a test's; what is unwrapped is what it claims.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use fairlead_cni::spool::{DIRECTORY, EntryName, LOCK_FILE, serialise};
use fairlead_cni::wire;
use fairlead_daemon::metrics::{Calls, Exposition};
use fairlead_host::topology::CpuList;
use fairlead_host::unix_http::{self, HttpAnswer, HttpRequest};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_fairleadd");

struct Node {
    dir: tempfile::TempDir,
}

impl Node {
    fn new() -> Node {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("net.d")).unwrap();
        Node { dir }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", BIN]).args(words);
        self.with_places(command, words[0] == "run")
    }

    fn with_places(&self, mut command: Command, runs: bool) -> Command {
        let flags = [("--run-dir", "run"), ("--state-dir", "state"), ("--config", "config.yaml")];
        // The operator's commands learn the other paths from the daemon itself.
        for (flag, name) in flags.into_iter().take(if runs { 3 } else { 1 }) {
            command.arg(flag).arg(self.path(name));
        }
        command.env("CNI_CONF_DIR", self.path("net.d")).env("CNI_PLUGIN_DIR", self.path("bin"));
        command
    }

    fn run(&self) -> Daemon {
        spawned(self.command(&["run"]))
    }

    /// Starts a command as `fairleadd run` in a network namespace of its own, by a program that makes the
    /// namespace.
    fn run_as(&self, inner: &Command) -> Daemon {
        let mut command = Command::new("unshare");
        command.args(["--net", "--"]).arg(inner.get_program()).args(inner.get_args());
        spawned(self.with_places(command, true))
    }

    fn start(&self) -> Daemon {
        let mut daemon = self.run();
        until("it is ready", || {
            assert!(daemon.0.try_wait().unwrap().is_none(), "it ended: {}", daemon.log());
            self.try_get("/readyz").is_some_and(|answer| answer.status == 200)
        });
        daemon
    }

    fn ask(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn try_get(&self, path: &str) -> Option<HttpAnswer> {
        let request = HttpRequest { method: "GET", path, body: "" };
        unix_http::exchange(&self.path("run/fairlead.sock"), request, Duration::from_secs(20)).ok()
    }

    fn get(&self, path: &str) -> Value {
        serde_json::from_str(&self.try_get(path).unwrap().body).unwrap()
    }
}

fn spawned(mut command: Command) -> Daemon {
    Daemon(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
}

struct Daemon(Child);

impl Daemon {
    fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    fn log(&mut self) -> String {
        let mut log = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        log
    }

    fn ended(mut self) -> (Option<i32>, String) {
        let code = self.0.wait().unwrap().code();
        (code, self.log())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(20);
    while !is() {
        assert!(Instant::now() < limit, "it never came that {what}");
        sleep(Duration::from_millis(10));
    }
}

fn network(name: &str) -> String {
    json!({ "cniVersion": "1.0.0", "name": name, "plugins": [{ "type": "macvlan" }] }).to_string()
}

fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, path).unwrap();
}

#[test]
fn k18_sigterm_ends_it_with_0_announced_and_the_next_start_takes_the_announcement_back() {
    let node = Node::new();
    let daemon = node.start();
    assert!(!node.path("run/stopping").exists());
    daemon.signal("TERM");
    let (code, log) = daemon.ended();
    assert_eq!(code, Some(0), "{log}");
    assert!(node.path("run/stopping").exists() && !node.path("run/fairlead.sock").exists());
    let _daemon = node.start();
    assert!(!node.path("run/stopping").exists());
}

#[test]
fn k19_readyz_healthz_and_livez_tell_every_condition_and_what_was_seen() {
    let node = Node::new();
    let _daemon = node.start();
    let names = |path| {
        let told = node.get(path);
        assert_eq!(told["ok"], true, "{told}");
        let all = told["conditions"].as_array().unwrap().clone();
        all.iter().map(|c| c["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("/readyz"), ["capabilities", "networks", "store", "engine", "replay", "settings"]);
    let of_engine = ["netlink", "store", "namespaces", "files", "drivers", "pools"];
    let all = ["calls", "watchers", "memory", "mounts", "inotify"].into_iter().chain(of_engine);
    assert_eq!(names("/healthz"), all.collect::<Vec<_>>());
    // What a restart of the daemon could end.
    assert_eq!(names("/livez"), ["calls", "watchers", "memory", "mounts", "netlink", "namespaces"]);
    assert!(node.get("/healthz")["conditions"][2]["reason"].as_str().unwrap().contains(" MiB"));
}

#[test]
fn k19_a_daemon_without_its_capabilities_is_not_ready_and_says_which_and_what_to_do() {
    let node = Node::new();
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-net_admin,-dac_override", "--", BIN, "run"]);
    let daemon = node.run_as(&command);
    until("it answers", || node.try_get("/readyz").is_some_and(|answer| answer.body.contains(r#""ok":"#)));
    until("it has replayed", || node.get("/readyz")["conditions"][4]["met"] == true);
    assert_eq!(node.try_get("/readyz").unwrap().status, 503);
    let told = node.get("/readyz")["conditions"][0].clone();
    let reason = told["reason"].as_str().unwrap();
    assert_eq!((&told["name"], &told["met"]), (&json!("capabilities"), &json!(false)));
    for part in ["CAP_NET_ADMIN (", "CAP_DAC_OVERRIDE (", "CapabilityBoundingSet"] {
        assert!(reason.contains(part), "{reason}");
    }
    assert!(!reason.contains("CAP_SYS_ADMIN"), "{reason}");
    let exits = |words: &[&str]| node.ask(words).status.code();
    assert_eq!((exits(&["status"]), exits(&["status", "--ready"])), (Some(0), Some(1)), "for a probe");
    drop(daemon);
    let _able = node.start();
    assert_eq!(
        (exits(&["status", "--ready"]), exits(&["status", "--ready", "--healthy", "--alive"])),
        (Some(0), Some(0))
    );
}

#[test]
fn r08_a_daemon_that_starts_with_a_refused_configuration_is_not_ready_until_that_is_put_right() {
    let node = Node::new();
    let config = node.path("config.yaml");
    fs::write(&config, "install: {cnii: present}\n").unwrap();
    let _daemon = node.run();
    until("it answers", || node.try_get("/readyz").is_some_and(|answer| answer.body.contains(r#""ok":"#)));
    let unmet = || {
        let told = node.get("/readyz")["conditions"].as_array().unwrap().clone();
        told.into_iter().filter(|condition| condition["met"] == false).collect::<Vec<_>>()
    };
    until("it lacks that alone", || unmet().len() == 1);
    assert_eq!(unmet()[0]["name"], "settings");
    let reason = unmet()[0]["reason"].as_str().unwrap().to_owned();
    for part in ["refused since the start", "config.yaml:1: ", "cnii", "put it right"] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    let asked = |flag: &str| node.ask(&["status", flag]);
    assert_eq!(asked("--ready").status.code(), Some(1), "a rollout stops here");
    let told = String::from_utf8_lossy(&asked("--ready").stdout).into_owned();
    assert!(told.contains("ready: NO\n") && told.contains("\nsettings: refused since the start"), "{told}");
    assert_eq!(asked("--healthy").status.code(), Some(0), "no restart puts it right");
    replace(&config, "del: wait\n");
    until("it is ready", || asked("--ready").status.success());
    replace(&config, "del: maybe\n");
    until("it is refused", || node.get("/v1/status")["daemon"]["settingsRefused"].is_string());
    assert!(asked("--ready").status.success(), "what was in force goes on");
}

#[test]
fn a_second_daemon_is_refused_by_name_and_a_killed_ones_socket_is_replaced() {
    let node = Node::new();
    let first = node.start();
    let second = node.ask(&["run"]);
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(1));
    assert!(said.contains(&format!("another fairleadd (pid {})", first.0.id())), "{said}");
    assert!(node.try_get("/readyz").is_some());
    first.signal("KILL");
    drop(first);
    assert!(node.path("run/fairlead.sock").exists());
    let _third = node.start();
}

#[test]
fn a_daemon_that_nobody_calls_gives_the_pages_of_its_program_back() {
    let node = Node::new();
    let daemon = node.start();
    let of_files = || {
        let status = fs::read_to_string(format!("/proc/{}/status", daemon.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap()
    };
    // At the end of its start it gives back, too; then it reads its configuration once more, and is asked.
    let asked = |path: &str| {
        assert!(node.try_get(path).is_some());
        sleep(Duration::from_millis(20));
        of_files()
    };
    let paths = ["/metrics", "/healthz", "/v1/attachments", "/v1/networks"];
    let until = Instant::now() + Duration::from_secs(2);
    let asks = paths.iter().cycle().take_while(|_| Instant::now() < until);
    let after_the_start = asks.map(|path| asked(path)).max().unwrap();
    // Every 30 s it is looked whether a call has come since.
    let limit = Instant::now() + Duration::from_secs(100);
    while of_files() > after_the_start / 2 {
        assert!(Instant::now() < limit, "{} KiB of {after_the_start} are resident", of_files());
        sleep(Duration::from_millis(50));
    }
    assert!(node.try_get("/readyz").is_some_and(|answer| answer.status == 200));
}

#[test]
fn r07_r08_networks_and_configuration_are_watched_and_broken_files_are_told_and_harm_nothing() {
    let node = Node::new();
    let _daemon = node.start();
    fs::write(node.path("net.d/10-a.conflist"), network("a")).unwrap();
    let names = || {
        let list = node.get("/v1/networks");
        list["networks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|n| n["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    until("the network is there", || names() == ["a"]);
    replace(&node.path("net.d/10-a.conflist"), "{");
    until("the file is refused", || node.get("/v1/networks")["refused"][0].as_str().is_some());
    assert_eq!(names(), ["a"]);
    fs::write(node.path("config.yaml"), "del: wait\n").unwrap();
    let daemon = || node.get("/v1/status")["daemon"].clone();
    until("the configuration is in force", || daemon()["settings"]["del"] == "wait");
    replace(&node.path("config.yaml"), "del: wait\ncolour: red\n");
    until("the configuration is refused", || daemon()["settingsRefused"].is_string());
    assert!(daemon()["settingsRefused"].as_str().unwrap().contains("config.yaml:2: "));
    assert_eq!(daemon()["settings"]["del"], "wait");
    let told = node.ask(&["status"]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains("ready: yes") && told.contains("refused: ") && told.contains("colour"), "{told}");
}

#[test]
fn r08_a_configuration_that_is_emptied_counts_if_it_stays_so_and_not_while_it_is_written_anew() {
    let node = Node::new();
    let config = node.path("config.yaml");
    fs::write(&config, "del: wait\n").unwrap();
    let _daemon = node.start();
    let del = || node.get("/v1/status")["daemon"]["settings"]["del"].clone();
    let goes_on = || {
        let limit = Instant::now() + Duration::from_millis(300);
        while Instant::now() < limit {
            assert_eq!(del(), "wait");
            sleep(Duration::from_millis(10));
        }
    };
    fs::write(&config, "").unwrap();
    goes_on();
    fs::write(&config, "del: wait\n").unwrap();
    goes_on();
    fs::remove_file(&config).unwrap();
    goes_on();
    // Nobody touches it any more: the daemon itself looks again.
    until("the defaults are in force", || del() == "early");
}

#[test]
fn r07_the_plugin_directory_is_watched_and_a_plugin_that_comes_is_missing_no_longer() {
    let node = Node::new();
    fs::create_dir_all(node.path("bin")).unwrap();
    let _daemon = node.start();
    let list = json!({ "cniVersion": "1.0.0", "name": "a", "plugins": [{ "type": "macvlan" }, { "type": "later" }] });
    fs::write(node.path("net.d/10-a.conflist"), list.to_string()).unwrap();
    let missing = || node.get("/v1/networks")["networks"][0]["missing"].clone();
    until("the plugin is missing", || missing() == json!(["later"]));
    let beside = node.path("later");
    fs::write(&beside, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(beside, node.path("bin/later")).unwrap();
    until("it is there", || missing() == json!([]));
    fs::remove_file(node.path("bin/later")).unwrap();
    until("it is missing again", || missing() == json!(["later"]));
}

#[test]
fn x02_a_del_that_was_spooled_before_an_earlier_boot_is_carried_out_at_the_start_and_doctor_tells_what_cant_be_read()
 {
    let node = Node::new();
    let spool = node.path("state").join(DIRECTORY);
    fs::create_dir_all(&spool).unwrap();
    let config = json!({ "cniVersion": "1.0.0", "name": "net", "type": "macvlan", "ipam": {} }).to_string();
    let request: wire::Request = serde_json::from_value(json!({
        "wire": wire::WIRE, "command": "DEL", "container_id": "c1", "ifname": "eth0", "config": config,
        "netns": "/run/netns/was-there-before-the-reboot", "spooled": { "boot_id": "another", "at": 7 },
    }))
    .unwrap();
    let entry = spool.join(EntryName { sequence: 1, pid: 1 }.whole());
    fs::write(&entry, serialise(&request).unwrap()).unwrap();
    fs::write(spool.join(EntryName { sequence: 2, pid: 1 }.whole()), "torn").unwrap();
    let _daemon = node.start();
    until("the entry is done", || !entry.exists());
    let doctor = node.ask(&["doctor", "--output", "json"]);
    assert_eq!(doctor.status.code(), Some(1));
    let findings: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let about =
        |what: &str| findings.as_array().unwrap().iter().find(|f| f["about"] == what).unwrap().clone();
    assert_eq!((&about("daemon")["verdict"], &about("spool")["verdict"]), (&json!("good"), &json!("wrong")));
    assert!(about("spool")["seen"].as_str().unwrap().contains("unreadable/"));
}

#[test]
fn x02_a_start_that_an_executable_keeps_from_the_spool_says_so_and_is_ready_when_it_lets_go() {
    let node = Node::new();
    let spool = node.path("state").join(DIRECTORY);
    fs::create_dir_all(&spool).unwrap();
    // As an executable holds it that is stopped while it writes.
    let lock = fs::File::create(spool.join(LOCK_FILE)).unwrap();
    lock.lock_shared().unwrap();
    fs::create_dir(node.path("run")).unwrap();
    fs::write(node.path("run/stopping"), "").unwrap();
    let mut daemon = node.run();
    let (sender, lines) = channel();
    let log = BufReader::new(daemon.0.stderr.take().unwrap()).lines();
    let reader = thread::spawn(move || log.map_while(Result::ok).all(|line| sender.send(line).is_ok()));
    let told = loop {
        // Without one the start waits, and nobody knows for what.
        let line = lines.recv_timeout(Duration::from_secs(20)).unwrap();
        if line.contains("holds the spool's lock") {
            break line;
        }
    };
    for part in [&*spool.join(LOCK_FILE).display().to_string(), "lslocks"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(node.try_get("/readyz").is_none(), "it listens before it has read the spool");
    assert!(node.path("run/stopping").exists(), "STATUS fails before the daemon is there that was announced");
    drop(lock);
    until("it is ready", || node.try_get("/readyz").is_some_and(|answer| answer.status == 200));
    assert!(!node.path("run/stopping").exists());
    drop(daemon);
    reader.join().unwrap();
}

#[test]
fn doctor_tells_of_each_switch_that_networks_need_and_nobody_runs() {
    let node = Node::new();
    let network = |name: &str, keys: &str| {
        let port: Value = serde_json::from_str(&format!(r#"{{"type":"vhost-user"{keys}}}"#)).unwrap();
        let list = json!({ "cniVersion": "1.1.0", "name": name, "plugins": [port] });
        fs::write(node.path(&format!("net.d/{name}.conflist")), list.to_string()).unwrap();
    };
    network("a", r#","ipam":{"type":"host-local","subnet":"10.1.0.0/24","dataDir":"/dev/null/no"}"#);
    network("b", r#","vlan":7"#);
    network("c", r#","switch":"ovs-dpdk","bridge":"br7""#);
    let _daemon = node.start();
    let doctor = node.ask(&["doctor", "--output", "json"]);
    assert_eq!(doctor.status.code(), Some(1));
    let findings: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let told: Vec<&Value> =
        findings.as_array().unwrap().iter().filter(|f| f["about"] == "switches").collect();
    assert_eq!(told.len(), 2, "{told:?}");
    for (finding, parts) in told.iter().zip([
        ["fairlead-vswitch, needed by a, b: ", "vswitch.sock", "start fairlead-vswitch"],
        ["bridge \"br7\" of OVS-DPDK, needed by c: ", "db.sock", "ovs-vswitchd"],
    ]) {
        assert_eq!(finding["verdict"], "wrong");
        assert!(parts.iter().all(|part| finding.to_string().replace("\\", "").contains(part)), "{finding}");
    }
}

/// The sets of processors that the threads of a process may run on, each set once.
fn processors(pid: u32) -> Vec<CpuList> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let allowed = |thread: &Path| -> CpuList {
        let status = fs::read_to_string(thread.join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.unwrap().parse().unwrap()
    };
    let mut found: Vec<CpuList> = threads.map(|thread| allowed(&thread.unwrap().path())).collect();
    found.dedup();
    found
}

#[test]
fn every_thread_of_it_stays_off_isolated_processors_unless_it_has_no_other() {
    let given = processors(std::process::id()).remove(0);
    let last: CpuList = given.iter().last().into_iter().collect();
    let others = if given.len() > 1 { given.without(&last) } else { given.clone() };
    for (isolated, on) in [(&given, &given), (&last, &others)] {
        let node = Node::new();
        fs::write(node.path("isolated"), isolated.to_string()).unwrap();
        let mut command = Command::new("unshare");
        let bound = r#"mount --bind "$0" /sys/devices/system/cpu/isolated && exec "$@""#;
        command.args(["--mount", "--", "sh", "-c", bound]).arg(node.path("isolated")).args([BIN, "run"]);
        let mut daemon = node.run_as(&command);
        until("it is ready", || node.try_get("/readyz").is_some_and(|answer| answer.status == 200));
        assert_eq!(processors(daemon.0.id()), std::slice::from_ref(on));
        daemon.signal("TERM");
        daemon.0.wait().unwrap();
        let log = daemon.log();
        assert!(log.contains(&format!("isolated={isolated}")), "{log}");
    }
}

/// The names of the samples of an exposition, a histogram's without its endings.
fn exposed_names(text: &str) -> BTreeSet<String> {
    let of_line = |line: &str| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        Some(match kind {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.to_owned(),
        })
    };
    text.lines().filter_map(of_line).collect()
}

#[test]
fn k21_every_metric_that_a_daemon_of_a_cluster_tells_is_documented_and_no_other_is() {
    let node = Node::new();
    fs::write(node.path("config.yaml"), format!("kubeconfig: {}\n", node.path("kubeconfig").display()))
        .unwrap();
    // An API server that is away: the daemon runs, tells all, and is not ready.
    let kubeconfig = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n\
                      contexts: [{name: x, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: t}}]\ncurrent-context: x\n";
    fs::write(node.path("kubeconfig"), kubeconfig).unwrap();
    let _daemon = node.run();
    let exposed = || node.try_get("/metrics").map(|answer| exposed_names(&answer.body)).unwrap_or_default();
    until("the engine has started", || exposed().contains("fairlead_attachments"));
    // Those of vhost-user ports are told where there is a switch.
    let _switch = fairlead_vhost::fake_switch::serve(&node.path("run/vswitch.sock"));
    until("the switch answers", || exposed().contains("fairlead_vswitch_up"));
    // Those of calls are told from the first call on.
    let seen = Exposition::default();
    let calls = Calls::new(&seen, &["macvlan"]);
    calls.observe(wire::Command::Add, "macvlan", 0, Duration::ZERO);
    calls.phase(wire::Command::Add, "macvlan", "plan", Duration::ZERO);
    calls.path("macvlan", true);
    calls.near("local", Some(10));
    let told: BTreeSet<String> = exposed().union(&exposed_names(&seen.text())).cloned().collect();
    let rows = include_str!("../../docs/metrics.md").lines();
    let documented: BTreeSet<String> = rows
        .filter_map(|row| Some(row.strip_prefix("| `fairlead_")?.split_once('`')?.0))
        .map(|name| format!("fairlead_{name}"))
        .collect();
    assert_eq!(told, documented);
}

#[test]
fn metrics_are_on_the_tcp_port_of_the_configuration_and_follow_it() {
    let node = Node::new();
    // In a namespace of its own: its loopback is down, and nobody else can have the port.
    fs::write(node.path("config.yaml"), "metrics: {listen: '127.0.0.1:9808'}\n").unwrap();
    let daemon = node.start();
    let port = || node.get("/v1/status")["daemon"]["metricsPort"].clone();
    until("it listens", || port() == json!({ "listening": "127.0.0.1:9808" }));
    let inside = |words: &[&str]| {
        let pid = daemon.0.id().to_string();
        Command::new("nsenter").args(["--net", "--target", &pid, "--"]).args(words).output().unwrap()
    };
    assert!(inside(&["ip", "link", "set", "lo", "up"]).status.success());
    let scraped = inside(&["curl", "-sS", "--max-time", "20", "http://127.0.0.1:9808/metrics"]);
    assert!(String::from_utf8_lossy(&scraped.stdout).contains("\nfairlead_ready 1\n"), "{scraped:?}");
    fs::write(node.path("config.yaml"), "metrics: {listen: '10.0.0.1:9808'}\n").unwrap();
    until("it is refused by name", || {
        let refused = node.get("/v1/status")["daemon"]["settingsRefused"].clone();
        refused
            .as_str()
            .is_some_and(|why| why.contains("metrics.listen: 10.0.0.1:9808 is reached from other machines"))
    });
    assert_eq!(port(), json!({ "listening": "127.0.0.1:9808" }), "what was in force goes on");
    fs::write(node.path("config.yaml"), "{}\n").unwrap();
    until("it is closed", || port().is_null());
}
