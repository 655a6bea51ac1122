//! Opening the store: what an earlier daemon, an earlier boot, a newer version or a damaged disk has left in the journal.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fairlead_host::shortage;
use parking_lot::Mutex;

use super::frame::encode;
use super::journal::{Journal, Replay};
use super::newer::NewerRecords;
use super::record::{Attachment, Entry, Phase};
use super::recovery::{RecoveredState, assume_committed, replay_entries};
use super::set_aside::{Why, copy_aside, move_aside};
use super::shared_texts::SharedTexts;
use super::{
    JOURNAL, Store, StoreError, StoreState, seconds_since_epoch, warn_that_store_cannot, written_anew,
};

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
    /// Opens the store in `dir`. A journal of another boot is read, handed out and started again empty. One that
    /// can't be read at all is set aside, and a new one is started.
    pub fn open(dir: &Path, boot_id: &str) -> Result<(Store, Opened), StoreError> {
        let path = dir.join(JOURNAL);
        let failed = |source| StoreError::Open { path: path.clone(), source };
        let boot_file = dir.join("boot-id");
        let mut opened = Opened::default();
        let (mut journal, replayed) = open_journal(&path, boot_id, &mut opened).map_err(failed)?;
        let RecoveredState { mut live, lost, mut newer, mut verbatim, unreadable, .. } =
            replay_entries(replayed.payloads);
        opened.damaged = replayed.damaged + unreadable;
        let same_boot = std::fs::read_to_string(&boot_file).is_ok_and(|b| b.trim() == boot_id);
        if opened.damaged > 0 {
            opened.lost = lost.into_values().collect();
            // Copied before anything is mended: the damaged records stay for a person to read.
            opened.set_aside = copy_aside(&path, Why::Damaged, boot_id);
            for attachment in live.values_mut() {
                if assume_committed(attachment)
                    && let Some(frames) = verbatim.get_mut(&attachment.id)
                {
                    frames.push(encode(&Entry::Phase {
                        id: attachment.id,
                        phase: Phase::Attached,
                        at: None,
                    })?);
                }
            }
        }
        if !same_boot {
            opened.of_earlier_boot = live.values().map(|a| Attachment::clone(a)).collect();
            live.clear();
            verbatim.clear();
            if newer.all().next().is_some() {
                // In this boot nobody may take them for attachments that live. Their words are kept in a file of their own.
                opened.newer_aside = copy_aside(&path, Why::OfNewerVersion, boot_id);
                newer = NewerRecords::default();
            }
            // Emptied before the boot is noted: else a kill in between would make dead attachments this boot's.
            journal.rewrite(std::iter::empty()).map_err(failed)?;
            std::fs::write(&boot_file, boot_id).map_err(failed)?;
        } else if opened.damaged > 0 && opened.set_aside.is_some() {
            let written = written_anew(&live, &verbatim)?;
            // With no space left, the store goes on with the damaged journal.
            let _ = journal
                .rewrite(newer.payloads().chain(written.iter().map(Vec::as_slice)))
                .inspect_err(|e| warn_that_store_cannot(&path, "be mended", e));
        }
        let next = live.keys().copied().chain(newer.ids()).max().map_or(1, |n| n.saturating_add(1));
        let by_key = live.values().map(|a| (a.key.clone(), a.id)).collect();
        let silenced = live.values().filter(|a| a.phase == Phase::Silenced).map(|a| a.id).collect();
        let with_uplink = live.values().filter(|a| a.uplink().is_some()).map(|a| a.id).collect();
        let mut texts = SharedTexts::default();
        live.values_mut().for_each(|attachment| texts.share(Arc::make_mut(attachment)));
        let state = Mutex::new(StoreState {
            journal,
            live,
            texts,
            by_key,
            newer,
            verbatim,
            silenced,
            with_uplink,
            committed: HashMap::new(),
            delivered: HashSet::new(),
            next: next.max(now_based_id()),
        });
        Ok((Store { state, path }, opened))
    }
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
