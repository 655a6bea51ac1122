//! The capabilities that the manifests give the daemon, on the real kernel, in a container as they make it: with them everything works,
//! and without each one of them something does not, which names it.
//!
//! The container has a process 1 with all capabilities, which the host's first process is, and mounts of its own with the host's root
//! in them. Needs root, `ip`, `setpriv`, and the executable `fairlead` beside the daemon (`cargo build -p fairlead`).

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test fails by panicking")]

#[path = "../node_rig/mod.rs"]
#[allow(dead_code, unused_imports, reason = "several suites share it, and none uses all of it")]
mod rig;

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use fairlead_vhost::control::Server;
use fairlead_vhost::fake_switch::{self, FakePorts};
use rig::{Pod, Reply, Rig, executable, until};
use serde_json::{Value, json};

/// A user who is nobody in particular.
const SOMEBODY: u32 = 1000;
const UID: &str = "0f3c2a54-6d3e-4b0e-9f5e-3b8f0b7d7a11";

/// What process 1 does: it starts another user's process with a network of its own, and the daemon, which may lock as much memory
/// as systemd lets a service. Its arguments are the daemon's program and the arguments of that.
const PROCESS_1: &str = r#"
unshare --net -- sh -c '
    echo $$ >"$NODE/somebody.new" && mv "$NODE/somebody.new" "$NODE/somebody"
    exec setpriv --reuid=1000 --regid=1000 --clear-groups -- sleep 1000' &
ulimit -l 8192
unshare --mount -- sh -c '
    mount --rbind / "$NODE/host" && exec setpriv --bounding-set="$CAPABILITIES" -- "$@"' container "$@" &
wait
"#;

/// A node whose daemon runs in a container with these capabilities.
struct Node {
    rig: Rig,
    pod: Pod,
    neighbour: Pod,
    _switch: (Server, FakePorts),
    container: Child,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.container.kill();
        let _ = self.container.wait();
    }
}

impl Node {
    fn with(capabilities: &[String]) -> Node {
        let rig = Rig::new();
        let volume = rig.path(&format!("kubelet/pods/{UID}/volumes/kubernetes.io~empty-dir/vhost-user"));
        for dir in [volume.clone(), rig.path("host")] {
            fs::create_dir_all(dir).unwrap();
        }
        // As kubelet makes it for a pod with an `fsGroup`.
        chown(&volume, Some(0), Some(2000)).unwrap();
        fs::set_permissions(&volume, PermissionsExt::from_mode(0o2777)).unwrap();
        rig.ip("link add dev0 type veth peer name dev1");
        networks_and_plugins(&rig);
        configure(&rig, "absent");
        let (pod, neighbour) = (rig.pod("pod"), rig.pod("neighbour"));
        let switch = fake_switch::serve(&rig.path("run/vswitch.sock"));
        let container = contained(&rig, capabilities);
        Node { rig, pod, neighbour, _switch: switch, container }
    }

    /// What of all this does not work, with the reason.
    fn fails_at(&self, operations: &[Operation]) -> Vec<String> {
        operations.iter().filter_map(|operation| operation(self).err()).collect()
    }

