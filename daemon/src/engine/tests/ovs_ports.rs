//! Ports of OVS-DPDK: a database server that plays OVS, the real mounts, and ports that kubelet allocates.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use fairlead_cni::Code;
use fairlead_kubelet::fake_kubelet::FakeKubelet;
use fairlead_vhost::ovs_dpdk::PortName;
use fairlead_vhost::ovs_dpdk::fake_server::FakeServer;
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use serde_json::{Value, json};

use super::*;

const BLUE: &str = "example.com/blue";
const POD_NAME: (&str, &str) = ("ran", "du-0");
/// The group `hugetlbfs` of the node.
const OF_OVS: u32 = 70_001;

fn config(keys: &str) -> String {
    format!(
        r#"{{"cniVersion":"1.1.0","name":"net","type":"vhost-user","switch":"ovs-dpdk","resourceName":"{BLUE}"{keys}}}"#
    )
}

/// A node with two ports whose sockets pods make, or connect to; the pod has one.
fn rig(mode: &str) -> (Rig, FakeKubelet) {
    rig_with(mode, &["blue-00"])
}

/// The same; the pod has these ports.
fn rig_with(mode: &str, ports: &[&str]) -> (Rig, FakeKubelet) {
    let mut rig = Rig::new();
    let settings = format!(
        "vhostUser: {{ovs: {{database: 'unix:/ovs.sock'}}, pools: [{{name: blue, resourceName: {BLUE}, count: 2, mode: {mode}}}]}}"
    );
    rig.settings = serde_saphyr::from_str(&settings).unwrap();
    fs::create_dir_all(rig.root.join("proc/1/ns")).unwrap();
    symlink("/proc/self/ns/mnt", rig.root.join("proc/1/ns/mnt")).unwrap();
    rig.restart();
    let kubelet = FakeKubelet::running(&rig.root);
    rig.engine().offer_to_kubelet();
    kubelet.allocate_to_pod(POD_NAME, BLUE, ports).unwrap();
    (rig, kubelet)
}

fn ovs(rig: &Rig) -> FakeServer {
    FakeServer::serve(&rig.root.join("ovs.sock"))
}

fn name() -> String {
    PortName::of_attachment("c1", "net1").as_str().to_owned()
}

impl Rig {
    fn with_ovs(&self, command: Command, config: &str) -> Result<Value, CniError> {
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ran;K8S_POD_NAME=du-0;K8S_POD_UID=u-1".to_owned();
        let answer = self.call(Request { args, ..self.request(command, "c1", config) })?;
        Ok(serde_json::from_str(&answer).unwrap_or_default())
    }

    /// Those for an OVS of root's, and those for one of a group.
    fn mounts(&self) -> Vec<PathBuf> {
        let of = |directory| fs::read_dir(self.dir.path().join(directory)).into_iter().flatten();
        ["run/ovs", "run-ovs"].into_iter().flat_map(of).map(|entry| entry.unwrap().path()).collect()
    }

