//! userspace-cni's configurations: a database server that plays OVS, the real mounts and files, and a cluster in memory.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread;

use fairlead_cni::Code;
use fairlead_kube::fake_cluster::FakeCluster;
use fairlead_kube::{PodRef, SharedDirVolume};
use fairlead_vhost::ovs_dpdk::PortName;
use fairlead_vhost::ovs_dpdk::fake_server::FakeServer;
use serde_json::{Value, json};

use super::ovs_ports::as_member;
use super::vhost_user::{connect, switch};
use super::*;

const ID: &str = "0958c8871b32f4";
const BEGIN: &str = "0958c8871b32";
const POD_UID: &str = "u-1";

fn config(keys: &str) -> String {
    format!(
        r#"{{"cniVersion":"0.3.1","type":"userspace","name":"net","host":{{"engine":"ovs-dpdk","iftype":"vhostuser",
        "netType":"bridge","vhost":{{"mode":"client"}},"bridge":{{"bridgeName":"br-4"}}}},"container":{{"engine":"ovs-dpdk",
        "iftype":"vhostuser","netType":"interface","vhost":{{"mode":"server"}}}},
        "ipam":{{"type":"static","addresses":[{{"address":"10.1.0.5/24"}}]}}{keys}}}"#
    )
}

fn pod() -> PodRef {
    PodRef { namespace: "ran".into(), name: "du-0".into(), uid: Some(POD_UID.into()) }
}

pub(super) struct Node {
    pub(super) rig: Rig,
    api: Arc<FakeCluster>,
}

impl Node {
    pub(super) fn new() -> Node {
        let mut rig = Rig::new();
        rig.settings = serde_saphyr::from_str("vhostUser: {ovs: {database: 'unix:/ovs.sock'}}").unwrap();
        fs::create_dir_all(rig.root.join("proc/1/ns")).unwrap();
        symlink("/proc/self/ns/mnt", rig.root.join("proc/1/ns/mnt")).unwrap();
        let api = Arc::new(FakeCluster::default());
        api.put_pod(&pod(), &[]);
        rig.cluster = Some(Arc::clone(&api));
        rig.restart();
        rig.kernel.add_namespace("/run/netns/c1".to_owned());
        Node { rig, api }
    }

    fn ovs(&self) -> FakeServer {
        FakeServer::serve(&self.rig.root.join("ovs.sock"))
    }

    pub(super) fn call(&self, command: Command, config: &str) -> Result<Value, CniError> {
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ran;K8S_POD_NAME=du-0;K8S_POD_UID=u-1".to_owned();
        let netns = "/run/netns/c1".to_owned();
        let request = Request { args, netns, ..self.rig.request(command, ID, config) };
        let call = self.rig.prepare(request);
        let now = Instant::now();
        let deadline = now + Duration::from_secs(20);
        let reply = call.serve(Waiting { arrived: now, deadline, gone: CallerGone::default() });
        let answer = reply.outcome?;
        call.answered(true);
        Ok(serde_json::from_str(&answer).unwrap_or_default())
    }

    /// Below the host's root, which is also where the mounts look in these tests.
    pub(super) fn on_host(&self, path: &str) -> PathBuf {
        self.rig.root.join(path.trim_start_matches('/'))
    }

    /// The pod has the volume as a directory of the host: where the mounts are made it is the machine's own.
    fn with_host_path(&self) -> PathBuf {
        let directory = self.rig.dir.path().join("app1");
        fs::create_dir_all(&directory).unwrap();
        fs::create_dir_all(self.on_host(directory.to_str().unwrap())).unwrap();
        let host_path = Some(format!("{}/", directory.display()));
        let mount_path = Some("/var/lib/cni/usrspcni/".to_owned());
        self.api.put_shared_dir(&pod(), SharedDirVolume { host_path, mount_path });
        directory
    }
}

