//! The life of the daemon: take the run directory, listen, start the engine, replay the spool, serve, stop.
//!
//! It listens before the engine is started, so that callers wait in order instead of failing. It is ready only
//! after the replay, or when that takes long. When it stops, nothing new is begun, and what is at work ends.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use fairlead_host::capabilities::OWN_STATUS;
use fairlead_host::file_watch::{Pulse, Watch, WatchError};
use fairlead_host::memory::MemoryFiles;
use fairlead_host::process::{give_memory_back, raise_open_files};
use fairlead_host::scheduling::{prefer_this_thread, stay_off_isolated};
use fairlead_host::vital_thread;
use parking_lot::Mutex;
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tracing::{error, info, warn};

use crate::admission::{Admission, Limits};
use crate::call::Service;
use crate::capabilities;
use crate::cluster_watch::api_of;
use crate::conf_dir::{Directories, Networks};
use crate::default_network::DefaultNetwork;
use crate::health::{self, Health, Readiness};
use crate::logging::{self, Level};
use crate::memory_health;
use crate::metrics::{Calls, Exposition, Node};
use crate::metrics_port::{MetricsPort, PortState};
use crate::node_installation::{NodeInstallation, SeenNetwork, mounts_are_hosts, own_program};
use crate::node_paths::NodePaths;
use crate::run_dir::{RunDir, RunDirError, stop_was_announced};
use crate::server::{self, ServerState};
use crate::settings::{LiveSettings, Settings};
use crate::spool::{self, Replay, SpoolError};
use crate::systemd_reports::{notify, report_to_watchdog};

/// The time that calls at work have to end. systemd's own limit (`TimeoutStopSec`) is longer.
const STOP_LIMIT: Duration = Duration::from_secs(25);

/// So long the start waits for the first replay of what was spooled.
const REPLAY_WAITS: Duration = Duration::from_secs(5);

/// Everything that the engine is started with.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The paths of this node, complete.
    pub paths: NodePaths,
    /// The configuration in force.
    pub settings: Arc<LiveSettings>,
    /// The networks of the conf dir.
    pub networks: Arc<Networks>,
    /// The metrics of calls, to which the engine adds the phases of each call.
    pub calls: Calls,
    /// The metrics of the node, to which the engine adds conflicts of addresses.
    pub node: Node,
    /// The registry in which the engine registers metrics of its own.
    pub exposition: Arc<Exposition>,
    /// The readiness of the daemon. The engine sets the condition `store`; the daemon sets `engine` when the
    /// engine has been started.
    pub readiness: Arc<Readiness>,
    /// The health of the daemon, to which the engine adds its probes `netlink`, `store`, `namespaces`.
    pub health: Arc<Health>,
}

/// A started engine, and the closures by which it hears of a changed configuration and of the daemon's end.
pub struct Started {
    /// The engine as the server sees it.
    pub service: Arc<dyn Service>,
    /// Hands a changed configuration to the engine.
    pub changed: Box<dyn Fn(&Settings) + Send + Sync>,
    /// Ends what must not outlive the daemon; called when no call is at work any more.
    pub ending: Box<dyn Fn() + Send + Sync>,
}

/// Why the daemon ended other than by SIGTERM or SIGINT.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The run directory can't be had, or the socket in it.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The spool can't be locked or read.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// A directory of configuration files can't be watched.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// A thread can't be had, or the runtime on it.
    #[error(
        "the server can't run: {0}; raise TasksMax or LimitNOFILE of fairleadd's service, or the pod's limit of processes"
    )]
    Thread(#[from] std::io::Error),
    /// The engine could not be started.
    #[error("the engine did not start: {0}")]
    Engine(Box<dyn std::error::Error + Send + Sync>),
    /// The server's thread ended by itself, which only a fault does.
    #[error("the server ended by a fault; its last log lines say where")]
    ServerEnded,
}

