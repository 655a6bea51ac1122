//! Files of the host as a daemon sees them that may live in a container: every path, and every symbolic link on
//! it, resolves below the host's root (`openat2(2)`, `RESOLVE_IN_ROOT`).
//!
//! Never follows a link, or a `..`, to something of the daemon's own file system.
//!
//! A container has parts of the host mounted only. What is read and is not among them is looked for in the root of the host's first
//! process ([`unmounted_root`]); nothing is ever written or made there.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    Access, AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, access, fchmod, mkdirat, openat, openat2,
    renameat, statat, unlinkat,
};
use rustix::io::Errno;

use crate::disk_space;
use crate::files::{gone, regular, text_of};
use crate::{strict_path, trusted_file};

/// A path of the host, as this process sees it.
pub fn below(host_root: &Path, path: &Path) -> PathBuf {
    host_root.join(path.strip_prefix("/").unwrap_or(path))
}

/// A path that this process sees, as the host has it.
pub fn host_path<'p>(host_root: &Path, path: &'p Path) -> Cow<'p, Path> {
    path.strip_prefix(host_root).map_or(Cow::Borrowed(path), |below| Cow::Owned(Path::new("/").join(below)))
}

/// The host's whole root as a container that sees the host's processes has it: that of process 1. For reading only; the rights of that
/// process's files hold, and CAP_SYS_PTRACE is needed. `None` for a daemon that is in no container, or may not look.
pub fn unmounted_root(host_root: &Path) -> Option<PathBuf> {
    let of_process_1 = host_root.join("proc/1/root");
    (host_root != Path::new("/") && of_process_1.is_dir()).then_some(of_process_1)
}

/// The host's root directory.
#[derive(Debug, Clone)]
pub struct HostRoot {
    path: PathBuf,
    /// A directory of the host's below which no path leads elsewhere.
    strict_below: Option<PathBuf>,
}

impl HostRoot {
    /// The host's whole root, for reading: in a container that of [`unmounted_root`], where it may be looked at.
    pub fn whole(host_root: &Path) -> HostRoot {
        HostRoot::new(unmounted_root(host_root).unwrap_or_else(|| host_root.to_owned()))
    }

    /// The root as the daemon sees it: `/`, or where it is mounted in its container.
    pub fn new(path: PathBuf) -> HostRoot {
        HostRoot { path, strict_below: None }
    }

    /// The same for paths below a directory that the administrator names, where others may write: up to there symbolic links are
    /// followed, from there on every symbolic link and mount is refused ([`strict_path::LeadsElsewhere`]), as is a path
    /// that is not below it.
    pub fn strict_below(&self, trusted: &Path) -> HostRoot {
        HostRoot { strict_below: Some(trusted.to_owned()), ..self.clone() }
    }

    /// A path as this process sees it, to be watched: whoever reads goes by the other methods.
    pub fn seen_at(&self, path: &Path) -> PathBuf {
        below(&self.path, path)
    }

