//! What the caller reads: the one place that writes to standard output.

use std::io::{self, Write};

use fairlead_cni::{CniError, CniVersion};
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::unistd::write;

use crate::FAILURE;
use crate::bare_process::STDOUT;
use crate::deadline::Deadline;

/// Prints an error object that is already in JSON.
pub(crate) fn print_failure(body: &[u8], deadline: Deadline) -> i32 {
    // Nobody is left to tell when this fails, and the exit status says the same.
    print(body, deadline);
    FAILURE
}

/// Prints an error in a version of the specification.
pub(crate) fn print_error(error: &CniError, version: CniVersion, deadline: Deadline) -> i32 {
    print_failure(error.to_json(version).as_bytes(), deadline)
}

/// The answer to VERSION (SPEC.md, "VERSION").
pub(crate) fn versions_json(version: CniVersion) -> String {
    let all: Vec<String> = CniVersion::ALL.iter().map(|known| format!("\"{known}\"")).collect();
    format!("{{\"cniVersion\":\"{version}\",\"supportedVersions\":[{}]}}\n", all.join(","))
}

/// Says on standard error what this program is, for a person who ran it by hand.
pub(crate) fn print_usage() {
    let _ = writeln!(
        io::stderr(),
        "fairlead {}: a CNI plugin; container runtimes call it, and it passes their calls to the daemon fairleadd",
        env!("CARGO_PKG_VERSION")
    );
}

/// Prints the result of a call that succeeded; an empty one prints nothing. Returns whether the reader took all of it.
pub(crate) fn print(mut bytes: &[u8], deadline: Deadline) -> bool {
    while !bytes.is_empty() {
        match write(STDOUT, bytes) {
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(Errno::EINTR) => {}
            // The runtime may have made its pipe non-blocking.
            Err(Errno::EAGAIN) if deadline.wait(STDOUT, PollFlags::POLLOUT) => {}
            Err(_) => return false,
        }
    }
    true
}
