//! What the engine tells of itself when its health is asked for (K19): its kernel, its store, its look-out for dead
//! namespaces, drivers that hang. Heals nothing; the store makes the room that an ADD would make.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_ipam::NetworkDir;
use parking_lot::Mutex;

use super::Engine;
use super::core::SWEEP;
use crate::health::{Health, Readiness};

/// The look-out turns at least once in a sweep, and a sweep that removes much may take its time.
const LONGEST_TURN: Duration = SWEEP.saturating_mul(4);

/// File work of one call in one directory that takes longer hangs: it usually takes less than a millisecond.
const FILE_WORK: Duration = Duration::from_secs(10);

/// How it stands with the thread that looks out for dead namespaces.
#[derive(Debug)]
pub(super) struct NetnsWatch(Mutex<Result<Instant, String>>);

impl Default for NetnsWatch {
    fn default() -> NetnsWatch {
        NetnsWatch(Mutex::new(Ok(Instant::now())))
    }
}

impl NetnsWatch {
    /// It goes round.
    pub(super) fn turns(&self) {
        *self.0.lock() = Ok(Instant::now());
    }

    /// It can't see.
    pub(super) fn is_blind(&self, why: impl std::fmt::Display) {
        *self.0.lock() = Err(why.to_string());
    }

    pub(super) fn seen(&self, now: Instant) -> Result<String, String> {
        match &*self.0.lock() {
            Err(why) => Err(format!("deaths of namespaces can't be watched: {why}")),
            Ok(last) if now.saturating_duration_since(*last) > LONGEST_TURN => Err(format!(
                "the look-out for dead namespaces hangs since {} s; restart fairleadd",
                now.saturating_duration_since(*last).as_secs()
            )),
            Ok(_) => Ok(String::new()),
        }
    }
}

impl Engine {
    /// Adds the engine's own probes.
    pub(super) fn probe_health(engine: &Arc<Engine>, health: &Health, readiness: &Readiness) {
        let about = |look: fn(&Engine) -> Result<String, String>| {
            let engine = Arc::clone(engine);
            Box::new(move || look(&engine))
        };
        health.probe("netlink", about(Engine::kernel_answers));
        health.probe("store", about(Engine::store_takes_records));
        health.probe("namespaces", about(|engine| engine.netns_watch.seen(Instant::now())));
        health.probe("files", about(Engine::file_work_ends));
        health.probe("drivers", about(Engine::drivers_end));
        // Told, and no illness: a restart of the daemon heals no VF.
        health.probe("pools", about(|engine| Ok(engine.core.kinds.sriov.pools.trouble())));
        readiness.probe("store", about(Engine::store_takes_records));
    }

    fn kernel_answers(&self) -> Result<String, String> {
        // Index 1 is `lo`, which every namespace has.
        let asked = self.core.kernel().host().and_then(|mut host| host.link_by_index(1));
        asked.map(|_| String::new()).map_err(|e| format!("the kernel does not answer: {e}"))
    }

    /// A restart ends such calls where the file system lets a killed process go, and the next start waits for no directory.
    fn file_work_ends(&self) -> Result<String, String> {
        let hanging = self.core.ipam.host_local.hanging(FILE_WORK);
        if hanging.is_empty() {
            return Ok(String::new());
        }
        let one = |(dir, since): &(NetworkDir, Duration)| {
            format!("{}/{} since {} s", dir.data_dir, dir.network, since.as_secs())
        };
        let all: Vec<String> = hanging.iter().map(one).collect();
        Err(format!(
            "calls hang in the files of host-local's directories; look at their file systems: {}",
            all.join("; ")
        ))
    }

    /// Told, and no illness of the daemon: its restart would end nothing, and a thread in a driver keeps it from ending.
    fn drivers_end(&self) -> Result<String, String> {
        let hung = self.core.kernel().stuck_driver_calls();
        if hung.is_empty() {
            return Ok(String::new());
        }
        let all = hung.join("; ");
        Ok(format!("drivers do not end what they were asked to do, which only a reboot may end: {all}"))
    }

    fn store_takes_records(&self) -> Result<String, String> {
        if self.core.store.writable(0) {
            return Ok(String::new());
        }
        Err("the run directory's file system is full or gone: make space there; DEL still works".to_owned())
    }
}
