//! SIGKILL at every step of ADD and DEL of a vhost-user port, in a pod's volume, of a pool that kubelet allocates, and of OVS-DPDK. Before
//! the commit the restart leaves no port and no socket; after it the port stays; a DEL that was begun is finished by the restart. Nothing is
//! left in the directory, under whatever name.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use fairlead_host::NetKernel;
use fairlead_kubelet::fake_kubelet::{FakeKubelet, pod};
use fairlead_vhost::control::{PortCommands, Server};
use fairlead_vhost::fake_switch::{self, FakePorts};
use fairlead_vhost::ovs_dpdk::PortName;
use fairlead_vhost::ovs_dpdk::fake_server::FakeServer;
use serde_json::{Value, json};

use super::rig::{Call, Leftovers, Pod, Reply, Rig, stored, until};

const UID: &str = "0f3c2a54-6d3e-4b0e-9f5e-3b8f0b7d7a11";
const RESOURCE: &str = "example.com/blue";

/// A node with a switch, and a pod that asks for a port.
struct Node {
    rig: Rig,
    pod: Pod,
    config: Value,
    /// The directories of sockets, with what is in them.
    sockets: PathBuf,
    /// Where the pod's socket is.
    socket: PathBuf,
    switch: Switch,
    _kubelet: Option<FakeKubelet>,
}

/// What serves ports.
enum Switch {
    Own { ports: FakePorts, _server: Server },
    Ovs(FakeServer),
}

/// Everything that a port can leave behind.
#[derive(Debug, PartialEq)]
struct State {
    leftovers: Leftovers,
    sockets: Vec<PathBuf>,
    ports: Vec<String>,
    uplinks: Vec<String>,
    /// Whether the master hears what is not for it, and how many programs are on it.
    wire: (bool, usize),
}

impl Node {
    /// A pod with a volume that kubelet has made.
    fn with_volume() -> Node {
        let rig = Rig::new();
        let volume = rig.path(&format!("kubelet/pods/{UID}/volumes/kubernetes.io~empty-dir/vhost-user"));
        fs::create_dir_all(&volume).unwrap();
        let kubelet = rig.path("kubelet");
        Node::new(
            rig,
            &format!("kubelet: {{dir: {}}}\n", kubelet.display()),
            volume.clone(),
            volume.join("eth0.sock"),
            None,
        )
    }

    /// A pod with such a volume, in which it makes the socket; OVS-DPDK connects to it.
    fn with_ovs() -> Node {
        let mut node = Node::with_volume();
        let database = node.rig.path("ovs.sock");
        let before = fs::read_to_string(node.rig.path("config.yaml")).unwrap();
        let settings = format!("vhostUser: {{ovs: {{database: 'unix:{}'}}}}\n", database.display());
        fs::write(node.rig.path("config.yaml"), before + &settings).unwrap();
        node.switch = Switch::Ovs(FakeServer::serve(&database));
        node.config["switch"] = "ovs-dpdk".into();
        // Where OVS sees the directories of sockets.
        node.sockets = node.rig.path("run/ovs");
        node
    }

    /// A pod that kubelet has given the one port of a pool.
    fn with_pool() -> Node {
        let rig = Rig::new();
        let kubelet = FakeKubelet::running(&rig.path("root"));
        kubelet.answers.lock().unwrap().pods =
            vec![pod("ran", "du-0", &[("app", &[(RESOURCE, "blue-00", 0)])])];
        let dir = rig.path("root/var/lib/kubelet");
        let settings = format!(
            "kubelet: {{dir: {}}}\nvhostUser: {{pools: [{{name: blue, resourceName: {RESOURCE}, count: 1}}]}}\n",
            dir.display()
        );
        let sockets = rig.path("run/vhost-user");
        let socket = sockets.join("blue-00/vhost-user.sock");
        Node::new(rig, &settings, sockets, socket, Some(kubelet))
    }

    fn new(
        rig: Rig,
        settings: &str,
        sockets: PathBuf,
        socket: PathBuf,
        kubelet: Option<FakeKubelet>,
    ) -> Node {
        let before = fs::read_to_string(rig.path("config.yaml")).unwrap();
        fs::write(rig.path("config.yaml"), before + settings).unwrap();
        let (_server, ports) = fake_switch::serve(&rig.path("run/vswitch.sock"));
        let switch = Switch::Own { ports, _server };
        let mut config = json!({
            "cniVersion": "1.1.0", "name": "blue", "type": "vhost-user",
            "ipam": {"type": "host-local", "dataDir": rig.path("data"), "subnet": "10.60.0.0/24"},
        });
        if kubelet.is_some() {
            config["resourceName"] = RESOURCE.into();
        }
        let pod = rig.pod("pod");
        Node { rig, pod, config, sockets, socket, switch, _kubelet: kubelet }
    }

