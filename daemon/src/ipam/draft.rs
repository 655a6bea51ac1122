//! How a file comes into a network's directory: whole, labelled, and only if the address is free.
//!
//! It is written without a name (`O_TMPFILE`) and then linked to the address, which fails like `O_EXCL` when the
//! address is taken: a kill at any point leaves either nothing or a whole file. Where the file system has no
//! such files, it is created with `O_EXCL`, labelled, then written, as the reference plugin does.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, XattrFlags, fsetxattr, fstat, linkat, openat, unlinkat};
use rustix::io::{Errno, write};

use super::blanks::Blanks;
use super::directory::LABEL;

/// What became of an attempt.
#[derive(Debug)]
pub(super) enum Put {
    /// The file was made.
    Made(Stat),
    /// There is a file of that name.
    Taken,
}

/// How files are made on one file system, found out once.
#[derive(Debug)]
pub(super) struct Draft {
    /// Nameless files; `None` where it has no `O_TMPFILE`, or does not let us link one.
    blanks: Option<Arc<Blanks>>,
    /// It takes no extended attributes.
    unlabelled: bool,
}

impl Draft {
    /// With nameless files, until the file system refuses them.
    pub(super) fn new(blanks: Arc<Blanks>) -> Draft {
        Draft { blanks: Some(blanks), unlabelled: false }
    }

    /// Makes the file `name` with this content.
    pub(super) fn put(&mut self, dir: &OwnedFd, name: &str, content: &str, boot_id: &str) -> io::Result<Put> {
        if let Some(blanks) = &self.blanks {
            match put_linked(blanks, dir, name, content) {
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::PERM | Errno::XDEV) => {
                    self.blanks = None;
                }
                done => return Ok(done?),
            }
        }
        Ok(self.put_named(dir, name, content, boot_id)?)
    }

    fn put_named(&mut self, dir: &OwnedFd, name: &str, content: &str, boot_id: &str) -> Result<Put, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = match openat(dir, name, flags, Mode::from_raw_mode(0o600)) {
            Err(Errno::EXIST) => return Ok(Put::Taken),
            file => file?,
        };
        self.label(&file, boot_id);
        match write_whole(&file, content).and_then(|()| fstat(&file)) {
            Ok(stat) => Ok(Put::Made(stat)),
            Err(e) => {
                // The write's error is the one to tell; an empty file that stays is told by the orphans' list.
                let _ = unlinkat(dir, name, AtFlags::empty());
                Err(e)
            }
        }
    }

    /// As on a file system without nameless files.
    #[cfg(test)]
    pub(super) fn named_only() -> Draft {
        Draft { blanks: None, unlabelled: false }
    }

    fn label(&mut self, file: &OwnedFd, boot_id: &str) {
        if self.unlabelled {
            return;
        }
        // Any other refusal is of this file only: it goes without.
        if fsetxattr(file, LABEL, boot_id.as_bytes(), XattrFlags::empty()) == Err(Errno::OPNOTSUPP) {
            self.unlabelled = true;
        }
    }
}

/// Writes a nameless file and gives it its name.
fn put_linked(blanks: &Arc<Blanks>, dir: &OwnedFd, name: &str, content: &str) -> Result<Put, Errno> {
    let file = blanks.take()?;
    steps::reach("drafted");
    write_whole(&file, content)?;
    let stat = fstat(&file)?;
    steps::reach("written");
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
            steps::reach("linked");
            Ok(Put::Made(stat))
        }
        Err(Errno::EXIST) => Ok(Put::Taken),
        Err(e) => Err(e),
    }
}

fn write_whole(file: &OwnedFd, content: &str) -> Result<(), Errno> {
    let mut rest = content.as_bytes();
    while !rest.is_empty() {
        let written = write(file, rest)?;
        rest = rest.get(written..).ok_or(Errno::IO)?;
        if written == 0 {
            return Err(Errno::NOSPC);
        }
    }
    Ok(())
}

/// Steps at which a test ends its process with SIGKILL. Nothing, in any other build.
pub(super) mod steps {
    /// All of them, in order.
    #[cfg(test)]
    pub(crate) const ALL: [&str; 7] =
        ["drafted", "written", "linked", "cursor", "given", "removing", "removed"];

    /// The variable that names the step.
    #[cfg(test)]
    pub(crate) const VARIABLE: &str = "FAIRLEAD_IPAM_KILLED_AT";

    #[cfg(test)]
    pub(crate) fn reach(step: &str) {
        if std::env::var(VARIABLE).is_ok_and(|wanted| wanted == step) {
            nix::sys::signal::raise(nix::sys::signal::SIGKILL).unwrap();
        }
    }

    #[cfg(not(test))]
    #[inline]
    pub(crate) fn reach(_step: &str) {}
}
