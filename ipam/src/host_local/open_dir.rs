//! One network's directory of allocations, opened and locked. The reference plugin may work on it at the same time.
//!
//! The invariants: nothing in it is read for a decision or changed but under `flock(2)` on its `lock` file, as
//! the reference plugin does, so both can serve one network at once; a file of ours appears whole and labelled
//! or not at all (written nameless, `O_TMPFILE`, then linked); a file is removed only after its content was read
//! again. Nothing here waits for the disk.

use std::io::{self, Read};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fairlead_host::host_root::HostRoot;
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, ftruncate, openat, statat,
    unlinkat,
};
use rustix::io::{Errno, pread, pwrite};

use super::file_creation::{Created, FileCreator};
use super::file_format::{CURSOR, FileName, LOCK};
use super::file_index::{Entry, FileIndex, FileVersion};
use super::tmpfile_pool::{PoolFiller, TmpfilePool};
use super::{boot_label, kill_steps};

/// Largest file that is read: a container id and an interface name.
const MAX_CONTENT: u64 = 64 << 10;

/// An open directory. Its owner lets one thread at a time use it: `flock` is per open file, not per thread.
#[derive(Debug)]
pub(super) struct OpenDir {
    path: PathBuf,
    dir: OwnedFd,
    lock: OwnedFd,
    /// The files that hold the address given out last, by range set; opened at first use.
    cursors: Vec<Option<OwnedFd>>,
    index: FileIndex,
    /// The directory's mtime when the index was known to be right.
    indexed_at: Option<(i64, i64)>,
    boot_id: Arc<str>,
    creator: FileCreator,
}

/// The directory while its lock is held.
#[derive(Debug)]
pub(super) struct LockedDir<'a>(&'a mut OpenDir);

impl OpenDir {
    /// Opens a network's directory, and makes it first where `make` says so. `None`: there is none.
    pub(super) fn open(
        root: &HostRoot,
        path: &Path,
        boot_id: Arc<str>,
        filler: &PoolFiller,
        make: bool,
    ) -> io::Result<Option<OpenDir>> {
        let dir = match if make { root.make_directory(path) } else { root.directory(path) } {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            dir => dir?,
        };
        let lock = open_lock(&dir)?;
        let creator = FileCreator::new(TmpfilePool::new(&dir, Arc::clone(&boot_id), filler.clone())?);
        Ok(Some(OpenDir {
            path: path.to_owned(),
            dir,
            lock,
            cursors: Vec::new(),
            index: FileIndex::default(),
            indexed_at: None,
            boot_id,
            creator,
        }))
    }

    /// False when somebody has removed the directory since it was opened.
    pub(super) fn exists(&self) -> bool {
        fstat(&self.dir).is_ok_and(|stat| stat.st_nlink > 0)
    }

