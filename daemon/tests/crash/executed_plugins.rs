//! Executed plugins and the daemon's death: a plugin that was at work goes on without its daemon, and a slow one keeps
//! nobody waiting.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::rig::{Reply, Rig, until};

/// A node with a network whose last plugin is a script that logs its calls.
pub(crate) trait Ledger {
    /// A network of type `fairlead`: macvlan, then the script.
    fn cluster_network(&self) -> Value;
    /// What the script does first, in shell.
    fn script(&self, first: &str);
    /// The calls that the script has had.
    fn calls(&self) -> Vec<String>;
}

impl Ledger for Rig {
    fn cluster_network(&self) -> Value {
        self.script(":");
        let plugins = [self.macvlan("cluster"), json!({ "type": "ledger" })];
        let list = json!({ "cniVersion": "1.0.0", "name": "cluster", "plugins": plugins });
        fs::write(self.path("net.d/10-cluster.conflist"), list.to_string()).unwrap();
        json!({ "cniVersion": "1.0.0", "name": "all", "type": "fairlead", "clusterNetwork": "cluster" })
    }

    fn script(&self, first: &str) {
        fs::create_dir_all(self.path("held")).unwrap();
        let (held, calls) = (self.path("held"), self.path("calls"));
        let text = format!(
            r#"#!/bin/sh
config=$(cat)
held={held}/$CNI_CONTAINERID.$CNI_IFNAME
echo "$CNI_COMMAND $CNI_CONTAINERID" >>{calls}
{first}
case $CNI_COMMAND in
ADD)
    : >"$held"
    result=${{config#*\"prevResult\":}}
    printf '%s' "${{result%,\"type\":\"ledger\"\}}}}"
    ;;
DEL) rm -f "$held" ;;
esac
"#,
            held = held.display(),
            calls = calls.display()
        );
        // A file that is being written cannot be executed: so it is renamed into its place.
        let (path, beside) = (self.path("bin/ledger"), self.path("ledger.new"));
        fs::write(&beside, text).unwrap();
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(beside, path).unwrap();
    }

    fn calls(&self) -> Vec<String> {
        fs::read_to_string(self.path("calls")).unwrap_or_default().lines().map(str::to_owned).collect()
    }
}

#[test]
fn x13_a_plugins_slow_del_after_a_kill_does_not_keep_the_node_from_being_ready() {
    let rig = Rig::new();
    let (config, pod) = (rig.cluster_network(), rig.pod("pod"));
    let before = {
        let _daemon = rig.start();
        rig.leftovers(&[&pod])
    };
    let daemon = rig.start_dying_at("add.configured");
    assert!(matches!(rig.call("c1", &pod, &config).add(), Reply::Lost));
    daemon.dies();
    // It does not end before the daemon is ready.
    let ends = rig.path("ends");
    rig.script(&format!("[ $CNI_COMMAND = ADD ] || while [ ! -e {} ]; do sleep 0.1; done", ends.display()));
    let _daemon = rig.start();
    fs::write(ends, "").unwrap();
    // The same call again waits for the removal and is then served.
    let result = rig.call("c1", &pod, &config).add().result();
    pod.has_what_was_answered("eth0", &result);
    rig.script(":");
    rig.call("c1", &pod, &config).del().succeeds();
    rig.is_as(&before, &[&pod], "DEL");
}

#[test]
fn x05_a_plugin_that_outlives_its_daemon_is_let_finish_before_it_gets_its_del() {
    let rig = Rig::new();
    let (config, pod) = (rig.cluster_network(), rig.pod("pod"));
    let daemon = rig.start();
    let before = rig.leftovers(&[&pod]);
    rig.script("[ $CNI_COMMAND != ADD ] || sleep 1");
    std::thread::scope(|s| {
        let caller = s.spawn(|| rig.call("c1", &pod, &config).add());
        until("the plugin is at work", || rig.calls() == ["ADD c1"]);
        daemon.kill();
        assert!(matches!(caller.join().unwrap(), Reply::Lost));
    });
    let _daemon = rig.start();
    until("the plugin has had its DEL", || rig.calls().contains(&"DEL c1".to_owned()));
    std::thread::sleep(Duration::from_millis(1200));
    rig.is_as(&before, &[&pod], "the plugin's end");
}

