//! A file that a guest sent, and the thread that closes it.
//!
//! Who closes a file last does what is left to be done with it, and a guest decides how long that takes: it closes its own descriptor
//! first. A TCP socket with SO_LINGER waits, a file of FUSE asks its server, memory is freed page by page (50 to 150 ms for each GiB),
//! and an eventfd is taken out of each epoll that the guest has put it into. So a [`GuestFile`] that is dropped goes to the
//! [`FileCloser`] of its port, whose thread may wait. It must not wait for ever, since there is no room for any number of threads: a port
//! may be removed meanwhile, and what would end the wait may itself wait to be closed. So after [`PATIENCE`] the thread is interrupted at
//! each look of the connection thread ([`FileCloser::look`]). That ends the wait of SO_LINGER; the one for a server of FUSE it does not.
//!
//! Invariants: a file of a guest is never closed by the thread that drops it. A port has one thread that closes, and whoever takes a
//! guest for the port asks [`FileCloser::is_at_work`] first. So the most that one port has waiting is what one connection had open, and
//! no other port's files wait behind it.

use std::fmt;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::unistd::{Pid, gettid};
use parking_lot::Mutex;

use crate::interruption;

/// How long a thread may be at what one port's guests sent before it is interrupted, again and again until all is closed.
const PATIENCE: Duration = Duration::from_secs(5);

/// A file that a guest sent, or a socket that leads to it. (Files of our own are closed by whoever drops them.)
#[derive(Debug)]
pub(crate) struct GuestFile {
    /// Gone once this is dropped.
    file: ManuallyDrop<Arc<File>>,
    /// Absent: the file is one of our own.
    closer: Option<FileCloser>,
}

impl GuestFile {
    /// A file that `closer` closes.
    pub(crate) fn new(fd: OwnedFd, closer: &FileCloser) -> GuestFile {
        GuestFile { file: GuestFile::arc(fd), closer: Some(closer.clone()) }
    }

    /// A file that came over this socket: it is closed where the socket is.
    pub(crate) fn received(&self, fd: OwnedFd) -> GuestFile {
        GuestFile { file: GuestFile::arc(fd), closer: self.closer.clone() }
    }

    /// The file for somebody who lets go of it before this is dropped: it is closed by whoever has it last.
    pub(super) fn share(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    fn arc(fd: OwnedFd) -> ManuallyDrop<Arc<File>> {
        ManuallyDrop::new(Arc::new(File::from(fd)))
    }
}

impl From<OwnedFd> for GuestFile {
    fn from(fd: OwnedFd) -> GuestFile {
        GuestFile { file: GuestFile::arc(fd), closer: None }
    }
}

impl From<File> for GuestFile {
    fn from(file: File) -> GuestFile {
        GuestFile::from(OwnedFd::from(file))
    }
}

impl AsFd for GuestFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for GuestFile {
    fn drop(&mut self) {
        // SAFETY: it is taken here alone, at the end of this value, and nothing looks at it afterwards.
        let file = unsafe { ManuallyDrop::take(&mut self.file) };
        match &self.closer {
            Some(closer) => closer.close(file),
            None => drop(file),
        }
    }
}

/// Closes the files of one port's guests. All clones are one.
#[derive(Clone)]
pub(crate) struct FileCloser(Arc<ToClose>);

struct ToClose {
    /// How many files were handed over and are not closed yet.
    open: AtomicUsize,
    waiting: Mutex<Waiting>,
    /// Is called when all are closed.
    done: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Waiting {
    files: Vec<Arc<File>>,
    has_thread: bool,
    /// The thread while it closes, and since when it has: it does not end before this is absent again.
    at_work: Option<(Pid, Instant)>,
}

impl FileCloser {
    /// Has nothing to close yet. `done` is called on its thread whenever all is closed.
    pub(crate) fn new(done: impl Fn() + Send + Sync + 'static) -> FileCloser {
        let (open, waiting) = (AtomicUsize::new(0), Mutex::default());
        FileCloser(Arc::new(ToClose { open, waiting, done: Box::new(done) }))
    }

    /// How many files are still open that were dropped.
    pub(crate) fn open(&self) -> usize {
        self.0.open.load(Ordering::SeqCst)
    }