    /// From the next start OVS is not root's, and of the group `hugetlbfs`.
    pub(super) fn with_ovs_of_a_group(&mut self) {
        fs::create_dir_all(self.root.join("etc")).unwrap();
        let groups = format!("root:x:0:\nhugetlbfs:x:{OF_OVS}:openvswitch\nusers:x:100:\n");
        fs::write(self.root.join("etc/group"), groups).unwrap();
        self.settings.vhost_user.ovs.as_mut().unwrap().group = Some("hugetlbfs".to_owned());
        self.restart();
        // Above what is looked at: a test's own directory is root's alone.
        fs::set_permissions(self.dir.path(), Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs what keeps OVS's ports up until it is so.
    fn ovs_kept_up_until(&self, is_so: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        let goes_on = || !is_so() && Instant::now() < until;
        self.engine().core.kinds.vhost_user.keep_up_ovs(&goes_on);
        assert!(is_so(), "not in 60 s");
    }
}

#[test]
fn k29_ovs_serves_the_socket_that_the_pod_makes_and_is_led_nowhere_else() {
    let (rig, _kubelet) = rig("server");
    let server = ovs(&rig);
    let before = rig.state();
    let keys = r#","vlan":100,"mac":"02:00:00:00:00:07","mtu":9000,"max_tx_rate":50,
        "ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24"}]}"#;
    let told = rig.with_ovs(Command::Add, &config(keys)).unwrap();
    let info = json!({"type": "vhost-user", "version": "1.1.0",
        "vhost-user": {"mode": "server", "path": "/run/vhost-user/blue-00/vhost-user.sock"},
        "fairlead": {"mac": "02:00:00:00:00:07", "mtu": 9000, "addresses": ["10.1.0.5/24"]}});
    assert_eq!(rig.known_device_info(), info);
    let directory = rig.dir.path().join("run/vhost-user/blue-00");
    let on_host = directory.join("vhost-user.sock");
    assert_eq!(told["interfaces"][0]["socketPath"], on_host.to_str().unwrap());
    assert_eq!(
        (&told["interfaces"][0]["mac"], &told["interfaces"][0]["mtu"]),
        (&json!("02:00:00:00:00:07"), &json!(9000))
    );

    let interface = server.row("Interface", &name());
    let of_ovs = rig.dir.path().join("run/ovs").join(name()).join("vhost-user.sock");
    assert_eq!(interface["type"], "dpdkvhostuserclient");
    assert_eq!(interface["options"], json!(["map", [["vhost-server-path", of_ovs]]]));
    assert_eq!(
        (&interface["mtu_request"], &interface["ingress_policing_rate"]),
        (&json!(9000), &json!(50_000))
    );
    let port = server.row("Port", &name());
    assert_eq!((&port["tag"], &port["vlan_mode"]), (&json!(100), &json!("access")));
    let ids = port["external_ids"].to_string();
    for told in ["\"ran\"", "\"du-0\"", "\"u-1\"", "\"c1\"", "\"net1\"", "02:00:00:00:00:07"] {
        assert!(ids.contains(told), "{ids}");
    }

    // Whatever else the pod puts there, OVS is not led to another socket.
    let _of_pod = UnixListener::bind(&on_host).unwrap();
    UnixStream::connect(&of_ovs).unwrap();
    fs::remove_file(&on_host).unwrap();
    symlink(rig.root.join("ovs.sock"), &on_host).unwrap();
    UnixStream::connect(&on_host).unwrap();
    UnixStream::connect(&of_ovs).unwrap_err();

    let with = config(&format!(r#"{keys},"prevResult":{told}"#));
    rig.with_ovs(Command::Check, &with).unwrap();
    for _ in 0..2 {
        rig.with_ovs(Command::Del, &config(keys)).unwrap();
    }
    assert!(server.ports().is_empty() && rig.mounts().is_empty());
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "the next pod's directory is new");
    assert_eq!(rig.state(), before);
}

/// What a process of a group, of a user that is neither root nor the owner of anything, gets.
pub(super) fn as_member<T: Send + 'static>(
    group: u32,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let as_user = move || {
        setfsgid(Gid::from_raw(group));
        setfsuid(Uid::from_raw(70_000));
        work()
    };
    thread::spawn(as_user).join().unwrap()
}

