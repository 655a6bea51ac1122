//! Ports that kubelet allocates, from Allocate to DEL: a fake kubelet, the real control socket, and a switch that only remembers.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use fairlead_cni::Code;
use fairlead_kubelet::fake_kubelet::{FakeKubelet, pod};
use fairlead_sriov::pools::Verb;
use fairlead_vhost::control::PortCommands;
use serde_json::{Value, json};

use super::vhost_user::{connect, switch};
use super::*;

const BLUE: &str = "example.com/blue";
const POD_NAME: (&str, &str) = ("ran", "du-0");
const CONFIG: &str = r#"{"cniVersion":"1.1.0","name":"net","type":"vhost-user","k8s.v1.cni.cncf.io/resourceName":"example.com/blue"}"#;

fn settings(pools: &str) -> Settings {
    serde_saphyr::from_str(&format!("vhostUser: {{pools: [{pools}]}}")).unwrap()
}

fn blue(mode: &str) -> String {
    format!("{{name: blue, resourceName: {BLUE}, count: 2, mode: {mode}, numaNode: 1}}")
}

/// A node with two ports of this mode, and a kubelet that has heard of nothing yet.
fn rig(mode: &str) -> (Rig, FakeKubelet) {
    let mut rig = Rig::new();
    rig.settings = settings(&blue(mode));
    rig.restart();
    let kubelet = FakeKubelet::running(&rig.root);
    rig.engine().offer_to_kubelet();
    (rig, kubelet)
}

impl Rig {
    fn directory(&self, port: &str) -> PathBuf {
        self.dir.path().join("run/vhost-user").join(port)
    }

    fn socket(&self, port: &str) -> PathBuf {
        self.directory(port).join("vhost-user.sock")
    }

    fn of_port(&self, command: Command, container: &str, config: &str) -> Result<Value, CniError> {
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ran;K8S_POD_NAME=du-0;K8S_POD_UID=u".to_owned();
        let answer = self.call(Request { args, ..self.request(command, container, config) })?;
        Ok(serde_json::from_str(&answer).unwrap_or_default())
    }

    /// Each port as the operator sees it.
    fn ports(&self) -> Vec<String> {
        let table = self.engine().table("pools").unwrap();
        let rows = table["ports"].as_array().unwrap();
        rows.iter()
            .map(|row| format!("{} {}", row["port"].as_str().unwrap(), row["state"].as_str().unwrap()))
            .collect()
    }
}

/// The list that kubelet gets: both ports, on the pool's NUMA node.
fn health(word: &str) -> Vec<(String, String, Option<i64>)> {
    ["blue-00", "blue-01"].map(|id| (id.to_owned(), word.to_owned(), Some(1))).to_vec()
}

/// The daemon starts with something in the way of its ports: kubelet hears that they are unhealthy, and `why` of their allocation, until it
/// is `cleared`.
fn unhealthy_until(mut rig: Rig, why: &str, cleared: impl FnOnce()) {
    rig.settings = settings(&blue("client"));
    rig.restart();
    let kubelet = FakeKubelet::running(&rig.root);
    rig.engine().offer_to_kubelet();
    assert_eq!(rig.ports(), ["blue-00 broken", "blue-01 broken"]);
    assert_eq!(kubelet.next_list(), (BLUE.to_owned(), health("Unhealthy")));
    let refused = kubelet.allocate(BLUE, &[&["blue-00"]]).unwrap_err();
    assert!(refused.message().contains(why), "{refused}");
    cleared();
    rig.engine().core.kinds.vhost_user.pools.mend();
    assert_eq!(kubelet.next_list(), (BLUE.to_owned(), health("Healthy")));
    assert_eq!(rig.ports(), ["blue-00 ready", "blue-01 ready"]);
    kubelet.allocate(BLUE, &[&["blue-00"]]).unwrap();
}

fn inode(path: &PathBuf) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

