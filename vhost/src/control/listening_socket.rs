//! The control socket's file: bound for its owner alone, in place of one that nobody serves any more.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

/// How many clients may wait to be taken.
const BACKLOG: i32 = 32;

/// The control socket can't be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process serves it.
    #[error("{}: another fairlead-vswitch serves this socket; stop it, or take another path", .0.display())]
    Served(PathBuf),
    /// Something else is in its place.
    #[error("{}: this is no socket, and is left alone; take another path", .0.display())]
    NoSocket(PathBuf),
    /// The kernel refuses.
    #[error("{}: the control socket can't be bound; see that its directory exists and is writable", .path.display())]
    Bind {
        /// The path.
        path: PathBuf,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
}

/// Binds the control socket, mode 0600, and listens. A socket that nobody answers at is replaced.
///
/// # Errors
/// When another process serves the path, when something else is there, or when the kernel refuses.
pub fn bind_control_socket(path: &Path) -> Result<OwnedFd, BindError> {
    let failed = |source: io::Error| BindError::Bind { path: path.to_owned(), source };
    let address = SocketAddress::of(path).map_err(failed)?;
    let new_socket = || -> Result<OwnedFd, BindError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        socket.map_err(|error| failed(error.into()))
    };
    if let Ok(found) = fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(BindError::NoSocket(path.to_owned()));
        }
        // Of another type, or with a full queue: somebody is there.
        if connect(new_socket()?, address.as_unix()) != Err(Errno::CONNREFUSED) {
            return Err(BindError::Served(path.to_owned()));
        }
        fs::remove_file(path).map_err(failed)?;
    }
    let socket = new_socket()?;
    // The kernel gives the file the socket's own mode (net/unix/af_unix.c, unix_bind_bsd), so that nobody else can connect from the first.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)
        .and_then(|()| bind(&socket, address.as_unix()))
        .and_then(|()| listen(&socket, BACKLOG))
        .map_err(|error| failed(error.into()))?;
    Ok(socket)
}

/// A path as the kernel takes it: of 107 bytes at most, so that a longer one is told from its directory.
#[derive(Debug)]
pub(super) struct SocketAddress {
    address: SocketAddrUnix,
    /// Keeps `/proc/self/fd/N` of the address there.
    _directory: Option<OwnedFd>,
}

impl SocketAddress {
    pub(super) fn of(path: &Path) -> io::Result<SocketAddress> {
        match SocketAddrUnix::new(path) {
            Err(Errno::NAMETOOLONG) => {}
            address => return Ok(SocketAddress { address: address?, _directory: None }),
        }
        let no_file = || io::Error::new(io::ErrorKind::InvalidInput, "the path names no file");
        let (directory, name) = (path.parent(), path.file_name());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(directory.ok_or_else(no_file)?, flags, Mode::empty())?;
        let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string());
        let address = SocketAddrUnix::new(short.join(name.ok_or_else(no_file)?))?;
        Ok(SocketAddress { address, _directory: Some(directory) })
    }

    pub(super) fn as_unix(&self) -> &SocketAddrUnix {
        &self.address
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn the_socket_is_its_owners_alone_and_a_stale_one_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let first = bind_control_socket(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let second = bind_control_socket(&path).unwrap_err();
        assert!(matches!(&second, BindError::Served(at) if *at == path), "{second}");
        drop(first);
        bind_control_socket(&path).unwrap();
    }

    #[test]
    fn what_is_no_socket_or_serves_something_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "kept").unwrap();
        assert!(matches!(bind_control_socket(&file), Err(BindError::NoSocket(_))));
        assert_eq!(fs::read(&file).unwrap(), b"kept");
        let stream = dir.path().join("stream");
        let _listener = UnixListener::bind(&stream).unwrap();
        assert!(matches!(bind_control_socket(&stream), Err(BindError::Served(_))));
        let error = bind_control_socket(&dir.path().join("none/control.sock")).unwrap_err();
        assert!(error.to_string().ends_with("see that its directory exists and is writable"), "{error}");
    }

    #[test]
    fn a_path_that_is_too_long_for_the_kernel_is_bound_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(120));
        fs::create_dir(&deep).unwrap();
        let path = deep.join("control.sock");
        let _socket = bind_control_socket(&path).unwrap();
        assert!(fs::metadata(&path).unwrap().file_type().is_socket());
        assert!(matches!(bind_control_socket(&path), Err(BindError::Served(_))));
    }
}
