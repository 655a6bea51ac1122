//! The engine on a kernel in memory: what it does when any single step is refused, and what it never does.

mod bound_by_others;
mod bounded_start;
mod call_order;
mod cluster_network;
mod default_master;
mod definitions_with_resources;
mod endless_resets;
mod error_texts;
mod executed_ipam;
mod fallback;
mod gc_and_status;
mod given_up;
mod health_probes;
mod identity;
mod impossible_addresses;
mod ipam_dns;
mod ipvlan_masters;
mod kubelet_devices;
mod kubelet_pools;
mod lendable_devices;
mod lent_devices;
mod lost_vfs;
mod many_vfs_at_once;
mod moved_by_another;
mod multus;
mod multus_pods;
mod nearest_master;
mod network_status;
mod nic_carrier;
mod nodes_addresses;
mod ovs_ports;
mod phases_and_trace;
mod pod_addresses;
mod pod_default_routes;
mod pod_networks;
mod pod_visit;
mod pods_described;
mod pool_failures;
mod pool_hotplug;
mod pool_ports;
mod pool_reservation;
mod pools;
mod quarantined_vfs;
mod reboot;
mod record_formats;
mod refused_steps;
mod remote_cni;
mod socket_directories;
mod spelled_definitions;
mod spooled_requests;
mod sriov_cni_import;
mod status;
mod switchdev;
mod tenant_definitions;
mod test_machine;
mod text_limit;
mod unreadable_config;
mod uplinks;
mod userspace;
mod vf;
mod vf_restore;
mod vfio;
mod vhost_user;
mod vhost_user_conflicts;
mod vhost_user_restarts;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_cni::CniError;
use fairlead_cni::wire::{Command, Request, WIRE};
use fairlead_host::BindMounts;
use fairlead_host::double::{FakeKernel, Snapshot};
use fairlead_kube::Cluster;
use fairlead_kube::fake_cluster::FakeCluster;
use fairlead_sriov::wait_out_reset::SETTLES;

use super::core::{StartStep, Task};
use super::{CallSettings, Engine, EngineInputs};
use crate::call::{CallerGone, PreparedCall, Reply, Service, Waiting};
use crate::conf_dir::{Directories, Networks};
use crate::engine::kinds::BUILT_IN;
use crate::metrics::{Calls, Exposition, Node};
use crate::node_paths::NodePaths;
use crate::settings::Settings;

/// The pod's namespace in most tests.
const POD: &str = "/run/netns/pod";
/// The one VF, and the interface of its physical one.
const VF: &str = "0000:21:10.0";
const PF: &str = "pf0";
/// Another VF, which vfio-pci has, its physical one, the interface of that, and its IOMMU group.
const VFIO: &str = "0000:41:10.0";
const VFIO_PF: &str = "0000:41:00.0";
const VFIO_LINK: &str = "pf1";
const GROUP: u32 = 21;

/// A daemon without its door: an engine, a kernel in memory, and directories of its own.
struct Rig {
    kernel: Arc<FakeKernel>,
    engine: Option<Arc<Engine>>,
    exposition: Exposition,
    dir: tempfile::TempDir,
    root: PathBuf,
    call_settings: CallSettings,
    settings: Settings,
    /// The cluster that the node is one of.
    cluster: Option<Arc<FakeCluster>>,
    /// How long a VF that is being reset is waited for.
    settles: Duration,
}

impl Rig {
    fn new() -> Rig {
        Rig::on(FakeKernel::new())
    }