    /// True if there are any.
    pub(crate) fn is_at_work(&self) -> bool {
        self.open() > 0
    }

    /// Starts the thread, where none was to be had when it was needed, and interrupts it if it has been at work for too long. For that
    /// [`interruption::handle_signal`] was called before.
    pub(crate) fn look(&self, now: Instant) {
        if !self.is_at_work() {
            return;
        }
        let mut waiting = self.0.waiting.lock();
        self.start(&mut waiting);
        let at_work_for = |since| now.saturating_duration_since(since);
        if let Some((thread, _)) = waiting.at_work.filter(|(_, since)| at_work_for(*since) >= PATIENCE) {
            interruption::interrupt(thread);
        }
    }

    /// True if nothing is to be closed, nor will be: nobody else has it.
    pub(crate) fn is_finished(&mut self) -> bool {
        Arc::get_mut(&mut self.0).is_some_and(|own| *own.open.get_mut() == 0)
    }

    fn close(&self, file: Arc<File>) {
        self.0.open.fetch_add(1, Ordering::SeqCst);
        let mut waiting = self.0.waiting.lock();
        waiting.files.push(file);
        self.start(&mut waiting);
    }

    fn start(&self, waiting: &mut Waiting) {
        if waiting.has_thread || waiting.files.is_empty() {
            return;
        }
        let to_close = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("vswitch-close".into());
        // Without a thread nothing is closed: it could not be done here.
        waiting.has_thread = thread.spawn(move || to_close.close_all()).is_ok();
    }
}

impl fmt::Debug for FileCloser {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("FileCloser").field(&self.open()).finish()
    }
}

impl ToClose {
    fn close_all(&self) {
        while let Some(files) = self.next() {
            let count = files.len();
            drop(files);
            self.open.fetch_sub(count, Ordering::SeqCst);
        }
        (self.done)();
    }

    /// What waits; absent, and the thread is to end, if nothing does.
    fn next(&self) -> Option<Vec<Arc<File>>> {
        let mut waiting = self.waiting.lock();
        waiting.has_thread = !waiting.files.is_empty();
        if !waiting.has_thread {
            waiting.at_work = None;
            return None;
        }
        waiting.at_work.get_or_insert_with(|| (gettid(), Instant::now()));
        Some(std::mem::take(&mut waiting.files))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_guests_file_is_closed_by_a_thread_that_tells_when_it_has_closed_all() {
        let (told, done) = mpsc::channel();
        let closer = FileCloser::new(move || {
            let _ = told.send(std::thread::current().name().map(str::to_owned));
        });
        for _ in 0..3 {
            let (reader, writer) = nix::unistd::pipe().unwrap();
            let socket = GuestFile::new(writer, &closer);
            let received = socket.received(socket.as_fd().try_clone_to_owned().unwrap());
            assert!(!closer.is_at_work());
            drop(socket);
            assert_eq!(done.recv_timeout(LIMIT), Ok(Some("vswitch-close".to_owned())));
            assert!(!closer.is_at_work());
            drop(received);
            assert_eq!(done.recv_timeout(LIMIT), Ok(Some("vswitch-close".to_owned())));
            assert_eq!(nix::unistd::read(&reader, &mut [0]), Ok(0), "both are closed");
        }
    }

    #[test]
    fn a_closer_is_finished_once_nobody_has_it_and_all_is_closed() {
        let mut closer = FileCloser::new(|| {});
        assert!(closer.is_finished());
        let (reader, writer) = nix::unistd::pipe().unwrap();
        let file = GuestFile::new(writer, &closer);
        assert!(!closer.is_finished(), "a file will be dropped");
        drop(file);
        assert_eq!(nix::unistd::read(&reader, &mut [0]), Ok(0));
        let start = Instant::now();
        while !closer.is_finished() {
            assert!(start.elapsed() < LIMIT);
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_file_of_our_own_is_closed_by_whoever_drops_it() {
        let (reader, writer) = nix::unistd::pipe().unwrap();
        drop(GuestFile::from(writer));
        assert_eq!(nix::unistd::read(&reader, &mut [0]), Ok(0));
    }
}
