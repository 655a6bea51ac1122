//! A kubelet for tests, with both interfaces on real sockets. It answers as kubelets 1.30 and 1.34 were seen to answer. It
//! treats device plugins as they do: it forgets them and removes their sockets when it starts, calls back whoever
//! registers, and drops the registration before.
//!
//! A test sets the fields of [`Answers`] and reads its counters. Whatever goes wrong in here panics.

mod allocate_to_pod;

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::stream;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status};

use super::kubelet_dir::{KUBELET_SOCKET, KubeletDir};
use super::proto::{deviceplugin as plugin, podresources as wire};
use plugin::device_plugin_client::DevicePluginClient;
use plugin::registration_server::{Registration, RegistrationServer};
use wire::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};

/// Kubelet's directory below the root.
const HOME: &str = "/var/lib/kubelet";
/// A test that waits longer than this fails.
pub const LONG: Duration = Duration::from_secs(20);

/// How the fake kubelet answers `Get`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Get {
    /// As version 1.34 and later.
    Served,
    /// As versions 1.27 to 1.33, in which the feature is off.
    Disabled,
    /// As versions before 1.27.
    Unimplemented,
}

/// What PodResources answers, and how often it was called.
#[derive(Debug)]
pub struct Answers {
    /// How `Get` is answered.
    pub get: Get,
    /// The pods that `Get` and `List` know.
    pub pods: Vec<wire::PodResources>,
    /// The answer to `GetAllocatableResources`: no device whose plugin is away, nor an unhealthy one.
    pub allocatable: Vec<wire::ContainerDevices>,
    /// The next calls are refused with these, one each.
    pub refusals: VecDeque<Status>,
    /// How long `List` waits before it sends what it has read.
    pub thinks: Duration,
    /// How often `Get` was called.
    pub gets: usize,
    /// How often `List` was called.
    pub lists: usize,
}

impl Default for Answers {
    fn default() -> Answers {
        Answers {
            get: Get::Served,
            pods: Vec::new(),
            allocatable: Vec::new(),
            refusals: VecDeque::new(),
            thinks: Duration::ZERO,
            gets: 0,
            lists: 0,
        }
    }
}

/// The refusal in the words of kubelet's rate limiter.
pub fn exhausted() -> Status {
    Status::new(Code::ResourceExhausted, "rejected by rate limit")
}

/// A container by its name, and its devices by resource, id and NUMA node.
pub type Container<'a> = (&'a str, &'a [(&'a str, &'a str, i64)]);

/// A pod of a list. Kubelet has one entry for each device.
pub fn pod(namespace: &str, name: &str, containers: &[Container<'_>]) -> wire::PodResources {
    let containers = containers.iter().map(|(name, devices)| wire::ContainerResources {
        name: (*name).to_owned(),
        devices: devices.iter().map(|(resource, id, node)| device(resource, id, *node)).collect(),
        ..wire::ContainerResources::default()
    });
    wire::PodResources {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        containers: containers.collect(),
        ..wire::PodResources::default()
    }
}

/// An entry with one device.
pub fn device(resource: &str, id: &str, node: i64) -> wire::ContainerDevices {
    wire::ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids: vec![id.to_owned()],
        topology: Some(on_node(node)),
    }
}

/// The topology of something that is on one NUMA node.
pub fn on_node(node: i64) -> wire::TopologyInfo {
    wire::TopologyInfo { nodes: vec![wire::NumaNode { id: node }] }
}

struct Lister(Arc<Mutex<Answers>>);

