//! The write-ahead store: which attachments exist, and how far each has come.
//!
//! Invariant: a step that changes the host is on record before it is taken, and memory holds what the journal
//! says. The store never waits for a disk: the journal lives where namespaces do, in the memory of this boot.
//!
//! It is a small journal and no embedded database, by measurement (one record, p50 / p99 µs, process-crash safe):
//! this journal 0.7 / 3, fjall 2 / 9 with 50 ms to open, SQLite 4.5 / 38, redb 68 / 99.

mod compaction;
mod frame;
mod journal;
mod link_record;
mod newer;
#[cfg(feature = "next-format")]
mod next_format;
mod noted_boot;
mod opening;
mod record;
mod recovery;
mod set_aside_journals;
mod shared_texts;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fairlead_sriov::PciAddr;
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

pub use journal::{Purpose, replay};
pub use link_record::{
    ConfigurationDataRecord, DriverState, LentAs, LinkBelowRecord, LinkRecord, MovedNetdev, UplinkRecord,
    VfRecord, VhostUserRecord,
};
pub use newer::NewerAttachment;
pub use opening::{Lost, Opened};
pub use record::{Attachment, Caller, Entry, IpamRecord, Key, Namespace, PassedOver, Phase};
pub use set_aside_journals::{damaged, of_newer_version};

use frame::{encode, put, put_as_written, put_over};
use journal::{Journal, is_full};
use newer::NewerRecords;
use noted_boot::BootNote;
use recovery::apply_entry;
use shared_texts::SharedTexts;

use crate::boot_time::BootTime;

/// The size in bytes of an ADD's record beside the text of its configuration.
const RECORD: u64 = 8 << 10;

/// The name of the journal's file in the run directory.
pub(crate) const JOURNAL: &str = "attachments.journal";

/// Why the store could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The journal could not be opened.
    #[error(
        "the store {path} cannot be opened: {source}; see that its file system is there and can be written, and that nothing but a regular file has its name"
    )]
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

/// That an attachment is whole.
#[derive(Debug)]
pub struct Commit {
    /// The attachment's number.
    pub id: u64,
    /// The addresses that it was given.
    pub addresses: Vec<ipnet::IpNet>,
    /// The result that its ADD answers.
    pub answer: String,
}

#[derive(Debug)]
struct StoreState {
    journal: Journal,
    /// The note of this boot, until its first record is made: so long the journal is left as another boot's.
    unnoted_boot: Option<BootNote>,
    /// The length of the journal in bytes above which it may be worth a rewrite.
    compact_from: u64,
    live: BTreeMap<u64, Arc<Attachment>>,
    texts: SharedTexts,
    by_key: HashMap<Key, u64>,
    /// What a newer version left, and this one cannot act on.
    newer: NewerRecords,
    /// The frames of attachments of which a newer version wrote more than this one reads: a rewrite must not lose it.
    verbatim: BTreeMap<u64, Vec<Vec<u8>>>,
    /// The attachments that were answered as gone and are not finished yet.
    silenced: BTreeSet<u64>,
    /// The attachments whose network has an uplink: every ADD of another kind asks for these few.
    with_uplink: BTreeSet<u64>,
    /// The attachments whose answer was delivered, until that is on record: deliveries are put on record in batches.
    delivered: HashSet<u64>,
    next: u64,
}

/// The store, which all threads share.
#[derive(Debug)]
pub struct Store {
    state: Mutex<StoreState>,
    path: PathBuf,
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, StoreState> {
        // A thread that panics while it holds the lock leaves whole records behind, because each change is one
        // append.
        self.state.lock()
    }

