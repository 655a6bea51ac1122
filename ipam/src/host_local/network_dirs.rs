//! The directories that calls work in, each by its name: what is open of them, what is known of their files, and who waits.
//!
//! A directory that nobody works in keeps no descriptor, and what is known of all directories is bounded: anybody who may write a
//! configuration can name any number of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::dir_path::NetworkDir;
use super::file_turns::{Turn, Turns};
use super::lock_wait::LockWait;
use super::open_dir::{KnownFiles, OpenDir};

/// A directory that nobody has worked in for so long keeps no descriptor. It is as long as pods of one start come one after another;
/// to open it again takes an ADD less than 0.1 ms.
const IDLE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });
/// After so long nothing is known of its files any more: the next call reads them again.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// What is known of all directories takes no more memory, in bytes; beyond it what is known of idle ones goes.
const LARGEST: usize = 64 << 20;

/// One network's directory, and the other processes that hold its lock.
#[derive(Debug, Default)]
pub(super) struct SharedDir {
    /// One thread of ours at a time works on its files.
    pub(super) files: Turns<DirFiles>,
    /// The wait for another process.
    pub(super) wait: LockWait,
}

/// What is open of a directory, or known of it since it was.
#[derive(Debug, Default)]
pub(super) struct DirFiles {
    /// Its descriptors.
    pub(super) open: Option<OpenDir>,
    /// What is known while it is closed.
    pub(super) known: KnownFiles,
    /// How much of it was counted among [`NetworkDirs::known`].
    counted: usize,
}

impl DirFiles {
    /// Closes it. Answers what is known of its files.
    pub(super) fn close(&mut self) -> KnownFiles {
        match self.open.take() {
            Some(mut open) => open.take_known(),
            None => std::mem::take(&mut self.known),
        }
    }

    pub(super) fn size(&self) -> usize {
        self.open.as_ref().map_or(self.known.size(), |open| open.known().size())
    }
}

/// All directories.
#[derive(Debug, Default)]
pub(super) struct NetworkDirs {
    by_name: Mutex<HashMap<NetworkDir, Arc<SharedDir>>>,
    /// What is known of all their files takes so much memory, in bytes.
    known: AtomicUsize,
}

impl NetworkDirs {
    /// A directory by its name; nothing of it is looked at.
    pub(super) fn get(&self, directory: &NetworkDir) -> Arc<SharedDir> {
        let mut by_name = self.by_name.lock();
        match by_name.get(directory) {
            Some(shared) => Arc::clone(shared),
            None => Arc::clone(by_name.entry(directory.clone()).or_default()),
        }
    }

    /// To be called when a call has ended its work: where more is known by now than may be, what is known of idle directories is
    /// forgotten.
    pub(super) fn account(&self, mut files: Turn<'_, DirFiles>) {
        let all = self.count(&mut files);
        drop(files);
        if all > LARGEST {
            for shared in self.all() {
                let closed = shared.files.when_idle(|files, _| {
                    let open = files.open.take();
                    files.known = KnownFiles::default();
                    self.count(files);
                    open
                });
                drop(closed);
            }
        }
    }

    /// Gives up what idle directories hold; true while there are any.
    pub(super) fn tidy(&self) -> bool {
        for shared in self.all() {
            let closed = shared.files.when_idle(|files, idle| {
                let mut open = (idle >= IDLE).then(|| files.open.take()).flatten();
                if let Some(open) = &mut open {
                    files.known = open.take_known();
                }
                if idle >= FORGOTTEN {
                    files.known = KnownFiles::default();
                }
                self.count(files);
                open
            });
            // Here, while nobody has to wait for it: a file system may take its time to close a file.
            drop(closed);
        }
        let mut by_name = self.by_name.lock();
        // Who has a directory by now may be about to work in it.
        by_name.retain(|_, shared| {
            let empty = |files: &mut DirFiles, _| files.open.is_none() && files.size() == 0;
            Arc::strong_count(shared) > 1 || shared.files.when_idle(empty) != Some(true)
        });
        !by_name.is_empty()
    }

    /// Directories in which a thread has been at work for longer than this, and for how long.
    pub(super) fn hanging(&self, longer_than: Duration) -> Vec<(NetworkDir, Duration)> {
        let by_name = self.by_name.lock();
        let at_work = by_name.iter().filter_map(|(name, shared)| Some((name, shared.files.at_work()?)));
        at_work.filter(|(_, since)| *since > longer_than).map(|(name, since)| (name.clone(), since)).collect()
    }

    pub(super) fn all(&self) -> Vec<Arc<SharedDir>> {
        self.by_name.lock().values().cloned().collect()
    }

    /// Counts what is known of a directory now instead of what was; answers what is known of all.
    fn count(&self, files: &mut DirFiles) -> usize {
        let (before, now) = (files.counted, files.size());
        files.counted = now;
        if now >= before {
            self.known.fetch_add(now - before, Ordering::Relaxed) + (now - before)
        } else {
            self.known.fetch_sub(before - now, Ordering::Relaxed) - (before - now)
        }
    }
}
