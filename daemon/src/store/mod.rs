//! The write-ahead store: which attachments exist, and how far each has come.
//!
//! Invariant: a step that changes the host is on record before it is taken, and memory holds what the journal
//! says. The store never waits for a disk: the journal lives where namespaces do, in the memory of this boot.
//!
//! It is a small journal and no embedded database, by measurement (one record, p50 / p99 µs, process-crash safe):
//! this journal 0.7 / 3, fjall 2 / 9 with 50 ms to open, SQLite 4.5 / 38, redb 68 / 99.

mod journal;
mod record;
mod recovery;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use fairlead_sriov::PciAddr;
use parking_lot::{Mutex, MutexGuard};

pub use journal::{Purpose, replay};
pub use record::{
    Attachment, Caller, Entry, IpamRecord, Key, LinkRecord, MovedNetdev, Namespace, PassedOver, Phase,
    VfRecord,
};

use journal::{Journal, Replay, is_full};
use recovery::{RecoveredState, apply_entry, assume_committed, replay_entries};

use fairlead_host::shortage;

/// The length in bytes above which the journal is rewritten, if more than half of it is about attachments that
/// are gone.
const COMPACT_FROM: u64 = 4 << 20;

/// The size in bytes of an ADD's record beside the text of its configuration.
const RECORD: u64 = 8 << 10;

/// The name of the journal's file in the run directory.
const JOURNAL: &str = "attachments.journal";

/// The damaged journals that were set aside in this run directory.
pub fn damaged(run_dir: &Path) -> Vec<PathBuf> {
    let damaged = |path: &PathBuf| {
        path.file_stem() == Path::new(JOURNAL).file_stem()
            && path.extension().is_some_and(|e| e.to_string_lossy().starts_with(DAMAGED))
    };
    let entries = std::fs::read_dir(run_dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(damaged).collect()
}

const DAMAGED: &str = "damaged-";

/// Why the store could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The journal could not be opened.
    #[error("the store {path} cannot be opened: {source}")]
    Open {
        /// The path of the journal.
        path: PathBuf,
        /// Why it could not be opened.
        #[source]
        source: io::Error,
    },
    /// A record could not be appended.
    #[error("the store {path} cannot take a record: {source}; make space on that file system")]
    Append {
        /// The path of the journal.
        path: PathBuf,
        /// Why the record could not be appended.
        #[source]
        source: io::Error,
    },
    /// A record could not be turned into JSON.
    #[error("a record cannot be written as JSON: {0}")]
    Encode(#[from] serde_json::Error),
}

/// What was found when the store was opened.
#[derive(Debug, Default)]
pub struct Opened {
    /// The number of bytes in damaged records, which were stepped over.
    pub damaged: usize,
    /// The reason why nothing of the journal could be read.
    pub read_error: Option<io::Error>,
    /// The place where a damaged journal was set aside.
    pub set_aside: Option<PathBuf>,
    /// Commits of attachments whose intent is among the damaged records, so that neither container nor network is
    /// known.
    pub lost: Vec<Lost>,
    /// Attachments of an earlier boot, whose namespaces died with it.
    pub of_earlier_boot: Vec<Attachment>,
}

impl Opened {
    /// Whether something of the journal was lost.
    pub fn is_damaged(&self) -> bool {
        self.damaged > 0 || self.read_error.is_some()
    }
}

/// What a damaged journal still holds of an attachment whose intent is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The addresses that its commit names.
    pub addresses: Vec<ipnet::IpNet>,
    /// The answer of its ADD, which names interface and namespace.
    pub answer: String,
}

#[derive(Debug)]
struct StoreState {
    journal: Journal,
    live: BTreeMap<u64, Arc<Attachment>>,
    by_key: HashMap<Key, u64>,
    /// The attachments that were answered as gone and are not finished yet.
    silenced: BTreeSet<u64>,
    /// When this daemon committed each attachment: GC must not touch what was committed after its list was made.
    committed: HashMap<u64, Instant>,
    next: u64,
}

