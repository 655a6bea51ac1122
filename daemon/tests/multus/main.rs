//! A node that changes over from Multus and back with pods running: a real daemon, the reference plugins, and files as Multus writes
//! them. Needs root, `ip` and the reference plugins. `tests/multus.sh` does the same with a built Multus.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test fails by panicking")]

#[path = "../node_rig/mod.rs"]
#[allow(dead_code, unused_imports, reason = "several suites share it, and none uses all of it")]
mod rig;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use fairlead_kube::multus::{cached_attachments, entry};
use rig::{Call, Pod, Rig, until};
use serde_json::{Value, json};

/// Where Debian has the reference plugins.
const REFERENCE: &str = "/usr/lib/cni";

/// A node whose runtime's network is Multus, with a bridge as cluster network.
fn node() -> Rig {
    let rig = Rig::new();
    for plugin in ["bridge", "host-local", "macvlan"] {
        fs::copy(Path::new(REFERENCE).join(plugin), rig.path("bin").join(plugin)).unwrap();
    }
    fs::create_dir(rig.path("multus")).unwrap();
    let multus = json!({"cniVersion": "1.0.0", "name": "multus-cni-network", "type": "multus",
        "clusterNetwork": rig.path("net.d/20-pods.conflist"), "defaultNetworks": [rig.path("net.d/30-side.conf")],
        "cniDir": rig.path("multus")});
    for (file, text) in
        [("00-multus.conf", multus), ("20-pods.conflist", pods(&rig)), ("30-side.conf", side(&rig))]
    {
        fs::write(rig.path("net.d").join(file), text.to_string()).unwrap();
    }
    rig
}

fn host_local(rig: &Rig, subnet: &str) -> Value {
    json!({"type": "host-local", "dataDir": rig.path("data"), "subnet": subnet})
}

fn pods(rig: &Rig) -> Value {
    let bridge = json!({"type": "bridge", "bridge": "br0", "ipam": host_local(rig, "10.11.0.0/24")});
    json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]})
}

fn side(rig: &Rig) -> Value {
    json!({"cniVersion": "1.0.0", "name": "side", "type": "macvlan", "master": "eth0",
        "ipam": host_local(rig, "10.12.0.0/24")})
}

fn install(rig: &Rig, cni: &str) {
    fs::write(rig.path("config.yaml"), format!("reapAfter: 30ms\ninstall: {{cni: {cni}}}\n")).unwrap();
}

/// Calls the executable of a configuration as libcni does.
fn execute(rig: &Rig, command: &str, (container, pod, ifname): (&str, &Pod, &str), config: &Value) {
    let mut program = Command::new(rig.path("bin").join(config["type"].as_str().unwrap()));
    program.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("CNI_PATH", rig.path("bin"));
    program.envs([("CNI_COMMAND", command), ("CNI_CONTAINERID", container), ("CNI_IFNAME", ifname)]);
    program.env("CNI_NETNS", pod.path()).env("CNI_ARGS", args(container));
    program.env("FAIRLEAD_SOCKET", rig.socket()).env("FAIRLEAD_STATE_DIR", rig.path("state"));
    program.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = rig.spawn(&mut program);
    child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{command} {config}: {}", String::from_utf8_lossy(&out.stdout));
}

fn args(container: &str) -> String {
    format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={container};K8S_POD_UID=u")
}

/// A call for our own configuration, as a runtime makes it.
fn call<'r>(rig: &'r Rig, container: &str, pod: &Pod) -> Call<'r> {
    let list = fs::read_to_string(rig.path("net.d/00-fairlead.conflist")).unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    let mut config = list["plugins"][0].clone();
    config["name"] = list["name"].clone();
    config["cniVersion"] = list["cniVersion"].clone();
    rig.call(container, pod, &config).with_args(args(container))
}

/// The addresses on file, and what Multus has on file.
fn on_file(rig: &Rig) -> (Vec<String>, Vec<String>) {
    let names = |dir: &str, left_out: fn(&str) -> bool| {
        let entries = fs::read_dir(rig.path(dir)).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| !left_out(name)).collect();
        names.sort();
        names
    };
    let of_host_local = |name: &str| name == "lock" || name.starts_with("last_reserved_ip");
    let data = [names("data/pods", of_host_local), names("data/side", of_host_local)].concat();
    (data, names("multus", |name| name == "results"))
}

fn of_bridge_alone(mut config: Value) -> Value {
    let list = config.clone();
    config = list["plugins"][0].clone();
    config["name"] = list["name"].clone();
    config["cniVersion"] = list["cniVersion"].clone();
    config
}

#[test]
fn k10_m09_a_pod_that_multus_made_with_the_reference_plugins_is_torn_down_by_us() {
    let rig = node();
    let pod = rig.pod("p1");
    let before = pod.links();
    execute(&rig, "ADD", ("c1", &pod, "eth0"), &of_bridge_alone(pods(&rig)));
    execute(&rig, "ADD", ("c1", &pod, "net1"), &side(&rig));
    let mut of_list = entry("pods", &pods(&rig), "eth0");
    of_list["ConfList"] = pods(&rig);
    let file = json!([of_list, entry("shop/side", &side(&rig), "net1")]);
    fs::write(rig.path("multus/c1"), file.to_string()).unwrap();
    assert_eq!(pod.links().len(), before.len() + 2);
    assert_eq!(on_file(&rig).0, ["10.11.0.2", "10.12.0.2"]);

    install(&rig, "present");
    let _daemon = rig.start();
    until("the node is ours", || rig.path("net.d/00-fairlead.conflist").exists());
    call(&rig, "c1", &pod).execute(fairlead_cni::wire::Command::Del).end().succeeds();
    assert_eq!(pod.links(), before);
    assert_eq!(on_file(&rig), (vec![], vec![]));
}

#[test]
fn m09_a_pod_of_ours_is_torn_down_by_what_multus_does_with_the_file_that_it_is_left() {
    let rig = node();
    let pod = rig.pod("p2");
    let (before, multus) = (pod.links(), fs::read(rig.path("net.d/00-multus.conf")).unwrap());
    install(&rig, "present");
    let _daemon = rig.start();
    until("the node is ours", || rig.path("net.d/00-fairlead.conflist").exists());
    call(&rig, "c2", &pod).add().succeeds();
    assert_eq!(pod.links().len(), before.len() + 2, "with what every pod gets");

    install(&rig, "absent");
    until("Multus has the node", || !rig.path("net.d/00-fairlead.conflist").exists());
    assert_eq!(fs::read(rig.path("net.d/00-multus.conf")).unwrap(), multus);
    let file = fs::read_to_string(rig.path("multus/c2")).unwrap();
    for attachment in cached_attachments(&file, "c2", "eth0").unwrap().iter().rev() {
        let config: Value = serde_json::from_str(&attachment.config).unwrap();
        execute(&rig, "DEL", ("c2", &pod, &attachment.interface), &config);
    }
    until("nothing is left", || rig.attachments().is_empty());
    assert_eq!(pod.links(), before);
    assert_eq!(on_file(&rig).0, Vec::<String>::new());
}
