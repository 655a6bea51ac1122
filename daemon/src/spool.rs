//! Requests that came while the daemon was down. They are carried out once at the start, in order, before
//! anything else, on a thread of their own: any can hang, and the start waits a few seconds. What fails is tried again
//! in the background: a DEL until it succeeds, a GC some times, because the next GC of its network does the same and more.
//!
//! The entry of a DEL is removed only after it was answered with success. One that says nothing is set aside in `unreadable/` and
//! never deleted. While one can't be read for a reason that can pass, the daemon does not start. As long as a DEL is pending,
//! no ADD of the same attachment is begun. A DEL that starts other programs goes to the background at once, so it never keeps
//! the node from being ready.

mod retry;

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use fairlead_cni::CniError;
use fairlead_cni::spool::{DIRECTORY, EntryName, LOCK_FILE, MAX_ENTRY, parse};
use fairlead_cni::wire::{Command, Request};
use fairlead_host::backoff::Backoff;
use fairlead_host::files::{paths_in, regular};
use fairlead_host::record_content::{Content, ReadFile, UnreadRecord};
use fairlead_host::time_limit::within;
use fairlead_host::vital_thread;
use tracing::{error, info, warn};

use self::retry::{News, Retry};
use crate::admission::{Admission, PodInterface, pod_interface_of, serve_catching_panics};
use crate::call::{CallerGone, Lane, PreparedCall, Service, Waiting, catching_panics};
use crate::metrics::Node;
use crate::netconf_summary::ConfigSummary;

/// The directory, in the spool's, for entries that can't be read.
pub const UNREADABLE: &str = "unreadable";
/// The time limit of one replayed call.
const PATIENCE: Duration = Duration::from_secs(60);
/// So long one entry is waited for before the next is begun.
const ONE_ENTRY: Duration = Duration::from_secs(2);
/// Between two attempts at the lock: short at first, since executables hold it for milliseconds.
const LOCK_PAUSES: Backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(10));
/// A lock that is missed for so long is told of, and then ever more seldom.
const LOCK_TELLS: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(300));

/// Why the spool can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The directory can't be made, locked or read.
    #[error("the spool {path} can't be {what}: {source}; it must lie on a writable disk (--state-dir)", path = .path.display())]
    Directory {
        /// The directory, or the lock file in it.
        path: PathBuf,
        /// The step as a participle: made, locked or read.
        what: &'static str,
        /// Why the step failed.
        source: io::Error,
    },
    /// An entry can't be read for now, and must not be passed over: its caller was answered with success.
    #[error(transparent)]
    Entry(#[from] UnreadRecord),
}

/// One spooled request, and the file that it was read from.
#[derive(Debug)]
pub struct Entry {
    path: PathBuf,
    subject: Subject,
    request: Request,
}

/// What an entry is about: those of one subject are carried out in order.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Subject {
    Interface(PodInterface),
    /// A GC is of no interface: its network, by its name.
    Network(String),
}

impl Subject {
    fn of(request: &Request) -> Subject {
        match request.command {
            Command::Gc => Subject::Network(ConfigSummary::of(&request.config).name),
            _ => Subject::Interface(pod_interface_of(request)),
        }
    }
}

/// The spool while this process holds its lock: no executable writes to it.
#[derive(Debug)]
pub struct Locked {
    directory: PathBuf,
    _lock: File,
    node: Node,
    read: ReadFile,
}

/// Locks the spool; waits for the executables that are just writing to it.
///
/// # Errors
/// When the directory can't be made or locked.
pub fn lock(state_dir: &Path, node: Node) -> Result<Locked, SpoolError> {
    let directory = state_dir.join(DIRECTORY);
    let failed = |path: &Path, what| {
        let path = path.to_path_buf();
        move |source| SpoolError::Directory { path, what, source }
    };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)
        .map_err(failed(&directory, "made"))?;
    let path = directory.join(LOCK_FILE);
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(failed(&path, "made"))?;
    wait_for_lock(&file, &path).map_err(failed(&path, "locked"))?;
    Ok(Locked { directory, _lock: file, node, read: read_bounded })
}

/// Takes the lock, exclusively: executables hold it shared while they write an entry. It is waited for without limit, since what they
/// answer with success must be read. One that is stopped keeps it, so the log says what the start waits for.
fn wait_for_lock(file: &File, path: &Path) -> io::Result<()> {
    let (mut pauses, mut tells) = (LOCK_PAUSES.start(), LOCK_TELLS.start());
    let begun = Instant::now();
    let mut tell_at = begun + tells.failed();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(source)) => return Err(source),
            Err(TryLockError::WouldBlock) => {}
        }
        if Instant::now() >= tell_at {
            tell_at += tells.failed();
            warn!(lock = %path.display(), waited_s = begun.elapsed().as_secs(),
                "the start waits for an executable that holds the spool's lock: find it with lslocks, and continue or kill it");
        }
        std::thread::sleep(pauses.failed());
    }
}

