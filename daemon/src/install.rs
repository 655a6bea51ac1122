//! Puts the executable under the plugins' names, and takes it away again.
//!
//! At no moment is a name missing that existed before, and no file is ever half written: the new file is written
//! beside, made durable and renamed into place, and the original gets its second name before it loses the first.
//! So a kill at any point leaves either the one or the other, and running the same command again completes it. A
//! running executable is not disturbed. Whatever command comes next removes what a kill has left beside the
//! names.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

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
    #[error("{path} can't be {what}: {source}", path = .path.display())]
    Io {
        /// The file that the step was about.
        path: PathBuf,
        /// The step as a participle, such as read or written.
        what: &'static str,
        /// Why the step failed.
        source: io::Error,
    },
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

pub(crate) fn failed(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> InstallError {
    let path = path.to_path_buf();
    move |source| InstallError::Io { path, what, source }
}

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
    let there = read_optional(&target)?;
    if there.as_deref() == Some(program) {
        return Ok(InstallOutcome::Unchanged);
    }
    let new = directory.join(format!(".{name}{NEW}"));
    step("write")?;
    write_durably(&new, program, 0o755)?;
    if there.is_some_and(|there| !is_ours(&there)) {
        keep_original(directory, name, step)?;
    }
    step("rename")?;
    fs::rename(&new, &target).map_err(failed(&target, "replaced"))?;
    step("sync")?;
    sync(directory)?;
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
    sync(directory)
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
    let there = read_optional(&target)?;
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
    sync(directory)?;
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

pub(crate) fn read_optional(path: &Path) -> Result<Option<Vec<u8>>, InstallError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(path, "read")(error)),
    }
}

/// Writes a file and has it on the disk before it returns.
pub(crate) fn write_durably(path: &Path, bytes: &[u8], mode: u32) -> Result<(), InstallError> {
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path)
        .map_err(failed(path, "made"))?;
    file.write_all(bytes)
        .and_then(|()| file.set_permissions(fs::Permissions::from_mode(mode)))
        .and_then(|()| file.sync_all())
        .map_err(failed(path, "written"))
}