    fn on(kernel: FakeKernel) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        Rig::at(kernel, dir, root)
    }

    /// With this machine's own root: executed plugins run in the mounts of the root's first process.
    fn on_this_host() -> Rig {
        Rig::at(FakeKernel::new(), tempfile::tempdir().unwrap(), "/".into())
    }

    fn at(kernel: FakeKernel, dir: tempfile::TempDir, root: PathBuf) -> Rig {
        for sub in ["run", "state/spool", "root/etc/cni/net.d"] {
            std::fs::create_dir_all(dir.path().join(sub)).unwrap();
        }
        let kernel = Arc::new(kernel);
        kernel.add_host_link("eth0");
        kernel.add_host_link("dev0");
        let pf = kernel.add_host_link(PF);
        kernel.add_vf(pf, VF, "vf0");
        kernel.add_vf(kernel.add_host_link(VFIO_LINK), VFIO, "vf1");
        vf::sysfs(&dir.path().join("sys"));
        kernel.show_in(&dir.path().join("sys"));
        kernel.drive(VFIO, Some("vfio-pci")).unwrap();
        kernel.add_namespace(POD);
        let call_settings = CallSettings::default();
        let settings = Settings::default();
        let (inputs, exposition) = engine_inputs(&kernel, dir.path(), settings.clone());
        let engine = Some(open(dir.path(), &root, call_settings.clone(), inputs));
        Rig {
            kernel,
            engine,
            exposition,
            dir,
            root,
            call_settings,
            settings,
            cluster: None,
            settles: SETTLES,
        }
    }

    fn engine(&self) -> &Engine {
        self.engine.as_deref().unwrap()
    }

    /// Kills the daemon where it stands and starts another.
    fn restart(&mut self) {
        self.engine = None;
        let (inputs, exposition) = engine_inputs(&self.kernel, self.dir.path(), self.settings.clone());
        let cluster = self.cluster.clone().map(|cluster| cluster as Arc<dyn Cluster>);
        let inputs = EngineInputs { settles: self.settles, cluster, ..inputs };
        let engine = open(self.dir.path(), &self.root, self.call_settings.clone(), inputs);
        (self.engine, self.exposition) = (Some(engine), exposition);
    }

    fn request(&self, command: Command, container: &str, config: &str) -> Request {
        Request {
            wire: WIRE,
            command,
            container_id: container.to_owned(),
            netns: POD.to_owned(),
            netns_inode: None,
            own_netns: None,
            own_netns_cookie: None,
            ifname: "net1".to_owned(),
            args: String::new(),
            path: "/opt/cni/bin".to_owned(),
            env: Vec::new(),
            config: config.to_owned(),
            deadline_ms: 5000,
            issued_ns: None,
            spooled: None,
        }
    }

    fn prepare(&self, request: Request) -> Arc<dyn PreparedCall> {
        Arc::clone(self.engine.as_ref().unwrap()).prepare(request)
    }

    /// A call that arrived at this time and whose caller waits so long; whether it gets the answer stays open.
    fn serve(&self, request: Request, arrived: Instant, patience: Duration) -> Reply {
        let waiting = Waiting { arrived, deadline: arrived + patience, gone: CallerGone::default() };
        self.prepare(request).serve(waiting)
    }

    fn call(&self, request: Request) -> Result<String, CniError> {
        self.call_with(request, CallerGone::default())
    }

    fn call_with(&self, request: Request, gone: CallerGone) -> Result<String, CniError> {
        let now = Instant::now();
        let call = self.prepare(request);
        let hung_up = gone.clone();
        let reply = call.serve(Waiting { arrived: now, deadline: now + Duration::from_secs(5), gone });
        call.answered(!hung_up.get());
        call.count_phases();
        reply.outcome
    }

    fn add(&self, config: &str) -> Result<String, CniError> {
        self.call(self.request(Command::Add, "c1", config))
    }

    fn del(&self, config: &str) -> Result<String, CniError> {
        self.call(self.request(Command::Del, "c1", config))
    }

    /// What the removal threads would do in the end.
    fn reap(&self) {
        for id in self.engine().core.removals.drain() {
            self.engine().core.attend(id);
        }
    }

    /// host-local's files, without its own bookkeeping.
    fn allocations(&self) -> Vec<String> {
        files(&self.dir.path().join("root/var/lib/cni/networks"))
    }

    /// What a pod has, but for what is made anew with each link: interfaces, whether they are up, addresses, routes.
    pub(super) fn pod_has(&self) -> Vec<String> {
        let mut pod = fairlead_host::NetKernel::pod(&*self.kernel, POD.as_ref()).unwrap();
        let (links, routes) = (pod.links().unwrap(), pod.routes().unwrap());
        let mut has: Vec<String> = routes
            .into_iter()
            .map(|route| {
                let by =
                    links.iter().find(|link| link.index == route.index).map(|link| link.name.to_string());
                format!("{:?}", (by, fairlead_host::Route { index: 0, ..route }))
            })
            .collect();
        for link in &links {
            let addresses = pod.addresses(link.index).unwrap();
            let addresses: Vec<String> = addresses.iter().map(|address| address.net.to_string()).collect();
            has.push(format!("{:?}", (link.name.to_string(), link.up, link.mtu, addresses)));
        }
        has.sort();
        has
    }

    fn state(&self) -> State {
        let mut kernel = self.kernel.snapshot();
        for netns in kernel.namespaces.values_mut() {
            // Those of an interface die with it; the real kernel forgets them, a model need not.
            netns.sysctls.clear();
            vf::forget_indices(netns);
        }
        let told = files(&self.dir.path().join("root/var/run/k8s.cni.cncf.io/devinfo"));
        State { kernel, allocations: self.allocations(), told, records: self.engine().core.store.all().len() }
    }
}

impl Drop for Rig {
    /// A mount outlives the test, passed or failed, and keeps the directory from being removed.
    fn drop(&mut self) {
        self.engine = None;
        let mounts = BindMounts::new(Path::new("/"));
        for directory in ["run/ovs", "run-ovs"] {
            for at in std::fs::read_dir(self.dir.path().join(directory)).into_iter().flatten().flatten() {
                let _ = mounts.remove(&at.path());
            }
        }
    }
}

/// Everything that an attachment could leave behind.
#[derive(Debug, Clone, PartialEq)]
struct State {
    kernel: Snapshot,
    allocations: Vec<String>,
    /// Device information.
    told: Vec<String>,
    records: usize,
}

