//! Replays the entries of a journal, one after the other, to the state that they lead to. It does no I/O.
//!
//! Nothing is made up: an entry whose intent is missing leaves only what it says itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Attachment, Entry, Lost, Phase};

/// In a damaged journal the missing record may be the commit. A restart never undoes what was committed, so what
/// may have been committed stays, and goes with its DEL, its GC or its namespace.
pub(super) fn assume_committed(attachment: &mut Arc<Attachment>) {
    if attachment.phase == Phase::Adding {
        *attachment = Arc::new(Attachment { phase: Phase::Attached, ..Attachment::clone(attachment) });
    }
}

/// The attachment as it is after one more entry.
pub(super) fn apply_entry(mut attachment: Attachment, entry: &Entry) -> Attachment {
    match entry {
        Entry::Commit { addresses, answer, .. } => {
            attachment.phase = Phase::Attached;
            attachment.addresses.clone_from(addresses);
            attachment.answer = Some(answer.clone());
        }
        Entry::Answered { .. } => attachment.answered = true,
        Entry::Phase { phase, .. } => attachment.phase = *phase,
        Entry::Put(_) | Entry::Removed { .. } => {}
    }
    attachment
}

/// The state that the entries of a journal lead to.
#[derive(Debug, Default)]
pub(super) struct RecoveredState {
    pub(super) live: BTreeMap<u64, Arc<Attachment>>,
    pub(super) lost: BTreeMap<u64, Lost>,
    /// The number of bytes in records that are no entries of ours.
    pub(super) unreadable: usize,
}

/// The state that the payloads lead to. A payload that is no entry of ours is skipped and counted.
pub(super) fn replay_entries(payloads: &[Vec<u8>]) -> RecoveredState {
    let mut out = RecoveredState::default();
    for payload in payloads {
        match serde_json::from_slice::<Entry>(payload) {
            Ok(entry) => out.apply(entry),
            Err(_) => out.unreadable += payload.len(),
        }
    }
    out
}

impl RecoveredState {
    fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Put(attachment) => {
                self.live.insert(attachment.id, Arc::new(*attachment));
            }
            Entry::Removed { id } => {
                self.live.remove(&id);
                self.lost.remove(&id);
            }
            Entry::Commit { id, .. } | Entry::Answered { id } | Entry::Phase { id, .. } => {
                if let Some(old) = self.live.get(&id) {
                    let changed = apply_entry(Attachment::clone(old), &entry);
                    self.live.insert(id, Arc::new(changed));
                } else if let Entry::Commit { addresses, answer, .. } = entry {
                    self.lost.insert(id, Lost { addresses, answer });
                }
            }
        }
    }
}
