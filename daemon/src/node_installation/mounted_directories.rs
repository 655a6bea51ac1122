//! Whether the directories of networks and plugins are still the host's.
//!
//! A container keeps the directory that it has mounted. Where the host makes it anew, or a link on its way leads elsewhere by now, nobody
//! sees what is written here, and only a new container mounts it again. A restart is asked for only where it can help: of a directory that
//! was not the host's at the first look nothing is said later.

use std::path::PathBuf;
use std::sync::OnceLock;

use super::{NodeInstallationError, SeenNetwork};
use crate::conf_dir::Directories;

/// The directories that were the host's at the first look.
#[derive(Debug, Default)]
pub(super) struct MountedDirectories(OnceLock<Vec<PathBuf>>);

impl MountedDirectories {
    /// Takes the first look, where none was taken yet.
    pub(super) fn at_first(&self, directories: &Directories) -> &[PathBuf] {
        let is_hosts = |directory: &PathBuf| directories.is_hosts(directory) == Some(true);
        self.0.get_or_init(|| directories.all().into_iter().filter(is_hosts).collect())
    }

    /// None was replaced since the first look.
    ///
    /// # Errors
    /// The first one that was.
    pub(super) fn must_be_hosts(&self, directories: &Directories) -> Result<(), NodeInstallationError> {
        let is_replaced = |directory: &&PathBuf| directories.is_hosts(directory) == Some(false);
        match self.at_first(directories).iter().find(is_replaced) {
            Some(directory) => {
                Err(NodeInstallationError::Replaced { directory: directories.on_host(directory) })
            }
            None => Ok(()),
        }
    }
}

/// The condition of life: no directory is replaced that only a restart of the container mounts anew. Whoever asks waits until that lasts:
/// an upgrade of the node may be at work. `seen`: what the installer tells.
///
/// # Errors
/// When one is replaced.
pub(crate) fn mounts_are_hosts(seen: &SeenNetwork) -> Result<String, String> {
    match seen.lock().as_ref() {
        Some(network) if network.replaced => Err(network.failing.clone().unwrap_or_default()),
        _ => Ok(String::new()),
    }
}
