//! The file systems that a node has, where this machine has others: a tmpfs for the run directory, and a disk with a journal for the
//! allocation files. They are mounted for this process and its children alone.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};

use crate::machine::has_no_journal;
use crate::node::own_mounts;

/// The size of a disk's image. It is sparse.
const IMAGE_BYTES: u64 = 1 << 30;

/// Mounts a tmpfs on `dir`, where that lies on none.
///
/// # Errors
/// The kernel's; nothing is mounted then.
pub(crate) fn run_directory(dir: &Path) -> io::Result<()> {
    if statfs(dir)?.filesystem_type() == TMPFS_MAGIC {
        return Ok(());
    }
    own_mounts().map_err(io::Error::other)?;
    Ok(mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))?)
}

/// Mounts an ext4 with a journal on `dir`, where that lies on one without: its image is a file beside `dir`, which has no name any more.
///
/// # Errors
/// The kernel's, or what mkfs.ext4 and mount say; nothing is mounted then.
pub(crate) fn disk_with_a_journal(dir: &Path) -> io::Result<()> {
    if !has_no_journal(dir) {
        return Ok(());
    }
    own_mounts().map_err(io::Error::other)?;
    let image = dir.with_extension("img");
    let made = File::create(&image).and_then(|file| file.set_len(IMAGE_BYTES)).and_then(|()| {
        done(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
        done(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(dir))
    });
    // The kernel keeps it for as long as it is mounted.
    let _ = fs::remove_file(&image);
    made
}

/// Takes away what was mounted on `dir`, if anything was.
pub(crate) fn unmount(dir: &Path) {
    // Refused where nothing is mounted.
    let _ = umount2(dir, MntFlags::MNT_DETACH);
}

fn done(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}
