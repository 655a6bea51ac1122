//! Definitions that stand for a resource (`k8s.v1.cni.cncf.io/resourceName`): the device that kubelet has given the pod for them, what
//! is told of it, and networks that need none.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use fairlead_cni::Code;
use fairlead_kube::multus::entry;
use fairlead_kube::npwg::DEFAULT_NETWORK;
use fairlead_kubelet::fake_kubelet::{FakeKubelet, device, pod};
use nix::errno::Errno;
use serde_json::{Value, json};

use super::kubelet_devices::{OTHER, RADIO};
use super::pod_networks::{Cluster, NETWORKS, definition, web};
use super::*;
use crate::delegate::script;

/// As the operator of SR-IOV networks writes it: no capabilities.
const OF_OPERATOR: &str = r#"{"cniVersion":"1.0.0","name":"radio","type":"sriov","vlan":0,"vlanQoS":0,"logLevel":"info","ipam":{}}"#;
const IN_A_LIST: &str =
    r#"{"cniVersion":"1.0.0","name":"radio","plugins":[{"type":"sriov","ipam":{}},{"type":"noter"}]}"#;
const EXECUTED: &str = r#"{"cniVersion":"1.0.0","name":"radio","type":"noter"}"#;
const DEVINFO: &str = "var/run/k8s.cni.cncf.io/devinfo";

/// A node with two VFs and a kubelet that has given the pod both, and plugins that are executed.
struct Node {
    cluster: Cluster,
    kubelet: FakeKubelet,
    bin: PathBuf,
}

impl Node {
    fn new() -> Node {
        let cluster = Cluster::new();
        let rig = &cluster.rig;
        rig.plug_other_vf();
        fs::create_dir_all(rig.root.join("proc/1/ns")).unwrap();
        symlink("/proc/self/ns/mnt", rig.root.join("proc/1/ns/mnt")).unwrap();
        let kubelet = FakeKubelet::running(&rig.root);
        let given = pod("shop", "web-0", &[("app", &[(RADIO, VF, 1), (RADIO, OTHER, 1)])]);
        kubelet.answers.lock().unwrap().pods = vec![given];
        let bin = rig.dir.path().join("bin");
        let node = Node { cluster, kubelet, bin };
        // Notes what it is called with.
        node.has_plugin("noter", "");
        node
    }

    /// A plugin that does more at ADD, with its configuration in `$conf`. It is looked for below the rig's root and runs in this
    /// machine's.
    fn has_plugin(&self, name: &str, at_add: &str) {
        let body = format!(
            r#"conf=$(cat); echo "$CNI_COMMAND $conf" >>{calls}
[ "$CNI_COMMAND" = ADD ] || exit 0
{at_add}
echo '{{"cniVersion":"1.0.0","interfaces":[{{"name":"net1","sandbox":"/x"}}],"ips":[],"dns":{{}}}}'"#,
            calls = self.bin.join("calls").display()
        );
        for bin in [self.bin.clone(), self.below_root(&self.bin)] {
            fs::create_dir_all(&bin).unwrap();
            script::write(&bin.join(name), &body);
        }
    }

    fn below_root(&self, path: &Path) -> PathBuf {
        self.cluster.rig.root.join(path.strip_prefix("/").unwrap())
    }

    fn asks(&self, networks: &str) {
        self.cluster.api.put_pod(&web(), &[(NETWORKS, networks)]);
    }

    /// The pod asks for this definition of the resource.
    fn asks_for(&self, text: &str, resource: &str) {
        self.cluster.api.put_definition("shop", "radio", text, Some(resource));
        self.asks("radio");
    }

    /// The device plugin has told of the first VF what nobody else knows.
    fn device_plugin_tells(&self) {
        let dp = self.cluster.rig.root.join(DEVINFO).join("dp");
        fs::create_dir_all(&dp).unwrap();
        let pci = json!({"pci-address": VF, "vhost-net": "/dev/vhost-net"});
        let told = json!({"type": "pci", "version": "1.1.0", "pci": pci});
        fs::write(dp.join(format!("intel.com-radio-{VF}-device.json")), told.to_string()).unwrap();
    }

