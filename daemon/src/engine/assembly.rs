//! The engine's core is put together here, from what the engine is given and from what its start has opened.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fairlead_host::announce::{Announcer, Conflict};
use fairlead_host::{HostRoot, Kernel, NetnsId};
use fairlead_ipam::HostLocal;
use fairlead_kube::Cluster;
use fairlead_kubelet::{DevicePlugins, KubeletDir, PodResources};
use fairlead_sriov::pools::{PoolMetrics, Pools, PoolsContext};
use fairlead_sriov::{Administrator, Inventory};
use parking_lot::{Mutex, RwLock};

use super::call_settings::{CallSettings, CurrentCallSettings};
use super::cluster_network;
use super::conf_cache::ConfCache;
use super::core::{
    CollectedByGc, Core, DelegateRecords, ExecutedRemovals, Ipam, RemovalQueue, RunningCollections,
    SetAsidePlaces, StartSteps,
};
use super::keyed_locks::KeyedLocks;
use super::kinds::sriov::{AnnouncedDevices, SriovServices};
use super::kinds::sriov_cni_import::SriovCniImport;
use super::kinds::vhost_user::{OvsAccess, SocketPlaces, VhostUserServices};
use super::kinds::{DeviceInfoFiles, Kinds};
use super::random_ids::RandomIds;
use super::start_error::{StartError, failed};
use crate::cluster_watch::name_of_node;
use crate::conf_dir::Networks;
use crate::delegate::Delegates;
use crate::device_offers::DeviceOffers;
use crate::metrics;
use crate::node_paths::NodePaths;
use crate::port_pools::{OvsSettings, PortPools};
use crate::settings::Settings;
use crate::store::Store;

/// What the engine is given by the program around it.
pub struct EngineInputs {
    /// The kernel.
    pub kernel: Arc<dyn Kernel>,
    /// The networks of the conf dir.
    pub networks: Arc<Networks>,
    /// Counters of calls.
    pub calls: metrics::Calls,
    /// Counters of the node.
    pub node: metrics::Node,
    /// The cluster, where the node is one's.
    pub cluster: Option<Arc<dyn Cluster>>,
    /// A cgroup for executed plugins.
    pub cgroup: Option<PathBuf>,
    /// Where the sysctls are of whoever tells the neighbours after ADD; `None`: nobody is told.
    pub announce: Option<PathBuf>,
    /// What is counted of pools.
    pub pool_metrics: PoolMetrics,
    /// The pools of the configuration.
    pub settings: Arc<Settings>,
    /// How long a VF that its driver is resetting is waited for.
    pub settles: Duration,
}

/// The core while it is put together: what several of its parts are made from.
pub(super) struct Assembly<'a> {
    paths: &'a NodePaths,
    inputs: &'a EngineInputs,
    boot_id: &'a str,
    host_id: NetnsId,
    store: Arc<Store>,
    ids: Arc<RandomIds>,
    root: Arc<HostRoot>,
    device_info: Arc<DeviceInfoFiles>,
    call_settings: Arc<CurrentCallSettings>,
}

impl<'a> Assembly<'a> {
    /// Takes what the engine is given, and what its start has opened.
    pub(super) fn new(
        paths: &'a NodePaths,
        inputs: &'a EngineInputs,
        (boot_id, host_id): (&'a str, NetnsId),
        store: Store,
        call_settings: CallSettings,
    ) -> Assembly<'a> {
        let (store, root) = (Arc::new(store), Arc::new(HostRoot::new(paths.host_root.clone())));
        let device_info = DeviceInfoFiles::new(Arc::clone(&root), Arc::clone(&store));
        Assembly {
            paths,
            inputs,
            boot_id,
            host_id,
            store,
            ids: Arc::new(RandomIds::default()),
            root,
            device_info: Arc::new(device_info),
            call_settings: Arc::new(CurrentCallSettings::new(call_settings)),
        }
    }

    /// Makes every part of the core.
    pub(super) fn core(&self, records: DelegateRecords) -> Result<Core, StartError> {
        let (run_dir, state_dir) = (self.paths.run_dir.clone(), self.paths.state_dir.clone());
        Ok(Core {
            ipam: self.ipam()?,
            kinds: self.kinds()?,
            host_id: self.host_id.clone(),
            store: Arc::clone(&self.store),
            records,
            containers: KeyedLocks::default(),
            of_multus: RwLock::default(),
            removals: RemovalQueue::default(),
            executed_removals: ExecutedRemovals::default(),
            collections: RunningCollections::default(),
            collected: CollectedByGc::default(),
            set_aside: SetAsidePlaces { run_dir, state_dir },
            start: StartSteps::default(),
            call_settings: Arc::clone(&self.call_settings),
            remove_conflist: cluster_network::remove,
        })
    }

