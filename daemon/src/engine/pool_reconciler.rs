//! The threads that keep the pools in agreement with the machine: one that compares them, one that hears of devices for it, one that
//! hears of sriov-cni's files.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Instant;

use fairlead_host::file_watch::{Watch, WatchError};
use fairlead_host::vital_thread;
use fairlead_sriov::hotplug::Hotplug;
use fairlead_sriov::pools::{Look, SLOW};

use super::Engine;
use super::core::StartStep;

impl Engine {
    /// Begins the threads.
    pub(super) fn watch_pools(engine: &Arc<Engine>) -> io::Result<()> {
        let leftovers = Engine::watch_leftovers(engine).inspect_err(|error| {
            tracing::error!(%error, "what sriov-cni brings home by itself is seen within a minute only");
        });
        let engine = Arc::downgrade(engine);
        let told = Weak::clone(&engine);
        let hotplug = Hotplug::watch(move |news| {
            if let Some(engine) = told.upgrade() {
                engine.core.kinds.sriov.pools.device_events(news);
            }
        })?;
        vital_thread::begin("pool-reconciler", move || {
            reconcile(&engine);
            // Moved into the thread, both watches live for as long as it does.
            drop((hotplug, leftovers));
        })
    }

    /// Has the pools looked at as soon as a file of sriov-cni comes or goes: when its own DEL has restored a VF, nothing else reports
    /// it. Ends when dropped; without it the pools see that with their next look.
    pub(super) fn watch_leftovers(engine: &Arc<Engine>) -> Result<Watch, WatchError> {
        let told = Arc::downgrade(engine);
        Watch::new("watch-sriov-cni", engine.core.kinds.leftovers.directories(), move || {
            if let Some(engine) = told.upgrade() {
                engine.core.kinds.sriov.pools.look_soon(Look::Quick);
            }
        })
    }

    /// The first look: until it has ended no ADD gets a VF, since nobody knows which are clean.
    pub(super) fn first_look(&self) {
        self.core.kinds.leftovers.log();
        self.look_at_pools(Look::First);
        self.core.start.end(StartStep::Pools);
    }

    /// A look that is due. After a thorough one kubelet is offered what it could not be offered before, as in a shortage of
    /// descriptors or threads; what it is offered already stays as it is.
    pub(super) fn look_when_due(&self, how: Look) {
        self.look_at_pools(how);
        if how == Look::Thorough {
            self.core.kinds.sriov.look_for_doubles();
            self.offer_to_kubelet();
        }
    }

    /// Compares the pools with the machine, without waiting for what has to be done then.
    pub(super) fn look_at_pools(&self, how: Look) {
        self.with_owners(|owners| self.core.kinds.sriov.pools.look(how, owners));
    }
}

fn reconcile(engine: &Weak<Engine>) {
    if let Some(engine) = engine.upgrade() {
        engine.first_look();
        engine.offer_to_kubelet();
    }
    let mut thorough = Instant::now() + SLOW;
    loop {
        let Some(strong) = engine.upgrade() else { return };
        let Some(how) = strong.core.kinds.sriov.pools.next_look(thorough) else { return };
        strong.look_when_due(how);
        if how == Look::Thorough {
            thorough = Instant::now() + SLOW;
        }
    }
}
