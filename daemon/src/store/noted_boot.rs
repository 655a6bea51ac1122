//! The file beside the journal that notes of which boot the journal's attachments are.
//!
//! A living pod must never be taken for one of another boot: its addresses would be given again. So nothing but the id of another boot
//! says that. Where the file says nothing, the journal counts as this boot's: the reconciling finds what is dead by its namespace.

use std::io;
use std::path::{Path, PathBuf};

use fairlead_host::files;
use fairlead_host::record_content::{self, ReadFile};

/// The name of the file in the run directory.
const FILE: &str = "boot-id";

/// What the file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotedBoot {
    /// The attachments are of this boot.
    This,
    /// They are of another one.
    Another,
    /// Nothing: it is not there, it is empty, or it can never be read.
    Unknown,
}

/// The note of this boot, and where it has to be.
#[derive(Debug)]
pub(super) struct BootNote {
    path: PathBuf,
    boot_id: String,
}

impl BootNote {
    /// That of the run directory `dir`; nothing is read or written yet.
    pub(super) fn new(dir: &Path, boot_id: &str) -> BootNote {
        BootNote { path: dir.join(FILE), boot_id: boot_id.to_owned() }
    }

    /// What the file says by now; `read` has its bytes. One that can never be read is set aside.
    ///
    /// # Errors
    /// When it cannot be read for a reason that can pass, or cannot be set aside.
    pub(super) fn read(&self, read: ReadFile) -> io::Result<NotedBoot> {
        let bytes = match record_content::bytes_of(&self.path, read)? {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(NotedBoot::Unknown),
            Err(error) => {
                tracing::error!(file = %self.path.display(), %error,
                    "the note of the store's boot cannot be read; it is set aside, and the store counts as this boot's");
                record_content::set_aside(&self.path)?;
                return Ok(NotedBoot::Unknown);
            }
        };
        let text = String::from_utf8_lossy(&bytes);
        // A power failure left zeros, or nothing, in the place of what a release before wrote.
        Ok(match text.trim_matches(|c: char| c == '\0' || c.is_whitespace()) {
            "" => NotedBoot::Unknown,
            noted if noted == self.boot_id => NotedBoot::This,
            _ => NotedBoot::Another,
        })
    }

    /// Notes this boot: whole or not at all, whatever ends the machine.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn write(&self) -> io::Result<()> {
        files::replace(&self.path, self.boot_id.as_bytes())
    }
}
