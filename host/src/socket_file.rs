//! Unix sockets in a directory that a pod can write to: nothing of the pod's is followed or trusted, and no path is too long.
//!
//! A socket's address has at most 108 bytes, and a volume's path alone may have more. So every socket is reached by the directory's
//! descriptor, as `/proc/self/fd/N/name`. A new one is made under a name that nobody guesses, gets its rights, and only then takes its
//! name: whoever sees it can use it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RawMode, Uid, chmod, chownat, fstat, openat, renameat, statat,
    unlinkat,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use super::failpoint;

/// Connections that wait until they are accepted.
const BACKLOG: i32 = 16;

/// Reading and writing, for everybody.
const READ_WRITE: RawMode = 0o666;

/// Who may connect to a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Whoever sees it: the directory is one pod's alone.
    WhoeverSeesIt,
    /// Whoever may write to its directory: the socket gets that one's owner, group and rights.
    WhoeverWritesThere,
}

/// Something that is no socket has the name of one.
#[derive(Debug, thiserror::Error)]
#[error("{name:?} is there and is no socket; remove it")]
pub struct NoSocket {
    name: String,
}

/// Whether the error says that something else than a socket has the name.
pub fn is_no_socket(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<NoSocket>())
}

/// Makes a listening socket (close-on-exec, non-blocking) with this name. A socket of that name is replaced.
///
/// `draft`: the name that it has until it may be used, where that is on record; a socket that has it already was left by a process that
/// was killed meanwhile, and goes.
///
/// # Errors
/// [`NoSocket`] (kind `InvalidInput`) where something else has the name; the kernel's otherwise.
pub fn make_listener(dir: impl AsFd, name: &str, draft: Option<&str>, access: Access) -> io::Result<OwnedFd> {
    make_served_listener(dir, name, draft, access, |_| Ok(()))
}

/// The same, and has the listener served before it takes its name: as long as it has none, nobody serves it.
///
/// # Errors
/// Those of [`make_listener`], and what `serve` says. Nothing has the name then that did not have it before.
pub fn make_served_listener(
    dir: impl AsFd,
    name: &str,
    draft: Option<&str>,
    access: Access,
    serve: impl FnOnce(&OwnedFd) -> io::Result<()>,
) -> io::Result<OwnedFd> {
    // What is no socket stays.
    exists(&dir, name)?;
    let listener = unix_socket()?;
    let beside = match draft {
        Some(draft) => {
            remove(&dir, draft)?;
            draft.to_owned()
        }
        None => format!(".fairlead-{:016x}", random()?),
    };
    bind(&listener, &address(&dir, &beside)?)?;
    failpoint::pass("socket.bound");
    let made = listen(&listener, BACKLOG)
        .map_err(io::Error::from)
        .and_then(|()| let_connect(&dir, &beside, access))
        .and_then(|()| serve(&listener))
        .and_then(|()| renameat(&dir, &beside, &dir, name).map_err(io::Error::from));
    made.inspect_err(|_| {
        let _ = unlinkat(&dir, &beside, AtFlags::empty());
    })?;
    Ok(listener)
}

/// Connects to the socket of this name (close-on-exec, non-blocking).
///
/// # Errors
/// [`NoSocket`] (kind `InvalidInput`) where something else has the name; the kernel's otherwise: `NotFound` and
/// `ConnectionRefused` where nobody listens yet, `WouldBlock` where more wait than the listener takes.
pub fn connect_to(dir: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    let seen = seen(&dir, name)?;
    let stream = unix_socket()?;
    // By the inode that was looked at, so that nothing else can take its place in between.
    let itself = SocketAddrUnix::new(format!("/proc/self/fd/{}", seen.as_raw_fd()))?;
    connect(&stream, &itself)?;
    Ok(stream)
}

/// Removes the socket of this name; false: something else has the name, which stays. One that is gone is success, also where nothing may be
/// removed.
///
/// # Errors
/// The kernel's.
pub fn remove(dir: impl AsFd, name: &str) -> io::Result<bool> {
    match exists(&dir, name) {
        Err(error) if is_no_socket(&error) => return Ok(false),
        // On a read-only file system the kernel refuses to remove also what is not there.
        Ok(false) => return Ok(true),
        looked => looked?,
    };
    match unlinkat(&dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

/// Whether a socket has this name; false: nothing has it.
///
/// # Errors
/// [`NoSocket`] (kind `InvalidInput`) where something else has the name; the kernel's otherwise.
pub fn exists(dir: impl AsFd, name: &str) -> io::Result<bool> {
    match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(false),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Socket => Err(no_socket(name)),
        looked => Ok(looked.map(|_| true)?),
    }
}

fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

fn address(dir: impl AsFd, name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", dir.as_fd().as_raw_fd()))?)
}

pub(super) fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

fn no_socket(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, NoSocket { name: name.to_owned() })
}

