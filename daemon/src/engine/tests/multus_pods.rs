//! Pods that live through a change of the node from Multus to us, or back.

use std::fs;

use fairlead_kube::multus::{cached_attachments, entry};
use serde_json::{Value, json};

use super::identity::macvlan_link;
use super::pod_networks::{ARGS, Cluster, NETWORKS, web};
use super::*;
use crate::call::ChangeOver;
use crate::delegate::script;

/// A node whose pods' default network is `net`, with a directory of Multus' attachments.
struct Node {
    cluster: Cluster,
    dir: PathBuf,
    bin: PathBuf,
}

impl Node {
    fn new() -> Node {
        let cluster = Cluster::on_this_host();
        let (dir, bin) = (cluster.rig.dir.path().join("multus"), cluster.rig.dir.path().join("bin"));
        fs::create_dir_all(dir.join("results")).unwrap();
        fs::create_dir(&bin).unwrap();
        let calls = bin.join("calls").display().to_string();
        let body = format!(
            r#"echo "$CNI_COMMAND $CNI_IFNAME $CNI_ARGS $(cat)" >>{calls}; [ ! -e {calls}.refused ] || {{ echo '{{"code":100,"msg":"busy"}}'; exit 1; }}"#
        );
        script::write(&bin.join("lease"), &body);
        Node { cluster, dir, bin }
    }

    fn data_dir(&self) -> PathBuf {
        self.cluster.rig.dir.path().join("data")
    }

    fn dir_text(&self) -> String {
        self.dir.display().to_string()
    }

    fn request(&self, command: Command) -> Request {
        let config = json!({"cniVersion": "1.1.0", "name": "cluster", "type": "fairlead", "clusterNetwork": "net",
            "cniDir": self.dir});
        let path = self.bin.display().to_string();
        Request { config: config.to_string(), path, args: ARGS.into(), ..self.cluster.request(command) }
    }

    fn del(&self) -> Result<String, CniError> {
        self.cluster.rig.call(self.request(Command::Del))
    }

    fn macvlan(&self, name: &str) -> Value {
        json!({"cniVersion": "1.0.0", "name": name, "type": "macvlan", "master": "eth0",
            "ipam": {"type": "host-local", "dataDir": self.data_dir(), "subnet": "10.9.0.0/24"}})
    }

    /// What Multus has attached to `c1`: the default network, a tenant's macvlan, and one of an executed plugin.
    fn made_by_multus(&self) {
        let executed = json!({"cniVersion": "1.0.0", "name": "leased", "type": "lease"});
        let file = json!([
            entry("net", &self.macvlan("net"), "eth0"),
            entry("shop/radio", &self.macvlan("radio"), "net1"),
            entry("shop/leased", &executed, "net2"),
        ]);
        fs::write(self.dir.join("c1"), file.to_string()).unwrap();
        let result = json!({"kind": "cniCacheV1", "result": {"cniVersion": "1.0.0", "ips": [{"address": "10.2.0.9/24"}]}});
        fs::write(self.dir.join("results/leased-c1-net2"), result.to_string()).unwrap();
        for (network, interface, ip) in [("net", "eth0", "10.9.0.7"), ("radio", "net1", "10.9.0.2")] {
            self.cluster.rig.kernel.add_link(POD, interface, macvlan_link()).unwrap();
            self.holds(network, ip, "c1", interface);
        }
    }

    fn holds(&self, directory: &str, ip: &str, container: &str, interface: &str) {
        fs::create_dir_all(self.data_dir().join(directory)).unwrap();
        fs::write(self.data_dir().join(directory).join(ip), format!("{container}\r\n{interface}")).unwrap();
    }

    fn held(&self, directory: &str) -> Vec<String> {
        files(&self.data_dir().join(directory))
    }

    fn interfaces(&self) -> Vec<String> {
        let namespaces = self.cluster.rig.kernel.snapshot().namespaces.into_values();
        let links = namespaces.flat_map(|n| n.links.into_values()).map(|link| link.name);
        links.filter(|name| name.starts_with("net") || name == "eth0").collect()
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.bin.join("calls")).unwrap_or_default()
    }

    fn trust_data_dir(&mut self) {
        let settings = format!("dataDirRoots: [{}]", self.data_dir().display());
        fs::create_dir_all(self.data_dir()).unwrap();
        self.cluster.rig.call_settings.policy = Some(Arc::new(serde_saphyr::from_str(&settings).unwrap()));
        self.cluster.rig.restart();
    }

    fn change_over(&self, change: ChangeOver) -> Result<(), CniError> {
        self.cluster.rig.engine().change_over(change, &self.dir_text())
    }

    fn asks_for_radio(&self) {
        let text = self.macvlan("radio").to_string();
        self.cluster.api.put_definition("shop", "radio", &text, None);
        // This machine's own conf dir has no network of ours.
        let base = self.macvlan("base").to_string().replace("10.9.0", "10.8.0");
        self.cluster.api.put_definition("kube-system", "base", &base, None);
        let base = ("v1.multus-cni.io/default-network", "base");
        self.cluster.api.put_pod(&web(), &[base, (NETWORKS, "radio")]);
    }
}

