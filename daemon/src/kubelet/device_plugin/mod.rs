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

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::place::KubeletDir;
use crate::rooted::HostRoot;
use crate::watch::{Watch, WatchError};
use device_info::DeviceInfoFiles;
use registration::Registration;
use service::Offer;

pub use allocation::{Access, VfioGroup};
pub use preference::Spread;

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

/// Offers devices until it is dropped.
#[derive(Debug)]
pub struct DevicePlugins {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _watch: Watch,
}

impl DevicePlugins {
    /// Offers the devices of these resources to the kubelet of a directory, now and whenever it comes again.
    ///
    /// # Errors
    /// When there is no watch or no thread to be had.
    pub fn start(
        host_root: &Path,
        directory: KubeletDir,
        resources: Vec<Arc<dyn Devices>>,
    ) -> Result<DevicePlugins, DevicePluginError> {
        let (changes, changed) = watch::channel(());
        let watch = Watch::new("watch-kubelet", vec![directory.seen_at(DIRECTORY)], move || {
            changes.send_replace(());
        })?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("kubelet-access")
            .thread_keep_alive(Duration::from_secs(2))
            .build()?;
        let directory = Arc::new(directory);
        let offers = resources.into_iter().map(|devices| {
            let files = DeviceInfoFiles::new(HostRoot::new(host_root.to_owned()));
            let offer = Arc::new(Offer::new(devices, files));
            Registration::new(offer, Arc::clone(&directory), changed.clone())
        });
        let offers: Vec<Registration> = offers.collect();
        let (stop, stopped) = oneshot::channel();
        let work = move || {
            runtime.block_on(async move {
                let all = futures_util::future::join_all(offers.into_iter().map(Registration::run));
                tokio::select! {
                    _ = all => {}
                    _ = stopped => {}
                }
            });
            // What looks at a device that hangs keeps nobody.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("kubelet".into()).spawn(work)?;
        Ok(DevicePlugins { stop: Some(stop), thread: Some(thread), _watch: watch })
    }
}

impl Drop for DevicePlugins {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
