//! The writing side of the spool: a DEL or GC that finds no daemon is stored, and answered with success.
//!
//! The format and the protocol of locks are those of [`fairlead_cni::spool`]. Success is answered only when the entry is on disk
//! under its name: written aside, synced, renamed, the directory synced. This side never reads, changes or removes a whole
//! entry.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use fairlead_cni::spool::{DIRECTORY, EntryName, LOCK_FILE, MAX_BYTES, MAX_ENTRIES, serialise};
use fairlead_cni::wire::Request;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::deadline::{Deadline, Pause};
use crate::errno_text::ErrnoText;

/// Why nothing was spooled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpoolError {
    /// The file system refuses.
    #[error("the spool directory {} can't be written to ({step}): {reason}", .directory.display())]
    Unwritable {
        /// The directory of the spool.
        directory: PathBuf,
        /// What was being done.
        step: &'static str,
        /// Why it failed.
        reason: ErrnoText,
    },
    /// The daemon, or other executables, held the lock for longer than the call may take.
    #[error("the spool directory {} was locked until the call's time limit", .0.display())]
    Locked(PathBuf),
    /// The spool has reached its limits.
    #[error("the spool directory {} is full: {entries} entries with {bytes} bytes, and the limits are {MAX_ENTRIES} and {MAX_BYTES}", .directory.display())]
    Full {
        /// The directory of the spool.
        directory: PathBuf,
        /// How many entries there are.
        entries: usize,
        /// How many bytes they would have with this one.
        bytes: u64,
    },
    /// The request can't be serialised.
    #[error("the request can't be written as JSON: {0}")]
    Request(serde_json::Error),
}

/// The spool with its lock held shared. As long as this exists, no daemon replays the spool and begins to listen.
#[derive(Debug)]
pub(crate) struct Spool {
    directory: PathBuf,
    _lock: Flock<File>,
}

impl Spool {
    /// Takes the lock, and creates the directory where there is none.
    pub(crate) fn lock(state_dir: &Path, deadline: Deadline) -> Result<Spool, SpoolError> {
        let directory = state_dir.join(DIRECTORY);
        let unwritable = |step| step_failed(&directory, step);
        if !directory.is_dir() {
            make(&directory, state_dir).map_err(unwritable("make"))?;
        }
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(directory.join(LOCK_FILE))
            .map_err(unwritable("open its lock"))?;
        let lock = wait_for(lock, FlockArg::LockSharedNonblock, &directory, deadline)?;
        Ok(Spool { directory, _lock: lock })
    }

    /// Writes the request. When this returns, the entry survives a power cut.
    pub(crate) fn write(&self, request: &Request, deadline: Deadline) -> Result<(), SpoolError> {
        let entry = serialise(request).map_err(SpoolError::Request)?;
        let unwritable = |step| step_failed(&self.directory, step);
        let directory = File::open(&self.directory).map_err(unwritable("open"))?;
        // The spool's lock is shared among executables; names and limits need one writer at a time.
        let turn = wait_for(directory, FlockArg::LockExclusiveNonblock, &self.directory, deadline)?;
        let name = self.next_name(&entry)?;
        let partial = self.directory.join(name.partial());
        let placed = write_synced(&partial, &entry).map_err(unwritable("write an entry")).and_then(|()| {
            fs::rename(&partial, self.directory.join(name.whole())).map_err(unwritable("name an entry"))
        });
        if placed.is_err() {
            // A partial entry would be ignored, but it counts against the limits.
            let _ = fs::remove_file(&partial);
        }
        placed?;
        // This is the directory: the new name must be on the disk before success is answered.
        turn.sync_all().map_err(unwritable("sync"))
    }

    /// The name of the next entry, if the spool has room for it.
    fn next_name(&self, entry: &[u8]) -> Result<EntryName, SpoolError> {
        let unwritable = |step| step_failed(&self.directory, step);
        let (mut entries, mut bytes, mut last) = (0, entry.len() as u64, 0);
        for file in fs::read_dir(&self.directory).map_err(unwritable("list"))? {
            let file = file.map_err(unwritable("list"))?;
            let name = file.file_name();
            let name = name.to_str().unwrap_or_default();
            let Some(name) = EntryName::parse_whole(name).or_else(|| EntryName::parse_partial(name)) else {
                continue;
            };
            entries += 1;
            bytes += file.metadata().map_err(unwritable("measure"))?.len();
            last = name.sequence.max(last);
        }
        if entries >= MAX_ENTRIES || bytes > MAX_BYTES {
            return Err(SpoolError::Full { directory: self.directory.clone(), entries, bytes });
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        // After the last one even where the clock was set back: the order of the names is that of the replay.
        Ok(EntryName { sequence: now.max(last.saturating_add(1)), pid: std::process::id() })
    }
}

fn make(directory: &Path, state_dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    // A directory's name is in its parent: not synced, a power cut could lose the spool with its entries.
    File::open(state_dir)?.sync_all()?;
    match state_dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Takes a lock. The kernel has no timed `flock(2)`, and these locks are held for milliseconds.
fn wait_for(
    mut file: File,
    kind: FlockArg,
    directory: &Path,
    deadline: Deadline,
) -> Result<Flock<File>, SpoolError> {
    let mut pause = Pause::new();
    loop {
        file = match Flock::lock(file, kind) {
            Ok(locked) => return Ok(locked),
            Err((file, Errno::EAGAIN | Errno::EINTR)) => file,
            Err((_, errno)) => return Err(step_failed(directory, "lock")(errno.into())),
        };
        if !pause.sleep(deadline) {
            return Err(SpoolError::Locked(directory.to_owned()));
        }
    }
}

fn step_failed(directory: &Path, step: &'static str) -> impl Fn(io::Error) -> SpoolError {
    let directory = directory.to_owned();
    move |error| SpoolError::Unwritable { directory: directory.clone(), step, reason: error.into() }
}
