//! This process and its peers: small questions to the kernel, for crates that forbid unsafe code.

use std::fs;
use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::Pid;

/// The id of this boot: a new one after every start of the machine.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// The user id of the process at the other end of a unix socket, as it was when it connected.
pub fn peer_uid(socket: &impl AsFd) -> io::Result<u32> {
    Ok(getsockopt(socket, sockopt::PeerCredentials)?.uid())
}

/// Sets the calling thread's nice value, −20 (first) to 19 (last).
pub fn set_thread_nice(nice: i32) -> io::Result<()> {
    let thread = libc::id_t::try_from(nix::unistd::gettid().as_raw()).unwrap_or(0);
    // SAFETY: setpriority takes three numbers; on Linux PRIO_PROCESS with a thread id means that thread.
    Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, thread, nice) })?;
    Ok(())
}

/// Ends this process as `kill -9` does: for failpoints.
pub fn kill_self() -> ! {
    let _ = kill(Pid::this(), Signal::SIGKILL);
    std::process::abort();
}
