//! Whole pods with several networks: each is a pod of a real cluster, whose etcd and API server run on the private node beside
//! whoever is measured.
//!
//! A pod is in the API before its ADD, as when kubelet starts it. The time of a call begins when the watches have had their time to see
//! it, so nobody is charged with the cluster's own.

pub(crate) mod burst;
pub(crate) mod cluster;
pub(crate) mod idle;
mod networks;
pub(crate) mod one_at_a_time;
pub(crate) mod requests;
mod setup;
pub(crate) mod start;
pub(crate) mod targets;

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::bench::{Bench, BenchError};
use crate::cli::Options;
use crate::daemon::DaemonError;
use crate::node::Node;
use crate::results::Results;
use crate::subject::Attachment;
use crate::subject_setup::{RunDirectories, SubjectSetupError};
use cluster::{Cluster, ClusterError};
use setup::{Account, Everybody, OwnDaemon};

/// Ours with a single macvlan, against which the others are held.
pub(crate) const ONE: &str = "ours-one";
/// Ours with the pod's annotations in the call, as containerd can hand them over.
pub(crate) const BY_CALL: &str = "ours-call";
/// Ours with the pod's annotations from the watch of the API.
pub(crate) const BY_WATCH: &str = "ours-watch";
/// Multus with its daemon.
pub(crate) const THICK: &str = "multus-thick";
/// Multus without a daemon.
pub(crate) const THIN: &str = "multus-thin";

/// What watches need to see a pod that has just been made; kubelet itself needs longer until it has a sandbox made.
const SEEN: Duration = Duration::from_millis(250);

/// Why there is no cluster with its subjects.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PodsError {
    /// The API server does not serve.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A subject cannot be measured.
    #[error(transparent)]
    Setup(#[from] SubjectSetupError),
    /// A daemon does not serve.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// A peer of whole pods is not Multus.
    #[error("peer {0:?}: of those that give pods several networks only `multus=DIR` is known")]
    Peer(String),
    /// A file that a subject needs cannot be written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why it cannot be written.
        #[source]
        source: std::io::Error,
    },
}

/// A run with whole pods.
#[derive(Debug)]
pub(crate) struct PodBench {
    /// The node, the subjects and the results.
    pub(crate) bench: Bench,
    cluster: Cluster,
    /// How to start a further daemon of ours.
    own: Option<OwnDaemon>,
    /// What Multus' daemon reads as long as it lives.
    account: Option<Account>,
}

impl PodBench {
    /// Starts the cluster and everybody who is measured.
    pub(crate) fn new(node: Node, options: &Options, dirs: &RunDirectories) -> Result<PodBench, PodsError> {
        let cluster = Cluster::start(&options.kubernetes, &dirs.data)?;
        cluster.has_definition(networks::SECOND, &networks::second(&dirs.allocations()))?;
        let Everybody { subjects, own, account } = setup::everybody(options, dirs, &cluster)?;
        let mut bench = Bench::new(node, subjects, None, dirs.allocations());
        bench.of_nobody = cluster.pids();
        // Multus answers its first calls before its own watches have begun.
        thread::sleep(SEEN * 4);
        Ok(PodBench { bench, cluster, own, account })
    }

    /// Ends all daemons, the cluster last.
    pub(crate) fn close(self) -> Results {
        let PodBench { bench, cluster, account, own: _ } = self;
        let Bench { subjects, results, .. } = bench;
        drop(subjects);
        drop(account);
        drop(cluster);
        results
    }

    /// Makes `count` empty pods for a subject, in the kernel and in the API.
    fn pods(&mut self, who: usize, count: usize) -> Result<Vec<Attachment>, BenchError> {
        let mut pods = self.bench.attachments(who, count)?;
        let names: Vec<_> = pods.iter().map(|pod| pod.id.clone()).collect();
        for (pod, uid) in pods.iter_mut().zip(self.cluster.make_pods(&names)?) {
            pod.pod_uid = Some(uid);
        }
        thread::sleep(SEEN);
        Ok(pods)
    }

    /// The pods of this name are no more in the API.
    fn forget(&self, names: &[String]) -> Result<(), BenchError> {
        Ok(self.cluster.delete_pods(names)?)
    }
}

fn names_of(pods: &[Attachment]) -> Vec<String> {
    pods.iter().map(|pod| pod.id.clone()).collect()
}