/// What an engine on a kernel in memory needs.
pub(super) fn engine_inputs(
    kernel: &Arc<FakeKernel>,
    dir: &Path,
    settings: Settings,
) -> (EngineInputs, Exposition) {
    // Its own also where programs are executed in this machine's root.
    let conf_dir = Directories::new(&dir.join("root"), None, None);
    let exposition = Exposition::default();
    let node = Node::new(&exposition);
    let inputs = EngineInputs {
        kernel: Arc::clone(kernel) as Arc<dyn fairlead_host::Kernel>,
        networks: Arc::new(Networks::new(conf_dir, &BUILT_IN, node.clone())),
        calls: Calls::new(&exposition, &BUILT_IN),
        node,
        cluster: None,
        cgroup: None,
        announce: None,
        pool_metrics: exposition.pool_metrics(),
        settings: Arc::new(settings),
        settles: SETTLES,
    };
    (inputs, exposition)
}

/// Directories of its own below `dir`.
pub(super) fn paths(dir: &Path, root: &Path) -> NodePaths {
    NodePaths {
        sysfs: dir.join("sys"),
        kubelet: "/var/lib/kubelet".into(),
        ..NodePaths::new(dir.join("run"), dir.join("state"), root.to_owned(), dir.join("config.yaml"))
    }
}

fn open(dir: &Path, root: &Path, call_settings: CallSettings, inputs: EngineInputs) -> Arc<Engine> {
    let (engine, lost) = Engine::open(&paths(dir, root), call_settings, inputs).unwrap();
    // What the threads of a start would do before the daemon is ready.
    for step in engine.core.start.wait(Instant::now()) {
        match step {
            StartStep::Removal(id) => engine.core.attend(Task::Attachment(id)),
            StartStep::Addresses => engine.free_old_addresses(lost.as_deref()),
            StartStep::Pools => engine.first_look(),
        }
    }
    engine
}

fn files(dir: &Path) -> Vec<String> {
    let Ok(read) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut found = Vec::new();
    for path in read.map(|e| e.unwrap().path()).collect::<Vec<PathBuf>>() {
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if name != "lock" && !name.starts_with("last_reserved_ip") {
                found.push(name);
            }
        }
    }
    found.sort();
    found
}

/// One configuration of every built-in type and way of addressing.
fn configurations() -> Vec<(&'static str, String)> {
    let both = r#""ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}"#;
    let with =
        |kind: &str, more: &str| format!(r#"{{"cniVersion":"1.0.0","name":"net","type":"{kind}",{more}}}"#);
    vec![
        ("macvlan with two families", with("macvlan", &format!(r#""master":"eth0",{both}"#))),
        (
            "macvlan, static",
            with(
                "macvlan",
                r#""master":"eth0","ipam":{"type":"static","addresses":[{"address":"10.2.0.5/24","gateway":"10.2.0.1"}]}"#,
            ),
        ),
        ("macvlan, layer 2 only", with("macvlan", r#""master":"eth0","ipam":{}"#)),
        ("macvlan passthru", with("macvlan", &format!(r#""master":"eth0","mode":"passthru",{both}"#))),
        ("ipvlan", with("ipvlan", &format!(r#""master":"eth0","mode":"l3",{both}"#))),
        ("dummy", with("dummy", both)),
        ("vlan", with("vlan", &format!(r#""master":"eth0","vlanId":100,{both}"#))),
        ("host-device", with("host-device", &format!(r#""device":"dev0",{both}"#))),
        ("sriov, just as it is", with("sriov", &format!(r#""deviceID":"{VF}",{both}"#))),
        (
            "sriov with every setting",
            with(
                "sriov",
                &format!(
                    r#""deviceID":"{VF}","vlan":100,"vlanQoS":3,"vlanProto":"802.1ad","spoofchk":"off","trust":"on",
                       "link_state":"enable","min_tx_rate":10,"max_tx_rate":200,{both}"#
                ),
            ),
        ),
        (
            "sriov with a MAC address",
            with("sriov", &format!(r#""deviceID":"{VF}","mac":"02:00:00:00:00:77","vlan":100,"ipam":{{}}"#)),
        ),
        ("a path for a VF", fallback::config(&[fallback::SRIOV, fallback::MACVLAN], fallback::GIVEN)),
        ("the path after the first", fallback::config(&[fallback::SRIOV, fallback::MACVLAN], "")),
        ("sriov by vfio, just as it is", with("sriov", &format!(r#""deviceID":"{VFIO}",{both}"#))),
        (
            "sriov by vfio with settings and device information",
            with(
                "sriov",
                &format!(
                    r#""deviceID":"{VFIO}","vlan":100,"trust":"on","mac":"02:00:00:00:00:78",{both},
                       "runtimeConfig":{{"CNIDeviceInfoFile":"/var/run/k8s.cni.cncf.io/devinfo/cni/of-c1.json"}}"#
                ),
            ),
        ),
        ("loopback", with("loopback", r#""x":1"#)),
    ]
}

fn macvlan() -> String {
    configurations().swap_remove(0).1
}
