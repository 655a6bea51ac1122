//! Which version wrote a record, and which versions can read it.
//!
//! Every record that outlives the process says both. A reader that is too old for a record keeps it as it is: it neither
//! acts on it nor takes it for damage. A field that a reader may pass over leaves the format's number as it is; whatever it
//! would get wrong without (a kind of link, a phase, a field that a removal needs, a field within a field) raises it.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The format of the records that this version writes, and the newest that it reads.
pub const FORMAT: u32 = if cfg!(feature = "next-format") { 2 } else { 1 };

/// The format of records that do not say which they are of: those of 0.1.0.
const FIRST_FORMAT: u32 = 1;

/// This version's name, as it stands in its records.
const VERSION: &str = if cfg!(feature = "next-format") {
    concat!(env!("CARGO_PKG_VERSION"), "+next-format")
} else {
    env!("CARGO_PKG_VERSION")
};

/// What a record says of its writer and its readers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordVersion {
    /// The version that wrote it; none in records of 0.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Cow<'static, str>>,
    /// The format that a reader must know; none in records of 0.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<u32>,
}

impl RecordVersion {
    /// Of a record that this version writes and that readers of format `needs` understand.
    pub const fn written_now(needs: u32) -> RecordVersion {
        RecordVersion { by: Some(Cow::Borrowed(VERSION)), needs: Some(needs) }
    }

    /// Whether this version can act on the record.
    pub fn is_readable(&self) -> bool {
        self.needs.unwrap_or(FIRST_FORMAT) <= FORMAT
    }
}

/// For a person: "written by a newer version, 0.9.0 (record format 2; this one reads 1)".
impl fmt::Display for RecordVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("written by a newer version")?;
        if let Some(by) = &self.by {
            write!(f, ", {by}")?;
        }
        match self.needs.filter(|_| !self.is_readable()) {
            Some(needs) => write!(f, " (record format {needs}; this one reads up to {FORMAT})"),
            None => f.write_str(" (with words that this one does not know)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_without_a_version_is_of_the_first_format_and_one_of_a_later_format_is_left_alone() {
        assert!(RecordVersion::default().is_readable());
        assert!(RecordVersion::written_now(FORMAT).is_readable());
        let later = RecordVersion { by: Some("9.1.0".into()), needs: Some(FORMAT + 1) };
        assert!(!later.is_readable());
        assert!(later.to_string().starts_with("written by a newer version, 9.1.0 (record format"));
    }
}
