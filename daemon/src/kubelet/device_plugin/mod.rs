//! Our devices, offered to kubelet (device plugin interface v1beta1), one endpoint for each resource.
//!
//! Where the devices come from is a trait ([`Devices`]); what a pod is told of them is what the SR-IOV network device
//! plugin would tell. Nothing is announced before the list is known and reconciled: the first list that kubelet gets is
//! complete. It has a thread of its own, and none where there is no resource.

mod allocation;
mod device_info;
mod preference;
mod registration;
mod service;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, io};

use fairlead_sriov::pool::Spread;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use super::place::KubeletDir;
use device_info::DeviceInfoFiles;
use fairlead_host::file_watch::{Watch, WatchError};
use fairlead_host::host_root::HostRoot;
use registration::Registration;
use service::Offer;

pub use allocation::{Access, VfioGroup};

/// Plugins' directory in kubelet's.
const DIRECTORY: &str = "device-plugins";

/// Whether pods may be given a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Yes, also while it is still on its way home from the last pod.
    Healthy,
    /// No: gone, broken or in quarantine.
    Unhealthy,
}

/// A device as kubelet gets to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its PCI address.
    pub id: String,
    /// Its NUMA node, where it has one.
    pub node: Option<u32>,
    /// Whether it may be given to pods.
    pub health: Health,
    /// Its physical function, for packing and spreading.
    pub physical: String,
}

/// Why a pod can't be given a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("device {id} cannot be given to a pod: {reason}")]
pub struct Refused {
    /// The device.
    pub id: String,
    /// Why.
    pub reason: String,
}

/// All devices, as they stand; `None` until that is known.
pub type DeviceList = Option<Arc<[Device]>>;

/// The devices of one resource.
pub trait Devices: Send + Sync + 'static {
    /// Its name for pods: `intel.com/radio`.
    fn resource(&self) -> &str;

    /// Of which physical functions a pod's devices are to be.
    fn spread(&self) -> Spread;

    /// Tells the complete list with every change. Only what is set up and verified is in it; `None` until what is there has
    /// been compared with what should be.
    fn list(&self) -> watch::Receiver<DeviceList>;

    /// What a pod needs to reach a device of the list. May look at the host.
    ///
    /// # Errors
    /// When it must not be given away now.
    fn access(&self, id: &str) -> Result<Access, Refused>;

    /// A pod that was told what it needs to reach a device does not get it after all.
    fn not_given(&self, id: &str);
}

/// Why nothing can be offered.
#[derive(Debug, thiserror::Error)]
pub enum DevicePluginError {
    /// Changes of kubelet's directory can't be seen.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// No thread, or no runtime on it.
    #[error("no thread to serve kubelet on: {0}")]
    Thread(#[from] io::Error),
}

/// Offers devices to the kubelet of a directory, until it is dropped.
pub struct DevicePlugins {
    host_root: PathBuf,
    directory: Arc<KubeletDir>,
    /// Begun with the first resource.
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

/// A resource that is offered; no more, when dropped.
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
    /// For the kubelet of a directory. Nothing is offered yet.
    pub fn new(host_root: &Path, directory: KubeletDir) -> DevicePlugins {
        let directory = Arc::new(directory);
        DevicePlugins { host_root: host_root.to_owned(), directory, running: Mutex::default() }
    }

    /// Offers the devices of these resources and of no others, now and whenever kubelet comes again. One that is offered
    /// already goes on undisturbed.
    ///
    /// # Errors
    /// When there is no watch or no thread to be had.
    pub fn offer(&self, resources: Vec<Arc<dyn Devices>>) -> Result<(), DevicePluginError> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
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
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("kubelet-access")
            .thread_keep_alive(Duration::from_secs(2))
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let work = move || {
            let _ = runtime.block_on(stopped);
            // What looks at a device that hangs keeps nobody.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("kubelet".into()).spawn(work)?;
        let (stop, thread) = (Some(stop), Some(thread));
        Ok(Running { offered: Vec::new(), changed, runtime: handle, stop, thread, _watch: watch })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