    fn call(&self, command: Command) -> Result<String, CniError> {
        let path = self.bin.display().to_string();
        self.cluster.rig.call(Request { path, ..self.cluster.request(command) })
    }

    fn del(&self) {
        self.call(Command::Del).unwrap();
        self.cluster.rig.reap();
    }

    /// The device information of networks.
    fn described(&self) -> Vec<String> {
        files(&self.cluster.rig.root.join(DEVINFO).join("cni"))
    }

    /// What network-status has told last of the network beside the default one.
    fn told(&self) -> Value {
        let (_, status) = self.cluster.api.reports().pop().unwrap();
        let status: Value = serde_json::from_str(&status).unwrap();
        status[1].clone()
    }

    /// The configurations with which executed plugins had their ADD.
    fn added(&self) -> Vec<Value> {
        let calls = fs::read_to_string(self.bin.join("calls")).unwrap_or_default();
        let adds = calls.lines().filter_map(|line| line.strip_prefix("ADD "));
        adds.map(|conf| serde_json::from_str(conf).unwrap()).collect()
    }
}

#[test]
fn x10_a_network_whose_resource_no_device_plugin_serves_is_made_without_a_device() {
    let node = Node::new();
    node.has_plugin("bridge", "");
    // What a device plugin serves says nothing of the markers' resources.
    node.kubelet.answers.lock().unwrap().allocatable = vec![device(RADIO, VF, 1)];
    node.asks_for(&definition("radio", "10.9.0.0/24"), "ovs-cni.network.kubevirt.io/br1");
    node.call(Command::Add).unwrap();
    assert_eq!(node.cluster.pod().0, ["eth0", "net1"]);
    node.del();
    let bridge = r#"{"cniVersion":"1.0.0","name":"radio","type":"bridge","bridge":"br1"}"#;
    node.asks_for(bridge, "bridge.network.kubevirt.io/br1");
    node.call(Command::Add).unwrap();
    let added = node.added();
    assert_eq!(added.len(), 1, "{added:?}");
    assert!(added[0].get("deviceID").is_none() && added[0].get("runtimeConfig").is_none(), "{added:?}");
    node.del();
    assert_eq!(node.described(), Vec::<String>::new());
}

#[test]
fn d23_a_type_that_needs_a_device_is_refused_with_the_resource_of_which_the_pod_has_none() {
    const UNSERVED: &str = "intel.com/core";
    let node = Node::new();
    let before = node.cluster.rig.state();
    for namespace in ["shop", "kube-system"] {
        node.cluster.api.put_definition(namespace, "radio", OF_OPERATOR, Some(UNSERVED));
    }
    for annotation in [NETWORKS, DEFAULT_NETWORK] {
        node.cluster.api.put_pod(&web(), &[(annotation, "radio")]);
        let refused = node.call(Command::Add).unwrap_err();
        assert_eq!(refused.code, Code::InvalidConfig, "{annotation}: {refused}");
        for words in [UNSERVED, "no device plugin serves", "resources.limits"] {
            assert!(refused.details.contains(words), "{annotation}: {refused}");
        }
    }
    node.cluster.rig.reap();
    assert_eq!(node.cluster.rig.state(), before);
}

