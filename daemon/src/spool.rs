//! Requests that came while the daemon was down. They are carried out once at the start, in order, before
//! anything else; what fails is tried again in the background until it succeeds.
//!
//! An entry is removed only after it was answered with success. One that can't be read is set aside in
//! `unreadable/` and never deleted. As long as a DEL is pending, no ADD of the same attachment is begun. A DEL
//! that starts other programs goes to the background at once, so it never keeps the node from being ready.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use fairlead_cni::spool::{DIRECTORY, EntryName, LOCK_FILE, MAX_ENTRY, parse};
use fairlead_cni::wire::{Command, Request};
use fairlead_host::backoff::Backoff;
use fairlead_host::files::{paths_in, regular};
use tracing::{error, info, warn};

use crate::admission::{Admission, Outcome, pod_interface_of, serve_catching_panics};
use crate::call::{CallerGone, Lane, PreparedCall, Service, Waiting};
use crate::metrics::Node;

/// The directory, in the spool's, for entries that can't be read.
pub const UNREADABLE: &str = "unreadable";
/// The time limit of one replayed call.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pauses between attempts at what has failed.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

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
}

/// One spooled request, and the file that it was read from.
#[derive(Debug)]
pub struct Entry {
    path: PathBuf,
    request: Request,
}

/// The spool while this process holds its lock: no executable writes to it.
#[derive(Debug)]
pub struct Locked {
    directory: PathBuf,
    _lock: File,
    node: Node,
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
    // Exclusive: executables hold it shared while they write an entry.
    file.lock().map_err(failed(&path, "locked"))?;
    Ok(Locked { directory, _lock: file, node })
}