#[derive(Debug)]
enum Event {
    Stop(&'static str),
    Reload,
}

/// Runs until SIGTERM or SIGINT. `start` starts the engine, which reconciles the store with the kernel.
///
/// # Errors
///
/// When the run directory, the spool, a watch, a thread or the engine can't be had.
pub fn run(
    mut paths: NodePaths,
    built_in: &'static [&'static str],
    start: impl FnOnce(&Surroundings) -> Result<Started, Box<dyn std::error::Error + Send + Sync>>,
) -> Result<(), DaemonError> {
    let exposition = Arc::new(Exposition::default());
    let (calls, node) = (Calls::new(&exposition, built_in), Node::new(&exposition));
    // The file says how to log, and its refusal must be logged: so it is read here for the log alone, and once
    // more below.
    let first = Settings::load(&paths.config).unwrap_or_default();
    let level = logging::begin(first.log_level, first.log_format);
    let run_dir = RunDir::take(&paths.run_dir)?;
    // While there is one thread: those that it starts inherit its processors, others would keep theirs.
    stay_off_isolated(&paths.sysfs);
    if let Err(error) = raise_open_files() {
        warn!(%error, "the limit of open files stays as it is; many calls at once may be refused (code 11)");
    }
    let settings = Arc::new(LiveSettings::new(&paths.config, node.clone()));
    settings.log();
    paths.kubelet = settings.current().kubelet.dir.clone();
    let directories =
        Directories::new(&paths.host_root, paths.conf_dir.as_deref(), paths.plugin_dir.as_deref());
    let networks = Arc::new(Networks::new(directories, built_in, node.clone()));
    let surroundings = Surroundings {
        readiness: Arc::new(readiness(networks.clone(), settings.clone())),
        health: Arc::default(),
        networks,
        paths,
        settings,
        calls,
        node,
        exposition,
    };
    health::register_metrics(&surroundings.exposition, &surroundings.readiness, &surroundings.health);
    serve(&run_dir, &surroundings, &level, start)
}

/// The conditions of the node's readiness (K19). The engine adds its store's when it has opened it.
fn readiness(networks: Arc<Networks>, settings: Arc<LiveSettings>) -> Readiness {
    let readiness = Readiness::new(&["capabilities", "networks", "store", "engine", "replay", "settings"]);
    readiness.probe("capabilities", capabilities::probe(Path::new(OWN_STATUS)));
    readiness.probe("networks", Box::new(move || networks.loaded()));
    readiness.probe("settings", Box::new(move || settings.loaded()));
    readiness
}

/// The daemon's own probes; the engine adds others.
fn probe_health(surroundings: &Surroundings, watches: &[Watch], seen: SeenNetwork) {
    let of_each = |look: fn(&Pulse) -> Result<(), String>| {
        let pulses: Vec<Pulse> = watches.iter().map(Watch::pulse).collect();
        Box::new(move || {
            let wrong: Vec<String> = pulses.iter().filter_map(|pulse| look(pulse).err()).collect();
            if wrong.is_empty() { Ok(String::new()) } else { Err(wrong.join("; ")) }
        })
    };
    let Surroundings { paths, health, .. } = surroundings;
    health.probe_of_life("watchers", of_each(Pulse::lives));
    let memory = MemoryFiles { process: paths.proc_self.clone(), cgroups: paths.cgroups.clone() };
    health.probe_of_life("memory", memory_health::probe(memory));
    health.probe_of_life("mounts", Box::new(move || mounts_are_hosts(&seen)));
    health.probe("inotify", of_each(Pulse::is_armed));
}

