//! How much is done in one case: calls, rounds, how many at once, for how long.
//!
//! Only numbers; what they mean to a case is the case's own.

use std::time::Duration;

/// The size of one case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub(crate) struct CaseSize {
    /// Calls (one at a time) or rounds (many at once) that are made first and not counted.
    pub(crate) warmup: usize,
    /// The number of calls of each subject that are counted.
    pub(crate) calls: usize,
    /// The number of rounds that are counted.
    pub(crate) rounds: usize,
    /// Calls at once; in `add-under-del` the number of DELs.
    pub(crate) at_once: usize,
    /// The time for which an idle daemon is watched.
    pub(crate) time: Duration,
}

impl CaseSize {
    /// The text with these numbers in place of `{calls}`, `{rounds}` and `{at_once}`.
    pub(crate) fn spelled(&self, text: &str) -> String {
        [("{calls}", self.calls), ("{rounds}", self.rounds), ("{at_once}", self.at_once)]
            .iter()
            .fold(text.to_owned(), |text, (name, number)| text.replace(name, &number.to_string()))
    }
}