#[test]
fn d23_of_a_resource_that_a_device_plugin_serves_the_pod_must_have_a_device() {
    let node = Node::new();
    node.kubelet.answers.lock().unwrap().allocatable = vec![device("intel.com/core", VF, 1)];
    node.asks_for(&definition("radio", "10.9.0.0/24"), "intel.com/core");
    let refused = node.call(Command::Add).unwrap_err();
    assert_eq!(refused.code, Code::InvalidConfig, "{refused}");
    assert!(refused.msg.contains(r#"has no device of resource "intel.com/core""#), "{refused}");
    assert!(refused.details.contains("resources.limits"), "{refused}");
    // All of them taken is no matter of who serves them.
    node.cluster.api.put_definition("shop", "radio", EXECUTED, Some(RADIO));
    node.asks("radio, radio, radio");
    let refused = node.call(Command::Add).unwrap_err();
    assert!(refused.msg.contains("its other interfaces have all of them"), "{refused}");
}

#[test]
fn d23_a_resource_is_served_while_its_device_plugin_is_away_too_as_known_before_or_by_what_another_pod_has() {
    const CORE: &str = "intel.com/core";
    for is_new in [false, true] {
        let node = Node::new();
        let sriov = &node.cluster.rig.engine().core.kinds.sriov;
        if is_new {
            let other = pod("shop", "db-0", &[("app", &[(CORE, "0000:21:10.4", 1)])]);
            node.kubelet.answers.lock().unwrap().pods.push(other);
        } else {
            node.kubelet.answers.lock().unwrap().allocatable = vec![device(CORE, "0000:21:10.4", 1)];
            sriov.look_for_doubles();
            node.kubelet.answers.lock().unwrap().allocatable.clear();
            sriov.look_for_doubles();
        }
        node.asks_for(&definition("radio", "10.9.0.0/24"), CORE);
        let refused = node.call(Command::Add).unwrap_err();
        assert_eq!(refused.code, Code::InvalidConfig, "{refused}");
        assert!(refused.msg.contains(r#"has no device of resource "intel.com/core""#), "{refused}");
    }
}

#[test]
fn x10_device_information_of_a_definition_without_capabilities_is_in_network_status_and_goes_with_del() {
    let node = Node::new();
    node.device_plugin_tells();
    let before = node.cluster.rig.state();
    for (text, of_us) in [(OF_OPERATOR, true), (IN_A_LIST, true), (EXECUTED, false)] {
        node.asks_for(text, RADIO);
        node.call(Command::Add).unwrap();
        let told = node.told();
        let pci = &told["device-info"]["pci"];
        assert_eq!(
            (&pci["pci-address"], &pci["vhost-net"]),
            (&json!(VF), &json!("/dev/vhost-net")),
            "{told}"
        );
        assert_eq!(pci.get("pf-pci-address").is_some(), of_us, "what only we know: {told}");
        assert_eq!(node.described(), ["shop-radio-c1_net1"]);
        node.del();
        assert_eq!(node.described(), Vec::<String>::new(), "{text}");
        assert_eq!(node.cluster.rig.state(), before, "{text}");
    }
}

#[test]
fn x10_device_information_that_an_executed_plugin_writes_is_in_network_status_and_goes_with_del() {
    let node = Node::new();
    let root = node.cluster.rig.root.display();
    node.has_plugin(
        "writer",
        &format!(
            r#"file={root}$(printf %s "$conf" | sed 's/.*"CNIDeviceInfoFile":"\([^"]*\)".*/\1/')
mkdir -p "${{file%/*}}"; echo '{{"type":"memif","version":"1.1.0","memif":{{"path":"/run/m"}}}}' > "$file""#
        ),
    );
    let text = r#"{"cniVersion":"1.0.0","type":"writer","capabilities":{"CNIDeviceInfoFile":true}}"#;
    node.asks_for(text, RADIO);
    node.call(Command::Add).unwrap();
    assert_eq!(node.told()["device-info"]["memif"]["path"], "/run/m");
    node.del();
    assert_eq!(node.described(), Vec::<String>::new());
}

#[test]
fn x05_device_information_of_an_add_whose_plugin_cannot_be_started_is_withdrawn() {
    let node = Node::new();
    node.device_plugin_tells();
    for bin in [node.bin.clone(), node.below_root(&node.bin)] {
        fs::write(bin.join("broken"), "no program").unwrap();
        fs::set_permissions(bin.join("broken"), fs::Permissions::from_mode(0o755)).unwrap();
    }
    node.asks_for(r#"{"cniVersion":"1.0.0","name":"radio","type":"broken"}"#, RADIO);
    let before = node.cluster.rig.state();
    node.call(Command::Add).unwrap_err();
    node.cluster.rig.reap();
    assert_eq!(node.cluster.rig.state(), before);
}

#[test]
fn k14_device_information_of_an_add_that_dies_with_its_undo_is_withdrawn_after_the_restart() {
    for text in [OF_OPERATOR, IN_A_LIST] {
        let asking = || {
            let node = Node::new();
            node.device_plugin_tells();
            node.asks_for(text, RADIO);
            node.cluster.rig.kernel.forget_calls();
            node
        };
        let whole = asking();
        whole.call(Command::Add).unwrap();
        let (calls, mut left) = (whole.cluster.rig.kernel.calls().len(), 0);
        for n in 0..calls {
            let mut node = asking();
            node.cluster.rig.kernel.fail_from(n, Errno::ENOBUFS);
            let answer = node.call(Command::Add);
            node.cluster.rig.kernel.heal();
            if answer.is_ok() {
                continue;
            }
            left += node.described().len();
            node.cluster.rig.restart();
            node.cluster.rig.reap();
            node.cluster.rig.reap();
            let records = node.cluster.rig.engine().core.store.all().len();
            assert_eq!((node.described(), records), (Vec::new(), 0), "{text}: call {n} of {calls}");
        }
        assert!(left > 0, "{text}: none of {calls} ends lies between the file and the commit");
    }
}

#[test]
fn x10_the_pods_own_default_network_and_a_further_one_get_two_devices_of_their_resource() {
    let node = Node::new();
    node.cluster.api.put_definition("kube-system", "base", EXECUTED, Some(RADIO));
    node.cluster.api.put_definition("shop", "radio", EXECUTED, Some(RADIO));
    node.cluster.api.put_pod(&web(), &[(DEFAULT_NETWORK, "base"), (NETWORKS, "radio")]);
    node.device_plugin_tells();
    node.call(Command::Add).unwrap();
    let given: Vec<Value> = node.added().iter().map(|conf| conf["deviceID"].clone()).collect();
    assert_eq!(given, [VF, OTHER]);
    assert_eq!(node.described(), ["kube-system-base-c1_eth0"], "of the first VF the device plugin has told");
    node.del();
    assert_eq!(node.described(), Vec::<String>::new());
}

#[test]
fn k10_device_information_of_a_pod_that_multus_made_goes_with_its_del() {
    let node = Node::new();
    let multus = node.cluster.rig.root.join("var/lib/cni/multus");
    let cni = node.cluster.rig.root.join(DEVINFO).join("cni");
    fs::create_dir_all(&multus).unwrap();
    fs::create_dir_all(&cni).unwrap();
    let layer_2 = |name: &str| json!({"cniVersion": "1.0.0", "name": name, "type": "macvlan", "master": "eth0", "ipam": {}});
    let mut radio = entry("shop/radio", &layer_2("radio"), "net1");
    radio["deviceID"] = VF.into();
    radio["resourceName"] = RADIO.into();
    let file = json!([entry("net", &layer_2("net"), "eth0"), radio]);
    fs::write(multus.join("c1"), file.to_string()).unwrap();
    for name in ["shop-radio-c1_net1", "shop-radio-c2_net1"] {
        fs::write(cni.join(name), "{}").unwrap();
    }
    let own = json!({"cniVersion": "1.1.0", "name": "cluster", "type": "fairlead", "clusterNetwork": "net",
        "cniDir": "/var/lib/cni/multus"});
    let request = Request { config: own.to_string(), ..node.cluster.request(Command::Del) };
    node.cluster.rig.call(request).unwrap();
    assert_eq!(node.described(), ["shop-radio-c2_net1"], "another container's stays");
    assert!(!multus.join("c1").exists());
}

#[test]
fn a_path_that_is_taken_for_want_of_the_device_tells_nothing_of_it() {
    let node = Node::new();
    node.device_plugin_tells();
    let paths = r#"[{"type":"host-device","device":"absent0"},{"type":"macvlan","master":"eth0"}]"#;
    let text =
        format!(r#"{{"cniVersion":"1.0.0","name":"radio","type":"fairlead","paths":{paths},"ipam":{{}}}}"#);
    node.asks_for(&text, RADIO);
    node.call(Command::Add).unwrap();
    let told = node.told();
    assert_eq!((told["name"].as_str(), told.get("device-info")), (Some("shop/radio"), None), "{told}");
    assert_eq!(node.described(), Vec::<String>::new());
    node.del();
}