impl Locked {
    /// All entries in order. What can't be read is set aside; what was never finished is removed: nothing was
    /// promised for it, and nobody is writing.
    ///
    /// # Errors
    /// When the directory can't be read.
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
        let entries: Vec<Entry> = names.into_iter().filter_map(|name| self.entry(&name.whole())).collect();
        self.node.spool_entries.set(i64::try_from(entries.len()).unwrap_or(i64::MAX));
        let unreadable = unreadable(&self.directory).map_or(0, |all| all.len());
        self.node.spool_unreadable.set(i64::try_from(unreadable).unwrap_or(i64::MAX));
        Ok(entries)
    }

    fn entry(&self, name: &str) -> Option<Entry> {
        let path = self.directory.join(name);
        let read = read_bounded(&path).map_err(|e| e.to_string());
        match read.and_then(|bytes| parse(&bytes).map_err(|e| e.to_string())) {
            Ok(request) => Some(Entry { path, request }),
            Err(reason) => {
                self.set_aside(name, &path, &reason);
                None
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

/// Carries the entries out, each once, in order; answers those that are still to be done, each of them holding
/// back the ADDs of its attachment.
pub fn first_pass(
    entries: Vec<Entry>,
    service: &Arc<dyn Service>,
    admission: &Admission,
    node: &Node,
) -> Vec<Entry> {
    let mut pending: Vec<Entry> = Vec::new();
    for entry in entries {
        let attachment = pod_interface_of(&entry.request);
        // In order: what follows a request of the same attachment that is still to be done waits for it.
        let behind = pending.iter().any(|p| pod_interface_of(&p.request) == attachment);
        if !behind {
            let call = Arc::clone(service).prepare(entry.request.clone());
            if call.lane() == Lane::Fast && serve(&*call, &entry) {
                remove(&entry, node);
                continue;
            }
        }
        if entry.request.command == Command::Del {
            admission.hold(attachment);
        }
        pending.push(entry);
    }
    pending
}

fn serve(call: &dyn PreparedCall, entry: &Entry) -> bool {
    let arrived = Instant::now();
    let waiting = Waiting { arrived, deadline: arrived + PATIENCE, gone: CallerGone::default() };
    let reply = serve_catching_panics(call, waiting);
    // Nobody waits for the answer: the runtime was answered when the request was spooled.
    call.answered(true);
    match reply.outcome {
        Ok(_) => true,
        Err(error) => {
            warn_failed(entry, &error.to_string());
            false
        }
    }
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

fn remove(entry: &Entry, node: &Node) {
    let Request { command, container_id, ifname, .. } = &entry.request;
    let command = command.name();
    match fs::remove_file(&entry.path) {
        Ok(()) => info!(command, container = container_id, ifname, "a spooled request was carried out"),
        // The request is carried out once more at the next start, which changes nothing.
        Err(error) => warn!(entry = %entry.path.display(), %error, "a spooled request was done but stays"),
    }
    node.spool_entries.dec();
}

/// Tries the pending entries again, in order, until all are done.
#[derive(Debug)]
pub struct Retry {
    wake: Sender<()>,
}

impl Retry {
    /// Begins, on a thread of its own. `calls` go through the queue like everyone's.
    ///
    /// # Errors
    /// When there is no thread.
    pub fn begin(pending: Vec<Entry>, admission: Admission, node: Node) -> io::Result<Retry> {
        let (wake, woken) = channel();
        if !pending.is_empty() {
            let work = move || retry(pending, &admission, &node, &woken);
            std::thread::Builder::new().name("spool".into()).spawn(work)?;
        }
        Ok(Retry { wake })
    }

    /// Tries at once, without waiting for the pause to end.
    pub fn now(&self) {
        let _ = self.wake.send(());
    }
}

fn retry(mut pending: Vec<Entry>, admission: &Admission, node: &Node, woken: &Receiver<()>) {
    let mut attempts = PAUSES.start();
    loop {
        // All are handed in at once: those that start programs run side by side, those of one container in order.
        let hand_in = |e: &Entry| admission.submit(admission.prepare(again(&e.request)), Instant::now());
        let handed: Vec<_> = pending.iter().map(hand_in).collect();
        let mut still = Vec::new();
        for (entry, submitted) in pending.into_iter().zip(handed) {
            match submitted.wait() {
                Outcome::Reply(reply, _) if reply.outcome.is_ok() => {
                    remove(&entry, node);
                    if entry.request.command == Command::Del {
                        admission.release(&pod_interface_of(&entry.request));
                    }
                }
                // The daemon is stopping; the entries stay on the disk for the next start.
                Outcome::NotBegun => return,
                Outcome::Reply(reply, _) => {
                    warn_failed(&entry, &reply.outcome.err().map(|e| e.to_string()).unwrap_or_default());
                    still.push(entry);
                }
                Outcome::TooLate | Outcome::Full => still.push(entry),
            }
        }
        if still.is_empty() {
            return;
        }
        pending = still;
        match woken.recv_timeout(attempts.failed()) {
            // Woken by order: the next pause is the shortest again.
            Ok(()) => attempts.succeeded(),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn again(request: &Request) -> Request {
    let deadline_ms = u64::try_from(PATIENCE.as_millis()).unwrap_or(u64::MAX);
    Request { deadline_ms, ..request.clone() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use fairlead_cni::config::NetConf;
    use fairlead_cni::spool::serialise;
    use fairlead_cni::wire::{Spooled, WIRE};
    use fairlead_cni::{CniError, CniVersion, Code};
    use parking_lot::Mutex;
    use serde_json::Value;

    use super::*;
    use crate::admission::Limits;
    use crate::call::Reply;
    use crate::metrics::{Calls, Exposition};

    /// Fails the first `failures` calls of container `bad`; `slow` is on the slow lane.
    #[derive(Default)]
    struct Fake {
        failures: AtomicUsize,
        log: Mutex<Vec<String>>,
    }

    struct FakeCall(Arc<Fake>, Request);

    impl PreparedCall for FakeCall {
        fn request(&self) -> &Request {
            &self.1
        }

        fn conf(&self) -> Option<&NetConf> {
            None
        }

        fn lane(&self) -> Lane {
            if self.1.container_id == "slow" { Lane::Slow } else { Lane::Fast }
        }

        fn serve(&self, _: Waiting) -> Reply {
            let FakeCall(fake, request) = self;
            let container = request.container_id.clone();
            let fails = container == "bad"
                && fake
                    .failures
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                    .is_ok();
            fake.log.lock().push(format!("{} {container}", request.command.name()));
            let outcome = if fails { Err(CniError::new(Code::Io, "busy")) } else { Ok(String::new()) };
            Reply { version: CniVersion::LATEST, outcome }
        }

        fn answered(&self, _: bool) {}
    }

    impl Service for Fake {
        fn prepare(self: Arc<Self>, request: Request) -> Arc<dyn PreparedCall> {
            Arc::new(FakeCall(self, request))
        }

        fn table(&self, _: &str) -> Option<Value> {
            None
        }

        fn order_pools(&self, _: fairlead_sriov::pools::Verb, of: &str) -> Result<Value, CniError> {
            Ok(vec![of].into())
        }

        fn collect(&self, _: bool) -> Value {
            Value::Null
        }
    }

    fn del(container: &str) -> Request {
        Request {
            wire: WIRE,
            command: Command::Del,
            container_id: container.into(),
            netns: String::new(),
            netns_inode: None,
            own_netns: None,
            ifname: "eth0".into(),
            args: String::new(),
            path: String::new(),
            env: Vec::new(),
            config: "{}".into(),
            deadline_ms: 0,
            spooled: Some(Spooled { boot_id: "an earlier one".into(), at: 1, cookie: None }),
        }
    }

    fn put(state: &Path, sequence: u64, bytes: &[u8]) -> PathBuf {
        let directory = state.join(DIRECTORY);
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join(EntryName { sequence, pid: 1 }.whole());
        fs::write(&path, bytes).unwrap();
        path
    }

    fn admission() -> Admission {
        Admission::new(
            Limits { fast: 1, slow: 2, queued: 10 },
            Calls::new(&Exposition::default(), &["macvlan"]),
            Arc::default(),
        )
    }

    fn left(state: &Path) -> usize {
        fs::read_dir(state.join(DIRECTORY))
            .unwrap()
            .filter(|f| f.as_ref().unwrap().path().extension().is_some())
            .count()
    }

    #[test]
    fn x02_entries_are_carried_out_in_order_and_removed_and_what_cant_be_read_is_set_aside() {
        let state = tempfile::tempdir().unwrap();
        for (n, container) in [(20, "c"), (3, "a"), (11, "b")] {
            put(state.path(), n, &serialise(&del(container)).unwrap());
        }
        put(state.path(), 4, b"torn");
        let partial = state.path().join(DIRECTORY).join(EntryName { sequence: 5, pid: 2 }.partial());
        fs::write(&partial, "half").unwrap();
        let node = Node::default();
        let entries = lock(state.path(), node.clone()).unwrap().entries().unwrap();
        assert_eq!(node.spool_entries.get(), 3);
        let fake = Arc::new(Fake::default());
        let service: Arc<dyn Service> = fake.clone();
        assert!(first_pass(entries, &service, &admission(), &node).is_empty());
        assert_eq!(*fake.log.lock(), ["DEL a", "DEL b", "DEL c"]);
        let aside = unreadable(&state.path().join(DIRECTORY)).unwrap();
        assert_eq!((aside.len(), left(state.path()), partial.exists()), (1, 0, false));
        assert_eq!(fs::read(&aside[0]).unwrap(), b"torn");
        assert_eq!((node.spool_entries.get(), node.spool_unreadable.get()), (0, 1));
    }

    #[test]
    fn what_is_no_regular_file_keeps_nobody_waiting_and_is_set_aside() {
        let state = tempfile::tempdir().unwrap();
        let whole = put(state.path(), 9, &serialise(&del("a")).unwrap());
        let place = |sequence| whole.with_file_name(EntryName { sequence, pid: 1 }.whole());
        nix::unistd::mkfifo(&place(1), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(place(2)).unwrap();
        std::os::unix::fs::symlink(&whole, place(3)).unwrap();
        std::os::unix::fs::symlink("/dev/zero", place(4)).unwrap();
        fs::create_dir(place(5)).unwrap();
        let node = Node::default();
        let entries = lock(state.path(), node.clone()).unwrap().entries().unwrap();
        assert_eq!((entries.len(), node.spool_unreadable.get()), (1, 5));
    }

    #[test]
    fn x02_what_fails_is_kept_holds_back_its_add_and_succeeds_later_while_programs_never_delay_the_start() {
        let state = tempfile::tempdir().unwrap();
        for (n, container) in [(1, "slow"), (2, "bad"), (3, "good")] {
            put(state.path(), n, &serialise(&del(container)).unwrap());
        }
        let node = Node::default();
        let entries = lock(state.path(), node.clone()).unwrap().entries().unwrap();
        let fake = Arc::new(Fake { failures: AtomicUsize::new(2), ..Fake::default() });
        let admission = admission();
        let service: Arc<dyn Service> = fake.clone();
        let pending = first_pass(entries, &service, &admission, &node);
        assert_eq!(*fake.log.lock(), ["DEL bad", "DEL good"]);
        assert_eq!((pending.len(), left(state.path())), (2, 2));
        admission.open(service).unwrap();
        let add = Request { command: Command::Add, spooled: None, deadline_ms: 20_000, ..del("bad") };
        let held = admission.submit(admission.prepare(add), Instant::now());
        let _retry = Retry::begin(pending, admission, node.clone()).unwrap();
        assert!(matches!(held.wait(), Outcome::Reply(..)));
        let log = fake.log.lock().clone();
        assert_eq!(log.iter().filter(|line| *line == "DEL bad").count(), 3, "{log:?}");
        assert_eq!(log.last().unwrap(), "ADD bad");
        assert_eq!((left(state.path()), node.spool_entries.get()), (0, 0));
    }

    #[test]
    fn an_executable_that_is_writing_is_waited_for() {
        let state = tempfile::tempdir().unwrap();
        drop(lock(state.path(), Node::default()).unwrap());
        let writer = File::open(state.path().join(DIRECTORY).join(LOCK_FILE)).unwrap();
        writer.lock_shared().unwrap();
        let path = state.path().to_path_buf();
        let daemon =
            std::thread::spawn(move || lock(&path, Node::default()).unwrap().entries().unwrap().len());
        std::thread::sleep(Duration::from_millis(50));
        put(state.path(), 1, &serialise(&del("late")).unwrap());
        drop(writer);
        assert_eq!(daemon.join().unwrap(), 1);
    }
}