/// The store, which all threads share.
#[derive(Debug)]
pub struct Store {
    state: Mutex<StoreState>,
    path: PathBuf,
}

impl Store {
    /// Opens the store in `dir`. A journal of another boot is read, handed out and started again empty. One that
    /// can't be read at all is set aside, and a new one is started.
    pub fn open(dir: &Path, boot_id: &str) -> Result<(Store, Opened), StoreError> {
        let path = dir.join(JOURNAL);
        let failed = |source| StoreError::Open { path: path.clone(), source };
        let boot_file = dir.join("boot-id");
        let mut opened = Opened::default();
        let (mut journal, replayed) = open_journal(&path, boot_id, &mut opened).map_err(failed)?;
        let RecoveredState { mut live, lost, unreadable } = replay_entries(&replayed.payloads);
        opened.damaged = replayed.damaged + unreadable;
        let same_boot = std::fs::read_to_string(&boot_file).is_ok_and(|b| b.trim() == boot_id);
        if opened.damaged > 0 {
            opened.lost = lost.into_values().collect();
            // Copied before anything is mended: the damaged records stay for a person to read.
            let aside = copy_aside(&path, boot_id);
            opened.set_aside = aside.inspect_err(|e| warn_that_store_cannot(&path, "be set aside", e)).ok();
            live.values_mut().for_each(assume_committed);
        }
        if !same_boot {
            opened.of_earlier_boot = live.values().map(|a| Attachment::clone(a)).collect();
            live.clear();
            // Emptied before the boot is noted: else a kill in between would make dead attachments this boot's.
            journal.rewrite(std::iter::empty()).map_err(failed)?;
            std::fs::write(&boot_file, boot_id).map_err(failed)?;
        } else if opened.damaged > 0 && opened.set_aside.is_some() {
            let payloads = live.values().map(|a| put(a)).collect::<Result<Vec<_>, _>>()?;
            // With no space left, the store goes on with the damaged journal.
            let _ = journal
                .rewrite(payloads.iter().map(Vec::as_slice))
                .inspect_err(|e| warn_that_store_cannot(&path, "be mended", e));
        }
        let next = live.keys().next_back().map_or(1, |n| n + 1);
        let by_key = live.values().map(|a| (a.key.clone(), a.id)).collect();
        let silenced = live.values().filter(|a| a.phase == Phase::Silenced).map(|a| a.id).collect();
        let state = Mutex::new(StoreState {
            journal,
            live,
            by_key,
            silenced,
            committed: HashMap::new(),
            next: next.max(now_based_id()),
        });
        Ok((Store { state, path }, opened))
    }

