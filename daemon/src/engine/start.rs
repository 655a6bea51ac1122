//! The engine's start: what it stands on is opened, what an earlier daemon left is put in order, its threads begin.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, RwLock, Weak};
use std::thread;
use std::time::Duration;

use fairlead_host::announce::{Announcer, Conflict};
use fairlead_host::watch::{Event, NetnsEvents};
use fairlead_host::{Kernel, NetError, process};
use fairlead_kubelet::{DevicePlugins, KubeletDir, PodResources};
use fairlead_sriov::{Administrator, Inventory};

use super::chance::Chance;
use super::claims::Claims;
use super::conf_cache::ConfCache;
use super::reaper::Reaper;
use super::records::Records;
use super::status::Kinds;
use super::validated::Validated;
use super::wellbeing::LookOut;
use super::{Engine, Places, Policy, SWEEP};
use crate::delegate::Delegates;
use crate::device_offers::DeviceOffers;
use crate::metrics;
use crate::netconf::Networks;
use crate::pools::{Ground, Look, PoolMetrics, Pools};
use crate::settings::Settings;
use crate::sriov_cni::Predecessor;
use crate::store::{Store, StoreError};
use fairlead_host::host_root::HostRoot;
use fairlead_ipam::HostLocal;

/// Threads that work off what is left after answers.
const REAPERS: usize = 4;

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
    /// A cgroup for executed plugins.
    pub cgroup: Option<PathBuf>,
    /// Tell the neighbours after ADD.
    pub announce: bool,
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
    /// Opens everything, reconciles the store with the kernel, and begins to look after it. When this returns nothing
    /// half-done is left that could be undone without waiting for another program.
    pub fn start(places: &Places, policy: Policy, beside: Beside) -> Result<Arc<Engine>, StartError> {
        let engine = Engine::open(places, policy, beside)?;
        Engine::run(&engine).map_err(failed("a thread of the engine"))?;
        Ok(engine)
    }

    /// The same without threads: what is due is left to the caller.
    pub(super) fn open(places: &Places, policy: Policy, beside: Beside) -> Result<Arc<Engine>, StartError> {
        let boot_id = process::boot_id().map_err(failed("the boot id"))?;
        let host_id = beside.kernel.host()?.id().clone();
        let (store, mut opened) = Store::open(&places.run_dir, &boot_id)?;
        let (records, of_records) = Records::open(&places.state_dir, &boot_id)
            .map_err(failed(places.state_dir.display().to_string()))?;
        let host_local = HostLocal::new(places.host_root.clone(), &places.state_dir, &boot_id)
            .map_err(failed("the list of host-local's directories"))?;
        if let Some(error) = &opened.unread {
            tracing::error!(%error, kept = ?opened.set_aside, "the store can't be read and was set aside; it begins anew from records and kernel");
        } else if opened.is_damaged() {
            tracing::error!(bytes = opened.damaged, kept = ?opened.set_aside, "the store was damaged; what could be read is kept");
        }
        let announcer = match beside.announce {
            true => Some(announcer(beside.node.clone()).map_err(failed("the announcer"))?),
            false => None,
        };
        let admin = Arc::new(Administrator::new(Arc::clone(&beside.kernel), beside.settles));
        let inventory = Inventory::new(&places.sysfs);
        let chance = Arc::new(Chance::default());
        let ground = Ground {
            state_dir: &places.state_dir,
            run_dir: &places.run_dir,
            boot_id: &boot_id,
            kernel: Arc::clone(&beside.kernel),
            admin: Arc::clone(&admin),
            inventory: inventory.clone(),
            metrics: beside.pool_metrics,
            random: random(&chance),
        };
        let pools = pools(ground, &beside.settings)?;
        let engine = Arc::new(Engine {
            admin,
            pools,
            device_offers: DeviceOffers::new(DevicePlugins::new(
                &places.host_root,
                KubeletDir::new(&places.host_root, &places.kubelet),
            )),
            kernel: beside.kernel,
            host_id,
            delegates: Delegates::new(places.host_root.clone(), beside.cgroup)
                .watched_in(&places.run_dir.join("plugins")),
            policy: RwLock::new(Arc::new(policy)),
            store,
            records,
            claims: Claims::default(),
            reserved: Claims::default(),
            inventory,
            sysfs: places.sysfs.clone(),
            pod_resources: PodResources::new(KubeletDir::new(&places.host_root, &places.kubelet)),
            reaper: Reaper::default(),
            host_local,
            root: HostRoot::new(places.host_root.clone()),
            predecessor: Predecessor::default(),
            kinds: Kinds::default(),
            look_out: LookOut::default(),
            networks: beside.networks,
            announcer,
            confs: ConfCache::default(),
            validated: Validated::default(),
            chance,
            calls: beside.calls,
        });
        let (damaged, lost) = (opened.is_damaged(), std::mem::take(&mut opened.lost));
        let found = engine.reconcile(opened, of_records);
        if damaged {
            engine.tell_lost(&lost);
        }
        tracing::info!(
            alive = found.alive,
            undone = found.undone,
            finished = found.finished,
            collected = found.collected,
            later = found.later,
            failed = found.failed,
            "the store agrees with the kernel"
        );
        engine.tell_inherited();
        // Before the first ADD: it must not be given what is not clean.
        engine.look_at_pools(Look::First);
        Ok(engine)
    }

    fn run(engine: &Arc<Engine>) -> io::Result<()> {
        for n in 0..REAPERS {
            let engine = Arc::downgrade(engine);
            thread::Builder::new().name(format!("reaper-{n}")).spawn(move || reap(&engine))?;
        }
        let watched = Arc::downgrade(engine);
        thread::Builder::new().name("netns-watch".to_owned()).spawn(move || watch(&watched))?;
        engine.offer_to_kubelet();
        Engine::begin_pools(engine)
    }

    /// Ends the engine's threads. What they had still to do is on record.
    pub fn stop(&self) {
        self.reaper.stop();
        self.pools.stop();
    }

    /// How many answered removals are not finished yet.
    pub fn unfinished(&self) -> usize {
        self.reaper.waiting()
    }
}