fn serve(
    run_dir: &RunDir,
    surroundings: &Surroundings,
    level: &Level,
    start: impl FnOnce(&Surroundings) -> Result<Started, Box<dyn std::error::Error + Send + Sync>>,
) -> Result<(), DaemonError> {
    let (sender, events) = channel();
    let (installing, to_install) = channel();
    let watches = watches(surroundings, &sender, &installing)?;
    let seen = SeenNetwork::default();
    probe_health(surroundings, &watches, seen.clone());
    let port = metrics_port(surroundings)?;
    let server = server_state(surroundings, port.state(), seen.clone());
    let locked = spool::lock(&surroundings.paths.state_dir, surroundings.node.clone())?;
    let entries = locked.entries()?;
    let listener = run_dir.listen()?;
    // From here on executables reach the daemon. None can have spooled between the reading and the lock's
    // release.
    drop(locked);
    let closing = Arc::new(Notify::new());
    let server_thread = server_thread(listener, server.clone(), closing.clone(), sender)?;

    let begun = Instant::now();
    let started = start(surroundings).map_err(DaemonError::Engine)?;
    surroundings.readiness.met("engine");
    let spooled = entries.len();
    // Before the queue is opened: a spooled request is older than every call that waits there.
    let (service, node) = (started.service.clone(), surroundings.node.clone());
    let replay = Replay::begin(entries, service, server.admission.clone(), node)?;
    let left = replay.first_pass_left(REPLAY_WAITS);
    if left.is_none() {
        warn!(
            limit_s = REPLAY_WAITS.as_secs(),
            "a spooled request takes long; the replay goes on in the background"
        );
    }
    let [_, config] = &watches;
    let reload = || {
        reload(surroundings, &started, level, config);
        port.configure(surroundings.settings.current().metrics.clone());
        let _ = installing.send(());
    };
    // What changed between the first reading and the watch would be missed otherwise.
    reload();
    // Of the program a start runs through six times as much as a call. Calls that have come meanwhile wait for this, too, and none after it.
    give_memory_back();
    let took_ms = begun.elapsed().as_millis();
    let _ = server.service.set(started.service.clone());
    server.admission.open(started.service.clone())?;
    run_dir.take_announcement_back();
    surroundings.readiness.met("replay");
    info!(socket = %run_dir.socket().display(), spooled, left = left.unwrap_or(spooled), took_ms, version = env!("CARGO_PKG_VERSION"), "ready");
    notify(&[NotifyState::Ready]);

    installation_thread(surroundings, started.service.clone(), seen, to_install)?;
    let ended = wait_for_events(&events, &reload, &surroundings.settings, &server_thread);
    stop(run_dir, &surroundings.readiness, &server.admission, &closing);
    (started.ending)();
    let _ = server_thread.join();
    ended
}

/// Keeps the node as the settings want it, on a thread of its own: its directories may be on a disk that hangs.
fn installation_thread(
    surroundings: &Surroundings,
    service: Arc<dyn Service>,
    seen: SeenNetwork,
    news: Receiver<()>,
) -> std::io::Result<()> {
    let Surroundings { readiness, networks, settings, paths, node, .. } = surroundings.clone();
    let changes = service.clone();
    let change_over = move |change, dir: &str| changes.change_over(change, dir);
    let in_use = move || {
        let attachments = service.table("attachments");
        attachments.is_none_or(|table| table.as_array().is_none_or(|rows| !rows.is_empty()))
    };
    let programs = (own_program(), paths.state_dir.as_path());
    let told = (node, seen);
    let node = NodeInstallation::new(networks, programs, told, Box::new(in_use), Box::new(change_over));
    let keep = move || node.keep(&news, &|| readiness.ready(), &|| settings.current().install.clone());
    vital_thread::begin("installation", keep)
}

fn metrics_port(surroundings: &Surroundings) -> std::io::Result<MetricsPort> {
    let settings = surroundings.settings.current();
    let exposition = surroundings.exposition.clone();
    MetricsPort::start(settings.metrics.clone(), Arc::new(move || exposition.text()), api_of(&settings))
}

