//! The run directory: one daemon for each, its socket, and the marker of an announced stop.
//!
//! Whoever holds the lock is the daemon; the lock ends with the process, however that ends. Only the holder
//! replaces the socket. The file `stopping` means to executables, and to the daemon that comes, that calls are
//! about to be served again; it is written before anything is refused, and removed once calls are served.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use fairlead_host::pid_lock::{lock_or_holder, write_holder};

use fairlead_cni::wire;
use tracing::warn;

/// The socket in the run directory.
pub const SOCKET: &str = "fairlead.sock";
/// The socket beside it by which `fairlead-vswitch` is told what to do.
pub const SWITCH_SOCKET: &str = "vswitch.sock";
/// The lock in the run directory.
pub const LOCK: &str = wire::LOCK_FILE;
/// The marker of an announced stop; its time of modification counts.
pub const STOPPING: &str = wire::STOPPING_FILE;

/// Why this daemon can't have the run directory.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// Another daemon holds the lock.
    #[error("another fairleadd (pid {pid}) serves {path}; stop it, or give this one another --run-dir", path = .path.display())]
    Taken {
        /// The run directory that both daemons want.
        path: PathBuf,
        /// The process id of the other daemon, as that daemon wrote it.
        pid: String,
    },
    /// A step on the file system failed.
    #[error("{path} can't be {what}: {source}", path = .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The step as a participle, such as made or locked.
        what: &'static str,
        /// Why the step failed.
        source: io::Error,
    },
    /// A file that is no socket lies in the socket's place.
    #[error("{path} is there and is no socket; remove it", path = .path.display())]
    NoSocket {
        /// The path where the socket should be.
        path: PathBuf,
    },
}

/// The run directory, which this process holds by its lock.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    _lock: File,
}

fn failed(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> RunDirError {
    let path = path.to_path_buf();
    move |source| RunDirError::Io { path, what, source }
}

/// Whether a daemon of this run directory has announced, a moment ago, that it stops and comes back.
pub fn stop_was_announced(run_dir: &Path) -> bool {
    let announced = fs::metadata(run_dir.join(STOPPING)).and_then(|marker| marker.modified());
    announced.is_ok_and(|at| wire::announced_stop_holds(at, SystemTime::now()))
}

impl RunDir {
    /// Makes the directory (0700) where it is missing, and takes it.
    ///
    /// # Errors
    /// When another daemon has it, or it can't be made.
    pub fn take(path: &Path) -> Result<RunDir, RunDirError> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed(path, "made"))?;
        fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(failed(path, "made private"))?;
        let lock = path.join(LOCK);
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&lock).map_err(failed(&lock, "opened"))?;
        if let Some(pid) = lock_or_holder(&mut file).map_err(failed(&lock, "locked"))? {
            return Err(RunDirError::Taken { path: path.into(), pid });
        }
        // The process id is there only for messages: a full file system must not keep the daemon from starting, whose DELs make room.
        if let Err(error) = write_holder(&mut file) {
            let lock = lock.display();
            warn!(%lock, %error, "the process id could not be written; a second daemon cannot name this one; make space there");
        }
        Ok(RunDir { path: path.into(), _lock: file })
    }

    /// Listens on the socket (0600); one that a dead daemon left is replaced.
    ///
    /// # Errors
    /// When something else lies there, or the kernel refuses.
    pub fn listen(&self) -> Result<UnixListener, RunDirError> {
        let socket = self.socket();
        match fs::symlink_metadata(&socket) {
            Ok(there) if there.file_type().is_socket() => {
                fs::remove_file(&socket).map_err(failed(&socket, "replaced"))?;
            }
            Ok(_) => return Err(RunDirError::NoSocket { path: socket }),
            Err(_) => {}
        }
        // The directory is closed to others, so nobody gets in before the socket's own mode is set.
        let listener = UnixListener::bind(&socket).map_err(failed(&socket, "listened on"))?;
        fs::set_permissions(&socket, Permissions::from_mode(0o600))
            .map_err(failed(&socket, "made private"))?;
        Ok(listener)
    }

    /// The path of the daemon's socket.
    pub fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    /// Announces the stop.
    ///
    /// # Errors
    /// When the marker can't be written.
    pub fn announce_stop(&self) -> Result<(), RunDirError> {
        let marker = self.path.join(STOPPING);
        fs::write(&marker, std::process::id().to_string()).map_err(failed(&marker, "written"))
    }

    /// Takes an earlier daemon's announcement back: calls are served again.
    pub fn take_announcement_back(&self) {
        let _ = fs::remove_file(self.path.join(STOPPING));
    }

    /// Removes the socket's name: whoever comes now waits for the next daemon.
    pub fn close(&self) {
        let _ = fs::remove_file(self.socket());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_daemon_is_refused_by_name_and_the_directory_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let first = RunDir::take(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        let refused = RunDir::take(&path).unwrap_err().to_string();
        assert!(refused.contains(&format!("(pid {})", std::process::id())), "{refused}");
        drop(first);
        RunDir::take(&path).unwrap();
    }

    #[test]
    fn a_stale_socket_is_replaced_and_another_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let held = RunDir::take(dir.path()).unwrap();
        drop(held.listen().unwrap());
        assert!(held.socket().exists());
        let listener = held.listen().unwrap();
        assert_eq!(fs::metadata(held.socket()).unwrap().permissions().mode() & 0o777, 0o600);
        std::os::unix::net::UnixStream::connect(held.socket()).unwrap();
        drop(listener);
        fs::remove_file(held.socket()).unwrap();
        fs::write(held.socket(), "mine").unwrap();
        assert!(matches!(held.listen(), Err(RunDirError::NoSocket { .. })));
    }

    #[test]
    fn k18_the_announcement_of_a_stop_holds_until_the_next_daemon_serves() {
        let dir = tempfile::tempdir().unwrap();
        let held = RunDir::take(dir.path()).unwrap();
        assert!(!stop_was_announced(dir.path()));
        held.announce_stop().unwrap();
        assert!(stop_was_announced(dir.path()));
        drop(held);
        let held = RunDir::take(dir.path()).unwrap();
        assert!(stop_was_announced(dir.path()), "nobody is served yet");
        held.take_announcement_back();
        assert!(!stop_was_announced(dir.path()));
    }

    /// Needs root: a file system of 64 KiB.
    #[test]
    fn x05_a_full_file_system_keeps_no_daemon_from_the_run_directory() {
        use nix::mount::{MntFlags, MsFlags, mount, umount2};
        let dir = tempfile::tempdir().unwrap();
        mount(Some("tmpfs"), dir.path(), Some("tmpfs"), MsFlags::empty(), Some("size=64k")).unwrap();
        // As a start leaves it that ended before it wrote.
        File::create(dir.path().join(LOCK)).unwrap();
        let filled = fs::write(dir.path().join("filler"), vec![0; 1 << 20]);
        let taken = RunDir::take(dir.path()).map(drop);
        umount2(dir.path(), MntFlags::MNT_DETACH).unwrap();
        assert!(filled.is_err());
        taken.unwrap();
    }
}
