//! The kernel's errors in words that a runtime cannot misunderstand.
//!
//! A runtime takes a DEL error that contains the C library's words for `ENOENT` for a success and forgets the
//! container. So those words never leave this program.

use std::fmt;
use std::io;

use nix::errno::Errno;

/// Why a system call failed, as text for an error message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ErrnoText(pub(crate) Errno);

impl fmt::Display for ErrnoText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // Not the C library's words: see above.
            Errno::ENOENT => f.write_str("it does not exist"),
            other => f.write_str(other.desc()),
        }
    }
}

impl std::error::Error for ErrnoText {}

impl From<Errno> for ErrnoText {
    fn from(errno: Errno) -> ErrnoText {
        ErrnoText(errno)
    }
}

impl From<io::Error> for ErrnoText {
    fn from(error: io::Error) -> ErrnoText {
        ErrnoText(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_holds_the_words_that_a_runtime_takes_for_success() {
        for number in 1..200 {
            let text = ErrnoText(Errno::from_raw(number)).to_string().to_lowercase();
            assert!(
                !text.contains("not found") && !text.contains("no such file or directory"),
                "{number}: {text}"
            );
        }
    }
}
