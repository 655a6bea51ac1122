//! The engine's start: what it stands on is opened, what an earlier daemon left is put in order, its threads begin.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use fairlead_cni::wire::Command;
use fairlead_host::announce::{Announcer, Conflict};
use fairlead_host::watch::{Event, NetnsEvents};
use fairlead_host::{HostRoot, Kernel, NetError, NetnsId, process};
use fairlead_ipam::HostLocal;
use fairlead_kube::Cluster;
use fairlead_kubelet::{DevicePlugins, KubeletDir, PodResources};
use fairlead_sriov::pools::{PoolMetrics, Pools, PoolsContext};
use fairlead_sriov::{Administrator, Inventory};
use parking_lot::{Mutex, RwLock};

use super::at_rest::{CallsCome, RestWatch};
use super::conf_cache::ConfCache;
use super::core::{
    CollectedByGc, Core, DelegateRecords, ExecutedRemoval, ExecutedRemovals, Ipam, Rank, RemovalQueue,
    RunningCollections, SWEEP, SetAsidePlaces, StartStep, StartSteps, Task,
};
use super::health_probes::NetnsWatch;
use super::keyed_locks::KeyedLocks;
use super::kinds::sriov::{AnnouncedDevices, SriovServices};
use super::kinds::sriov_cni_import::SriovCniImport;
use super::kinds::vhost_user::{OvsAccess, SocketPlaces, VhostUserServices};
use super::kinds::{DeviceInfoFiles, Kinds};
use super::live_policy::CurrentPolicy;
use super::pod_networks::ImmediateNetworks;
use super::random_ids::RandomIds;
use super::read_definitions::ReadDefinitions;
use super::recent_calls::RecentCalls;
use super::{Engine, Policy, cluster_network};
use crate::call::catching_panics;
use crate::cluster_watch::name_of_node;
use crate::conf_dir::Networks;
use crate::delegate::Delegates;
use crate::device_offers::DeviceOffers;
use crate::metrics;
use crate::node_paths::NodePaths;
use crate::port_pools::{OvsSettings, PortPools};
use crate::settings::Settings;
use crate::store::{Lost, Opened, Store, StoreError};

/// Threads that work off what is left after answers.
const REMOVAL_THREADS: usize = 4;

/// So long the start waits for what an earlier daemon left. The unit's limit for the whole start is 120 s.
const WAITS: Duration = Duration::from_secs(5);

/// So long after a start a pod is waited for that the API has not told of, until it is told what networks it has.
const PODS_SEEN: Duration = Duration::from_secs(120);

/// What the engine is given by the program around it.
pub struct Beside {
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

/// Why the engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A directory or file.
    #[error("{what}: {source}")]
    Io {
        /// What was opened.
        what: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The daemon's own namespace.
    #[error("the host's network namespace: {0}; the daemon needs CAP_NET_ADMIN and CAP_SYS_ADMIN")]
    Host(#[from] NetError),
}

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError::Io { what: what.into(), source }
}

impl Engine {
    /// Opens everything, reconciles the store with the kernel, and begins to look after it. When this returns nothing half-done is
    /// left that could be undone without waiting for another program, except what has not ended within [`WAITS`].
    pub fn start(paths: &NodePaths, policy: Policy, beside: Beside) -> Result<Arc<Engine>, StartError> {
        let (engine, lost) = Engine::open(paths, policy, beside)?;
        // Only now: until the store says what is to be removed nobody may work on an attachment.
        Engine::run(&engine, lost).map_err(failed("a thread of the engine"))?;
        let left = engine.core.start.wait(Instant::now() + WAITS);
        if !left.is_empty() {
            tracing::warn!(?left, "a part of the start takes long; it goes on in the background");
        }
        Ok(engine)
    }

