//! The cluster by way of its API server: watches whose objects are kept in memory, and a writer for what is told.
//!
//! All requests are made by one thread of its own. Callers only look into memory, and wait on a condition variable that the thread
//! wakes. However many pods start, there is one watch for each kind (K13).

mod access;
mod answers;
mod backoff;
mod client;
mod events;
mod listed;
mod namespace_shares;
mod object;
mod pods;
mod reports;
mod shared;
mod snapshot;
mod task_panics;
mod tenant_objects;
mod token_review;
mod watch;
mod watch_state;

#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::sleep;

pub use self::access::{Access, Right, examine_access};
use self::backoff::Backoff;
use self::client::Connection;
use self::shared::{Known, Shared};
use self::task_panics::end_with_any;
pub use self::token_review::{TokenReviewer, Verdict};
use self::watch::Watch;
use self::watch_state::{Kind, Phase};

/// So many threads at most write the files of the cluster's thread and look up the name of the API server.
const BLOCKING_THREADS: usize = 2;

/// Where the API server is, and who we are to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiServer {
    /// By the environment and the service account of the pod that we run in.
    InCluster,
    /// By a kubeconfig.
    Kubeconfig(PathBuf),
}

/// What is watched, where it is remembered, and what it runs on.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The API server.
    pub api: ApiServer,
    /// The name of this node in the API.
    pub node: String,
    /// A directory of ours that outlives the daemon, and the boot.
    pub state_dir: PathBuf,
    /// True where the labels of namespaces are needed from the start: a watch more ([`Cluster::watch_namespace_labels`]).
    pub namespace_labels: bool,
    /// Builds the runtime of the cluster's thread, with so many threads for blocking work at most. On a node it has one of them from the
    /// start: where tokio has none and the system refuses one, the task that needs it panics, and that ends the daemon.
    pub runtime: fn(&mut Builder, usize) -> io::Result<Runtime>,
}

/// The cluster cannot be watched at all.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The node's name is not one: it would select other pods than this node's.
    #[error(
        "`{0}` is not the name of a node; set `nodeName`, or NODE_NAME by the downward API (`spec.nodeName`)"
    )]
    NodeName(String),
    /// The thread, or its runtime, cannot be made.
    #[error(
        "the thread that watches the API server cannot be started: {0}; raise TasksMax or LimitNOFILE of fairleadd's service, or the \
         pod's limit of processes"
    )]
    Thread(#[source] io::Error),
}

/// True for a text that can be the name of a node: in a selector it stands for that node alone.
pub fn is_node_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    !text.is_empty() && text.chars().all(plain)
}

/// How it stands with a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchHealth {
    /// What is watched.
    pub kind: &'static str,
    /// True while events come as they happen, and where the API has no such kind.
    pub is_working: bool,
    /// How many objects are known.
    pub objects: usize,
    /// The time since the API server said anything; it sends a bookmark every minute.
    pub heard: Option<Duration>,
    /// Why the last attempt failed; `None` once one went well.
    pub last_error: Option<String>,
}

/// How it stands with the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Each watch.
    pub watches: Vec<WatchHealth>,
    /// Pods whose network-status is not written yet.
    pub waiting_reports: usize,
    /// Events that were not written because there were too many, or for too long.
    pub dropped_events: u64,
}

/// What was asked of the API server since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requests {
    /// Connections made.
    pub connections: u64,
    /// Lists and watches.
    pub reads: u64,
    /// PATCHes of a network-status.
    pub patches: u64,
    /// Events.
    pub creates: u64,
}

/// The cluster by way of its API server. Dropping it ends its thread, and saves what it knows.
#[derive(Debug)]
pub struct Watched {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Watched {
    /// Starts to watch. What was known before counts until the API server says otherwise. No answer of the API server is waited for.
    ///
    /// # Errors
    /// The node's name is none, or there is no thread.
    pub fn start(settings: Settings) -> Result<Watched, StartError> {
        if !is_node_name(&settings.node) {
            return Err(StartError::NodeName(settings.node));
        }
        let mut wanted = vec![Kind::Pods, Kind::Definitions, Kind::LegacyNetworks];
        wanted.extend(settings.namespace_labels.then_some(Kind::Namespaces));
        let shared = Arc::new(Shared::new(settings.node, &wanted));
        snapshot::restore(&settings.state_dir, &shared);
        let mut builder = Builder::new_current_thread();
        let builder = builder.enable_all().thread_name("cluster-files");
        let runtime = (settings.runtime)(builder, BLOCKING_THREADS).map_err(StartError::Thread)?;
        let (of_thread, api, dir) = (Arc::clone(&shared), settings.api, Arc::from(settings.state_dir));
        let thread = std::thread::Builder::new()
            .name("cluster".to_owned())
            .spawn(move || run(runtime, &of_thread, &api, &dir))
            .map_err(StartError::Thread)?;
        Ok(Watched { shared, thread: Some(thread) })
    }

