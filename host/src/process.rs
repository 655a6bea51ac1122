//! This process, others by their id, and its boot: small questions to the kernel, for crates that forbid unsafe code. How its threads are
//! scheduled is the matter of [`scheduling`](crate::scheduling).

use std::fs;
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::program_pages;

/// The limit of open files that this process was started with, once it has raised it: programs that it executes get that back.
static LIMIT_AT_START: OnceLock<libc::rlimit> = OnceLock::new();

/// The id of this boot: a new one after every start of the machine.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// When this boot began, by the clock as it goes now.
pub fn booted_at() -> io::Result<SystemTime> {
    let stat = fs::read_to_string("/proc/stat")?;
    let seconds = stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok());
    let seconds = seconds.ok_or_else(|| io::Error::other("/proc/stat tells no btime"))?;
    Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

/// How many files this process may have open at once (the soft limit).
pub fn open_files() -> io::Result<u64> {
    Ok(getrlimit(Resource::RLIMIT_NOFILE)?.0)
}

/// From now on this process may have as many files open as its hard limit allows. Programs that it executes still get
/// the soft limit of its start: some close whatever could be open, others cannot wait for a file above 1023.
pub fn raise_open_files() -> io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    // Only once: a second call would take the raised limit for that of the start.
    LIMIT_AT_START.get_or_init(|| libc::rlimit { rlim_cur: soft, rlim_max: hard });
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

/// The limit of open files for programs that this process executes, where it is not its own.
pub(crate) fn open_files_of_programs() -> Option<libc::rlimit> {
    LIMIT_AT_START.get().copied()
}

/// Gives back to the system all unchanged pages of the program's file that are mapped, and what was freed, which the allocator keeps in
/// pieces after a burst. What is used next costs a page fault for each 64 KiB. Where it can't be done, the memory stays as it is.
pub fn give_memory_back() {
    match program_pages::give_back() {
        Ok(kib) => tracing::debug!(kib, "pages of the program are given back"),
        Err(error) => tracing::debug!(%error, "pages of the program that nothing needs stay resident"),
    }
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a number and changes nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Ends this process as `kill -9` does: for failpoints.
pub fn kill_self() -> ! {
    let _ = kill(Pid::this(), Signal::SIGKILL);
    std::process::abort();
}
