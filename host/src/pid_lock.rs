//! A lock file that names its holder: one process at a time has it, and everybody else learns which one.
//!
//! The kernel gives the lock back when the holder's last descriptor goes, however the process ends; the process id in the file is
//! for messages only and decides nothing.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a lock without a living holder is waited for.
const LIMIT: Duration = Duration::from_secs(2);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// Takes the lock; else answers the process id of its holder, as it wrote it into the file.
///
/// A living holder is believed at once. Otherwise the holder has just begun and not written its id yet, or it was killed in
/// the moment of starting a program, whose process holds the lock up to its `exec`: both pass soon, and are waited for.
///
/// # Errors
/// When the file can't be locked or read.
pub fn lock_or_holder(file: &mut File) -> io::Result<Option<String>> {
    let limit = Instant::now() + LIMIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(None),
            Err(TryLockError::Error(source)) => return Err(source),
            Err(TryLockError::WouldBlock) => {}
        }
        // Unreadable is the same as not written yet.
        let mut pid = String::new();
        file.rewind()?;
        let _ = file.read_to_string(&mut pid);
        let pid = pid.trim();
        if !pid.is_empty() && Path::new("/proc").join(pid).exists() {
            return Ok(Some(pid.to_owned()));
        }
        if Instant::now() >= limit {
            return Ok(Some("unknown".to_owned()));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Writes this process's id into a lock file that it holds.
///
/// # Errors
/// When the file can't be written.
pub fn write_holder(file: &mut File) -> io::Result<()> {
    let text = format!("{}\n", std::process::id());
    // Over the id of an earlier holder: a full file system would not give back the page that an empty file has given away.
    file.rewind()?;
    file.write_all(text.as_bytes())?;
    // That one may have been longer.
    let end = file.stream_position()?;
    file.set_len(end)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::{fs, thread};

    use nix::mount::{MntFlags, MsFlags, mount, umount2};

    use super::*;

    #[test]
    fn the_holder_is_named_while_it_has_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let open =
            || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let mut first = open();
        assert_eq!(lock_or_holder(&mut first).unwrap(), None);
        write_holder(&mut first).unwrap();
        assert_eq!(lock_or_holder(&mut open()).unwrap(), Some(std::process::id().to_string()));
        drop(first);
        assert_eq!(lock_or_holder(&mut open()).unwrap(), None);
    }

    #[test]
    fn a_holder_with_a_shorter_id_is_named_by_it_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        fs::write(&path, format!("1{}0\n", std::process::id())).unwrap();
        write_holder(&mut File::options().write(true).open(&path).unwrap()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
    }

    /// Needs root: a file system of 64 KiB.
    #[test]
    fn the_holder_is_written_while_somebody_fills_the_file_system_to_its_last_page() {
        let dir = tempfile::tempdir().unwrap();
        mount(Some("tmpfs"), dir.path(), Some("tmpfs"), MsFlags::empty(), Some("size=64k")).unwrap();
        let path = dir.path().join("lock");
        fs::write(&path, "1\n").unwrap();
        let mut lock = File::options().write(true).open(&path).unwrap();
        let mut filler = File::create(dir.path().join("filler")).unwrap();
        while filler.write_all(&[0; 4096]).is_ok() {}
        let ends = AtomicBool::new(false);
        let written = thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    // Any page that is given away is taken here.
                    let _ = filler.write_all(&[0; 4096]);
                }
            });
            let written = (0..10_000).try_for_each(|_| write_holder(&mut lock));
            ends.store(true, Ordering::Relaxed);
            written
        });
        let text = fs::read_to_string(&path);
        umount2(dir.path(), MntFlags::MNT_DETACH).unwrap();
        written.unwrap();
        assert_eq!(text.unwrap(), format!("{}\n", std::process::id()));
    }
}