/// The socket of this name, to be reached by its descriptor.
fn seen(dir: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let seen = openat(dir, name, flags, Mode::empty())?;
    match FileType::from_raw_mode(fstat(&seen)?.st_mode) {
        FileType::Socket => Ok(seen),
        _ => Err(no_socket(name)),
    }
}

/// The mode with which a file was made goes by the umask, and its owner is root.
fn let_connect(dir: impl AsFd, name: &str, access: Access) -> io::Result<()> {
    let made = seen(&dir, name)?;
    let itself = format!("/proc/self/fd/{}", made.as_raw_fd());
    if access == Access::WhoeverSeesIt {
        return Ok(chmod(&itself, Mode::from_raw_mode(READ_WRITE))?);
    }
    let (of_dir, of_socket) = (fstat(&dir)?, fstat(&made)?);
    chmod(&itself, Mode::from_raw_mode(of_dir.st_mode & READ_WRITE))?;
    // A daemon in a container may give nothing away, and need not where both are root's.
    if (of_dir.st_uid, of_dir.st_gid) == (of_socket.st_uid, of_socket.st_gid) {
        return Ok(());
    }
    let (owner, group) = (Uid::from_raw(of_dir.st_uid), Gid::from_raw(of_dir.st_gid));
    Ok(chownat(CWD, &itself, Some(owner), Some(group), AtFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_socket_is_made_where_no_address_would_fit_with_its_directorys_owner_and_rights() {
        let root = tempfile::tempdir().unwrap();
        let long = root.path().join("x".repeat(120));
        fs::create_dir(&long).unwrap();
        fs::set_permissions(&long, PermissionsExt::from_mode(0o2770)).unwrap();
        std::os::unix::fs::chown(&long, Some(0), Some(2000)).unwrap();
        let dir = File::open(&long).unwrap();
        for _ in 0..2 {
            let _listener = make_listener(&dir, "net1.sock", None, Access::WhoeverWritesThere).unwrap();
            let made = fs::symlink_metadata(long.join("net1.sock")).unwrap();
            assert!(made.file_type().is_socket());
            assert_eq!((made.mode() & 0o777, made.uid(), made.gid()), (0o660, 0, 2000));
            assert_eq!(names(&long), ["net1.sock"], "nothing is left beside it");
            connect_to(&dir, "net1.sock").unwrap();
        }
        let serve = |_: &OwnedFd| {
            assert_eq!(names(&long).len(), 2, "the old one, and the new one under another name");
            Err(io::Error::other("not served"))
        };
        let access = Access::WhoeverWritesThere;
        make_served_listener(&dir, "net1.sock", None, access, serve).unwrap_err();
        assert_eq!(names(&long), ["net1.sock"]);
        assert_eq!(connect_to(&dir, "net1.sock").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert!(exists(&dir, "net1.sock").unwrap());
        assert!(remove(&dir, "net1.sock").unwrap() && remove(&dir, "net1.sock").unwrap());
        assert!(!exists(&dir, "net1.sock").unwrap() && names(&long).is_empty());
        let _listener = make_listener(&dir, "net1.sock", None, Access::WhoeverSeesIt).unwrap();
        let made = fs::symlink_metadata(long.join("net1.sock")).unwrap();
        assert_eq!((made.mode() & 0o777, made.uid()), (0o666, 0));
    }

    #[test]
    fn nothing_that_a_pod_puts_in_the_way_is_followed_replaced_or_removed() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let listener = std::os::unix::net::UnixListener::bind(at("elsewhere")).unwrap();
        symlink(at("elsewhere"), at("link")).unwrap();
        fs::write(at("file"), "the pod's").unwrap();
        fs::create_dir(at("directory")).unwrap();
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let dir = File::open(root.path()).unwrap();
        let before = names(root.path()).len();
        for name in ["link", "file", "directory", "fifo"] {
            let refused = make_listener(&dir, name, None, Access::WhoeverSeesIt).unwrap_err();
            for error in [refused, connect_to(&dir, name).unwrap_err(), exists(&dir, name).unwrap_err()] {
                assert!(is_no_socket(&error) && error.to_string().contains(name), "{error}");
            }
            assert!(!remove(&dir, name).unwrap());
        }
        assert_eq!(names(root.path()).len(), before);
        drop(listener);
        UnixStream::connect(at("link")).unwrap_err();
    }
}
