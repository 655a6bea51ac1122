//! What kubelet has given a pod: devices, processors and memory, as its PodResources interface (v1) tells. They are given
//! at admission, before the sandbox is made, so that an ADD can ask for them.
//!
//! Asked for by plain threads. Kubelet answers a hundred such calls a second, for all its clients together: where it can
//! tell of a single pod it is asked for that one, else one list serves everybody who waits. What fails is tried again
//! until the caller's time ends. No failure ever becomes "the pod has no device".

use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tonic::transport::Channel;
use tonic::{Code, Status};

use super::place::{KUBELET_SOCKET, KubeletDir};
use super::proto::podresources as wire;
use wire::pod_resources_lister_client::PodResourcesListerClient;

/// Its directory in kubelet's.
const DIRECTORY: &str = "pod-resources";
/// One question may take so long.
const ANSWER: Duration = Duration::from_secs(2);
/// A caller waits no longer than this, whatever its own time is.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two tries, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// A list of all pods of a large node is longer than the usual limit of 4 MiB.
const LARGEST: usize = 16 << 20;
/// How kubelet before 1.34 refuses to tell of a single pod: with no code of its own.
const GET_DISABLED: &str = "Get method disabled";

/// A pod's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodName {
    /// `K8S_POD_NAMESPACE`
    pub namespace: String,
    /// `K8S_POD_NAME`
    pub name: String,
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What kubelet has given a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResourcesOfPod {
    /// In the pod's order; of init containers only those that stay.
    pub containers: Vec<ContainerResources>,
    /// Exclusive processors of the pod as a whole, where it has resources of its own.
    pub cpus: Vec<u32>,
    /// NUMA nodes of the memory of the pod as a whole.
    pub memory_nodes: Vec<u32>,
}

/// What kubelet has given a container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerResources {
    /// Its name.
    pub name: String,
    /// Its devices.
    pub devices: Vec<Grant>,
    /// Its exclusive processors.
    pub cpus: Vec<u32>,
    /// NUMA nodes that its memory is pinned to.
    pub memory_nodes: Vec<u32>,
}

/// Devices of one resource. A resource can be there several times, once for every node that its devices are on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Grant {
    /// `intel.com/radio`
    pub resource: String,
    /// As the device plugin names them: PCI addresses for virtual functions.
    pub ids: Vec<String>,
    /// NUMA nodes that they are on.
    pub nodes: Vec<u32>,
}

/// Why it is not known what a pod has. Each of them may pass: the call is to be tried again.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PodResourcesError {
    /// Nobody listens, or the connection broke.
    #[error("kubelet can't be asked at {}: {reason}", .socket.display())]
    Unreachable {
        /// Kubelet's socket.
        socket: PathBuf,
        /// Why not.
        reason: String,
    },
    /// It answered with an error.
    #[error("kubelet refuses to tell what it has given ({code}): {message}")]
    Refused {
        /// Of gRPC.
        code: Code,
        /// Kubelet's words.
        message: String,
    },
    /// It did not answer in time.
    #[error("kubelet did not tell at {} what it has given within {} ms", .socket.display(), .waited.as_millis())]
    Late {
        /// Kubelet's socket.
        socket: PathBuf,
        /// How long was waited.
        waited: Duration,
    },
    /// It does not list the pod.
    #[error("kubelet knows no pod {0}")]
    UnknownPod(PodName),
    /// Kubelets before 1.34 list finished pods too, and tell no uid.
    #[error("kubelet lists several pods {0} that have been given something, an older one among them")]
    Ambiguous(PodName),
}

/// Asks kubelet. One for the whole daemon.
#[derive(Debug)]
pub struct PodResources {
    directory: KubeletDir,
    /// Kubelet can't tell of a single pod.
    lists_only: AtomicBool,
    rounds: Mutex<Rounds>,
    ended: Condvar,
}

type Pods = Result<Vec<wire::PodResources>, PodResourcesError>;

/// Lists that were asked for, one after the other. Who waits needs one that began after he came.
#[derive(Debug, Default)]
struct Rounds {
    begun: u64,
    ended: u64,
    waiting: usize,
    last: Option<Arc<Pods>>,
}

