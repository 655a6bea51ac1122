//! Rewriting the journal without attachments that are gone.
//!
//! To learn what a rewrite would leave, all attachments are turned into JSON under the store's lock, which every call waits for. So a
//! long journal that is mostly alive is not looked at with each DEL: a look in vain says from which length on the next one is worth it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::frame::put;
use super::{Attachment, Store, StoreError, StoreState, warn_that_store_cannot};

/// The length in bytes above which the journal is rewritten, if more than half of it is about attachments that
/// are gone.
pub(super) const COMPACT_FROM: u64 = 4 << 20;

impl Store {
    /// Rewrites the journal without attachments that are gone, if it is long enough to be looked at.
    pub(super) fn compact_if_long(&self, state: &mut StoreState) {
        if state.journal.length() > state.compact_from {
            self.compact(state);
        }
    }

    /// Rewrites the journal without attachments that are gone, if that halves it; true when it did.
    pub(super) fn compact(&self, state: &mut StoreState) -> bool {
        let StoreState { journal, live, newer, verbatim, compact_from, .. } = state;
        // A rewrite would lose an attachment that cannot be written as JSON.
        let Ok(written) = written_anew(live, verbatim) else { return false };
        let payloads = || newer.payloads().chain(written.iter().map(Vec::as_slice));
        let needed: usize = payloads().map(<[u8]>::len).sum();
        let (twice, length) = (needed as u64 * 2, journal.length());
        if twice > length {
            // An eighth more at least: with little missing to half, the next few DELs would look again, each in vain.
            *compact_from = twice.max(length + length / 8).max(COMPACT_FROM);
            return false;
        }
        if let Err(error) = journal.rewrite(payloads()) {
            // A full file system only means that the old journal stays in use.
            warn_that_store_cannot(&self.path, "be compacted; it goes on growing", &error);
            return false;
        }
        *compact_from = COMPACT_FROM;
        true
    }
}

impl StoreState {
    /// Notes that an attachment is gone, so that a journal whose attachments go is looked at before it grows. `frames`: what stands in
    /// the journal for it word for word.
    pub(super) fn note_gone(&mut self, gone: &Attachment, frames: Option<&[Vec<u8>]>) {
        // It is looked at in any case.
        if self.compact_from <= COMPACT_FROM {
            return;
        }
        let needed: usize = match frames {
            Some(frames) => frames.iter().map(Vec::len).sum(),
            None => put(gone).map_or(0, |payload| payload.len()),
        };
        // Half of the journal has to be gone: a byte that is needed no more counts for two of its length.
        self.compact_from = self.compact_from.saturating_sub(needed as u64 * 2).max(COMPACT_FROM);
    }
}

/// The frames of all attachments as a rewrite of the journal has them.
pub(super) fn written_anew(
    live: &BTreeMap<u64, Arc<Attachment>>,
    verbatim: &BTreeMap<u64, Vec<Vec<u8>>>,
) -> Result<Vec<Vec<u8>>, StoreError> {
    let mut written = Vec::new();
    for (id, attachment) in live {
        match verbatim.get(id) {
            Some(frames) => written.extend(frames.iter().cloned()),
            None => written.push(put(attachment)?),
        }
    }
    Ok(written)
}
