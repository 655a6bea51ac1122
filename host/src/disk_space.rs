//! Whether a file system can take one more file. Only reads.

use std::io;
use std::path::Path;

use nix::sys::statvfs::statvfs;

/// An error where the file system of `path` has no free block, or no free inode, that root could take.
///
/// # Errors
/// Kind `StorageFull` where there is none; what the kernel says of a path that cannot be looked at.
pub fn left(path: &Path) -> io::Result<()> {
    left_for(path, 1)
}

/// An error where the file system of `path` has no room for one more file of so many bytes that root could write.
///
/// # Errors
/// Those of [`left`].
pub fn left_for(path: &Path, bytes: u64) -> io::Result<()> {
    let stat = statvfs(path)?;
    let needed = bytes.div_ceil(stat.fragment_size().max(1));
    let full = |what| Err(io::Error::new(io::ErrorKind::StorageFull, what));
    // A tmpfs without a size says 0 of 0. `blocks_free` counts what is kept for root, which the daemon is.
    if stat.blocks() > 0 && stat.blocks_free() == 0 {
        return full("no block of its file system is free");
    }
    if stat.blocks() > 0 && stat.blocks_free() < needed {
        return full("too few blocks of its file system are free");
    }
    // A file system without a fixed number of inodes says 0 of 0.
    if stat.files() > 0 && stat.files_free() == 0 {
        return full("no inode of its file system is free");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_has_room_for_a_small_file_and_none_for_one_larger_than_itself() {
        let dir = tempfile::tempdir().unwrap();
        left_for(dir.path(), 4096).unwrap();
        let full = left_for(dir.path(), u64::MAX).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        assert_eq!(full.to_string(), "too few blocks of its file system are free");
    }
}