    fn ipam(&self) -> Result<Ipam, StartError> {
        let NodePaths { host_root, run_dir, state_dir, .. } = self.paths;
        let host_local = HostLocal::new(host_root.clone(), state_dir, self.boot_id)
            .map_err(failed("the list of host-local's directories"))?;
        let empty_dirs = run_dir.join("tenants-plugins");
        let delegates = Delegates::new(host_root.clone(), self.inputs.cgroup.clone(), empty_dirs)
            .watched_in(&run_dir.join("plugins"));
        Ok(Ipam {
            host_local: Arc::new(host_local),
            delegates,
            confs: ConfCache::default(),
            call_settings: Arc::clone(&self.call_settings),
        })
    }

    fn kinds(&self) -> Result<Kinds, StartError> {
        let begin = |sysctls: &PathBuf| announcer(sysctls, self.inputs.node.clone());
        let begun = self.inputs.announce.as_ref().map(begin).transpose();
        let announcer = begun.map_err(failed("the announcer"))?;
        Ok(Kinds {
            kernel: Arc::clone(&self.inputs.kernel),
            sysfs: self.paths.sysfs.clone(),
            ids: Arc::clone(&self.ids),
            call_settings: Arc::clone(&self.call_settings),
            announcer,
            device_info: Arc::clone(&self.device_info),
            sriov: self.sriov()?,
            vhost_user: Arc::new(self.vhost_user()),
            leftovers: SriovCniImport::new(Arc::clone(&self.root)),
            kernel_kinds: Mutex::default(),
        })
    }

    fn sriov(&self) -> Result<SriovServices, StartError> {
        let (paths, inputs) = (self.paths, self.inputs);
        let admin = Arc::new(Administrator::new(Arc::clone(&inputs.kernel), inputs.settles));
        let inventory = Inventory::new(&paths.sysfs);
        let context = PoolsContext {
            state_dir: &paths.state_dir,
            run_dir: &paths.run_dir,
            boot_id: self.boot_id,
            kernel: Arc::clone(&inputs.kernel),
            admin: Arc::clone(&admin),
            inventory: inventory.clone(),
            udev: paths.host_root.join("run/udev"),
            dev: paths.host_root.join("dev"),
            metrics: inputs.pool_metrics.clone(),
            random: self.random(),
        };
        let pools = pools(context, &inputs.settings)?;
        let kubelet = || KubeletDir::new(&paths.host_root, &paths.kubelet);
        Ok(SriovServices {
            kernel: Arc::clone(&inputs.kernel),
            host_id: self.host_id.clone(),
            sysfs: paths.sysfs.clone(),
            store: Arc::clone(&self.store),
            device_info: Arc::clone(&self.device_info),
            inventory,
            admin,
            pools,
            pod_resources: PodResources::new(kubelet()),
            device_offers: DeviceOffers::new(DevicePlugins::new(&paths.host_root, kubelet())),
            announced: AnnouncedDevices::default(),
            reserved: KeyedLocks::default(),
            calls: inputs.calls.clone(),
        })
    }

    fn vhost_user(&self) -> VhostUserServices {
        let (paths, inputs) = (self.paths, self.inputs);
        let settings = &inputs.settings;
        let store = || Arc::clone(&self.store);
        let ports = Arc::new(PortPools::new(&paths.run_dir, &paths.state_dir, store(), self.random()));
        ports.set_label(&settings.vhost_user.selinux_label);
        ports.configure(&settings.vhost_user.pools);
        let places = SocketPlaces { root: Arc::clone(&self.root), kubelet: paths.kubelet.clone() };
        VhostUserServices::new(
            places,
            ports,
            store(),
            &paths.run_dir,
            ovs_of(settings),
            (Arc::clone(&inputs.kernel), Inventory::new(&paths.sysfs)),
            inputs.cluster.clone(),
        )
    }

    /// Where MAC addresses that last come from.
    fn random(&self) -> Box<dyn Fn() -> u64 + Send + Sync> {
        let ids = Arc::clone(&self.ids);
        Box::new(move || ids.next())
    }
}

fn pools(context: PoolsContext<'_>, settings: &Settings) -> Result<Arc<Pools>, StartError> {
    let pools = Arc::new(Pools::open(context).map_err(failed("the records of pools"))?);
    pools.count();
    pools.configure(settings);
    Ok(pools)
}

/// Where OVS is, as the configuration says it.
fn ovs_of(settings: &Settings) -> OvsAccess {
    let configured = settings.vhost_user.ovs.clone();
    OvsAccess {
        is_configured: configured.is_some(),
        tls: configured.as_ref().and_then(OvsSettings::tls_files),
        group: configured.as_ref().and_then(|ovs| ovs.group.clone()),
        database: configured.unwrap_or_default().database,
        node: name_of_node(settings),
    }
}

fn announcer(sysctls: &Path, node: metrics::Node) -> io::Result<Announcer> {
    let tell = move |conflict: Conflict| {
        node.conflicts.inc();
        tracing::warn!(attachment = %conflict.label, address = %conflict.address, other = %conflict.other,
            "another host on the wire has this address");
    };
    Announcer::start(sysctls, Box::new(tell))
}
