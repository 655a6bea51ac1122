//! Ends what a thread of ours waits for on a guest's account: by SIGURG, whose handler does nothing. The system call that waits ends.

use std::sync::Once;

use nix::unistd::Pid;

/// Has this process handle SIGURG. It has no effect otherwise: it is ignored.
pub(crate) fn handle_signal() {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // SAFETY: all zeroes is a valid `sigaction`: no flags (so no SA_RESTART), an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = ignore as *const () as usize;
        // SAFETY: the pointer is valid, and a handler that does nothing is safe at any instruction.
        unsafe { libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut()) };
    });
}

/// Ends what `thread` waits for in a system call, or in what that leaves to be done at its end. A thread that does not wait goes on. The
/// caller sees to it that the thread has not ended: its number may be another's then.
pub(crate) fn interrupt(thread: Pid) {
    let process = nix::unistd::getpid().as_raw();
    // SAFETY: a system call without pointers; the signal is ignored or handled.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread.as_raw(), libc::SIGURG) };
}

extern "C" fn ignore(_: libc::c_int) {}