impl Lister {
    fn refuse(&self) -> Result<(), Status> {
        self.0.lock().unwrap().refusals.pop_front().map_or(Ok(()), Err)
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<wire::ListPodResourcesRequest>,
    ) -> Result<Response<wire::ListPodResourcesResponse>, Status> {
        let (pod_resources, thinks) = {
            let mut answers = self.0.lock().unwrap();
            answers.lists += 1;
            (answers.pods.clone(), answers.thinks)
        };
        self.refuse()?;
        tokio::time::sleep(thinks).await;
        Ok(Response::new(wire::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<wire::AllocatableResourcesRequest>,
    ) -> Result<Response<wire::AllocatableResourcesResponse>, Status> {
        self.refuse()?;
        let devices = self.0.lock().unwrap().allocatable.clone();
        Ok(Response::new(wire::AllocatableResourcesResponse { devices }))
    }

    async fn get(
        &self,
        request: Request<wire::GetPodResourcesRequest>,
    ) -> Result<Response<wire::GetPodResourcesResponse>, Status> {
        let asked = request.into_inner();
        let (get, pod) = {
            let mut answers = self.0.lock().unwrap();
            answers.gets += 1;
            let is = |p: &&wire::PodResources| p.name == asked.pod_name && p.namespace == asked.pod_namespace;
            (answers.get, answers.pods.iter().find(is).cloned())
        };
        match get {
            Get::Served => self.refuse()?,
            Get::Disabled => return Err(Status::unknown("PodResources API Get method disabled")),
            Get::Unimplemented => return Err(Status::unimplemented("unknown method Get")),
        }
        let unknown = || format!("pod {} in namespace {} not found", asked.pod_name, asked.pod_namespace);
        let pod = pod.ok_or_else(|| Status::unknown(unknown()))?;
        Ok(Response::new(wire::GetPodResourcesResponse { pod_resources: Some(pod) }))
    }
}

/// A device as a plugin announced it: id, health, NUMA node.
pub type AnnouncedDevice = (String, String, Option<i64>);
/// A resource, and the complete list of its devices.
pub type AnnouncedList = (String, Vec<AnnouncedDevice>);

/// A plugin that is registered.
struct RegisteredPlugin {
    client: DevicePluginClient<Channel>,
    /// The task that follows the plugin's list.
    following: JoinHandle<()>,
}

#[derive(Default)]
struct Plugins {
    registered: Mutex<HashMap<String, RegisteredPlugin>>,
    registrations: Mutex<Vec<plugin::RegisterRequest>>,
}

struct Registrar {
    root: PathBuf,
    plugins: Arc<Plugins>,
    lists: Sender<AnnouncedList>,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(
        &self,
        request: Request<plugin::RegisterRequest>,
    ) -> Result<Response<plugin::Empty>, Status> {
        let request = request.into_inner();
        if request.version != "v1beta1" {
            return Err(Status::unknown("the device plugin API version is unsupported"));
        }
        self.plugins.registrations.lock().unwrap().push(request.clone());
        let directory = KubeletDir::new(&self.root, Path::new(HOME)).open("device-plugins").unwrap();
        let channel = directory.connect(&request.endpoint).await;
        let client = DevicePluginClient::new(channel.map_err(|e| Status::unknown(e.to_string()))?);
        let (mut follow, lists) = (client.clone(), self.lists.clone());
        let resource = request.resource_name.clone();
        let following = tokio::spawn(async move {
            let Ok(stream) = follow.list_and_watch(plugin::Empty {}).await else { return };
            let mut stream = stream.into_inner();
            while let Ok(Some(announced)) = stream.message().await {
                let node = |d: &plugin::Device| Some(d.topology.as_ref()?.nodes.first()?.id);
                let list = announced.devices.iter().map(|d| (d.id.clone(), d.health.clone(), node(d)));
                let _ = lists.send((resource.clone(), list.collect()));
            }
        });
        let mut registered = self.plugins.registered.lock().unwrap();
        if let Some(before) = registered.insert(request.resource_name, RegisteredPlugin { client, following })
        {
            before.following.abort();
        }
        Ok(Response::new(plugin::Empty {}))
    }
}

/// The kubelet of a host whose root is a directory of the test.
pub struct FakeKubelet {
    /// What PodResources answers; a test may change it at any time.
    pub answers: Arc<Mutex<Answers>>,
    root: PathBuf,
    runtime: Runtime,
    serving: Vec<JoinHandle<()>>,
    plugins: Arc<Plugins>,
    lists: (Sender<AnnouncedList>, Receiver<AnnouncedList>),
}

impl FakeKubelet {
    /// A kubelet that does not run yet.
    pub fn at(root: &Path) -> FakeKubelet {
        // With a thread of its own: it answers while the test waits for the code that calls it.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        FakeKubelet {
            answers: Arc::default(),
            root: root.to_owned(),
            runtime: runtime.unwrap(),
            serving: Vec::new(),
            plugins: Arc::default(),
            lists: channel(),
        }
    }

    /// A kubelet that runs.
    pub fn running(root: &Path) -> FakeKubelet {
        let mut kubelet = FakeKubelet::at(root);
        kubelet.start();
        kubelet
    }

    /// The directory as our clients take it.
    pub fn directory(&self) -> KubeletDir {
        KubeletDir::new(&self.root, Path::new(HOME))
    }

    /// The directory of the device plugins' sockets.
    pub fn plugin_dir(&self) -> PathBuf {
        self.root.join("var/lib/kubelet/device-plugins")
    }

    fn bind(&self, directory: &str) -> UnixListener {
        let directory = self.root.join("var/lib/kubelet").join(directory);
        fs::create_dir_all(&directory).unwrap();
        for left in fs::read_dir(&directory).unwrap() {
            fs::remove_file(left.unwrap().path()).unwrap();
        }
        // `bind` registers the socket with the runtime that the calling thread is in.
        let _in_runtime = self.runtime.enter();
        UnixListener::bind(directory.join(KUBELET_SOCKET)).unwrap()
    }

    /// Starts, or starts again after [`FakeKubelet::stop`]. What an earlier run left in its directories is removed.
    pub fn start(&mut self) {
        let callers = |listener: UnixListener| {
            stream::unfold(listener, |listener| async move {
                Some((listener.accept().await.map(|(stream, _)| stream), listener))
            })
        };
        let (pods, plugins) = (callers(self.bind("pod-resources")), callers(self.bind("device-plugins")));
        let lister = PodResourcesListerServer::new(Lister(self.answers.clone()));
        let registrar = RegistrationServer::new(Registrar {
            root: self.root.clone(),
            plugins: self.plugins.clone(),
            lists: self.lists.0.clone(),
        });
        self.serving.push(self.runtime.spawn(async move {
            let pods = pin!(pods);
            Server::builder().add_service(lister).serve_with_incoming(pods).await.unwrap();
        }));
        self.serving.push(self.runtime.spawn(async move {
            let plugins = pin!(plugins);
            Server::builder().add_service(registrar).serve_with_incoming(plugins).await.unwrap();
        }));
    }

    /// Stops as a killed kubelet does: its sockets stay in the file system.
    pub fn stop(&mut self) {
        for serving in self.serving.drain(..) {
            serving.abort();
            let _ = self.runtime.block_on(serving);
        }
        self.forget();
    }

    /// Drops all plugins without telling them.
    pub fn forget(&self) {
        for (_, plugin) in self.plugins.registered.lock().unwrap().drain() {
            plugin.following.abort();
        }
    }

    /// Every registration since the test began.
    pub fn registrations(&self) -> Vec<plugin::RegisterRequest> {
        self.plugins.registrations.lock().unwrap().clone()
    }

    /// Waits for the next list that a plugin sends.
    pub fn next_list(&self) -> AnnouncedList {
        self.lists.1.recv_timeout(LONG).expect("no plugin sends its devices")
    }

    /// Whether no list comes within this time.
    pub fn hears_nothing(&self, time: Duration) -> bool {
        self.lists.1.recv_timeout(time).is_err()
    }

    /// Whether a plugin's list is followed still; false once the plugin has ended the stream. A kubelet holds its devices for lost then.
    pub fn follows(&self, resource: &str) -> bool {
        !self.plugins.registered.lock().unwrap()[resource].following.is_finished()
    }

    fn plugin(&self, resource: &str) -> DevicePluginClient<Channel> {
        self.plugins.registered.lock().unwrap()[resource].client.clone()
    }

    /// What a plugin answers to `GetDevicePluginOptions`.
    pub fn options(&self, resource: &str) -> plugin::DevicePluginOptions {
        let mut plugin = self.plugin(resource);
        let asked = plugin.get_device_plugin_options(plugin::Empty {});
        self.runtime.block_on(asked).unwrap().into_inner()
    }

    /// Has a plugin allocate devices to containers, one set for each.
    ///
    /// # Errors
    /// The plugin's refusal.
    pub fn allocate(
        &self,
        resource: &str,
        sets: &[&[&str]],
    ) -> Result<Vec<plugin::ContainerAllocateResponse>, Status> {
        let container = |ids: &&[&str]| plugin::ContainerAllocateRequest {
            devices_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        let request = plugin::AllocateRequest { container_requests: sets.iter().map(container).collect() };
        let mut plugin = self.plugin(resource);
        let answer = self.runtime.block_on(plugin.allocate(request));
        answer.map(|answer| answer.into_inner().container_responses)
    }

    /// What a plugin answers to `GetPreferredAllocation`.
    pub fn preferred(&self, resource: &str, available: &[&str], must: &[&str], size: i32) -> Vec<String> {
        let owned = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
        let request = plugin::PreferredAllocationRequest {
            container_requests: vec![plugin::ContainerPreferredAllocationRequest {
                available_device_i_ds: owned(available),
                must_include_device_i_ds: owned(must),
                allocation_size: size,
            }],
        };
        let mut plugin = self.plugin(resource);
        let answer = self.runtime.block_on(plugin.get_preferred_allocation(request)).unwrap();
        answer.into_inner().container_responses.swap_remove(0).device_i_ds
    }

    /// Calls a plugin's `PreStartContainer`.
    ///
    /// # Errors
    /// The plugin's refusal.
    pub fn pre_start(&self, resource: &str, id: &str) -> Result<(), Status> {
        let request = plugin::PreStartContainerRequest { devices_ids: vec![id.to_owned()] };
        self.runtime.block_on(self.plugin(resource).pre_start_container(request)).map(drop)
    }
}
