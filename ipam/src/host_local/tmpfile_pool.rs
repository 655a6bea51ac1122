//! Files that are ready before an address is wanted: nameless (`O_TMPFILE`), labelled, to be written and linked.
//!
//! Making one costs ext4 50–70 µs, which is most of an allocation; so a thread makes them while nobody waits. The kernel removes
//! them with the process, since they have no name. The pool never holds more than [`READY`] files of one directory, and none
//! where inodes are short.
//!
//! They are as long as the content that was written last, since a runtime's container ids have one length: to write what takes no more
//! room costs ext4 3 µs, and the first bytes of a file 10.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fairlead_host::after_answer::when_answered;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, fstatvfs, openat};
use rustix::io::{Errno, pwrite};

use super::background_thread::Background;
use super::boot_label;

/// So many files are kept ready for one network.
const READY: usize = 32;

/// With fewer free inodes than this no file is kept ready.
const FREE_INODES: u64 = 4096;

/// With fewer free blocks than this no file that is ready has one.
const FREE_BLOCKS: u64 = 4096;

/// No file is longer than that while it is ready, in bytes: a content is a container's id and an interface's name.
const LONGEST: usize = 256;

/// A nameless file without a content yet.
#[derive(Debug)]
pub(super) struct Tmpfile {
    pub(super) fd: OwnedFd,
    /// How long it is, in bytes; all are zeros.
    pub(super) length: usize,
}

/// The files that are ready for one network's directory.
#[derive(Debug)]
pub(super) struct TmpfilePool {
    dir: OwnedFd,
    boot_id: Arc<str>,
    ready: Mutex<Vec<Tmpfile>>,
    /// The length of the content that was written last.
    length: AtomicUsize,
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
        Ok(Arc::new(TmpfilePool {
            dir: dir.try_clone()?,
            boot_id,
            ready: Mutex::default(),
            length: AtomicUsize::new(0),
            refill_asked: AtomicBool::new(false),
            background,
        }))
    }

    /// A file that is ready for a content of this length, or else one made now. Where few are left, the filler makes more in the
    /// background.
    pub(super) fn take(self: &Arc<TmpfilePool>, length: usize) -> Result<Tmpfile, Errno> {
        self.length.store(length, Ordering::Relaxed);
        let (taken, left) = {
            let mut ready = self.ready.lock();
            (ready.pop(), ready.len())
        };
        let file = taken.map_or_else(|| Ok(Tmpfile { fd: self.make()?, length: 0 }), Ok)?;
        if left < READY / 2 && !self.refill_asked.swap(true, Ordering::AcqRel) {
            let pool = Arc::clone(self);
            // The filler wants a processor, and who waits for this address may wait with a lock that others want.
            when_answered(move || pool.background.refill(Arc::clone(&pool)));
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
        let fs = fstatvfs(&self.dir);
        // Where inodes are short, each one may be wanted for an address. (A file system that does not count them says 0.)
        let short = fs.as_ref().is_ok_and(|fs| fs.f_files > 0 && fs.f_favail < FREE_INODES);
        // The same of blocks: there a file is written when it has its content.
        let has_room = fs.is_ok_and(|fs| fs.f_bavail >= FREE_BLOCKS);
        let length = if has_room { self.length.load(Ordering::Relaxed).min(LONGEST) } else { 0 };
        while !short && self.ready.lock().len() < READY {
            // A refusal here is nobody's error: whoever needs a file makes one himself and gets the kernel's answer.
            let Ok(fd) = self.make() else { return };
            let zeros = [0; LONGEST];
            // A file that could not be made longer is as good as before.
            let length = pwrite(&fd, zeros.get(..length).unwrap_or_default(), 0).unwrap_or_default();
            self.ready.lock().push(Tmpfile { fd, length });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use fairlead_host::after_answer::AnswerFirst;

    use super::*;

    fn pool() -> (tempfile::TempDir, Arc<TmpfilePool>) {
        let dir = tempfile::tempdir().unwrap();
        let fd: OwnedFd = fs::File::open(dir.path()).unwrap().into();
        let background = Background::start(Box::new(|| false)).unwrap();
        (dir, TmpfilePool::new(&fd, "boot".into(), background).unwrap())
    }

    fn until_ready(pool: &TmpfilePool, files: usize) {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while pool.ready.lock().len() < files {
            assert!(std::time::Instant::now() < until);
            std::thread::yield_now();
        }
    }

    #[test]
    fn files_are_ready_without_a_name_and_more_are_made_when_they_are_used_up() {
        let (dir, pool) = pool();
        let taken: Vec<Tmpfile> = (0..3 * READY).map(|_| pool.take(70).unwrap()).collect();
        assert_eq!(taken.len(), 3 * READY);
        until_ready(&pool, READY / 2);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_filler_is_woken_when_the_call_is_answered() {
        let (_dir, pool) = pool();
        let call = AnswerFirst::begin();
        pool.take(70).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(pool.ready.lock().is_empty());
        drop(call);
        until_ready(&pool, READY);
    }

    #[test]
    fn files_are_as_long_as_the_last_content_and_never_longer_than_any_can_be() {
        let (_dir, pool) = pool();
        for (last, ready) in [(70, 70), (LONGEST + 1, LONGEST)] {
            pool.ready.lock().clear();
            pool.length.store(last, Ordering::Relaxed);
            pool.fill();
            let lengths: Vec<usize> = pool.ready.lock().iter().map(|file| file.length).collect();
            assert_eq!(lengths, [ready; READY], "{last}");
        }
    }
}
