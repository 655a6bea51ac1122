//! What is on disk of the members of pools. A record in the state directory, one file a VF, says how a member was when it was
//! adopted, what it keeps for good, what holds it and the IOMMU group that kubelet was told of it; it is written before anything
//! is changed. A mark in the run directory says in whose hands the member is; it dies with the boot, as the member's cleanness
//! does. So do the RDMA nodes that kubelet was told of it, which stand beside its mark.
//!
//! Whoever reads a record waits for no disk: it is as it was written last. The JSON of records and the words of marks are read
//! by other releases too and stay as they are.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fairlead_host::files;
use fairlead_host::files::paths_in;
use fairlead_host::record_content::{self, Content, ReadFile, UnreadRecord};
use fairlead_host::record_version::{FORMAT, RecordVersion};
use fairlead_host::{Mac, VfChange};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::state::{Hold, Mark};
use crate::PciAddr;
use crate::vf_netdev::Appearance;

/// The directory of records in the state directory, and that of marks in the run directory.
const DIRECTORY: &str = "pools";

/// The record of a VF that is or was a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    /// The VF's PCI address.
    pub(super) address: PciAddr,
    /// The pool that has it.
    pub(super) pool: String,
    /// Its lasting MAC address, given by the administrator.
    pub(super) mac: Mac,
    /// What holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) held: Option<RecordedHold>,
    /// What a pod has left on it that could not be undone, in words, until it was bound anew. Not in `held`, so that older releases,
    /// which bind every VF anew before the next pod has it, can read the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) unclean: Option<String>,
    /// The IOMMU group whose node kubelet was told last, and gives its pod's containers also after a reboot; absent where it was told
    /// none, or an earlier release told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) told_group: Option<u32>,
    /// How it was before its pool had it, while it is anything else.
    #[serde(rename = "was", default, skip_serializing_if = "Option::is_none")]
    pub(super) original: Option<OriginalState>,
    /// Who wrote it.
    #[serde(flatten)]
    version: RecordVersion,
    /// What a newer version has added and this one may pass over: it stays in the file.
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

/// What holds a member, as it is on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum RecordedHold {
    /// It is drained by order of the operator.
    Drained,
    /// It is quarantined, and why.
    Quarantined(String),
}

/// A VF before it was changed, in the boot that it was seen in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OriginalState {
    /// The identity of that boot: nothing of this is so in another one.
    pub(super) boot_id: String,
    /// The driver that it had, and comes back to.
    pub(super) driver: String,
    /// Whether the administrator had fixed that driver.
    pub(super) fixed: bool,
    /// Its interface; none where it was under vfio-pci all the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) interface: Option<Appearance>,
    /// All of its settings, as far as its driver reports them.
    pub(super) settings: VfChange,
    /// Its driver is somebody else's affair, as its pool has it or had it.
    #[serde(default)]
    pub(super) bound_by_others: bool,
    /// Of such a one: we are at work on it, and if it has no driver it is because of us.
    #[serde(default)]
    pub(super) at_work: bool,
    /// It has vanished: what is at its address now is another one, and has nothing of it but its name.
    #[serde(default)]
    pub(super) gone: bool,
    /// Its RDMA devices, which it has under that driver only, and by which selectors go. `None`: an earlier release has begun the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) rdma: Option<Vec<String>>,
}

impl Record {
    /// How it was, if that was seen in this boot and is about the one that is there.
    pub(super) fn original_in(&self, boot_id: &str) -> Option<&OriginalState> {
        self.original.as_ref().filter(|original| original.boot_id == boot_id && !original.gone)
    }

    /// What holds it in this boot. What a pod has left on it is gone with the boot that it was left in, and with the VF that had it.
    pub(super) fn hold(&self, boot_id: &str) -> Option<Hold> {
        let held = self.held.as_ref().map(RecordedHold::hold);
        let unclean = self.unclean.as_ref().filter(|_| self.original_in(boot_id).is_some());
        held.or_else(|| unclean.cloned().map(Hold::Unclean))
    }

    /// What its interface is or was called in this boot.
    pub(super) fn name_in(&self, boot_id: &str) -> Option<&str> {
        let original = self.original.as_ref().filter(|original| original.boot_id == boot_id)?;
        original.interface.as_ref().map(|interface| interface.name.as_str())
    }

