//! Watches directories for changes: files written, renamed, removed, or swapped by a symlink as a ConfigMap's mount does it.
//!
//! The directory need not exist yet: then the nearest ancestor that does is watched. Changes that come close together are reported
//! once. Reading is no change. A report says only that something changed; whoever gets it reads the directory itself, so a lost
//! event costs time, never truth.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tracing::warn;

/// Changes within this time of each other are one.
const SETTLE: Duration = Duration::from_millis(40);
/// But no longer than so long after the first change: something in the directory may change all the time.
const LONGEST_SETTLE: Duration = Duration::from_secs(1);

/// Why nothing can be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The kernel gave no watcher.
    #[error("changes of files can't be watched: {0}; raise fs.inotify.max_user_instances")]
    Watcher(#[from] notify::Error),
    /// The kernel gave no thread.
    #[error("no thread to watch files with: {0}")]
    Thread(#[from] std::io::Error),
}

/// A watch that is alive answers within this time.
const PULSE_LIMIT: Duration = Duration::from_secs(1);

enum Message {
    Changed,
    /// Checks that all that is to be watched is watched, and answers on this channel.
    Pulse(Sender<Result<(), String>>),
    /// These are to be watched from now on.
    Directories(Vec<PathBuf>),
    End,
}

/// A watch; ends when dropped.
#[derive(Debug)]
pub struct Watch {
    name: String,
    messages: Sender<Message>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.messages.send(Message::End);
    }
}

/// A handle by which a watch is checked: whether it still lives and sees changes.
#[derive(Debug, Clone)]
pub struct Pulse {
    name: String,
    messages: Sender<Message>,
}

impl Pulse {
    /// Checks that the watch lives, whatever the kernel says to it. Waits for a second at most.
    ///
    /// # Errors
    /// When its thread is gone or hangs.
    pub fn lives(&self) -> Result<(), String> {
        self.ask().map(drop)
    }

    /// Checks that the kernel watches every directory. Waits for a second at most; a watch that does not live cannot say.
    ///
    /// # Errors
    /// When the kernel takes no watch, so that changes of files are not seen. It would take none of a restarted daemon either.
    pub fn is_armed(&self) -> Result<(), String> {
        match self.ask() {
            Ok(Err(error)) => Err(format!("{}: {error}; raise fs.inotify.max_user_watches", self.name)),
            Ok(Ok(())) | Err(_) => Ok(()),
        }
    }

    /// What the watch answers of the kernel, or why it does not answer.
    fn ask(&self) -> Result<Result<(), String>, String> {
        let (reply, answer) = channel();
        // Whether its thread has ended is seen by the end of the answer's channel.
        let _ = self.messages.send(Message::Pulse(reply));
        let wrong = match answer.recv_timeout(PULSE_LIMIT) {
            Ok(armed) => return Ok(armed),
            Err(RecvTimeoutError::Timeout) => "it does not answer; restart fairleadd",
            Err(RecvTimeoutError::Disconnected) => "its thread has ended; restart fairleadd",
        };
        Err(format!("{}: {wrong}", self.name))
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
        let events = sender.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // An error of the watcher counts as a change: events may be lost, and the reader looks for himself.
            if event.map_or(true, |event| is_change(event.kind)) {
                let _ = events.send(Message::Changed);
            }
        })?;
        let mut places = Places { watcher, directories, watched: HashSet::new() };
        // A directory that can't be watched now is logged and tried again; the others are watched meanwhile.
        drop(places.arm());
        std::thread::Builder::new()
            .name(name.into())
            .spawn(move || follow(&receiver, &mut places, changed))?;
        Ok(Watch { name: name.into(), messages: sender })
    }

    /// Watches these directories from now on.
    pub fn follow(&self, directories: Vec<PathBuf>) {
        let _ = self.messages.send(Message::Directories(directories));
    }

    /// A handle for checking that it lives.
    pub fn pulse(&self) -> Pulse {
        Pulse { name: self.name.clone(), messages: self.messages.clone() }
    }
}

