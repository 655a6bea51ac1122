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

/// From now on the calling thread runs only where nobody else wants the processor (`SCHED_IDLE`).
pub fn give_way() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: `parameters` outlives the call; 0 is the calling thread.
    Errno::result(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) })?;
    Ok(())
}

/// Gives memory that was freed back to the system: after a burst the allocator keeps it, in pieces.
pub fn give_memory_back() {
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
