//! `run`: the daemon with its engine.

use super::Dirs;
use crate::daemon::{self, DaemonError};
use crate::engine::kinds::BUILT_IN;

pub(super) fn run(dirs: Dirs) -> Result<(), DaemonError> {
    daemon::run(dirs.paths(), &BUILT_IN, crate::engine::start_for_daemon::start)
}
