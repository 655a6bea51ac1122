//! The device plugin against a fake kubelet that drives it as kubelet does.

use std::collections::{HashMap, HashSet};
use std::thread::sleep;
use std::time::Duration;
use std::time::Instant;

use tempfile::TempDir;
use tokio::sync::watch::Sender;
use tonic::Code;

use super::super::fake_kubelet::{FakeKubelet, LONG};
use super::*;

const RADIO: &str = "intel.com/radio";
const CORE: &str = "intel.com/core";
/// Long enough to see that nothing happens.
const QUIET: Duration = Duration::from_millis(500);

/// A resource whose devices a test sets.
struct TestDevices {
    resource: String,
    list: Sender<Option<Vec<Device>>>,
    access: Mutex<HashMap<String, Result<DeviceAccess, AllocationRefused>>>,
    /// How often each was allocated, less how often that was cancelled.
    allocated: Mutex<HashMap<String, i32>>,
    /// Those of which kubelet was answered that a pod has them, in this order.
    answered: Mutex<Vec<String>>,
    /// What would have to be waited for.
    unready: Mutex<HashSet<String>>,
}

impl TestDevices {
    fn unknown(resource: &str) -> Arc<TestDevices> {
        Arc::new(TestDevices {
            resource: resource.into(),
            list: Sender::new(None),
            access: Mutex::default(),
            allocated: Mutex::default(),
            answered: Mutex::default(),
            unready: Mutex::default(),
        })
    }

    fn with(resource: &str, devices: &[Device]) -> Arc<TestDevices> {
        let resource = TestDevices::unknown(resource);
        resource.set(devices);
        resource
    }

    fn set(&self, devices: &[Device]) {
        self.list.send_replace(Some(devices.into()));
    }

    fn answer(&self, id: &str, access: Result<DeviceAccess, AllocationRefused>) {
        self.access.lock().insert(id.into(), access);
    }
}

impl Devices for TestDevices {
    fn resource(&self) -> &str {
        &self.resource
    }

    fn allocation_policy(&self) -> AllocationPolicy {
        AllocationPolicy::Packed
    }

    fn list(&self) -> Vec<Device> {
        self.list.borrow().clone().unwrap_or_default()
    }

    fn watch(&self) -> WatchedDevices {
        watched(self.list.subscribe(), Vec::clone)
    }

    fn is_ready(&self, id: &str) -> bool {
        !self.unready.lock().contains(id)
    }

    fn allocate(&self, id: &str) -> Result<DeviceAccess, AllocationRefused> {
        let access = self.access.lock().get(id).cloned().unwrap_or_else(|| Ok(DeviceAccess::default()))?;
        *self.allocated.lock().entry(id.to_owned()).or_default() += 1;
        Ok(access)
    }

    fn allocation_answered(&self, id: &str) {
        self.answered.lock().push(id.to_owned());
    }

    fn cancel_allocation(&self, id: &str) {
        *self.allocated.lock().entry(id.to_owned()).or_default() -= 1;
    }
}

fn vf(n: u32, numa_node: Option<u32>, health: Health) -> Device {
    Device { id: format!("0000:3b:02.{n}"), numa_node, health, pf: "0000:3b:00.0".into() }
}

fn two() -> [Device; 2] {
    [vf(0, Some(1), Health::Healthy), vf(1, None, Health::Healthy)]
}

fn all(resources: &[&Arc<TestDevices>]) -> Vec<Arc<dyn Devices>> {
    resources.iter().map(|devices| Arc::clone(*devices) as Arc<dyn Devices>).collect()
}

struct Node {
    root: TempDir,
    kubelet: FakeKubelet,
}

impl Node {
    fn new() -> Node {
        let root = tempfile::tempdir().unwrap();
        let kubelet = FakeKubelet::running(root.path());
        Node { root, kubelet }
    }

    fn offer(&self, resources: &[&Arc<TestDevices>]) -> DevicePlugins {
        let plugins = DevicePlugins::new(self.root.path(), self.kubelet.directory());
        plugins.offer(all(resources)).unwrap();
        plugins
    }

    /// The next list of one resource alone: each device's last digit, with `!` where it is not healthy.
    fn next_ids(&self) -> String {
        let short = |(id, health, _): &(String, String, Option<i64>)| {
            let mark = if health == "Healthy" { "" } else { "!" };
            format!("{}{mark}", id.rsplit('.').next().unwrap())
        };
        self.kubelet.next_list().1.iter().map(short).collect::<Vec<_>>().join(" ")
    }
}

