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

/// The name of kubelet's own socket, the same in each of its directories.
pub(crate) const KUBELET_SOCKET: &str = "kubelet.sock";

/// Kubelet's directory on the host (`/var/lib/kubelet`).
#[derive(Debug)]
pub struct KubeletDir {
    root: HostRoot,
    path: PathBuf,
}

/// An open directory of kubelet's, with its sockets.
#[derive(Debug)]
pub(crate) struct SocketDir {
    directory: OwnedFd,
    /// The path on the host, for messages.
    host_path: PathBuf,
}

/// Which file a socket's name leads to. A file that was removed and created again is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SocketFile {
    device: u64,
    inode: u64,
    /// The file systems of `/var/lib` use a freed inode again at once, so its number alone does not tell two files apart.
    changed: (i64, i64),
}

impl KubeletDir {
    /// The directory `path` of the host whose root is seen at `host_root`.
    pub fn new(host_root: &Path, path: &Path) -> KubeletDir {
        KubeletDir { root: HostRoot::new(host_root.to_owned()), path: path.to_owned() }
    }

    /// The path by which this process can watch one of its directories.
    pub(crate) fn seen_at(&self, name: &str) -> PathBuf {
        self.root.seen_at(&self.host_path(name))
    }

    /// The path on the host of one of its directories, for messages.
    pub(crate) fn host_path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens one of its directories.
    pub(crate) fn open(&self, name: &str) -> io::Result<SocketDir> {
        let host_path = self.host_path(name);
        Ok(SocketDir { directory: self.root.directory(&host_path)?, host_path })
    }
}

impl SocketDir {
    /// A socket's path on the host, for messages.
    pub(crate) fn host_path(&self, socket: &str) -> PathBuf {
        self.host_path.join(socket)
    }

    fn reached_at(&self, socket: &str) -> PathBuf {
        Path::new("/proc/self/fd").join(self.directory.as_raw_fd().to_string()).join(socket)
    }

    /// The file that a socket's name leads to now; `None` where there is none.
    pub(crate) fn file(&self, socket: &str) -> io::Result<Option<SocketFile>> {
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

    /// Listens on a socket that root alone may use. A socket that was left behind is replaced; any other file is not.
    pub(crate) fn listen(&self, socket: &str) -> io::Result<UnixListener> {
        let path = self.reached_at(socket);
        match fs::symlink_metadata(&path) {
            Ok(there) if there.file_type().is_socket() => fs::remove_file(&path)?,
            Ok(_) => return Err(io::Error::other("a file that is no socket is in its place: remove it")),
            // Not there, or not to be seen: `bind` reports the second.
            Err(_) => {}
        }
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        // Tokio requires it of a listener that it takes over.
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// Removes a socket of ours.
    pub(crate) fn remove(&self, socket: &str) {
        // Kubelet removes it too when it starts. One that stays is replaced by whoever listens next.
        let _ = fs::remove_file(self.reached_at(socket));
    }

    /// Connects to whoever listens on a socket.
    pub(crate) async fn connect(&self, socket: &str) -> io::Result<Channel> {
        let stream = UnixStream::connect(self.reached_at(socket)).await?;
        // There is one stream: when it breaks, the caller gets an error and opens the directory again.
        let mut once = Some(TokioIo::new(stream));
        let connector = tower::service_fn(move |_: tonic::transport::Uri| {
            let stream = once.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected));
            std::future::ready(stream)
        });
        // HTTP/2 wants an authority. The connector ignores it and returns the stream that is already connected.
        let endpoint = Endpoint::from_static("http://localhost");
        endpoint.connect_with_connector(connector).await.map_err(io::Error::other)
    }
}
