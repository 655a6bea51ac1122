//! A file in a directory that a pod can write to: what the pod has put in its place is never followed or written to.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Mode, OFlags, fchmod, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

/// Puts a file of this text in place of what has the name, at once and whole; everybody may read it.
///
/// # Errors
/// The kernel's; `IsADirectory` where the pod has made a directory of the name.
pub fn write(dir: impl AsFd, name: &str, text: &[u8]) -> io::Result<()> {
    let beside = beside(name);
    // What a process that was killed has left, or the pod has put there.
    let _ = unlinkat(&dir, &beside, AtFlags::empty());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(&dir, &beside, flags, Mode::from_raw_mode(0o600))?);
    let written = file
        .write_all(text)
        // The umask may have taken bits from a mode with which it was made.
        .and_then(|()| fchmod(&file, Mode::from_raw_mode(0o644)).map_err(io::Error::from))
        .and_then(|()| renameat(&dir, &beside, &dir, name).map_err(io::Error::from));
    written.inspect_err(|_| {
        let _ = unlinkat(&dir, &beside, AtFlags::empty());
    })
}

/// The name that a file has until it is whole.
fn beside(name: &str) -> String {
    format!(".{name}.fairlead")
}

/// Removes what has the name, be it a link, and what a process that was killed has left of it; a directory stays, and one that is gone is
/// success.
///
/// # Errors
/// The kernel's.
pub fn remove(dir: impl AsFd, name: &str) -> io::Result<()> {
    for name in [&beside(name), name] {
        // On a read-only file system the kernel refuses to remove also what is not there.
        let looked = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW);
        match looked.and_then(|_| unlinkat(&dir, name, AtFlags::empty())) {
            Ok(()) | Err(Errno::NOENT | Errno::ISDIR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_a_pod_has_put_there_is_replaced_and_never_written_through() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("volume");
        fs::create_dir(&volume).unwrap();
        fs::write(root.path().join("theirs"), "as it was").unwrap();
        let dir = File::open(&volume).unwrap();
        symlink(root.path().join("theirs"), volume.join("data.json")).unwrap();
        for text in ["one", "another"] {
            write(&dir, "data.json", text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(volume.join("data.json")).unwrap(), text);
        }
        assert!(fs::symlink_metadata(volume.join("data.json")).unwrap().is_file());
        assert_eq!(fs::read_to_string(root.path().join("theirs")).unwrap(), "as it was");
        // As if killed in the middle, or as a pod may leave it.
        symlink(root.path().join("theirs"), volume.join(".data.json.fairlead")).unwrap();
        write(&dir, "data.json", b"once more").unwrap();
        fs::write(volume.join(".data.json.fairlead"), "half").unwrap();
        for _ in 0..2 {
            remove(&dir, "data.json").unwrap();
        }
        assert_eq!(fs::read_to_string(root.path().join("theirs")).unwrap(), "as it was");
        fs::create_dir(volume.join("data.json")).unwrap();
        write(&dir, "data.json", b"x").unwrap_err();
        remove(&dir, "data.json").unwrap();
        let left: Vec<_> = fs::read_dir(&volume).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["data.json"], "nothing is left beside it");
    }
}
