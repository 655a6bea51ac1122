//! What the engine tells of itself when its health is asked for (K19): its kernel, its store, its look-out for dead
//! namespaces, drivers that hang. Heals nothing; the store makes the room that an ADD would make.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_ipam::NetworkDir;

use super::Engine;
use crate::health::{Health, Readiness};

/// File work of one call in one directory that takes longer hangs: it usually takes less than a millisecond.
const FILE_WORK: Duration = Duration::from_secs(10);

impl Engine {
    /// Adds the engine's own probes: of life are those of what a new engine has anew.
    pub(super) fn probe_health(engine: &Arc<Engine>, health: &Health, readiness: &Readiness) {
        let about = |look: fn(&Engine) -> Result<String, String>| {
            let engine = Arc::clone(engine);
            Box::new(move || look(&engine))
        };
        health.probe_of_life("netlink", about(Engine::kernel_answers));
        health.probe("store", about(Engine::store_takes_records));
        health.probe_of_life("namespaces", about(|engine| engine.netns_watch.seen(Instant::now())));
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

    /// No matter of life: a file system that hangs goes on hanging, and may keep a killed process, too. The next start waits for no
    /// directory.
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

    /// No matter of life: a restart makes no room, and the DELs that do need the daemon.
    fn store_takes_records(&self) -> Result<String, String> {
        if self.core.store.writable(0) {
            return Ok(String::new());
        }
        Err("the run directory's file system is full or gone: make space there; DEL still works".to_owned())
    }
}
