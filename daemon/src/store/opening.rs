//! Opening the store: what an earlier daemon, an earlier boot, a newer version or a damaged disk has left in the journal.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fairlead_host::record_content::{self, ReadFile};
use fairlead_host::shortage;
use parking_lot::Mutex;

use super::compaction::{COMPACT_FROM, written_anew};
use super::frame::encode;
use super::journal::{Journal, Replay};
use super::newer::NewerRecords;
use super::noted_boot::{BootNote, NotedBoot};
use super::record::{Attachment, Entry, Phase};
use super::recovery::{RecoveredState, assume_committed, replay_entries};
use super::set_aside_journals::{Why, copy_aside, move_aside};
use super::shared_texts::SharedTexts;
use super::{JOURNAL, Store, StoreError, StoreState, seconds_since_epoch, warn_that_store_cannot};

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
    /// The place where records of an earlier boot were put that a newer version wrote.
    pub newer_aside: Option<PathBuf>,
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

impl Store {
    /// Opens the store in `dir`. Attachments of another boot are handed out. They stay in the journal until the first record of this boot
    /// is made, so that a start which fails before that loses none of them. A journal that can't be read at all is set aside, and a
    /// new one is started.
    pub fn open(dir: &Path, boot_id: &str) -> Result<(Store, Opened), StoreError> {
        Store::open_by(dir, boot_id, record_content::read)
    }

    /// The same; `read` reads the note of the boot.
    pub(super) fn open_by(dir: &Path, boot_id: &str, read: ReadFile) -> Result<(Store, Opened), StoreError> {
        let path = dir.join(JOURNAL);
        let failed = |source| StoreError::Open { path: path.clone(), source };
        let note = BootNote::new(dir, boot_id);
        // Before the journal is opened, which may move it away: a start that fails here must leave it as it is.
        let noted = note.read(read).map_err(failed)?;
        let mut opened = Opened::default();
        let (mut journal, replayed) = open_journal(&path, boot_id, &mut opened).map_err(failed)?;
        let mut recovered = replay_entries(replayed.payloads);
        opened.damaged = replayed.damaged + recovered.unreadable;
        if opened.damaged > 0 {
            keep_damaged(&path, boot_id, &mut recovered, &mut opened)?;
        }
        let mut unnoted_boot = None;
        if noted == NotedBoot::Another {
            hand_out(&path, boot_id, &mut recovered, &mut opened);
            unnoted_boot = Some(note);
        } else {
            if opened.damaged > 0 && opened.set_aside.is_some() {
                mend(&mut journal, &path, &recovered)?;
            }
            if noted == NotedBoot::Unknown {
                // Where this is refused, the next start decides by the same.
                let _ = note.write().inspect_err(|e| warn_that_store_cannot(&path, "note its boot", e));
            }
        }
        let state = Mutex::new(StoreState::of(journal, recovered, unnoted_boot));
        Ok((Store { state, path }, opened))
    }
}

impl StoreState {
    fn of(journal: Journal, recovered: RecoveredState, unnoted_boot: Option<BootNote>) -> StoreState {
        let RecoveredState { mut live, newer, verbatim, .. } = recovered;
        let next = live.keys().copied().chain(newer.ids()).max().map_or(1, |n| n.saturating_add(1));
        let by_key = live.values().map(|a| (a.key.clone(), a.id)).collect();
        let silenced = live.values().filter(|a| a.phase == Phase::Silenced).map(|a| a.id).collect();
        let with_uplink = live.values().filter(|a| a.uplink().is_some()).map(|a| a.id).collect();
        let mut texts = SharedTexts::default();
        live.values_mut().for_each(|attachment| texts.share(Arc::make_mut(attachment)));
        StoreState {
            journal,
            unnoted_boot,
            compact_from: COMPACT_FROM,
            live,
            texts,
            by_key,
            newer,
            verbatim,
            silenced,
            with_uplink,
            delivered: HashSet::new(),
            next: next.max(now_based_id()),
        }
    }
}

/// Copies a damaged journal to where a person finds it, and takes what may have been committed for committed.
fn keep_damaged(
    path: &Path,
    boot_id: &str,
    recovered: &mut RecoveredState,
    opened: &mut Opened,
) -> Result<(), StoreError> {
    opened.lost = std::mem::take(&mut recovered.lost).into_values().collect();
    // Copied before anything is mended: the damaged records stay for a person to read.
    opened.set_aside = copy_aside(path, Why::Damaged, boot_id);
    for attachment in recovered.live.values_mut() {
        if assume_committed(attachment)
            && let Some(frames) = recovered.verbatim.get_mut(&attachment.id)
        {
            frames.push(encode(&Entry::Phase { id: attachment.id, phase: Phase::Attached, at: None })?);
        }
    }
    Ok(())
}

/// Hands out what an earlier boot left: this one's store begins empty.
fn hand_out(path: &Path, boot_id: &str, recovered: &mut RecoveredState, opened: &mut Opened) {
    let live = std::mem::take(&mut recovered.live);
    opened.of_earlier_boot = live.into_values().map(Arc::unwrap_or_clone).collect();
    recovered.verbatim.clear();
    if recovered.newer.all().next().is_some() {
        // In this boot nobody may take them for attachments that live. Their words are kept in a file of their own.
        opened.newer_aside = copy_aside(path, Why::OfNewerVersion, boot_id);
        recovered.newer = NewerRecords::default();
    }
}

/// Writes a journal anew without its damage, of which there is a copy.
fn mend(journal: &mut Journal, path: &Path, recovered: &RecoveredState) -> Result<(), StoreError> {
    let written = written_anew(&recovered.live, &recovered.verbatim)?;
    // With no space left, the store goes on with the damaged journal.
    let _ = journal
        .rewrite(recovered.newer.payloads().chain(written.iter().map(Vec::as_slice)))
        .inspect_err(|e| warn_that_store_cannot(path, "be mended", e));
    Ok(())
}

/// Releases before 0.2 made the names of parked links of ids. After a store was lost, new ids must not meet those of before.
fn now_based_id() -> u64 {
    // 44 bits, as many as such a name had room for.
    (seconds_since_epoch() & 0xff_ffff) << 20
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