    /// Notes that the VF is gone: nothing is to be given back to the one that is made in its place.
    pub(super) fn vanished(&mut self) {
        if let Some(original) = &mut self.original {
            original.gone = true;
        }
    }
}

impl RecordedHold {
    /// What of a hold outlives the daemon.
    pub(super) fn of(hold: Option<&Hold>) -> Option<RecordedHold> {
        match hold? {
            Hold::Drained => Some(RecordedHold::Drained),
            Hold::Quarantined(why) => Some(RecordedHold::Quarantined(why.clone())),
            Hold::Unclean(_) => None,
            Hold::Dismissed(before) => RecordedHold::of(before.as_deref()),
        }
    }

    fn hold(&self) -> Hold {
        match self {
            RecordedHold::Drained => Hold::Drained,
            RecordedHold::Quarantined(why) => Hold::Quarantined(why.clone()),
        }
    }
}

/// What of a pod's is still on a member.
pub(super) fn unclean(hold: Option<&Hold>) -> Option<&str> {
    match hold? {
        Hold::Unclean(why) => Some(why),
        Hold::Dismissed(before) => unclean(before.as_deref()),
        Hold::Drained | Hold::Quarantined(_) => None,
    }
}

/// What a mark's file says. A soiled member has none: whatever is not wholly written says that.
fn word(mark: Mark) -> Option<&'static str> {
    match mark {
        Mark::Clean => Some("clean"),
        Mark::Given => Some("given"),
        Mark::Awaited => Some("awaited"),
        Mark::Verified => Some("verified"),
        Mark::Soiled => None,
    }
}

/// The records that were set aside because they cannot be read.
///
/// # Errors
/// When the directory of records cannot be read.
pub fn unreadable(state_dir: &Path) -> io::Result<Vec<PathBuf>> {
    record_content::set_aside_in(&state_dir.join(DIRECTORY))
}

/// What a record's file says; a newer version's is of the VF that the file is named after.
type RecordContent = Content<Box<Record>, (PciAddr, RecordVersion)>;

fn content(path: &Path, read: ReadFile) -> Result<RecordContent, UnreadRecord> {
    Content::of(path, read, |bytes| {
        let version = serde_json::from_slice::<RecordVersion>(bytes);
        let readable = version.as_ref().is_ok_and(RecordVersion::is_readable);
        if let (true, Ok(record)) = (readable, serde_json::from_slice::<Record>(bytes)) {
            return Content::Known(Box::new(record));
        }
        let address = path.file_stem().and_then(|stem| stem.to_str()?.parse::<PciAddr>().ok());
        match (address, serde_json::from_slice::<BTreeMap<String, Value>>(bytes)) {
            (Some(address), Ok(_)) => Content::Newer((address, version.unwrap_or_default())),
            (None, Ok(_)) => Content::Unreadable("its name is no PCI address".to_owned()),
            (_, Err(error)) => Content::Unreadable(error.to_string()),
        }
    })
}

/// The two directories, and the records as they are on disk.
#[derive(Debug)]
pub(super) struct Records {
    directory: PathBuf,
    marks: PathBuf,
    /// The records as they are on disk, but for forgotten ones. Held for a look only.
    kept: Mutex<BTreeMap<PciAddr, Record>>,
    /// VFs whose records only the newer version can act on that wrote them: their files are never touched, and nobody gets them.
    newer: BTreeMap<PciAddr, RecordVersion>,
    /// Held by whoever writes, for as long as that takes.
    disk: Mutex<()>,
}

impl Records {
    /// Makes the directories where they are not there, and reads the records; one that says nothing is set aside.
    ///
    /// # Errors
    /// When a directory cannot be made or read, or a record cannot be read for a reason that can pass.
    pub(super) fn open(state_dir: &Path, run_dir: &Path) -> io::Result<Records> {
        Records::open_by(state_dir, run_dir, record_content::read)
    }