    fn call(&self) -> Call<'_> {
        call(&self.rig, &self.pod, &self.config)
    }

    fn state(&self) -> State {
        let leftovers = self.rig.leftovers(&[&self.pod]);
        let ports = match &self.switch {
            Switch::Own { ports, .. } => ports.names(),
            Switch::Ovs(server) => server.ports(),
        };
        let uplinks = match &self.switch {
            Switch::Own { ports, .. } => {
                ports.uplinks().into_iter().map(|uplink| uplink.config.network).collect()
            }
            Switch::Ovs(_) => Vec::new(),
        };
        let wire = self.rig.inside(|kernel| {
            let mut host = kernel.host().unwrap();
            let link = host.link_by_name("eth0").unwrap().unwrap();
            (link.is_promiscuous(), host.attached_programs(link.index).unwrap().len())
        });
        State { leftovers, sockets: below(&self.sockets), ports, uplinks, wire }
    }

    fn is_as(&self, before: &State, after: &str) {
        let mut now = self.state();
        let is_same = || {
            now = self.state();
            now == *before
        };
        until(&format!("after {after} all is as before"), is_same);
    }

    /// The port is served, by the socket that the pod sees.
    fn has_its_port(&self, result: &Value, at: &str) {
        assert_eq!(result["interfaces"][0]["socketPath"], self.socket.to_str().unwrap(), "{at}");
        match &self.switch {
            Switch::Own { ports, .. } => {
                assert_eq!(ports.names(), ["c1/eth0"], "{at}");
                let has_uplink = ports.uplink("blue").is_some();
                assert_eq!(has_uplink, self.config["master"] == "eth0", "{at}");
                connect(&self.socket);
            }
            Switch::Ovs(server) => {
                let name = PortName::of_attachment("c1", "eth0");
                assert_eq!(server.ports(), [name.as_str()], "{at}");
                // As the pod and OVS do.
                let listener = bind(&self.socket);
                UnixStream::connect(self.sockets.join(name.as_str()).join("eth0.sock")).unwrap();
                drop(listener);
                fs::remove_file(&self.socket).unwrap();
            }
        }
    }

    fn dies_everywhere(&self, add: &[&str], del: &[&str]) {
        let before = {
            let _daemon = self.rig.start();
            self.state()
        };
        for step in add {
            self.dies_in_add(step, &before);
        }
        self.dies_between_commit_and_answer(&before);
        for step in del {
            self.dies_in_del(step, &before);
        }
    }

    fn dies_in_add(&self, step: &str, before: &State) {
        let daemon = self.rig.start_dying_at(step);
        assert!(matches!(self.call().add(), Reply::Lost), "{step}");
        daemon.dies();
        let _daemon = self.rig.start();
        self.is_as(before, step);
        self.has_its_port(&self.call().add().result(), step);
        self.call().del().succeeds();
        self.is_as(before, &format!("{step}, ADD again, DEL"));
    }

    fn dies_between_commit_and_answer(&self, before: &State) {
        let step = "add.committed";
        let daemon = self.rig.start_dying_at(step);
        assert!(matches!(self.call().add(), Reply::Lost));
        daemon.dies();
        let _daemon = self.rig.start();
        let committed = self.state();
        assert_ne!(committed, *before, "{step}: there is no port");
        assert_eq!(stored(&self.rig.attachments()), [json!(["c1", "attached"])]);
        let result = self.call().add().result();
        self.is_as(&committed, "the stored answer");
        self.has_its_port(&result, step);
        self.call().del().succeeds();
        self.is_as(before, step);
    }

    fn dies_in_del(&self, step: &str, before: &State) {
        let daemon = self.rig.start_dying_at(step);
        self.has_its_port(&self.call().add().result(), step);
        assert!(!matches!(self.call().del(), Reply::Refused(_)), "{step}");
        daemon.dies();
        let _daemon = self.rig.start();
        self.is_as(before, step);
        self.call().del().succeeds();
        self.has_its_port(&self.call().add().result(), step);
        self.call().del().succeeds();
        self.is_as(before, &format!("{step}, ADD and DEL again"));
    }
}

