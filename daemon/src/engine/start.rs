//! The engine's start: what it stands on is opened, what an earlier daemon left is put in order, its threads begin.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fairlead_host::{process, vital_thread};
use parking_lot::Mutex;

use super::assembly::{Assembly, EngineInputs};
use super::core::{DelegateRecords, StartStep};
use super::idle_memory::CallsCome;
use super::netns_watch::{self, NetnsWatch};
use super::pod_networks::ImmediateNetworks;
use super::read_definitions::ReadDefinitions;
use super::recent_calls::RecentCalls;
use super::start_error::{StartError, failed};
use super::{CallSettings, Engine, removal_threads};
use crate::node_paths::NodePaths;
use crate::store::{Lost, Opened, Store};

/// So long the start waits for what an earlier daemon left. The unit's limit for the whole start is 120 s.
const WAITS: Duration = Duration::from_secs(5);

/// So long after a start a pod is waited for that the API has not told of, until it is told what networks it has.
const PODS_SEEN: Duration = Duration::from_secs(120);

impl Engine {
    /// Opens everything, reconciles the store with the kernel, and begins to look after it. When this returns nothing half-done is
    /// left that could be undone without waiting for another program, except what has not ended within [`WAITS`].
    pub fn start(
        paths: &NodePaths,
        call_settings: CallSettings,
        inputs: EngineInputs,
    ) -> Result<Arc<Engine>, StartError> {
        let (engine, lost) = Engine::open(paths, call_settings, inputs)?;
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
        call_settings: CallSettings,
        inputs: EngineInputs,
    ) -> Result<(Arc<Engine>, Option<Vec<Lost>>), StartError> {
        let boot_id = process::boot_id().map_err(failed("the boot id"))?;
        // First: a daemon that may not do this must not touch the store.
        let host_id = inputs.kernel.host()?.id().clone();
        let (store, mut opened) = Store::open(&paths.run_dir, &boot_id)?;
        let (records, of_records) = DelegateRecords::open(&paths.state_dir, &boot_id)
            .map_err(failed(paths.state_dir.display().to_string()))?;
        for newer in of_records.newer {
            store.leave_to_newer(newer.id, newer.fields, &newer.file)?;
        }
        log_opened(&opened);
        log_newer(&store);
        let core = Assembly::new(paths, &inputs, (&boot_id, host_id), store, call_settings).core(records)?;
        let EngineInputs { networks, calls, cluster, .. } = inputs;
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
        removal_threads::start(engine)?;
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
        vital_thread::begin("vhost-user-ports", move || ports.keep_up(&|| alive.strong_count() > 0))?;
        let (ports, alive) = (Arc::clone(&engine.core.kinds.vhost_user), Arc::downgrade(engine));
        vital_thread::begin("ovs-ports", move || ports.keep_up_ovs(&|| alive.strong_count() > 0))?;
        netns_watch::start(engine)?;
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
