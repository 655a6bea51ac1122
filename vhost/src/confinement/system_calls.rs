//! Which system calls `fairlead-vswitch` may make (seccomp(2)), after it has its control socket.
//!
//! Two filters. The first is the list of what the program uses: sockets and descriptors that it was given, memory that is not executable,
//! threads, time. Anything else answers ENOSYS, and does not end the process: a C library that is newer than the list tries a call, is told
//! that the kernel has it not, and takes the older one; a switch that is killed for that would take all pods' traffic with it. In
//! particular clone3(2), whose flags a filter can't see, falls back to clone(2), which may only make threads.
//!
//! The second names calls that nobody makes by mistake: programs, other processes, namespaces, mounts, keys, the kernel's own machinery.
//! Whoever makes one has taken the process over, and it is killed.
//!
//! Neither lets the process open a file or make a socket.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads,
};

use crate::memory::userfault::{UFFDIO_CONTINUE, UFFDIO_REGISTER, UFFDIO_ZEROPAGE};

/// A filter can't be made or installed.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// It can't be made: a processor that the library does not know, or a rule that it can't translate.
    #[error("the filter can't be translated for {}", std::env::consts::ARCH)]
    Translation(#[from] BackendError),
    /// The kernel does not take it.
    #[error("the kernel does not take the filter")]
    Kernel(#[from] seccompiler::Error),
}

/// A comparison of one argument's lower 32 bits: its number, what is left of it under a mask, and what that must be.
type Argument = (u8, u32, u32);

const ALL: u32 = u32::MAX;
const PROT_EXEC: u32 = libc::PROT_EXEC.cast_unsigned();
const CLONE_THREAD: u32 = libc::CLONE_THREAD.cast_unsigned();

/// Calls that are allowed with any arguments.
const ALLOWED: &[c_long] = &[
    // descriptors that are open already, and those that a port's rings and threads wait with
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_lseek,
    // what kind of file a guest's descriptor is: the names below /proc/self/fd
    libc::SYS_readlinkat,
    // when a guest's file is gone: by the same names
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch,
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    // sockets that were given
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    // memory, beside mmap and mprotect
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // threads and signals
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // time and random numbers
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getrandom,
    // older forms of the above
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
];

/// Calls that are allowed with these arguments. Several entries of one call are alternatives.
const ALLOWED_WITH: &[(c_long, &[Argument])] = &[
    (libc::SYS_mmap, &[(2, PROT_EXEC, 0)]),
    (libc::SYS_mprotect, &[(2, PROT_EXEC, 0)]),
    (libc::SYS_clone, &[(0, CLONE_THREAD, CLONE_THREAD)]),
    (libc::SYS_prctl, &[(0, ALL, libc::PR_SET_NAME.cast_unsigned())]),
    (libc::SYS_fcntl, &[(1, ALL, libc::F_GETFD.cast_unsigned())]),
    (libc::SYS_fcntl, &[(1, ALL, libc::F_SETFD.cast_unsigned())]),
    (libc::SYS_fcntl, &[(1, ALL, libc::F_GETFL.cast_unsigned())]),
    (libc::SYS_fcntl, &[(1, ALL, libc::F_SETFL.cast_unsigned())]),
    (libc::SYS_fcntl, &[(1, ALL, libc::F_DUPFD_CLOEXEC.cast_unsigned())]),
    (libc::SYS_fcntl, &[(1, ALL, libc::F_GET_SEALS.cast_unsigned())]),
    (libc::SYS_ioctl, &[(1, ALL, FIONBIO)]),
    // whether a guest has read all replies
    (libc::SYS_ioctl, &[(1, ALL, SIOCOUTQ)]),
    // missing pages of guests, by the userfaultfd that was made before
    (libc::SYS_ioctl, &[(1, ALL, UFFDIO_REGISTER)]),
    (libc::SYS_ioctl, &[(1, ALL, UFFDIO_ZEROPAGE)]),
    (libc::SYS_ioctl, &[(1, ALL, UFFDIO_CONTINUE)]),
    // fstat(2) of newer C libraries
    (libc::SYS_newfstatat, &[(3, AT_EMPTY_PATH, AT_EMPTY_PATH)]),
];

const AT_EMPTY_PATH: u32 = libc::AT_EMPTY_PATH.cast_unsigned();
/// Makes a socket blocking or not; std asks for it by ioctl(2).
#[allow(clippy::cast_possible_truncation)] // requests have 32 bits; musl and glibc differ in the type
const FIONBIO: u32 = libc::FIONBIO as u32;
/// How much of what was sent over a socket is unread; the number is that of TIOCOUTQ.
#[allow(clippy::cast_possible_truncation)] // as above
const SIOCOUTQ: u32 = libc::TIOCOUTQ as u32;

/// Calls that end the process.
const DEADLY: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_by_handle_at,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_setuid,
    libc::SYS_setresuid,
    libc::SYS_capset,
    libc::SYS_reboot,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

/// Both filters, translated.
#[derive(Debug)]
pub struct SystemCallFilters {
    list: BpfProgram,
    deadly: BpfProgram,
}

impl SystemCallFilters {
    /// Translates the filters for this process: it may signal its own threads and no other process.
    ///
    /// # Errors
    /// When there is no translation for this processor.
    pub fn new() -> Result<SystemCallFilters, FilterError> {
        let mut list: BTreeMap<c_long, Vec<SeccompRule>> =
            ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
        let own_threads: (c_long, &[Argument]) = (libc::SYS_tgkill, &[(0, ALL, std::process::id())]);
        for (call, arguments) in ALLOWED_WITH.iter().chain([&own_threads]) {
            list.entry(*call).or_default().push(rule(arguments)?);
        }
        let deadly = DEADLY.iter().map(|call| (*call, Vec::new())).collect();
        Ok(SystemCallFilters {
            list: translate(list, SeccompAction::Errno(libc::ENOSYS.cast_unsigned()), SeccompAction::Allow)?,
            deadly: translate(deadly, SeccompAction::Allow, SeccompAction::KillProcess)?,
        })
    }

    /// Installs them in all threads of the process, those that it will have among them.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn apply_to_process(&self) -> Result<(), FilterError> {
        // The list does not allow seccomp(2), so it comes last.
        apply_filter_all_threads(&self.deadly)?;
        apply_filter_all_threads(&self.list)?;
        Ok(())
    }
}

fn rule(arguments: &[Argument]) -> Result<SeccompRule, FilterError> {
    let condition = |(number, mask, value): &Argument| {
        let operator = SeccompCmpOp::MaskedEq(u64::from(*mask));
        SeccompCondition::new(*number, SeccompCmpArgLen::Dword, operator, u64::from(*value))
    };
    let conditions: Result<Vec<_>, BackendError> = arguments.iter().map(condition).collect();
    Ok(SeccompRule::new(conditions?)?)
}

fn translate(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    others: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram, FilterError> {
    let target = TargetArch::try_from(std::env::consts::ARCH)?;
    Ok(SeccompFilter::new(rules, others, listed, target)?.try_into()?)
}

#[cfg(test)]
#[path = "system_calls_tests.rs"]
mod tests;
