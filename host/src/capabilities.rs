//! Capabilities (capabilities(7)) of a process, as `/proc/<pid>/status` shows them. Only reads; never changes a set.

use std::fs;
use std::io;
use std::path::Path;

/// Where the kernel shows a process its own capabilities.
pub const OWN_STATUS: &str = "/proc/self/status";

/// The effective set: what a process may do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EffectiveCapabilities(u64);

impl EffectiveCapabilities {
    /// Reads the set from a `/proc/<pid>/status`.
    ///
    /// # Errors
    /// When the file can't be read, or has no line `CapEff`.
    pub fn read(status: &Path) -> io::Result<EffectiveCapabilities> {
        let text = fs::read_to_string(status)?;
        let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let set = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
        set.map(EffectiveCapabilities)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it has no line CapEff"))
    }

    /// Whether the capability of this number (`linux/capability.h`) is in the set.
    pub fn has(self, number: u32) -> bool {
        self.0.checked_shr(number).is_some_and(|rest| rest & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_is_read_from_its_line_and_a_file_without_one_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status");
        fs::write(&path, "Name:\tx\nCapEff:\t0000000000001001\n").unwrap();
        let set = EffectiveCapabilities::read(&path).unwrap();
        let numbers: Vec<u32> = (0..100).filter(|number| set.has(*number)).collect();
        assert_eq!(numbers, [0, 12]);
        fs::write(&path, "Name:\tx\n").unwrap();
        assert_eq!(EffectiveCapabilities::read(&path).unwrap_err().to_string(), "it has no line CapEff");
    }
}
