//! A program that runs: its pipes served together, its end awaited, its group killed when it must be.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::{STDERR_LIMIT, STDOUT_LIMIT, spawn_at_home};

/// How often cancellation is looked at.
const TICK: Duration = Duration::from_millis(20);
/// How long a killed program is waited for; one that hangs in the kernel is then left to a thread of its own.
const REAP_LIMIT: Duration = Duration::from_secs(2);

/// So much of a pipe is read at a time.
const CHUNK: usize = 16 << 10;
/// So many chunks are read before the program's time is looked at again: enough to see that standard output is too long, and more
/// than an ended program can have left in a pipe of the usual largest size (1 MiB, fs.pipe-max-size).
const CHUNKS_AT_ONCE: usize = STDOUT_LIMIT / CHUNK + 1;

/// How a program ended, or why it has to be killed.
#[derive(Debug)]
pub(super) enum End {
    Exited(ExitStatus),
    TimedOut,
    Cancelled,
    TooMuchOutput,
}

/// A program that runs. It is killed with its group and reaped when this is dropped before it has ended.
#[derive(Debug)]
pub(super) struct RunningProgram<'stdin> {
    child: Option<Child>,
    pidfd: Option<OwnedFd>,
    to_write: &'stdin [u8],
    input: Option<File>,
    output: Option<File>,
    errors: Option<File>,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

