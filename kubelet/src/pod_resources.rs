//! What kubelet has allocated to a pod: devices, processors and memory, by its PodResources interface (v1). It allocates at
//! admission, before the sandbox is made, so that an ADD can ask for the allocation.
//!
//! Plain threads ask. Kubelet answers a hundred such calls a second, for all its clients together. Therefore it is asked
//! for a single pod where it can answer that; elsewhere one list serves everybody who waits. A call that fails is repeated
//! until the caller's deadline. No failure ever becomes "the pod has no device".

use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fairlead_host::backoff::Backoff;
use parking_lot::{Condvar, Mutex};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::kubelet_dir::{KUBELET_SOCKET, KubeletDir};
use super::proto::podresources as wire;
use wire::pod_resources_lister_client::PodResourcesListerClient;

/// The socket's directory in kubelet's directory.
const DIRECTORY: &str = "pod-resources";
/// How long one call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// A caller waits no longer than this, whatever its own deadline is.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// The pauses between two calls when the first one failed.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
/// A list of all pods of a large node is longer than the usual limit of 4 MiB.
const LONGEST_ANSWER: usize = 16 << 20;
/// The words by which kubelet before 1.34 refuses `Get`. It has no code of its own for that.
const GET_DISABLED: &str = "Get method disabled";

/// Which pod, by namespace and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodName {
    /// The pod's namespace, `K8S_POD_NAMESPACE` in `CNI_ARGS`.
    pub namespace: String,
    /// The pod's name in its namespace, `K8S_POD_NAME` in `CNI_ARGS`.
    pub name: String,
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What kubelet has allocated to a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResourcesOfPod {
    /// The containers in the pod's order; of its init containers only those that keep running.
    pub containers: Vec<ContainerResources>,
    /// Exclusive processors of the pod as a whole, where it has pod-level resources.
    pub cpus: Vec<u32>,
    /// NUMA nodes of the memory of the pod as a whole.
    pub memory_nodes: Vec<u32>,
}

/// What kubelet has allocated to a container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerResources {
    /// The container's name in the pod.
    pub name: String,
    /// The devices that it has, of every resource.
    pub devices: Vec<ResourceDevices>,
    /// The processors that it has for itself.
    pub cpus: Vec<u32>,
    /// NUMA nodes that its memory is pinned to.
    pub memory_nodes: Vec<u32>,
}

/// Devices of one resource. Kubelet lists a resource several times where its devices are on several NUMA nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResourceDevices {
    /// The resource's full name, as in `intel.com/radio`.
    pub resource: String,
    /// The devices by the names that the device plugin gave them; for VFs these are PCI addresses.
    pub ids: Vec<String>,
    /// The NUMA nodes that the devices are on.
    pub nodes: Vec<u32>,
}

/// Why it is not known what a pod has. Each of these may pass, so the caller should try again.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PodResourcesError {
    /// Nobody listens, or the connection broke.
    #[error("kubelet can't be asked at {}: {reason}", .socket.display())]
    Unreachable {
        /// The path of kubelet's socket on the host.
        socket: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// Kubelet answered with an error.
    #[error("kubelet refuses to tell what it has given ({code}): {message}")]
    Refused {
        /// The status code of gRPC.
        code: Code,
        /// The text that kubelet sent with it.
        message: String,
    },
    /// Kubelet did not answer in time.
    #[error("kubelet did not tell at {} what it has given within {} ms", .socket.display(), .waited.as_millis())]
    Late {
        /// The path of kubelet's socket on the host.
        socket: PathBuf,
        /// How long we waited.
        waited: Duration,
    },
    /// Kubelet does not list the pod.
    #[error("kubelet knows no pod {0}")]
    UnknownPod(PodName),
    /// Kubelet lists several pods of the name. Before 1.34 it lists finished pods too, and no uid that would tell them apart.
    #[error("kubelet lists several pods {0} that have been given something, an older one among them")]
    Ambiguous(PodName),
}

