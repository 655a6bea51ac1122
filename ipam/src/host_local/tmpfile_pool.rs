//! Files that are ready before an address is wanted: nameless (`O_TMPFILE`), labelled, to be written and linked.
//!
//! Making one costs ext4 50–70 µs, which is most of an allocation; so a thread makes them while nobody waits. The kernel removes
//! them with the process, since they have no name. The pool never holds more than [`READY`] files of one directory, and none
//! where inodes are short.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, fstatvfs, openat};
use rustix::io::Errno;

use super::background_thread::Background;
use super::boot_label;

/// So many files are kept ready for one network.
const READY: usize = 32;

/// With fewer free inodes than this no file is kept ready.
const FREE_INODES: u64 = 4096;

/// The files that are ready for one network's directory.
#[derive(Debug)]
pub(super) struct TmpfilePool {
    dir: OwnedFd,
    boot_id: Arc<str>,
    ready: Mutex<Vec<OwnedFd>>,
    /// The filler has been asked for more, and has not begun yet.
    refill_asked: AtomicBool,
    background: Background,
}

impl TmpfilePool {
    /// An empty pool: the first file is made by whoever needs it.
    pub(super) fn new(
        dir: &OwnedFd,
        boot_id: Arc<str>,
        background: Background,
    ) -> io::Result<Arc<TmpfilePool>> {
        let (ready, refill_asked) = (Mutex::default(), AtomicBool::new(false));
        Ok(Arc::new(TmpfilePool { dir: dir.try_clone()?, boot_id, ready, refill_asked, background }))
    }

    /// A file that is ready, or else one made now. Where few are left, the filler makes more in the background.
    pub(super) fn take(self: &Arc<TmpfilePool>) -> Result<OwnedFd, Errno> {
        let (taken, left) = {
            let mut ready = self.ready.lock();
            (ready.pop(), ready.len())
        };
        let file = taken.map_or_else(|| self.make(), Ok)?;
        if left < READY / 2 && !self.refill_asked.swap(true, Ordering::AcqRel) {
            self.background.refill(Arc::clone(self));
        }
        Ok(file)
    }

    fn make(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = openat(&self.dir, ".", flags, Mode::from_raw_mode(0o600))?;
        // Where the file system takes no label, an allocation that a reboot orphans is listed instead of freed.
        let _ = boot_label::set(&file, &self.boot_id);
        Ok(file)
    }

    /// Makes as many as are to be ready.
    pub(super) fn fill(&self) {
        // Cleared first: whoever takes a file while this goes on may ask for the next filling.
        self.refill_asked.store(false, Ordering::Release);
        // Where inodes are short, each one may be wanted for an address. (A file system that does not count them says 0.)
        let short = fstatvfs(&self.dir).is_ok_and(|fs| fs.f_files > 0 && fs.f_favail < FREE_INODES);
        while !short && self.ready.lock().len() < READY {
            // A refusal here is nobody's error: whoever needs a file makes one himself and gets the kernel's answer.
            let Ok(file) = self.make() else { return };
            self.ready.lock().push(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_ready_without_a_name_and_more_are_made_when_they_are_used_up() {
        let dir = tempfile::tempdir().unwrap();
        let fd: OwnedFd = std::fs::File::open(dir.path()).unwrap().into();
        let pool =
            TmpfilePool::new(&fd, "boot".into(), Background::start(Box::new(|| false)).unwrap()).unwrap();
        let taken: Vec<OwnedFd> = (0..3 * READY).map(|_| pool.take().unwrap()).collect();
        assert_eq!(taken.len(), 3 * READY);
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while pool.ready.lock().len() < READY / 2 {
            assert!(std::time::Instant::now() < until);
            std::thread::yield_now();
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
