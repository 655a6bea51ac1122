//! How the file of an address is created: whole, labelled, and only if the address is free.
//!
//! It is written without a name (`O_TMPFILE`) and then linked to the address, which fails like `O_EXCL` when the
//! address is taken: a kill at any point leaves either nothing or a whole file. Where the file system has no
//! such files, it is created with `O_EXCL`, labelled, then written, as the reference plugin does.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, fstat, ftruncate, linkat, openat, unlinkat};
use rustix::io::{Errno, pwrite};

use super::tmpfile_pool::{Tmpfile, TmpfilePool};
use super::{boot_label, kill_steps};

/// What became of an attempt to create a file.
#[derive(Debug)]
pub(super) enum Created {
    /// The file exists now; this is its status.
    Made(Stat),
    /// There is a file of that name already.
    Taken,
}

/// Creates files on one file system. What it refuses is found out once and remembered.
#[derive(Debug)]
pub(super) struct FileCreator {
    /// Nameless files; `None` where it has no `O_TMPFILE`, or does not let us link one.
    tmpfiles: Option<Arc<TmpfilePool>>,
    /// The file system takes no extended attributes.
    no_labels: bool,
}

impl FileCreator {
    /// With nameless files, until the file system refuses them.
    pub(super) fn new(tmpfiles: Arc<TmpfilePool>) -> FileCreator {
        FileCreator { tmpfiles: Some(tmpfiles), no_labels: false }
    }

    /// Creates the file `name` with this content.
    pub(super) fn create(
        &mut self,
        dir: &OwnedFd,
        name: &str,
        content: &str,
        boot_id: &str,
    ) -> io::Result<Created> {
        if let Some(tmpfiles) = &self.tmpfiles {
            match create_linked(tmpfiles, dir, name, content) {
                // Each of these is how some file system says that it has no `O_TMPFILE`, or does not link such a file.
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::PERM | Errno::XDEV) => {
                    self.tmpfiles = None;
                }
                done => return Ok(done?),
            }
        }
        Ok(self.create_named(dir, name, content, boot_id)?)
    }

    fn create_named(
        &mut self,
        dir: &OwnedFd,
        name: &str,
        content: &str,
        boot_id: &str,
    ) -> Result<Created, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = match openat(dir, name, flags, Mode::from_raw_mode(0o600)) {
            Err(Errno::EXIST) => return Ok(Created::Taken),
            file => file?,
        };
        // Before it is written: an empty file with a label is known as ours after a kill, and is removed.
        self.label(&file, boot_id);
        match write_whole(&file, content).and_then(|()| fstat(&file)) {
            Ok(stat) => Ok(Created::Made(stat)),
            Err(e) => {
                // The write's error is the one that counts; an empty file that stays is in the list of orphans.
                let _ = unlinkat(dir, name, AtFlags::empty());
                Err(e)
            }
        }
    }

    /// For tests: as on a file system without nameless files.
    #[cfg(test)]
    pub(super) fn named_only() -> FileCreator {
        FileCreator { tmpfiles: None, no_labels: false }
    }

    fn label(&mut self, file: &OwnedFd, boot_id: &str) {
        if self.no_labels {
            return;
        }
        // Any other refusal is of this file only: it goes without.
        if boot_label::set(file, boot_id) == Err(Errno::OPNOTSUPP) {
            self.no_labels = true;
        }
    }
}

/// Writes a nameless file and gives it its name.
fn create_linked(
    tmpfiles: &Arc<TmpfilePool>,
    dir: &OwnedFd,
    name: &str,
    content: &str,
) -> Result<Created, Errno> {
    let file = tmpfiles.take(content.len())?;
    kill_steps::reach("opened");
    // Written before it has a name: nobody ever sees it empty.
    let file = filled(file, content)?;
    let stat = fstat(&file)?;
    kill_steps::reach("written");
    let linked = match linkat(file.as_fd(), "", dir, name, AtFlags::EMPTY_PATH) {
        // Without CAP_DAC_READ_SEARCH the kernel wants the way round by /proc.
        Err(Errno::NOENT) => {
            let own = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(CWD, own, dir, name, AtFlags::SYMLINK_FOLLOW)
        }
        done => done,
    };
    match linked {
        Ok(()) => {
            kill_steps::reach("linked");
            Ok(Created::Made(stat))
        }
        Err(Errno::EXIST) => Ok(Created::Taken),
        Err(e) => Err(e),
    }
}

/// Makes `content` all that a nameless file has.
fn filled(file: Tmpfile, content: &str) -> Result<OwnedFd, Errno> {
    let Tmpfile { fd, length } = file;
    write_whole(&fd, content)?;
    if length > content.len() {
        ftruncate(&fd, content.len() as u64)?;
    }
    Ok(fd)
}

/// Writes a file's first bytes.
fn write_whole(file: &OwnedFd, content: &str) -> Result<(), Errno> {
    let (mut rest, mut at) = (content.as_bytes(), 0);
    while !rest.is_empty() {
        let written = pwrite(file, rest, at)?;
        rest = rest.get(written..).ok_or(Errno::IO)?;
        at += written as u64;
        if written == 0 {
            return Err(Errno::NOSPC);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_has_its_content_and_nothing_else_however_long_it_was() {
        let dir = tempfile::tempdir().unwrap();
        for length in [0, 3, 9, 200] {
            let name = dir.path().join(length.to_string());
            fs::write(&name, vec![0; length]).unwrap();
            let file = Tmpfile { fd: fs::File::options().write(true).open(&name).unwrap().into(), length };
            drop(filled(file, "container").unwrap());
            assert_eq!(fs::read_to_string(&name).unwrap(), "container", "{length}");
        }
    }
}
