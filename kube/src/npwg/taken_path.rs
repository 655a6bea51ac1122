//! By which path a pod has an interface whose network names several (`paths` of the type `fairlead`), as network-status and an Event
//! tell it.
//!
//! Its length is bounded, because the API takes no more than 256 KiB of annotations for a pod, and a pod asks for up to 64 networks.
//! The whole reasons are in the daemon's log and in `fairleadd attachments`.

use std::fmt;

use serde::Serialize;

/// So many of the earlier paths are told: all that a tenant's network can have, which has at most 16 paths.
const MOST_PASSED_OVER: usize = 15;
/// The longest reason for one path, in bytes.
const LONGEST_REASON: usize = 256;
/// The reasons for all paths of an interface together, in bytes.
const ALL_REASONS: usize = 768;
/// Ends a reason that was cut.
const CUT: &str = "…";

/// The path that was taken, and the earlier ones, which were not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TakenPath {
    #[serde(rename = "path")]
    kind: String,
    #[serde(rename = "passedOver", skip_serializing_if = "Vec::is_empty")]
    passed_over: Vec<PassedOverPath>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct PassedOverPath {
    #[serde(rename = "type")]
    kind: String,
    why: String,
}

impl TakenPath {
    /// A path of the type `kind`. `passed_over` has the type of each earlier path, and why it was not taken, in their order. What is
    /// too long to be told is cut.
    pub fn new(kind: &str, passed_over: &[(&str, &str)]) -> TakenPath {
        let told = passed_over.iter().take(MOST_PASSED_OVER);
        let longest = LONGEST_REASON.min(ALL_REASONS / told.len().max(1));
        let of_path =
            |(kind, why): &(&str, &str)| PassedOverPath { kind: (*kind).to_owned(), why: cut(why, longest) };
        TakenPath { kind: kind.to_owned(), passed_over: told.map(of_path).collect() }
    }
}

impl fmt::Display for TakenPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "path {} is taken", self.kind)?;
        let mut earlier = self.passed_over.iter();
        earlier.try_for_each(|path| write!(f, "; path {} was passed over: {}", path.kind, path.why))
    }
}

/// The reason in at most so many bytes.
fn cut(reason: &str, longest: usize) -> String {
    if reason.len() <= longest {
        return reason.to_owned();
    }
    let end = reason.floor_char_boundary(longest.saturating_sub(CUT.len()));
    format!("{}{CUT}", reason.get(..end).unwrap_or_default())
}