    /// True once all that every pod may need was listed in this process; the legacy kind is not waited for.
    pub fn is_synced(&self) -> bool {
        let known = self.shared.known.lock();
        Kind::NEEDED.into_iter().all(|kind| {
            let watch = known.watch(kind);
            watch.listed || matches!(watch.phase, Phase::Off | Phase::NoSuchKind)
        })
    }

    /// Why the API server cannot be watched; `None` while it is. What is wrong with the legacy kind alone, [`Watched::health`] tells.
    pub fn last_error(&self) -> Option<String> {
        let known = self.shared.known.lock();
        Kind::NEEDED.into_iter().find_map(|kind| {
            let watch = known.watch(kind);
            watch.last_error.clone().filter(|_| watch.phase != Phase::NoSuchKind)
        })
    }

    /// How it stands, in detail.
    pub fn health(&self) -> Health {
        let known = self.shared.known.lock();
        let of = |kind: Kind| {
            let watch = known.watch(kind);
            (watch.phase != Phase::Off).then(|| WatchHealth {
                kind: kind.name(),
                is_working: matches!(watch.phase, Phase::Live | Phase::NoSuchKind),
                objects: known.count(kind),
                heard: watch.last_heard.map(|at| at.elapsed()),
                last_error: watch.last_error.clone(),
            })
        };
        Health {
            watches: Kind::ALL.into_iter().filter_map(of).collect(),
            waiting_reports: self.shared.reports.lock().len(),
            dropped_events: self.shared.warnings.lock().dropped(),
        }
    }

    /// What was asked of the API server since the start.
    pub fn requests(&self) -> Requests {
        let counts = &self.shared.counts;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Requests {
            connections: of(&counts.connections),
            reads: of(&counts.reads),
            patches: of(&counts.patches),
            creates: of(&counts.creates),
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.shared.wake.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread: until it is stopped.
fn run(runtime: Runtime, shared: &Arc<Shared>, api: &ApiServer, dir: &Arc<Path>) {
    runtime.block_on(async {
        let mut saves = JoinSet::new();
        saves.spawn(snapshot::save_known(Arc::clone(dir), Arc::clone(shared)));
        saves.spawn(snapshot::save_reports(Arc::clone(dir), Arc::clone(shared)));
        tokio::select! {
            () = serve(shared, api) => {}
            never = end_with_any(&mut saves) => match never {},
            () = shared.wake.stop.notified() => {}
        }
    });
    // A write that is under way ends first: both would write the same file.
    runtime.shutdown_timeout(Duration::from_secs(5));
    snapshot::save_all(dir, shared);
}

/// All that talks to the API server. Does not end.
async fn serve(shared: &Arc<Shared>, api: &ApiServer) {
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
    let connection = loop {
        match Connection::open(api, &shared.counts).await {
            Ok(connection) => break Arc::new(connection),
            Err(reason) => {
                let news = |known: &mut Known| {
                    let wanted = known.wanted();
                    let failed = |kind: Kind| known.watch_mut(kind).failed(Phase::Failing, reason.clone());
                    // Each is told; `any` would stop at the first.
                    wanted.into_iter().map(failed).filter(|news| *news).count() > 0
                };
                if shared.change(news) {
                    tracing::warn!(reason, "there is no way to the API server yet; it is tried again");
                }
                sleep(backoff.pause()).await;
            }
        }
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(reports::run(Arc::clone(&connection), Arc::clone(shared)));
    tasks.spawn(events::run(Arc::clone(&connection), Arc::clone(shared)));
    let mut watched = Vec::new();
    loop {
        let wanted = shared.known.lock().wanted();
        for kind in wanted.into_iter().filter(|kind| !watched.contains(kind)).collect::<Vec<_>>() {
            tasks.spawn(Watch::new(Arc::clone(&connection), Arc::clone(shared), kind).run());
            watched.push(kind);
        }
        tokio::select! {
            () = shared.wake.wanted.notified() => {}
            never = end_with_any(&mut tasks) => match never {},
        }
    }
}
