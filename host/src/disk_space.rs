//! Whether a file system can take one more file. Only reads.

use std::io;
use std::path::Path;

use nix::sys::statvfs::statvfs;

/// An error where the file system of `path` has no free block, or no free inode, that root could take.
pub fn left(path: &Path) -> io::Result<()> {
    let stat = statvfs(path)?;
    let full = |what| Err(io::Error::new(io::ErrorKind::StorageFull, what));
    // A tmpfs without a size says 0 of 0. `blocks_free` counts what is kept for root, which the daemon is.
    if stat.blocks() > 0 && stat.blocks_free() == 0 {
        return full("no block of its file system is free");
    }
    // A file system without a fixed number of inodes says 0 of 0.
    if stat.files() > 0 && stat.files_free() == 0 {
        return full("no inode of its file system is free");
    }
    Ok(())
}