/// For MAC addresses that last.
fn random(chance: &Arc<Chance>) -> Box<dyn Fn() -> u64 + Send + Sync> {
    let chance = Arc::clone(chance);
    Box::new(move || chance.next())
}

fn pools(ground: Ground<'_>, settings: &Settings) -> Result<Arc<Pools>, StartError> {
    let pools = Arc::new(Pools::open(ground).map_err(failed("the records of pools"))?);
    pools.count();
    pools.configure(settings);
    Ok(pools)
}

fn announcer(node: metrics::Node) -> io::Result<Announcer> {
    Announcer::start(Box::new(move |conflict: Conflict| {
        node.conflicts.inc();
        tracing::warn!(attachment = %conflict.label, address = %conflict.address, other = %conflict.other,
            "another host on the wire has this address");
    }))
}

fn reap(engine: &Weak<Engine>) {
    loop {
        let Some(strong) = engine.upgrade() else { return };
        let Some(errand) = strong.reaper.next() else { return };
        strong.attend(errand);
    }
}

/// Listens to the deaths of namespaces, and looks through everything now and then.
fn watch(engine: &Weak<Engine>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return blind(engine, &e),
    };
    runtime.block_on(async {
        let mut events = loop {
            match NetnsEvents::open_deaths() {
                Ok(events) => break events,
                Err(e) => blind(engine, &e),
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
        };
        let mut sweep = tokio::time::interval(SWEEP);
        loop {
            let event = tokio::select! {
                event = events.next() => Some(event),
                _ = sweep.tick() => None,
            };
            let Some(engine) = engine.upgrade() else { return };
            engine.look_out.turns();
            match event {
                Some(Event::NsidGone(nsid)) => engine.namespace_died(nsid),
                Some(Event::Overflow) => engine.sweep(),
                None => {
                    engine.sweep();
                    process::give_memory_back();
                }
                Some(_) => {}
            }
        }
    });
}

fn blind(engine: &Weak<Engine>, error: &io::Error) {
    tracing::error!(%error, "deaths of namespaces cannot be watched");
    if let Some(engine) = engine.upgrade() {
        engine.look_out.is_blind(error);
    }
}
