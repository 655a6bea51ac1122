//! Puts the executable under the plugins' names, and takes it away again.
//!
//! At no moment is a name missing that existed before, and no file is ever half written: the new file is written
//! beside, made durable and renamed into place, and the original gets its second name before it loses the first.
//! So a kill at any point leaves either the one or the other, and running the same command again completes it. A
//! running executable is not disturbed. Whatever command comes next removes what a kill has left beside the
//! names.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fairlead_host::files::{FileError, failed, read_optional, sync_dir, write_synced};

use crate::conf_dir::PLUGIN_DIR;
use crate::engine::kinds::BUILT_IN;
use crate::own_executable::{ORIGINAL, is_ours};

/// The ending of our executable's name while it is being written; the name has a dot in front.
const NEW: &str = ".fairlead-new";

/// The ending of an original's second name while it is being made; the name has a dot in front.
const KEEP: &str = ".fairlead-keep";

/// The executable's own name, under which it may stand beside those of the built-in types.
pub(crate) const OWN_NAME: &str = "fairlead";

/// Why a name could not be installed or uninstalled.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The name is no bare file name.
    #[error("{name:?} is no name of a plugin: it must be a bare file name")]
    Name {
        /// The name as the caller gave it.
        name: String,
    },
    /// Fairlead does not serve plugins of this name, so their networks would all be refused.
    #[error("{name:?} is no plugin that Fairlead stands for; it serves {OWN_NAME}, {}", BUILT_IN.join(", "))]
    NotServed {
        /// The name as the caller gave it.
        name: String,
    },
    /// The file to install is not Fairlead's executable.
    #[error("{path} is not Fairlead's executable; name it with --from", path = .path.display())]
    NotOurs {
        /// The file that should have been installed.
        path: PathBuf,
    },
    /// The directory does not exist, probably because its name was mistyped.
    #[error("there is no directory {path}; correct --bin-dir, or make it: mkdir -p {path}", path = .path.display())]
    NoDirectory {
        /// The directory that `--bin-dir` names.
        path: PathBuf,
    },
    /// A step on the file system failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// What was done about one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstallOutcome {
    /// Our executable stands there now.
    Installed,
    /// Our executable stood there already, the same file.
    Unchanged,
    /// The original stands there again.
    Restored,
    /// Our executable is gone, and there was no original.
    Removed,
    /// Nothing of ours stood there, except what an interrupted install had left beside it; that was removed.
    Cleared,
    /// Somebody else's executable stood there, and none of ours.
    NotOurs,
    /// No executable stood there.
    Absent,
    /// An executable of somebody else has replaced ours since; the original that was kept aside stays.
    Overwritten,
}

impl InstallOutcome {
    /// The outcome in words for a person.
    pub fn message(self) -> &'static str {
        match self {
            InstallOutcome::Installed => "installed",
            InstallOutcome::Unchanged => "already installed",
            InstallOutcome::Restored => "original restored",
            InstallOutcome::Removed => "removed, there was no original",
            InstallOutcome::Cleared => "not ours, what an interrupted install had left is removed",
            InstallOutcome::NotOurs => "not ours, left as it is",
            InstallOutcome::Absent => "there is no such file",
            InstallOutcome::Overwritten => {
                "not ours any more (a package has put its own there since), left as it is; what ours had replaced is \
                 beside it with the ending .fairlead-original: remove that, or rename it back if it is the one you want"
            }
        }
    }
}

