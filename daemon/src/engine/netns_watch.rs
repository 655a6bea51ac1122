//! The thread that looks out for dead namespaces, and how it stands with it.
//!
//! What the kernel does not tell of, a sweep finds.

use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use fairlead_host::watch::{Event, NetnsEvents};
use parking_lot::Mutex;

use super::Engine;
use super::core::SWEEP;
use super::idle_memory::RestWatch;

/// The look-out turns at least once in a sweep, and a sweep that removes much may take its time.
const LONGEST_TURN: Duration = SWEEP.saturating_mul(4);

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

    /// Whether it looks, or why it does not.
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

/// Begins the thread.
pub(super) fn start(engine: &Arc<Engine>) -> io::Result<()> {
    let engine = Arc::downgrade(engine);
    thread::Builder::new().name("netns-watch".to_owned()).spawn(move || watch(&engine)).map(drop)
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
