//! One network's directory of allocations, opened and locked. The reference plugin may work on it at the same time.
//!
//! The invariants: nothing in it is read for a decision or changed but under `flock(2)` on its `lock` file, as
//! the reference plugin does, so both can serve one network at once; a file of ours appears whole and labelled
//! or not at all (written nameless, `O_TMPFILE`, then linked); a file is removed only after its content was read
//! again. Nothing here waits for the disk. Others may write in the directory: what has the name of one of these files is opened by
//! the rules of [`trusted_file`] only, and nothing else is opened at all.

use std::io::{self, Read};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fairlead_host::host_root::HostRoot;
use fairlead_host::trusted_file;
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, OFlags, Stat, flock, fstat, ftruncate, statat, unlinkat,
};
use rustix::io::{Errno, pread, pwrite};

use super::background_thread::Background;
use super::file_creation::{Created, FileCreator};
use super::file_format::{CURSOR, LOCK, MAX_CONTENT, address_of};
use super::file_index::{Entry, FileIndex, FileVersion};
use super::tmpfile_pool::TmpfilePool;
use super::{boot_label, kill_steps};

/// So many cursors stay open: a network has one range set for each family, rarely more.
const OPEN_CURSORS: usize = 4;
/// A directory with more entries is none of host-local's: a /16 that is full, four times over.
const MOST_ENTRIES: usize = 1 << 18;

/// An open directory. Its owner lets one thread at a time use it: `flock` is per open file, not per thread.
#[derive(Debug)]
pub(super) struct OpenDir {
    path: PathBuf,
    dir: OwnedFd,
    lock: OwnedFd,
    /// The files that hold the address given out last, of the first range sets; opened at first use.
    cursors: [Option<OwnedFd>; OPEN_CURSORS],
    known: KnownFiles,
    boot_id: Arc<str>,
    creator: FileCreator,
    /// It is on the list of directories that may hold addresses of ours.
    pub(super) is_listed: bool,
}

/// What is known of a directory's files; it outlives the descriptors.
#[derive(Debug, Default)]
pub(super) struct KnownFiles {
    index: FileIndex,
    /// The directory's mtime when the index was known to be right.
    indexed_at: Option<(i64, i64)>,
    /// The directory's device and inode.
    of: (u64, u64),
}

impl KnownFiles {
    /// What it takes of memory, in bytes.
    pub(super) fn size(&self) -> usize {
        self.index.size()
    }

    /// For tests: as if it took so much.
    #[cfg(test)]
    pub(super) fn fill_for_test(&mut self, bytes: usize) {
        let version = FileVersion { inode: 0, modified: (0, 0) };
        let entry = Entry { content: "x".repeat(bytes), version };
        self.index.insert(IpAddr::from([10, 0, 0, 1]), entry).unwrap();
    }
}

/// The directory while its lock is held.
#[derive(Debug)]
pub(super) struct LockedDir<'a>(&'a mut OpenDir);

impl OpenDir {
    /// Opens a network's directory, and makes it first where `make` says so. `None`: there is none. `known` is what an earlier
    /// opening has found out, if it was this directory's.
    pub(super) fn open(
        root: &HostRoot,
        path: &Path,
        boot_id: Arc<str>,
        background: &Background,
        make: bool,
        known: KnownFiles,
    ) -> io::Result<Option<OpenDir>> {
        let dir = match if make { root.make_directory(path) } else { root.directory(path) } {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            // With a file in its place there is no directory either.
            Err(e) if e.kind() == io::ErrorKind::NotADirectory && !make => return Ok(None),
            dir => dir?,
        };
        let lock = open_lock(&dir)?;
        let creator = FileCreator::new(TmpfilePool::new(&dir, Arc::clone(&boot_id), background.clone())?);
        let stat = fstat(&dir)?;
        let of = (stat.st_dev, stat.st_ino);
        let known = if known.of == of { known } else { KnownFiles { of, ..KnownFiles::default() } };
        background.look_later();
        let cursors = Default::default();
        let is_listed = false;
        Ok(Some(OpenDir { path: path.to_owned(), dir, lock, cursors, known, boot_id, creator, is_listed }))
    }

    /// What is known of its files.
    pub(super) fn known(&self) -> &KnownFiles {
        &self.known
    }

    /// Takes out what is known of its files, before it is closed.
    pub(super) fn take_known(&mut self) -> KnownFiles {
        std::mem::take(&mut self.known)
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
    // The mode is that of the reference plugin's lock library.
    trusted_file::open_or_create(dir, LOCK, OFlags::RDONLY, 0o750)
}

impl LockedDir<'_> {
    /// Where the directory is, for a message.
    pub(super) fn path(&self) -> &Path {
        &self.0.path
    }

