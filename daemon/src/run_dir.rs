//! The run directory: one daemon for each, its socket, and the marker of an announced stop.
//!
//! Whoever holds the lock is the daemon; the lock ends with the process, however that ends. Only the holder
//! replaces the socket. The file `stopping` means to executables that the daemon is about to come back; it is
//! written before anything is refused.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use fairlead_host::pid_lock::{lock_or_holder, write_holder};

use fairlead_cni::wire;

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
        // The process id is there only for the message of a second daemon.
        write_holder(&mut file).map_err(failed(&lock, "written"))?;
        let _ = fs::remove_file(path.join(STOPPING));
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
    fn the_announcement_of_a_stop_is_gone_at_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let held = RunDir::take(dir.path()).unwrap();
        held.announce_stop().unwrap();
        assert!(dir.path().join(STOPPING).exists());
        drop(held);
        let _held = RunDir::take(dir.path()).unwrap();
        assert!(!dir.path().join(STOPPING).exists());
    }
}
