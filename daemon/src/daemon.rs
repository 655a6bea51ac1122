//! The daemon's life: take the run directory, listen, start the engine, replay the spool, serve, stop.
//!
//! It listens before the engine is started, so that callers wait in order instead of failing; it is ready only after
//! the replay. At a stop nothing new is begun and what is at work ends.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use fairlead_host::capabilities::OWN_STATUS;
use fairlead_host::file_watch::{Pulse, Watch, WatchError};
use fairlead_host::memory::MemoryFiles;
use fairlead_host::process::raise_open_files;
use fairlead_host::scheduling::{prefer_this_thread, stay_off_isolated};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tracing::{error, info, warn};

use crate::admission::{Admission, Limits};
use crate::call::Service;
use crate::capabilities;
use crate::health::{Health, Readiness};
use crate::lifecycle::{RunDir, RunDirError};
use crate::logging::{self, Level};
use crate::memory_probe;
use crate::metrics::{Calls, Exposition, Node};
use crate::netconf::{Directories, Networks};
use crate::server::{self, Door};
use crate::settings::{Live, Settings};
use crate::spool::{self, Retry, SpoolError};

/// What is at work has so long to end. systemd's own limit (`TimeoutStopSec`) is longer.
const STOP_LIMIT: Duration = Duration::from_secs(25);

/// Where things lie.
#[derive(Debug, Clone)]
pub struct Places {
    /// What dies with the reboot.
    pub run_dir: PathBuf,
    /// What outlives it.
    pub state_dir: PathBuf,
    /// The host's root as this process sees it.
    pub host_root: PathBuf,
    /// The configuration file.
    pub config: PathBuf,
    /// `CNI_CONF_DIR`
    pub conf_dir: Option<String>,
    /// `CNI_PLUGIN_DIR`
    pub plugin_dir: Option<String>,
}

/// What the engine is started with.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// Where things lie.
    pub places: Places,
    /// The configuration in force.
    pub settings: Arc<Live>,
    /// The networks of the conf dir.
    pub networks: Arc<Networks>,
    /// For phases of calls.
    pub calls: Calls,
    /// For conflicts.
    pub node: Node,
    /// For metrics of its own.
    pub exposition: Arc<Exposition>,
    /// For reasons why it is not ready yet; the condition `engine` is met when it has been started, and the condition
    /// `store` is its own.
    pub readiness: Arc<Readiness>,
    /// For its probes: `netlink`, `store`, `namespaces`.
    pub health: Arc<Health>,
}

/// An engine, and what a changed configuration is told to.
pub struct Started {
    /// The engine.
    pub service: Arc<dyn Service>,
    /// Called with every changed configuration.
    pub changed: Box<dyn Fn(&Settings) + Send + Sync>,
}

/// Why the daemon ended other than by order.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The run directory.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The spool.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// Watching files.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// No thread, or no runtime on it.
    #[error("the server can't run: {0}")]
    Thread(#[from] std::io::Error),
    /// The engine did not start.
    #[error("the engine did not start: {0}")]
    Engine(Box<dyn std::error::Error + Send + Sync>),
    /// The server's thread ended by itself.
    #[error("the server ended by a fault; its last log lines say where")]
    ServerEnded,
}

#[derive(Debug)]
enum Event {
    Stop(&'static str),
    Reload,
}

/// Runs until SIGTERM or SIGINT. `start` starts the engine: reconciles the store with the kernel.
///
/// # Errors
/// When something that it can't do without is not to be had.
pub fn run(
    places: Places,
    built_in: &'static [&'static str],
    start: impl FnOnce(&Surroundings) -> Result<Started, Box<dyn std::error::Error + Send + Sync>>,
) -> Result<(), DaemonError> {
    let run_dir = RunDir::take(&places.run_dir)?;
    let exposition = Arc::new(Exposition::default());
    let (calls, node) = (Calls::new(&exposition), Node::new(&exposition));
    // The level and the form of the log stand in the file whose refusal is logged: so it is read twice.
    let first = Settings::load(&places.config).unwrap_or_default();
    let level = logging::begin(first.log_level, first.log_format);
    stay_off_isolated(Path::new("/sys"));
    if let Err(error) = raise_open_files() {
        warn!(%error, "the limit of open files stays as it is; many calls at once may be refused (code 11)");
    }
    let settings = Arc::new(Live::new(&places.config, node.clone()));
    settings.log();
    let directories =
        Directories::new(&places.host_root, places.conf_dir.as_deref(), places.plugin_dir.as_deref());
    let networks = Arc::new(Networks::new(directories, built_in, node.clone()));
    let surroundings = Surroundings {
        readiness: Arc::new(readiness(networks.clone())),
        health: Arc::default(),
        networks,
        places,
        settings,
        calls,
        node,
        exposition,
    };
    serve(&run_dir, &surroundings, &level, start)
}