impl<'stdin> RunningProgram<'stdin> {
    pub(super) fn new(mut child: Child, stdin: &'stdin [u8]) -> io::Result<RunningProgram<'stdin>> {
        let input = child.stdin.take().map(|pipe| File::from(OwnedFd::from(pipe)));
        let output = child.stdout.take().map(|pipe| File::from(OwnedFd::from(pipe)));
        let errors = child.stderr.take().map(|pipe| File::from(OwnedFd::from(pipe)));
        let pidfd = pidfd_of(&child);
        let mut running = RunningProgram {
            child: Some(child),
            pidfd,
            to_write: stdin,
            input,
            output,
            errors,
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        for pipe in [&running.input, &running.output, &running.errors].into_iter().flatten() {
            // A full pipe must not keep us from emptying another: the program may wait for that.
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        running.feed();
        Ok(running)
    }

    pub(super) fn serve(&mut self, deadline: Instant, cancelled: &dyn Fn() -> bool) -> io::Result<End> {
        loop {
            // Asked before the pipes are emptied: what an ended program wrote is in them by then.
            let ended = self.ended()?;
            self.feed();
            if !self.collect()? {
                return Ok(End::TooMuchOutput);
            }
            if let Some(status) = ended {
                return Ok(End::Exited(status));
            }
            let now = Instant::now();
            if now >= deadline {
                return Ok(End::TimedOut);
            }
            if cancelled() {
                return Ok(End::Cancelled);
            }
            self.wait((deadline - now).min(TICK))?;
        }
    }

    /// Its status, once it has ended. Processes that it left behind with our pipes in hand are not waited for.
    fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        let Some(child) = &mut self.child else { return Ok(None) };
        let status = child.try_wait()?;
        if status.is_some() {
            // It is reaped: from now on its number may be another process's, and must not be killed.
            self.child = None;
        }
        Ok(status)
    }

    fn wait(&self, limit: Duration) -> io::Result<()> {
        let mut watched = Vec::with_capacity(4);
        watched.extend(self.input.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLOUT)));
        watched.extend(self.output.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)));
        watched.extend(self.errors.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)));
        watched.extend(self.pidfd.as_ref().map(|pidfd| PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)));
        // Without a pidfd nothing wakes us when a program ends whose pipes somebody else holds open.
        let limit = if self.pidfd.is_some() { limit } else { limit.min(Duration::from_millis(2)) };
        match poll(&mut watched, PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Writes what the program takes now; a program that closes its input early is free to.
    fn feed(&mut self) {
        while let Some(input) = &mut self.input {
            match input.write(self.to_write) {
                // Closed, so that the program sees the end of its input.
                _ if self.to_write.is_empty() => self.input = None,
                Ok(written) => self.to_write = &self.to_write[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.input = None,
            }
        }
    }

    /// Reads what there is now, in bounds; false when standard output is too long.
    fn collect(&mut self) -> io::Result<bool> {
        drain(&mut self.output, &mut self.stdout, |all| all.len() <= STDOUT_LIMIT)?;
        drain(&mut self.errors, &mut self.stderr, |all| {
            all.drain(..all.len().saturating_sub(STDERR_LIMIT));
            true
        })?;
        Ok(self.stdout.len() <= STDOUT_LIMIT)
    }

    pub(super) fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let group = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
        // It has not been reaped, so the number is still its own.
        let _ = killpg(group, Signal::SIGKILL);
        let limit = Instant::now() + REAP_LIMIT;
        while Instant::now() < limit {
            match child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        leave_to_a_thread(child);
    }
}

impl Drop for RunningProgram<'_> {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Has a killed program waited for, however long it hangs. Its caller may be in a pod's namespace, which must not live for so long.
fn leave_to_a_thread(mut child: Child) {
    let wait = move || {
        let _ = child.wait();
    };
    // Without a thread it stays a zombie until the daemon ends.
    let _ = spawn_at_home("reaper", wait);
}

/// Reads until the pipe is empty, ended, or `go_on` has had enough, and [`CHUNKS_AT_ONCE`] at most: a program may write faster than it
/// is read.
fn drain(
    pipe: &mut Option<File>,
    into: &mut Vec<u8>,
    go_on: impl Fn(&mut Vec<u8>) -> bool,
) -> io::Result<()> {
    let mut chunk = [0; CHUNK];
    for _ in 0..CHUNKS_AT_ONCE {
        let Some(file) = pipe else { return Ok(()) };
        match file.read(&mut chunk) {
            Ok(0) => *pipe = None,
            Ok(length) => {
                into.extend_from_slice(&chunk[..length]);
                if !go_on(into) {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A descriptor that becomes readable when the child ends; `None` before kernel 5.3.
fn pidfd_of(child: &Child) -> Option<OwnedFd> {
    let pid = libc::pid_t::try_from(child.id()).ok()?;
    // SAFETY: pidfd_open takes two numbers; the child is ours and not reaped, so the number is its own.
    let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let raw = RawFd::try_from(raw).ok().filter(|raw| *raw >= 0)?;
    // SAFETY: the kernel has just made this descriptor and nothing else owns it.
    Some(unsafe { OwnedFd::from_raw_fd(raw) })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;
    use crate::real::{Entered, OwnNetns, open_netns};
    use crate::scratch_netns::ScratchNetns;

    /// The network namespaces of this process's threads of a name.
    fn namespaces_of(name: &str) -> Vec<PathBuf> {
        let threads = fs::read_dir("/proc/self/task").unwrap().flatten().map(|entry| entry.path());
        let named =
            threads.filter(|of| fs::read_to_string(of.join("comm")).is_ok_and(|it| it.trim() == name));
        named.filter_map(|of| fs::read_link(of.join("ns/net")).ok()).collect()
    }

    #[test]
    fn who_waits_for_a_program_that_hangs_keeps_no_pods_namespace() {
        let directory = tempfile::TempDir::new().unwrap();
        let pod = ScratchNetns::new(directory.path(), "pod").unwrap();
        let home = fs::read_link("/proc/thread-self/ns/net").unwrap();
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let program = Pid::from_raw(i32::try_from(child.id()).unwrap());
        let own = OwnNetns::of_this_thread().unwrap();
        let entered = Entered::enter(&own, open_netns(pod.path()).unwrap().0).unwrap();
        leave_to_a_thread(child);
        drop(entered);
        assert_eq!(namespaces_of("reaper"), [home]);
        nix::sys::signal::kill(program, Signal::SIGKILL).unwrap();
    }
}