/// Called before every step that changes something; in tests an error ends the work there, as a kill would.
type Step<'a> = &'a mut dyn FnMut(&'static str) -> Result<(), InstallError>;

/// Refuses a name under which the executable cannot stand.
pub(crate) fn must_be_served(name: &str) -> Result<(), InstallError> {
    match BUILT_IN.contains(&name) || name == OWN_NAME {
        true => Ok(()),
        false => Err(InstallError::NotServed { name: name.into() }),
    }
}

/// Puts the executable `from` under `name` into `directory`.
///
/// # Errors
/// When the name or the executable is wrong, or a step fails.
pub fn install(directory: &Path, name: &str, from: &Path) -> Result<InstallOutcome, InstallError> {
    must_be_served(name)?;
    let program = fs::read(from).map_err(failed(from, "read"))?;
    if !is_ours(&program) {
        return Err(InstallError::NotOurs { path: from.into() });
    }
    install_with(directory, name, &program, &mut |_| Ok(())).inspect_err(|_| {
        // On a full disk a half-written file would keep the space that was too little.
        let _ = remove_leftovers(directory, name, &mut |_| Ok(()));
    })
}

fn install_with(
    directory: &Path,
    name: &str,
    program: &[u8],
    step: Step<'_>,
) -> Result<InstallOutcome, InstallError> {
    let (target, _) = paths_of(directory, name)?;
    // A node whose runtime never got a plugin may not have the usual directory yet; any other directory may be
    // mistyped.
    if directory == Path::new(PLUGIN_DIR) {
        fs::create_dir_all(directory).map_err(failed(directory, "made"))?;
    } else if !directory.is_dir() {
        return Err(InstallError::NoDirectory { path: directory.into() });
    }
    remove_leftovers(directory, name, step)?;
    let there = read_optional(&target).map_err(failed(&target, "read"))?;
    if there.as_deref() == Some(program) {
        return Ok(InstallOutcome::Unchanged);
    }
    let new = directory.join(format!(".{name}{NEW}"));
    step("write")?;
    write_synced(&new, program, 0o755).map_err(failed(&new, "written"))?;
    if there.is_some_and(|there| !is_ours(&there)) {
        keep_original(directory, name, step)?;
    }
    step("rename")?;
    fs::rename(&new, &target).map_err(failed(&target, "replaced"))?;
    step("sync")?;
    sync_dir(directory).map_err(failed(directory, "made durable"))?;
    Ok(InstallOutcome::Installed)
}

/// Gives the original its second name. An original that is already kept is replaced only by a newer one, which
/// somebody has put in our place since, and never by a file of ours.
fn keep_original(directory: &Path, name: &str, step: Step<'_>) -> Result<(), InstallError> {
    let (target, original) = paths_of(directory, name)?;
    let second = directory.join(format!(".{name}{ORIGINAL}{KEEP}"));
    step("link")?;
    fs::hard_link(&target, &second).map_err(failed(&second, "linked"))?;
    step("keep")?;
    fs::rename(&second, &original).map_err(failed(&original, "kept aside"))?;
    // Renaming one name of a file over another name of the same file leaves both names, as rename(2) says.
    let _ = fs::remove_file(&second);
    step("sync kept")?;
    sync_dir(directory).map_err(failed(directory, "made durable"))?;
    Ok(())
}

/// Removes what a killed install left beside a name; true when there was something.
fn remove_leftovers(directory: &Path, name: &str, step: Step<'_>) -> Result<bool, InstallError> {
    let mut cleared = false;
    for leftover in [format!(".{name}{NEW}"), format!(".{name}{ORIGINAL}{KEEP}")] {
        let path = directory.join(leftover);
        if path.symlink_metadata().is_ok() {
            step("clear")?;
            fs::remove_file(&path).map_err(failed(&path, "removed"))?;
            cleared = true;
        }
    }
    Ok(cleared)
}

/// Puts the original of `name` back, or removes ours where there was none.
///
/// # Errors
/// When the name is wrong or a step fails.
pub fn uninstall(directory: &Path, name: &str) -> Result<InstallOutcome, InstallError> {
    uninstall_with(directory, name, &mut |_| Ok(()))
}

fn uninstall_with(directory: &Path, name: &str, step: Step<'_>) -> Result<InstallOutcome, InstallError> {
    let (target, original) = paths_of(directory, name)?;
    let mut cleared = remove_leftovers(directory, name, step)?;
    let there = read_optional(&target).map_err(failed(&target, "read"))?;
    let done = match (there.as_deref().map(is_ours), original.exists()) {
        (Some(false), kept) => {
            // An install was killed between the original's second name and ours in its place. Another original is
            // older than what a package has put there since: it stays.
            let twice = kept && same_file(&target, &original);
            if twice {
                step("clear")?;
                fs::remove_file(&original).map_err(failed(&original, "removed"))?;
                cleared = true;
            }
            match (kept && !twice, cleared) {
                (true, _) => InstallOutcome::Overwritten,
                (false, true) => InstallOutcome::Cleared,
                (false, false) => return Ok(InstallOutcome::NotOurs),
            }
        }
        (_, true) => {
            step("restore")?;
            fs::rename(&original, &target).map_err(failed(&target, "restored"))?;
            InstallOutcome::Restored
        }
        (Some(true), false) => {
            step("remove")?;
            fs::remove_file(&target).map_err(failed(&target, "removed"))?;
            InstallOutcome::Removed
        }
        (None, false) if cleared => InstallOutcome::Cleared,
        (None, false) => return Ok(InstallOutcome::Absent),
    };
    step("sync")?;
    sync_dir(directory).map_err(failed(directory, "made durable"))?;
    Ok(done)
}

/// The names under which something of ours stands in `directory`.
pub fn installed(directory: &Path) -> Vec<String> {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let ours = |name: &String| {
        let path = directory.join(name);
        !name.starts_with('.') && path.is_file() && fs::read(path).is_ok_and(|b| is_ours(&b))
    };
    let mut names: Vec<String> =
        files.filter_map(|f| f.file_name().into_string().ok()).filter(ours).collect();
    names.sort();
    names
}

/// The same names, and those beside which a killed install has left something.
pub fn names_with_our_files(directory: &Path) -> Vec<String> {
    let left = |file: &str| {
        let aside = file.strip_prefix('.').and_then(|f| f.strip_suffix(NEW).or_else(|| f.strip_suffix(KEEP)));
        let name = aside.unwrap_or(file);
        name.strip_suffix(ORIGINAL).or(aside).map(str::to_owned)
    };
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let beside = files.filter_map(|file| left(file.file_name().to_str()?));
    let bare = |name: &String| paths_of(directory, name).is_ok();
    let names: BTreeSet<String> = beside.chain(installed(directory)).filter(bare).collect();
    names.into_iter().collect()
}

fn paths_of(directory: &Path, name: &str) -> Result<(PathBuf, PathBuf), InstallError> {
    let bare = !name.is_empty()
        && !name.contains(['/', '\0'])
        && !name.starts_with('.')
        && !name.ends_with(ORIGINAL);
    if !bare {
        return Err(InstallError::Name { name: name.into() });
    }
    Ok((directory.join(name), directory.join(format!("{name}{ORIGINAL}"))))
}

fn same_file(one: &Path, other: &Path) -> bool {
    let of = |path| fs::symlink_metadata(path).map(|m| (m.dev(), m.ino())).ok();
    of(one).is_some() && of(one) == of(other)
}

#[cfg(test)]
mod tests;