    fn lock(&self) -> MutexGuard<'_, StoreState> {
        // A thread that panics while it holds the lock leaves whole records behind, because each change is one
        // append.
        self.state.lock()
    }

    /// Appends a record; on a full file system compacts the journal first.
    fn append(&self, state: &mut StoreState, payload: &[u8], purpose: Purpose) -> Result<(), StoreError> {
        let done = match state.journal.append(payload, purpose) {
            Err(e) if is_full(&e) && self.compact(state) => state.journal.append(payload, purpose),
            done => done,
        };
        done.map_err(|source| StoreError::Append { path: self.path.clone(), source })
    }

    /// Takes the number for a new attachment.
    pub fn next_id(&self) -> u64 {
        let mut state = self.lock();
        let id = state.next;
        state.next += 1;
        id
    }

    /// Puts the intent of an ADD on record.
    pub fn begin(&self, attachment: Attachment) -> Result<Arc<Attachment>, StoreError> {
        let payload = put(&attachment)?;
        let attachment = Arc::new(attachment);
        let mut state = self.lock();
        // On record first: memory must not hold an attachment that a restart would not know.
        self.append(&mut state, &payload, Purpose::Begin)?;
        state.by_key.insert(attachment.key.clone(), attachment.id);
        state.live.insert(attachment.id, Arc::clone(&attachment));
        Ok(attachment)
    }

    fn change(&self, id: u64, entry: &Entry) -> Result<(), StoreError> {
        let payload = serde_json::to_vec(entry)?;
        let mut state = self.lock();
        self.append(&mut state, &payload, Purpose::Finish)?;
        let Some(old) = state.live.get(&id) else { return Ok(()) };
        let changed = Arc::new(apply_entry(Attachment::clone(old), entry));
        if changed.phase == Phase::Silenced {
            state.silenced.insert(id);
        }
        state.live.insert(id, changed);
        Ok(())
    }

    /// Puts the commit of an ADD on record; from here on the ADD is never undone.
    pub fn commit(&self, id: u64, addresses: Vec<ipnet::IpNet>, answer: String) -> Result<(), StoreError> {
        self.change(id, &Entry::Commit { id, addresses, answer })?;
        self.lock().committed.insert(id, Instant::now());
        Ok(())
    }

    /// When this daemon committed the attachment; `None` when an earlier daemon did.
    pub fn committed_at(&self, id: u64) -> Option<Instant> {
        self.lock().committed.get(&id).copied()
    }

    /// Puts on record that the answer reached the caller.
    pub fn answered(&self, id: u64) -> Result<(), StoreError> {
        self.change(id, &Entry::Answered { id })
    }

    /// Puts the next phase of a removal on record, before the step is taken.
    pub fn enter(&self, id: u64, phase: Phase) -> Result<(), StoreError> {
        self.change(id, &Entry::Phase { id, phase })
    }

    /// Puts on record that the attachment is answered as gone, and holds nothing any more except its VF.
    pub fn released(&self, attachment: &Attachment) -> Result<(), StoreError> {
        let bare = Attachment {
            phase: Phase::Silenced,
            ipam: IpamRecord::None,
            addresses: Vec::new(),
            device_info: None,
            ..attachment.clone()
        };
        let payload = put(&bare)?;
        let mut state = self.lock();
        if state.live.get(&bare.id).is_some_and(|known| **known == bare) {
            return Ok(()); // it is tried again and again
        }
        self.append(&mut state, &payload, Purpose::Finish)?;
        state.silenced.insert(bare.id);
        state.live.insert(bare.id, Arc::new(bare));
        Ok(())
    }

    /// Puts on record that nothing is left of an attachment.
    pub fn removed(&self, id: u64) -> Result<(), StoreError> {
        let payload = serde_json::to_vec(&Entry::Removed { id })?;
        let mut state = self.lock();
        self.append(&mut state, &payload, Purpose::Finish)?;
        state.committed.remove(&id);
        state.silenced.remove(&id);
        // A later ADD may have the same key already, and keeps it.
        if let Some(gone) = state.live.remove(&id)
            && state.by_key.get(&gone.key) == Some(&id)
        {
            state.by_key.remove(&gone.key);
        }
        if state.journal.length() > COMPACT_FROM {
            self.compact(&mut state);
        }
        Ok(())
    }

    /// Rewrites the journal without attachments that are gone, if that halves it; true when it did.
    fn compact(&self, state: &mut StoreState) -> bool {
        let payloads: Vec<_> = state.live.values().filter_map(|a| put(a).ok()).collect();
        let needed: usize = payloads.iter().map(Vec::len).sum();
        // A rewrite would lose an attachment that cannot be written as JSON.
        if payloads.len() < state.live.len() || needed as u64 * 2 > state.journal.length() {
            return false;
        }
        // A full file system only means that the old journal stays in use.
        let done = state.journal.rewrite(payloads.iter().map(Vec::as_slice));
        done.inspect_err(|e| warn_that_store_cannot(&self.path, "be compacted; it goes on growing", e))
            .is_ok()
    }

    /// The attachment that the caller means, unless it is already silenced.
    pub fn find(&self, key: &Key) -> Option<Arc<Attachment>> {
        let state = self.lock();
        let id = state.by_key.get(key)?;
        state.live.get(id).filter(|a| a.phase != Phase::Silenced).cloned()
    }

    /// The attachment of this container's interface in this network, whatever its plugin: the network's type may
    /// have been changed since. Slow; for a DEL that finds nothing under its own key.
    pub fn find_of_any_type(&self, key: &Key) -> Option<Arc<Attachment>> {
        let state = self.lock();
        let same = |a: &&Arc<Attachment>| {
            let of = &a.key;
            of.container == key.container && of.network == key.network && of.ifname == key.ifname
        };
        state.live.values().filter(|a| a.phase != Phase::Silenced).find(same).cloned()
    }

    /// The attachment with this number.
    pub fn get(&self, id: u64) -> Option<Arc<Attachment>> {
        self.lock().live.get(&id).cloned()
    }

    /// The attachment that has this VF.
    pub fn with_vf(&self, address: PciAddr) -> Option<Arc<Attachment>> {
        self.lock().live.values().find(|attachment| attachment.has_vf(address)).cloned()
    }

    /// The attachments that were answered as gone and still hold links or addresses, oldest first.
    pub fn silenced(&self) -> Vec<Arc<Attachment>> {
        let state = self.lock();
        state.silenced.iter().filter_map(|id| state.live.get(id).cloned()).collect()
    }

    /// All attachments, oldest first.
    pub fn all(&self) -> Vec<Arc<Attachment>> {
        self.lock().live.values().cloned().collect()
    }

    /// Whether the record of an ADD with a configuration of this length can be taken now. Makes the room that
    /// such an ADD would make, by a reservation or a compaction: counting free blocks alone would promise too
    /// much.
    pub fn writable(&self, config: usize) -> bool {
        // As JSON within JSON the configuration can take twice its length.
        let size = RECORD + 2 * config as u64;
        let mut state = self.lock();
        let room = match state.journal.make_room(size) {
            Err(e) if is_full(&e) && self.compact(&mut state) => state.journal.make_room(size),
            done => done,
        };
        // A journal that somebody has removed takes records that no restart finds.
        room.is_ok() && self.path.exists()
    }
}

