//! The versions of the CNI specification, and their order.

use std::fmt;

use crate::error::{CniError, Code};
use crate::wire::Command;

/// A version of the specification that Fairlead speaks, oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum CniVersion {
    V0_1_0,
    V0_2_0,
    V0_3_0,
    V0_3_1,
    V0_4_0,
    V1_0_0,
    V1_1_0,
}

impl CniVersion {
    /// All versions, the oldest first.
    pub const ALL: [CniVersion; 7] = [
        CniVersion::V0_1_0,
        CniVersion::V0_2_0,
        CniVersion::V0_3_0,
        CniVersion::V0_3_1,
        CniVersion::V0_4_0,
        CniVersion::V1_0_0,
        CniVersion::V1_1_0,
    ];

    /// The newest version.
    pub const LATEST: CniVersion = CniVersion::V1_1_0;

    /// The version as `cniVersion` writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            CniVersion::V0_1_0 => "0.1.0",
            CniVersion::V0_2_0 => "0.2.0",
            CniVersion::V0_3_0 => "0.3.0",
            CniVersion::V0_3_1 => "0.3.1",
            CniVersion::V0_4_0 => "0.4.0",
            CniVersion::V1_0_0 => "1.0.0",
            CniVersion::V1_1_0 => "1.1.0",
        }
    }

    /// Reads `cniVersion`. An empty text means 0.1.0, as for libcni. `None` for a version that Fairlead does not speak.
    pub fn parse(text: &str) -> Option<CniVersion> {
        if text.is_empty() {
            return Some(CniVersion::V0_1_0);
        }
        CniVersion::ALL.into_iter().find(|v| v.as_str() == text)
    }

    /// The version that brought a command.
    pub fn first_with(command: Command) -> CniVersion {
        match command {
            Command::Add | Command::Del => CniVersion::V0_1_0,
            Command::Check => CniVersion::V0_4_0,
            Command::Gc | Command::Status => CniVersion::V1_1_0,
        }
    }

    /// Whether this version has a command.
    pub fn has(self, command: Command) -> bool {
        self >= CniVersion::first_with(command)
    }

    /// Refuses a call by a command that the version of its configuration does not have.
    ///
    /// # Errors
    /// Code 1, with the version that has it.
    pub fn must_have(self, command: Command) -> Result<(), CniError> {
        if self.has(command) {
            return Ok(());
        }
        let (name, needed) = (command.name(), CniVersion::first_with(command));
        let msg =
            format!("{name} needs cniVersion {needed} or newer, and the configuration is of version {self}");
        Err(CniError::new(Code::IncompatibleVersion, msg)
            .with("correct cniVersion in the network's configuration"))
    }
}

impl fmt::Display for CniVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_the_commands_that_it_or_an_older_one_brought() {
        let of = |version: CniVersion| Command::ALL.map(|command| version.has(command));
        assert_eq!(of(CniVersion::V0_3_1), [true, true, false, false, false]);
        assert_eq!(of(CniVersion::V0_4_0), [true, true, true, false, false]);
        assert_eq!(of(CniVersion::V1_0_0), [true, true, true, false, false]);
        assert_eq!(of(CniVersion::V1_1_0), [true; 5]);
    }

    #[test]
    fn a_command_is_refused_with_the_version_that_has_it() {
        assert_eq!(CniVersion::V0_4_0.must_have(Command::Check), Ok(()));
        let refused = CniVersion::V1_0_0.must_have(Command::Gc).unwrap_err();
        assert_eq!(refused.code, Code::IncompatibleVersion);
        assert_eq!(
            refused.msg,
            "GC needs cniVersion 1.1.0 or newer, and the configuration is of version 1.0.0"
        );
    }
}
