//! Waits for plugins that outlive their daemon. A daemon killed with SIGKILL leaves its plugins at work, and they
//! are allowed to finish; but their DEL must come after that, or an ADD would end after its DEL.
//!
//! Each daemon has a locked file, which its plugins keep open together with all processes that they start. So the
//! lock is free when the last of them has ended, however the daemon ended. Nothing is ever read from the file.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The pause between two attempts at an earlier daemon's lock.
const TICK: Duration = Duration::from_millis(10);

/// This daemon's lock, and those of daemons before it that still have plugins at work.
#[derive(Debug)]
pub(super) struct RunningPlugins {
    lock: File,
    earlier: Mutex<Vec<(PathBuf, File)>>,
    since: Instant,
}

impl RunningPlugins {
    /// Looks at the locks in `dir` and makes one for this daemon. No other daemon may use `dir`.
    pub(super) fn open(dir: &Path) -> io::Result<RunningPlugins> {
        fs::create_dir_all(dir)?;
        let (mut earlier, mut last) = (Vec::new(), 0);
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let number = path.file_name().and_then(|name| name.to_str()?.parse::<u64>().ok());
            last = last.max(number.unwrap_or(0));
            earlier.push((File::options().write(true).open(&path)?, path));
        }
        let earlier = earlier.into_iter().filter_map(|(file, path)| still_held((path, file))).collect();
        // A number of its own: the plugins of earlier daemons may still hold the other files.
        let lock = File::create_new(dir.join((last + 1).to_string()))?;
        lock.lock()?;
        Ok(RunningPlugins { lock, earlier: Mutex::new(earlier), since: Instant::now() })
    }

    /// The locked file that the plugins of this daemon keep open.
    pub(super) fn lock(&self) -> &File {
        &self.lock
    }

    /// Waits up to `limit` after the start for the plugins of earlier daemons.
    pub(super) fn wait_for_earlier(&self, limit: Duration) {
        let mut earlier = self.earlier.lock();
        while !earlier.is_empty() {
            *earlier = std::mem::take(&mut *earlier).into_iter().filter_map(still_held).collect();
            if earlier.is_empty() {
                return;
            }
            if self.since.elapsed() >= limit {
                tracing::warn!(
                    limit_s = limit.as_secs(),
                    "a plugin of an earlier daemon does not end; it is no longer waited for"
                );
                for (path, _) in std::mem::take(&mut *earlier) {
                    // A process that the plugin started lives on; the next daemon need not wait for it again.
                    let _ = fs::remove_file(path);
                }
                return;
            }
            std::thread::sleep(TICK);
        }
    }
}

/// Removes the file of a lock that nobody holds any more, and returns `None`.
fn still_held((path, file): (PathBuf, File)) -> Option<(PathBuf, File)> {
    match file.try_lock() {
        Err(fs::TryLockError::WouldBlock) => Some((path, file)),
        // A lock that can't be asked about can't be waited for either.
        Ok(()) | Err(fs::TryLockError::Error(_)) => {
            let _ = fs::remove_file(path);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_an_earlier_daemons_plugin_still_has_is_waited_for_and_no_longer_than_told() {
        let dir = tempfile::tempdir().unwrap();
        let before = RunningPlugins::open(dir.path()).unwrap();
        let after = RunningPlugins::open(dir.path()).unwrap();
        after.wait_for_earlier(Duration::from_millis(30));
        assert!(after.since.elapsed() >= Duration::from_millis(30));
        assert!(!dir.path().join("1").exists());
        drop((before, after));
        let before = RunningPlugins::open(dir.path()).unwrap();
        let next = RunningPlugins::open(dir.path()).unwrap();
        std::thread::scope(|s| {
            let waits = s.spawn(|| next.wait_for_earlier(Duration::from_secs(60)));
            std::thread::sleep(Duration::from_millis(30));
            assert!(!waits.is_finished());
            drop(before);
        });
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
