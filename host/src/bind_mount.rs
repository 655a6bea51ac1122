//! A directory of the host mounted a second time, at a path that another program of the host is given.
//!
//! A pod may write to such a directory. Through the second mount the kernel follows no symbolic link, runs nothing and writes nothing, so
//! whoever opens a name in it gets what lies there, or an error; and the path is as short as a socket's address needs.
//!
//! The mounts are the host's own, where the other program sees them, and outlive this process. They are made in the namespace of the
//! host's first process, also by a daemon that is in [the runtime's](crate::runtime_mounts): every other one of the host gets them from
//! there, and that of the runtime passes none back to a program that systemd has started.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use crate::files::paths_in;
use crate::group_access;
use crate::runtime_mounts::{have_this_process, of_first_process};

/// More mounts than this lie at no path of ours, one over the other.
const MOST: usize = 16;
/// The mode of a directory of ours.
const OWN: u16 = 0o700;

/// The host's mounts.
#[derive(Debug, Clone)]
pub struct BindMounts {
    /// Where this process sees the root of the host.
    host_root: PathBuf,
}

impl BindMounts {
    /// `host_root`: where this process sees the root of the host; elsewhere than at `/` it is in a container.
    pub fn new(host_root: &Path) -> BindMounts {
        BindMounts { host_root: host_root.to_owned() }
    }

    /// Mounts a directory at `at`, which is made; what was mounted there goes. Both are paths as the host has them, and nobody
    /// but root may write above them.
    ///
    /// # Errors
    /// The kernel's; then nothing is mounted there.
    pub fn make(&self, directory: &Path, at: &Path) -> io::Result<()> {
        self.on_host(|| {
            unmount(at)?;
            make_directory(at)?;
            let made = mount_at(directory, at);
            made.inspect_err(|_| {
                let _ = remove(at);
            })
        })
    }

    /// Makes a directory of the host for mounts that another program than one of root's is given: the members of a group may pass through
    /// it, and nobody but root may do more.
    ///
    /// # Errors
    /// The kernel's: its file system may know no such groups.
    pub fn make_passable(&self, directory: &Path, group: u32) -> io::Result<()> {
        self.on_host(|| {
            make_directory(directory)?;
            let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
            let opened = File::options().read(true).custom_flags(flags).open(directory)?;
            group_access::let_pass(&opened, OWN, group)
        })
    }

    /// What is in a directory of the host; nothing where it is not there.
    ///
    /// # Errors
    /// The kernel's.
    pub fn entries(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        self.on_host(|| paths_in(directory))
    }

    /// Removes what is mounted at `at`, and the empty directory. That there is nothing is success.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove(&self, at: &Path) -> io::Result<()> {
        self.on_host(|| remove(at))
    }

    /// The mount namespace of the host's first process, for a process in a container or in that of the runtime.
    fn other_namespace(&self) -> io::Result<Option<File>> {
        if self.host_root == Path::new("/") && !have_this_process() {
            return Ok(None);
        }
        of_first_process(&self.host_root).map(Some).map_err(|unopened| unopened.source)
    }

    /// On a thread that ends: its mount namespace is the host's for good.
    fn on_host<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let Some(namespace) = self.other_namespace()? else { return work() };
        let inside = || {
            // A thread that shares its directory with others may enter none.
            unshare(CloneFlags::CLONE_FS)?;
            setns(&namespace, CloneFlags::CLONE_NEWNS)?;
            work()
        };
        thread::scope(|scope| scope.spawn(inside).join())
            .unwrap_or_else(|_| Err(io::Error::other("the thread among the host's mounts panicked")))
    }
}

/// Makes a directory and those above it; one that is there is success.
fn make_directory(at: &Path) -> io::Result<()> {
    match DirBuilder::new().recursive(true).mode(OWN.into()).create(at) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn mount_at(directory: &Path, at: &Path) -> io::Result<()> {
    let none: Option<&str> = None;
    mount(Some(directory), at, none, MsFlags::MS_BIND, none)?;
    let strict = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | MsFlags::MS_RDONLY;
    let strict = strict | MsFlags::from_bits_retain(libc::MS_NOSYMFOLLOW);
    mount(none, at, none, MsFlags::MS_REMOUNT | MsFlags::MS_BIND | strict, none)?;
    // What is mounted in the directory itself is none of ours.
    mount(none, at, none, MsFlags::MS_PRIVATE, none)?;
    Ok(())
}

fn remove(at: &Path) -> io::Result<()> {
    unmount(at)?;
    match fs::remove_dir(at) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn unmount(at: &Path) -> io::Result<()> {
    for _ in 0..MOST {
        match umount2(at, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            // Nothing is mounted there, or nothing is there.
            Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::EBUSY.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn a_directory_is_seen_at_a_second_path_through_which_no_link_is_followed() {
        let root = tempfile::tempdir().unwrap();
        let (volume, at) = (root.path().join("volume"), root.path().join("mounts/vhu"));
        fs::create_dir(&volume).unwrap();
        let mounts = BindMounts::new(Path::new("/"));
        // A second time over the first: one is there in the end.
        for _ in 0..2 {
            mounts.make(&volume, &at).unwrap();
        }
        // Made after the mount, as a pod does.
        let _listener = UnixListener::bind(volume.join("net1.sock")).unwrap();
        let _elsewhere = UnixListener::bind(root.path().join("db.sock")).unwrap();
        symlink(root.path().join("db.sock"), volume.join("link.sock")).unwrap();
        UnixStream::connect(at.join("net1.sock")).unwrap();
        UnixStream::connect(volume.join("link.sock")).unwrap();
        let refused = UnixStream::connect(at.join("link.sock")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ELOOP));
        fs::write(at.join("file"), "").unwrap_err();
        // The volume goes first, as with a pod that was removed by force.
        fs::remove_dir_all(&volume).unwrap();
        for _ in 0..2 {
            mounts.remove(&at).unwrap();
        }
        assert!(!at.exists());
        mounts.make(&volume, &at).unwrap_err();
        assert!(!at.exists(), "nothing is left where there is no such directory");
    }

    #[test]
    fn from_a_container_the_hosts_mounts_are_reached_by_its_first_process() {
        let root = tempfile::tempdir().unwrap();
        let (volume, at) = (root.path().join("volume"), root.path().join("at"));
        fs::create_dir(&volume).unwrap();
        fs::create_dir_all(root.path().join("host/proc/1/ns")).unwrap();
        symlink("/proc/self/ns/mnt", root.path().join("host/proc/1/ns/mnt")).unwrap();
        let mounts = BindMounts::new(&root.path().join("host"));
        mounts.make(&volume, &at).unwrap();
        fs::write(volume.join("file"), "the pod's").unwrap();
        assert_eq!(fs::read_to_string(at.join("file")).unwrap(), "the pod's");
        assert_eq!(mounts.entries(&root.path().join("host")).unwrap(), [root.path().join("host/proc")]);
        assert!(mounts.entries(&root.path().join("none")).unwrap().is_empty());
        mounts.remove(&at).unwrap();
        assert!(!at.exists());
        BindMounts::new(Path::new("/nowhere")).remove(&at).unwrap_err();
    }
}
