//! The configuration on standard input: read within limits of size and time, passed on untouched.
//!
//! The daemon is the one that understands it. Only when there is no daemon is it looked into here, so that
//! nobody waits, and nothing is spooled, for a text that no daemon will ever accept.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::os::fd::AsFd;

use fairlead_cni::wire::{Command, MAX_CONFIG};
use fairlead_cni::{CniError, CniVersion, names};
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::unistd::read;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::deadline::Deadline;
use crate::reason::Reason;

/// Why a configuration can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadConfig {
    /// Nothing on standard input.
    #[error("there is no network configuration on standard input")]
    Empty,
    /// Standard input failed.
    #[error("the network configuration can't be read from standard input: {0}")]
    Unreadable(Reason),
    /// Standard input was not closed in time.
    #[error(
        "standard input was not closed within the time limit, so the network configuration is incomplete after {0} bytes"
    )]
    Endless(usize),
    /// More than [`MAX_CONFIG`].
    #[error("the network configuration is larger than the limit of {MAX_CONFIG} bytes")]
    TooLarge,
    /// Not UTF-8.
    #[error("the network configuration is not UTF-8: the byte at {0} is invalid")]
    NotText(usize),
    /// Not a JSON object with texts where texts belong.
    #[error("the network configuration can't be decoded: {0}")]
    NotJson(serde_json::Error),
    /// A version that is not spoken here.
    #[error("the configuration's cniVersion {0:?} is not supported")]
    Version(String),
    /// A command that this version does not have.
    #[error("{} needs cniVersion {needed}, and the configuration is of version {found}", .command.name())]
    TooOld {
        /// The command.
        command: Command,
        /// The first version that has it.
        needed: CniVersion,
        /// The configuration's.
        found: CniVersion,
    },
    /// No name, or one outside the grammar.
    #[error("{0}")]
    Name(CniError),
}

/// Reads all of standard input.
pub(crate) fn read_all(deadline: Deadline) -> Result<String, BadConfig> {
    let stdin = io::stdin();
    let mut text = Vec::new();
    let mut chunk = [0; 2048];
    loop {
        if !deadline.wait(stdin.as_fd(), PollFlags::POLLIN) {
            return Err(BadConfig::Endless(text.len()));
        }
        match read(stdin.as_fd(), &mut chunk) {
            Ok(0) => break,
            Ok(n) => text.extend_from_slice(chunk.get(..n).unwrap_or_default()),
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(errno) => return Err(BadConfig::Unreadable(errno.into())),
        }
        if text.len() > MAX_CONFIG {
            return Err(BadConfig::TooLarge);
        }
    }
    if text.is_empty() {
        return Err(BadConfig::Empty);
    }
    String::from_utf8(text).map_err(|error| BadConfig::NotText(error.utf8_error().valid_up_to()))
}

/// The two members that every configuration has.
#[derive(Debug, Default)]
pub(crate) struct Outline<'a> {
    version: Option<Cow<'a, str>>,
    name: Option<Cow<'a, str>>,
}

impl<'a> Outline<'a> {
    /// Finds them, as Go's decoder would: keys in any case, the last one wins, `null` is as if absent.
    fn of(config: &'a str) -> Result<Outline<'a>, BadConfig> {
        serde_json::from_str(config).map_err(BadConfig::NotJson)
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

/// The version in which to answer: the configuration's own where one can be found, else the newest.
pub(crate) fn version_of(config: &str) -> CniVersion {
    let outline = Outline::of(config).unwrap_or_default();
    outline.version.and_then(|version| CniVersion::parse(&version)).unwrap_or(CniVersion::LATEST)
}

/// Says whether a daemon could ever accept this configuration for `command`.
pub(crate) fn check(config: &str, command: Command) -> Result<(), BadConfig> {
    let outline = Outline::of(config)?;
    let version = outline.version.unwrap_or_default();
    let found = CniVersion::parse(&version).ok_or_else(|| BadConfig::Version(version.into_owned()))?;
    let needed = match command {
        Command::Check => CniVersion::V0_4_0,
        Command::Gc | Command::Status => CniVersion::V1_1_0,
        Command::Add | Command::Del => CniVersion::V0_1_0,
    };
    if found < needed {
        return Err(BadConfig::TooOld { command, needed, found });
    }
    let name = outline.name.unwrap_or_default();
    names::network_name(&name).map_err(BadConfig::Name)
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
