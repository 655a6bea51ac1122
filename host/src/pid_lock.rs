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
    // The id of an earlier holder may be longer than ours.
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

#[cfg(test)]
mod tests {
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
}
