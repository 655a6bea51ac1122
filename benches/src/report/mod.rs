//! The report: one value with everything in it, written as a table for people, as JSON and as a page.
//!
//! All three tell the same numbers; none computes any of its own.

pub(crate) mod json;
pub(crate) mod page;
pub(crate) mod plot;
pub(crate) mod table;

use crate::cases::Case;
use crate::machine::Machine;
use crate::measured_subjects::MeasuredSubjects;
use crate::results::Results;
use crate::targets::Verdict;

/// Everything that a reader needs.
#[derive(Debug)]
pub(crate) struct Report {
    /// On what.
    pub(crate) machine: Machine,
    /// Who.
    pub(crate) subjects: MeasuredSubjects,
    /// In which cases.
    pub(crate) cases: Vec<&'static Case>,
    /// True when numbers were so small that they measure nothing.
    pub(crate) quick: bool,
    /// What was measured.
    pub(crate) results: Results,
    /// Against the targets; none in a smoke test.
    pub(crate) verdicts: Vec<Verdict>,
}
