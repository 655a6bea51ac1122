//! Records that cannot be read and were set aside: while there are any, nobody knows whose the addresses are that nobody claims.

use std::io;
use std::path::PathBuf;

use fairlead_cni::{CniError, Code};

use super::{Core, unreadable_records};
use crate::{spool, store};

/// The directories in which records are set aside.
#[derive(Debug, Clone)]
pub(crate) struct SetAsidePlaces {
    pub(crate) run_dir: PathBuf,
    pub(crate) state_dir: PathBuf,
}

impl SetAsidePlaces {
    fn files(&self) -> io::Result<Vec<PathBuf>> {
        let mut all = store::damaged(&self.run_dir);
        all.extend(store::of_newer_version(&self.run_dir));
        all.extend(unreadable_records(&self.state_dir)?);
        let spool_dir = self.state_dir.join(fairlead_cni::spool::DIRECTORY);
        all.extend(spool::unreadable(&spool_dir)?);
        all.extend(spool::of_newer_version(&spool_dir)?);
        all.extend(fairlead_sriov::pools::unreadable_records(&self.state_dir)?);
        Ok(all)
    }
}

impl Core {
    /// Refuses to free addresses whose container is unknown while a record is unread that may know it.
    pub(crate) fn all_records_must_be_read(&self) -> Result<(), CniError> {
        let unread = |what: String, remedy: &str| {
            let msg = format!(
                "orphaned addresses are not freed while their owner may be on a record that is not read: {what}"
            );
            Err(CniError::new(Code::TryAgain, msg).with(remedy))
        };
        let newer = self.store.newer();
        if let Some(one) = newer.first() {
            let what = format!("{} attachments; that of {} was {}", newer.len(), one.label(), one.version);
            return unread(what, one.remedy());
        }
        match self.set_aside.files() {
            Ok(none) if none.is_empty() => Ok(()),
            Ok(files) => {
                let files: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
                let remedy =
                    "see whose each is (`fairleadd doctor`), wait for those pods' DEL, then remove the file";
                unread(files.join(", "), remedy)
            }
            Err(error) => unread(error.to_string(), "make the directory one that root can read"),
        }
    }
}