    /// The files of the directory, as far as they are known.
    pub(super) fn index(&self) -> &FileIndex {
        &self.0.known.index
    }

    /// Whether an address has this content. Each file that is known to have it is looked at, whatever the directory's time of change
    /// says: who removes one by hand takes no lock, and may do so while we hold it.
    pub(super) fn holds(&mut self, content: &str) -> io::Result<bool> {
        let known: Vec<IpAddr> = self.index().held_by(content).collect();
        known.into_iter().try_for_each(|ip| self.update(ip).map(drop))?;
        Ok(self.index().held_by(content).next().is_some())
    }

    /// Reads the directory again, whatever its time of change says. Within one tick of the kernel's clock
    /// (≤ 4 ms, kernels before 6.13) that time may not show a change.
    pub(super) fn reread(&mut self) -> io::Result<()> {
        self.0.known.indexed_at = None;
        self.refresh()
    }

    /// Brings the index up to date, if others have added or removed files.
    fn refresh(&mut self) -> io::Result<()> {
        let now = modified(&fstat(&self.0.dir)?);
        if self.0.known.indexed_at == Some(now) {
            return Ok(());
        }
        // An error on the way must not leave half an index that counts as current.
        self.0.known.indexed_at = None;
        // Somebody may have removed and created the cursors' files: the open ones would be files without a name.
        self.0.cursors = Default::default();
        let mut present = std::collections::HashSet::new();
        for (nth, entry) in Dir::read_from(&self.0.dir)?.enumerate() {
            let entry = entry?;
            if nth >= MOST_ENTRIES {
                let text = format!("it has more than {MOST_ENTRIES} entries");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            let Some(ip) = entry.file_name().to_str().ok().and_then(address_of) else { continue };
            // Some file systems tell no types when a directory is read; `update` then finds it out.
            if matches!(entry.file_type(), FileType::RegularFile | FileType::Unknown) && self.update(ip)? {
                present.insert(ip);
            }
        }
        self.0.known.index.retain(|ip| present.contains(&ip));
        self.0.known.indexed_at = Some(now);
        Ok(())
    }

    /// Brings one file of the index up to date; false when there is no such file.
    fn update(&mut self, ip: IpAddr) -> io::Result<bool> {
        let stat = match statat(&self.0.dir, ip.to_string(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => None,
            stat => Some(stat?).filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile),
        };
        let Some(stat) = stat else {
            self.0.known.index.remove(ip);
            return Ok(false);
        };
        let version = version(&stat);
        if self.index().get(ip).is_none_or(|known| known.version != version) {
            let content = match self.read(ip) {
                Ok(content) if content.is_empty() && self.label(ip).is_some() => {
                    // Every writer writes under the lock that we hold: this one of ours was killed before it wrote,
                    // or the power failed. No attachment ever got the address.
                    unlinkat(&self.0.dir, ip.to_string(), AtFlags::empty())?;
                    self.0.known.index.remove(ip);
                    return Ok(false);
                }
                Ok(content) => content,
                // One bad block, or one file that is not root's, must not take the network down: the address is taken, by
                // nobody knows whom.
                Err(error) => {
                    tracing::warn!(path = %self.0.path.display(), file = %ip, %error, "an allocation cannot be read");
                    String::new()
                }
            };
            self.0.known.index.insert(ip, Entry { content, version })?;
        }
        Ok(true)
    }

    /// A file's content, trimmed as the reference plugin trims it, and of zeros: a power failure can leave a file of ours with nothing else,
    /// where its name was on the disk and its content was not.
    fn read(&self, ip: IpAddr) -> io::Result<String> {
        let (file, stat) = trusted_file::open(&self.0.dir, &ip.to_string(), OFlags::RDONLY)?;
        if stat.st_size.cast_unsigned() > MAX_CONTENT {
            let text = format!("\"{ip}\" has {} bytes, an allocation at most {MAX_CONTENT}", stat.st_size);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mut bytes = Vec::with_capacity(128);
        // It may have grown since.
        std::fs::File::from(file).take(MAX_CONTENT).read_to_end(&mut bytes)?;
        let is_nothing = |c: char| c == '\0' || c.is_whitespace();
        Ok(String::from_utf8_lossy(&bytes).trim_matches(is_nothing).to_owned())
    }

    /// Takes the lock's file and the cursors away where nothing else is in the directory; false where something is.
    pub(super) fn clear_unused(&mut self) -> io::Result<bool> {
        let mut of_ours = Vec::new();
        for entry in Dir::read_from(&self.0.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            match name.to_str() {
                Ok("." | "..") => {}
                Ok(known) if known == LOCK || known.starts_with(CURSOR) => of_ours.push(name.to_owned()),
                _ => return Ok(false),
            }
        }
        of_ours.iter().try_for_each(|name| unlinkat(&self.0.dir, name, AtFlags::empty()))?;
        Ok(true)
    }

    /// False when the directory has been removed since it was opened.
    pub(super) fn exists(&self) -> bool {
        self.0.exists()
    }

    /// Makes the file of an address with this content; false when the address is taken.
    pub(super) fn take(&mut self, ip: IpAddr, content: &str) -> io::Result<bool> {
        let directory = &mut *self.0;
        match directory.creator.create(&directory.dir, &ip.to_string(), content, &directory.boot_id)? {
            Created::Taken => {
                self.update(ip)?;
                Ok(false)
            }
            Created::Made(stat) => {
                let entry = Entry { content: content.trim().to_owned(), version: version(&stat) };
                directory.known.index.insert(ip, entry).map(|()| true).inspect_err(|_| {
                    // Nobody would know whose it is.
                    let _ = unlinkat(&directory.dir, ip.to_string(), AtFlags::empty());
                })
            }
        }
    }

    /// Removes an address's file if its content is (still) this one; false when it is not.
    pub(super) fn remove(&mut self, ip: IpAddr, content: &str) -> io::Result<bool> {
        match self.read(ip) {
            Ok(found) if found == content => {}
            Ok(_) => {
                self.update(ip)?;
                return Ok(false);
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.0.known.index.remove(ip);
                return Ok(false);
            }
            Err(e) => return Err(e),
        }
        kill_steps::reach("removing");
        unlinkat(&self.0.dir, ip.to_string(), AtFlags::empty())?;
        kill_steps::reach("removed");
        self.0.known.index.remove(ip);
        Ok(true)
    }

    /// The boot id with which Fairlead labelled a file; `None` where it made none of it, or could not.
    pub(super) fn label(&self, ip: IpAddr) -> Option<String> {
        boot_label::read(&self.0.dir, &ip.to_string())
    }

    /// The address that was given out last from a range set, by us or by the reference plugin. An error where something else has
    /// the file's name; what cannot be read otherwise only moves where the search begins.
    pub(super) fn cursor(&mut self, set: usize) -> io::Result<Option<IpAddr>> {
        let read = |file: &OwnedFd| {
            let mut text = [0u8; 64];
            let length = pread(file, &mut text, 0).ok()?;
            std::str::from_utf8(text.get(..length)?).ok()?.parse().ok()
        };
        match self.with_cursor(set, false, |file| Ok(read(file))) {
            Err(e) if trusted_file::is_untrusted(&e) => Err(e),
            last => Ok(last.ok().flatten()),
        }
    }

    /// Writes down the address that was given out last. The file is never truncated to nothing: that would make ext4 flush it
    /// (0.1–1.3 ms against 0.001).
    pub(super) fn set_cursor(&mut self, set: usize, ip: IpAddr) -> io::Result<()> {
        let text = ip.to_string();
        self.with_cursor(set, true, |file| {
            // Not by O_TRUNC: ext4 then flushes the file when it is closed, which took 1.3 ms instead of 0.26.
            pwrite(file, text.as_bytes(), 0)?;
            kill_steps::reach("cursor");
            let length = text.len() as u64;
            // A kill before this leaves a wrong address at worst, which only moves where the next search begins.
            if fstat(file)?.st_size.cast_unsigned() != length {
                ftruncate(file, length)?;
            }
            Ok(())
        })
    }

    /// Uses the file of a range set's cursor, which is kept open for the first sets.
    fn with_cursor<T>(
        &mut self,
        set: usize,
        create: bool,
        work: impl FnOnce(&OwnedFd) -> io::Result<T>,
    ) -> io::Result<T> {
        let directory = &mut *self.0;
        if let Some(Some(file)) = directory.cursors.get(set) {
            return work(file);
        }
        let name = format!("{CURSOR}{set}");
        let file = match create {
            true => trusted_file::open_or_create(&directory.dir, &name, OFlags::RDWR, 0o600)?,
            false => trusted_file::open(&directory.dir, &name, OFlags::RDWR)?.0,
        };
        let done = work(&file);
        if let Some(slot) = directory.cursors.get_mut(set) {
            *slot = Some(file);
        }
        done
    }
}

impl Drop for LockedDir<'_> {
    fn drop(&mut self) {
        // What changed while we held the lock was changed by us, and is in the index; unless reading it failed.
        if self.0.known.indexed_at.is_some() {
            self.0.known.indexed_at = fstat(&self.0.dir).ok().map(|stat| modified(&stat));
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