    /// The same without threads: what is due is left to the caller. With a damaged store, what that has lost comes along.
    pub(super) fn open(
        paths: &NodePaths,
        policy: Policy,
        beside: Beside,
    ) -> Result<(Arc<Engine>, Option<Vec<Lost>>), StartError> {
        let boot_id = process::boot_id().map_err(failed("the boot id"))?;
        // First: a daemon that may not do this must not touch the store.
        let host_id = beside.kernel.host()?.id().clone();
        let (store, mut opened) = Store::open(&paths.run_dir, &boot_id)?;
        let (records, of_records) = DelegateRecords::open(&paths.state_dir, &boot_id)
            .map_err(failed(paths.state_dir.display().to_string()))?;
        for newer in of_records.newer {
            store.leave_to_newer(newer.id, newer.fields, &newer.file)?;
        }
        log_opened(&opened);
        log_newer(&store);
        let (networks, calls, cluster) =
            (Arc::clone(&beside.networks), beside.calls.clone(), beside.cluster.clone());
        let core = core(paths, policy, beside, (&boot_id, host_id), store, records)?;
        let engine = Arc::new(Engine {
            core,
            networks,
            netns_watch: NetnsWatch::default(),
            calls,
            cluster,
            host_root: paths.host_root.clone(),
            recent: RecentCalls::default(),
            calls_come: CallsCome::default(),
            immediate: ImmediateNetworks::default(),
            multus_pods: Mutex::default(),
            definitions: ReadDefinitions::default(),
        });
        let lost = opened.is_damaged().then(|| std::mem::take(&mut opened.lost));
        let found = engine.core.reconcile(opened, of_records.attachments);
        engine.core.start.begin(StartStep::Addresses);
        engine.core.start.begin(StartStep::Pools);
        tracing::info!(
            alive = found.alive,
            begun = found.begun,
            later = found.later,
            failed = found.failed,
            "the store is compared with the kernel"
        );
        Ok((engine, lost))
    }

    fn run(engine: &Arc<Engine>, lost: Option<Vec<Lost>>) -> io::Result<()> {
        for n in 0..REMOVAL_THREADS {
            removal_thread(&Arc::downgrade(engine), &n.to_string(), Rank::Regular)?;
        }
        removal_thread(&Arc::downgrade(engine), "standby", Rank::Standby)?;
        let freeing = Arc::clone(engine);
        thread::Builder::new()
            .name("old-addresses".to_owned())
            .spawn(move || freeing.free_old_addresses(lost.as_deref()))?;
        if engine.cluster.is_some() {
            let reporting = Arc::clone(engine);
            thread::Builder::new()
                .name("network-status".to_owned())
                .spawn(move || reporting.report_again(Instant::now() + PODS_SEEN))?;
        }
        let (ports, alive) = (Arc::clone(&engine.core.kinds.vhost_user), Arc::downgrade(engine));
        thread::Builder::new()
            .name("vhost-user-ports".to_owned())
            .spawn(move || ports.keep_up(&|| alive.strong_count() > 0))?;
        let (ports, alive) = (Arc::clone(&engine.core.kinds.vhost_user), Arc::downgrade(engine));
        thread::Builder::new()
            .name("ovs-ports".to_owned())
            .spawn(move || ports.keep_up_ovs(&|| alive.strong_count() > 0))?;
        let watched = Arc::downgrade(engine);
        thread::Builder::new().name("netns-watch".to_owned()).spawn(move || watch(&watched))?;
        Engine::watch_pools(engine)
    }

    /// Gives back what earlier boots left in the directories of addresses, any of which can hang; `lost`: what a damaged store has
    /// lost.
    pub(super) fn free_old_addresses(&self, lost: Option<&[Lost]>) {
        self.core.release_earlier_boots();
        // After that: what was only lost from the journal is adopted from its record, and old addresses are free.
        if let Some(lost) = lost {
            self.core.log_lost(lost);
        }
        self.core.start.end(StartStep::Addresses);
    }