impl PodResources {
    /// Asks the kubelet of this directory.
    pub fn new(directory: KubeletDir) -> PodResources {
        PodResources {
            directory,
            lists_only: AtomicBool::new(false),
            rounds: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    /// Whether this node has a kubelet at all, be it that it does not run just now.
    pub fn is_expected(&self) -> bool {
        self.directory.seen_at(DIRECTORY).is_dir()
    }

    /// What a pod has been given.
    ///
    /// # Errors
    /// When kubelet has not told by `deadline`, or within ten seconds.
    pub fn pod(&self, pod: &PodName, deadline: Instant) -> Result<ResourcesOfPod, PodResourcesError> {
        // One list spares many questions, when kubelet has been asked too much already.
        let mut exhausted = false;
        patiently(deadline, |until| {
            let told = match exhausted || self.lists_only.load(Ordering::Relaxed) {
                true => self.listed(pod, until),
                false => self.got(pod, until),
            };
            exhausted |=
                matches!(told, Err(PodResourcesError::Refused { code: Code::ResourceExhausted, .. }));
            told
        })
    }

    /// Every device of every device plugin of the node, given out or not.
    ///
    /// # Errors
    /// When kubelet has not told by `deadline`, or within ten seconds.
    pub fn allocatable(&self, deadline: Instant) -> Result<Vec<Grant>, PodResourcesError> {
        patiently(deadline, |until| {
            let request = wire::AllocatableResourcesRequest {};
            let told = self.ask(until, |mut kubelet| async move {
                kubelet.get_allocatable_resources(request).await.map(tonic::Response::into_inner)
            });
            told.map(|told| told.devices.into_iter().map(Grant::from).collect())
        })
    }

    fn got(&self, pod: &PodName, until: Instant) -> Result<ResourcesOfPod, PodResourcesError> {
        let request =
            wire::GetPodResourcesRequest { pod_name: pod.name.clone(), pod_namespace: pod.namespace.clone() };
        let told = self.ask(until, |mut kubelet| async move {
            kubelet.get(request).await.map(tonic::Response::into_inner)
        });
        match told {
            Ok(told) => told
                .pod_resources
                .map(ResourcesOfPod::from)
                .ok_or_else(|| PodResourcesError::UnknownPod(pod.clone())),
            Err(PodResourcesError::Refused { code, message }) if is_disabled(code, &message) => {
                tracing::info!(%code, message, "kubelet tells of all pods only: it is asked for its list");
                self.lists_only.store(true, Ordering::Relaxed);
                self.listed(pod, until)
            }
            Err(error) => Err(error),
        }
    }

    fn listed(&self, pod: &PodName, until: Instant) -> Result<ResourcesOfPod, PodResourcesError> {
        match &*self.round(until)? {
            Ok(pods) => among(pods, pod),
            Err(error) => Err(error.clone()),
        }
    }

    /// A list that begins after this call; one for all who wait.
    fn round(&self, until: Instant) -> Result<Arc<Pods>, PodResourcesError> {
        let begun = Instant::now();
        let mut rounds = self.lock();
        let wanted = rounds.begun + 1;
        rounds.waiting += 1;
        let told = loop {
            if rounds.ended >= wanted
                && let Some(last) = &rounds.last
            {
                break Ok(Arc::clone(last));
            }
            if rounds.begun == rounds.ended {
                rounds.begun += 1;
                drop(rounds);
                let list = self.list(until);
                rounds = self.lock();
                rounds.ended = rounds.begun;
                rounds.last = Some(Arc::new(list));
                self.ended.notify_all();
                continue;
            }
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                break Err(self.late(begun.elapsed()));
            };
            rounds = self.ended.wait_timeout(rounds, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        rounds.waiting -= 1;
        if rounds.waiting == 0 {
            rounds.last = None;
        }
        told
    }

    fn list(&self, until: Instant) -> Pods {
        let request = wire::ListPodResourcesRequest {};
        let told = self.ask(until, |mut kubelet| async move {
            kubelet.list(request).await.map(tonic::Response::into_inner)
        });
        told.map(|told| told.pod_resources)
    }

    /// One question, on a connection and a runtime of its own: they are rare, and nothing is held between them.
    fn ask<T, F>(
        &self,
        until: Instant,
        question: impl FnOnce(PodResourcesListerClient<Channel>) -> F,
    ) -> Result<T, PodResourcesError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let limit = ANSWER.min(until.saturating_duration_since(Instant::now()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let asked = async {
            let kubelet = self.directory.open(DIRECTORY).map_err(|e| self.unreachable(&e))?;
            let channel = kubelet.connect(KUBELET_SOCKET).await.map_err(|e| self.unreachable(&e))?;
            let client = PodResourcesListerClient::new(channel).max_decoding_message_size(LARGEST);
            question(client).await.map_err(|status| PodResourcesError::Refused {
                code: status.code(),
                message: status.message().to_owned(),
            })
        };
        let timed = async { tokio::time::timeout(limit, asked).await };
        runtime.map_err(|e| self.unreachable(&e))?.block_on(timed).unwrap_or_else(|_| Err(self.late(limit)))
    }

    fn socket(&self) -> PathBuf {
        self.directory.told(DIRECTORY).join(KUBELET_SOCKET)
    }

    fn unreachable(&self, error: &io::Error) -> PodResourcesError {
        PodResourcesError::Unreachable { socket: self.socket(), reason: error.to_string() }
    }

    fn late(&self, waited: Duration) -> PodResourcesError {
        PodResourcesError::Late { socket: self.socket(), waited }
    }

    fn lock(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tries until it succeeds or the time ends; then the last failure.
fn patiently<T>(
    deadline: Instant,
    mut attempt: impl FnMut(Instant) -> Result<T, PodResourcesError>,
) -> Result<T, PodResourcesError> {
    let until = deadline.min(Instant::now() + PATIENCE);
    let (mut pause, longest) = PAUSES;
    let mut said = None;
    loop {
        match attempt(until) {
            Err(error) if Instant::now() + pause < until => {
                tracing::debug!(%error, "kubelet is asked again");
                // That the last attempt had no time says less than what was answered before.
                said = Some(error).filter(|e| !matches!(e, PodResourcesError::Late { .. })).or(said);
                sleep(pause);
                pause = longest.min(pause * 2);
            }
            Err(late @ PodResourcesError::Late { .. }) => return Err(said.unwrap_or(late)),
            told => return told,
        }
    }
}

fn is_disabled(code: Code, message: &str) -> bool {
    code == Code::Unimplemented || (code == Code::Unknown && message.contains(GET_DISABLED))
}

/// The pod in a list. A finished pod of the same name is listed beside it, with nothing or with what it had.
fn among(pods: &[wire::PodResources], pod: &PodName) -> Result<ResourcesOfPod, PodResourcesError> {
    let mut of_name: Vec<ResourcesOfPod> = Vec::new();
    for told in pods.iter().filter(|told| told.name == pod.name && told.namespace == pod.namespace) {
        let told = ResourcesOfPod::from(told.clone());
        if !of_name.contains(&told) {
            of_name.push(told);
        }
    }
    if of_name.len() > 1 {
        of_name.retain(|told| !told.is_empty());
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
    fn from(told: wire::PodResources) -> ResourcesOfPod {
        ResourcesOfPod {
            containers: told.containers.into_iter().map(ContainerResources::from).collect(),
            cpus: numbers(&told.cpu_ids),
            memory_nodes: memory_nodes(&told.memory),
        }
    }
}

impl From<wire::ContainerResources> for ContainerResources {
    fn from(told: wire::ContainerResources) -> ContainerResources {
        ContainerResources {
            name: told.name,
            devices: told.devices.into_iter().map(Grant::from).collect(),
            cpus: numbers(&told.cpu_ids),
            memory_nodes: memory_nodes(&told.memory),
        }
    }
}

impl From<wire::ContainerDevices> for Grant {
    fn from(told: wire::ContainerDevices) -> Grant {
        Grant { resource: told.resource_name, ids: told.device_ids, nodes: nodes(told.topology.as_ref()) }
    }
}

/// A negative number stands for none.
fn numbers(ids: &[i64]) -> Vec<u32> {
    ids.iter().filter_map(|id| u32::try_from(*id).ok()).collect()
}

fn nodes(topology: Option<&wire::TopologyInfo>) -> Vec<u32> {
    let nodes = topology.map(|t| t.nodes.as_slice()).unwrap_or_default();
    nodes.iter().filter_map(|node| u32::try_from(node.id).ok()).collect()
}

/// One entry a kind of memory (pages of each size): the same nodes again and again.
fn memory_nodes(memory: &[wire::ContainerMemory]) -> Vec<u32> {
    let mut all: Vec<u32> = memory.iter().flat_map(|block| nodes(block.topology.as_ref())).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests;