/// The client of PodResources. One serves the whole daemon, so that callers can share a list.
#[derive(Debug)]
pub struct PodResources {
    directory: KubeletDir,
    /// Kubelet has refused `Get`: from then on only `List` is called.
    lists_only: AtomicBool,
    lists: Mutex<SharedLists>,
    list_ended: Condvar,
}

type Pods = Result<Vec<wire::PodResources>, PodResourcesError>;

/// The calls of `List`, one after the other. A caller can use only a list that began after the caller came: an older one
/// may be from before its pod was admitted.
#[derive(Debug, Default)]
struct SharedLists {
    begun: u64,
    ended: u64,
    waiting: usize,
    last: Option<Arc<Pods>>,
}

/// A call of `List` that is under way. It ends for all who wait, however it ends.
struct RunningList<'a> {
    of: &'a PodResources,
    /// What kubelet has answered; none where its caller panics.
    list: Option<Pods>,
}

impl Drop for RunningList<'_> {
    fn drop(&mut self) {
        let mut lists = self.of.lists.lock();
        if self.list.is_none() {
            lists.waiting -= 1;
        }
        lists.ended = lists.begun;
        // None takes an older list away, too: it may be from before those who waited for this one came. They ask anew.
        lists.last = self.list.take().map(Arc::new);
        self.of.list_ended.notify_all();
    }
}

impl PodResources {
    /// A client of the kubelet whose directory this is. Nothing is opened yet.
    pub fn new(directory: KubeletDir) -> PodResources {
        PodResources {
            directory,
            lists_only: AtomicBool::new(false),
            lists: Mutex::default(),
            list_ended: Condvar::new(),
        }
    }

    /// Whether this node has a kubelet at all. It need not run at the moment.
    pub fn is_expected(&self) -> bool {
        self.directory.seen_at(DIRECTORY).is_dir()
    }

    /// What kubelet has allocated to a pod.
    ///
    /// # Errors
    /// When kubelet has not answered by `deadline`, or within ten seconds.
    pub fn pod(&self, pod: &PodName, deadline: Instant) -> Result<ResourcesOfPod, PodResourcesError> {
        // Kubelet's rate limit is for all clients together: once it refuses, one shared list spares it many calls.
        let mut exhausted = false;
        retry(deadline, |until| {
            let answer = match exhausted || self.lists_only.load(Ordering::Relaxed) {
                true => self.find_in_list(pod, until),
                false => self.get(pod, until),
            };
            exhausted |=
                matches!(answer, Err(PodResourcesError::Refused { code: Code::ResourceExhausted, .. }));
            answer
        })
    }

    /// Every healthy device of every device plugin that is registered with kubelet just now, allocated or not.
    ///
    /// # Errors
    /// When kubelet has not answered by `deadline`, or within ten seconds.
    pub fn allocatable(&self, deadline: Instant) -> Result<Vec<ResourceDevices>, PodResourcesError> {
        retry(deadline, |until| {
            let request = wire::AllocatableResourcesRequest {};
            let answer = self.call(until, |mut kubelet| async move {
                kubelet.get_allocatable_resources(request).await.map(tonic::Response::into_inner)
            });
            answer.map(|answer| answer.devices.into_iter().map(ResourceDevices::from).collect())
        })
    }

    /// Every device that a pod has, also while its device plugin is away or it is unhealthy.
    ///
    /// # Errors
    /// When kubelet has not answered by `deadline`, or within ten seconds.
    pub fn allocated(&self, deadline: Instant) -> Result<Vec<ResourceDevices>, PodResourcesError> {
        retry(deadline, |until| match &*self.shared_list(until)? {
            Ok(pods) => {
                let devices = pods.iter().flat_map(|pod| &pod.containers).flat_map(|of| &of.devices);
                Ok(devices.cloned().map(ResourceDevices::from).collect())
            }
            Err(error) => Err(error.clone()),
        })
    }

