//! On which processors this process runs, and which of its threads go first.
//!
//! It stays off processors that are kept free for somebody (`isolcpus`, `nohz_full`): a pod that polls there must not be
//! interrupted by the daemon, nor by the plugins that it executes. It never takes a processor that it was not given. Programs
//! that it executes keep the priority that it was started with.

use std::io;
use std::path::Path;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use tracing::{info, warn};

use crate::topology::{CpuList, isolated};

/// The nice value that this process was started with, once a thread of it has taken another.
static USUAL_NICE: OnceLock<libc::c_int> = OnceLock::new();

/// By how much the nice value of a thread that goes first is lower: a tenth of the processor is left to the others, not nothing.
const AHEAD: libc::c_int = 10;

/// From now on the calling thread runs only where nobody else wants the processor (`SCHED_IDLE`).
///
/// # Errors
/// When the kernel refuses.
pub fn run_only_when_idle() -> io::Result<()> {
    // The kernel takes no other priority with SCHED_IDLE.
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: `parameters` outlives the call; 0 is the calling thread.
    Errno::result(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) })?;
    Ok(())
}

/// From now on the calling thread goes before threads of the usual priority, as do those that it starts; programs that this
/// process executes do not. Needs CAP_SYS_NICE.
///
/// # Errors
/// When the kernel refuses.
pub fn raise_priority() -> io::Result<()> {
    // SAFETY: takes numbers only. The usual nice value is never -1 where this fails: it does not for the calling thread.
    let usual = *USUAL_NICE.get_or_init(|| unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) });
    // SAFETY: takes numbers only; 0 is the calling thread.
    Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, usual - AHEAD) })?;
    Ok(())
}

/// Has the calling thread go before others, if the kernel lets it; a refusal is logged and costs only time.
///
/// It is for threads that carry out calls, before those who wait for them: in a burst there is one daemon and an executable for
/// every pod, and while the kernel has one pod's interface in hands the next call can be got ready.
pub fn prefer_this_thread() {
    if let Err(error) = raise_priority() {
        tracing::debug!(%error, "threads for calls keep the usual priority");
    }
}

/// The nice value for programs that this process executes, where threads of its own have another.
pub(crate) fn nice_of_programs() -> Option<libc::c_int> {
    USUAL_NICE.get().copied()
}

/// Takes the calling thread, and all that it starts from now on, off isolated processors, and logs what came of it. To be called
/// while there is no other thread. `sysfs` is the mount.
pub fn stay_off_isolated(sysfs: &Path) {
    let isolated = match isolated(sysfs) {
        Ok(none) if none.is_empty() => return,
        Ok(isolated) => isolated,
        Err(error) => {
            return warn!(%error, "isolated processors can't be told; the daemon runs wherever it may");
        }
    };
    match leave_cpus(&isolated) {
        Ok(Some(left)) => {
            info!(%isolated, on = %left, "the daemon and what it executes stay off isolated processors")
        }
        Ok(None) => {
            info!(%isolated, "the daemon's processors stay as they are: none is isolated, or it was given no other")
        }
        Err(error) => warn!(%isolated, %error, "the daemon can't leave isolated processors"),
    }
}

/// Takes the calling thread, and every one that it starts from now on, off these processors; answers on which it runs from
/// then on. `None`: it was on none of them, or it may run on no other, and nothing was changed. Programs that are executed
/// stay off them too.
fn leave_cpus(unwanted: &CpuList) -> io::Result<Option<CpuList>> {
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