impl Locked {
    /// All entries in order. What says nothing is set aside; what was never finished is removed: nothing was
    /// promised for it, and nobody is writing.
    ///
    /// # Errors
    /// When the directory can't be read, or an entry for a reason that can pass.
    pub fn entries(&self) -> Result<Vec<Entry>, SpoolError> {
        let failed = |source| SpoolError::Directory { path: self.directory.clone(), what: "read", source };
        let mut names = Vec::new();
        for file in fs::read_dir(&self.directory).map_err(failed)? {
            let name = file.map_err(failed)?.file_name();
            let Some(name) = name.to_str() else { continue };
            if let Some(name) = EntryName::parse_whole(name) {
                names.push(name);
            } else if EntryName::parse_partial(name).is_some() {
                let _ = fs::remove_file(self.directory.join(name));
            }
        }
        names.sort();
        let entries = names.into_iter().filter_map(|name| self.entry(&name.whole()).transpose());
        let entries: Vec<Entry> = entries.collect::<Result<_, UnreadRecord>>()?;
        self.node.spool_entries.set(i64::try_from(entries.len()).unwrap_or(i64::MAX));
        let unreadable = unreadable(&self.directory).map_or(0, |all| all.len());
        self.node.spool_unreadable.set(i64::try_from(unreadable).unwrap_or(i64::MAX));
        Ok(entries)
    }

    fn entry(&self, name: &str) -> Result<Option<Entry>, UnreadRecord> {
        let path = self.directory.join(name);
        match content(&path, self.read)? {
            Content::Known(request) => {
                Ok(Some(Entry { path, subject: Subject::of(&request), request: *request }))
            }
            Content::Newer(reason) => {
                warn!(
                    entry = name,
                    reason, "a spooled request of a newer version is left until that version is back"
                );
                Ok(None)
            }
            Content::Unreadable(reason) => {
                self.set_aside(name, &path, &reason);
                Ok(None)
            }
        }
    }

    fn set_aside(&self, name: &str, path: &Path, reason: &str) {
        let aside = self.directory.join(UNREADABLE);
        let moved = fs::DirBuilder::new().recursive(true).mode(0o700).create(&aside);
        match moved.and_then(|()| fs::rename(path, aside.join(name))) {
            Ok(()) => {
                error!(entry = name, reason, to = %aside.display(), "a spooled request can't be read; set aside")
            }
            Err(error) => {
                error!(entry = name, reason, %error, "a spooled request can't be read, nor set aside")
            }
        }
    }
}

/// What an entry's file says.
fn content(path: &Path, read: ReadFile) -> Result<Content<Box<Request>, String>, UnreadRecord> {
    Content::of(path, read, |bytes| match parse(bytes) {
        Ok(request) => Content::Known(Box::new(request)),
        Err(newer) if newer.is_of_newer_version() => Content::Newer(newer.to_string()),
        Err(unreadable) => Content::Unreadable(unreadable.to_string()),
    })
}

/// Reads an entry. A pipe that nobody writes to, or a link to somewhere, must not keep the daemon from being
/// ready.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOFOLLOW | nix::libc::O_NOCTTY;
    let file = regular(File::options().read(true).custom_flags(flags).open(path)?)?;
    let mut bytes = Vec::new();
    // One byte more than is allowed is read, so that the parser sees that the entry is too long.
    file.take(MAX_ENTRY as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The entries that were set aside, for `doctor`. `directory` is the spool's.
///
/// # Errors
/// When the spool, or what was set aside in it, can't be read.
pub fn unreadable(directory: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(directory)?;
    paths_in(&directory.join(UNREADABLE))
}

/// The entries that are left to the newer version that wrote them, for `doctor`. `directory` is the spool's.
///
/// # Errors
/// When the spool can't be read, or an entry for a reason that can pass.
pub fn of_newer_version(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let is_entry = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).and_then(EntryName::parse_whole).is_some()
    };
    let mut newer = Vec::new();
    for path in paths_in(directory)?.into_iter().filter(is_entry) {
        if matches!(content(&path, read_bounded)?, Content::Newer(_)) {
            newer.push(path);
        }
    }
    Ok(newer)
}