/// What the node's readiness is made of (K19). The engine tells of its store, once it has opened it.
fn readiness(networks: Arc<Networks>) -> Readiness {
    let readiness = Readiness::new(&["capabilities", "networks", "store", "engine", "replay"]);
    readiness.probe("capabilities", capabilities::probe(Path::new(OWN_STATUS)));
    readiness.probe("networks", Box::new(move || networks.loaded()));
    readiness
}

/// What the daemon's own health is made of, beside what the engine tells.
fn health(surroundings: &Surroundings, watches: &[Watch]) {
    let pulses: Vec<Pulse> = watches.iter().map(Watch::pulse).collect();
    let alive = move || {
        let wrong: Vec<String> = pulses.iter().filter_map(|pulse| pulse.ask().err()).collect();
        if wrong.is_empty() { Ok(String::new()) } else { Err(wrong.join("; ")) }
    };
    surroundings.health.probe("watchers", Box::new(alive));
    surroundings.health.probe("memory", memory_probe::probe(MemoryFiles::default()));
}

fn serve(
    run_dir: &RunDir,
    surroundings: &Surroundings,
    level: &Level,
    start: impl FnOnce(&Surroundings) -> Result<Started, Box<dyn std::error::Error + Send + Sync>>,
) -> Result<(), DaemonError> {
    let (events, told) = channel();
    let watches = watches(surroundings, &events)?;
    health(surroundings, &watches);
    // What changed between the first look and the watch.
    let _ = events.send(Event::Reload);
    let door = door(surroundings);
    let locked = spool::lock(&surroundings.places.state_dir, surroundings.node.clone())?;
    let entries = locked.entries()?;
    let listener = run_dir.listen()?;
    // From here on executables reach the daemon, and none can have spooled meanwhile.
    drop(locked);
    let closing = Arc::new(Notify::new());
    let server = server_thread(listener, door.clone(), closing.clone(), events)?;

    let begun = Instant::now();
    let started = start(surroundings).map_err(DaemonError::Engine)?;
    surroundings.readiness.met("engine");
    let spooled = entries.len();
    let pending = spool::first_pass(entries, &*started.service, &door.admission, &surroundings.node);
    let (left, took_ms) = (pending.len(), begun.elapsed().as_millis());
    let _ = door.service.set(started.service.clone());
    door.admission.open(started.service.clone())?;
    let _retry = Retry::begin(pending, door.admission.clone(), surroundings.node.clone())?;
    surroundings.readiness.met("replay");
    info!(socket = %run_dir.socket().display(), spooled, left, took_ms, version = env!("CARGO_PKG_VERSION"), "ready");
    notify(&[NotifyState::Ready]);

    let [_, config] = &watches;
    let reload = || reload(surroundings, &started, level, config);
    let ended = follow(&told, &reload, &server);
    stop(run_dir, &door.admission, &closing);
    let _ = server.join();
    ended
}

fn door(surroundings: &Surroundings) -> Door {
    let settings = surroundings.settings.current();
    let limits = Limits {
        fast: settings.call_threads.get(),
        slow: settings.slow_threads.get(),
        queued: settings.max_calls.get(),
    };
    let admission = Admission::new(limits, surroundings.calls.clone(), surroundings.health.clone());
    let mut door = Door::new(
        admission,
        surroundings.readiness.clone(),
        surroundings.health.clone(),
        surroundings.exposition.clone(),
    );
    let Surroundings { settings, networks, places, node, .. } = surroundings.clone();
    door.about = Arc::new(move || {
        let refused: Vec<String> = networks.refused().iter().map(ToString::to_string).collect();
        serde_json::json!({
            "runDir": places.run_dir, "stateDir": places.state_dir, "hostRoot": places.host_root,
            "config": places.config, "confDir": places.conf_dir, "pluginDir": places.plugin_dir, "settings": *settings.current(), "settingsRefused": settings.refused(),
            "networksRefused": refused, "spoolEntries": node.spool_entries.get(),
        })
    });
    door
}

