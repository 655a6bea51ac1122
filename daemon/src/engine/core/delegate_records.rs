//! Records of attachments for which programs were executed: on disk, because what those programs hold (a lease, a
//! port mapping) does not die with the boot.
//!
//! One file an attachment, written and synced before the first program is started, removed when nothing is left.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::unistd::{AccessFlags, access};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use fairlead_cni::{CniError, Code};
use fairlead_host::disk_space;
use fairlead_host::pid_lock::lock_or_holder;
use fairlead_host::record_content::{self, Content, ReadFile, UnreadRecord};
use fairlead_host::record_version::{FORMAT, RecordVersion};
use fairlead_host::time_limit::within;

use super::ipam::STATUS_LIMIT;
use crate::engine::errors;
use crate::store::{Attachment, Phase};

/// The directory of records, in the state directory.
const DIRECTORY: &str = "attachments";
/// What a record takes beside the configuration: names, addresses, the caller's environment.
const RECORD: u64 = 16 << 10;
/// More looks at the directory than this do not wait for it at once: each that hangs keeps a thread.
const MOST_LOOKS: usize = 16;

/// The records that were set aside, for `doctor`: none where there is no such directory yet.
pub(crate) fn unreadable(state_dir: &Path) -> io::Result<Vec<PathBuf>> {
    record_content::set_aside_in(&state_dir.join(DIRECTORY))
}

/// The directory of records.
#[derive(Debug)]
pub(crate) struct DelegateRecords {
    dir: PathBuf,
    boot_id: String,
    kept: Mutex<HashSet<u64>>,
    /// Each look that is under way has a clone.
    looks: Arc<()>,
    _lock: File,
}

/// A file of the directory.
#[derive(Serialize, Deserialize)]
struct Record<A> {
    #[serde(rename = "bootId")]
    boot_id: String,
    attachment: A,
    #[serde(flatten)]
    version: RecordVersion,
}

/// What an earlier daemon left in the directory.
#[derive(Debug, Default)]
pub(crate) struct FoundRecords {
    /// What can be acted on.
    pub(crate) attachments: Vec<RecordedAttachment>,
    /// What only the newer version can act on that wrote it.
    pub(crate) newer: Vec<NewerRecord>,
}

/// An attachment as its record has it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RecordedAttachment {
    /// Whether it was made in this boot.
    pub(crate) of_this_boot: bool,
    pub(crate) attachment: Attachment,
    /// All that its record says of it, also what this version does not know.
    pub(crate) written: Value,
}

/// A record that a newer version wrote.
#[derive(Debug)]
pub(crate) struct NewerRecord {
    /// The attachment's number, by the file's name.
    pub(crate) id: Option<u64>,
    pub(crate) file: PathBuf,
    /// What it says of the attachment, and who wrote it.
    pub(crate) fields: Map<String, Value>,
}

impl NewerRecord {
    fn new(file: PathBuf, mut record: Map<String, Value>) -> NewerRecord {
        let mut fields = match record.remove("attachment") {
            Some(Value::Object(attachment)) => attachment,
            _ => record.clone(),
        };
        fields.extend(["by", "needs"].into_iter().filter_map(|key| record.remove_entry(key)));
        let id = file.file_stem().and_then(|stem| u64::from_str_radix(stem.to_str()?, 16).ok());
        NewerRecord { id, file, fields }
    }
}

/// What a file says.
type RecordContent = Content<Box<RecordedAttachment>, Map<String, Value>>;

fn content(path: &Path, boot_id: &str, read: ReadFile) -> Result<RecordContent, UnreadRecord> {
    Content::of(path, read, |bytes| {
        if let Ok(record) = serde_json::from_slice::<Record<Value>>(bytes)
            && record.version.is_readable()
            && let Ok(attachment) = Attachment::deserialize(&record.attachment)
        {
            let of_this_boot = record.boot_id == boot_id;
            let recorded = RecordedAttachment { of_this_boot, attachment, written: record.attachment };
            return Content::Known(Box::new(recorded));
        }
        match serde_json::from_slice(bytes) {
            Ok(record) => Content::Newer(record),
            Err(error) => Content::Unreadable(error.to_string()),
        }
    })
}

/// The files of whole records. What was never finished is removed: no program was started for it yet.
fn whole_records(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut whole = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if !entry.file_type()?.is_file() {
            continue;
        }
        let path = entry.path();
        let ending = path.extension().unwrap_or_default();
        if ending == "json" {
            whole.push(path);
        } else if ending == "tmp" {
            fs::remove_file(&path)?;
        }
        // Others are the lock, and records that were set aside.
    }
    Ok(whole)
}

impl DelegateRecords {
    /// Whether that is the boot in which this daemon runs.
    pub(crate) fn is_of_this_boot(&self, boot_id: &str) -> bool {
        self.boot_id == boot_id
    }

    /// Opens the directory, which one daemon has at a time, and reads what an earlier one left in it, with whether it was
    /// in this boot. A file that says nothing is set aside.
    ///
    /// # Errors
    /// When another daemon has the directory, it cannot be read, or a record cannot for a reason that can pass.
    pub(crate) fn open(state_dir: &Path, boot_id: &str) -> io::Result<(DelegateRecords, FoundRecords)> {
        DelegateRecords::open_by(state_dir, boot_id, record_content::read)
    }

