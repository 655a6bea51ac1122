//! The report: one value with everything in it, written as a table for people, as JSON, and as a page.
//!
//! All three show the same numbers; none computes any of its own.

pub(crate) mod colours;
pub(crate) mod json;
pub(crate) mod page;
pub(crate) mod plot;
pub(crate) mod table;

use crate::cases::Case;
use crate::comparison::Comparison;
use crate::machine::Machine;
use crate::results::Results;
use crate::subject_descriptions::MeasuredSubjects;
use crate::targets::Verdict;

/// Everything that a reader of the report needs.
#[derive(Debug)]
pub(crate) struct Report {
    /// The machine that was measured on.
    pub(crate) machine: Machine,
    /// Who was measured.
    pub(crate) subjects: MeasuredSubjects,
    /// The cases that were run.
    pub(crate) cases: Vec<&'static Case>,
    /// True when the numbers of calls were so small that nothing is really measured.
    pub(crate) quick: bool,
    /// What was measured.
    pub(crate) results: Results,
    /// How ours stands against the other plugins.
    pub(crate) comparison: Comparison,
    /// The comparison with the targets; empty in a smoke test.
    pub(crate) verdicts: Vec<Verdict>,
}