    fn get(&self, pod: &PodName, until: Instant) -> Result<ResourcesOfPod, PodResourcesError> {
        let request =
            wire::GetPodResourcesRequest { pod_name: pod.name.clone(), pod_namespace: pod.namespace.clone() };
        let answer = self.call(until, |mut kubelet| async move {
            kubelet.get(request).await.map(tonic::Response::into_inner)
        });
        match answer {
            Ok(answer) => answer
                .pod_resources
                .map(ResourcesOfPod::from)
                .ok_or_else(|| PodResourcesError::UnknownPod(pod.clone())),
            Err(PodResourcesError::Refused { code, message }) if is_disabled(code, &message) => {
                tracing::info!(%code, message, "kubelet tells of all pods only: it is asked for its list");
                // Kept in mind: every refused `Get` counts against the rate limit that all clients of kubelet share.
                self.lists_only.store(true, Ordering::Relaxed);
                self.find_in_list(pod, until)
            }
            Err(error) => Err(error),
        }
    }

    fn find_in_list(&self, pod: &PodName, until: Instant) -> Result<ResourcesOfPod, PodResourcesError> {
        match &*self.shared_list(until)? {
            Ok(pods) => find_pod(pods, pod),
            Err(error) => Err(error.clone()),
        }
    }

    /// A list that begins after this call, shared by all who wait for one.
    fn shared_list(&self, until: Instant) -> Result<Arc<Pods>, PodResourcesError> {
        let begun = Instant::now();
        let mut lists = self.lists.lock();
        let wanted = lists.begun + 1;
        lists.waiting += 1;
        let answer = loop {
            if lists.ended >= wanted
                && let Some(last) = &lists.last
            {
                break Ok(Arc::clone(last));
            }
            if lists.begun == lists.ended {
                // Nobody asks at the moment: this caller does, for all who came until now.
                lists.begun += 1;
                drop(lists);
                let mut running = RunningList { of: self, list: None };
                running.list = Some(self.list(until));
                drop(running);
                lists = self.lists.lock();
                continue;
            }
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                break Err(self.late(begun.elapsed()));
            };
            self.list_ended.wait_for(&mut lists, left);
        };
        lists.waiting -= 1;
        // A list of all pods can have megabytes, and is too old for the next caller.
        if lists.waiting == 0 {
            lists.last = None;
        }
        answer
    }

    fn list(&self, until: Instant) -> Pods {
        let request = wire::ListPodResourcesRequest {};
        let answer = self.call(until, |mut kubelet| async move {
            kubelet.list(request).await.map(tonic::Response::into_inner)
        });
        answer.map(|answer| answer.pod_resources)
    }

    /// One call, on a connection and a runtime of its own: calls are rare, and nothing is held open between them.
    fn call<T, F>(
        &self,
        until: Instant,
        method: impl FnOnce(PodResourcesListerClient<Channel>) -> F,
    ) -> Result<T, PodResourcesError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let limit = CALL_TIMEOUT.min(until.saturating_duration_since(Instant::now()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let answer = async {
            let kubelet = self.directory.open(DIRECTORY).map_err(|e| self.unreachable(&e))?;
            let channel = kubelet.connect(KUBELET_SOCKET).await.map_err(|e| self.unreachable(&e))?;
            let client = PodResourcesListerClient::new(channel).max_decoding_message_size(LONGEST_ANSWER);
            method(client).await.map_err(|status| PodResourcesError::Refused {
                code: status.code(),
                message: status.message().to_owned(),
            })
        };
        let timed = async { tokio::time::timeout(limit, answer).await };
        runtime.map_err(|e| self.unreachable(&e))?.block_on(timed).unwrap_or_else(|_| Err(self.late(limit)))
    }

    fn socket(&self) -> PathBuf {
        self.directory.host_path(DIRECTORY).join(KUBELET_SOCKET)
    }

    fn unreachable(&self, error: &io::Error) -> PodResourcesError {
        PodResourcesError::Unreachable { socket: self.socket(), reason: error.to_string() }
    }

    fn late(&self, waited: Duration) -> PodResourcesError {
        PodResourcesError::Late { socket: self.socket(), waited }
    }
}