    /// Opens a file for reading.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        Ok(File::from(self.look_up(path, OFlags::RDONLY | OFlags::CLOEXEC)?))
    }

    /// Whether something is there, of whatever kind: nothing is opened.
    ///
    /// # Errors
    /// Why it cannot be reached; kind `NotFound` where there is none.
    pub fn exists(&self, path: &Path) -> io::Result<()> {
        self.look_up(path, OFlags::PATH | OFlags::CLOEXEC).map(drop)
    }

    /// What the kernel says of what is there, of whatever kind: nothing is opened.
    pub fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        File::from(self.look_up(path, OFlags::PATH | OFlags::CLOEXEC)?).metadata()
    }

    /// Whether what the host has at `path` is what this process has at `here`, by whatever links and mounts they lead there. `None`: the
    /// host has nothing at `path`, or one of them may not be looked at.
    pub fn is_same(&self, path: &Path, here: &Path) -> Option<bool> {
        let hosts = self.metadata(path).ok()?;
        match std::fs::metadata(here) {
            Ok(here) => Some((here.dev(), here.ino()) == (hosts.dev(), hosts.ino())),
            Err(error) => (error.kind() == io::ErrorKind::NotFound).then_some(false),
        }
    }

    /// The names of at most so many entries of a directory, as far as they are text.
    ///
    /// # Errors
    /// What the kernel says where it cannot be read.
    pub fn names_in(&self, path: &Path, most: usize) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::new(self.directory(path)?)? {
            match entry?.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
            if names.len() >= most {
                break;
            }
        }
        names.sort();
        Ok(names)
    }

    /// The text of a regular file of at most `limit` bytes: neither a pipe that nobody writes to nor a device without an
    /// end keeps the caller, and no device is opened.
    pub fn read(&self, path: &Path, limit: u64) -> io::Result<String> {
        let seen = File::from(self.look_up(path, OFlags::PATH | OFlags::CLOEXEC)?);
        let seen = OwnedFd::from(regular(seen)?);
        text_of(File::from(trusted_file::opened(&seen, OFlags::RDONLY)?), limit)
    }

    /// The text of a file of at most `limit` bytes, by the rules of [`trusted_file`].
    pub fn read_trusted(&self, path: &Path, limit: u64) -> io::Result<String> {
        let (dir, name) = split(path)?;
        let (file, _) = trusted_file::open(self.directory(dir)?, name, OFlags::RDONLY)?;
        text_of(File::from(file), limit)
    }

    /// Opens a directory that exists.
    pub fn directory(&self, path: &Path) -> io::Result<OwnedFd> {
        self.open_with(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC)
    }

    /// Opens a directory; where it does not exist it is made, with its parents (0755).
    pub fn make_directory(&self, path: &Path) -> io::Result<OwnedFd> {
        match self.make_directory_once(path) {
            // Somebody has removed one on the way, which was empty, since it was made or looked for.
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.make_directory_once(path),
            done => done,
        }
    }

    fn make_directory_once(&self, path: &Path) -> io::Result<OwnedFd> {
        match self.directory(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            done => return done,
        }
        // Part by part from the root, each opened the safe way: a symbolic link on the path must not lead out of the host's root.
        let mut prefix = PathBuf::from("/");
        let mut parent = self.directory(&prefix)?;
        for part in
            path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        {
            prefix.push(part);
            if part != Component::ParentDir {
                match mkdirat(&parent, part.as_os_str(), Mode::from_raw_mode(0o755)) {
                    // EXIST: somebody else made it since it was looked for.
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            parent = self.directory(&prefix)?;
        }
        Ok(parent)
    }

    /// Makes a directory of this mode in one that exists; that it is there, of whatever mode, is success.
    pub fn make_one_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        let (dir, name) = split(path)?;
        let (dir, mode) = (self.directory(dir)?, Mode::from_raw_mode(mode));
        match mkdirat(&dir, name, mode) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
        // The umask may have taken bits from the mode with which it was made.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(fchmod(openat(&dir, name, flags, Mode::empty())?, mode)?)
    }

    /// Removes an empty directory. False: it has something in it, or is none, and stays. One that is not there is success.
    pub fn remove_empty_directory(&self, path: &Path) -> io::Result<bool> {
        let (dir, name) = split(path)?;
        let removed = self.directory(dir).and_then(|dir| {
            // On a read-only file system the kernel refuses to remove also what is not there.
            statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
            Ok(unlinkat(&dir, name, AtFlags::REMOVEDIR)?)
        });
        match gone(removed) {
            Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::NOTEMPTY | Errno::NOTDIR)) => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Puts a file in place of what is there, at once and whole, with this mode; its directories are made. What is there has to
    /// keep the rules of [`trusted_file`].
    pub fn replace(&self, path: &Path, text: &[u8], mode: u32) -> io::Result<()> {
        let (dir, name) = split(path)?;
        let dir = self.make_directory(dir)?;
        trusted_file::is_ours_or_free(&dir, name)?;
        let beside = format!(".{name}.fairlead");
        let _ = unlinkat(&dir, &beside, AtFlags::empty()); // what a kill has left
        // EXCL and NOFOLLOW: through a link of this name the daemon would write to somebody else's file.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&dir, &beside, flags, Mode::from_raw_mode(mode))?);
        let written = file
            .write_all(text)
            // The umask may have taken bits from the mode with which the file was made.
            .and_then(|()| fchmod(&file, Mode::from_raw_mode(mode)).map_err(io::Error::from))
            // Last, so that a reader finds the old text or the new, never half of one.
            .and_then(|()| renameat(&dir, &beside, &dir, name).map_err(io::Error::from));
        written.inspect_err(|_| {
            let _ = unlinkat(&dir, &beside, AtFlags::empty());
        })
    }

    /// Removes a file; one that is not there is success.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = split(path)?;
        gone(self.directory(dir).and_then(|dir| Ok(unlinkat(&dir, name, AtFlags::empty())?)))
    }

    /// Removes a file by the rules of [`trusted_file`]; one that is not there is success.
    pub fn remove_trusted(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = split(path)?;
        let removed = self.directory(dir).and_then(|dir| {
            trusted_file::is_ours_or_free(&dir, name)?;
            Ok(unlinkat(&dir, name, AtFlags::empty())?)
        });
        gone(removed)
    }

    /// Whether a file could be made in a directory, or the directory itself where it does not exist yet: by its rights, and
    /// by what its file system has left.
    pub fn writable(&self, path: &Path) -> io::Result<()> {
        for place in path.ancestors() {
            match self.open_with(place, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
                Ok(fd) => {
                    // access(2) takes a path; this one leads to the very directory that was resolved below the host's root.
                    let itself = format!("/proc/self/fd/{}", fd.as_raw_fd());
                    access(&itself, Access::WRITE_OK)?;
                    return disk_space::left(Path::new(&itself));
                }
            }
        }
        Err(Errno::NOENT.into())
    }

    /// Opens what is only looked at: also where this container has it not mounted.
    fn look_up(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        self.open_with(path, flags).or_else(|error| {
            let not_here = error.kind() == io::ErrorKind::NotFound && self.strict_below.is_none();
            match unmounted_root(&self.path).filter(|_| not_here) {
                Some(elsewhere) => HostRoot::new(elsewhere).resolve(path, flags).map_err(|_| error),
                None => Err(error),
            }
        })
    }

    fn open_with(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let Some(trusted) = &self.strict_below else { return self.resolve(path, flags) };
        match path.strip_prefix(trusted) {
            Ok(below) if !below.as_os_str().is_empty() => {
                let dir = self.resolve(trusted, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)?;
                strict_path::open(dir, trusted, below, flags)
            }
            Err(_) if !trusted.starts_with(path) => {
                let text = format!("{} is not below {}", path.display(), trusted.display());
                Err(io::Error::new(io::ErrorKind::InvalidInput, text))
            }
            Ok(_) | Err(_) => self.resolve(path, flags),
        }
    }

    fn resolve(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let root =
            openat(CWD, &self.path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        // openat2(2) asks for NO_MAGICLINKS beside IN_ROOT, which need not refuse magic links in later kernels.
        let flags_of_way = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        Ok(openat2(&root, path, flags, Mode::empty(), flags_of_way)?)
    }
}

