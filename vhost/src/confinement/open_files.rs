//! Limits of the process (setrlimit(2)): descriptors for as many ports as there may be, and no core dumps.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that a port needs at most: two sockets, a kick and a call for each of 16 rings, the file of each of 32 memory regions,
/// 32 that have come with a message which is not yet whole, and 8 that wait to be closed, or for their guests to read what was answered.
pub(crate) const FILES_OF_A_PORT: usize = 2 + 2 * 16 + 32 + 32 + 8;
/// The same of 1,024 ports. One that is removed counts until all that its guests sent is closed.
pub(crate) const FILES_OF_ALL_PORTS: usize = 1_024 * FILES_OF_A_PORT;
/// Those that the process needs beside its ports: for its threads, its 16 control connections and what comes over them, captures, uplinks,
/// and the 253 that a guest may send at once, before they are looked at.
const OF_THE_PROCESS: u64 = 1_024;
/// Descriptors for 1,024 ports.
pub const OPEN_FILES: u64 = FILES_OF_ALL_PORTS as u64 + OF_THE_PROCESS;

/// A limit can't be set.
#[derive(Debug, thiserror::Error)]
pub enum OpenFilesError {
    /// Of descriptors.
    #[error("the limit of open files can't be raised to {wanted}")]
    OpenFiles {
        /// What it was to be.
        wanted: u64,
        /// What the kernel says.
        #[source]
        source: Errno,
    },
    /// Of core dumps, which would show guests' memory.
    #[error("core dumps can't be forbidden")]
    CoreDumps(#[source] Errno),
}

/// Raises the limit of open files to [`OPEN_FILES`], or as far as the process may; answers what it is.
pub(super) fn raise() -> Result<u64, OpenFilesError> {
    let now = getrlimit(Resource::Nofile);
    // Absent: there is no limit.
    let soft = now.current.unwrap_or(u64::MAX);
    if soft >= OPEN_FILES {
        return Ok(soft);
    }
    let hard = now.maximum.unwrap_or(u64::MAX);
    let with = |soft: u64, hard: u64| Rlimit { current: Some(soft), maximum: Some(hard) };
    if hard < OPEN_FILES && setrlimit(Resource::Nofile, with(OPEN_FILES, OPEN_FILES)).is_ok() {
        return Ok(OPEN_FILES);
    }
    let wanted = OPEN_FILES.min(hard);
    let limit = Rlimit { current: Some(wanted), maximum: now.maximum };
    setrlimit(Resource::Nofile, limit).map_err(|source| OpenFilesError::OpenFiles { wanted, source })?;
    Ok(wanted)
}

/// From now on the process leaves no core dump.
pub(super) fn forbid_core_dumps() -> Result<(), OpenFilesError> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).map_err(OpenFilesError::CoreDumps)
}