    /// Ends the engine's threads. What they had still to do is on record.
    pub fn stop(&self) {
        self.core.removals.stop();
        self.core.kinds.sriov.pools.stop();
    }
}

fn log_opened(opened: &Opened) {
    if let Some(error) = &opened.read_error {
        tracing::error!(%error, kept = ?opened.set_aside, "the store can't be read and was set aside; it begins anew from records and kernel");
    } else if opened.is_damaged() {
        tracing::error!(bytes = opened.damaged, kept = ?opened.set_aside, "the store was damaged; what could be read is kept");
    }
}

fn log_newer(store: &Store) {
    for newer in store.newer() {
        let [container, network, ifname, _] = newer.words();
        tracing::warn!(container, network, ifname, file = ?newer.file,
            "the record of an attachment was {}; it is left as it is until that version is back", newer.version);
    }
}

/// Where OVS is, as the configuration says it.
fn ovs_of(settings: &Settings) -> OvsAccess {
    let configured = settings.vhost_user.ovs.clone();
    OvsAccess {
        is_configured: configured.is_some(),
        tls: configured.as_ref().and_then(OvsSettings::tls_files),
        database: configured.unwrap_or_default().database,
        node: name_of_node(settings),
    }
}

/// Stands the core on what was opened.
fn core(
    paths: &NodePaths,
    policy: Policy,
    beside: Beside,
    (boot_id, host_id): (&str, NetnsId),
    store: Store,
    records: DelegateRecords,
) -> Result<Core, StartError> {
    let host_local = HostLocal::new(paths.host_root.clone(), &paths.state_dir, boot_id)
        .map_err(failed("the list of host-local's directories"))?;
    let announcer = match &beside.announce {
        Some(sysctls) => Some(announcer(sysctls, beside.node.clone()).map_err(failed("the announcer"))?),
        None => None,
    };
    let policy = Arc::new(CurrentPolicy::new(policy));
    let set_aside = SetAsidePlaces { run_dir: paths.run_dir.clone(), state_dir: paths.state_dir.clone() };
    let (store, ids) = (Arc::new(store), Arc::new(RandomIds::default()));
    let root = Arc::new(HostRoot::new(paths.host_root.clone()));
    let delegates =
        Delegates::new(paths.host_root.clone(), beside.cgroup.clone(), paths.run_dir.join("tenants-plugins"))
            .watched_in(&paths.run_dir.join("plugins"));
    let kernel = Arc::clone(&beside.kernel);
    let settings = Arc::clone(&beside.settings);
    let cluster = beside.cluster.clone();
    let device_info = Arc::new(DeviceInfoFiles::new(Arc::clone(&root), Arc::clone(&store)));
    let sriov = sriov(paths, beside, boot_id, &host_id, &store, &device_info, &ids)?;
    let ports = Arc::new(PortPools::new(&paths.run_dir, &paths.state_dir, Arc::clone(&store), random(&ids)));
    ports.set_label(&settings.vhost_user.selinux_label);
    ports.configure(&settings.vhost_user.pools);
    let places = SocketPlaces { root: Arc::clone(&root), kubelet: paths.kubelet.clone() };
    let (run_dir, ovs) = (&paths.run_dir, ovs_of(&settings));
    let vhost_user = VhostUserServices::new(
        places,
        ports,
        Arc::clone(&store),
        run_dir,
        ovs,
        (Arc::clone(&kernel), Inventory::new(&paths.sysfs)),
        cluster,
    );
    Ok(Core {
        kinds: Kinds {
            kernel,
            sysfs: paths.sysfs.clone(),
            ids,
            policy: Arc::clone(&policy),
            announcer,
            device_info,
            sriov,
            vhost_user: Arc::new(vhost_user),
            leftovers: SriovCniImport::new(root),
            kernel_kinds: Mutex::default(),
        },
        host_id,
        store,
        records,
        containers: KeyedLocks::default(),
        of_multus: RwLock::default(),
        removals: RemovalQueue::default(),
        executed_removals: ExecutedRemovals::default(),
        collections: RunningCollections::default(),
        collected: CollectedByGc::default(),
        set_aside,
        start: StartSteps::default(),
        ipam: Ipam {
            host_local: Arc::new(host_local),
            delegates,
            confs: ConfCache::default(),
            policy: Arc::clone(&policy),
        },
        policy,
        remove_conflist: cluster_network::remove,
    })
}

fn sriov(
    paths: &NodePaths,
    beside: Beside,
    boot_id: &str,
    host_id: &NetnsId,
    store: &Arc<Store>,
    device_info: &Arc<DeviceInfoFiles>,
    ids: &Arc<RandomIds>,
) -> Result<SriovServices, StartError> {
    let admin = Arc::new(Administrator::new(Arc::clone(&beside.kernel), beside.settles));
    let inventory = Inventory::new(&paths.sysfs);
    let context = PoolsContext {
        state_dir: &paths.state_dir,
        run_dir: &paths.run_dir,
        boot_id,
        kernel: Arc::clone(&beside.kernel),
        admin: Arc::clone(&admin),
        inventory: inventory.clone(),
        udev: paths.host_root.join("run/udev"),
        metrics: beside.pool_metrics,
        random: random(ids),
    };
    let pools = pools(context, &beside.settings)?;
    let kubelet = || KubeletDir::new(&paths.host_root, &paths.kubelet);
    Ok(SriovServices {
        kernel: beside.kernel,
        host_id: host_id.clone(),
        sysfs: paths.sysfs.clone(),
        store: Arc::clone(store),
        device_info: Arc::clone(device_info),
        inventory,
        admin,
        pools,
        pod_resources: PodResources::new(kubelet()),
        device_offers: DeviceOffers::new(DevicePlugins::new(&paths.host_root, kubelet())),
        announced: AnnouncedDevices::default(),
        reserved: KeyedLocks::default(),
        calls: beside.calls,
    })
}

/// For MAC addresses that last.
fn random(ids: &Arc<RandomIds>) -> Box<dyn Fn() -> u64 + Send + Sync> {
    let ids = Arc::clone(ids);
    Box::new(move || ids.next())
}

fn pools(context: PoolsContext<'_>, settings: &Settings) -> Result<Arc<Pools>, StartError> {
    let pools = Arc::new(Pools::open(context).map_err(failed("the records of pools"))?);
    pools.count();
    pools.configure(settings);
    Ok(pools)
}

fn announcer(sysctls: &Path, node: metrics::Node) -> io::Result<Announcer> {
    let tell = move |conflict: Conflict| {
        node.conflicts.inc();
        tracing::warn!(attachment = %conflict.label, address = %conflict.address, other = %conflict.other,
            "another host on the wire has this address");
    };
    Announcer::start(sysctls, Box::new(tell))
}

fn removal_thread(engine: &Weak<Engine>, name: &str, rank: Rank) -> io::Result<()> {
    let engine = Weak::clone(engine);
    thread::Builder::new().name(format!("removal-{name}")).spawn(move || work_off(&engine, rank)).map(drop)
}

fn work_off(engine: &Weak<Engine>, rank: Rank) {
    loop {
        let Some(strong) = engine.upgrade() else { return };
        let Some(task) = strong.core.removals.next(rank) else { return };
        if let Some(removal) = strong.core.executes(task) {
            execute_apart(engine, &strong, removal);
            continue;
        }
        let is_replaced = rank == Rank::Standby && stand_in(engine, &strong.core.removals);
        attend(&strong.core, task);
        if is_replaced {
            return strong.core.removals.stood_in();
        }
    }
}

/// Attends to a task. A panic in that is logged, and ends neither the thread nor the task, which comes again.
fn attend(core: &Core, task: Task) {
    let attended = catching_panics(Command::Del, || {
        core.attend(task);
        Ok(())
    });
    let Err(error) = attended else { return };
    tracing::error!(?task, %error, "a removal has met a fault in fairleadd; it is tried again");
    match task {
        Task::Attachment(id) => {
            core.removals.again(id, &error);
            // It was tried once: the start waits for no more than that.
            core.start.end(StartStep::Removal(id));
        }
        Task::Leftover(address) => core.removals.expect(address, Instant::now() + SWEEP),
    }
}

/// Has a thread of its own work on a removal that executes programs, and on those that wait for one.
fn execute_apart(engine: &Weak<Engine>, strong: &Engine, removal: ExecutedRemoval) {
    if !strong.core.executed_removals.begins(&removal) {
        return;
    }
    let (weak, first) = (Weak::clone(engine), removal.clone());
    let made = thread::Builder::new().name("removal-exec".to_owned()).spawn(move || {
        let mut next = Some(first);
        while let Some(removal) = next {
            let Some(strong) = weak.upgrade() else { return };
            attend(&strong.core, Task::Attachment(removal.id));
            next = strong.core.executed_removals.next(&removal);
        }
    });
    if let Err(error) = made {
        tracing::error!(%error, "there is no thread for a removal that executes programs; it is tried again");
        // What waits for a thread in this one's stead has its own time in the queue again.
        let mut ended = Some(removal);
        while let Some(removal) = ended {
            strong.core.removals.expect(removal.id, Instant::now() + SWEEP);
            ended = strong.core.executed_removals.next(&removal);
        }
    }
}

/// Has another thread stand by while this one works: tasks that hang may hold any number of threads, and never all.
fn stand_in(engine: &Weak<Engine>, removals: &RemovalQueue) -> bool {
    if !removals.stands_in() {
        return false;
    }
    removal_thread(engine, "standby", Rank::Standby)
        .inspect_err(|error| {
            removals.stood_in();
            tracing::error!(%error, "no thread stands by for removals that hang");
        })
        .is_ok()
}

/// Listens to the deaths of namespaces, and looks through everything now and then.
fn watch(engine: &Weak<Engine>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return blind(engine, &e),
    };
    // What is called in here blocks. The runtime serves this thread alone, so it delays nobody.
    runtime.block_on(async {
        let mut events = loop {
            match NetnsEvents::open_deaths() {
                Ok(events) => break events,
                Err(e) => blind(engine, &e),
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
        };
        let mut sweep = tokio::time::interval(SWEEP);
        let mut rest = RestWatch::default();
        loop {
            let event = tokio::select! {
                event = events.next() => Some(event),
                _ = sweep.tick() => None,
            };
            let Some(engine) = engine.upgrade() else { return };
            engine.netns_watch.turns();
            match event {
                Some(Event::NsidGone(nsid)) => engine.core.namespace_died(nsid),
                // The kernel has dropped events, and a death may have been among them.
                Some(Event::Overflow) => engine.core.sweep(),
                None => {
                    engine.core.sweep();
                    rest.look(engine.calls_come.so_far());
                }
                Some(_) => {}
            }
        }
    });
}

fn blind(engine: &Weak<Engine>, error: &io::Error) {
    tracing::error!(%error, "deaths of namespaces cannot be watched");
    if let Some(engine) = engine.upgrade() {
        engine.netns_watch.is_blind(error);
    }
}

#[cfg(test)]
mod tests;