    /// Appends records, all or none; on a full file system compacts the journal first.
    fn append(&self, state: &mut StoreState, payloads: &[&[u8]], purpose: Purpose) -> Result<(), StoreError> {
        let done = match state.append(payloads, purpose) {
            Err(e) if is_full(&e) && self.compact(state) => state.append(payloads, purpose),
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
        self.begin_as(attachment, payload, true)
    }

    /// Puts an attachment on record that was lost from the journal, with all that its own record says of it.
    pub fn adopt(&self, attachment: Attachment, written: Value) -> Result<Arc<Attachment>, StoreError> {
        match serde_json::to_value(&attachment)? == written {
            true => self.begin(attachment),
            false => self.begin_as(attachment, put_as_written(written)?, false),
        }
    }

    /// `exact`: the payload says no more than this version reads of it.
    fn begin_as(
        &self,
        mut attachment: Attachment,
        payload: Vec<u8>,
        exact: bool,
    ) -> Result<Arc<Attachment>, StoreError> {
        // What comes back to be removed goes on record with the reserve, too.
        let purpose = if attachment.phase == Phase::Removing { Purpose::Finish } else { Purpose::Begin };
        let mut state = self.lock();
        // On record first: memory must not hold an attachment that a restart would not know.
        self.append(&mut state, &[&payload], purpose)?;
        state.texts.share(&mut attachment);
        let attachment = Arc::new(attachment);
        if !exact {
            state.verbatim.insert(attachment.id, vec![payload]);
        }
        // One that comes back from an earlier boot has its number of then.
        state.pass_over_number(attachment.id);
        state.by_key.insert(attachment.key.clone(), attachment.id);
        if attachment.uplink().is_some() {
            state.with_uplink.insert(attachment.id);
        }
        state.live.insert(attachment.id, Arc::clone(&attachment));
        Ok(attachment)
    }

    fn change(&self, id: u64, entry: &Entry) -> Result<(), StoreError> {
        self.change_if(id, entry, |_| true).map(drop)
    }

    /// Makes the change if `fits` says so of the attachment as it is by then; answers whether it has.
    fn change_if(
        &self,
        id: u64,
        entry: &Entry,
        fits: impl FnOnce(Option<&Attachment>) -> bool,
    ) -> Result<bool, StoreError> {
        let payload = encode(entry)?;
        let mut state = self.lock();
        if !fits(state.live.get(&id).map(Arc::as_ref)) {
            return Ok(false);
        }
        self.append(&mut state, &[&payload], Purpose::Finish)?;
        state.apply(id, entry, payload);
        Ok(true)
    }

    /// Puts the commits of an ADD on record, all or none: a pod has all of its networks, or none. From here on the ADD is never undone.
    pub fn commit(&self, commits: Vec<Commit>) -> Result<(), StoreError> {
        let at = BootTime::now();
        let as_entry = |Commit { id, addresses, answer }| (id, Entry::Commit { id, addresses, answer, at });
        let entries: Vec<(u64, Entry)> = commits.into_iter().map(as_entry).collect();
        let payloads = entries.iter().map(|(_, entry)| encode(entry)).collect::<Result<Vec<_>, _>>()?;
        let mut state = self.lock();
        let all: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
        self.append(&mut state, &all, Purpose::Finish)?;
        for ((id, entry), payload) in entries.iter().zip(payloads) {
            state.apply(*id, entry, payload);
        }
        Ok(())
    }

    /// Notes in memory that the answer of the attachment with this key reached the caller;
    /// [`Store::answered`] puts it on record.
    pub fn delivered(&self, key: &Key) {
        let mut state = self.lock();
        if let Some(id) = state.by_key.get(key).copied() {
            state.delivered.insert(id);
        }
    }

    /// Whether the answer of this attachment reached the caller.
    pub fn is_delivered(&self, attachment: &Attachment) -> bool {
        attachment.answered || self.lock().delivered.contains(&attachment.id)
    }

    /// Puts on record that the answer reached the caller.
    pub fn answered(&self, id: u64) -> Result<(), StoreError> {
        self.change(id, &Entry::Answered { id })?;
        self.lock().delivered.remove(&id);
        Ok(())
    }

    /// Puts the next phase of a removal on record, before the step is taken.
    pub fn enter(&self, id: u64, phase: Phase) -> Result<(), StoreError> {
        let at = (phase == Phase::Removing).then(seconds_since_epoch);
        self.change(id, &Entry::Phase { id, phase, at })
    }

    /// Puts on record that an attachment is about to be removed, if it is attached by then; answers whether that was so. For callers
    /// that have not locked the container: a DEL may have come first, and what it has silenced must not be found again.
    pub fn begin_removal_if_attached(&self, id: u64) -> Result<bool, StoreError> {
        let entry = Entry::Phase { id, phase: Phase::Removing, at: Some(seconds_since_epoch()) };
        self.change_if(id, &entry, |known| known.is_some_and(|known| known.phase == Phase::Attached))
    }

    /// Puts on record that the attachment is answered as gone, and holds nothing any more except its VF. `quarantined`: why nobody may
    /// have that yet, where its pod has left something on it.
    pub fn released(&self, attachment: &Attachment, quarantined: Option<&str>) -> Result<(), StoreError> {
        let mut state = self.lock();
        // The caller may have read the attachment before its removal was begun.
        let removing_since = state.live.get(&attachment.id).and_then(|known| known.removing_since);
        let bare = Attachment {
            removing_since: removing_since.or(attachment.removing_since),
            quarantined: quarantined.map(str::to_owned),
            phase: Phase::Silenced,
            ipam: IpamRecord::None,
            addresses: Vec::new(),
            device_info: None,
            ..attachment.clone()
        };
        if state.live.get(&bare.id).is_some_and(|known| **known == bare) {
            return Ok(()); // it is tried again and again
        }
        let id = bare.id;
        self.rewrite(&mut state, bare)?;
        state.silenced.insert(id);
        Ok(())
    }

    /// Puts on record that an attachment has no link any more, nor what came with that: `bare` is what is left of it.
    pub fn unlinked(&self, bare: Attachment) -> Result<(), StoreError> {
        let mut state = self.lock();
        let id = bare.id;
        self.rewrite(&mut state, bare)?;
        state.with_uplink.remove(&id);
        Ok(())
    }

    /// Puts an attachment on record in place of all that the journal says of it.
    fn rewrite(&self, state: &mut StoreState, attachment: Attachment) -> Result<(), StoreError> {
        let payload = match state.verbatim.get(&attachment.id) {
            Some(frames) => put_over(frames, &attachment)?,
            None => put(&attachment)?,
        };
        self.append(state, &[&payload], Purpose::Finish)?;
        if let Some(frames) = state.verbatim.get_mut(&attachment.id) {
            // It says all of it anew.
            *frames = vec![payload];
        }
        state.live.insert(attachment.id, Arc::new(attachment));
        Ok(())
    }

    /// Puts on record that nothing is left of an attachment.
    pub fn removed(&self, id: u64) -> Result<(), StoreError> {
        let payload = encode(&Entry::Removed { id })?;
        let mut state = self.lock();
        self.append(&mut state, &[&payload], Purpose::Finish)?;
        state.newer.forget(id);
        let frames = state.verbatim.remove(&id);
        state.delivered.remove(&id);
        state.silenced.remove(&id);
        state.with_uplink.remove(&id);
        if let Some(gone) = state.live.remove(&id) {
            // A later ADD may have the same key already, and keeps it.
            if state.by_key.get(&gone.key) == Some(&id) {
                state.by_key.remove(&gone.key);
            }
            state.note_gone(&gone, frames.as_deref());
            state.texts.gone(gone);
        }
        self.compact_if_long(&mut state);
        Ok(())
    }

    /// The attachment that the caller means, unless it is already silenced.
    pub fn find(&self, key: &Key) -> Option<Arc<Attachment>> {
        let state = self.lock();
        let id = state.by_key.get(key)?;
        state.live.get(id).filter(|a| a.phase != Phase::Silenced).cloned()
    }

    /// Whether this container's interface is attached, to whatever network.
    pub fn has_attached(&self, container: &str, ifname: &str) -> bool {
        let is_it = |a: &Arc<Attachment>| {
            a.phase == Phase::Attached && a.key.container == container && a.key.ifname == ifname
        };
        self.lock().live.values().any(is_it)
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

    /// Whether an attachment has this VF. What a newer version wrote has every VF that it names.
    pub fn has_vf(&self, address: PciAddr) -> bool {
        let state = self.lock();
        state.holder_of_vf(address).is_some() || state.newer.mentioning(&address.to_string()).is_some()
    }

    /// The attachment that has this VF, for a person: "net1 of container c1". `None` where [`Store::has_vf`] says no.
    pub fn vf_holder_in_words(&self, address: PciAddr) -> Option<String> {
        let state = self.lock();
        let ours = state.holder_of_vf(address).map(|holder| holder.key.interface_in_words());
        ours.or_else(|| Some(state.newer.mentioning(&address.to_string())?.label()))
    }

    /// Whether an attachment other than `except` has this port of a pool. What a newer version wrote has every port that it names.
    pub fn has_port(&self, port: &str, except: Option<u64>) -> bool {
        let state = self.lock();
        state.holder_of_port(port, except).is_some() || state.newer.mentioning(port).is_some()
    }

    /// The attachment that has this port of a pool, for a person: "net1 of container c1". `None` where nobody has it.
    pub fn port_holder_in_words(&self, port: &str) -> Option<String> {
        let state = self.lock();
        let ours = state.holder_of_port(port, None).map(|holder| holder.key.interface_in_words());
        ours.or_else(|| Some(state.newer.mentioning(port)?.label()))
    }

    /// The attachments that were answered as gone and still hold links or addresses, oldest first.
    pub fn silenced(&self) -> Vec<Arc<Attachment>> {
        let state = self.lock();
        state.silenced.iter().filter_map(|id| state.live.get(id).cloned()).collect()
    }

    /// The attachments that need the uplink of their network, which are not being removed, oldest first.
    pub fn with_uplink(&self) -> Vec<Arc<Attachment>> {
        let state = self.lock();
        let needed = state.with_uplink.iter().filter_map(|id| state.live.get(id));
        needed.filter(|attachment| !attachment.is_ending()).cloned().collect()
    }

    /// All attachments, oldest first.
    pub fn all(&self) -> Vec<Arc<Attachment>> {
        self.lock().live.values().cloned().collect()
    }

    /// What `of` makes of the attachments, oldest first: no list of all is made for it.
    pub fn filter_map<T>(&self, of: impl FnMut(&Attachment) -> Option<T>) -> Vec<T> {
        let state = self.lock();
        state.live.values().map(Arc::as_ref).filter_map(of).collect()
    }

    /// The attachments that were begun after this one, oldest first.
    pub fn all_after(&self, id: u64) -> Vec<Arc<Attachment>> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.lock()
            .live
            .range((Excluded(id), Unbounded))
            .map(|(_, attachment)| Arc::clone(attachment))
            .collect()
    }

    /// Whether the record of an ADD with a configuration of this length can be taken now. Makes the room that
    /// such an ADD would make, by a reservation or a compaction: counting free blocks alone would promise too
    /// much.
    pub fn writable(&self, config: usize) -> bool {
        // As JSON within JSON the configuration can take twice its length.
        let size = RECORD + 2 * config as u64;
        let mut state = self.lock();
        let room = match state.make_room(size) {
            Err(e) if is_full(&e) && self.compact(&mut state) => state.make_room(size),
            done => done,
        };
        // A journal that somebody has removed takes records that no restart finds.
        room.is_ok() && self.path.exists()
    }
}

impl StoreState {
    /// Appends records to the journal, which is this boot's from then on.
    fn append(&mut self, payloads: &[&[u8]], purpose: Purpose) -> io::Result<()> {
        self.note_boot()?;
        self.journal.append(payloads, purpose)
    }

