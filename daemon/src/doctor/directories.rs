//! The directories of the daemon: whether they can be used, and what was set aside in them.

use std::path::{Path, PathBuf};

use fairlead_host::disk_space;

use crate::finding::{Finding, good, less, wrong};
use crate::node_paths::NodePaths;
use crate::{engine, spool, store};

pub(super) fn findings(paths: &NodePaths) -> Vec<Finding> {
    vec![
        run_dir(&paths.run_dir),
        store(&paths.run_dir),
        state_dir(&paths.state_dir),
        spooled(&paths.state_dir),
        records(&paths.state_dir),
    ]
}

fn listed(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn run_dir(path: &Path) -> Finding {
    const ABOUT: &str = "run directory";
    match nix::sys::statfs::statfs(path) {
        Ok(stat) if stat.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC => {
            good(ABOUT, format!("{} is on a tmpfs", path.display()))
        }
        Ok(_) => {
            let seen = format!("{} is not on a tmpfs: every call waits for a disk", path.display());
            less(ABOUT, seen, "mount a tmpfs on /run")
        }
        Err(error) => {
            wrong(ABOUT, format!("{}: {error}", path.display()), "start the daemon, it makes the directory")
        }
    }
}

fn store(run_dir: &Path) -> Finding {
    const ABOUT: &str = "store";
    let damaged = store::damaged(run_dir);
    let newer = store::of_newer_version(run_dir);
    if !newer.is_empty() {
        let seen = format!("of an earlier boot, by a newer version: {}", listed(&newer));
        return less(ABOUT, seen, "what was attached then is gone: remove the file");
    }
    if damaged.is_empty() {
        return good(ABOUT, "no damage was found in this boot");
    }
    let seen = format!("it was damaged, what could be read is kept, the rest is in {}", listed(&damaged));
    let remedy = "the daemon's log names what was lost; it goes with the pods' DEL or GC; then remove the file, and see what addresses are left: `fairleadd gc --orphans`";
    wrong(ABOUT, seen, remedy)
}

fn state_dir(path: &Path) -> Finding {
    const ABOUT: &str = "state directory";
    let access = nix::unistd::access(path, nix::unistd::AccessFlags::W_OK).map_err(std::io::Error::from);
    match access.and_then(|()| disk_space::left(path)) {
        Ok(()) => good(ABOUT, format!("{} can be written", path.display())),
        Err(error) => {
            let remedy = "a DEL can't be kept there while the daemon is down, nor what executed plugins must give back: make it a writable directory on a disk with space";
            wrong(ABOUT, format!("{}: {error}", path.display()), remedy)
        }
    }
}

fn spooled(state_dir: &Path) -> Finding {
    const ABOUT: &str = "spool";
    let directory = state_dir.join(fairlead_cni::spool::DIRECTORY);
    let newer = spool::of_newer_version(&directory);
    if let Ok(newer) = &newer
        && !newer.is_empty()
    {
        let remedy = "each is a DEL or GC that was answered and not done: start the version of fairleadd that wrote it, or a later one";
        return wrong(ABOUT, format!("written by a newer version: {}", listed(newer)), remedy);
    }
    match newer.and_then(|_| spool::unreadable(&directory)) {
        Ok(none) if none.is_empty() => good(ABOUT, "every entry can be read"),
        Ok(unreadable) => {
            let remedy = "each is a DEL or GC that was answered and not done: see what the file names, clean up, remove the file";
            wrong(ABOUT, format!("can't be read: {}", listed(&unreadable)), remedy)
        }
        Err(error) => {
            let remedy = "no DEL is kept while the daemon is down: make way for a directory that root can read, then restart the daemon, it makes it";
            wrong(ABOUT, format!("{}: {error}", directory.display()), remedy)
        }
    }
}

fn records(state_dir: &Path) -> Finding {
    const ABOUT: &str = "records";
    match engine::unreadable_records(state_dir) {
        Ok(none) if none.is_empty() => {
            good(ABOUT, "every record of an attachment with executed plugins can be read")
        }
        Ok(unreadable) => {
            let seen = format!("can't be read: {}", listed(&unreadable));
            let remedy = "the plugins of each never get their DEL from fairleadd: see what the file names, call them or free by hand what they hold (leases, port mappings), remove the file";
            wrong(ABOUT, seen, remedy)
        }
        Err(error) => {
            let remedy = "no ADD that executes a plugin succeeds: make way for a directory that root can read, then restart the daemon";
            wrong(ABOUT, format!("{}: {error}", state_dir.display()), remedy)
        }
    }
}
