//! Replays the entries of a journal, one after the other, to the state that they lead to. It does no I/O.
//!
//! Nothing is made up: an entry whose intent is missing leaves only what it says itself, and what a newer version wrote is kept
//! as it stands.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::frame::{FrameContent, decode};
use super::newer::NewerRecords;
use super::{Attachment, Entry, Lost, Phase};

/// In a damaged journal the missing record may be the commit. A restart never undoes what was committed, so what
/// may have been committed stays, and goes with its DEL, its GC or its namespace. Answers whether it was changed.
pub(super) fn assume_committed(attachment: &mut Arc<Attachment>) -> bool {
    let changes = attachment.phase == Phase::Adding;
    if changes {
        *attachment = Arc::new(Attachment { phase: Phase::Attached, ..Attachment::clone(attachment) });
    }
    changes
}

/// The attachment as it is after one more entry.
pub(super) fn apply_entry(mut attachment: Attachment, entry: &Entry) -> Attachment {
    match entry {
        Entry::Commit { addresses, answer, at, .. } => {
            attachment.phase = Phase::Attached;
            attachment.addresses.clone_from(addresses);
            attachment.answer = Some(answer.clone());
            attachment.committed = *at;
        }
        Entry::Answered { .. } => attachment.answered = true,
        Entry::Phase { phase, at, .. } => {
            attachment.phase = *phase;
            // Counted from the first attempt.
            attachment.removing_since = attachment.removing_since.or(*at);
        }
        Entry::Put(_) | Entry::Removed { .. } => {}
    }
    attachment
}

/// The state that the entries of a journal lead to.
#[derive(Debug, Default)]
pub(super) struct RecoveredState {
    pub(super) live: BTreeMap<u64, Arc<Attachment>>,
    pub(super) lost: BTreeMap<u64, Lost>,
    /// What a newer version wrote and this one cannot act on.
    pub(super) newer: NewerRecords,
    /// The frames of attachments that can be acted on, and of which a newer version wrote more than this one reads.
    pub(super) verbatim: BTreeMap<u64, Vec<Vec<u8>>>,
    /// The number of bytes in records that are no entries of any version.
    pub(super) unreadable: usize,
    /// The frames of each attachment since its intent.
    frames: BTreeMap<u64, Vec<Vec<u8>>>,
    inexact: BTreeSet<u64>,
}

/// The state that the payloads lead to. A payload that is no entry at all is skipped and counted.
pub(super) fn replay_entries(payloads: Vec<Vec<u8>>) -> RecoveredState {
    let mut out = RecoveredState::default();
    for payload in payloads {
        match decode(&payload) {
            FrameContent::Known { entry, exact } => out.apply(entry, exact, payload),
            FrameContent::Newer(entry) => {
                let before = entry.id.map(|id| out.forget(id)).unwrap_or_default();
                out.newer.keep(&entry, before, payload);
            }
            FrameContent::Damaged => out.unreadable += payload.len(),
        }
    }
    let inexact = std::mem::take(&mut out.inexact);
    let of_live = inexact.into_iter().filter_map(|id| Some((id, out.frames.remove(&id)?)));
    out.verbatim = of_live.collect();
    out.frames.clear();
    out
}

impl RecoveredState {
    /// Forgets an attachment; answers what was written of it.
    fn forget(&mut self, id: u64) -> Vec<Vec<u8>> {
        self.live.remove(&id);
        self.lost.remove(&id);
        self.inexact.remove(&id);
        self.frames.remove(&id).unwrap_or_default()
    }

    fn apply(&mut self, entry: Entry, exact: bool, payload: Vec<u8>) {
        match entry {
            // All that is known of it: what was written before counts no more.
            Entry::Put(attachment) => {
                let id = attachment.id;
                self.forget(id);
                self.newer.forget(id);
                self.live.insert(id, Arc::new(*attachment));
                self.note(id, exact, payload);
            }
            Entry::Removed { id } => {
                self.forget(id);
                self.newer.forget(id);
            }
            Entry::Commit { id, .. } | Entry::Answered { id } | Entry::Phase { id, .. } => {
                if self.newer.holds(id) {
                    self.newer.keep_known(Some(id), payload);
                } else if let Some(old) = self.live.get(&id) {
                    let changed = apply_entry(Attachment::clone(old), &entry);
                    self.live.insert(id, Arc::new(changed));
                    self.note(id, exact, payload);
                } else if let Entry::Commit { addresses, answer, .. } = entry {
                    self.lost.insert(id, Lost { addresses, answer });
                }
            }
        }
    }

    fn note(&mut self, id: u64, exact: bool, payload: Vec<u8>) {
        self.frames.entry(id).or_default().push(payload);
        if !exact {
            self.inexact.insert(id);
        }
    }
}