    fn answers(&self) -> bool {
        let answer = self.rig.try_get("/readyz");
        // Met or not: the last condition says whether the spool is replayed, so that calls are carried out.
        answer.is_some_and(|answer| {
            let told: Value = serde_json::from_str(&answer.body).unwrap_or_default();
            let conditions = told["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|one| one["name"] == "replay" && one["met"] == true)
        })
    }

    /// ADD, CHECK and DEL of a network.
    fn lives(&self, config: &Value) -> Result<(), String> {
        self.lives_in(config, None)
    }

    fn lives_in(&self, config: &Value, netns: Option<PathBuf>) -> Result<(), String> {
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ran;K8S_POD_NAME=du-0;K8S_POD_UID={UID}");
        let call = self.rig.call("c1", &self.pod, config).with_args(args);
        let call = match netns {
            Some(netns) => call.in_netns(netns),
            None => call,
        };
        let added = call.add();
        done(added.clone())?;
        done(call.check(&added))?;
        done(call.del())
    }

    fn log_line(&self, with: &str) -> Option<String> {
        self.rig.log().lines().find(|line| line.contains(with)).map(str::to_owned)
    }
}

/// Networks of the conf dir, one of them in a file of another user's, and plugins in a directory of another user's: that is how
/// Kubespray leaves `/opt/cni/bin`.
fn networks_and_plugins(rig: &Rig) {
    let list =
        |name: &str, plugin: Value| json!({ "cniVersion": "1.0.0", "name": name, "plugins": [plugin] });
    for (file, list) in [
        ("10-pods.conflist", list("pods", rig.macvlan("pods"))),
        ("20-outside.conflist", list("outside", json!({ "type": "outside" }))),
        ("30-hangs.conflist", list("hangs", json!({ "type": "hangs" }))),
        ("40-others.conflist", list("others", rig.layer2())),
    ] {
        fs::write(rig.path("net.d").join(file), list.to_string()).unwrap();
    }
    // Among the host's mounts nothing is at the place where the container has the host's root.
    let outside = format!(
        "#!/bin/sh\n[ -e {}/proc ] && exit 1\n[ $CNI_COMMAND != ADD ] || echo '{{\"cniVersion\":\"1.0.0\"}}'\n",
        rig.path("host").display()
    );
    for (name, text) in
        [("outside", outside.as_str()), ("hangs", "#!/bin/sh\n[ $CNI_COMMAND != ADD ] || sleep 1000\n")]
    {
        let (beside, program) = (rig.path(name), rig.path("bin").join(name));
        fs::write(&beside, text).unwrap();
        fs::set_permissions(&beside, PermissionsExt::from_mode(0o755)).unwrap();
        // A file that is being written cannot be executed: so it is renamed into its place.
        fs::rename(beside, program).unwrap();
    }
    let of_others = rig.path("net.d/40-others.conflist");
    fs::set_permissions(&of_others, PermissionsExt::from_mode(0o600)).unwrap();
    for path in [of_others, rig.path("net.d"), rig.path("bin")] {
        chown(&path, Some(SOMEBODY), None).unwrap();
    }
}

fn configure(rig: &Rig, cni: &str) {
    let kubelet = rig.path("kubelet");
    let text = format!(
        "reapAfter: 30ms\ndelegateTimeout: 1s\nkubelet: {{dir: {}}}\ninstall: {{cni: {cni}}}\n",
        kubelet.display()
    );
    let beside = rig.path("config.new");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, rig.path("config.yaml")).unwrap();
}

