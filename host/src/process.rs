//! This process and its peers: small questions to the kernel, for crates that forbid unsafe code.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::Pid;

use crate::topology::CpuList;

/// What this process was started with, once it has taken more: programs that it executes get that back.
static FEWER_OPEN_FILES: OnceLock<libc::rlimit> = OnceLock::new();

/// The nice value that this process was started with, once a thread of it has taken another.
static USUAL_NICE: OnceLock<libc::c_int> = OnceLock::new();

/// How far ahead a thread goes that goes first: a tenth of the processor is left to the others, not nothing.
const AHEAD: libc::c_int = 10;

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

/// From now on the calling thread goes before threads of the usual priority, as do those that it starts; programs that this
/// process executes do not. Needs CAP_SYS_NICE.
pub fn go_first() -> io::Result<()> {
    // SAFETY: takes numbers only. The usual nice value is never -1 where this fails: it does not for the calling thread.
    let usual = *USUAL_NICE.get_or_init(|| unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) });
    // SAFETY: takes numbers only; 0 is the calling thread.
    Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, usual - AHEAD) })?;
    Ok(())
}

/// The nice value for programs that this process executes, where threads of its own have another.
pub(crate) fn nice_of_programs() -> Option<libc::c_int> {
    USUAL_NICE.get().copied()
}

/// Takes the calling thread, and every one that it starts from now on, off these processors; answers on which it runs from
/// then on. `None`: it was on none of them, or it may run on no other, and nothing was changed. Programs that are executed
/// stay off them too.
pub fn leave_cpus(unwanted: &CpuList) -> io::Result<Option<CpuList>> {
    let this_thread = Pid::from_raw(0);
    let allowed = sched_getaffinity(this_thread)?;
    let is_allowed = |cpu: &usize| allowed.is_set(*cpu).unwrap_or(false);
    let now: CpuList =
        (0..CpuSet::count()).filter(is_allowed).filter_map(|cpu| u32::try_from(cpu).ok()).collect();
    let left = now.without(unwanted);
    if left.is_empty() || left == now {
        return Ok(None);
    }
    let mut mask = CpuSet::new();
    for cpu in left.iter() {
        mask.set(cpu as usize)?;
    }
    sched_setaffinity(this_thread, &mask)?;
    Ok(Some(left))
}

/// How many files this process may have open at once (the soft limit).
pub fn open_files() -> io::Result<u64> {
    Ok(getrlimit(Resource::RLIMIT_NOFILE)?.0)
}

/// From now on this process may have as many files open as its hard limit allows. Programs that it executes still get
/// the soft limit of its start: some close whatever could be open, others cannot wait for a file above 1023.
pub fn raise_open_files() -> io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    FEWER_OPEN_FILES.get_or_init(|| libc::rlimit { rlim_cur: soft, rlim_max: hard });
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

/// The limit of open files for programs that this process executes, where it is not its own.
pub(crate) fn open_files_of_programs() -> Option<libc::rlimit> {
    FEWER_OPEN_FILES.get().copied()
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
