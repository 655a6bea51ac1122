//! Offers our devices to kubelet (device plugin interface v1beta1), with one endpoint for each resource.
//!
//! Where the devices come from is a trait ([`Devices`]). A pod gets the same environment and device nodes as from the SR-IOV
//! network device plugin. Nothing is announced before the list is known and reconciled: the first list that kubelet gets is
//! complete. The work is done on one thread, which is not started while there is no resource.

mod allocate_answer;
mod device_info_files;
mod preferred_allocation;
mod registration;
mod service;
#[cfg(test)]
mod tests;
mod watched_devices;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::{fmt, io};

use fairlead_host::blocking_threads::runtime_with_a_kept_thread;
use fairlead_host::file_watch::{Watch, WatchError};
use fairlead_host::host_root::HostRoot;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use super::kubelet_dir::KubeletDir;
use device_info_files::DeviceInfoFiles;
use registration::Registration;
use service::Offer;

pub use allocate_answer::{DeviceAccess, RdmaAccess, VfioGroup, VhostUserSocket};
pub use device_info_files::device_info_path;
pub use watched_devices::{WatchedDevices, watched};

/// The device plugins' directory in kubelet's directory.
const DIRECTORY: &str = "device-plugins";
/// So many calls allocate at once at most. Kubelet makes one after the other; one that hangs may outlive the kubelet that made it.
const ALLOCATIONS: usize = 4;

/// Whether kubelet may allocate a device to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It may, also while the device is still being restored after the pod before.
    Healthy,
    /// It must not: the device is gone, broken or in quarantine.
    Unhealthy,
}

/// Over which PFs kubelet is advised to take a container's devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AllocationPolicy {
    /// All devices of one PF are taken before those of the next.
    #[default]
    Packed,
    /// The PF that the container has the fewest devices of comes next.
    Spread,
}

/// A device as it is announced to kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The name that kubelet knows the device by: its PCI address, or the name of a port.
    pub id: String,
    /// The NUMA node that kubelet is to align it to, where it has one.
    pub numa_node: Option<u32>,
    /// Whether kubelet may allocate it.
    pub health: Health,
    /// The PF that it is of, for [`AllocationPolicy`]; of a port: its pool.
    pub pf: String,
}

/// Why a device can't be allocated to a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("device {id} cannot be given to a pod: {reason}")]
pub struct AllocationRefused {
    /// The device that kubelet asked for.
    pub id: String,
    /// Why not, in words for the pod's event.
    pub reason: String,
}

/// The devices of one resource, from wherever they come.
pub trait Devices: Send + Sync + 'static {
    /// The resource's name in pod specs, as in `intel.com/radio`.
    fn resource(&self) -> &str;

    /// Over which PFs kubelet is advised to take devices.
    fn allocation_policy(&self) -> AllocationPolicy;

    /// The complete list as it is now. Only devices that are set up and verified are in it. It is empty until what exists has
    /// been compared with what should exist.
    fn list(&self) -> Vec<Device>;

    /// The complete list, and again with every change. The first one comes when what exists has been compared with what
    /// should exist. The stream ends when the resource is no longer offered.
    fn watch(&self) -> WatchedDevices;

    /// Whether a device can be allocated at once. One that its last pod still has, or that is being restored after that, has to be
    /// waited for. It is not in the list, which kubelet would get anew with each pod.
    fn is_ready(&self, id: &str) -> bool;

    /// Allocates a device of the list to a pod, and returns what the pod needs to reach it. May read the host's files.
    ///
    /// # Errors
    /// When the device must not be allocated now.
    fn allocate(&self, id: &str) -> Result<DeviceAccess, AllocationRefused>;

    /// All devices of a call are allocated, and kubelet is answered. Since [`Devices::allocate`] it may have waited for one of them.
    fn allocation_answered(&self, id: &str);

    /// Takes back an allocation that kubelet was never told of, because another device of the same call was refused.
    fn cancel_allocation(&self, id: &str);
}

/// Why nothing can be offered.
#[derive(Debug, thiserror::Error)]
pub enum DevicePluginError {
    /// Kubelet's directory can't be watched for changes.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// The system has no thread for us, or no runtime on it.
    #[error(
        "no thread to serve kubelet on: {0}; raise TasksMax or LimitNOFILE of fairleadd's service, or the pod's limit of processes"
    )]
    Thread(#[from] io::Error),
}

/// Offers devices to the kubelet of a directory, until this is dropped.
pub struct DevicePlugins {
    host_root: PathBuf,
    directory: Arc<KubeletDir>,
    /// `None` until there is a resource to offer.
    running: Mutex<Option<Running>>,
}

/// The thread that serves kubelet.
struct Running {
    offered: Vec<Offered>,
    changed: watch::Receiver<()>,
    runtime: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _watch: Watch,
}

/// A resource that is offered as long as this exists.
struct Offered {
    devices: Arc<dyn Devices>,
    task: AbortHandle,
}

impl Drop for Offered {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for DevicePlugins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DevicePlugins").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl DevicePlugins {
    /// Device plugins for the kubelet of a directory. Nothing is offered yet.
    pub fn new(host_root: &Path, directory: KubeletDir) -> DevicePlugins {
        let directory = Arc::new(directory);
        DevicePlugins { host_root: host_root.to_owned(), directory, running: Mutex::default() }
    }

    /// Offers the devices of these resources and of no others, now and after every restart of kubelet. A resource whose
    /// `Arc` is offered already goes on undisturbed.
    ///
    /// # Errors
    /// When the directory can't be watched, or no thread can be started.
    pub fn offer(&self, resources: Vec<Arc<dyn Devices>>) -> Result<(), DevicePluginError> {
        let mut running = self.running.lock();
        if running.is_none() && resources.is_empty() {
            return Ok(());
        }
        let running = match running.as_mut() {
            Some(running) => running,
            None => running.insert(Running::begin(&self.directory)?),
        };
        running
            .offered
            .retain(|offered| resources.iter().any(|wanted| Arc::ptr_eq(wanted, &offered.devices)));
        for devices in resources {
            if running.offered.iter().any(|offered| Arc::ptr_eq(&devices, &offered.devices)) {
                continue;
            }
            let files = DeviceInfoFiles::new(HostRoot::new(self.host_root.clone()));
            let offer = Arc::new(Offer::new(Arc::clone(&devices), files));
            let directory = Arc::clone(&self.directory);
            let registration = Registration::new(offer, directory, running.changed.clone());
            let task = running.runtime.spawn(registration.run()).abort_handle();
            running.offered.push(Offered { devices, task });
        }
        Ok(())
    }
}

impl Running {
    fn begin(directory: &KubeletDir) -> Result<Running, DevicePluginError> {
        let (changes, changed) = watch::channel(());
        let watch = Watch::new("watch-kubelet", vec![directory.seen_at(DIRECTORY)], move || {
            changes.send_replace(());
        })?;
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let builder = builder.enable_all().thread_name("kubelet-access");
        let runtime = runtime_with_a_kept_thread(builder, ALLOCATIONS)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let work = move || {
            let _ = runtime.block_on(stopped);
            // A blocking call may hang on a broken device. The daemon's end must not wait for it.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("kubelet".into()).spawn(work)?;
        let (stop, thread) = (Some(stop), Some(thread));
        Ok(Running { offered: Vec::new(), changed, runtime: handle, stop, thread, _watch: watch })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Nothing is sent: the thread ends when the sender is gone.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