    /// Makes sure that a record of so many bytes can be appended.
    fn make_room(&mut self, payload: u64) -> io::Result<()> {
        self.note_boot()?;
        self.journal.make_room(payload)
    }

    /// Takes the journal over from another boot, where it is not this one's yet.
    fn note_boot(&mut self) -> io::Result<()> {
        let Some(note) = &self.unnoted_boot else { return Ok(()) };
        // Emptied before the boot is noted: else a kill in between would make dead attachments this boot's.
        self.journal.rewrite(std::iter::empty())?;
        note.write()?;
        self.unnoted_boot = None;
        Ok(())
    }

    /// Gives this number to no new attachment: it is on record already.
    fn pass_over_number(&mut self, id: u64) {
        self.next = self.next.max(id.saturating_add(1));
    }

    /// Does to the attachment what its entry says, which is on record as `payload`.
    fn apply(&mut self, id: u64, entry: &Entry, payload: Vec<u8>) {
        self.note_verbatim(id, payload);
        let Some(old) = self.live.get(&id) else { return };
        let changed = Arc::new(apply_entry(Attachment::clone(old), entry));
        if changed.phase == Phase::Silenced {
            self.silenced.insert(id);
        }
        self.live.insert(id, changed);
    }

    /// The attachment of this version that has a VF.
    fn holder_of_vf(&self, address: PciAddr) -> Option<&Attachment> {
        self.live.values().find(|attachment| attachment.has_pci_device(address)).map(Arc::as_ref)
    }

    /// The attachment of this version, other than `except`, that has a port of a pool.
    fn holder_of_port(&self, port: &str, except: Option<u64>) -> Option<&Attachment> {
        let has = |a: &&Arc<Attachment>| Some(a.id) != except && a.pool_port() == Some(port);
        self.live.values().find(has).map(Arc::as_ref)
    }

    fn note_verbatim(&mut self, id: u64, payload: Vec<u8>) {
        if let Some(frames) = self.verbatim.get_mut(&id) {
            frames.push(payload);
        }
    }
}

fn warn_that_store_cannot(store: &Path, what: &str, error: &io::Error) {
    tracing::warn!(store = %store.display(), %error, "the store cannot {what}");
}

/// Now, in whole seconds since the epoch.
fn seconds_since_epoch() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod format_tests;
#[cfg(test)]
mod newer_tests;
#[cfg(test)]
mod tests;