#[test]
fn an_ovs_of_a_group_reaches_the_pods_socket_and_whoever_is_not_of_it_does_not() {
    let (mut rig, _kubelet) = rig("server");
    rig.with_ovs_of_a_group();
    let server = ovs(&rig);
    rig.with_ovs(Command::Add, &config("")).unwrap();
    let mounts = rig.dir.path().join("run-ovs");
    let of_ovs = mounts.join(name()).join("vhost-user.sock");
    assert_eq!(server.row("Interface", &name())["options"], json!(["map", [["vhost-server-path", of_ovs]]]));
    let of_pod = rig.dir.path().join("run/vhost-user/blue-00/vhost-user.sock");
    let _listener = UnixListener::bind(&of_pod).unwrap();
    fs::set_permissions(&of_pod, Permissions::from_mode(0o666)).unwrap();
    let connects = |group, path: &PathBuf| {
        let path = path.clone();
        as_member(group, move || UnixStream::connect(path).map(drop)).map_err(|e| e.kind())
    };
    connects(OF_OVS, &of_ovs).unwrap();
    assert_eq!(connects(OF_OVS + 1, &of_ovs), Err(io::ErrorKind::PermissionDenied));
    as_member(OF_OVS, move || fs::read_dir(mounts)).map(drop).unwrap_err();
    let row = || rig.engine().core.kinds.vhost_user.ports_table()["ovs"][0]["reason"].to_string();
    until("the access is told", || row().contains("ovs-vswitchd is root's or of the group hugetlbfs"));
    rig.with_ovs(Command::Del, &config("")).unwrap();
    assert!(server.ports().is_empty() && rig.mounts().is_empty());
}