#[test]
fn x10_k29_a_pods_port_is_mounted_by_allocate_is_warm_and_is_served_by_its_add() {
    let (rig, kubelet) = rig("client");
    let (_server, ports) = switch(&rig);
    let warm = rig.socket("blue-01");
    let answer = kubelet.allocate_to_pod(POD_NAME, BLUE, &["blue-01"]).unwrap();
    let in_pod = "/run/vhost-user/blue-01";
    let on_host = rig.directory("blue-01").to_str().unwrap().to_owned();
    assert_eq!(
        answer["mounts"],
        json!([{"host_path": on_host, "container_path": in_pod, "read_only": true}])
    );
    let path = format!("{in_pod}/vhost-user.sock");
    assert_eq!(answer["envs"]["VHOSTUSER_EXAMPLE_COM_BLUE"], path);
    let info = rig.root.join("var/run/k8s.cni.cncf.io/devinfo/dp/example.com-blue-blue-01-device.json");
    let info: Value = serde_json::from_str(&fs::read_to_string(info).unwrap()).unwrap();
    assert_eq!(info["vhost-user"], json!({"mode": "client", "path": path}));
    let mac = answer["envs"]["VHOSTUSER_EXAMPLE_COM_BLUE_MAC"].as_str().unwrap();
    assert_eq!(info["fairlead"], json!({"mac": mac}));
    // Listening before the ADD; root's, and whoever has the directory may connect.
    connect(&warm).unwrap();
    let (directory, socket) =
        (fs::metadata(rig.directory("blue-01")).unwrap(), fs::symlink_metadata(&warm).unwrap());
    assert_eq!((directory.permissions().mode() & 0o777, socket.mode() & 0o777), (0o755, 0o666));
    assert_eq!(fs::metadata(rig.dir.path().join("run/vhost-user")).unwrap().mode() & 0o777, 0o700);
    let (before, was) = (inode(&warm), inode(&rig.directory("blue-01")));

    let told = rig.of_port(Command::Add, "c1", CONFIG).unwrap();
    assert_eq!((inode(&warm), ports.only().name.as_str()), (before, "c1/net1"));
    assert_eq!(ports.ports()[0].thread.numa_node, Some(1), "the pool's");
    assert_eq!(told["interfaces"][0]["socketPath"], format!("{on_host}/vhost-user.sock"));
    assert_eq!(told["interfaces"][0]["mac"], mac);
    assert_eq!(rig.ports(), ["blue-00 ready", "blue-01 taken"]);
    let with = CONFIG.replace("\"type\"", &format!("\"prevResult\":{told},\"type\""));
    rig.of_port(Command::Check, "c1", &with).unwrap();
    // Its record keeps it from Allocate and from a look, whatever kubelet thinks.
    kubelet.allocate(BLUE, &[&["blue-01"]]).unwrap();
    rig.engine().core.kinds.vhost_user.pools.mend();
    assert_eq!(inode(&warm), before);

    rig.of_port(Command::Del, "c1", CONFIG).unwrap();
    assert!(ports.names().is_empty());
    assert_ne!(inode(&rig.directory("blue-01")), was, "the next pod has the last one's directory");
    assert_eq!(rig.ports(), ["blue-00 ready", "blue-01 ready"]);
    connect(&warm).unwrap();
    rig.of_port(Command::Add, "c2", CONFIG).unwrap();
}

#[test]
fn where_pods_make_the_socket_the_next_one_finds_nothing_of_the_last() {
    let (rig, kubelet) = rig("server");
    let (_server, ports) = switch(&rig);
    let answer = kubelet.allocate_to_pod(POD_NAME, BLUE, &["blue-00"]).unwrap();
    assert_eq!(answer["mounts"][0]["read_only"], false);
    let directory = rig.directory("blue-00");
    assert_eq!(
        (fs::metadata(&directory).unwrap().mode() & 0o777, fs::read_dir(&directory).unwrap().count()),
        (0o777, 0)
    );
    rig.of_port(Command::Add, "c1", CONFIG).unwrap();
    assert!(ports.names().is_empty(), "nobody listens yet");
    let of_pod = UnixListener::bind(rig.socket("blue-00")).unwrap();
    rig.kept_up_until(|| ports.names() == ["c1/net1"]);
    of_pod.accept().unwrap();
    fs::write(rig.dir.path().join("outside"), "the host's").unwrap();
    symlink(rig.dir.path().join("outside"), directory.join("link")).unwrap();
    fs::create_dir_all(directory.join("a/b/c")).unwrap();
    let still_open = fs::File::open(&directory).unwrap();
    rig.of_port(Command::Del, "c1", CONFIG).unwrap();
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    rig.engine().core.kinds.vhost_user.pools.mend();
    let of_all = rig.dir.path().join("run/vhost-user");
    assert_eq!(files(&of_all), Vec::<String>::new(), "what it left is removed");
    assert_eq!(fs::read_dir(&of_all).unwrap().count(), 2);
    assert_eq!(fs::read_to_string(rig.dir.path().join("outside")).unwrap(), "the host's");
    drop(still_open);
}