    fn open_by(state_dir: &Path, run_dir: &Path, read: ReadFile) -> io::Result<Records> {
        let (directory, marks) = (state_dir.join(DIRECTORY), run_dir.join(DIRECTORY));
        fs::create_dir_all(&directory)?;
        fs::create_dir_all(&marks)?;
        let (mut kept, mut newer) = (BTreeMap::new(), BTreeMap::new());
        for path in
            paths_in(&directory)?.into_iter().filter(|path| path.extension().is_some_and(|e| e == "json"))
        {
            match content(&path, read)? {
                Content::Known(record) => drop(kept.insert(record.address, *record)),
                Content::Newer((address, version)) => {
                    tracing::warn!(file = %path.display(), "the record of a pool's VF was {version}; both are left alone until that version is back");
                    newer.insert(address, version);
                }
                Content::Unreadable(reason) => {
                    tracing::error!(file = %path.display(), reason,
                        "the record of a pool's VF cannot be read; it is set aside, and what the VF was before is lost");
                    record_content::set_aside(&path)?;
                }
            }
        }
        Ok(Records { directory, marks, kept: Mutex::new(kept), newer, disk: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PciAddr, Record>> {
        self.kept.lock()
    }

    fn writing(&self) -> MutexGuard<'_, ()> {
        self.disk.lock()
    }

    fn file(&self, address: PciAddr) -> PathBuf {
        self.directory.join(format!("{address}.json"))
    }

    /// All records.
    pub(super) fn all(&self) -> Vec<Record> {
        self.lock().values().cloned().collect()
    }

    /// The record of one VF.
    pub(super) fn get(&self, address: PciAddr) -> Option<Record> {
        self.with(address, Record::clone)
    }

    /// What is `seen` in the record of one VF, without a copy of it.
    pub(super) fn with<T>(&self, address: PciAddr, seen: impl FnOnce(&Record) -> T) -> Option<T> {
        self.lock().get(&address).map(seen)
    }

    /// Has a record of a pool's member; it is on disk when it is first changed.
    pub(super) fn begin(&self, address: PciAddr, pool: &str, mac: impl FnOnce() -> Mac) {
        let _writing = self.writing();
        let mut kept = self.lock();
        // In memory alone: what the newer version has written of it stays on disk.
        let held = self
            .newer
            .get(&address)
            .map(|version| RecordedHold::Quarantined(format!("its record was {version}")));
        let record = kept.entry(address).or_insert_with(|| Record {
            address,
            pool: String::new(),
            mac: mac(),
            held,
            unclean: None,
            told_group: None,
            original: None,
            version: RecordVersion::written_now(FORMAT),
            rest: BTreeMap::new(),
        });
        pool.clone_into(&mut record.pool);
    }

    /// Changes a record; on disk when this returns, as it was when it fails.
    pub(super) fn change(&self, address: PciAddr, change: impl FnOnce(&mut Record)) -> io::Result<()> {
        let _writing = self.writing();
        let Some(record) = self.get(address) else { return Ok(()) };
        let mut changed = record.clone();
        change(&mut changed);
        if changed != record {
            if let Some(version) = self.newer.get(&address) {
                return Err(io::Error::other(format!("its record was {version}, and is left to that one")));
            }
            changed.version = RecordVersion::written_now(FORMAT);
            files::replace(&self.file(address), &serde_json::to_vec(&changed)?)?;
            // It may have been forgotten while the disk was slow: then it must not be there again.
            if let Some(kept) = self.lock().get_mut(&address) {
                *kept = changed;
            }
        }
        Ok(())
    }

    /// Forgets a VF; whoever has it next begins a record of his own. The disk follows with [`Records::settle`].
    pub(super) fn forget(&self, address: PciAddr) {
        self.lock().remove(&address);
    }

    /// Has the disk follow after a VF was forgotten: nothing, or what somebody knows of it by now.
    pub(super) fn settle(&self, address: PciAddr) -> io::Result<()> {
        let _writing = self.writing();
        if self.newer.contains_key(&address) {
            return Ok(());
        }
        match self.get(address) {
            Some(record) => files::replace(&self.file(address), &serde_json::to_vec(&record)?),
            None => files::gone(fs::remove_file(self.file(address))),
        }
    }

    /// In whose hands a member was last, by its mark.
    pub(super) fn mark_of(&self, address: PciAddr) -> Mark {
        // A mark that cannot be read counts as not clean: the VF is prepared once more.
        let written = fs::read_to_string(self.marks.join(address.to_string())).ok();
        let says = |mark: &Mark| word(*mark) == written.as_deref();
        [Mark::Clean, Mark::Given, Mark::Awaited, Mark::Verified]
            .into_iter()
            .find(says)
            .unwrap_or(Mark::Soiled)
    }

    /// Marks in whose hands a member is from now on. What cannot be written says nothing, and nothing good of it then.
    pub(super) fn mark(&self, address: PciAddr, mark: Mark) -> io::Result<()> {
        let file = self.marks.join(address.to_string());
        match word(mark) {
            // Where not even the opening succeeds, the old mark would stay, and may say clean.
            Some(word) => fs::write(&file, word).inspect_err(|_| drop(fs::remove_file(&file))),
            None => files::gone(fs::remove_file(file)),
        }
    }

    fn told_nodes_file(&self, address: PciAddr) -> PathBuf {
        self.marks.join(format!("{address}.nodes"))
    }

    /// The RDMA nodes that kubelet was told last of a member in this boot; none where it was told none, or an earlier release told them.
    pub(super) fn told_nodes(&self, address: PciAddr) -> Vec<String> {
        let written = fs::read_to_string(self.told_nodes_file(address)).unwrap_or_default();
        written.lines().map(str::to_owned).collect()
    }

    /// Notes the RDMA nodes that kubelet is told of a member.
    pub(super) fn note_told_nodes(&self, address: PciAddr, nodes: &[&str]) -> io::Result<()> {
        let file = self.told_nodes_file(address);
        match nodes {
            [] => files::gone(fs::remove_file(file)),
            nodes => files::replace(&file, nodes.join("\n").as_bytes()),
        }
    }
}

#[cfg(test)]
mod format_tests;

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use nix::errno::Errno;
    use nix::sys::stat::Mode;

    use super::*;

    #[test]
    fn a_record_that_cannot_be_read_for_a_reason_that_can_pass_stays_and_the_start_fails() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path(), dir.path()).unwrap();
        let address: PciAddr = "0000:21:10.0".parse().unwrap();
        records.begin(address, "radio", || Mac::local(7));
        records.change(address, |record| record.held = Some(RecordedHold::Drained)).unwrap();
        let (file, before) = (records.file(address), records.get(address));
        let shortages: [ReadFile; 2] = [|_| Err(Errno::EMFILE.into()), |_| Err(Errno::EACCES.into())];
        for read in shortages {
            let told = Records::open_by(dir.path(), dir.path(), read).unwrap_err().to_string();
            assert!(told.starts_with(&format!("{} cannot be read", file.display())), "{told}");
            assert!(file.exists() && unreadable(dir.path()).unwrap().is_empty());
        }
        assert_eq!(Records::open(dir.path(), dir.path()).unwrap().get(address), before);
    }

    #[test]
    fn a_mark_that_is_not_wholly_written_says_that_its_vf_is_not_clean() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path(), dir.path()).unwrap();
        let address: PciAddr = "0000:21:10.0".parse().unwrap();
        for mark in [Mark::Clean, Mark::Given, Mark::Awaited, Mark::Verified, Mark::Soiled, Mark::Soiled] {
            records.mark(address, mark).unwrap();
            assert_eq!(records.mark_of(address), mark);
        }
        for torn in ["", "clea", "given and more"] {
            fs::write(records.marks.join(address.to_string()), torn).unwrap(); // as a full disk leaves it
            assert_eq!(records.mark_of(address), Mark::Soiled, "{torn:?}");
        }
    }

    #[test]
    fn whoever_reads_waits_for_no_disk_and_what_is_forgotten_meanwhile_is_not_there_again() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path(), dir.path()).unwrap();
        let address: PciAddr = "0000:21:10.0".parse().unwrap();
        records.begin(address, "radio", || Mac::local(7));
        let beside = records.file(address).with_extension("tmp");
        nix::unistd::mkfifo(&beside, Mode::S_IRWXU).unwrap(); // opened only when somebody reads: a disk that hangs
        let (begins, started) = mpsc::channel();
        thread::scope(|scope| {
            let writes = scope.spawn(|| {
                records.change(address, |record| {
                    record.held = Some(RecordedHold::Drained);
                    begins.send(()).unwrap();
                })
            });
            started.recv().unwrap();
            assert!(records.disk.try_lock().is_none());
            assert_eq!(records.get(address).unwrap().held, None, "what is not on disk is not so yet");
            records.forget(address);
            drop(fs::read(&beside));
            drop(writes.join().unwrap());
        });
        assert_eq!(records.all(), []);
        records.settle(address).unwrap();
        assert!(!records.file(address).exists());
    }
}
