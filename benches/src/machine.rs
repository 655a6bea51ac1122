//! Describes the machine that was measured on; without that a figure says nothing.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use fairlead_host::kernel_console;
use nix::sys::stat::{major, minor};
use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC, statfs,
};
use nix::sys::utsname::uname;
use serde::Serialize;

use crate::subject_setup::RunDirectories;

/// The machine and what was run on it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    /// The time of the run in seconds since 1970.
    pub(crate) unix_time: u64,
    /// `git rev-parse HEAD` of the working directory, `-dirty` when files differ from it.
    pub(crate) git_revision: String,
    /// What `uname -sr` prints.
    pub(crate) kernel: String,
    /// The number of processors that may be used.
    pub(crate) cpus: usize,
    /// The model of the processors.
    pub(crate) cpu_model: String,
    /// `MemTotal` of `/proc/meminfo`, in MiB.
    pub(crate) memory_mib: u64,
    /// The file system of the daemon's run directory.
    pub(crate) run_dir_fs: String,
    /// File system of the allocation files and the state directory.
    pub(crate) data_dir_fs: String,
    /// What of this machine makes calls slower than they are elsewhere, and the remedy.
    pub(crate) slowed_by: Option<String>,
}

impl Machine {
    /// Describes this machine, and where the directories of a run lie.
    pub(crate) fn this(dirs: &RunDirectories) -> Machine {
        let kernel = uname().map(|u| format!("{} {}", u.sysname().display(), u.release().display()));
        Machine {
            unix_time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            git_revision: git_revision(),
            kernel: kernel.unwrap_or_else(|e| e.to_string()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_model: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
            memory_mib: field("/proc/meminfo", "MemTotal").and_then(|v| kib(&v)).unwrap_or(0) / 1024,
            run_dir_fs: file_system(&dirs.run),
            data_dir_fs: file_system(&dirs.data),
            slowed_by: kernel_console::tells_of_renamed_links().map(|console| {
                format!("the kernel tells {console} of each renamed link, and a DEL waits for that: sysctl -w kernel.printk=4")
            }),
        }
    }
}

fn git_revision() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    match (git(&["rev-parse", "HEAD"]), git(&["status", "--porcelain"])) {
        (Some(revision), Some(changes)) if changes.is_empty() => revision,
        (Some(revision), _) => format!("{revision}-dirty"),
        (None, _) => "unknown: not in a git work tree with a commit".to_owned(),
    }
}

/// The file system that `dir` lies on, and where it is mounted.
fn file_system(dir: &Path) -> String {
    let name = match statfs(dir).map(|fs| fs.filesystem_type()) {
        Ok(EXT4_SUPER_MAGIC) if has_no_journal(dir) => {
            // It looks for inodes that were deleted lately, which costs a burst of allocations six per cent of its CPU time.
            "ext4 without a journal, which few nodes have".to_owned()
        }
        Ok(EXT4_SUPER_MAGIC) => "ext4".to_owned(),
        Ok(TMPFS_MAGIC) => "tmpfs".to_owned(),
        Ok(XFS_SUPER_MAGIC) => "xfs".to_owned(),
        Ok(BTRFS_SUPER_MAGIC) => "btrfs".to_owned(),
        Ok(OVERLAYFS_SUPER_MAGIC) => "overlayfs".to_owned(),
        Ok(other) => format!("file system {:#x}", other.0),
        Err(e) => e.to_string(),
    };
    format!("{name} ({})", dir.display())
}

/// Whether the ext4 that `dir` lies on is known to have no journal.
pub(crate) fn has_no_journal(dir: &Path) -> bool {
    let Ok(device) = fs::metadata(dir).map(|of| of.dev()) else { return false };
    let number = format!("{}:{}", major(device), minor(device));
    let Ok(device) = fs::canonicalize(Path::new("/sys/dev/block").join(number)) else { return false };
    let Some(name) = device.file_name() else { return false };
    let journal = fs::read_to_string(Path::new("/sys/fs/ext4").join(name).join("journal_task"));
    journal.is_ok_and(|task| task.trim() == "<none>")
}

fn field(file: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

fn kib(value: &str) -> Option<u64> {
    value.split_whitespace().next()?.parse().ok()
}