#[test]
fn k10_m09_del_of_a_pod_that_multus_made_takes_down_each_of_its_networks_and_then_its_file() {
    let node = Node::new();
    let without = node.interfaces();
    node.made_by_multus();
    assert_ne!(node.interfaces(), without);
    // A plugin that refuses keeps the file, and none of the others.
    fs::write(node.bin.join("calls.refused"), "").unwrap();
    let told = node.del().unwrap_err();
    assert!(told.msg.contains("shop/leased") && told.msg.contains("busy"), "{told}");
    assert_eq!((node.interfaces(), node.held("radio"), node.held("net")), (without.clone(), vec![], vec![]));
    assert!(node.dir.join("c1").exists());
    fs::remove_file(node.bin.join("calls.refused")).unwrap();
    node.del().unwrap();
    let call = node.calls().lines().last().unwrap().to_owned();
    assert!(
        call.starts_with("DEL net2 ") && call.contains(r#""10.2.0.9/24""#),
        "with what libcni kept: {call}"
    );
    assert_eq!(files(&node.dir), Vec::<String>::new(), "nothing of Multus' is left");
    node.del().unwrap();
    assert_eq!(node.interfaces(), without);
}

#[test]
fn a_hostile_or_broken_file_of_multus_is_told_and_harms_nothing() {
    let node = Node::new();
    node.made_by_multus();
    let good = fs::read_to_string(node.dir.join("c1")).unwrap();
    let before = (node.held("radio"), fs::read_to_string("/etc/hostname").ok());
    let hostile = |key: &str, value: Value| {
        let mut file: Value = serde_json::from_str(&good).unwrap();
        file[1][key] = value;
        file.to_string()
    };
    let many = vec![entry("a/b", &json!({"name": "n", "type": "lease"}), "net1"); 300];
    for (text, part) in [
        ("{".to_owned(), "this is no file of Multus' attachments"),
        (good[..good.len() / 2].to_owned(), "this is no file"),
        (hostile("ifnameRequest", json!("../../x")), "../../x"),
        (hostile("Bytes", json!("e30=")), "shop/radio"),
        (json!(many).to_string(), "more than 256"),
    ] {
        fs::write(node.dir.join("c1"), text).unwrap();
        let told = node.del().unwrap_err();
        assert!(told.to_string().contains(part), "{told}");
        assert_eq!(fairlead_cni::avoid_containerd_phrases(&told.to_string()), told.to_string());
        assert!(node.dir.join("c1").exists());
    }
    assert_eq!(before, (node.held("radio"), fs::read_to_string("/etc/hostname").ok()));
    // What is no file of root's is not opened: neither the host's file behind a link, nor a FIFO that nobody writes.
    let victim = node.cluster.rig.dir.path().join("victim");
    fs::write(&victim, &good).unwrap();
    fs::remove_file(node.dir.join("c1")).unwrap();
    std::os::unix::fs::symlink(&victim, node.dir.join("c1")).unwrap();
    assert!(node.del().unwrap_err().msg.contains("a symbolic link"));
    fs::remove_file(node.dir.join("c1")).unwrap();
    nix::unistd::mkfifo(&node.dir.join("c1"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(node.del().unwrap_err().msg.contains("a FIFO"));
    assert_eq!(fs::read_to_string(victim).unwrap(), good);
}

#[test]
fn m09_an_address_that_a_pod_of_multus_holds_is_given_to_no_pod_of_ours_until_it_is_gone() {
    let mut node = Node::new();
    node.trust_data_dir();
    node.made_by_multus();
    // Of a pod whose file is gone, and of another tenant's network of the name: nobody's business.
    node.holds("radio", "10.9.0.3", "c9", "net1");
    node.change_over(ChangeOver::FromMultus).unwrap();
    node.change_over(ChangeOver::FromMultus).unwrap();
    assert_eq!(node.held("radio@shop"), ["10.9.0.2"]);
    let orphans = node.cluster.rig.engine().core.orphans();
    assert!(orphans.iter().all(|orphan| orphan.network != "radio@shop"), "its pod is there");
    node.asks_for_radio();
    node.cluster.rig.kernel.add_namespace("/run/netns/other");
    let of_c2 = |command| Request {
        container_id: "c2".into(),
        netns: "/run/netns/other".into(),
        ..node.request(command)
    };
    node.cluster.rig.call(of_c2(Command::Add)).unwrap();
    assert_eq!(
        node.held("radio@shop"),
        ["10.9.0.2", "10.9.0.3"],
        "the next one, and the file of nobody's pod is not heeded"
    );
    node.del().unwrap();
    assert_eq!(node.held("radio@shop"), ["10.9.0.3"], "free with its pod");
    assert_eq!(node.held("radio"), ["10.9.0.3"]);
}

#[test]
fn m09_what_was_put_on_file_for_pods_of_multus_goes_when_no_pod_of_ours_can_come() {
    let mut node = Node::new();
    node.trust_data_dir();
    node.made_by_multus();
    // One that is gone by then, by Multus' own DEL, which knows nothing of our directory.
    node.holds("radio", "10.9.0.3", "c3", "net1");
    let file = json!([
        entry("net", &node.macvlan("net"), "eth0"),
        entry("shop/radio", &node.macvlan("radio"), "net1")
    ]);
    fs::write(node.dir.join("c3"), file.to_string()).unwrap();
    node.asks_for_radio();
    node.change_over(ChangeOver::FromMultus).unwrap();
    node.cluster.rig.kernel.add_namespace("/run/netns/other");
    let netns = "/run/netns/other".into();
    let own = Request { container_id: "c2".into(), netns, ..node.request(Command::Add) };
    node.cluster.rig.call(own).unwrap();
    assert_eq!(node.held("radio@shop"), ["10.9.0.2", "10.9.0.3", "10.9.0.4"]);
    node.change_over(ChangeOver::ToMultus).unwrap();
    assert_eq!(node.held("radio@shop").len(), 3, "one more pod of ours may be on its way");
    fs::remove_file(node.dir.join("c3")).unwrap();
    fs::remove_file(node.data_dir().join("radio/10.9.0.3")).unwrap();
    node.change_over(ChangeOver::StaysWithMultus).unwrap();
    assert_eq!(node.held("radio@shop"), ["10.9.0.4"], "our pod's");
    assert_eq!(node.held("radio"), ["10.9.0.2", "10.9.0.4"]);
    // The same by a daemon that has started since.
    node.change_over(ChangeOver::FromMultus).unwrap();
    assert_eq!(node.held("radio@shop"), ["10.9.0.2", "10.9.0.4"]);
    node.cluster.rig.restart();
    node.change_over(ChangeOver::StaysWithMultus).unwrap();
    assert_eq!(node.held("radio@shop"), ["10.9.0.4"]);
    assert!(
        node.cluster.rig.engine().core.orphans().iter().all(|orphan| orphan.network != "radio"),
        "its pod is there"
    );
}

#[test]
fn pods_of_ours_are_handed_over_to_multus_and_taken_back() {
    let mut node = Node::new();
    node.trust_data_dir();
    node.asks_for_radio();
    node.cluster.rig.call(node.request(Command::Add)).unwrap();
    assert_eq!((node.held("radio@shop"), node.held("radio")), (vec!["10.9.0.2".to_owned()], vec![]));
    node.change_over(ChangeOver::ToMultus).unwrap();
    assert_eq!(node.held("radio"), ["10.9.0.2"], "Multus' pods do not get it");
    let file = fs::read_to_string(node.dir.join("c1")).unwrap();
    let of_multus = cached_attachments(&file, "c1", "eth0").unwrap();
    let told: Vec<(&str, Value)> = of_multus
        .iter()
        .map(|a| (a.interface.as_str(), serde_json::from_str::<Value>(&a.config).unwrap()["type"].clone()))
        .collect();
    assert_eq!(
        told,
        [("net1", json!("host-local")), ("eth0", json!("fairlead"))],
        "Multus begins with ours: {file}"
    );
    node.change_over(ChangeOver::ToMultus).unwrap();
    assert_eq!(fs::read_to_string(node.dir.join("c1")).unwrap(), file);

    // Back again: the files of our pods go, and the DEL of one is as ever.
    node.change_over(ChangeOver::FromMultus).unwrap();
    assert_eq!((files(&node.dir), node.held("radio")), (vec![], vec![]));
    assert_eq!(node.held("radio@shop"), ["10.9.0.2"]);
    node.change_over(ChangeOver::ToMultus).unwrap();

    // What Multus' DEL calls, in its order: our executable with the configuration of the file.
    let config = of_multus[1].config.clone();
    node.cluster.rig.call(Request { config, ..node.request(Command::Del) }).unwrap();
    node.cluster.rig.reap();
    assert_eq!(node.cluster.rig.engine().core.store.all().len(), 0);
    assert_eq!(node.held("radio@shop"), Vec::<String>::new());
}

#[test]
fn a_node_without_multus_has_nothing_to_change_over() {
    let node = Node::new();
    fs::remove_dir_all(&node.dir).unwrap();
    node.change_over(ChangeOver::FromMultus).unwrap();
    node.change_over(ChangeOver::ToMultus).unwrap();
    assert!(!node.dir.exists());
}