/// Has what was renamed and removed in a directory on the disk before it returns.
pub(crate) fn sync(directory: &Path) -> Result<(), InstallError> {
    File::open(directory).and_then(|d| d.sync_all()).map_err(failed(directory, "made durable"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GO: &[u8] = b"the plugin that was there";

    fn ours(version: &str) -> Vec<u8> {
        [b"ELF fairlead ", fairlead_cni::wire::OUTCOME_HEADER.as_bytes(), version.as_bytes()].concat()
    }

    fn killed(at: usize) -> impl FnMut(&'static str) -> Result<(), InstallError> {
        let mut left = at;
        move |what| match left {
            0 => Err(failed(Path::new("killed"), what)(io::Error::other("here"))),
            _ => {
                left -= 1;
                Ok(())
            }
        }
    }

    #[test]
    fn x18_killed_at_any_step_of_install_the_name_is_whole_and_the_next_run_completes_it() {
        let mut kills = 0;
        loop {
            let dir = tempfile::tempdir().unwrap();
            let target = dir.path().join("macvlan");
            fs::write(&target, GO).unwrap();
            let new = ours("1");
            let ended = install_with(dir.path(), "macvlan", &new, &mut killed(kills));
            let there = fs::read(&target).unwrap();
            assert!(there == GO || there == new, "at step {kills}");
            assert!(there == GO || fs::read(dir.path().join("macvlan.fairlead-original")).unwrap() == GO);
            install_with(dir.path(), "macvlan", &new, &mut |_| Ok(())).unwrap();
            assert_eq!(fs::read(&target).unwrap(), new);
            assert_eq!(uninstall(dir.path(), "macvlan").unwrap(), InstallOutcome::Restored);
            assert_eq!(fs::read(&target).unwrap(), GO);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "something is left after step {kills}");
            if ended.is_ok() {
                break;
            }
            kills += 1;
        }
        assert_eq!(kills, 6);
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn x18_what_an_install_that_was_killed_has_left_is_removed_by_uninstall_without_being_named() {
        for original in [Some(GO), None] {
            for kills in 0..7 {
                let dir = tempfile::tempdir().unwrap();
                let target = dir.path().join("macvlan");
                if let Some(original) = original {
                    fs::write(&target, original).unwrap();
                }
                let _ = install_with(dir.path(), "macvlan", &ours("1"), &mut killed(kills));
                let found = names_with_our_files(dir.path());
                for name in &found {
                    let done = uninstall(dir.path(), name).unwrap();
                    assert!(
                        !matches!(done, InstallOutcome::NotOurs | InstallOutcome::Absent),
                        "at step {kills}"
                    );
                }
                assert_eq!(
                    names(dir.path()),
                    original.map_or(vec![], |_| vec!["macvlan"]),
                    "at step {kills}"
                );
                assert_eq!(fs::read(&target).ok().as_deref(), original, "at step {kills}");
                assert!(names_with_our_files(dir.path()).is_empty());
            }
        }
    }

    #[test]
    fn x18_what_an_upgrade_that_was_killed_has_left_is_removed_by_the_next_install() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("macvlan"), GO).unwrap();
        let put = |version, kills| install_with(dir.path(), "macvlan", &ours(version), &mut killed(kills));
        put("1", 9).unwrap();
        put("2", 1).unwrap_err();
        assert!(dir.path().join(".macvlan.fairlead-new").exists());
        assert_eq!(put("1", 9).unwrap(), InstallOutcome::Unchanged);
        assert_eq!(names(dir.path()), ["macvlan", "macvlan.fairlead-original"]);
    }

    #[test]
    fn x18_killed_at_any_step_of_uninstall_the_name_is_whole_and_the_next_run_completes_it() {
        for kills in 0..2 {
            let dir = tempfile::tempdir().unwrap();
            let target = dir.path().join("vlan");
            fs::write(&target, GO).unwrap();
            install_with(dir.path(), "vlan", &ours("1"), &mut |_| Ok(())).unwrap();
            uninstall_with(dir.path(), "vlan", &mut killed(kills)).unwrap_err();
            let there = fs::read(&target).unwrap();
            assert!(there == GO || there == ours("1"));
            uninstall(dir.path(), "vlan").unwrap();
            assert_eq!(fs::read(&target).unwrap(), GO);
        }
    }

    #[test]
    fn x18_a_second_install_and_an_upgrade_keep_the_original() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ipvlan"), GO).unwrap();
        let put = |version| install_with(dir.path(), "ipvlan", &ours(version), &mut |_| Ok(())).unwrap();
        assert_eq!(
            [put("1"), put("1"), put("2")],
            [InstallOutcome::Installed, InstallOutcome::Unchanged, InstallOutcome::Installed]
        );
        assert_eq!(fs::read(dir.path().join("ipvlan.fairlead-original")).unwrap(), GO);
        assert_eq!(installed(dir.path()), ["ipvlan"]);
    }

    #[test]
    fn x18_without_an_original_nothing_is_left_and_a_foreign_file_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        install_with(dir.path(), "fairlead", &ours("1"), &mut |_| Ok(())).unwrap();
        assert_eq!(uninstall(dir.path(), "fairlead").unwrap(), InstallOutcome::Removed);
        assert_eq!(uninstall(dir.path(), "fairlead").unwrap(), InstallOutcome::Absent);
        fs::write(dir.path().join("bridge"), GO).unwrap();
        assert_eq!(uninstall(dir.path(), "bridge").unwrap(), InstallOutcome::NotOurs);
        assert_eq!(fs::read(dir.path().join("bridge")).unwrap(), GO);
    }

    #[test]
    fn x18_an_original_that_a_package_has_overtaken_is_told_and_left() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("macvlan");
        fs::write(&target, GO).unwrap();
        install_with(dir.path(), "macvlan", &ours("1"), &mut |_| Ok(())).unwrap();
        fs::write(dir.path().join("newer"), "of the package").unwrap();
        fs::rename(dir.path().join("newer"), &target).unwrap();
        assert_eq!(names_with_our_files(dir.path()), ["macvlan"]);
        let done = uninstall(dir.path(), "macvlan").unwrap();
        assert_eq!(done, InstallOutcome::Overwritten);
        assert!(done.message().contains(ORIGINAL), "{}", done.message());
        assert_eq!(fs::read(&target).unwrap(), b"of the package");
        assert_eq!(names(dir.path()), ["macvlan", "macvlan.fairlead-original"]);
    }

    #[test]
    fn a_directory_that_is_not_there_is_refused_and_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("fairlead");
        fs::write(&from, ours("1")).unwrap();
        let mistyped = dir.path().join("bni");
        let refused = install(&mistyped, "macvlan", &from).unwrap_err().to_string();
        assert!(refused.ends_with(&format!("mkdir -p {}", mistyped.display())), "{refused}");
        assert_eq!(names(dir.path()), ["fairlead"]);
    }

    /// Needs root: a file system of 64 KiB.
    #[test]
    fn x18_an_install_that_a_full_disk_ends_leaves_nothing_half_written() {
        use nix::mount::{MntFlags, MsFlags, mount, umount2};
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("fairlead");
        fs::write(&from, [ours("1"), vec![0; 1 << 20]].concat()).unwrap();
        let small = dir.path().join("small");
        fs::create_dir(&small).unwrap();
        mount(Some("tmpfs"), &small, Some("tmpfs"), MsFlags::empty(), Some("size=64k")).unwrap();
        fs::write(small.join("macvlan"), GO).unwrap();
        let ended = install(&small, "macvlan", &from);
        let left = names(&small);
        umount2(&small, MntFlags::MNT_DETACH).unwrap();
        assert!(matches!(ended, Err(InstallError::Io { what: "written", .. })), "{ended:?}");
        assert_eq!(left, ["macvlan"]);
    }

    #[test]
    fn x18_a_running_executable_is_replaced_without_being_busy() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("macvlan");
        fs::copy("/bin/sleep", &target).unwrap();
        let mut running = std::process::Command::new(&target).arg("60").spawn().unwrap();
        let done = install_with(dir.path(), "macvlan", &ours("1"), &mut |_| Ok(()));
        let alive = running.try_wait().unwrap().is_none();
        running.kill().unwrap();
        running.wait().unwrap();
        assert_eq!((done.unwrap(), alive), (InstallOutcome::Installed, true));
    }

    #[test]
    fn names_with_a_slash_and_files_that_are_not_ours_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a/b", "", "..", ".hidden", "x.fairlead-original"] {
            assert!(matches!(uninstall(dir.path(), name), Err(InstallError::Name { .. })), "{name:?}");
        }
        fs::write(dir.path().join("other"), GO).unwrap();
        let refused = install(dir.path(), "macvlan", &dir.path().join("other"));
        assert!(matches!(refused, Err(InstallError::NotOurs { .. })));
    }
}