#[test]
fn k19_a_daemon_that_stops_is_not_ready_while_a_call_ends() {
    let rig = Rig::new();
    let (config, pod) = (rig.cluster_network(), rig.pod("pod"));
    let daemon = rig.start();
    let ends = rig.path("ends");
    rig.script(&format!("[ $CNI_COMMAND != ADD ] || while [ ! -e {} ]; do sleep 0.1; done", ends.display()));
    std::thread::scope(|s| {
        let caller = s.spawn(|| rig.call("c1", &pod, &config).add());
        until("the plugin is at work", || rig.calls() == ["ADD c1"]);
        let stopped = Command::new("kill").args(["-s", "TERM", &daemon.pid().to_string()]).status();
        assert!(stopped.unwrap().success());
        until("it is not ready", || !rig.is_ready());
        let told = rig.get("/readyz").body;
        assert!(told.contains("the daemon is stopping"), "{told}");
        assert!(rig.metrics().lines().any(|line| line == "fairlead_ready 0"), "{}", rig.metrics());
        let asked = rig.operator(&["status", "--ready"]).output().unwrap();
        assert_eq!(asked.status.code(), Some(1), "{asked:?}");
        fs::write(ends, "").unwrap();
        caller.join().unwrap().succeeds();
    });
}

/// More than all the threads that removals have together, in one tenant's or one network's hands.
const HANGING: usize = 40;

#[test]
fn removals_whose_programs_hang_delay_the_end_of_no_other() {
    let rig = Rig::new();
    let pods = [rig.pod("hung"), rig.pod("other")];
    fs::write(rig.path("bin/lease"), lease(&rig)).unwrap();
    fs::set_permissions(rig.path("bin/lease"), fs::Permissions::from_mode(0o755)).unwrap();
    let _daemon = rig.start();
    let config = json!({
        "cniVersion": "1.0.0", "name": "leased", "type": "macvlan", "master": "eth0", "ipam": { "type": "lease" },
    });
    for n in 0..HANGING {
        let mut call = rig.call(&format!("c{n}"), &pods[0], &config);
        call.ifname = format!("net{n}");
        call.add().succeeds();
    }
    let [hung, other] = pods;
    drop(hung);
    let at_work = || fs::read_to_string(rig.path("hung")).unwrap_or_default().lines().count();
    until("the programs of its removals hang", || at_work() >= 4);
    // As long as a thread takes to stand by for others that hang.
    std::thread::sleep(Duration::from_millis(1500));
    let config = rig.macvlan("free");
    let begun = Instant::now();
    rig.call("other", &other, &config).add().succeeds();
    rig.call("other", &other, &config).del().succeeds();
    until("its addresses are free", || rig.allocations().is_empty());
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert_eq!(at_work(), 4, "so many threads has one network");
    fs::write(rig.path("released"), "").unwrap();
    until("all that hung are done", || rig.attachments().is_empty());
    assert_eq!(at_work(), HANGING);
}

/// An IPAM whose DEL hangs until the file `released` is there.
fn lease(rig: &Rig) -> String {
    let (hung, released) = (rig.path("hung"), rig.path("released"));
    format!(
        r#"#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
ADD) printf '{{"cniVersion":"1.0.0","ips":[{{"address":"10.66.%d.2/24"}}]}}' "${{CNI_IFNAME#net}}" ;;
DEL) echo "$CNI_IFNAME" >>{hung}; while [ ! -e {released} ]; do sleep 0.05; done ;;
esac
"#,
        hung = hung.display(),
        released = released.display()
    )
}
