//! Directories of pods below one of root's: each is a pod's at a time, and the next pod gets another one under the same name.
//!
//! A pod may have put anything into its directory, and may still have it open when it is over. So the directory is not emptied for the
//! next pod: it gets a name that says so, which takes one step, and a new one is made in its place. What is in the old one is removed
//! later, step by step: no link is followed, no depth is too deep, and nobody waits for it.
//!
//! The directory above must be root's alone: what is in there is nobody else's to rename.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RawMode, fchmod, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::failpoint;
use super::socket_file::random;

/// The beginning of the names of what nobody has any more.
const DISCARDED: &str = ".gone-";

/// Makes an empty directory with this mode; whatever has its name is discarded.
///
/// # Errors
/// The kernel's.
pub fn renew(parent: impl AsFd, name: &str, mode: RawMode) -> io::Result<OwnedFd> {
    discard(&parent, name)?;
    failpoint::pass("directory.discarded");
    mkdirat(&parent, name, Mode::from_raw_mode(0o700))?;
    let made = open(&parent, name)?;
    // By the descriptor: the mode with which it is made goes by the umask.
    fchmod(&made, Mode::from_raw_mode(mode))?;
    Ok(made)
}

/// Opens the directory of this name; a link is not followed.
///
/// # Errors
/// The kernel's.
pub fn open(parent: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    Ok(openat(parent, name, DIRECTORY, Mode::empty())?)
}

/// Takes its name from whatever has it; [`sweep`] removes it. One that is gone is success.
///
/// # Errors
/// The kernel's.
pub fn discard(parent: impl AsFd, name: &str) -> io::Result<()> {
    match renameat(&parent, name, &parent, discarded_name()?) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// The names of all that is not discarded.
///
/// # Errors
/// The kernel's.
pub fn names(parent: impl AsFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(parent)? {
        let entry = entry?;
        names.extend(entry.file_name().to_str().ok().map(str::to_owned));
    }
    names.retain(|name| !name.starts_with('.'));
    Ok(names)
}

/// Removes what was discarded, in this many steps at most; true when nothing of it is left.
///
/// # Errors
/// The kernel's, of the first thing that could not be removed; the others are.
pub fn sweep(parent: impl AsFd, steps: usize) -> io::Result<bool> {
    let mut left = steps;
    let mut first_error = None;
    loop {
        let (mut found, mut removed) = (false, false);
        for entry in Dir::read_from(&parent)? {
            let entry = entry?;
            if !entry.file_name().to_bytes().starts_with(DISCARDED.as_bytes()) {
                continue;
            }
            found = true;
            match remove_discarded(&parent, entry.file_name(), &mut left) {
                Ok(()) => removed = true,
                Err(error) => first_error = first_error.or(Some(error)),
            }
            if left == 0 {
                return Ok(false);
            }
        }
        match (found, removed, first_error.take()) {
            (false, ..) => return Ok(true),
            (true, false, Some(error)) => return Err(error),
            (.., error) => first_error = error,
        }
    }
}

/// Removes one thing with what is in it. A directory in it is discarded by itself, so that nothing is ever deep.
fn remove_discarded(parent: impl AsFd, name: &CStr, left: &mut usize) -> io::Result<()> {
    *left = left.saturating_sub(1);
    let directory = match openat(&parent, name, DIRECTORY, Mode::empty()) {
        Ok(directory) => directory,
        Err(Errno::NOTDIR | Errno::LOOP) => return remove(&parent, name, AtFlags::empty()),
        Err(Errno::NOENT) => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    loop {
        let mut is_empty = true;
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let inner = entry.file_name();
            if inner == c"." || inner == c".." {
                continue;
            }
            if *left == 0 {
                return Ok(());
            }
            (*left, is_empty) = (*left - 1, false);
            match unlinkat(&directory, inner, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR) => renameat(&directory, inner, &parent, discarded_name()?)?,
                Err(e) => return Err(e.into()),
            }
        }
        if is_empty {
            break;
        }
    }
    match remove(&parent, name, AtFlags::REMOVEDIR) {
        // Whoever still has it open has made something since: the next look finds that.
        Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        done => done,
    }
}