    /// Takes the lock and brings the index up to date. `None`: another process holds it.
    pub(super) fn locked(&mut self) -> io::Result<Option<LockedDir<'_>>> {
        if !self.take_lock()? {
            return Ok(None);
        }
        let mut locked = LockedDir(self);
        locked.refresh()?;
        Ok(Some(locked))
    }

    /// For tests: as on a file system without nameless files.
    #[cfg(test)]
    pub(super) fn without_nameless_files(&mut self) {
        self.creator = FileCreator::named_only();
    }

    fn take_lock(&mut self) -> io::Result<bool> {
        loop {
            match flock(&self.lock, FlockOperation::NonBlockingLockExclusive) {
                // Somebody may have cleaned the directory up: a lock on a file without a name keeps nobody out.
                Ok(()) if fstat(&self.lock)?.st_nlink > 0 => return Ok(true),
                Ok(()) => self.lock = open_lock(&self.dir)?,
                Err(Errno::WOULDBLOCK) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

fn open_lock(dir: &OwnedFd) -> io::Result<OwnedFd> {
    // Mode and flags of the reference plugin's lock library.
    Ok(openat(dir, LOCK, OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC, Mode::from_raw_mode(0o750))?)
}

impl LockedDir<'_> {
    /// Where the directory is, for a message.
    pub(super) fn path(&self) -> &Path {
        &self.0.path
    }

    /// The files of the directory, as far as they are known.
    pub(super) fn index(&self) -> &FileIndex {
        &self.0.index
    }

    /// Reads the directory again, whatever its time of change says. Within one tick of the kernel's clock
    /// (≤ 4 ms, kernels before 6.13) that time may not show a change.
    pub(super) fn reread(&mut self) -> io::Result<()> {
        self.0.indexed_at = None;
        self.refresh()
    }

    /// Brings the index up to date, if others have added or removed files.
    fn refresh(&mut self) -> io::Result<()> {
        let now = modified(&fstat(&self.0.dir)?);
        if self.0.indexed_at == Some(now) {
            return Ok(());
        }
        // An error on the way must not leave half an index that counts as current.
        self.0.indexed_at = None;
        // Somebody may have removed and created the cursors' files: the open ones would be files without a name.
        self.0.cursors.clear();
        let mut present = std::collections::HashSet::new();
        for entry in Dir::read_from(&self.0.dir)? {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().ok().and_then(FileName::of) else { continue };
            // Some file systems tell no types when a directory is read; `update` then finds it out.
            if matches!(entry.file_type(), FileType::RegularFile | FileType::Unknown) && self.update(&name)? {
                present.insert(name);
            }
        }
        self.0.index.retain(|name| present.contains(name));
        self.0.indexed_at = Some(now);
        Ok(())
    }

    /// Brings one file of the index up to date; false when there is no such file.
    fn update(&mut self, name: &FileName) -> io::Result<bool> {
        let stat = match statat(&self.0.dir, name.file(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => None,
            stat => Some(stat?).filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile),
        };
        let Some(stat) = stat else {
            self.0.index.remove(name);
            return Ok(false);
        };
        let version = version(&stat);
        if self.0.index.get(name).is_none_or(|known| known.version != version) {
            let content = match self.read(name) {
                Ok(content) if content.is_empty() && self.label(name).is_some() => {
                    // Every writer writes under the lock that we hold: this one of ours was killed before it wrote,
                    // or the power failed. No attachment ever got the address.
                    unlinkat(&self.0.dir, name.file(), AtFlags::empty())?;
                    self.0.index.remove(name);
                    return Ok(false);
                }
                Ok(content) => content,
                // One bad block must not take the network down: the address is taken, by nobody knows whom.
                Err(error) => {
                    tracing::warn!(path = %self.0.path.display(), file = name.file(), %error, "an allocation cannot be read");
                    String::new()
                }
            };
            self.0.index.insert(name.clone(), Entry { content, version });
        }
        Ok(true)
    }

    /// A file's content, trimmed as the reference plugin trims it.
    fn read(&self, name: &FileName) -> io::Result<String> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = std::fs::File::from(openat(&self.0.dir, name.file(), flags, Mode::empty())?);
        let mut bytes = Vec::with_capacity(128);
        file.take(MAX_CONTENT).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Makes the file of an address with this content; false when the address is taken.
    pub(super) fn take(&mut self, ip: IpAddr, content: &str) -> io::Result<bool> {
        let name = FileName::Ip(ip);
        let directory = &mut *self.0;
        match directory.creator.create(&directory.dir, &name.file(), content, &directory.boot_id)? {
            Created::Taken => {
                self.update(&name)?;
                Ok(false)
            }
            Created::Made(stat) => {
                let entry = Entry { content: content.trim().to_owned(), version: version(&stat) };
                directory.index.insert(name, entry);
                Ok(true)
            }
        }
    }

    /// Removes a file if its content is (still) this one; false when it is not.
    pub(super) fn remove(&mut self, name: &FileName, content: &str) -> io::Result<bool> {
        match self.read(name) {
            Ok(found) if found == content => {}
            Ok(_) => {
                self.update(name)?;
                return Ok(false);
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.0.index.remove(name);
                return Ok(false);
            }
            Err(e) => return Err(e),
        }
        kill_steps::reach("removing");
        unlinkat(&self.0.dir, name.file(), AtFlags::empty())?;
        kill_steps::reach("removed");
        self.0.index.remove(name);
        Ok(true)
    }

    /// The boot id with which Fairlead labelled a file; `None` where it made none of it, or could not.
    pub(super) fn label(&self, name: &FileName) -> Option<String> {
        boot_label::read(&self.0.dir, &name.file())
    }

    /// The address that was given out last from a range set, by us or by the reference plugin.
    pub(super) fn cursor(&mut self, set: usize) -> Option<IpAddr> {
        let mut text = [0u8; 64];
        let length = pread(self.cursor_file(set, OFlags::empty()).ok()?, &mut text, 0).ok()?;
        std::str::from_utf8(text.get(..length)?).ok()?.parse().ok()
    }

    /// Writes down the address that was given out last. The file is kept open and never truncated to nothing:
    /// that would make ext4 flush it (0.1–1.3 ms against 0.001).
    pub(super) fn set_cursor(&mut self, set: usize, ip: IpAddr) -> io::Result<()> {
        let text = ip.to_string();
        let file = self.cursor_file(set, OFlags::CREATE)?;
        // Not by O_TRUNC: ext4 then flushes the file when it is closed, which took 1.3 ms instead of 0.26.
        pwrite(file, text.as_bytes(), 0)?;
        kill_steps::reach("cursor");
        let length = text.len() as u64;
        // A kill before this leaves a wrong address at worst, which only moves where the next search begins.
        if fstat(file)?.st_size.cast_unsigned() != length {
            ftruncate(file, length)?;
        }
        Ok(())
    }

    fn cursor_file(&mut self, set: usize, create: OFlags) -> io::Result<&OwnedFd> {
        let directory = &mut *self.0;
        if directory.cursors.len() <= set {
            directory.cursors.resize_with(set + 1, || None);
        }
        // The line above made the slot.
        let slot = directory.cursors.get_mut(set).ok_or(Errno::INVAL)?;
        match slot {
            Some(file) => Ok(file),
            None => {
                let flags = OFlags::RDWR | OFlags::CLOEXEC | create;
                Ok(slot.insert(openat(
                    &directory.dir,
                    format!("{CURSOR}{set}"),
                    flags,
                    Mode::from_raw_mode(0o600),
                )?))
            }
        }
    }
}

impl Drop for LockedDir<'_> {
    fn drop(&mut self) {
        // What changed while we held the lock was changed by us, and is in the index; unless reading it failed.
        if self.0.indexed_at.is_some() {
            self.0.indexed_at = fstat(&self.0.dir).ok().map(|stat| modified(&stat));
        }
        // Closing the file would unlock it too, so a failure here makes no difference.
        let _ = flock(&self.0.lock, FlockOperation::Unlock);
    }
}

fn modified(stat: &Stat) -> (i64, i64) {
    (stat.st_mtime, stat.st_mtime_nsec.cast_signed())
}

fn version(stat: &Stat) -> FileVersion {
    FileVersion { inode: stat.st_ino, modified: modified(stat) }
}
