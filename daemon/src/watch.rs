//! Tells when something in a directory has changed: written, renamed, removed, or swapped by a symlink as a
//! ConfigMap's mount does it.
//!
//! The directory need not exist yet: then the nearest ancestor that does is watched. Changes that come close
//! together are told once. Reading is no change. Whoever is told looks for himself: a lost event costs time, never
//! truth.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tracing::warn;

/// Changes within this time of each other are one.
const SETTLE: Duration = Duration::from_millis(40);

/// Why nothing can be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The kernel gave no watcher.
    #[error("changes of files can't be watched: {0}; raise fs.inotify.max_user_instances")]
    Watcher(#[from] notify::Error),
    /// No thread.
    #[error("no thread to watch files with: {0}")]
    Thread(#[from] std::io::Error),
}

enum Message {
    Changed,
    End,
}

/// A watch; ends when dropped.
#[derive(Debug)]
pub struct Watch(Sender<Message>);

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.send(Message::End);
    }
}

impl Watch {
    /// Calls `changed`, on a thread named `name`, whenever something in one of `directories` has changed.
    ///
    /// # Errors
    /// When the kernel gives no watcher or no thread.
    pub fn new(
        name: &str,
        directories: Vec<PathBuf>,
        changed: impl Fn() + Send + 'static,
    ) -> Result<Watch, WatchError> {
        let (sender, receiver) = channel();
        let told = sender.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if event.map_or(true, |event| is_change(event.kind)) {
                let _ = told.send(Message::Changed);
            }
        })?;
        let mut places = Places { watcher, directories, watched: HashSet::new() };
        places.arm();
        std::thread::Builder::new()
            .name(name.into())
            .spawn(move || follow(&receiver, &mut places, changed))?;
        Ok(Watch(sender))
    }
}

fn is_change(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}

fn follow(receiver: &Receiver<Message>, places: &mut Places, changed: impl Fn()) {
    while let Ok(Message::Changed) = receiver.recv() {
        loop {
            match receiver.recv_timeout(SETTLE) {
                Ok(Message::Changed) => {}
                Err(RecvTimeoutError::Timeout) => break,
                Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        places.arm();
        changed();
    }
}

struct Places {
    watcher: RecommendedWatcher,
    directories: Vec<PathBuf>,
    watched: HashSet<PathBuf>,
}

impl Places {
    /// Watches each directory, or the nearest ancestor that exists. Asking again for one that is watched follows a
    /// directory that was removed and made anew.
    fn arm(&mut self) {
        let wanted: HashSet<PathBuf> = self.directories.iter().map(|d| nearest(d)).collect();
        for gone in self.watched.difference(&wanted) {
            let _ = self.watcher.unwatch(gone);
        }
        for place in &wanted {
            if let Err(error) = self.watcher.watch(place, RecursiveMode::NonRecursive) {
                warn!(place = %place.display(), %error, "changes in this directory will not be seen");
            }
        }
        self.watched = wanted;
    }
}

fn nearest(directory: &Path) -> PathBuf {
    directory.ancestors().find(|p| p.is_dir()).unwrap_or(Path::new("/")).to_path_buf()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn watched(directory: &Path) -> (Watch, Receiver<()>) {
        let (sender, receiver) = channel();
        let watch = Watch::new("watch-test", vec![directory.into()], move || {
            let _ = sender.send(());
        })
        .unwrap();
        (watch, receiver)
    }

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn r7_the_swap_of_a_config_map_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("..1")).unwrap();
        fs::create_dir(dir.path().join("..2")).unwrap();
        symlink("..1", dir.path().join("..data")).unwrap();
        let (_watch, told) = watched(dir.path());
        symlink("..2", dir.path().join("..data_tmp")).unwrap();
        fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
        told.recv_timeout(LONG).unwrap();
    }

    #[test]
    fn a_directory_that_is_made_later_is_followed_and_reading_is_no_change() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("a");
        let (_watch, told) = watched(&place);
        fs::create_dir(&place).unwrap();
        told.recv_timeout(LONG).unwrap();
        fs::write(place.join("x"), "1").unwrap();
        told.recv_timeout(LONG).unwrap();
        while told.recv_timeout(SETTLE * 5).is_ok() {}
        fs::read(place.join("x")).unwrap();
        assert!(told.recv_timeout(SETTLE * 5).is_err());
    }
}