    fn open_by(
        state_dir: &Path,
        boot_id: &str,
        read: ReadFile,
    ) -> io::Result<(DelegateRecords, FoundRecords)> {
        let dir = state_dir.join(DIRECTORY);
        fs::create_dir_all(&dir)?;
        let lock = lock(&dir)?;
        let mut found = FoundRecords::default();
        for path in whole_records(&dir)? {
            match content(&path, boot_id, read)? {
                Content::Known(recorded) => found.attachments.push(*recorded),
                // Its file stays as it is, for that version.
                Content::Newer(record) => found.newer.push(NewerRecord::new(path, record)),
                // One damaged record must not keep the daemon from starting. A person can still read it.
                Content::Unreadable(reason) => {
                    tracing::error!(file = %path.display(), reason, "a record of an attachment cannot be read; it is set aside");
                    record_content::set_aside(&path)?;
                }
            }
        }
        found.attachments.sort_by_key(|of| of.attachment.id);
        let kept = Mutex::new(found.attachments.iter().map(|of| of.attachment.id).collect());
        let (boot_id, looks) = (boot_id.to_owned(), Arc::default());
        Ok((DelegateRecords { dir, boot_id, kept, looks, _lock: lock }, found))
    }

    fn path(&self, id: u64) -> PathBuf {
        self.dir.join(format!("{id:016x}.json"))
    }

    /// Whether a record with configurations of this length can be written now: by the rights of the directory, and by what its
    /// file system has left. Another thread looks, because the disk may hang.
    ///
    /// # Errors
    /// Why not, with the directory: what the kernel says, or that it does not answer within [`STATUS_LIMIT`].
    pub(crate) fn writable(&self, configs: usize) -> Result<(), String> {
        let seen = self.look(RECORD + 2 * configs as u64);
        seen.map_err(|error| {
            format!("the records of executed plugins in {} cannot be written: {error}", self.dir.display())
        })
    }

    /// Whether there is room for a file of so many bytes.
    fn look(&self, bytes: u64) -> io::Result<()> {
        let hangs = || io::Error::new(io::ErrorKind::TimedOut, "its file system does not answer");
        if Arc::strong_count(&self.looks) > MOST_LOOKS {
            return Err(hangs());
        }
        let (dir, look) = (self.dir.clone(), Arc::clone(&self.looks));
        let looked = within("status-records", STATUS_LIMIT, move || {
            let may_write = access(dir.as_path(), AccessFlags::W_OK).map_err(io::Error::from);
            let room = may_write.and_then(|()| disk_space::left_for(&dir, bytes));
            drop(look);
            room
        })?;
        // This one is late, and not yet the only one: a machine that is busy is not taken for a disk that hangs.
        looked.unwrap_or_else(|| if Arc::strong_count(&self.looks) > 2 { Err(hangs()) } else { Ok(()) })
    }

    /// Writes the record of an attachment with delegates; of another nothing.
    pub(crate) fn keep(&self, attachment: &Attachment) -> Result<(), CniError> {
        if !attachment.has_delegates() {
            return Ok(());
        }
        let path = self.path(attachment.id);
        self.write(&path, attachment).map_err(|e| {
            let what = format!("the record {} cannot be written", path.display());
            errors::file(
                what,
                &e,
                Code::TryAgain,
                "make space on that file system, or make the directory writable",
            )
        })?;
        self.kept.lock().insert(attachment.id);
        Ok(())
    }

    fn write(&self, path: &Path, attachment: &Attachment) -> io::Result<()> {
        // What a restart finds here was attached as far as its delegates can tell.
        let attachment = Attachment { phase: Phase::Attached, ..attachment.clone() };
        let version = RecordVersion::written_now(FORMAT);
        let record = Record { boot_id: self.boot_id.clone(), attachment, version };
        fairlead_host::files::replace(path, &serde_json::to_vec(&record)?)
    }

    /// Nothing is left of it.
    pub(crate) fn forget(&self, id: u64) {
        // Most attachments have no record: they cost no system call here.
        if self.kept.lock().remove(&id)
            && let Err(e) = fs::remove_file(self.path(id))
        {
            tracing::warn!(file = %self.path(id).display(), error = %e, "a record cannot be removed; its delegates get another DEL after a restart");
        }
    }
}

fn lock(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let mut file =
        options.read(true).write(true).create(true).truncate(false).mode(0o600).open(dir.join(".lock"))?;
    match lock_or_holder(&mut file)? {
        None => Ok(file),
        Some(_) => {
            let why = "another fairleadd uses this state directory: give each its own --state-dir";
            Err(io::Error::new(io::ErrorKind::AddrInUse, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    #[test]
    fn a_record_that_cannot_be_read_for_a_reason_that_can_pass_stays_and_the_daemon_does_not_start() {
        let state = tempfile::tempdir().unwrap();
        let file = state.path().join(DIRECTORY).join("0000000000000007.json");
        fs::create_dir(state.path().join(DIRECTORY)).unwrap();
        fs::write(&file, "damaged").unwrap();
        let shortages: [ReadFile; 2] = [|_| Err(Errno::EMFILE.into()), |_| Err(Errno::EACCES.into())];
        for read in shortages {
            let told = DelegateRecords::open_by(state.path(), "this boot", read).unwrap_err().to_string();
            assert!(told.starts_with(&format!("{} cannot be read", file.display())), "{told}");
            assert!(file.exists() && unreadable(state.path()).unwrap().is_empty());
        }
        DelegateRecords::open(state.path(), "this boot").unwrap();
        assert_eq!(unreadable(state.path()).unwrap(), [file.with_extension("unreadable")]);
    }
}