/// Repeats an attempt until it succeeds or the time ends; the error is then the last one that says something.
fn retry<T>(
    deadline: Instant,
    mut attempt: impl FnMut(Instant) -> Result<T, PodResourcesError>,
) -> Result<T, PodResourcesError> {
    let until = deadline.min(Instant::now() + LONGEST_WAIT);
    let mut attempts = BACKOFF.start();
    let mut said = None;
    loop {
        let error = match attempt(until) {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        // That an attempt had no time left says less than what kubelet answered before.
        let is_late = matches!(error, PodResourcesError::Late { .. });
        let pause = attempts.failed();
        if Instant::now() + pause >= until {
            return Err(if is_late { said.unwrap_or(error) } else { error });
        }
        tracing::debug!(%error, "kubelet is asked again");
        if !is_late {
            said = Some(error);
        }
        sleep(pause);
    }
}

fn is_disabled(code: Code, message: &str) -> bool {
    code == Code::Unimplemented || (code == Code::Unknown && message.contains(GET_DISABLED))
}

/// Finds the pod in a list. A finished pod of the same name may be listed beside it, with nothing or with what it had.
fn find_pod(pods: &[wire::PodResources], pod: &PodName) -> Result<ResourcesOfPod, PodResourcesError> {
    let mut of_name: Vec<ResourcesOfPod> = Vec::new();
    for listed in pods.iter().filter(|listed| listed.name == pod.name && listed.namespace == pod.namespace) {
        let resources = ResourcesOfPod::from(listed.clone());
        // Two pods of the name with the same resources are no doubt: either entry gives the same answer.
        if !of_name.contains(&resources) {
            of_name.push(resources);
        }
    }
    if of_name.len() > 1 {
        of_name.retain(|resources| !resources.is_empty());
    }
    match of_name.len() {
        0 => Err(PodResourcesError::UnknownPod(pod.clone())),
        1 => Ok(of_name.swap_remove(0)),
        _ => Err(PodResourcesError::Ambiguous(pod.clone())),
    }
}

impl ResourcesOfPod {
    fn is_empty(&self) -> bool {
        self.cpus.is_empty() && self.memory_nodes.is_empty() && self.containers.iter().all(|c| c.is_empty())
    }
}

impl ContainerResources {
    fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.cpus.is_empty() && self.memory_nodes.is_empty()
    }
}

impl From<wire::PodResources> for ResourcesOfPod {
    fn from(message: wire::PodResources) -> ResourcesOfPod {
        ResourcesOfPod {
            containers: message.containers.into_iter().map(ContainerResources::from).collect(),
            cpus: numbers(&message.cpu_ids),
            memory_nodes: memory_nodes(&message.memory),
        }
    }
}

impl From<wire::ContainerResources> for ContainerResources {
    fn from(message: wire::ContainerResources) -> ContainerResources {
        ContainerResources {
            name: message.name,
            devices: message.devices.into_iter().map(ResourceDevices::from).collect(),
            cpus: numbers(&message.cpu_ids),
            memory_nodes: memory_nodes(&message.memory),
        }
    }
}

impl From<wire::ContainerDevices> for ResourceDevices {
    fn from(message: wire::ContainerDevices) -> ResourceDevices {
        let nodes = nodes(message.topology.as_ref());
        ResourceDevices { resource: message.resource_name, ids: message.device_ids, nodes }
    }
}

/// Kubelet's numbers without the negative ones, which stand for "none".
fn numbers(ids: &[i64]) -> Vec<u32> {
    ids.iter().filter_map(|id| u32::try_from(*id).ok()).collect()
}

fn nodes(topology: Option<&wire::TopologyInfo>) -> Vec<u32> {
    let nodes = topology.map(|t| t.nodes.as_slice()).unwrap_or_default();
    nodes.iter().filter_map(|node| u32::try_from(node.id).ok()).collect()
}

/// The NUMA nodes of the memory. Kubelet has one entry for each kind of memory (pages of each size), so nodes repeat.
fn memory_nodes(memory: &[wire::ContainerMemory]) -> Vec<u32> {
    let mut all: Vec<u32> = memory.iter().flat_map(|block| nodes(block.topology.as_ref())).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests;
