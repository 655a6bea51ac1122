//! Where kubelet's sockets are. A directory is opened below the host's root, and its sockets are reached through the open
//! directory: no symbolic link leads out of the root, and no path is too long for a socket's address.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

use fairlead_host::host_root::HostRoot;

/// Kubelet's own socket, in each of its directories.
pub(super) const KUBELET_SOCKET: &str = "kubelet.sock";

/// Kubelet's directory (`/var/lib/kubelet`).
#[derive(Debug)]
pub struct KubeletDir {
    root: HostRoot,
    path: PathBuf,
}

/// One of its directories, open.
#[derive(Debug)]
pub(super) struct SocketDir {
    directory: OwnedFd,
    /// As a person knows it.
    told: PathBuf,
}

/// Which file a socket's name leads to: one that was removed and made anew is another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SocketFile {
    device: u64,
    inode: u64,
    /// Inodes are used again at once.
    changed: (i64, i64),
}

impl KubeletDir {
    /// The directory `path` of the host whose root is seen at `host_root`.
    pub fn new(host_root: &Path, path: &Path) -> KubeletDir {
        KubeletDir { root: HostRoot::new(host_root.to_owned()), path: path.to_owned() }
    }

    /// One of its directories, to be watched.
    pub(super) fn seen_at(&self, name: &str) -> PathBuf {
        self.root.seen_at(&self.told(name))
    }

    /// A path of it, as a person knows it.
    pub(super) fn told(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens one of its directories.
    pub(super) fn open(&self, name: &str) -> io::Result<SocketDir> {
        let told = self.told(name);
        Ok(SocketDir { directory: self.root.directory(&told)?, told })
    }
}

impl SocketDir {
    /// A socket's path, as a person knows it.
    pub(super) fn told(&self, socket: &str) -> PathBuf {
        self.told.join(socket)
    }

    fn reached_at(&self, socket: &str) -> PathBuf {
        Path::new("/proc/self/fd").join(self.directory.as_raw_fd().to_string()).join(socket)
    }

    /// The file that a socket's name leads to now; `None` where there is none.
    pub(super) fn file(&self, socket: &str) -> io::Result<Option<SocketFile>> {
        match fs::symlink_metadata(self.reached_at(socket)) {
            Ok(seen) => Ok(Some(SocketFile {
                device: seen.dev(),
                inode: seen.ino(),
                changed: (seen.ctime(), seen.ctime_nsec()),
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Listens on a socket that root alone may use; one that is left from before is replaced, any other file is not.
    pub(super) fn listen(&self, socket: &str) -> io::Result<UnixListener> {
        let path = self.reached_at(socket);
        match fs::symlink_metadata(&path) {
            Ok(there) if there.file_type().is_socket() => fs::remove_file(&path)?,
            Ok(_) => return Err(io::Error::other("a file that is no socket is in its place: remove it")),
            Err(_) => {}
        }
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// Takes a socket of ours away.
    pub(super) fn remove(&self, socket: &str) {
        let _ = fs::remove_file(self.reached_at(socket));
    }

    /// A connection to whoever listens on a socket.
    pub(super) async fn connect(&self, socket: &str) -> io::Result<Channel> {
        let stream = UnixStream::connect(self.reached_at(socket)).await?;
        let mut once = Some(TokioIo::new(stream));
        let connector = tower::service_fn(move |_: tonic::transport::Uri| {
            let stream = once.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected));
            std::future::ready(stream)
        });
        // The name is for the protocol alone; the way leads through the connector.
        let endpoint = Endpoint::from_static("http://localhost");
        endpoint.connect_with_connector(connector).await.map_err(io::Error::other)
    }
}
