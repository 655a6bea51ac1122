//! Journals that were set aside in the run directory, for a person or for a newer version: never read again by this one.

use std::io;
use std::path::{Path, PathBuf};

use super::{JOURNAL, warn_that_store_cannot};

/// Why a journal was set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// It is damaged.
    Damaged,
    /// A newer version wrote something of an earlier boot in it.
    OfNewerVersion,
}

impl Why {
    /// How the ending of its file's name begins.
    fn ending(self) -> &'static str {
        match self {
            Why::Damaged => "damaged-",
            Why::OfNewerVersion => "newer-",
        }
    }
}

/// The damaged journals that were set aside in this run directory.
pub fn damaged(run_dir: &Path) -> Vec<PathBuf> {
    set_aside(run_dir, Why::Damaged)
}

/// The journals of earlier boots in this run directory that hold records of a newer version.
pub fn of_newer_version(run_dir: &Path) -> Vec<PathBuf> {
    set_aside(run_dir, Why::OfNewerVersion)
}

fn set_aside(run_dir: &Path, why: Why) -> Vec<PathBuf> {
    let meant = |path: &PathBuf| {
        path.file_stem() == Path::new(JOURNAL).file_stem()
            && path.extension().is_some_and(|e| e.to_string_lossy().starts_with(why.ending()))
    };
    let entries = std::fs::read_dir(run_dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(meant).collect()
}

fn place(path: &Path, why: Why, boot_id: &str, which: &str) -> PathBuf {
    path.with_extension(format!("{}{}{which}", why.ending(), boot_id.get(..8).unwrap_or("unknown")))
}

/// Copies the journal to where a person finds it; `None` where that fails, which is logged.
pub(super) fn copy_aside(path: &Path, why: Why, boot_id: &str) -> Option<PathBuf> {
    let aside = place(path, why, boot_id, "");
    let copied = std::fs::copy(path, &aside);
    copied.inspect_err(|e| warn_that_store_cannot(path, "be set aside", e)).ok().map(|_| aside)
}

/// Moves away what can't be read, whatever it is; `None` where there is nothing, or where that fails.
pub(super) fn move_aside(path: &Path, boot_id: &str) -> Option<PathBuf> {
    let names = (1..).map(|n| place(path, Why::Damaged, boot_id, &format!("-{n}")));
    let free = names.take(1000).find(|name| name.symlink_metadata().is_err())?;
    let moved: io::Result<()> = std::fs::rename(path, &free);
    moved.inspect_err(|e| warn_that_store_cannot(path, "be set aside", e)).ok().map(|()| free)
}
