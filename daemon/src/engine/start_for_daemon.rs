//! The daemon starts the engine here: on the real kernel, with the paths and metrics of the daemon. The engine hears of changed
//! settings by what is returned.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fairlead_host::Kernel;
use fairlead_host::host_root::below;
use fairlead_host::real::RealKernel;
use fairlead_sriov::wait_out_reset::SETTLES;

use super::{CallSettings, Engine, EngineInputs, metrics_of_ports, metrics_of_records};
use crate::call::Service;
use crate::cluster_watch;
use crate::daemon::{Started, Surroundings};
use crate::node_paths::{NodePaths, VFIO_NODES};

/// The sysctls of procfs.
const SYSCTLS: &str = "/proc/sys";

/// Starts the engine on the real kernel.
///
/// # Errors
/// When the kernel, the store or a directory cannot be had.
pub fn start(surroundings: &Surroundings) -> Result<Started, Box<dyn Error + Send + Sync>> {
    let nodes = below(&surroundings.paths.host_root, Path::new(VFIO_NODES));
    let of_host = below(&surroundings.paths.host_root, Path::new(SYSCTLS));
    // A host's root that has no procfs is that of a test, or of a node whose plugins are all built in.
    let sysctls = if of_host.is_dir() { of_host } else { PathBuf::from(SYSCTLS) };
    let kernel = RealKernel::new()?.with_vfio_nodes(&nodes).with_sysctls(&sysctls);
    let kernel: Arc<dyn Kernel> = Arc::new(kernel);
    let settings = surroundings.settings.current();
    let inputs = EngineInputs {
        kernel,
        networks: Arc::clone(&surroundings.networks),
        calls: surroundings.calls.clone(),
        node: surroundings.node.clone(),
        cluster: cluster_watch::start(&settings, surroundings)?,
        cgroup: cgroup(settings.delegate_cgroup.as_deref(), &surroundings.paths),
        announce: Some(sysctls),
        pool_metrics: surroundings.exposition.pool_metrics(),
        settings: Arc::clone(&settings),
        settles: SETTLES,
    };
    let engine = Engine::start(&surroundings.paths, CallSettings::from(&*settings), inputs)?;
    Engine::probe_health(&engine, &surroundings.health, &surroundings.readiness);
    metrics_of_records::register(&engine, &surroundings.exposition);
    metrics_of_ports::register(&engine, &surroundings.exposition);
    let (told, ended) = (Arc::clone(&engine), Arc::clone(&engine));
    Ok(Started {
        service: engine as Arc<dyn Service>,
        changed: Box::new(move |settings| told.configure(settings)),
        ending: Box::new(move || ended.core.ipam.delegates.end_statuses()),
    })
}

/// The cgroup of executed plugins, outside the daemon's own memory limit: the configured one, else one beside the
/// daemon's. `None` when the daemon has no limit to be outside of, or none can be made.
fn cgroup(configured: Option<&str>, paths: &NodePaths) -> Option<PathBuf> {
    let root = &paths.cgroups;
    let dir = match configured {
        // `join` with an absolute path would leave `root`.
        Some(path) => root.join(path.trim_start_matches('/')),
        None => beside_own(root, &fs::read_to_string(paths.proc_self.join("cgroup")).ok()?)?,
    };
    match fs::create_dir_all(&dir) {
        Ok(()) => Some(dir),
        Err(e) => {
            tracing::warn!(cgroup = %dir.display(), error = %e, "executed plugins run in the daemon's own cgroup");
            None
        }
    }
}

/// `<parent of the daemon's cgroup>/fairlead-delegates`, for cgroup v2 and for v1's memory controller.
fn beside_own(root: &Path, membership: &str) -> Option<PathBuf> {
    let line = |wanted: &str| {
        membership.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            (parts.next()? == wanted).then(|| parts.next()).flatten()
        })
    };
    // cgroup v1 has a line for each controller; v2 has one, without a name.
    let (root, path) = match line("memory") {
        Some(path) => (root.join("memory"), path),
        None => (root.to_owned(), line("")?),
    };
    // In the root cgroup there is no memory limit to be outside of, and no parent.
    let parent = Path::new(path).parent()?;
    Some(root.join(parent.strip_prefix("/").ok()?).join("fairlead-delegates"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executed_plugins_get_a_cgroup_beside_the_daemons_own() {
        let root = Path::new("/sys/fs/cgroup");
        let v2 = beside_own(root, "0::/system.slice/fairleadd.service\n");
        assert_eq!(v2, Some("/sys/fs/cgroup/system.slice/fairlead-delegates".into()));
        let v1 = beside_own(root, "4:memory:/kubepods/pod1/c1\n0::/x\n");
        assert_eq!(v1, Some("/sys/fs/cgroup/memory/kubepods/pod1/fairlead-delegates".into()));
        assert_eq!(beside_own(root, "0::/\n"), None);
    }
}
