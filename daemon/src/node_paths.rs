//! Where the daemon finds and keeps things on its node.
//!
//! The one struct of paths: the command line makes it, the daemon completes it once at its start, and everything else
//! takes it from there. Nothing in here looks whether a path exists.

use std::path::PathBuf;

use crate::settings::Kubelet;

/// The host's directory with the nodes of IOMMU groups, by which processes have devices under vfio-pci.
pub const VFIO_NODES: &str = "/dev/vfio";

/// The paths of one daemon on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePaths {
    /// The directory for what dies with the reboot: the socket, the lock, the store.
    pub run_dir: PathBuf,
    /// The directory for what outlives the reboot: the spool, the records of attachments with executed plugins.
    pub state_dir: PathBuf,
    /// The host's root directory as this process sees it.
    pub host_root: PathBuf,
    /// The daemon's configuration file.
    pub config: PathBuf,
    /// The value of `CNI_CONF_DIR`, if it is set: the directory of network configurations on the host.
    pub conf_dir: Option<String>,
    /// The value of `CNI_PLUGIN_DIR`, if it is set: the directories of plugin executables on the host.
    pub plugin_dir: Option<String>,
    /// The directory where sysfs is mounted.
    pub sysfs: PathBuf,
    /// The directory of this process in procfs.
    pub proc_self: PathBuf,
    /// The directory where cgroups are mounted.
    pub cgroups: PathBuf,
    /// Kubelet's directory on the host.
    pub kubelet: PathBuf,
}

/// Which paths were typed: these count, whatever paths a running daemon uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TypedPaths {
    /// Whether `--state-dir` was.
    pub state_dir: bool,
    /// Whether `--host-root` was.
    pub host_root: bool,
    /// Whether `--config` was. The file must be there then: without one everything is allowed, which nobody means who names one.
    pub config: bool,
}

impl NodePaths {
    /// The paths that the command line names, made absolute: a command that asks the daemon for them may work in another directory, and
    /// the directory of a file is watched. All others are where Linux and kubelet have them by default.
    pub fn new(run_dir: PathBuf, state_dir: PathBuf, host_root: PathBuf, config: PathBuf) -> NodePaths {
        // It fails for an empty path alone, and where the working directory is gone.
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        NodePaths {
            run_dir: absolute(run_dir),
            state_dir: absolute(state_dir),
            host_root: absolute(host_root),
            config: absolute(config),
            conf_dir: None,
            plugin_dir: None,
            sysfs: "/sys".into(),
            proc_self: "/proc/self".into(),
            cgroups: "/sys/fs/cgroup".into(),
            kubelet: Kubelet::default().dir,
        }
    }

    /// The same with `CNI_CONF_DIR` and `CNI_PLUGIN_DIR` as they stand in this process's environment.
    pub fn with_environment(self) -> NodePaths {
        let variable = |name| std::env::var(name).ok();
        NodePaths { conf_dir: variable("CNI_CONF_DIR"), plugin_dir: variable("CNI_PLUGIN_DIR"), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_typed_without_its_directory_is_below_the_working_directory() {
        let paths = NodePaths::new("run".into(), "/state".into(), "/".into(), "config.yaml".into());
        let here = std::env::current_dir().unwrap();
        assert_eq!((paths.run_dir, paths.config), (here.join("run"), here.join("config.yaml")));
        assert_eq!((paths.state_dir, paths.host_root), ("/state".into(), "/".into()));
    }
}
