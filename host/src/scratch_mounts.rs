//! A mount namespace for tests, bound to a file as kubens.service does it.
//!
//! Nothing of the daemon uses this.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, sched_setaffinity, unshare};
use nix::unistd::Pid;

use crate::scratch_netns::joined;

/// Does `work` on a thread among mounts of its own, with another mount namespace bound to the file `at`, which is made with its
/// directories. In the end both namespaces are gone; the file stays and is an ordinary one.
///
/// # Errors
/// The kernel's.
pub fn with_mounts_bound_at<T: Send>(at: &Path, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    if let Some(directory) = at.parent() {
        fs::create_dir_all(directory)?;
    }
    File::create(at)?;
    thread::scope(|scope| {
        joined(scope.spawn(|| {
            stay_on_one_cpu()?;
            enter_own_mounts()?;
            let other = thread::scope(|scope| {
                joined(scope.spawn(|| {
                    enter_own_mounts()?;
                    File::open("/proc/thread-self/ns/mnt")
                }))
            })?;
            let (source, none) = (format!("/proc/self/fd/{}", other.as_raw_fd()), None::<&str>);
            mount(Some(source.as_str()), at, none, MsFlags::MS_BIND, none)?;
            Ok(work())
        }))
    })
}

/// A namespace can be bound only in one that was made before it. Linux 6.18 goes by numbers that it hands out by processor: one that
/// was made later on another processor may have the lower one.
fn stay_on_one_cpu() -> io::Result<()> {
    let this_thread = Pid::from_raw(0);
    let allowed = sched_getaffinity(this_thread)?;
    let mut one = CpuSet::new();
    if let Some(cpu) = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap_or(false)) {
        one.set(cpu)?;
    }
    Ok(sched_setaffinity(this_thread, &one)?)
}

fn enter_own_mounts() -> io::Result<()> {
    unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)?;
    // Nothing of it is seen outside; and into shared mounts no mount namespace can be bound.
    let none: Option<&str> = None;
    Ok(mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?)
}