#[test]
fn x10_a_port_is_the_pods_that_kubelet_gave_it_to_and_nobody_elses() {
    let (rig, kubelet) = rig("client");
    let (_server, ports) = switch(&rig);
    let none = rig.of_port(Command::Add, "c1", CONFIG).unwrap_err();
    assert_eq!(none.code, Code::TryAgain, "kubelet knows no such pod: {none}");
    kubelet.allocate_to_pod(POD_NAME, BLUE, &["blue-00"]).unwrap();
    let before = rig.state();
    // What a meta plugin passes is looked at, and a definition cannot name another's.
    let other = CONFIG.replace("\"type\"", r#""deviceID":"blue-01","type""#);
    let refused = rig.of_port(Command::Add, "c1", &other).unwrap_err();
    let words = r#"device blue-01 is of resource "example.com/blue", which kubelet allocates, and it has not given it to pod ran/du-0"#;
    assert!(refused.code == Code::InvalidConfig && refused.msg.contains(words), "{refused}");
    let unknown = CONFIG.replace("\"type\"", r#""deviceID":"red-00","type""#);
    let refused = rig.of_port(Command::Add, "c1", &unknown).unwrap_err();
    assert!(refused.msg.contains(r#""red-00" is no port of a pool"#), "{refused}");
    kubelet.answers.lock().unwrap().pods = vec![pod("ran", "du-0", &[("app", &[(BLUE, VF, 0)])])];
    let refused = rig.of_port(Command::Add, "c1", CONFIG).unwrap_err();
    assert!(refused.msg.contains("is no port of a pool"), "{refused}");
    assert_eq!((rig.state(), ports.names().len()), (before, 0));
}

#[test]
fn a_port_that_a_living_attachment_has_is_refused_and_to_be_had_after_its_del() {
    let (rig, kubelet) = rig("client");
    let (_server, ports) = switch(&rig);
    kubelet.allocate_to_pod(POD_NAME, BLUE, &["blue-00"]).unwrap();
    let passed = CONFIG.replace("\"type\"", r#""deviceID":"blue-00","type""#);
    let preferred = || kubelet.preferred(BLUE, &["blue-00", "blue-01"], &[], 1);
    assert_eq!(preferred(), ["blue-00"]);
    rig.of_port(Command::Add, "c1", &passed).unwrap();
    assert_eq!(preferred(), ["blue-01"], "whatever kubelet thinks of the other");
    let refused = rig.of_port(Command::Add, "c2", &passed).unwrap_err();
    let words = r#"port blue-00 cannot be had: it is interface "net1" of container c1"#;
    assert!(refused.code == Code::TryAgain && refused.msg.contains(words), "{refused}");
    assert_eq!(ports.names(), ["c1/net1"]);
    rig.of_port(Command::Del, "c1", &passed).unwrap();
    assert_eq!(preferred(), ["blue-00"]);
    rig.of_port(Command::Add, "c2", &passed).unwrap();
    assert_eq!(ports.names(), ["c2/net1"]);
}

#[test]
fn an_add_that_fails_gives_its_port_back_clean() {
    let (rig, kubelet) = rig("client");
    kubelet.allocate_to_pod(POD_NAME, BLUE, &["blue-00"]).unwrap();
    let refused = rig.of_port(Command::Add, "c1", CONFIG).unwrap_err();
    assert!(refused.code == Code::TryAgain && refused.msg.contains("vswitch.sock"), "{refused}");
    assert_eq!(rig.ports(), ["blue-00 ready", "blue-01 ready"]);
    let (_server, ports) = switch(&rig);
    rig.of_port(Command::Add, "c1", CONFIG).unwrap();
    assert_eq!(ports.names(), ["c1/net1"]);
}

#[test]
fn restarts_of_daemon_and_switch_leave_the_directory_that_a_pod_has_mounted() {
    let (mut rig, kubelet) = rig("client");
    let (server, ports) = switch(&rig);
    kubelet.allocate_to_pod(POD_NAME, BLUE, &["blue-00"]).unwrap();
    rig.of_port(Command::Add, "c1", CONFIG).unwrap();
    let (taken, free) = (inode(&rig.directory("blue-00")), inode(&rig.directory("blue-01")));
    drop(server);
    drop(ports);
    rig.restart();
    assert_eq!(rig.ports(), ["blue-00 taken", "blue-01 ready"]);
    connect(&rig.socket("blue-01")).unwrap();
    assert_ne!(inode(&rig.directory("blue-01")), free);
    let (_server, ports) = switch(&rig);
    rig.kept_up_until(|| ports.names() == ["c1/net1"]);
    connect(&rig.socket("blue-00")).unwrap();
    assert_eq!(inode(&rig.directory("blue-00")), taken);
    rig.of_port(Command::Del, "c1", CONFIG).unwrap();
    assert_eq!(rig.ports(), ["blue-00 ready", "blue-01 ready"]);
}

#[test]
fn a_pool_that_is_declared_no_more_keeps_what_pods_have_and_nothing_else() {
    let (rig, kubelet) = rig("client");
    let (_server, ports) = switch(&rig);
    kubelet.allocate_to_pod(POD_NAME, BLUE, &["blue-00"]).unwrap();
    rig.of_port(Command::Add, "c1", CONFIG).unwrap();
    let directory = rig.directory("blue-00");
    let was = inode(&directory);
    rig.engine()
        .configure(&settings(&format!("{{name: red, resourceName: {BLUE}, count: 1, mode: server}}")));
    assert_eq!(rig.ports(), ["red-00 ready"]);
    assert!(!rig.directory("blue-01").exists() && rig.directory("red-00").exists());
    assert_eq!((inode(&directory), ports.names().len()), (was, 1));
    rig.of_port(Command::Del, "c1", CONFIG).unwrap();
    assert!(!directory.exists());
    rig.engine().configure(&settings(&blue("client")));
    assert_eq!(rig.ports(), ["blue-00 ready", "blue-01 ready"]);
    // The other mode is another directory.
    connect(&rig.socket("blue-00")).unwrap();
    rig.engine().configure(&settings(&blue("server")));
    assert!(!rig.socket("blue-00").exists());
}

#[test]
fn a_port_has_the_mac_address_that_allocate_told_after_a_restart_too_unless_the_pod_asks_for_another() {
    let (mut rig, kubelet) = rig("client");
    let answer = kubelet.allocate_to_pod(POD_NAME, BLUE, &["blue-00", "blue-01"]).unwrap();
    let told = answer["envs"]["VHOSTUSER_EXAMPLE_COM_BLUE_MAC"].as_str().unwrap().to_owned();
    let (first, second) = told.split_once(',').unwrap();
    assert_ne!(first, second);
    rig.restart();
    let (_server, ports) = switch(&rig);
    let result = rig.of_port(Command::Add, "c1", CONFIG).unwrap();
    assert_eq!(
        (&result["interfaces"][0]["mac"], ports.only().mac.to_string().as_str()),
        (&json!(first), first)
    );
    let own = CONFIG.replace("\"type\"", r#""mac":"02:00:00:00:00:07","type""#);
    rig.of_port(Command::Del, "c1", CONFIG).unwrap();
    rig.of_port(Command::Add, "c2", &own).unwrap();
    assert_eq!(ports.only().mac.to_string(), "02:00:00:00:00:07");
}

#[test]
fn x17_a_port_whose_mac_address_cannot_be_put_on_record_is_unhealthy_until_it_can() {
    let rig = Rig::new();
    let file = rig.dir.path().join("state/port-mac-addresses.json");
    // No file replaces a directory.
    fs::create_dir_all(file.join("in the way")).unwrap();
    unhealthy_until(rig, "its MAC address is not on record", || fs::remove_dir_all(&file).unwrap());
}

#[test]
fn a_pod_that_had_a_port_without_an_add_leaves_nothing_for_the_next() {
    let (rig, kubelet) = rig("server");
    kubelet.allocate_to_pod(POD_NAME, BLUE, &["blue-00"]).unwrap();
    fs::write(rig.directory("blue-00").join("left"), "x").unwrap();
    kubelet.allocate(BLUE, &[&["blue-00"]]).unwrap();
    assert_eq!(fs::read_dir(rig.directory("blue-00")).unwrap().count(), 0);
}

#[test]
fn x17_a_port_whose_directory_cannot_be_made_is_unhealthy_until_it_can() {
    let rig = Rig::new();
    let of_all = rig.dir.path().join("run/vhost-user");
    fs::write(&of_all, "in the way").unwrap();
    unhealthy_until(rig, "its directory cannot be made", || fs::remove_file(&of_all).unwrap());
}

#[test]
fn an_order_for_a_pool_of_ports_is_refused_as_one_and_not_as_one_for_no_pool() {
    let (rig, _kubelet) = rig("client");
    for of in ["blue", "blue-01"] {
        let refused = rig.engine().order_pools(Verb::Drain, of).unwrap_err();
        assert!(refused.msg.starts_with(&format!("{of:?} is a pool of vhost-user ports")), "{refused}");
        assert!(refused.details.contains("`count`"), "{refused}");
    }
    assert!(rig.engine().order_pools(Verb::Drain, "red").unwrap_err().msg.contains("is no pool"));
}