/// A file's directory and name.
fn split(path: &Path) -> io::Result<(&Path, &str)> {
    let name = path.file_name().and_then(OsStr::to_str);
    path.parent().zip(name).ok_or_else(|| io::Error::other("it is no file's path"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

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

    #[test]
    fn what_a_container_has_not_mounted_is_read_in_the_root_of_process_1_and_never_written_there() {
        let dir = tempfile::tempdir().unwrap();
        let (whole, mounted) = (dir.path().join("whole"), dir.path().join("mounted"));
        for place in
            [whole.join("run/multus"), whole.join("etc"), mounted.join("proc/1"), mounted.join("etc")]
        {
            std::fs::create_dir_all(place).unwrap();
        }
        symlink(&whole, mounted.join("proc/1/root")).unwrap();
        symlink("/run/multus", whole.join("var")).unwrap();
        std::fs::write(whole.join("run/multus/ready"), "yes").unwrap();
        std::fs::write(whole.join("etc/resolv.conf"), "of process 1").unwrap();
        std::fs::write(mounted.join("etc/resolv.conf"), "mounted").unwrap();
        let root = HostRoot::new(mounted);
        root.exists(Path::new("/var/ready")).unwrap();
        assert_eq!(root.read(Path::new("/run/multus/ready"), 10).unwrap(), "yes");
        assert_eq!(root.read(Path::new("/etc/resolv.conf"), 10).unwrap(), "mounted");
        assert_eq!(root.exists(Path::new("/run/none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        root.replace(Path::new("/run/multus/ready"), b"no", 0o600).unwrap();
        assert_eq!(std::fs::read_to_string(whole.join("run/multus/ready")).unwrap(), "yes");
        assert_eq!(root.read(Path::new("/run/multus/ready"), 10).unwrap(), "no");
        let strict = root.strict_below(Path::new("/etc"));
        assert_eq!(
            strict.exists(Path::new("/run/multus/other")).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }

    #[test]
    fn one_directory_is_made_and_removed_where_it_is_empty_and_a_link_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::new(dir.path().into());
        let path = Path::new("/base/one");
        root.make_one_directory(path, 0o750).unwrap_err();
        std::fs::create_dir(dir.path().join("base")).unwrap();
        for _ in 0..2 {
            root.make_one_directory(path, 0o777).unwrap();
        }
        let made = std::fs::metadata(dir.path().join("base/one")).unwrap();
        assert_eq!(made.permissions().mode() & 0o7777, 0o777, "whatever the umask");
        std::fs::write(dir.path().join("base/one/file"), "").unwrap();
        assert!(!root.remove_empty_directory(path).unwrap());
        std::fs::remove_file(dir.path().join("base/one/file")).unwrap();
        for _ in 0..2 {
            assert!(root.remove_empty_directory(path).unwrap());
        }
        symlink("/base", dir.path().join("base/one")).unwrap();
        assert!(!root.remove_empty_directory(path).unwrap());
        assert!(root.strict_below(Path::new("/base")).directory(path).is_err());
    }

    #[test]
    fn a_file_is_put_in_place_whole_and_removed_and_no_link_leads_out() {
        let dir = tempfile::tempdir().unwrap();
        let (outside, inside) = (dir.path().join("outside"), dir.path().join("root"));
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::create_dir_all(&inside).unwrap();
        symlink(&outside, inside.join("away")).unwrap();
        let root = HostRoot::new(inside.clone());
        let path = Path::new("/var/run/info.json");
        for text in ["one", "another"] {
            root.replace(path, text.as_bytes(), 0o444).unwrap();
            assert_eq!(std::fs::read_to_string(inside.join("var/run/info.json")).unwrap(), text);
        }
        let mode = std::fs::metadata(inside.join("var/run/info.json")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o444);
        root.remove(path).unwrap();
        root.remove(path).unwrap();
        assert_eq!(std::fs::read_dir(inside.join("var/run")).unwrap().count(), 0);
        root.replace(Path::new("/away/info.json"), b"text", 0o444).unwrap_err();
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn below_a_strict_directory_every_link_and_mount_is_refused_and_up_to_it_links_are_followed() {
        use nix::mount::{MntFlags, MsFlags, mount, umount2};
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["outside", "run/real/plain", "run/real/mounted", "run/real/deep"] {
            std::fs::create_dir_all(at(name)).unwrap();
        }
        symlink("/run/real", at("trusted")).unwrap();
        symlink("/outside", at("run/real/link")).unwrap();
        symlink("../../../outside", at("run/real/deep/link")).unwrap();
        let root = HostRoot::new(dir.path().into()).strict_below(Path::new("/trusted"));
        let none: Option<&str> = None;
        mount(Some(&at("outside")), &at("run/real/mounted"), none, MsFlags::MS_BIND, none).unwrap();
        let told = |path: &str| {
            let path = Path::new(path);
            [root.directory(path).map(drop), root.make_directory(path).map(drop), root.writable(path)]
        };
        let all = [
            ("/trusted/link/net", r#""/trusted/link" is a symbolic link, and leads out of "/trusted""#),
            ("/trusted/deep/link", r#""/trusted/deep/link" is a symbolic link, and leads out of "/trusted""#),
            ("/trusted/mounted/net", r#""/trusted/mounted" is a mount, and leads out of "/trusted""#),
        ]
        .map(|(path, wanted)| (told(path), wanted));
        let elsewhere = root.make_directory(Path::new("/outside/net"));
        umount2(&at("run/real/mounted"), MntFlags::MNT_DETACH).unwrap();
        for (told, wanted) in all {
            for error in told.map(Result::unwrap_err) {
                assert!(strict_path::leads_elsewhere(&error) && error.to_string() == wanted, "{error}");
            }
        }
        elsewhere.unwrap_err();
        assert_eq!(std::fs::read_dir(at("outside")).unwrap().count(), 0);
        root.make_directory(Path::new("//trusted/./plain/a/b")).unwrap();
        root.writable(Path::new("/trusted/plain/c/d")).unwrap();
        assert!(at("run/real/plain/a/b").is_dir());
    }
}