fn server_thread(
    listener: UnixListener,
    door: Door,
    closing: Arc<Notify>,
    events: Sender<Event>,
) -> Result<std::thread::JoinHandle<()>, DaemonError> {
    let runtime = server::runtime()?;
    let work = move || {
        prefer_this_thread();
        runtime.block_on(async move {
            tokio::spawn(watchdog());
            match signals() {
                Ok(signals) => drop(tokio::spawn(tell(signals, events))),
                Err(error) => error!(%error, "signals are not heard; SIGKILL alone will end this daemon"),
            }
            if let Err(error) = server::serve(listener, door, closing).await {
                error!(%error, "the socket can't be served");
            }
        });
    };
    Ok(std::thread::Builder::new().name("server".into()).spawn(work)?)
}

type Signals = [(tokio::signal::unix::Signal, fn() -> Event); 3];

fn signals() -> std::io::Result<Signals> {
    Ok([
        (signal(SignalKind::terminate())?, || Event::Stop("SIGTERM")),
        (signal(SignalKind::interrupt())?, || Event::Stop("SIGINT")),
        (signal(SignalKind::hangup())?, || Event::Reload),
    ])
}

async fn tell([mut term, mut int, mut hup]: Signals, events: Sender<Event>) {
    loop {
        let event = tokio::select! {
            _ = term.0.recv() => term.1(),
            _ = int.0.recv() => int.1(),
            _ = hup.0.recv() => hup.1(),
        };
        if events.send(event).is_err() {
            return;
        }
    }
}

/// Tells systemd's watchdog that the server's thread still turns.
async fn watchdog() {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    loop {
        notify(&[NotifyState::Watchdog]);
        tokio::time::sleep(limit / 3).await;
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "the service manager could not be told");
    }
}

fn watches(surroundings: &Surroundings, events: &Sender<Event>) -> Result<[Watch; 2], WatchError> {
    let networks = surroundings.networks.clone();
    let events = events.clone();
    Ok([
        Watch::new("watch-networks", networks.directories(), move || networks.rescan())?,
        Watch::new("watch-config", surroundings.settings.directories(), move || {
            let _ = events.send(Event::Reload);
        })?,
    ])
}

/// Serves until told to stop.
fn follow(
    told: &Receiver<Event>,
    reload: &dyn Fn(),
    server: &std::thread::JoinHandle<()>,
) -> Result<(), DaemonError> {
    const LOOK: Duration = Duration::from_secs(60);
    loop {
        match told.recv_timeout(LOOK) {
            Ok(Event::Stop(signal)) => {
                info!(signal, "stopping");
                return Ok(());
            }
            Ok(Event::Reload) => reload(),
            Err(_) if server.is_finished() => return Err(DaemonError::ServerEnded),
            Err(_) => {}
        }
    }
}

/// Takes what has changed in files.
fn reload(surroundings: &Surroundings, started: &Started, level: &Level, config: &Watch) {
    surroundings.networks.rescan();
    if surroundings.settings.reload() {
        let settings = surroundings.settings.current();
        level.set(settings.log_level);
        config.follow(surroundings.settings.directories());
        (started.changed)(&settings);
        surroundings.settings.log();
    }
}

fn stop(run_dir: &RunDir, admission: &Admission, closing: &Notify) {
    // First of all: who is refused from now on must be able to see that the daemon comes back.
    if let Err(error) = run_dir.announce_stop() {
        warn!(%error, "the stop could not be announced; STATUS will be refused until the next start");
    }
    notify(&[NotifyState::Stopping]);
    admission.stop();
    if !admission.drained(STOP_LIMIT) {
        warn!(
            limit_s = STOP_LIMIT.as_secs(),
            "calls are still at work; the next start undoes what they leave half done"
        );
    }
    run_dir.close();
    closing.notify_one();
    info!("stopped");
}
