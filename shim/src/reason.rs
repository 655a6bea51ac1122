//! The kernel's errors in words.
//!
//! A runtime takes a DEL error that contains the C library's words for `ENOENT` for a success and forgets the
//! container. So those words never leave this program.

use std::fmt;
use std::io;

use nix::errno::Errno;

/// Why a system call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reason(pub(crate) Errno);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Errno::ENOENT => f.write_str("it does not exist"),
            other => f.write_str(other.desc()),
        }
    }
}

impl std::error::Error for Reason {}

impl From<Errno> for Reason {
    fn from(errno: Errno) -> Reason {
        Reason(errno)
    }
}

impl From<io::Error> for Reason {
    fn from(error: io::Error) -> Reason {
        Reason(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_reason_holds_the_words_that_a_runtime_takes_for_success() {
        for number in 1..200 {
            let text = Reason(Errno::from_raw(number)).to_string().to_lowercase();
            assert!(
                !text.contains("not found") && !text.contains("no such file or directory"),
                "{number}: {text}"
            );
        }
    }
}
