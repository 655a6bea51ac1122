//! STATUS by the executable, of a daemon and of plugins that hang: it is answered all the same, and in time.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, Code};
use fairlead_host::NetKernel;
use fairlead_host::real::RealKernel;
use serde_json::{Value, json};

use super::rig::{Reply, Rig, until};

/// Twice the time that is promised, because the machine may be busy with other tests.
const AT_ONCE: Duration = Duration::from_millis(200);

impl Rig {
    fn status(&self, config: &Value) -> (Reply, Duration) {
        let pod = self.pod("unused");
        let call = self.call("unused", &pod, config);
        let begun = Instant::now();
        let reply = call.execute(Command::Status).end();
        (reply, begun.elapsed())
    }

    /// The error of a STATUS. One of thirty calls must be fast enough, because other work on the machine may slow the others.
    fn is_refused_at_once(&self, config: &Value) -> CniError {
        let at_once = (0..30).map(|_| self.status(config)).find(|(_, took)| *took < AT_ONCE);
        let Some((Reply::Refused(error), _)) = at_once else {
            panic!("none is refused at once: {at_once:?}")
        };
        assert_eq!(error.code, Code::NotAvailable, "{error}");
        error
    }

    /// A plugin that writes its pid down and sleeps, longer than a plugin may take.
    fn sleeper(&self, limit: &str, seconds: u32) {
        fs::write(self.path("config.yaml"), format!("delegateTimeout: {limit}\n")).unwrap();
        let (path, beside) = (self.path("bin/sleeper"), self.path("sleeper.new"));
        let pid = self.path("sleeper.pid");
        let text = format!("#!/bin/sh\necho $$ >{}\nexec sleep {seconds}\n", pid.display());
        fs::write(&beside, text).unwrap();
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(beside, path).unwrap();
    }
}

fn newest(mut config: Value) -> Value {
    config["cniVersion"] = json!("1.1.0");
    config
}

fn signal(name: &str, pid: u32) {
    let sent = std::process::Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn x04_status_of_a_stopped_daemon_is_50_at_once_and_success_when_it_goes_on() {
    let rig = Rig::new();
    let daemon = rig.start();
    let config = newest(rig.macvlan("net"));
    rig.status(&config).0.succeeds();
    signal("STOP", daemon.pid());
    let error = rig.is_refused_at_once(&config);
    assert!(error.msg.contains(&format!("fairleadd (pid {}) is stopped", daemon.pid())), "{error}");
    assert!(error.details.contains("kill -CONT"), "{error}");
    fs::write(rig.path("run/stopping"), "").unwrap();
    rig.status(&config).0.succeeds();
    fs::remove_file(rig.path("run/stopping")).unwrap();
    signal("CONT", daemon.pid());
    rig.status(&config).0.succeeds();
}

#[test]
fn x04_status_of_a_plugin_that_sleeps_is_50_at_once_with_its_name_from_when_it_had_its_time() {
    let rig = Rig::new();
    rig.sleeper("500ms", 5);
    let _daemon = rig.start();
    let mut config = newest(rig.macvlan("net"));
    config["ipam"] = json!({ "type": "sleeper" });
    let list = json!({ "cniVersion": "1.1.0", "name": "cluster", "plugins": [newest(rig.macvlan("cluster")), { "type": "sleeper" }] });
    fs::write(rig.path("net.d/10-cluster.conflist"), list.to_string()).unwrap();
    let all =
        json!({ "cniVersion": "1.1.0", "name": "all", "type": "fairlead", "clusterNetwork": "cluster" });
    for (config, networks) in [(config, r#"network "net""#), (all, r#"network "all": network "cluster""#)] {
        rig.status(&config).0.succeeds();
        until("its time is over", || matches!(rig.status(&config).0, Reply::Refused(_)));
        let error = rig.is_refused_at_once(&config);
        let words = format!("{networks}: plugin \"sleeper\", STATUS: killed after its time limit");
        assert!(error.msg.starts_with(&words), "{error}");
    }
}

#[test]
fn x04_a_plugin_that_is_still_asked_for_a_status_ends_with_its_daemon() {
    let rig = Rig::new();
    rig.sleeper("60s", 60);
    let mut daemon = rig.start();
    let mut config = newest(rig.macvlan("net"));
    config["ipam"] = json!({ "type": "sleeper" });
    rig.status(&config).0.succeeds();
    let pid = || fs::read_to_string(rig.path("sleeper.pid")).ok().filter(|pid| pid.ends_with('\n'));
    until("it sleeps", || pid().is_some());
    let process = Path::new("/proc").join(pid().unwrap().trim());
    assert!(process.exists());
    signal("TERM", daemon.pid());
    until("the daemon has ended", || daemon.ended().is_some());
    assert!(!process.exists());
}

#[test]
fn x04_status_says_of_each_type_whether_this_kernel_has_it() {
    let rig = Rig::new();
    let _daemon = rig.start();
    for kind in ["macvlan", "ipvlan", "vlan"] {
        let mut config = newest(rig.macvlan("net"));
        config["type"] = json!(kind);
        config["mode"] = Value::Null;
        config["vlanId"] = json!(7);
        if RealKernel::new().unwrap().knows(kind).unwrap() {
            rig.status(&config).0.succeeds();
        } else {
            let error = rig.is_refused_at_once(&config);
            assert_eq!(error.msg, format!("network \"net\": the kernel has no {kind}"));
            assert!(error.details.starts_with("modprobe "), "{error}");
        }
    }
}
