//! The configuration on standard input: read within limits of size and time, and passed on unchanged.
//!
//! The daemon parses it. Only when there is no daemon is it checked here, so that nobody waits, and nothing is spooled, for a
//! text that no daemon will ever accept.

use std::borrow::Cow;
use std::fmt;

use fairlead_cni::wire::{Command, MAX_CONFIG};
use fairlead_cni::{CniError, CniVersion, names};
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::unistd::read;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::bare_process::STDIN;
use crate::deadline::Deadline;
use crate::errno_text::ErrnoText;

/// Why a configuration can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// There is nothing on standard input.
    #[error("there is no network configuration on standard input")]
    Empty,
    /// Standard input can't be read.
    #[error("the network configuration can't be read from standard input: {0}")]
    Unreadable(ErrnoText),
    /// Standard input was not closed in time.
    #[error(
        "standard input was not closed within the time limit, so the network configuration is incomplete after {0} bytes"
    )]
    Endless(usize),
    /// The text is larger than [`MAX_CONFIG`].
    #[error("the network configuration is larger than the limit of {MAX_CONFIG} bytes")]
    TooLarge,
    /// The text is not UTF-8.
    #[error("the network configuration is not UTF-8: the byte at {0} is invalid")]
    NotText(usize),
    /// The text is no JSON object, or its name or version is no string.
    #[error("the network configuration can't be decoded: {0}")]
    NotJson(serde_json::Error),
    /// The version is not supported here.
    #[error("the configuration's cniVersion {0:?} is not supported")]
    Version(String),
    /// The command does not exist in the configuration's version.
    #[error("{0}")]
    TooOld(CniError),
    /// The name is missing or outside the grammar.
    #[error("{0}")]
    Name(CniError),
}

/// Reads standard input to its end.
pub(crate) fn read_all(deadline: Deadline) -> Result<String, ConfigError> {
    let mut text = Vec::new();
    let mut chunk = [0; 2048];
    loop {
        let Some(state) = deadline.wait_for(STDIN, PollFlags::POLLIN) else {
            return Err(ConfigError::Endless(text.len()));
        };
        let got = match read(STDIN, &mut chunk) {
            Ok(n) => chunk.get(..n).unwrap_or_default(),
            Err(Errno::EINTR | Errno::EAGAIN) => continue,
            Err(errno) => return Err(ConfigError::Unreadable(errno.into())),
        };
        text.extend_from_slice(got);
        if text.len() > MAX_CONFIG {
            return Err(ConfigError::TooLarge);
        }
        // Nobody could write any more before this was read, and it did not fill the chunk: there is no more.
        let was_last = state.contains(PollFlags::POLLHUP) && got.len() < chunk.len();
        if got.is_empty() || was_last {
            break;
        }
    }
    if text.is_empty() {
        return Err(ConfigError::Empty);
    }
    String::from_utf8(text).map_err(|error| ConfigError::NotText(error.utf8_error().valid_up_to()))
}

/// The two members that every configuration has.
#[derive(Debug, Default)]
pub(crate) struct Outline<'a> {
    version: Option<Cow<'a, str>>,
    name: Option<Cow<'a, str>>,
}

impl<'a> Outline<'a> {
    /// Finds the two as Go's decoder would: keys match in any case, the last one wins, and `null` counts as absent.
    fn of(config: &'a str) -> Result<Outline<'a>, ConfigError> {
        serde_json::from_str(config).map_err(ConfigError::NotJson)
    }
}

impl<'de> Deserialize<'de> for Outline<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(OutlineVisitor)
    }
}

struct OutlineVisitor;

impl<'de> Visitor<'de> for OutlineVisitor {
    type Value = Outline<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Outline<'de>, A::Error> {
        let mut outline = Outline::default();
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            let place = if key.eq_ignore_ascii_case("cniVersion") {
                &mut outline.version
            } else if key.eq_ignore_ascii_case("name") {
                &mut outline.name
            } else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if let Some(value) = map.next_value::<Option<String>>()? {
                *place = Some(Cow::Owned(value));
            }
        }
        Ok(outline)
    }
}

/// The version in which to answer: the configuration's own where it can be found, else the newest.
pub(crate) fn version_of(config: &str) -> CniVersion {
    let outline = Outline::of(config).unwrap_or_default();
    outline.version.and_then(|version| CniVersion::parse(&version)).unwrap_or(CniVersion::LATEST)
}

/// Checks whether a daemon could ever accept this configuration for `command`.
pub(crate) fn check(config: &str, command: Command) -> Result<(), ConfigError> {
    let outline = Outline::of(config)?;
    let version = outline.version.unwrap_or_default();
    let found = CniVersion::parse(&version).ok_or_else(|| ConfigError::Version(version.into_owned()))?;
    found.must_have(command).map_err(ConfigError::TooOld)?;
    let name = outline.name.unwrap_or_default();
    names::network_name(&name).map_err(ConfigError::Name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found_as_go_would_find_it() {
        assert_eq!(version_of(r#"{"CNIVERSION":"0.3.1","x":[[{}]]}"#), CniVersion::V0_3_1);
        assert_eq!(version_of(r#"{"cniVersion":"0.3.1","cniversion":"0.4.0"}"#), CniVersion::V0_4_0);
        assert_eq!(version_of(r#"{"cniVersion":"0.3.1","cniVersion":null}"#), CniVersion::V0_3_1);
    }

    #[test]
    fn where_no_version_can_be_found_the_newest_is_taken() {
        for text in ["", "{", "[]", r#"{"cniVersion":7}"#, r#"{"cniVersion":"9.9.9"}"#, "{}"] {
            assert_eq!(version_of(text), CniVersion::LATEST, "{text}");
        }
    }

    #[test]
    fn deep_nesting_neither_overflows_nor_hides_the_version() {
        let deep = format!(r#"{{"x":{}{},"cniVersion":"0.4.0"}}"#, "[".repeat(200_000), "]".repeat(200_000));
        assert_eq!(version_of(&deep), CniVersion::V0_4_0);
    }
}
