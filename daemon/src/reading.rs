//! How a file is read that somebody else may have put there: only a regular one, and no more of it than is wanted. A pipe
//! that nobody writes to must not keep the daemon waiting.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// The text of a regular file of at most `limit` bytes; no more than that is read.
pub(crate) fn text_of(file: File, limit: u64) -> io::Result<String> {
    let mut text = String::new();
    if regular(file)?.take(limit + 1).read_to_string(&mut text)? as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it has more than {limit} bytes")));
    }
    Ok(text)
}

/// The file, unless it is a pipe, a directory or the like.
pub(crate) fn regular(file: File) -> io::Result<File> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    Ok(file)
}

/// The paths in a directory; none where there is no such directory.
pub(crate) fn paths_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        files => files?.map(|file| Ok(file?.path())).collect(),
    }
}