fn server_state(
    surroundings: &Surroundings,
    port: Arc<Mutex<PortState>>,
    network: SeenNetwork,
) -> ServerState {
    let settings = surroundings.settings.current();
    let limits = Limits {
        fast: settings.call_threads.get(),
        slow: settings.slow_threads.get(),
        queued: settings.max_calls.get(),
    };
    let admission = Admission::new(limits, surroundings.calls.clone(), surroundings.health.clone());
    let mut server = ServerState::new(
        admission,
        surroundings.readiness.clone(),
        surroundings.health.clone(),
        surroundings.exposition.clone(),
        DefaultNetwork::new(
            surroundings.networks.clone(),
            surroundings.settings.clone(),
            surroundings.paths.plugin_dir.as_deref(),
        ),
    );
    let Surroundings { settings, networks, paths, node, .. } = surroundings.clone();
    let run_dir = paths.run_dir.clone();
    server.stop_was_announced = Arc::new(move || stop_was_announced(&run_dir));
    server.about = Arc::new(move || {
        let refused: Vec<String> = networks.refused().iter().map(ToString::to_string).collect();
        serde_json::json!({
            "runDir": paths.run_dir, "stateDir": paths.state_dir, "hostRoot": paths.host_root,
            "config": paths.config, "confDir": paths.conf_dir, "pluginDir": paths.plugin_dir,
            "settings": *settings.current(), "settingsRefused": settings.refused(),
            "networksRefused": refused, "networkDisplaced": node.network_displaced.get() == 1, "nodeNetwork": *network.lock(),
            "spoolEntries": node.spool_entries.get(), "metricsPort": port.lock().to_json(),
        })
    });
    server
}

fn server_thread(
    listener: UnixListener,
    server: ServerState,
    closing: Arc<Notify>,
    events: Sender<Event>,
) -> Result<std::thread::JoinHandle<()>, DaemonError> {
    let runtime = server::runtime()?;
    let work = move || {
        prefer_this_thread();
        runtime.block_on(async move {
            tokio::spawn(report_to_watchdog(server.health.clone()));
            match signals() {
                Ok(signals) => drop(tokio::spawn(forward_signals(signals, events))),
                Err(error) => error!(%error, "signals are not heard; SIGKILL alone will end this daemon"),
            }
            if let Err(error) = server::serve(listener, server, closing).await {
                error!(%error, "the socket can't be served");
            }
        });
        // A look-up of the operator's may hang in a file system for good, and the daemon ends all the same.
        runtime.shutdown_background();
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

async fn forward_signals([mut term, mut int, mut hup]: Signals, events: Sender<Event>) {
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

fn watches(
    surroundings: &Surroundings,
    events: &Sender<Event>,
    installing: &Sender<()>,
) -> Result<[Watch; 2], WatchError> {
    let networks = surroundings.networks.clone();
    let (events, installing) = (events.clone(), installing.clone());
    Ok([
        Watch::new("watch-networks", networks.directories().all(), move || {
            networks.rescan();
            let _ = installing.send(());
        })?,
        Watch::new("watch-config", surroundings.settings.directories(), move || {
            let _ = events.send(Event::Reload);
        })?,
    ])
}

/// Waits for signals and changed files until a signal says to stop.
fn wait_for_events(
    events: &Receiver<Event>,
    reload: &dyn Fn(),
    settings: &LiveSettings,
    server: &std::thread::JoinHandle<()>,
) -> Result<(), DaemonError> {
    const LOOK: Duration = Duration::from_secs(60);
    loop {
        match events.recv_timeout(settings.reload_in().unwrap_or(LOOK)) {
            Ok(Event::Stop(signal)) => {
                info!(signal, "stopping");
                return Ok(());
            }
            Ok(Event::Reload) => reload(),
            // The end of the server's thread sends no event, and the watches keep the channel open.
            Err(_) if server.is_finished() => return Err(DaemonError::ServerEnded),
            // Nobody tells of a file that stays as it is.
            Err(_) if settings.reload_in().is_some() => reload(),
            Err(_) => {}
        }
    }
}

/// Reads changed files again, and puts what has changed in force.
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

fn stop(run_dir: &RunDir, readiness: &Readiness, admission: &Admission, closing: &Notify) {
    // This comes first: an executable that is refused from now on must be able to see that the daemon comes back.
    if let Err(error) = run_dir.announce_stop() {
        warn!(%error, "the stop could not be announced; STATUS will be refused until the next start");
    }
    notify(&[NotifyState::Stopping]);
    // Before the first call is refused: nobody who asks whether it is ready must be told that it is.
    readiness.unmet("engine", "the daemon is stopping: calls at work end, and no other is begun");
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
