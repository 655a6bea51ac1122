//! The cluster against an API server on a real socket that can fail in every way.

mod fake_api_server;
mod reading;
mod tokens;
mod writing;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use self::fake_api_server::FakeApiServer;
use super::{ApiServer, Settings, Watched};
use crate::cluster::{Cluster, ClusterError, Definition, LegacyNetwork, ONE_BEFORE, Wait};
use crate::pod::{Pod, PodRef, SharedDirVolume};

/// A test that waits longer than this fails.
const LONG: Duration = Duration::from_secs(20);
/// Wakes within this count as at once: far below a polling second, far above what a loaded machine takes.
const AT_ONCE: Duration = Duration::from_secs(2);

/// An API server, a node, and the cluster as that node sees it.
struct Rig {
    api: FakeApiServer,
    dir: TempDir,
}

impl Rig {
    fn new() -> Rig {
        Rig { api: FakeApiServer::start(), dir: tempfile::tempdir().unwrap() }
    }

    fn settings(&self) -> Settings {
        Settings {
            api: ApiServer::Kubeconfig(self.api.kubeconfig(self.dir.path())),
            node: "n1".into(),
            state_dir: self.dir.path().to_owned(),
            namespace_labels: true,
            runtime: |builder, threads| builder.max_blocking_threads(threads).build(),
        }
    }

    fn watched(&self) -> Watched {
        Watched::start(self.settings()).unwrap()
    }

    /// The cluster once everything is listed and watched.
    fn synced(&self) -> Watched {
        let watched = self.watched();
        until("the first lists", || {
            watched.is_synced() && watched.health().watches.iter().all(|w| w.is_working)
        });
        watched
    }

    fn state_dir(&self) -> &Path {
        self.dir.path()
    }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < LONG, "{what}: not within {LONG:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn pod_of(node: &str, namespace: &str, name: &str, uid: &str) -> Value {
    json!({
        "metadata": {
            "namespace": namespace, "name": name, "uid": uid,
            "annotations": { "k8s.v1.cni.cncf.io/networks": "net-a" }
        },
        "spec": { "nodeName": node }
    })
}

fn api_pod(namespace: &str, name: &str, uid: &str) -> Value {
    pod_of("n1", namespace, name, uid)
}

fn api_definition(namespace: &str, name: &str, config: &str) -> Value {
    json!({ "metadata": { "namespace": namespace, "name": name }, "spec": { "config": config } })
}

fn pod_ref(namespace: &str, name: &str, uid: Option<&str>) -> PodRef {
    PodRef { namespace: namespace.into(), name: name.into(), uid: uid.map(str::to_owned) }
}

fn ask(watched: &Watched, pod: &PodRef, limit: Duration) -> Result<Arc<Pod>, ClusterError> {
    watched.pod(pod, &Wait { deadline: Instant::now() + limit, gone: &|| false })
}

fn define(
    watched: &Watched,
    namespace: &str,
    name: &str,
    limit: Duration,
) -> Result<Arc<Definition>, ClusterError> {
    watched.definition(namespace, name, &Wait { deadline: Instant::now() + limit, gone: &|| false })
}

fn legacy(
    watched: &Watched,
    namespace: &str,
    name: &str,
    limit: Duration,
) -> Result<Arc<LegacyNetwork>, ClusterError> {
    watched.legacy_network(namespace, name, &Wait { deadline: Instant::now() + limit, gone: &|| false })
}