/// Carries the entries out, each once, in order; answers those that are still to be done. Each DEL holds back the ADDs of its
/// attachment until it is done.
fn first_pass(
    entries: Vec<Entry>,
    service: &Arc<dyn Service>,
    admission: &Admission,
    node: &Node,
) -> Vec<Entry> {
    let mut pending: Vec<Entry> = Vec::new();
    for entry in entries {
        // In order: what follows a request of the same subject that is still to be done waits for it.
        let behind = pending.iter().any(|p| p.subject == entry.subject);
        if !behind {
            // Caught: the entry is there at each start, and would end the daemon each time.
            let prepare = || Ok(Arc::clone(service).prepare(entry.request.clone()));
            match catching_panics(entry.request.command, prepare) {
                Ok(call) => {
                    if call.lane() == Lane::Fast && served_in_time(call, &entry) {
                        done(&entry, admission, node);
                        continue;
                    }
                }
                Err(error) => warn_failed(&entry, &error.to_string()),
            }
        }
        pending.push(entry);
    }
    pending
}

/// An entry is carried out: it goes from the disk, and the ADDs that it held back may come.
fn done(entry: &Entry, admission: &Admission, node: &Node) {
    let Request { command, container_id, ifname, .. } = &entry.request;
    if remove(entry, node) {
        let command = command.name();
        info!(command, container = container_id, ifname, "a spooled request was carried out");
    }
    if *command == Command::Del {
        admission.release(&pod_interface_of(&entry.request));
    }
}

/// Carries an entry out; false where it is still to be done. One may hang in the files of a tenant's directory: it keeps those behind it
/// no longer than [`ONE_ENTRY`], and goes on by itself.
fn served_in_time(call: Arc<dyn PreparedCall>, entry: &Entry) -> bool {
    let reason = match within("replay", ONE_ENTRY, move || serve(&*call)) {
        Ok(Some(Ok(_))) => return true,
        Ok(Some(Err(error))) => error.to_string(),
        Ok(None) => format!("it did not end within {} s", ONE_ENTRY.as_secs()),
        Err(error) => error.to_string(),
    };
    warn_failed(entry, &reason);
    false
}

fn serve(call: &dyn PreparedCall) -> Result<String, CniError> {
    let arrived = Instant::now();
    let waiting = Waiting { arrived, deadline: arrived + PATIENCE, gone: CallerGone::default() };
    let reply = serve_catching_panics(call, waiting);
    // Nobody waits for the answer: the runtime was answered when the request was spooled.
    call.answered(true);
    call.count_phases();
    reply.outcome
}

fn warn_failed(entry: &Entry, reason: &str) {
    let Request { command, container_id, ifname, .. } = &entry.request;
    let command = command.name();
    warn!(
        command,
        container = container_id,
        ifname,
        reason,
        "a spooled request failed; it will be tried again"
    );
}

/// A GC of `network` fails again and again: it keeps no later one waiting any longer.
fn give_up(entry: &Entry, network: &str, reason: &str, node: &Node) {
    warn!(network, reason, "a spooled GC is given up; the next GC of its network collects what it has left");
    remove(entry, node);
}

/// Takes an entry from the disk; false where it stays.
fn remove(entry: &Entry, node: &Node) -> bool {
    let removed = fs::remove_file(&entry.path);
    if let Err(error) = &removed {
        // It is carried out once more at the next start, which changes nothing: what came later stays.
        warn!(entry = %entry.path.display(), %error, "a spooled request has ended but stays");
    }
    node.spool_entries.dec();
    removed.is_ok()
}

/// Carries the entries out, and tries those that fail again until all are done.
#[derive(Debug)]
pub struct Replay {
    stop: Sender<News>,
    /// How many entries the first pass has left.
    left: Receiver<usize>,
}

impl Replay {
    /// Begins, on a thread of its own: any entry can hang, on a directory or a device. Each DEL holds back the ADDs of its attachment
    /// from now on. What the first pass leaves goes through the queue like everyone's calls.
    ///
    /// # Errors
    /// When there is no thread.
    pub fn begin(
        entries: Vec<Entry>,
        service: Arc<dyn Service>,
        admission: Admission,
        node: Node,
    ) -> io::Result<Replay> {
        let (stop, news) = channel();
        let (passed, left) = channel();
        if entries.is_empty() {
            let _ = passed.send(0);
            return Ok(Replay { stop, left });
        }
        let ended = stop.clone();
        for entry in entries.iter().filter(|entry| entry.request.command == Command::Del) {
            admission.hold(pod_interface_of(&entry.request));
        }
        let work = move || {
            let pending = first_pass(entries, &service, &admission, &node);
            drop(service);
            let _ = passed.send(pending.len());
            if !pending.is_empty() {
                Retry::of(pending, admission, node, ended).work(&news);
            }
        };
        vital_thread::begin("spool", work)?;
        Ok(Replay { stop, left })
    }

    /// Waits for the end of the first pass and answers how many entries it has left; `None` when it takes longer than `limit`.
    pub fn first_pass_left(&self, limit: Duration) -> Option<usize> {
        self.left.recv_timeout(limit).ok()
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        // It fails where the thread has ended already.
        let _ = self.stop.send(News::Stop);
    }
}

#[cfg(test)]
mod tests;