fn call<'a>(rig: &'a Rig, pod: &'a Pod, config: &Value) -> Call<'a> {
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ran;K8S_POD_NAME=du-0;K8S_POD_UID={UID}");
    rig.call("c1", pod, config).with_args(args)
}

/// Connects by a path that may be longer than a socket's address.
fn connect(socket: &Path) {
    by_short_path(socket, |path| UnixStream::connect(path).map(drop).unwrap());
}

/// Makes a socket that listens, by such a path.
fn bind(socket: &Path) -> UnixListener {
    by_short_path(socket, |path| UnixListener::bind(path).unwrap())
}

fn by_short_path<T>(socket: &Path, work: impl FnOnce(&str) -> T) -> T {
    let dir = fs::File::open(socket.parent().unwrap()).unwrap();
    let name = socket.file_name().unwrap().to_str().unwrap();
    work(&format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))
}

/// All that is in a directory and below it, hidden or not.
fn below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(below(&entry.path()));
        }
        found.push(entry.path());
    }
    found.sort();
    found
}

#[test]
fn k14_x05_a_port_in_a_pods_volume_survives_a_kill_at_every_step() {
    let add = [
        "add.begun",
        "add.allocated",
        "socket.bound",
        "add.socket",
        "add.prepared",
        "add.linked",
        "add.configured",
    ];
    let del = ["del.removing", "del.home", "del.unlinked", "del.released", "del.removed"];
    Node::with_volume().dies_everywhere(&add, &del);
}

#[test]
fn k14_x05_the_uplink_of_a_port_survives_a_kill_at_every_step() {
    let mut node = Node::with_volume();
    node.config["master"] = "eth0".into();
    let add = ["add.begun", "add.uplink", "add.socket", "add.prepared", "add.configured"];
    let del = ["del.removing", "del.uplink", "del.home", "del.unlinked", "del.removed"];
    node.dies_everywhere(&add, &del);
}

#[test]
fn k14_x05_a_port_that_kubelet_allocates_survives_a_kill_at_every_step() {
    let add = ["add.begun", "add.allocated", "add.socket", "add.prepared", "add.linked", "add.configured"];
    // The first directory of the port is made at the start.
    let del = [
        "del.removing",
        "del.home",
        "directory.discarded:2",
        "socket.bound:2",
        "del.unlinked",
        "del.released",
        "del.removed",
    ];
    Node::with_pool().dies_everywhere(&add, &del);
}

#[test]
fn k14_x05_a_port_of_ovs_survives_a_kill_at_every_step() {
    let add = ["add.begun", "add.allocated", "add.socket", "add.prepared", "add.linked", "add.configured"];
    let del = ["del.removing", "del.unserved", "del.home", "del.unlinked", "del.released", "del.removed"];
    Node::with_ovs().dies_everywhere(&add, &del);
}

#[test]
fn a_pods_namespace_goes_with_its_pod_whatever_lives_on_that_was_made_for_its_port() {
    for (kind, with_del) in [("fairlead", false), ("fairlead", true), ("ovs-dpdk", false)] {
        let Node { rig, pod, mut config, switch, .. } = Node::with_volume();
        config["switch"] = kind.into();
        let _daemon = rig.start();
        // The ADD is what connects to the switch again, or has the driver of OVS started, which finds no database.
        drop(switch);
        let (_server, ports) = fake_switch::serve(&rig.path("run/vswitch.sock"));
        let added = call(&rig, &pod, &config).add();
        match kind {
            "fairlead" => assert_eq!(added.result()["interfaces"][0]["name"], "eth0"),
            _ => assert!(matches!(added, Reply::Refused(_)), "there is no OVS"),
        }
        if with_del {
            call(&rig, &pod, &config).del().succeeds();
        }
        assert_eq!(ports.names().len(), usize::from(kind == "fairlead" && !with_del));
        rig.ip("link add seen type veth peer name inside");
        rig.ip(&format!("link set inside netns {}", pod.path().display()));
        drop(pod);
        let is_gone = || !rig.links().iter().any(|link| link.contains("seen"));
        until(&format!("{kind}, DEL {with_del}: the namespace is gone, and its interfaces with it"), is_gone);
    }
}

#[test]
fn k14_a_daemon_that_is_killed_while_it_makes_ports_ready_makes_them_after_its_next_start() {
    let node = Node::with_pool();
    let before = {
        let _daemon = node.rig.start();
        node.state()
    };
    for step in ["directory.discarded", "socket.bound"] {
        node.rig.launch(Some(step)).dies();
        let _daemon = node.rig.start();
        node.is_as(&before, step);
        connect(&node.socket);
    }
}