/// For the node's own switch, which makes the socket.
pub(super) fn of_own_switch(keys: &str) -> String {
    let both = config(keys).replace("ovs-dpdk", "fairlead").replace(r#""client""#, r#""both""#);
    both.replace(r#""server""#, r#""client""#).replace(r#""both""#, r#""server""#)
}

#[test]
fn without_a_cluster_the_pod_is_told_by_a_file_whatever_the_configuration_says() {
    let mut node = Node::new();
    node.rig.cluster = None;
    node.rig.restart();
    let (_server, _ports) = switch(&node.rig);
    let own = of_own_switch(r#","sharedDir":"/run/usrspcni","kubeconfig":"/etc/multus.kubeconfig""#);
    node.call(Command::Add, &own).unwrap();
    let file = node.on_host("/run/usrspcni").join(BEGIN).join(format!("configData-{BEGIN}-net1.json"));
    assert!(fs::read_to_string(file).unwrap().contains("ipResult"));
    node.call(Command::Del, &own).unwrap();
}

#[test]
fn userspace_cnis_own_example_is_a_port_in_a_bridge_that_is_made_and_the_pod_is_told_by_annotations() {
    let node = Node::new();
    let server = node.ovs();
    let directory = node.with_host_path();
    let on_host = node.on_host(directory.to_str().unwrap());
    fs::remove_dir(&on_host).unwrap();
    let refused = node.call(Command::Add, &config("")).unwrap_err();
    assert_eq!(
        (refused.code, refused.details.contains("DirectoryOrCreate")),
        (Code::InvalidConfig, true),
        "{refused:?}"
    );
    fs::create_dir(&on_host).unwrap();
    let told = node
        .call(Command::Add, &config(r#","kubeconfig":"/etc/multus.kubeconfig","logLevel":"debug""#))
        .unwrap();
    assert_eq!(told["ips"][0]["address"], "10.1.0.5/24");
    assert_eq!(node.rig.known_device_info()["fairlead"]["addresses"], json!(["10.1.0.5/24"]));
    let name = PortName::of_attachment(ID, "net1").as_str().to_owned();
    let interface = server.row("Interface", &name);
    let path = node.rig.dir.path().join("run/ovs").join(&name).join(format!("{BEGIN}-net1"));
    assert_eq!(interface["type"], "dpdkvhostuserclient");
    assert_eq!(interface["options"], json!(["map", [["vhost-server-path", path]]]));
    let port = server.row("Port", &name);
    assert!(
        port["tag"].is_null() && port["vlan_mode"].is_null(),
        "every VLAN, as userspace-cni has it: {port}"
    );
    assert_eq!(server.row("Bridge", "br-4")["datapath_type"], "netdev");

    let annotations = node.api.annotations();
    let [(of, data, text), (_, mapped, dir)] = annotations.as_slice() else { panic!("{annotations:?}") };
    assert_eq!((of, *data, *mapped), (&pod(), "userspace/configuration-data", "userspace/mapped-dir"));
    assert_eq!(dir, "/var/lib/cni/usrspcni/");
    assert!(
        text.starts_with(&format!(r#"[{{"containerId":"{ID}","ifName":"net1","name":"net","config":"#)),
        "{text}"
    );
    let data: Value = serde_json::from_str(text).unwrap();
    let wanted = json!({"mode": "server", "socketfile": format!("{BEGIN}-net1")});
    assert_eq!((&data[0]["config"]["vhost"], &data[0]["config"]["iftype"]), (&wanted, &json!("vhostuser")));
    assert_eq!(data[0]["ipResult"]["ips"][0]["address"], "10.1.0.5/24");

    for _ in 0..2 {
        node.call(Command::Del, &config("")).unwrap();
    }
    assert_eq!(server.ports(), ["br-4"], "the bridge stays");
    // Without a kubeconfig, too: a file there would be one in the host's directory.
    node.call(Command::Add, &config("")).unwrap();
    assert_eq!(node.api.annotations().len(), 4);
    node.call(Command::Del, &config("")).unwrap();
    assert_eq!(fs::read_dir(node.on_host(directory.to_str().unwrap())).unwrap().count(), 0);
    let told = node.call(Command::Add, &of_own_switch("")).unwrap_err();
    assert!(told.code == Code::InvalidConfig && told.msg.contains("no socket is made for a pod"), "{told}");
}

#[test]
fn the_pods_own_volume_has_the_socket_and_the_configuration_data() {
    let node = Node::new();
    let (_server, ports) = switch(&node.rig);
    let volume = node.on_host("/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~empty-dir/shared-dir");
    fs::create_dir_all(&volume).unwrap();
    node.call(Command::Add, &of_own_switch("")).unwrap();
    connect(&volume.join(format!("{BEGIN}-net1"))).unwrap();
    assert_eq!(ports.only().network, "br-4");
    assert!(volume.join(format!("configData-{BEGIN}-net1.json")).is_file());
    node.call(Command::Del, &of_own_switch("")).unwrap();
    assert_eq!(fs::read_dir(&volume).unwrap().count(), 0);
    node.call(Command::Add, &of_own_switch(r#","kubeconfig":"/k""#)).unwrap();
    assert_eq!(fs::read_dir(&volume).unwrap().count(), 1, "the pod is told by annotations");
    assert_eq!(node.api.annotations().len(), 2);
    node.call(Command::Del, &of_own_switch("")).unwrap();
}

#[test]
fn a_pod_that_the_cluster_tells_of_during_the_call_is_told_where_it_has_mounted_its_volume() {
    let mut node = Node::new();
    node.api = Arc::default();
    node.rig.cluster = Some(Arc::clone(&node.api));
    node.rig.restart();
    let (_server, _ports) = switch(&node.rig);
    let volume = "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~empty-dir/shared-dir";
    fs::create_dir_all(node.on_host(volume)).unwrap();
    let api = Arc::clone(&node.api);
    let seen_late = thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        let mount_path = Some("/run/sockets".to_owned());
        api.put_pod_with_shared_dir(&pod(), SharedDirVolume { host_path: None, mount_path });
    });
    node.call(Command::Add, &of_own_switch(r#","kubeconfig":"/k""#)).unwrap();
    seen_late.join().unwrap();
    let annotations = node.api.annotations();
    let (_, name, mapped_dir) = annotations.last().unwrap();
    assert_eq!((*name, mapped_dir.as_str()), ("userspace/mapped-dir", "/run/sockets"));
    node.call(Command::Del, &of_own_switch("")).unwrap();
}

#[test]
fn without_a_volume_the_socket_is_in_a_directory_of_the_containers_own_with_the_configuration_data_beside_it()
{
    let node = Node::new();
    let (_server, ports) = switch(&node.rig);
    let keys = r#","sharedDir":"/run/usrspcni""#;
    let own = of_own_switch(keys);
    let told = node.call(Command::Add, &own).unwrap();
    let directory = node.on_host("/run/usrspcni").join(BEGIN);
    assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o7777, 0o750);
    connect(&directory.join(format!("{BEGIN}-net1"))).unwrap();
    assert_eq!(
        (ports.only().network.as_str(), told["ips"][0]["address"].as_str()),
        ("br-4", Some("10.1.0.5/24"))
    );
    let file = directory.join(format!("configData-{BEGIN}-net1.json"));
    let data: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((&data["containerId"], &data["config"]["vhost"]["mode"]), (&json!(ID), &json!("client")));
    assert!(node.api.annotations().is_empty());

    node.call(Command::Del, &own).unwrap();
    assert!(!directory.exists() && directory.parent().unwrap().exists());
    // What a pod has made of the directory meanwhile is not followed, and keeps no DEL from its end.
    node.call(Command::Add, &own).unwrap();
    fs::rename(&directory, directory.with_extension("away")).unwrap();
    let theirs = node.on_host("/theirs");
    fs::create_dir(&theirs).unwrap();
    let kept = UnixListener::bind(theirs.join(format!("{BEGIN}-net1"))).unwrap();
    symlink("/theirs", &directory).unwrap();
    node.call(Command::Del, &own).unwrap();
    assert!(ports.names().is_empty() && fs::read_dir(&theirs).unwrap().count() == 1);
    drop(kept);
}

#[test]
fn a_group_of_ovs_is_let_into_the_containers_own_directory_and_one_that_is_not_the_nodes_is_refused() {
    let mut node = Node::new();
    let server = node.ovs();
    let of_group = |group: &str| {
        config("").replace(
            r#""vhost":{"mode":"client"}"#,
            &format!(r#""vhost":{{"mode":"client","group":"{group}"}}"#),
        )
    };
    // The machine's own, in which the mounts are made, and that of the host's root.
    let base = node.rig.dir.path().join("shared");
    fs::create_dir_all(base.join(BEGIN)).unwrap();
    let with_base = |group: &str| {
        let text = of_group(group);
        format!(r#"{},"sharedDir":"{}"}}"#, text.strip_suffix('}').unwrap(), base.display())
    };
    let refused = |node: &Node, group: &str| {
        let refused = node.call(Command::Add, &with_base(group)).unwrap_err();
        assert_eq!(refused.code, Code::InvalidConfig, "{refused}");
        assert!(refused.msg.contains("host.vhost.group is"), "{refused}");
    };
    // An OVS of root's, as the node says nothing of it.
    for group in ["root", "hugetlbfs"] {
        node.call(Command::Add, &with_base(group)).unwrap();
        node.call(Command::Del, &with_base(group)).unwrap();
    }
    node.rig.with_ovs_of_a_group();
    refused(&node, "users");
    for group in ["70001", "root", "hugetlbfs"] {
        node.call(Command::Add, &with_base(group)).unwrap();
        let own = node.on_host(base.to_str().unwrap()).join(BEGIN);
        let looks = |group| {
            let path = own.join("none");
            as_member(group, move || fs::metadata(path)).unwrap_err().kind()
        };
        assert_eq!((looks(70_001), looks(70_002)), (ErrorKind::NotFound, ErrorKind::PermissionDenied));
        node.call(Command::Del, &with_base(group)).unwrap();
        assert!(!own.exists() && server.ports() == ["br-4"]);
    }
}

#[test]
fn a_pod_without_a_directory_and_a_del_of_what_userspace_cni_made_are_answered() {
    let node = Node::new();
    let told = node.call(Command::Add, &config("")).unwrap_err();
    assert!(told.code == Code::InvalidConfig && told.details.contains("emptyDir"), "{told}");
    node.call(Command::Del, &config("")).unwrap();
}
