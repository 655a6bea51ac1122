//! How Fairlead's own executable is known, under whatever name it is installed.

use std::fs::File;
use std::io::Read;

use fairlead_cni::wire::OUTCOME_HEADER;

/// The ending of an original's name while ours stands in its place.
pub(crate) const ORIGINAL: &str = ".fairlead-original";

/// Our executable is smaller than this, so a larger file need not be read.
const LARGEST_OF_OURS: u64 = 1 << 20;

/// Whether a plugin's file is our own executable under whatever name.
pub(crate) fn is_file_of_ours(file: &File) -> bool {
    let small = file.metadata().is_ok_and(|m| m.len() <= LARGEST_OF_OURS);
    let mut bytes = Vec::new();
    let mut reader = file;
    small && reader.read_to_end(&mut bytes).is_ok() && is_ours(&bytes)
}

/// Whether this is Fairlead's executable, of any version: it contains the name of a header that only it knows.
/// The daemon contains that name too, so what only the daemon contains excludes it.
pub(crate) fn is_ours(program: &[u8]) -> bool {
    let says = |words: &[u8]| program.windows(words.len()).any(|w| w == words);
    says(OUTCOME_HEADER.as_bytes()) && !says(ORIGINAL.as_bytes())
}