#[test]
fn a_port_keeps_its_mount_when_the_group_of_ovs_is_named_and_its_del_takes_it_away() {
    let (mut rig, _kubelet) = rig("server");
    let server = ovs(&rig);
    let told = rig.with_ovs(Command::Add, &config("")).unwrap();
    let of_root = rig.dir.path().join("run/ovs").join(name());
    rig.with_ovs_of_a_group();
    // Left behind, where each of the two configurations has its mounts.
    let left = ["run/ovs/vhuleft", "run-ovs/vhuleft"].map(|path| rig.dir.path().join(path));
    left.iter().for_each(|path| fs::create_dir_all(path).unwrap());
    rig.ovs_kept_up_until(|| left.iter().all(|path| !path.exists()));
    assert_eq!(rig.mounts(), [of_root]);
    rig.with_ovs(Command::Check, &config(&format!(r#","prevResult":{told}"#))).unwrap();
    rig.with_ovs(Command::Del, &config("")).unwrap();
    assert!(server.ports().is_empty() && rig.mounts().is_empty());
}

#[test]
fn check_tells_what_became_of_a_port_of_ovs() {
    let (rig, _kubelet) = rig("server");
    let server = ovs(&rig);
    let told = rig.with_ovs(Command::Add, &config("")).unwrap();
    let with = config(&format!(r#","prevResult":{told}"#));
    rig.with_ovs(Command::Check, &with).unwrap();
    server.set("Port", &name(), "tag", json!(7));
    let check = || rig.with_ovs(Command::Check, &with).map_or_else(|e| e.to_string(), |_| String::new());
    until("the tag is another", || check().contains("has other settings"));
    server.set("Port", &name(), "tag", json!(0));
    until("the tag is right again", || check().is_empty());
}

#[test]
fn a_port_that_ovs_is_not_connected_to_is_listed_with_the_reason() {
    let (rig, _kubelet) = rig("server");
    let server = ovs(&rig);
    let row = || rig.engine().core.kinds.vhost_user.ports_table()["ovs"][0].clone();
    let reason = || row()["reason"].as_str().unwrap_or_default().to_owned();
    assert_eq!(row(), Value::Null);
    rig.with_ovs(Command::Add, &config("")).unwrap();
    let status = |word: &str| {
        server.set("Interface", &name(), "status", json!(["map", [["status", word]]]));
    };
    status("disconnected");
    until("the pod's socket is missed", || reason().starts_with("the pod has not made its socket "));
    let told = row();
    assert_eq!((&told["config"]["name"], &told["config"]["network"]), (&json!(name()), &json!("br0")));
    assert_eq!((&told["pod"], &told["connected"]), (&json!("ran/du-0"), &json!(false)));
    let socket = rig.dir.path().join("run/vhost-user/blue-00/vhost-user.sock");
    let _of_pod = UnixListener::bind(socket).unwrap();
    // OVS says so too while an application that it is connected to has not started its port.
    let told = reason();
    for part in [
        "no running device",
        "has not started its port",
        "share=on",
        "ovs-vswitchd is root's",
        "HostToContainer",
    ] {
        assert!(told.contains(part), "{told}");
    }
    status("connected");
    until("OVS is connected", || row()["connected"] == true && row()["reason"].is_null());
    rig.with_ovs(Command::Del, &config("")).unwrap();
    assert_eq!(row(), Value::Null);
}

#[test]
fn without_ovs_or_its_bridge_an_add_is_tried_again_and_status_says_so() {
    let (rig, _kubelet) = rig("server");
    let before = rig.state();
    let refused = rig.with_ovs(Command::Add, &config("")).unwrap_err();
    assert!(refused.code == Code::TryAgain && refused.msg.contains("is ovsdb-server running"), "{refused}");
    assert!(rig.mounts().is_empty());
    assert_eq!(rig.state(), before);
    let status = |keys: &str| rig.call(rig.request(Command::Status, "", &config(keys)));
    assert_eq!(status("").unwrap_err().code, Code::NotAvailable);
    let server = ovs(&rig);
    until("the driver has connected", || status("").is_ok());
    let lacking = status(r#","bridge":"br1""#).unwrap_err();
    assert!(
        lacking.code == Code::NotAvailable && lacking.msg.contains("the bridge br1 does not exist"),
        "{lacking}"
    );
    let refused = rig.with_ovs(Command::Add, &config(r#","bridge":"br1""#)).unwrap_err();
    assert!(refused.code == Code::TryAgain && refused.msg.contains("ovs-vsctl add-br br1"), "{refused}");
    assert!(server.ports().is_empty() && rig.mounts().is_empty());
    assert_eq!(rig.state(), before);
    rig.with_ovs(Command::Add, &config("")).unwrap();
}

#[test]
fn a_switch_that_does_not_serve_is_told_and_del_is_a_success() {
    let (rig, _kubelet) = rig_with("server", &["blue-00", "blue-01"]);
    let server = ovs(&rig);
    let before = rig.state();
    let told = rig.with_ovs(Command::Add, &config("")).unwrap();
    let with = config(&format!(r#","prevResult":{told}"#));
    rig.with_ovs(Command::Check, &with).unwrap();
    server.run_switch(false);
    // Another ADD, which has the switch asked for something, finds it out.
    let of_other = |command| {
        let args = "K8S_POD_NAMESPACE=ran;K8S_POD_NAME=du-0;K8S_POD_UID=u-1".to_owned();
        rig.call(Request { args, ifname: "net2".to_owned(), ..rig.request(command, "c1", &config("")) })
    };
    let other = of_other(Command::Add).unwrap_err();
    assert!(other.code == Code::TryAgain && other.msg.contains("ovs-vswitchd does not run"), "{other}");
    assert_eq!(server.ports(), [name()]);
    let status = || rig.call(rig.request(Command::Status, "", &config("")));
    let lacking = status().unwrap_err();
    assert!(lacking.code == Code::NotAvailable && lacking.msg.contains("restart ovs-vswitchd"), "{lacking}");
    let checked = rig.with_ovs(Command::Check, &with).unwrap_err();
    assert!(checked.code == Code::TryAgain && checked.msg.contains("ovs-vswitchd does not run"), "{checked}");
    of_other(Command::Del).unwrap();
    rig.with_ovs(Command::Del, &config("")).unwrap();
    assert!(server.ports().is_empty() && rig.mounts().is_empty());
    assert_eq!(rig.state(), before);
    server.run_switch(true);
    until("it serves", || status().is_ok());
    rig.with_ovs(Command::Add, &config("")).unwrap();
}

#[test]
fn ports_on_record_stay_ours_when_the_node_has_another_name() {
    let (mut rig, _kubelet) = rig("server");
    let server = ovs(&rig);
    let told = rig.with_ovs(Command::Add, &config("")).unwrap();
    let with = config(&format!(r#","prevResult":{told}"#));
    // Of another node's daemon, on the same database.
    server.add_port("theirs", Some("elsewhere"));
    let called = |rig: &mut Rig, node: &str| {
        rig.settings.node_name = Some(node.to_owned());
        rig.restart();
    };
    let has_name = |node: &str| server.row("Port", &name())["external_ids"].to_string().contains(node);
    called(&mut rig, "renamed");
    rig.ovs_kept_up_until(|| has_name("renamed"));
    rig.with_ovs(Command::Check, &with).unwrap();
    // Its DEL comes before the ports are compared with the records.
    called(&mut rig, "again");
    rig.with_ovs(Command::Del, &config("")).unwrap();
    assert_eq!(server.ports(), ["theirs"]);
    rig.with_ovs(Command::Add, &config("")).unwrap();
    assert!(has_name("again"));
}

#[test]
fn status_of_many_paths_waits_once_for_a_database_that_is_away() {
    // If each waited, its 30 ms would make more than 1.9 s together.
    const PATHS: usize = 64;
    let (rig, _kubelet) = rig("server");
    let path = format!(r#"{{"type":"vhost-user","switch":"ovs-dpdk","resourceName":"{BLUE}"}}"#);
    let paths = [path.as_str(); PATHS].join(",");
    let config = format!(r#"{{"cniVersion":"1.1.0","name":"net","type":"fairlead","paths":[{paths}]}}"#);
    let took = || {
        let begun = Instant::now();
        let refused = rig.call(rig.request(Command::Status, "", &config)).unwrap_err();
        let took = begun.elapsed();
        assert!(
            refused.code == Code::NotAvailable && refused.msg.contains("is ovsdb-server running"),
            "{refused}"
        );
        took
    };
    // One of several must be fast enough: other work on the machine may slow some, and no work makes a wait shorter.
    let times: Vec<Duration> = (0..5).map(|_| took()).collect();
    assert!(times.iter().any(|took| *took < Duration::from_secs(1)), "each path has waited: {times:?}");
}

#[test]
fn a_pool_whose_pods_connect_is_refused_with_what_to_take() {
    let (rig, _kubelet) = rig("client");
    let _server = ovs(&rig);
    let before = rig.state();
    let refused = rig.with_ovs(Command::Add, &config("")).unwrap_err();
    assert!(refused.code == Code::InvalidConfig && refused.details.contains("mode server"), "{refused}");
    assert_eq!(rig.state(), before);
}

#[test]
fn ovs_has_the_ports_of_the_records_again_whoever_was_restarted_and_nobody_elses_port_is_touched() {
    let (mut rig, _kubelet) = rig("server");
    let server = ovs(&rig);
    server.add_port("theirs", None);
    rig.with_ovs(Command::Add, &config("")).unwrap();
    let both = || {
        let mut names = vec!["theirs".to_owned(), name()];
        names.sort();
        names
    };
    assert_eq!(server.ports(), both());
    // OVS with a new database.
    server.recreate();
    until("the driver puts the port back", || server.ports() == [name()]);
    // A database that lost it while the daemon did not run.
    rig.engine = None;
    server.recreate();
    rig.restart();
    rig.ovs_kept_up_until(|| server.ports() == [name()]);
    // One that nobody has any more: its DEL came while the database was away.
    server.add_port("theirs", None);
    let node = crate::cluster_watch::name_of_node(&rig.settings);
    server.add_port(PortName::of_attachment("c2", "net1").as_str(), Some(&node));
    rig.restart();
    rig.ovs_kept_up_until(|| server.ports() == both());
    rig.with_ovs(Command::Del, &config("")).unwrap();
    assert_eq!(server.ports(), ["theirs"]);
}

#[track_caller]
fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not in 60 s");
        thread::sleep(Duration::from_millis(5));
    }
}