fn is_change(kind: EventKind) -> bool {
    match kind {
        // Reading must be no change: whoever is told of a change reads the files, and would be told of that.
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}

fn follow<W: Watcher>(receiver: &Receiver<Message>, places: &mut Places<W>, changed: impl Fn()) {
    // When the first change came, and when what has changed is reported.
    let mut settled: Option<(Instant, Instant)> = None;
    loop {
        let left = settled.map_or(Duration::MAX, |(_, at)| at.saturating_duration_since(Instant::now()));
        match receiver.recv_timeout(left) {
            Ok(Message::Changed) => {
                let now = Instant::now();
                let first = settled.map_or(now, |(first, _)| first);
                settled = Some((first, (now + SETTLE).min(first + LONGEST_SETTLE)));
            }
            // Watching again what is watched goes through the watcher's own thread: an answer proves both.
            Ok(Message::Pulse(reply)) => drop(reply.send(places.arm())),
            Ok(Message::Directories(directories)) => {
                places.directories = directories;
                drop(places.arm());
            }
            Err(RecvTimeoutError::Timeout) => {
                settled = None;
                // Watched before the report: what came into a new directory earlier is seen by whoever gets the report.
                drop(places.arm());
                changed();
            }
            Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

struct Places<W = RecommendedWatcher> {
    watcher: W,
    directories: Vec<PathBuf>,
    watched: HashSet<PathBuf>,
}

impl<W: Watcher> Places<W> {
    /// Watches each directory, or the nearest ancestor that exists. Watching again one that is watched follows a
    /// directory that was removed and made again. The error is the last one's that can't be watched.
    fn arm(&mut self) -> Result<(), String> {
        let wanted: HashSet<PathBuf> = self.directories.iter().map(|d| nearest(d)).collect();
        for gone in self.watched.difference(&wanted) {
            // The kernel ends the watch of a removed directory itself; then there is nothing to end.
            let _ = self.watcher.unwatch(gone);
        }
        let mut armed = Ok(());
        for place in &wanted {
            // Not its subdirectories: the nearest ancestor that exists may be as large as `/`.
            if let Err(error) = self.watcher.watch(place, RecursiveMode::NonRecursive) {
                warn!(place = %place.display(), %error, "changes in this directory will not be seen");
                armed = Err(format!("{} can't be watched: {error}", place.display()));
            }
        }
        self.watched = wanted;
        armed
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

    #[test]
    fn a_change_is_reported_though_something_else_changes_all_the_time() {
        let directory = tempfile::tempdir().unwrap();
        let (_watch, reports) = watched(directory.path());
        let busy = directory.path().join("log");
        let limit = Instant::now() + LONG;
        while reports.try_recv().is_err() {
            assert!(Instant::now() < limit, "nothing was reported");
            fs::write(&busy, "x").unwrap();
            std::thread::sleep(SETTLE / 8);
        }
    }

    /// A kernel that has no watch left.
    #[derive(Debug)]
    struct Refusing;

    impl Watcher for Refusing {
        fn new<F: notify::EventHandler>(_: F, _: notify::Config) -> notify::Result<Refusing> {
            Ok(Refusing)
        }

        fn watch(&mut self, _: &Path, _: RecursiveMode) -> notify::Result<()> {
            Err(notify::Error::new(notify::ErrorKind::MaxFilesWatch))
        }

        fn unwatch(&mut self, _: &Path) -> notify::Result<()> {
            Ok(())
        }

        fn kind() -> notify::WatcherKind {
            notify::WatcherKind::NullWatcher
        }
    }

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn r07_the_swap_of_a_config_map_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("..1")).unwrap();
        fs::create_dir(dir.path().join("..2")).unwrap();
        symlink("..1", dir.path().join("..data")).unwrap();
        let (_watch, changes) = watched(dir.path());
        symlink("..2", dir.path().join("..data_tmp")).unwrap();
        fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
        changes.recv_timeout(LONG).unwrap();
    }

    #[test]
    fn a_watch_follows_what_it_is_to_watch() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (watch, changes) = watched(one.path());
        watch.follow(vec![other.path().into()]);
        watch.pulse().lives().unwrap(); // it has
        fs::write(other.path().join("x"), "1").unwrap();
        changes.recv_timeout(LONG).unwrap();
    }

    #[test]
    fn k19_a_watch_that_lives_answers_and_one_that_has_ended_or_hangs_is_told_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let (watch, _changes) = watched(dir.path());
        let pulse = watch.pulse();
        assert_eq!((pulse.lives(), pulse.is_armed()), (Ok(()), Ok(())));
        drop(watch);
        assert_eq!(pulse.lives(), Err("watch-test: its thread has ended; restart fairleadd".into()));
        let (began, begun) = channel();
        let (_go_on, held) = channel::<()>();
        let hangs = Watch::new("watch-hung", vec![dir.path().into()], move || {
            let _ = began.send(());
            let _ = held.recv();
        });
        let hangs = hangs.unwrap();
        fs::write(dir.path().join("x"), "1").unwrap();
        begun.recv_timeout(LONG).unwrap();
        assert_eq!(hangs.pulse().lives(), Err("watch-hung: it does not answer; restart fairleadd".into()));
    }

    #[test]
    fn k19_a_watch_that_is_asked_all_the_time_still_tells_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (watch, changes) = watched(dir.path());
        fs::write(dir.path().join("x"), "1").unwrap();
        let limit = Instant::now() + LONG;
        while changes.try_recv().is_err() {
            assert!(Instant::now() < limit, "it was never reported");
            watch.pulse().lives().unwrap();
        }
    }

    #[test]
    fn k19_a_directory_that_the_kernel_can_not_watch_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut places =
            Places { watcher: Refusing, directories: vec![dir.path().into()], watched: HashSet::new() };
        let (messages, receiver) = channel();
        let thread = std::thread::spawn(move || follow(&receiver, &mut places, || ()));
        let pulse = Pulse { name: "watch-test".into(), messages };
        assert_eq!(pulse.lives(), Ok(()), "a restart would get no watch either");
        let error = pulse.is_armed().unwrap_err();
        let begin = format!("watch-test: {} can't be watched: ", dir.path().display());
        assert!(error.starts_with(&begin) && error.contains("max_user_watches"), "{error}");
        pulse.messages.send(Message::End).unwrap();
        thread.join().unwrap();
        assert_eq!(pulse.is_armed(), Ok(()), "whether it is cannot be known");
    }

    #[test]
    fn a_directory_that_is_made_later_is_followed_and_reading_is_no_change() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("a");
        let (_watch, changes) = watched(&place);
        fs::create_dir(&place).unwrap();
        changes.recv_timeout(LONG).unwrap();
        fs::write(place.join("x"), "1").unwrap();
        changes.recv_timeout(LONG).unwrap();
        while changes.recv_timeout(SETTLE * 5).is_ok() {}
        fs::read(place.join("x")).unwrap();
        assert!(changes.recv_timeout(SETTLE * 5).is_err());
    }
}