fn remove(parent: impl AsFd, name: &CStr, flags: AtFlags) -> io::Result<()> {
    match unlinkat(parent, name, flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn discarded_name() -> io::Result<String> {
    Ok(format!("{DISCARDED}{:016x}", random()?))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use super::*;

    fn count(dir: &Path) -> usize {
        fs::read_dir(dir).unwrap().count()
    }

    fn swept(parent: &File) {
        let mut tries = 0;
        while !sweep(parent, 100).unwrap() {
            tries += 1;
            assert!(tries < 1000, "it never ends");
        }
    }

    #[test]
    fn a_new_owner_gets_an_empty_directory_of_the_same_name_and_the_old_one_goes_with_all_that_is_in_it() {
        let root = tempfile::tempdir().unwrap();
        let (parent, outside) = (root.path().join("ports"), root.path().join("outside"));
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("file"), "the host's").unwrap();
        fs::create_dir(&parent).unwrap();
        let (at, parent) = (parent.join("p-00"), File::open(&parent).unwrap());
        let old = renew(&parent, "p-00", 0o777).unwrap();
        assert_eq!(fs::metadata(&at).unwrap().permissions().mode() & 0o7777, 0o777);
        // All that a pod can think of.
        symlink(&outside, at.join("link")).unwrap();
        symlink(outside.join("file"), at.join("file-link")).unwrap();
        fs::write(at.join("file"), "x").unwrap();
        fs::create_dir(at.join("locked")).unwrap();
        fs::write(at.join("locked/file"), "x").unwrap();
        fs::set_permissions(at.join("locked"), PermissionsExt::from_mode(0o000)).unwrap();
        nix::unistd::mkfifo(&at.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let _listener = UnixListener::bind(at.join("vhost-user.sock")).unwrap();
        for n in 0..250 {
            fs::write(at.join(format!("many-{n}")), "x").unwrap();
        }
        let new = renew(&parent, "p-00", 0o755).unwrap();
        assert_eq!((count(&at), fs::metadata(&at).unwrap().permissions().mode() & 0o777), (0, 0o755));
        assert!(!sweep(&parent, 100).unwrap(), "more is there than that");
        swept(&parent);
        assert_eq!((count(at.parent().unwrap()), names(&parent).unwrap()), (1, vec!["p-00".to_owned()]));
        assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "the host's");
        // Who has the old one open makes nothing in it any more, and sees nothing of the new one.
        let in_old = format!("/proc/self/fd/{}/late", old.as_raw_fd());
        assert_eq!(fs::write(in_old, "x").unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(format!("/proc/self/fd/{}/mine", new.as_raw_fd()), "x").unwrap();
        assert_eq!(count(&at), 1);
        discard(&parent, "p-00").unwrap();
        discard(&parent, "p-00").unwrap();
        swept(&parent);
        assert_eq!(count(at.parent().unwrap()), 0);
    }

    #[test]
    fn no_depth_is_too_deep() {
        let root = tempfile::tempdir().unwrap();
        let parent = File::open(root.path()).unwrap();
        let mut dir = renew(&parent, "p-00", 0o777).unwrap();
        for _ in 0..2000 {
            mkdirat(&dir, "deeper", Mode::from_raw_mode(0o700)).unwrap();
            dir = open(&dir, "deeper").unwrap();
        }
        drop(dir);
        discard(&parent, "p-00").unwrap();
        swept(&parent);
        assert_eq!(count(root.path()), 0);
    }

    #[test]
    fn a_link_in_a_directorys_place_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("outside")).unwrap();
        fs::write(root.path().join("outside/file"), "the host's").unwrap();
        symlink("outside", root.path().join("p-00")).unwrap();
        let parent = File::open(root.path()).unwrap();
        open(&parent, "p-00").unwrap_err();
        renew(&parent, "p-00", 0o755).unwrap();
        swept(&parent);
        assert_eq!((count(root.path()), count(&root.path().join("outside"))), (2, 1));
    }
}
