//! `run`: the daemon with its engine.

use std::path::PathBuf;

use super::Dirs;
use crate::daemon::{self, DaemonError, Places};
use crate::engine::kinds::BUILT_IN;

pub(super) fn run(dirs: Dirs) -> Result<(), DaemonError> {
    let Dirs { run_dir, state_dir, host_root, config } = dirs;
    daemon::run(places(run_dir, state_dir, host_root, config), &BUILT_IN, crate::engine::compose::start)
}

/// The places of the command line, and those of the environment.
pub(super) fn places(run_dir: PathBuf, state_dir: PathBuf, host_root: PathBuf, config: PathBuf) -> Places {
    let set = |name| std::env::var(name).ok();
    Places {
        run_dir,
        state_dir,
        host_root,
        config,
        conf_dir: set("CNI_CONF_DIR"),
        plugin_dir: set("CNI_PLUGIN_DIR"),
    }
}
