//! Files that are read with care and written whole.
//!
//! Somebody else may have put a file there: only a regular one is read, and no more of it than is wanted, so that a pipe that
//! nobody writes to never keeps the daemon waiting. What is written is there whole or not at all, whatever ends this process or
//! the machine. Removing what is gone is success.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A step on a file that failed.
#[derive(Debug, thiserror::Error)]
#[error("{path} can't be {what}: {source}", path = .path.display())]
pub struct FileError {
    /// The file or directory that the step was about.
    pub path: PathBuf,
    /// The step as a participle, such as read or written.
    pub what: &'static str,
    /// Why the step failed.
    pub source: io::Error,
}

/// Makes the error of a step on `path` of what the kernel has said; `what` is the step as a participle.
pub fn failed(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_path_buf();
    move |source| FileError { path, what, source }
}

/// The text of a regular file of at most `limit` bytes; no more than that is read.
pub fn text_of(file: File, limit: u64) -> io::Result<String> {
    let mut text = String::new();
    // One byte more than the limit shows that there is more, without reading it all.
    if regular(file)?.take(limit + 1).read_to_string(&mut text)? as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it has more than {limit} bytes")));
    }
    Ok(text)
}

/// The bytes of a file; `None` where there is no such file.
pub fn read_optional(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The file, unless it is a pipe, a directory or the like.
pub fn regular(file: File) -> io::Result<File> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    Ok(file)
}

/// The paths in a directory; none where there is no such directory.
pub fn paths_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        files => files?.map(|file| Ok(file?.path())).collect(),
    }
}

/// Puts `bytes` at `path` in place of what was there, and on the disk before this returns. Only root reads it.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // In the same directory: a rename replaces a file at once only within one file system.
    let beside = path.with_extension("tmp");
    let written = write_synced(&beside, bytes, 0o600);
    written.and_then(|()| fs::rename(&beside, path)).inspect_err(|_| {
        let _ = fs::remove_file(&beside);
    })?;
    // Without this the rename could be lost with the power, though the file's content is on the disk.
    path.parent().map_or(Ok(()), sync_dir)
}

/// The outcome of removing a file, where a file that is not there counts as removed.
pub fn gone(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) })
}

/// Writes a file, has it on the disk before this returns, and gives it these permissions, whatever the umask is. It may be half
/// written after a kill or an error: whoever needs it whole writes it beside its place and renames it.
pub fn write_synced(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    // Truncated: a kill before the rename leaves a file of this name.
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}

/// Has what was made, renamed and removed in a directory on the disk before this returns.
pub fn sync_dir(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