/// Starts the daemon in a container. What process 1 starts dies with it, and it dies with what is answered.
fn contained(rig: &Rig, capabilities: &[String]) -> Child {
    let only: String = capabilities.iter().map(|name| format!(",+{}", name.to_lowercase())).collect();
    let log = File::options().create(true).append(true).open(rig.path("log")).unwrap();
    let mut command = Command::new("unshare");
    command.args([
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--",
        "sh",
        "-c",
        PROCESS_1,
        "process-1",
    ]);
    command.arg(executable().with_file_name("fairleadd")).arg("run");
    for (flag, name) in
        [("--host-root", "host"), ("--run-dir", "run"), ("--state-dir", "state"), ("--config", "config.yaml")]
    {
        command.arg(flag).arg(rig.path(name));
    }
    command.env("NODE", rig.path("")).env("CAPABILITIES", format!("-all{only}"));
    command.env("CNI_CONF_DIR", rig.path("net.d")).env("CNI_PLUGIN_DIR", rig.path("bin"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    rig.spawn(&mut command)
}

fn done(reply: Reply) -> Result<(), String> {
    match reply {
        Reply::Done(_) => Ok(()),
        Reply::Refused(error) => Err(error.to_string()),
        Reply::Lost => Err("no answer came".to_owned()),
    }
}

// ---- what a daemon is for ----

/// Something that a node's daemon is asked for; the error is the daemon's own words.
type Operation = fn(&Node) -> Result<(), String>;

/// The daemon says that it has what no pod's network can do without.
fn says_that_it_is_able(node: &Node) -> Result<(), String> {
    let told: Value = serde_json::from_str(&node.rig.get("/readyz").body).unwrap();
    let able = &told["conditions"][0];
    match able["met"] == true && able["name"] == "capabilities" {
        true => Ok(()),
        false => Err(able.to_string()),
    }
}

/// Built-in types, with addresses of host-local and static, in a namespace by its path.
fn attaches(node: &Node) -> Result<(), String> {
    let rig = &node.rig;
    let of_type = |kind: &str, more: Value| {
        let mut config = json!({ "cniVersion": "1.0.0", "name": kind, "type": kind });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    let fixed = json!({ "type": "static", "addresses": [{ "address": "10.9.0.1/24" }] });
    let lent = json!({ "device": "dev0" });
    node.lives(&rig.macvlan("pods"))?;
    node.lives(&rig.layer2())?;
    node.lives(&of_type("macvlan", json!({ "master": "eth0", "ipam": fixed })))?;
    node.lives(&of_type("host-device", lent))?;
    node.lives(&of_type("loopback", json!({})))
}

/// Another pod hears of an address that a pod has got.
fn announces(node: &Node) -> Result<(), String> {
    let config = node.rig.macvlan("heard");
    let neighbour = node.rig.call("c2", &node.neighbour, &config);
    done(neighbour.add())?;
    // A neighbour that it has never talked to is noted then, too.
    node.neighbour.inside(|_| fs::write("/proc/sys/net/ipv4/conf/eth0/arp_accept", "1").unwrap());
    let call = node.rig.call("c1", &node.pod, &config);
    let address = call.add().result()["ips"][0]["address"].as_str().unwrap().to_owned();
    let address = address.split('/').next().unwrap();
    let hears = || {
        let known = node.neighbour.inside(|_| Command::new("ip").args(["neigh", "show"]).output().unwrap());
        String::from_utf8_lossy(&known.stdout).lines().any(|line| line.starts_with(&format!("{address} ")))
    };
    let failure = || node.log_line("could not be announced");
    until("the neighbour hears of it, or the daemon says why not", || hears() || failure().is_some());
    done(call.del())?;
    done(neighbour.del())?;
    failure().map_or(Ok(()), Err)
}

/// A plugin runs among the mounts of the host; one that hangs is killed.
fn executes(node: &Node) -> Result<(), String> {
    let network = |name: &str| json!({ "cniVersion": "1.0.0", "name": "node", "type": "fairlead", "clusterNetwork": name });
    node.lives(&network("outside"))?;
    match node.lives(&network("hangs")) {
        Err(why) if why.contains("its process group was killed") => Ok(()),
        other => Err(format!("a plugin that hangs: {other:?}")),
    }
}

/// A pod whose namespace the runtime names by a process of another user.
fn enters_a_processs_namespace(node: &Node) -> Result<(), String> {
    let pid = node.rig.path("somebody");
    until("the other user's process runs", || pid.exists());
    let pid = fs::read_to_string(pid).unwrap();
    let netns = Path::new("/proc").join(pid.trim()).join("ns/net");
    node.lives_in(&node.rig.layer2(), Some(netns))
}

/// A network's file that is another user's alone.
fn reads_what_is_anothers(node: &Node) -> Result<(), String> {
    let told: Value = serde_json::from_str(&node.rig.get("/v1/networks").body).unwrap();
    match told["networks"].as_array().unwrap().iter().any(|network| network["name"] == "others") {
        true => Ok(()),
        false => Err(told["refused"].to_string()),
    }
}

/// Into directories that are another user's, and out of them.
fn installs_and_uninstalls(node: &Node) -> Result<(), String> {
    let (conflist, program) = (node.rig.path("net.d/00-fairlead.conflist"), node.rig.path("bin/fairlead"));
    configure(&node.rig, "present");
    until("it is installed", || conflist.exists() && program.exists());
    configure(&node.rig, "absent");
    until("it is uninstalled", || !conflist.exists() && !program.exists());
    Ok(())
}

/// A port of the switch, in a volume of the pod.
fn makes_a_port(node: &Node) -> Result<(), String> {
    node.lives(&port())
}

/// One whose network has an interface of the host.
fn makes_an_uplink(node: &Node) -> Result<(), String> {
    let mut config = port();
    config["master"] = "eth0".into();
    node.lives(&config)
}

fn port() -> Value {
    json!({ "cniVersion": "1.1.0", "name": "blue", "type": "vhost-user", "ipam": {} })
}

/// All that needs a capability of `deploy/base`, or could.
const OF_BASE: [Operation; 7] = [
    says_that_it_is_able,
    attaches,
    announces,
    executes,
    enters_a_processs_namespace,
    reads_what_is_anothers,
    installs_and_uninstalls,
];

/// A capability that the manifests add, what fails without it, and a part of what is said then.
struct Need {
    capability: &'static str,
    operation: Operation,
    told: &'static str,
}

/// Those of `deploy/base`. What they are for is told in docs/deployment.md, too.
const NEEDS_OF_BASE: [Need; 6] = [
    Need { capability: "NET_ADMIN", operation: attaches, told: "the daemon needs CAP_NET_ADMIN" },
    Need { capability: "SYS_ADMIN", operation: attaches, told: "the daemon needs CAP_SYS_ADMIN" },
    Need { capability: "SYS_CHROOT", operation: executes, told: "in a container CAP_SYS_CHROOT" },
    Need {
        capability: "SYS_PTRACE",
        operation: enters_a_processs_namespace,
        told: "CAP_SYS_PTRACE for the namespace of a process",
    },
    Need { capability: "NET_RAW", operation: announces, told: "the daemon needs CAP_NET_RAW" },
    Need {
        capability: "DAC_OVERRIDE",
        operation: reads_what_is_anothers,
        told: "the daemon needs CAP_DAC_OVERRIDE",
    },
];

/// The one that `deploy/components/vhost-user` adds to them.
const NEED_OF_UPLINKS: Need = Need {
    capability: "IPC_LOCK",
    operation: makes_an_uplink,
    told: "give the daemon the capability IPC_LOCK",
};

// ---- what the manifests say ----

fn yaml(of: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(of);
    serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn of_base() -> Vec<String> {
    let manifest = yaml("base/daemonset.yaml");
    let context = &manifest["spec"]["template"]["spec"]["containers"][0]["securityContext"];
    assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!(context["privileged"], false);
    serde_json::from_value(context["capabilities"]["add"].clone()).unwrap()
}

fn of_uplinks() -> String {
    yaml("components/vhost-user/uplinks.yaml")[0]["value"].as_str().unwrap().to_owned()
}

fn started(capabilities: &[String]) -> Node {
    let node = Node::with(capabilities);
    until("the daemon has started", || node.answers());
    node
}

/// Without this capability what is said to fail does, and says so.
fn is_needed(need: &Need, all: &[String]) {
    let others: Vec<String> = all.iter().filter(|name| *name != need.capability).cloned().collect();
    assert_eq!(others.len() + 1, all.len(), "{} is none of {all:?}", need.capability);
    let node = started(&others);
    match (need.operation)(&node) {
        Ok(()) => panic!("nothing fails without {}", need.capability),
        Err(why) => assert!(why.contains(need.told), "without {}: {why}", need.capability),
    }
}

#[test]
fn everything_works_with_the_capabilities_of_the_manifests_and_leaves_nothing() {
    let node = started(&of_base());
    let before = node.rig.leftovers(&[&node.pod, &node.neighbour]);
    assert_eq!(node.fails_at(&OF_BASE), Vec::<String>::new());
    assert_eq!(node.fails_at(&[makes_a_port]), Vec::<String>::new());
    node.rig.is_as(&before, &[&node.pod, &node.neighbour], "all of it");
}

#[test]
fn without_any_one_capability_of_the_manifests_something_fails_and_names_it() {
    let all = of_base();
    assert_eq!(NEEDS_OF_BASE.map(|need| need.capability), *all, "each has its row above");
    for need in &NEEDS_OF_BASE {
        is_needed(need, &all);
    }
}

#[test]
fn without_what_no_pod_can_do_without_the_daemon_is_not_ready_and_names_it() {
    let all = of_base();
    for (capability, told) in [
        ("NET_ADMIN", "CAP_NET_ADMIN (making links"),
        ("SYS_ADMIN", "CAP_SYS_ADMIN (entering the pods' namespaces"),
        ("DAC_OVERRIDE", "CAP_DAC_OVERRIDE (writing the runtimes' files"),
    ] {
        is_needed(&Need { capability, operation: says_that_it_is_able, told }, &all);
    }
}

#[test]
fn the_mounts_of_process_1_where_plugins_run_are_not_reached_without_leave_to_look_at_that_process() {
    let need =
        Need { capability: "SYS_PTRACE", operation: executes, told: "CAP_SYS_CHROOT and CAP_SYS_PTRACE" };
    is_needed(&need, &of_base());
}

#[test]
fn an_uplink_takes_the_capability_that_the_component_adds_and_fails_without_it_by_name() {
    let mut all = of_base();
    all.push(of_uplinks());
    let node = started(&all);
    let before = node.rig.leftovers(&[&node.pod]);
    assert_eq!(node.fails_at(&[makes_a_port, makes_an_uplink]), Vec::<String>::new());
    node.rig.is_as(&before, &[&node.pod], "both");
    is_needed(&NEED_OF_UPLINKS, &all);
}

#[test]
fn doctor_tells_of_a_capability_that_the_daemon_needs_in_a_container_only() {
    let told = |rig: &Rig| {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-sys_chroot", "--"]).arg(executable().with_file_name("fairleadd"));
        let out = command.args(["doctor", "--run-dir"]).arg(rig.path("run")).output().unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let node = started(&of_base());
    let in_container = told(&node.rig);
    let words = "CAP_SYS_CHROOT is missing: executing plugins in the host's mount namespace";
    assert!(in_container.contains(words), "{in_container}");
    let rig = Rig::new();
    let _daemon = rig.start();
    let on_host = told(&rig);
    assert!(on_host.contains("CAP_NET_RAW") && !on_host.contains("CAP_SYS_CHROOT"), "{on_host}");
}