fn until(what: &str, is: impl Fn() -> bool) {
    let limit = Instant::now() + LONG;
    while !is() {
        assert!(Instant::now() < limit, "{what}");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn x17_kubelet_gets_the_complete_list_first_and_every_change_at_once() {
    let node = Node::new();
    let devices = TestDevices::with(RADIO, &two());
    let _plugins = node.offer(&[&devices]);
    let (resource, list) = node.kubelet.next_list();
    let device = |n: u32, on: Option<i64>| (format!("0000:3b:02.{n}"), "Healthy".to_owned(), on);
    assert_eq!((resource.as_str(), list), (RADIO, vec![device(0, Some(1)), device(1, None)]));
    devices.set(&[vf(0, Some(1), Health::Unhealthy), vf(1, None, Health::Healthy)]);
    assert_eq!(node.next_ids(), "0! 1", "broken");
    devices.set(&two());
    assert_eq!(node.next_ids(), "0 1", "well again");
    devices.set(&two()[1..]);
    assert_eq!(node.next_ids(), "1", "vanished");
    devices.set(&[two().as_slice(), &[vf(2, Some(0), Health::Healthy)]].concat());
    assert_eq!(node.next_ids(), "0 1 2", "appeared");
    assert_eq!(node.kubelet.registrations().len(), 1, "without a new registration");
}

#[test]
fn what_is_registered_is_what_kubelet_wants() {
    let node = Node::new();
    let _plugins = node.offer(&[&TestDevices::with(RADIO, &two())]);
    node.next_ids();
    let [registered] = node.kubelet.registrations().try_into().unwrap();
    assert_eq!((registered.version.as_str(), registered.resource_name.as_str()), ("v1beta1", RADIO));
    assert_eq!(registered.endpoint, "fairlead-intel.com_radio.sock");
    let options = registered.options.unwrap();
    assert_eq!(options, node.kubelet.options(RADIO));
    assert!(options.get_preferred_allocation_available && !options.pre_start_required);
    assert!(node.kubelet.pre_start(RADIO, "0000:3b:02.0").is_ok());
}

#[test]
fn x23_nothing_is_announced_before_what_is_there_has_been_compared() {
    let node = Node::new();
    let devices = TestDevices::unknown(RADIO);
    let _plugins = node.offer(&[&devices]);
    assert!(node.kubelet.hears_nothing(QUIET));
    assert_eq!(node.kubelet.registrations().len(), 0);
    devices.set(&two());
    assert_eq!(node.next_ids(), "0 1");
}

#[test]
fn x17_kubelet_that_starts_again_hears_all_again() {
    let mut node = Node::new();
    let _plugins = node.offer(&[&TestDevices::with(RADIO, &two())]);
    assert_eq!(node.next_ids(), "0 1");
    for restarts in 1..=3 {
        node.kubelet.stop();
        sleep(Duration::from_millis(50 * restarts));
        node.kubelet.start();
        assert_eq!(node.next_ids(), "0 1", "restart {restarts}");
    }
    assert!(node.kubelet.hears_nothing(QUIET));
    let times = node.kubelet.registrations().len();
    assert!((4..16).contains(&times), "{times} registrations for four starts");
}

#[test]
fn x17_kubelet_that_comes_later_is_noticed() {
    let root = tempfile::tempdir().unwrap();
    let mut node = Node { kubelet: FakeKubelet::at(root.path()), root };
    let _plugins = node.offer(&[&TestDevices::with(RADIO, &two())]);
    sleep(Duration::from_millis(150));
    node.kubelet.start();
    assert_eq!(node.next_ids(), "0 1");
}

#[test]
fn x17_a_kubelet_that_loses_the_plugin_is_registered_with_again() {
    let node = Node::new();
    let _plugins = node.offer(&[&TestDevices::with(RADIO, &two())]);
    assert_eq!(node.next_ids(), "0 1");
    // Within the time that kubelet has to call back nothing would be registered again.
    sleep(Duration::from_secs(4));
    node.kubelet.forget();
    assert_eq!(node.next_ids(), "0 1");
    assert_eq!(node.kubelet.registrations().len(), 2);
}

#[test]
fn x17_our_own_restart_is_a_new_registration_with_the_complete_list() {
    let node = Node::new();
    let devices = TestDevices::with(RADIO, &two());
    let plugins = node.offer(&[&devices]);
    assert_eq!(node.next_ids(), "0 1");
    drop(plugins);
    let socket = node.kubelet.plugin_dir().join("fairlead-intel.com_radio.sock");
    assert!(!socket.exists(), "an orderly end leaves nothing");
    // A killed daemon leaves its socket behind.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let begun = Instant::now();
    let _plugins = node.offer(&[&devices]);
    assert_eq!(node.next_ids(), "0 1");
    assert!(begun.elapsed() < LONG);
}

#[test]
fn x17_a_socket_that_is_removed_is_created_again() {
    let node = Node::new();
    let _plugins = node.offer(&[&TestDevices::with(RADIO, &two())]);
    assert_eq!(node.next_ids(), "0 1");
    let socket = node.kubelet.plugin_dir().join("fairlead-intel.com_radio.sock");
    std::fs::remove_file(&socket).unwrap();
    until("the socket is not created again", || socket.exists());
    assert_eq!(node.next_ids(), "0 1");
}

#[test]
fn a_file_in_the_sockets_place_is_left_alone() {
    let node = Node::new();
    let socket = node.kubelet.plugin_dir().join("fairlead-intel.com_radio.sock");
    std::fs::write(&socket, "mine").unwrap();
    let _plugins = node.offer(&[&TestDevices::with(RADIO, &two())]);
    assert!(node.kubelet.hears_nothing(QUIET));
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "mine");
    std::fs::remove_file(&socket).unwrap();
    assert_eq!(node.next_ids(), "0 1");
}

#[test]
fn k27_containers_get_what_they_need_and_multus_its_file() {
    let node = Node::new();
    let devices = TestDevices::with(RADIO, &two());
    let group = VfioGroup { number: 17, no_iommu: false };
    devices.answer("0000:3b:02.1", Ok(DeviceAccess { vfio: Some(group), ..DeviceAccess::default() }));
    let _plugins = node.offer(&[&devices]);
    node.next_ids();
    let answers = node.kubelet.allocate(RADIO, &[&["0000:3b:02.0"], &["0000:3b:02.1"]]).unwrap();
    let [kernel, user] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!(kernel.envs["PCIDEVICE_INTEL_COM_RADIO"], "0000:3b:02.0");
    assert!(kernel.devices.is_empty());
    assert_eq!(user.envs["PCIDEVICE_INTEL_COM_RADIO"], "0000:3b:02.1");
    assert_eq!(*devices.answered.lock(), ["0000:3b:02.0", "0000:3b:02.1"]);
    let nodes: Vec<&str> = user.devices.iter().map(|d| d.host_path.as_str()).collect();
    assert_eq!(nodes, ["/dev/vfio/vfio", "/dev/vfio/17"]);
    let files = node.root.path().join("var/run/k8s.cni.cncf.io/devinfo/dp");
    for n in 0..2 {
        assert!(files.join(format!("intel.com-radio-0000:3b:02.{n}-device.json")).is_file());
    }
}

#[test]
fn what_is_refused_or_unknown_fails_the_whole_allocation_with_the_reason() {
    let node = Node::new();
    let devices = TestDevices::with(RADIO, &two());
    let (id, reason) = ("0000:3b:02.1".to_owned(), "its group 17 is in use".to_owned());
    devices.answer("0000:3b:02.1", Err(AllocationRefused { id, reason }));
    let _plugins = node.offer(&[&devices]);
    node.next_ids();
    let refused = node.kubelet.allocate(RADIO, &[&["0000:3b:02.0", "0000:3b:02.1"]]).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(refused.message(), "device 0000:3b:02.1 cannot be given to a pod: its group 17 is in use");
    let unknown = node.kubelet.allocate(RADIO, &[&["0000:3b:02.9"]]).unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    assert!(!node.root.path().join("var/run/k8s.cni.cncf.io").exists(), "nothing is given away");
    // What was allocated beside it is taken back, for the same container and for another.
    let allocated = || devices.allocated.lock()["0000:3b:02.0"];
    assert_eq!(allocated(), 0);
    node.kubelet.allocate(RADIO, &[&["0000:3b:02.0"], &["0000:3b:02.1"]]).unwrap_err();
    assert_eq!(allocated(), 0);
    let files = node.root.path().join("var/run/k8s.cni.cncf.io");
    std::fs::remove_dir_all(&files).unwrap();
    std::fs::write(files, "no directory").unwrap();
    node.kubelet.allocate(RADIO, &[&["0000:3b:02.0"]]).unwrap_err();
    assert_eq!(allocated(), 0);
    assert!(devices.answered.lock().is_empty());
}

#[test]
fn k27_kubelet_is_advised_which_devices_to_take() {
    let node = Node::new();
    let four = [0, 1, 0, 1].iter().zip(0..).map(|(on, n)| vf(n, Some(*on), Health::Healthy));
    let devices = TestDevices::with(RADIO, &four.collect::<Vec<_>>());
    let _plugins = node.offer(&[&devices]);
    node.next_ids();
    let all = ["0000:3b:02.0", "0000:3b:02.1", "0000:3b:02.2", "0000:3b:02.3"];
    let must = ["0000:3b:02.3"];
    assert_eq!(node.kubelet.preferred(RADIO, &all, &must, 2), ["0000:3b:02.3", "0000:3b:02.1"]);
    let first = || node.kubelet.preferred(RADIO, &all, &[], 1);
    assert_eq!(first(), ["0000:3b:02.0"]);
    devices.unready.lock().insert("0000:3b:02.0".into());
    assert_eq!(first(), ["0000:3b:02.2"], "it need not be waited for");
}

#[test]
fn every_resource_has_a_socket_of_its_own() {
    let node = Node::new();
    let _plugins = node.offer(&[&TestDevices::with(RADIO, &two()), &TestDevices::with(CORE, &two()[..1])]);
    let mut lists =
        [node.kubelet.next_list(), node.kubelet.next_list()].map(|(name, list)| (name, list.len()));
    lists.sort();
    assert_eq!(lists, [(CORE.to_owned(), 1), (RADIO.to_owned(), 2)]);
}

#[test]
fn a_resource_of_any_name_has_a_socket_whose_path_kubelet_can_dial() {
    let node = Node::new();
    let domain = [63, 63, 63, 51].map(|letters| "d".repeat(letters)).join(".");
    assert_eq!(domain.len(), 243);
    let longest = |last: &str| format!("{domain}/{}{last}", "n".repeat(62));
    let fits = format!("example.com/{}", "n".repeat(49));
    let names = [fits.clone(), format!("{fits}n"), longest("a"), longest("b")];
    let devices = names.each_ref().map(|name| TestDevices::with(name, &two()));
    let _plugins = node.offer(&devices.each_ref());
    names.iter().for_each(|_| drop(node.kubelet.next_list()));
    let registered = node.kubelet.registrations().into_iter();
    let sockets: HashSet<String> = registered.map(|registered| registered.endpoint).collect();
    assert_eq!(sockets.len(), names.len(), "{sockets:?}");
    assert!(sockets.contains(&format!("fairlead-{}.sock", fits.replace('/', "_"))), "{sockets:?}");
    let path = |socket: &String| format!("/var/lib/kubelet/device-plugins/{socket}");
    assert_eq!(sockets.iter().map(|socket| path(socket).len()).max(), Some(107), "{sockets:?}");
}

#[test]
fn a_resource_that_comes_or_goes_with_the_configuration_disturbs_no_other() {
    let node = Node::new();
    let (radio, core) = (TestDevices::with(RADIO, &two()), TestDevices::with(CORE, &two()[..1]));
    let plugins = node.offer(&[]);
    plugins.offer(all(&[&radio])).unwrap();
    assert_eq!(node.kubelet.next_list().0, RADIO);
    plugins.offer(all(&[&core, &radio])).unwrap();
    assert_eq!(node.kubelet.next_list().0, CORE);
    plugins.offer(all(&[&radio])).unwrap();
    let socket = node.kubelet.plugin_dir().join("fairlead-intel.com_core.sock");
    until("the socket of a resource that is gone stays", || !socket.exists());
    radio.set(&two()[1..]);
    assert_eq!(node.kubelet.next_list().1.len(), 1);
    assert_eq!(node.kubelet.registrations().len(), 2);
}

#[test]
fn x17_a_resource_that_is_taken_out_of_the_configuration_ends_its_list_and_is_not_allocated_any_more() {
    let node = Node::new();
    let (radio, core) = (TestDevices::with(RADIO, &two()), TestDevices::with(CORE, &two()[..1]));
    let plugins = node.offer(&[&radio, &core]);
    for _ in 0..2 {
        node.kubelet.next_list();
    }
    assert!(node.kubelet.follows(RADIO));
    // Kubelet has its connection still, and whoever has the devices may keep them for something else.
    plugins.offer(all(&[&core])).unwrap();
    until("the list of a resource that is gone stands", || !node.kubelet.follows(RADIO));
    let refused = node.kubelet.allocate(RADIO, &[&["0000:3b:02.0"]]).unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    let told = r#"resource "intel.com/radio" is not offered any more: it was taken out of fairleadd's "#;
    assert!(refused.message().starts_with(told), "{refused}");
    assert!(radio.allocated.lock().is_empty());
    node.kubelet.allocate(CORE, &[&["0000:3b:02.0"]]).unwrap();
    assert!(node.kubelet.follows(CORE));
    plugins.offer(all(&[&core, &radio])).unwrap();
    assert_eq!(node.kubelet.next_list().0, RADIO);
    node.kubelet.allocate(RADIO, &[&["0000:3b:02.0"]]).unwrap();
}