fn warn_that_store_cannot(store: &Path, what: &str, error: &io::Error) {
    tracing::warn!(store = %store.display(), %error, "the store cannot {what}");
}

fn put(attachment: &Attachment) -> Result<Vec<u8>, StoreError> {
    Ok(serde_json::to_vec(&Entry::Put(Box::new(attachment.clone())))?)
}

/// Names of parked links are made of ids. After a store was lost, new ids must not meet those of before.
fn now_based_id() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    // 44 bits, as many as the name of a parked link has room for.
    (since.as_secs() & 0xff_ffff) << 20
}

/// Opens the journal; where nothing of it can be read, sets it aside and makes a new one.
fn open_journal(path: &Path, boot_id: &str, opened: &mut Opened) -> io::Result<(Journal, Replay)> {
    let error = match Journal::open(path) {
        // A shortage (of memory, of descriptors) says nothing about the journal: another start may be able to
        // read it.
        Err(e) if shortage::remedy_of(&e).is_none() => e,
        done => return done,
    };
    let Some(aside) = move_aside(path, boot_id) else { return Err(error) };
    (opened.read_error, opened.set_aside) = (Some(error), Some(aside));
    Journal::open(path)
}

fn aside(path: &Path, boot_id: &str, which: &str) -> PathBuf {
    path.with_extension(format!("{DAMAGED}{}{which}", boot_id.get(..8).unwrap_or("unknown")))
}

fn copy_aside(path: &Path, boot_id: &str) -> io::Result<PathBuf> {
    let aside = aside(path, boot_id, "");
    std::fs::copy(path, &aside)?;
    Ok(aside)
}

/// Moves away what can't be read, whatever it is; `None` where there is nothing, or where that fails.
fn move_aside(path: &Path, boot_id: &str) -> Option<PathBuf> {
    let names = (1..).map(|n| aside(path, boot_id, &format!("-{n}")));
    let free = names.take(1000).find(|name| name.symlink_metadata().is_err())?;
    let moved = std::fs::rename(path, &free).inspect_err(|e| warn_that_store_cannot(path, "be set aside", e));
    moved.ok().map(|()| free)
}

#[cfg(test)]
mod format_tests;
#[cfg(test)]
mod tests;
