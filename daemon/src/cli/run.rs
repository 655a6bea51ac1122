//! `run`: the daemon with its engine.

use std::fs;
use std::path::Path;

use super::CliError;
use super::arguments::Dirs;
use crate::daemon;
use crate::engine::kinds::BUILT_IN;

pub(super) fn run(dirs: Dirs) -> Result<(), CliError> {
    let paths = dirs.paths();
    must_be_a_directory(&paths.host_root)?;
    Ok(daemon::run(paths, &BUILT_IN, crate::engine::start_for_daemon::start)?)
}

/// Without the host's root the daemon would be ready on a node that has no network, no plugin and no kubelet.
fn must_be_a_directory(host_root: &Path) -> Result<(), CliError> {
    let refused = |reason: String| CliError::HostRoot { path: host_root.to_owned(), reason };
    match fs::metadata(host_root) {
        Ok(there) if there.is_dir() => Ok(()),
        Ok(_) => Err(refused("it is no directory".to_owned())),
        Err(error) => Err(refused(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_root_that_is_no_directory_is_refused_with_its_path_and_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        must_be_a_directory(dir.path()).unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        for (path, reason) in [(file, "it is no directory"), (dir.path().join("absent"), "No such file")] {
            let told = must_be_a_directory(&path).unwrap_err().to_string();
            for part in [path.to_str().unwrap(), reason, "--host-root"] {
                assert!(told.contains(part), "{part}: {told}");
            }
        }
    }
}
