//! The way from a directory that the administrator names to what lies below it, where others may write on that way: no symbolic link
//! is followed, and no mount is entered.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

/// What leads out of a directory below which everything has to stay.
#[derive(Debug, thiserror::Error)]
#[error("{place:?} is {what}, and leads out of {trusted:?}")]
pub struct LeadsElsewhere {
    place: PathBuf,
    what: &'static str,
    trusted: PathBuf,
}

/// Whether the error says that a path leads out of the directory below which it has to stay.
pub fn leads_elsewhere(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<LeadsElsewhere>())
}

/// Opens what lies `below` a directory. `trusted` is that directory's path, for the error.
///
/// # Errors
/// [`LeadsElsewhere`] (kind `InvalidInput`) with the first part of the way that does; the kernel's otherwise.
pub(crate) fn open(dir: impl AsFd, trusted: &Path, below: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    match open_beneath(&dir, below, flags) {
        Err(Errno::LOOP | Errno::XDEV) => Err(elsewhere(&dir, trusted, below)),
        opened => Ok(opened?),
    }
}

fn open_beneath(dir: impl AsFd, below: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    // Even a mount is not entered: whoever owns a directory can mount there by FUSE.
    let strict = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    openat2(dir, below, flags, Mode::empty(), strict)
}

/// Names the part of the way that leads elsewhere: the last one, where the others have become harmless since.
fn elsewhere(dir: impl AsFd, trusted: &Path, below: &Path) -> io::Error {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let mut ways: Vec<&Path> = below.ancestors().filter(|way| !way.as_os_str().is_empty()).collect();
    ways.reverse();
    let refused = |way: &&Path| matches!(open_beneath(&dir, way, flags), Err(Errno::LOOP | Errno::XDEV));
    let way = ways.into_iter().find(refused).unwrap_or(below);
    let what = match open_beneath(&dir, way, flags) {
        Err(Errno::LOOP) => "a symbolic link",
        _ => "a mount",
    };
    let error = LeadsElsewhere { place: trusted.join(way), what, trusted: trusted.to_owned() };
    io::Error::new(io::ErrorKind::InvalidInput, error)
}
