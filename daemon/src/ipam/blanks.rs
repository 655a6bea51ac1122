//! Files that wait for an address: nameless (`O_TMPFILE`), labelled, ready to be written and linked. Making one costs
//! ext4 50–70 µs, most of an allocation; so a thread makes them while nobody waits. They die with the process.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{Mode, OFlags, XattrFlags, fsetxattr, fstatvfs, openat};
use rustix::io::Errno;

use super::directory::LABEL;

/// So many wait for one network.
const READY: usize = 32;

/// With fewer free inodes than this none is kept waiting.
const PLENTY: u64 = 4096;

/// The waiting files of one network's directory.
#[derive(Debug)]
pub(super) struct Blanks {
    dir: OwnedFd,
    boot_id: Arc<str>,
    ready: Mutex<Vec<OwnedFd>>,
    asked: AtomicBool,
    filler: Filler,
}

impl Blanks {
    /// None yet: the first is made by whoever needs it.
    pub(super) fn new(dir: &OwnedFd, boot_id: Arc<str>, filler: Filler) -> io::Result<Arc<Blanks>> {
        let (ready, asked) = (Mutex::default(), AtomicBool::new(false));
        Ok(Arc::new(Blanks { dir: dir.try_clone()?, boot_id, ready, asked, filler }))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A waiting file, or one made now; more are made in the background.
    pub(super) fn take(self: &Arc<Blanks>) -> Result<OwnedFd, Errno> {
        let (taken, left) = {
            let mut ready = self.lock();
            (ready.pop(), ready.len())
        };
        let file = taken.map_or_else(|| self.make(), Ok)?;
        if left < READY / 2 && !self.asked.swap(true, Ordering::AcqRel) {
            self.filler.ask(Arc::clone(self));
        }
        Ok(file)
    }

    fn make(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = openat(&self.dir, ".", flags, Mode::from_raw_mode(0o600))?;
        // Where it takes no label, an allocation that a reboot orphans is told instead of freed.
        let _ = fsetxattr(&file, LABEL, self.boot_id.as_bytes(), XattrFlags::empty());
        Ok(file)
    }

    fn fill(&self) {
        self.asked.store(false, Ordering::Release);
        // Where inodes are short, each is somebody's address. (A file system that does not count them says 0.)
        let short = fstatvfs(&self.dir).is_ok_and(|fs| fs.f_files > 0 && fs.f_favail < PLENTY);
        while !short && self.lock().len() < READY {
            // What is refused here is told when somebody needs a file.
            let Ok(file) = self.make() else { return };
            self.lock().push(file);
        }
    }
}

/// The thread that makes them.
#[derive(Debug, Clone)]
pub(super) struct Filler(Sender<Arc<Blanks>>);

impl Filler {
    /// Starts it; it ends with the last clone of this.
    pub(super) fn start() -> io::Result<Filler> {
        let (sender, receiver): (Sender<Arc<Blanks>>, Receiver<Arc<Blanks>>) = channel();
        let serve = move || {
            while let Ok(blanks) = receiver.recv() {
                blanks.fill();
            }
        };
        std::thread::Builder::new().name("ipam-blanks".to_owned()).spawn(serve)?;
        Ok(Filler(sender))
    }

    fn ask(&self, blanks: Arc<Blanks>) {
        // It fails only when the thread could not go on; then each file is made when it is needed.
        let _ = self.0.send(blanks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_wait_without_a_name_and_are_made_anew_when_they_are_used_up() {
        let dir = tempfile::tempdir().unwrap();
        let fd: OwnedFd = std::fs::File::open(dir.path()).unwrap().into();
        let blanks = Blanks::new(&fd, "boot".into(), Filler::start().unwrap()).unwrap();
        let taken: Vec<OwnedFd> = (0..3 * READY).map(|_| blanks.take().unwrap()).collect();
        assert_eq!(taken.len(), 3 * READY);
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while blanks.lock().len() < READY / 2 {
            assert!(std::time::Instant::now() < until);
            std::thread::yield_now();
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
