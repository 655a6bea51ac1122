//! Files of the host as a daemon sees them that may live in a container: every path, and every symbolic link on
//! it, resolves below the host's root (`openat2(2)`, `RESOLVE_IN_ROOT`).
//!
//! Never follows a link, or a `..`, to something of the daemon's own file system.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Access, CWD, Mode, OFlags, ResolveFlags, access, mkdirat, openat, openat2};
use rustix::io::Errno;

use crate::reading::text_of;
use crate::space;

/// The host's root directory.
#[derive(Debug)]
pub(crate) struct HostRoot {
    path: PathBuf,
}

impl HostRoot {
    /// The root as the daemon sees it: `/`, or where it is mounted in its container.
    pub(crate) fn new(path: PathBuf) -> HostRoot {
        HostRoot { path }
    }

    /// A file, for reading.
    pub(crate) fn open(&self, path: &Path) -> io::Result<File> {
        Ok(File::from(self.open_with(path, OFlags::RDONLY | OFlags::CLOEXEC)?))
    }

    /// The text of a regular file of at most `limit` bytes: neither a pipe that nobody writes to nor a device without an
    /// end keeps the caller.
    pub(crate) fn read(&self, path: &Path, limit: u64) -> io::Result<String> {
        let file = File::from(self.open_with(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC)?);
        text_of(file, limit)
    }

    /// A directory that exists.
    pub(crate) fn directory(&self, path: &Path) -> io::Result<OwnedFd> {
        Ok(self.open_with(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC)?)
    }

    /// A directory that is made, with its parents (0755), where it does not exist.
    pub(crate) fn make_directory(&self, path: &Path) -> io::Result<OwnedFd> {
        match self.directory(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            done => return done,
        }
        let mut prefix = PathBuf::from("/");
        let mut parent = self.directory(&prefix)?;
        for part in
            path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        {
            prefix.push(part);
            if part != Component::ParentDir {
                match mkdirat(&parent, part.as_os_str(), Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            parent = self.directory(&prefix)?;
        }
        Ok(parent)
    }

    /// Whether a file could be made in a directory, or the directory itself where it does not exist yet: by its rights, and
    /// by what its file system has left.
    pub(crate) fn writable(&self, path: &Path) -> io::Result<()> {
        for place in path.ancestors() {
            match self.open_with(place, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC) {
                Err(Errno::NOENT) => {}
                Err(e) => return Err(e.into()),
                Ok(fd) => {
                    let itself = format!("/proc/self/fd/{}", fd.as_raw_fd());
                    access(&itself, Access::WRITE_OK)?;
                    return space::left(Path::new(&itself));
                }
            }
        }
        Err(Errno::NOENT.into())
    }

    fn open_with(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let root =
            openat(CWD, &self.path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn an_absolute_link_stays_below_the_hosts_root() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("run/real")).unwrap();
        std::fs::write(dir.path().join("run/real/resolv.conf"), "of the host").unwrap();
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        symlink("/run/real/resolv.conf", dir.path().join("etc/resolv.conf")).unwrap();
        let root = HostRoot::new(dir.path().into());
        let text = io::read_to_string(root.open(Path::new("/etc/resolv.conf")).unwrap()).unwrap();
        assert_eq!(text, "of the host");
        root.make_directory(Path::new("/../../a/b/c")).unwrap();
        assert!(dir.path().join("a/b/c").is_dir());
    }
}
